"""Produce: topics that the client may write to, and the transactional id of transactional batches."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestTopicProduceData,
    ProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from odradek.protocol.schema import rows
from odradek.server.authorization.guarding import GuardServices, Proceed, join, then
from odradek.server.handlers.records.produce import ProduceOutcome, make_error_row, record_refusal
from odradek.server.produce_request import TOPIC_IDS_SINCE, is_transactional_batch
from odradek.server.request import CloseConnection
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import DECISIONS_PER_STEP, Rights
from odradek.server.work.slices import ROWS_PER_STEP

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.request import Reply, RequestContext

_Topics = list[ProduceRequestTopicProduceData]
_Rows = list[ProduceResponseTopicProduceResponse]


class ProduceGuardServices(GuardServices, Protocol):
    """The parts of a broker that this guard needs."""

    metadata: "ClusterMetadata"


def produce(
    rights: Rights,
    services: ProduceGuardServices,
    context: "RequestContext",
    request: ProduceRequest,
    proceed: Proceed[ProduceRequest, ProduceOutcome],
) -> "Reply[ProduceOutcome]":
    """Append to the topics that the client may write to.

    Raises KafkaError TRANSACTIONAL_ID_AUTHORIZATION_FAILED for transactional batches without the right to the
    transactional id, CloseConnection for a refused topic with acks=0. `request` is not changed: its head may be added
    to the produce fast path.
    """

    def append(divided: tuple[_Topics, _Rows]) -> "Reply[ProduceOutcome]":
        allowed, errors = divided
        if len(allowed) == len(request.topic_data):
            return proceed(request)
        if not allowed:
            return merge(ProduceResponse(), errors)
        rest = ProduceRequest(
            transactional_id=request.transactional_id,
            acks=request.acks,
            timeout_ms=request.timeout_ms,
            topic_data=allowed,
        )
        outcome = proceed(rest)
        if isinstance(outcome, Deferred):
            merged: Deferred[ProduceOutcome] = outcome.addCallback(merge, errors)
            return merged
        return merge(outcome, errors)

    def merge(response: ProduceOutcome, errors: _Rows) -> ProduceOutcome:
        if not isinstance(response, ProduceResponse) or request.acks == 0:
            raise CloseConnection("a produce with acks=0 failed: a topic is unknown or may not be written to")
        response.responses = join(response.responses, errors)
        return response

    return then(services, _divide(rights, services, context, request), append, carries_through=True)


def _divide(
    rights: Rights, services: ProduceGuardServices, context: "RequestContext", request: ProduceRequest
) -> Generator[None, None, tuple[_Topics, _Rows]]:
    """Return the topics that the client may write to, and the errors of the others.

    An id that is not in the metadata is unknown even if this broker has replicas of its topic: without a name there is
    no decision.
    """
    if (yield from _has_transactional_batch(request)):
        transactional_id = request.transactional_id
        if transactional_id is None or not rights.allows(ResourceType.TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    by_id = services.metadata.topics_by_id
    uses_ids = context.api_version >= TOPIC_IDS_SINCE
    allowed: _Topics = []
    refused: _Topics = []
    unknown: _Topics = []
    for number, topic in enumerate(request.topic_data, 1):
        known = by_id.get(topic.topic_id) if uses_ids else topic
        if known is None:
            unknown.append(topic)
            for data in topic.partition_data:
                record_refusal(context, topic, data, ErrorCode.UNKNOWN_TOPIC_ID)
        elif rights.allows(ResourceType.TOPIC, known.name):
            allowed.append(topic)
        else:
            refused.append(topic)
        if number % DECISIONS_PER_STEP == 0:
            yield
    if not refused and not unknown:
        return allowed, []
    errors = yield from _make_errors(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return allowed, join(errors, (yield from _make_errors(unknown, ErrorCode.UNKNOWN_TOPIC_ID)))


def _has_transactional_batch(request: ProduceRequest) -> Generator[None, None, bool]:
    count = 0
    for topic in request.topic_data:
        for data in topic.partition_data:
            if is_transactional_batch(data.records):  # type: ignore[arg-type] # decoded: a view of the frame
                return True
            count += 1
            if count % DECISIONS_PER_STEP == 0:
                yield
    return False


def _make_errors(refused: _Topics, code: ErrorCode) -> Generator[None, None, _Rows]:
    """Return the rows of refused topics: one for each partition, even if the request repeats it."""
    error = KafkaError(code)
    indexes: dict[tuple[str, bytes], dict[int, None]] = {}
    count = 0
    for topic in refused:
        of_topic = indexes.setdefault((topic.name, topic.topic_id), {})
        for data in topic.partition_data:
            of_topic[data.index] = None
            count += 1
            if count % ROWS_PER_STEP == 0:
                yield

    def make_row(refused: tuple[tuple[str, bytes], dict[int, None]]) -> ProduceResponseTopicProduceResponse:
        (name, topic_id), numbers = refused
        return ProduceResponseTopicProduceResponse(
            name=name,
            topic_id=topic_id,
            partition_responses=rows(lambda index: make_error_row(index, error, None), list(numbers)),
        )

    return rows(make_row, [one for one in indexes.items() if one[1]])
