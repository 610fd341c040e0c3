"""FindCoordinator 0-6: the broker that coordinates a group or a transactional id.

From version 4 on a request has several keys, each with its own error (KIP-699). The first request for a coordinator
creates its internal topic; until that exists the error is COORDINATOR_NOT_AVAILABLE, which clients retry. Share groups
have no coordinator and get INVALID_REQUEST, so that a client fails at once instead of retrying.
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

    from odradek.replication.controller.admin.auto_creation import AutoCreation
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.request import RequestContext
    from odradek.server.work.slices import Slices

GROUP: Final = 0
TRANSACTION: Final = 1
BATCHED_SINCE: Final = 4
NO_ERROR: Final = "NONE"
"""The error message of a successful response before version 4, as in Apache Kafka."""

_TOPICS: Final = {GROUP: GROUP_METADATA_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC}


class FindCoordinatorServices(Protocol):
    """The parts of a broker that FindCoordinator needs."""

    metadata: "ClusterMetadata"
    slices: "Slices"

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...

    @property
    def auto_creation(self) -> "AutoCreation": ...

    @property
    def transactions(self) -> "TransactionCoordinatorRuntime": ...


def find_coordinator(
    services: FindCoordinatorServices, context: "RequestContext", request: FindCoordinatorRequest
) -> "Deferred[FindCoordinatorResponse]":
    """Return the coordinator of each key; create the internal topic if it is missing."""
    topic = _TOPICS.get(request.key_type)
    if topic is not None and topic not in services.metadata.topics and _list_keys(request, context.api_version):
        return carry_through(services.auto_creation.auto_create([topic])).addCallback(
            lambda _: services.slices.run(_find_all(services, context, request), SMALL_REQUEST_STEPS)
        )
    return services.slices.run(_find_all(services, context, request), SMALL_REQUEST_STEPS)


def find_coordinator_error(
    request: FindCoordinatorRequest, version: int, error: KafkaError
) -> FindCoordinatorResponse:
    """Return `error` for every key; before version 4 for the whole request."""
    return _make_response(request, version, rows(lambda key: make_error_row(key, error), _list_keys(request, version)))


def _find_all(
    services: FindCoordinatorServices, context: "RequestContext", request: FindCoordinatorRequest
) -> Generator[None, None, FindCoordinatorResponse]:
    version = context.api_version
    found = []
    for key in _list_keys(request, version):
        try:
            found.append(_find_one(services, context, request.key_type, key))
        except KafkaError as error:
            found.append(make_error_row(key, error))
        yield
    return _make_response(request, version, found)


def _find_one(
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


def _list_keys(request: FindCoordinatorRequest, version: int) -> list[str]:
    return request.coordinator_keys if version >= BATCHED_SINCE else [request.key]


def make_error_row(key: str, error: KafkaError) -> FindCoordinatorResponseCoordinator:
    """Return the row of a key whose coordinator is not found."""
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.message
    )


def _make_response(
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
