"""CreateTopics, DeleteTopics and CreatePartitions.

The handlers are called even if no topic is left, because they determine the errors of whole requests.
"""

from collections import Counter
from collections.abc import Callable, Container, Generator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicResult,
)
from odradek.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)
from odradek.protocol.schema import rows
from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.topic_names import CLUSTER_METADATA_TOPIC
from odradek.server.authorization.guarding import GuardServices, Proceed, divide, finish, join, then
from odradek.server.security.authorization.operations import Operation, ResourceType
from odradek.server.security.authorization.rights import DECISIONS_PER_STEP, Rights, make_authorization_error
from odradek.server.work.slices import ROWS_PER_STEP
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    import random

    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.request import Reply, RequestContext

_REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_UNKNOWN: Final = -1
_Result = DeleteTopicsResponseDeletableTopicResult


T = TypeVar("T")


class TopicGuardServices(GuardServices, Protocol):
    """The parts of a broker that these guards need."""

    metadata: "ClusterMetadata"
    random_source: "random.Random"


def create_topics(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: CreateTopicsRequest,
    proceed: Proceed[CreateTopicsRequest, CreateTopicsResponse],
) -> "Reply[CreateTopicsResponse]":
    """Create the topics that the client may create; show the configurations that it may describe.

    An invalid row needs no right, because its error does not depend on the topic.
    """
    counts = Counter(topic.name for topic in request.topics)
    may_create_all = rights.allows_cluster(Operation.CREATE, audits_denial=False)

    def find_name(topic: CreateTopicsRequestCreatableTopic) -> str | None:
        is_invalid = counts[topic.name] > 1 or topic.name == CLUSTER_METADATA_TOPIC
        return None if may_create_all or is_invalid else topic.name

    def hide_configs(
        response: CreateTopicsResponse, errors: list[CreateTopicsResponseCreatableTopicResult]
    ) -> Generator[None, None, CreateTopicsResponse]:
        _, hidden = yield from rights.divide(
            ResourceType.TOPIC,
            [row for row in response.topics if not row.error_code],
            lambda row: row.name,
            Operation.DESCRIBE_CONFIGS,
            audits_denial=False,
        )
        for row in hidden:
            row.topic_config_error_code = _REFUSED
            row.num_partitions = row.replication_factor = _UNKNOWN
            row.configs = []
        response.topics = join(response.topics, errors)
        return response

    def create(
        allowed: list[CreateTopicsRequestCreatableTopic], refused: list[CreateTopicsRequestCreatableTopic]
    ) -> "Reply[CreateTopicsResponse]":
        rest = request
        if refused:
            rest = CreateTopicsRequest(
                topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
            )
        errors = rows(
            lambda topic: CreateTopicsResponseCreatableTopicResult(
                name=topic.name, error_code=_REFUSED, error_message="Authorization failed.", configs=[]
            ),
            refused,
        )
        return map_reply(proceed(rest), lambda response: finish(services, hide_configs(response, errors)))

    return divide(services, rights, ResourceType.TOPIC, request.topics, find_name, create, Operation.CREATE)


def delete_topics(
    rights: Rights,
    services: TopicGuardServices,
    context: "RequestContext",
    request: DeleteTopicsRequest,
    proceed: Proceed[DeleteTopicsRequest, DeleteTopicsResponse],
) -> "Reply[DeleteTopicsResponse]":
    """Delete the topics that the client may delete. The response hides names and ids that it may not describe.

    The results are in random order, so that their positions do not distinguish absent from hidden topics.
    """
    if rights.allows_cluster(Operation.DELETE, audits_denial=False):
        return proceed(request)

    def delete(divided: tuple[DeleteTopicsRequest, list[_Result]]) -> "Reply[DeleteTopicsResponse]":
        rest, refused = divided
        if not refused:
            return proceed(request)

        def merge(response: DeleteTopicsResponse) -> "Reply[DeleteTopicsResponse]":
            return finish(services, _merge_deletions(response, refused, services.random_source))

        return map_reply(proceed(rest), merge)

    return then(services, _divide_deletions(rights, services.metadata, request), delete)


def _merge_deletions(
    response: DeleteTopicsResponse, refused: list[_Result], random_source: "random.Random"
) -> Generator[None, None, DeleteTopicsResponse]:
    """Return all results in random order. A random number of the operating system takes some 2 us."""
    results: list[Any] = [*response.responses, *refused]
    for last in range(len(results) - 1, 0, -1):
        other = random_source.randrange(last + 1)
        results[last], results[other] = results[other], results[last]
        if last % ROWS_PER_STEP == 0:
            yield
    return DeleteTopicsResponse(responses=results)


def _find_key(topic: DeleteTopicsRequestDeleteTopicState) -> str | bytes | None:
    """Return the name or the id of a topic to delete; None for a row with both or neither, which is invalid."""
    if topic.name is None:
        return topic.topic_id if topic.topic_id != ZERO_UUID else None
    return topic.name if topic.topic_id == ZERO_UUID else None


def _divide_deletions(
    rights: Rights, metadata: "ClusterMetadata", request: DeleteTopicsRequest
) -> Generator[None, None, tuple[DeleteTopicsRequest, list[_Result]]]:
    """Return the request without the names and ids that the client may not delete, and the results of these.

    A repeated name or id needs no right, because it is invalid. A name needs the rights to describe and delete it. Of
    those that do not exist only the names with both rights are left to the controller: it may have a new topic that
    `metadata` does not have yet.
    """
    counts: dict[str | bytes | None, int] = {}
    for number, key in enumerate(chain(request.topic_names, map(_find_key, request.topics)), 1):
        counts[key] = counts.get(key, 0) + 1
        if number % ROWS_PER_STEP == 0:
            yield
    refused: dict[str | bytes, _Result] = {}
    for number, (key, count) in enumerate(counts.items(), 1):
        if key is not None and count == 1:
            result = _refuse_deletion(rights, metadata, key)
            if result is not None:
                refused[key] = result
        if number % DECISIONS_PER_STEP == 0:
            yield
    rest = DeleteTopicsRequest(
        topics=(yield from _omit(request.topics, _find_key, refused)),
        topic_names=(yield from _omit(request.topic_names, str, refused)),
        timeout_ms=request.timeout_ms,
    )
    return rest, list(refused.values())


def _omit(
    requested: Sequence[T], find_key: Callable[[T], str | bytes | None], omitted: Container[str | bytes | None]
) -> Generator[None, None, list[T]]:
    kept: list[T] = []
    for number, row in enumerate(requested, 1):
        if find_key(row) not in omitted:
            kept.append(row)
        if number % ROWS_PER_STEP == 0:
            yield
    return kept


def _refuse_deletion(rights: Rights, metadata: "ClusterMetadata", key: str | bytes) -> _Result | None:
    if isinstance(key, str):
        exists = key in metadata.topics
        if not rights.allows(ResourceType.TOPIC, key, Operation.DESCRIBE):
            return _make_refusal(key, ZERO_UUID, _REFUSED)
        if rights.allows(ResourceType.TOPIC, key, Operation.DELETE, audits_denial=exists):
            return None
        return _make_refusal(key, ZERO_UUID, _REFUSED if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topic = metadata.topics_by_id.get(key)
    if topic is None:
        return _make_refusal(None, key, ErrorCode.UNKNOWN_TOPIC_ID)
    if rights.allows(ResourceType.TOPIC, topic.name, Operation.DELETE):
        return None
    is_visible = rights.allows(ResourceType.TOPIC, topic.name, Operation.DESCRIBE)
    return _make_refusal(topic.name if is_visible else None, key, _REFUSED)


def _make_refusal(name: str | None, topic_id: bytes, code: ErrorCode) -> _Result:
    text = make_authorization_error(ResourceType.TOPIC).message if code is _REFUSED else None
    return _Result(name=name, topic_id=topic_id, error_code=code, error_message=text)


def create_partitions(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: CreatePartitionsRequest,
    proceed: Proceed[CreatePartitionsRequest, CreatePartitionsResponse],
) -> "Reply[CreatePartitionsResponse]":
    """Add partitions to the topics that the client may alter. A repeated name needs no right: it is invalid."""
    counts = Counter(topic.name for topic in request.topics)

    def add(
        allowed: list[CreatePartitionsRequestCreatePartitionsTopic],
        refused: list[CreatePartitionsRequestCreatePartitionsTopic],
    ) -> "Reply[CreatePartitionsResponse]":
        if not refused:
            return proceed(request)
        rest = CreatePartitionsRequest(
            topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        )
        errors = rows(
            lambda topic: CreatePartitionsResponseCreatePartitionsTopicResult(
                name=topic.name, error_code=_REFUSED, error_message=None
            ),
            refused,
        )
        return map_reply(
            proceed(rest), lambda response: CreatePartitionsResponse(results=join(response.results, errors))
        )

    def find_name(topic: CreatePartitionsRequestCreatePartitionsTopic) -> str | None:
        return topic.name if counts[topic.name] == 1 else None

    return divide(services, rights, ResourceType.TOPIC, request.topics, find_name, add)
