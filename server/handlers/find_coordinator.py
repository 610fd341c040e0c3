"""FindCoordinator 0-6: which broker coordinates a group or a transactional id.

Several keys from version 4 on, each with its own error (KIP-699). The internal topic is created when it is first asked
for; until it is there the answer is COORDINATOR_NOT_AVAILABLE, which clients retry. Share groups have no coordinator
here and are refused with INVALID_REQUEST, so that a client fails at once instead of waiting.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from odradek.protocol.schema import rows
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from odradek.server.work.slices import SMALL_REQUEST_STEPS
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.topic_admin import TopicAdmin
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.request import RequestContext
    from odradek.server.work.slices import Slices

GROUP: Final = 0
TRANSACTION: Final = 1
BATCHED_SINCE: Final = 4
NO_ERROR: Final = "NONE"
"""The message of success before version 4, as Apache Kafka has it."""

_TOPICS: Final = {GROUP: GROUP_METADATA_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC}


class FindCoordinatorServices(Protocol):
    """The parts of a broker that FindCoordinator needs."""

    metadata: "ClusterMetadata"
    slices: "Slices"

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...

    @property
    def topics(self) -> "TopicAdmin": ...

    @property
    def transactions(self) -> "TransactionCoordinatorRuntime": ...


def find_coordinator(
    services: FindCoordinatorServices, context: "RequestContext", request: FindCoordinatorRequest
) -> "Deferred[FindCoordinatorResponse]":
    """The coordinator of each key."""
    topic = _TOPICS.get(request.key_type)
    if topic is not None and topic not in services.metadata.topics:
        return carry_through(services.topics.auto_create([topic])).addCallback(
            lambda _: services.slices.run(_answer(services, context, request), SMALL_REQUEST_STEPS)
        )
    return services.slices.run(_answer(services, context, request), SMALL_REQUEST_STEPS)


def find_coordinator_error(
    request: FindCoordinatorRequest, version: int, error: KafkaError
) -> FindCoordinatorResponse:
    """The error at the top, or at every key."""
    return _response(request, version, rows(lambda key: _failed(key, error), _keys(request, version)))


def _answer(
    services: FindCoordinatorServices, context: "RequestContext", request: FindCoordinatorRequest
) -> Generator[None, None, FindCoordinatorResponse]:
    version = context.api_version
    found = []
    for key in _keys(request, version):
        try:
            found.append(_find(services, context, request.key_type, key))
        except KafkaError as error:
            found.append(_failed(key, error))
        yield
    return _response(request, version, found)


def _find(
    services: FindCoordinatorServices, context: "RequestContext", key_type: int, key: str
) -> FindCoordinatorResponseCoordinator:
    coordinators: GroupCoordinatorRuntime | TransactionCoordinatorRuntime
    if key_type == GROUP:
        coordinators = services.groups
    elif key_type == TRANSACTION:
        coordinators = services.transactions
    else:
        what = "share groups" if key_type == 2 else f"coordinator type {key_type}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"This broker does not serve {what}.")
    metadata = services.metadata
    partition = metadata.partition(coordinators.topic, coordinators.index_of(key))
    leader = metadata.brokers.get(partition.leader) if partition is not None else None
    endpoint = leader.endpoint(context.listener_name) if leader is not None else None
    if leader is None or endpoint is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=leader.broker_id, host=endpoint.host, port=endpoint.port
    )


def _keys(request: FindCoordinatorRequest, version: int) -> list[str]:
    return request.coordinator_keys if version >= BATCHED_SINCE else [request.key]


def _failed(key: str, error: KafkaError) -> FindCoordinatorResponseCoordinator:
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.message
    )


def _response(
    request: FindCoordinatorRequest, version: int, found: list[FindCoordinatorResponseCoordinator]
) -> FindCoordinatorResponse:
    if version >= BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    if one.error_code == ErrorCode.NONE:
        one.error_message = NO_ERROR
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )
