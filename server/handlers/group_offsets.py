"""Committed offsets: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0.

Topics go by name up to version 9 and by id from 10 on; OffsetFetch takes several groups from 8 on (KIP-709).
OffsetDelete (KIP-496) is refused for topics a live group subscribes to.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.coordinator import responses
from odradek.coordinator.offset_requests import (
    fetch_groups,
    fetch_response,
    merge_commit,
    merge_delete,
    merge_fetch,
    split_commit,
    split_delete,
    split_fetch,
)
from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from odradek.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from odradek.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from odradek.replication.cluster_metadata import ClusterMetadata
    from odradek.server.request import RequestContext
    from odradek.server.services import Services


class Topics:
    """What the coordinator has to know of topics, out of the metadata image."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: "ClusterMetadata") -> None:
        self._metadata = metadata

    def topic_id(self, name: str) -> bytes:
        """The topic's id, or ZERO_UUID if there is no such topic."""
        topic = self._metadata.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic's name, or None if no topic has that id."""
        topic = self._metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, name: str) -> int:
        """The number of the topic's partitions, or 0 if there is no such topic."""
        topic = self._metadata.topics.get(name)
        return 0 if topic is None else len(topic.partitions)


def _everything(name: str) -> bool:
    """There is no authorizer: every topic may be read."""
    return True


def offset_commit(services: "Services", context: "RequestContext", request: OffsetCommitRequest) -> Any:
    """What exists goes to the group's shard; if nothing is left, the group is not even looked at."""
    remaining, refused = split_commit(request, context.api_version, Topics(services.metadata), _everything)
    if remaining is None:
        return refused
    outcome = services.groups.run(
        remaining.group_id,
        lambda shard, token, now_ms: shard.commit_offsets(remaining, context, token, now_ms),
    )
    if not refused.topics:
        return outcome
    return _then(outcome, lambda response: merge_commit(refused, response))


def offset_commit_error(request: OffsetCommitRequest, version: int, error: KafkaError) -> OffsetCommitResponse:
    """The error at every partition."""
    return responses.offset_commit_error(request, error.code)


def offset_fetch(
    services: "Services", context: "RequestContext", request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Each group from its shard, at once."""
    topics = Topics(services.metadata)
    version = context.api_version
    groups = [
        _fetch_group(services, context, group, topics, request.require_stable)
        for group in fetch_groups(request, version)
    ]
    return fetch_response(groups, version)


def _fetch_group(
    services: "Services",
    context: "RequestContext",
    group: OffsetFetchRequestGroup,
    topics: Topics,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    asked, refused = split_fetch(group, context.api_version, topics, _everything)
    shard = services.groups.shard(services.groups.index_of(group.group_id))
    answered = shard.fetch_offsets(asked, context, require_stable=require_stable, topic_id=topics.topic_id)
    return merge_fetch(asked, refused, answered, context.api_version, topics, _everything)


def offset_fetch_error(request: OffsetFetchRequest, version: int, error: KafkaError) -> OffsetFetchResponse:
    """The error at every group, or wherever the version has it."""
    groups = [responses.offset_fetch_error(group, error.code, version) for group in fetch_groups(request, version)]
    return fetch_response(groups, version)


def offset_delete(services: "Services", context: "RequestContext", request: OffsetDeleteRequest) -> Any:
    """The group's shard is asked even if no topic is left: it knows whether there is such a group."""
    remaining, refused = split_delete(request, Topics(services.metadata), _everything)
    outcome = services.groups.run(
        remaining.group_id,
        lambda shard, token, now_ms: shard.delete_offsets(remaining, context, token, now_ms),
    )
    return _then(outcome, lambda response: merge_delete(refused, response))


def offset_delete_error(request: OffsetDeleteRequest, version: int, error: KafkaError) -> OffsetDeleteResponse:
    """The error for the request as a whole."""
    return responses.offset_delete_error(error.code)


def _then(outcome: Any, change: Callable[[Any], Any]) -> Any:
    """Change a response that is there or will come."""
    return outcome.addCallback(change) if hasattr(outcome, "addCallback") else change(outcome)
