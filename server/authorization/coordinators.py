"""FindCoordinator: the coordinators of groups and transactional ids that the client may describe."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from odradek.protocol.schema import rows
from odradek.server.authorization.guarding import GuardServices, Proceed, divide, merge_in_order, then
from odradek.server.handlers.coordinators.find_coordinator import BATCHED_SINCE, GROUP, TRANSACTION, make_error_row
from odradek.server.security.authorization.operations import AUTHORIZATION_ERRORS, ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext

SHARE: int = 2
SHARE_SINCE: int = 6
_RESOURCE_TYPES = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}


def find_coordinator(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: FindCoordinatorRequest,
    proceed: Proceed[FindCoordinatorRequest, FindCoordinatorResponse],
) -> "Reply[FindCoordinatorResponse]":
    """Find the coordinators of the keys that the client may describe, in the order of the request.

    Only brokers may look up the coordinator of a share group's state.
    """
    version = context.api_version
    resource_type = _RESOURCE_TYPES.get(request.key_type)
    if resource_type is None:
        if request.key_type == SHARE and version >= SHARE_SINCE:
            rights.check_cluster()
        return proceed(request)
    if version < BATCHED_SINCE:
        rights.check(resource_type, request.key)
        return proceed(request)
    error = KafkaError(AUTHORIZATION_ERRORS[resource_type], "")

    def merge(response: FindCoordinatorResponse, refused: list[str]) -> "Reply[FindCoordinatorResponse]":
        steps = merge_in_order(request.coordinator_keys, refused, response.coordinators)
        return then(services, steps, respond)

    def respond(coordinators: Sequence[FindCoordinatorResponseCoordinator | str]) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(coordinators=rows(make_row, coordinators))

    def make_row(found: FindCoordinatorResponseCoordinator | str) -> FindCoordinatorResponseCoordinator:
        return make_error_row(found, error) if isinstance(found, str) else found

    def find(allowed: list[str], refused: list[str]) -> "Reply[FindCoordinatorResponse]":
        if not refused:
            return proceed(request)
        if not allowed:
            return respond(refused)
        rest = FindCoordinatorRequest(key_type=request.key_type, coordinator_keys=allowed)
        return map_reply(proceed(rest), lambda response: merge(response, refused))

    return divide(services, rights, resource_type, request.coordinator_keys, str, find)
