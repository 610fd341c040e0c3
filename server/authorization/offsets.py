"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

The handlers divide a request by topic, because they resolve topic ids. Decisions on topics are made before, in steps.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from odradek.coordinator.groups import responses
from odradek.coordinator.groups.offset_wire import GROUPS_LISTED_SINCE, fetch_groups, fetch_response
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from odradek.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from odradek.protocol.schema import rows
from odradek.protocol.types import ZERO_UUID
from odradek.server.authorization.guarding import GuardServices, Proceed, divide, merge_in_order, then
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.request import Reply, RequestContext


class OffsetGuardServices(GuardServices, Protocol):
    """The parts of a broker that these guards need."""

    metadata: "ClusterMetadata"


class _NamedTopic(Protocol):
    @property
    def name(self) -> str: ...


class _Topic(_NamedTopic, Protocol):
    @property
    def topic_id(self) -> bytes: ...


T = TypeVar("T")


def _find_names(metadata: "ClusterMetadata", topics: Iterable[_Topic]) -> Generator[str, None, None]:
    """Yield the names of the topics of a request, which has names or ids."""
    for topic in topics:
        if topic.topic_id == ZERO_UUID:
            yield topic.name
        else:
            found = metadata.topics_by_id.get(topic.topic_id)
            if found is not None:
                yield found.name


def offset_commit(
    rights: Rights,
    services: OffsetGuardServices,
    context: "RequestContext",
    request: OffsetCommitRequest,
    proceed: Proceed[OffsetCommitRequest, OffsetCommitResponse],
) -> "Reply[OffsetCommitResponse]":
    """Check the right to the group; the handler refuses topics."""
    rights.check(ResourceType.GROUP, request.group_id)
    steps = rights.decide(ResourceType.TOPIC, _find_names(services.metadata, request.topics))
    return then(services, _return_request(steps, request), proceed)


def offset_delete(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: OffsetDeleteRequest,
    proceed: Proceed[OffsetDeleteRequest, OffsetDeleteResponse],
) -> "Reply[OffsetDeleteResponse]":
    """Check the right to the group; the handler refuses topics."""
    rights.check(ResourceType.GROUP, request.group_id)
    steps = rights.decide(ResourceType.TOPIC, (topic.name for topic in request.topics))
    return then(services, _return_request(steps, request), proceed)


def offset_fetch(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: OffsetFetchRequest,
    proceed: Proceed[OffsetFetchRequest, OffsetFetchResponse],
) -> "Reply[OffsetFetchResponse]":
    """Fetch the offsets of the groups that the client may describe; the handler refuses or omits topics."""
    version = context.api_version
    if version < GROUPS_LISTED_SINCE:
        rights.check(ResourceType.GROUP, request.group_id)
        return proceed(request)
    requested = fetch_groups(request, version)

    def fetch(
        allowed: list[OffsetFetchRequestGroup], refused: list[OffsetFetchRequestGroup]
    ) -> "Reply[OffsetFetchResponse]":
        if not refused:
            return proceed(request)
        if not allowed:
            return respond(refused)
        rest = OffsetFetchRequest(groups=allowed, require_stable=request.require_stable)
        return map_reply(proceed(rest), lambda response: merge(response, refused))

    def merge(response: OffsetFetchResponse, refused: list[OffsetFetchRequestGroup]) -> "Reply[OffsetFetchResponse]":
        return then(services, merge_in_order(requested, refused, response.groups), respond)

    def respond(groups: Sequence[OffsetFetchRequestGroup | OffsetFetchResponseGroup]) -> OffsetFetchResponse:
        return fetch_response(rows(make_row, groups), version)

    def make_row(group: OffsetFetchRequestGroup | OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if isinstance(group, OffsetFetchRequestGroup):
            return responses.offset_fetch_error(group, ErrorCode.GROUP_AUTHORIZATION_FAILED, version)
        return group

    return divide(services, rights, ResourceType.GROUP, requested, lambda group: group.group_id, fetch)


def _return_request(steps: Generator[None, None, None], request: T) -> Generator[None, None, T]:
    yield from steps
    return request
