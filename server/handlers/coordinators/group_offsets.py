"""Committed offsets: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0.

Topics are given by name up to version 9 and by id from 10 on; OffsetFetch is for several groups from 8 on (KIP-709).
OffsetDelete (KIP-496) is refused for topics that a live group subscribes to.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from odradek.coordinator.groups import responses
from odradek.coordinator.groups.offset_commands import PreparedCommit
from odradek.coordinator.groups.offset_wire import (
    GROUPS_LISTED_SINCE,
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
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)
from odradek.protocol.schema import rows
from odradek.protocol.types import ZERO_UUID
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS, Slices, Work
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.request import Reply, RequestContext


class OffsetServices(Protocol):
    """The parts of a broker that requests about committed offsets need."""

    metadata: "ClusterMetadata"
    now_ms: Callable[[], int]
    slices: Slices

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...


class TopicLookup:
    """The topics of the metadata image, in the form that the group coordinator uses."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: "ClusterMetadata") -> None:
        self._metadata = metadata

    def topic_id(self, name: str) -> bytes:
        """Return the topic's id, or ZERO_UUID if there is no such topic."""
        topic = self._metadata.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the topic's name, or None if no topic has that id."""
        topic = self._metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, name: str) -> int:
        """Return the number of the topic's partitions, or 0 if there is no such topic."""
        topic = self._metadata.topics.get(name)
        return 0 if topic is None else len(topic.partitions)


def _allow(name: str) -> bool:
    """Return True, because there is no authorizer."""
    return True


def _find_filter(context: "RequestContext") -> Callable[[str], bool]:
    """Return a function that returns whether the client may use the topic with a name."""
    rights = context.rights
    return _allow if rights is None else partial(rights.allows, ResourceType.TOPIC)


def offset_commit(
    services: OffsetServices, context: "RequestContext", request: OffsetCommitRequest
) -> "Reply[OffsetCommitResponse]":
    """Commit offsets of existing topics in the group's shard; if no topic exists, the shard is not called.

    The request waits for the load of the shard, because librdkafka repeats a commit only twice within half a second.
    The records of a large commit are made in slices. Decision, append and replay are one step.
    """
    load = services.groups.wait_for_load(request.group_id, in_order=True)
    if load is not None:
        return load.addCallback(lambda _: offset_commit(services, context, request))
    requested = request.topics
    remaining, refused = split_commit(
        request, context.api_version, TopicLookup(services.metadata), _find_filter(context)
    )
    if remaining is None:
        return refused

    def decide(commit: PreparedCommit | None = None) -> "Reply[OffsetCommitResponse]":
        outcome: Reply[OffsetCommitResponse] = services.groups.run(
            remaining.group_id,
            lambda shard, token, now_ms: shard.commit_offsets(remaining, context, token, now_ms, commit),
        )
        return map_reply(outcome, lambda response: merge_commit(refused, response)) if refused.topics else outcome

    def prepared(commit: PreparedCommit) -> "Reply[OffsetCommitResponse]":
        next_load = services.groups.wait_for_load(request.group_id, in_order=True)
        if next_load is not None:
            return next_load.addCallback(lambda _: prepared(commit))
        topics = TopicLookup(services.metadata)
        if all(topics.topic_id(topic.name) == topic.topic_id for topic in remaining.topics):
            return decide(commit)
        # A topic has been deleted meanwhile, and maybe created again: process the request anew.
        request.topics = requested
        return offset_commit(services, context, request)

    if sum(len(topic.partitions) for topic in remaining.topics) <= ROWS_PER_STEP:
        return decide()
    shard = services.groups.shard(services.groups.index_of(remaining.group_id))
    steps = shard.prepare_commit(remaining, services.now_ms())
    return services.slices.run(steps, SMALL_REQUEST_STEPS).addCallback(prepared)


def offset_commit_error(request: OffsetCommitRequest, version: int, error: KafkaError) -> OffsetCommitResponse:
    """Return `error` for every partition."""
    return responses.offset_commit_error(request, error.code)


def offset_fetch(
    services: OffsetServices, context: "RequestContext", request: OffsetFetchRequest
) -> "Deferred[OffsetFetchResponse]":
    """Return the committed offsets of each group, from its shard."""
    return services.slices.run(_fetch_groups(services, context, request), SMALL_REQUEST_STEPS)


def _fetch_groups(
    services: OffsetServices, context: "RequestContext", request: OffsetFetchRequest
) -> Work[OffsetFetchResponse]:
    """Fetch the offsets of each group.

    First the load of the shards is awaited, because librdkafka does not repeat the request of an application. With
    `require_stable` the client continues a transactional job at the offset, and would repeat its work from an old one:
    the coordinator must certainly not have been replaced.
    """
    version = context.api_version
    wanted, unproved = list(fetch_groups(request, version)), set[int]()
    if request.require_stable:
        for group in wanted:
            yield from _await_load(services, group)
        proof = services.groups.wait_for_proof(group.group_id for group in wanted)
        if proof is not None:
            yield proof.addCallback(unproved.update)
    groups = []
    for group in wanted:
        yield from _await_load(services, group)
        groups.append((yield from _fetch_group(services, context, group, request.require_stable, unproved)))
    return fetch_response(groups, version)


def _await_load(services: OffsetServices, group: OffsetFetchRequestGroup) -> Work[None]:
    while (load := services.groups.wait_for_load(group.group_id, in_order=False)) is not None:
        yield load


def _fetch_group(
    services: OffsetServices,
    context: "RequestContext",
    group: OffsetFetchRequestGroup,
    require_stable: bool,
    unproved: set[int],
) -> Work[OffsetFetchResponseGroup]:
    """Fetch a few partitions in each step; all offsets are as of the first step.

    A group whose shard resigns meanwhile, or is `unproved`, gets the error.
    """
    index = services.groups.index_of(group.group_id)
    topics, may_describe = TopicLookup(services.metadata), _find_filter(context)
    shard = services.groups.absent_shard if index in unproved else services.groups.shard(index)
    is_all = group.topics is None
    wanted: Iterable[OffsetFetchRequestTopics] = group.topics or []
    if is_all:
        held = shard.topics_with_offsets(group.group_id) or {}
        wanted = [
            OffsetFetchRequestTopics(name=name, partition_indexes=list(partitions))
            for name, partitions in held.items()
        ]
    is_long = sum(len(topic.partition_indexes) for topic in wanted) > ROWS_PER_STEP
    offsets = shard.copy_offsets(group.group_id) if is_long else None
    response: OffsetFetchResponseGroup | None = None
    for part in _split_topics(wanted):
        piece = OffsetFetchRequestGroup(
            group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=part
        )
        requested, refused = split_fetch(piece, context.api_version, topics, may_describe)
        fetched = shard.fetch_offsets(
            requested, context, require_stable=require_stable, topic_id=topics.topic_id, offsets=offsets
        )
        if is_all:
            _drop_missing(fetched)
            requested.topics = None
        fetched = merge_fetch(requested, refused, fetched, context.api_version, topics, may_describe)
        if response is None or fetched.error_code:
            response = fetched
        else:
            _append_topics(response.topics, fetched.topics)
        if response.error_code:
            break
        yield None
    assert response is not None
    return response


def _split_topics(topics: Iterable[OffsetFetchRequestTopics]) -> Iterator[list[OffsetFetchRequestTopics]]:
    """Split topics into lists of up to `ROWS_PER_STEP` partitions; at least one list, which may be empty."""
    part: list[OffsetFetchRequestTopics] = []
    room = ROWS_PER_STEP
    for topic in topics:
        start = 0
        while True:
            end = min(start + room, len(topic.partition_indexes))
            part.append(
                OffsetFetchRequestTopics(
                    name=topic.name, topic_id=topic.topic_id, partition_indexes=topic.partition_indexes[start:end]
                )
            )
            room -= max(end - start, 1)
            if room <= 0:
                yield part
                part, room = [], ROWS_PER_STEP
            if end == len(topic.partition_indexes):
                break
            start = end
    if part or room == ROWS_PER_STEP:
        yield part


def _drop_missing(group: OffsetFetchResponseGroup) -> None:
    """Remove partitions without an offset or an error, for a request of all offsets."""
    for topic in group.topics:
        topic.partitions = [row for row in topic.partitions if row.error_code or row.committed_offset >= 0]
    group.topics = [topic for topic in group.topics if topic.partitions]


def _append_topics(topics: list[OffsetFetchResponseTopics], more: list[OffsetFetchResponseTopics]) -> None:
    """Append topics; if the first is the last of `topics`, append its partitions to that."""
    if topics and more and (topics[-1].name, topics[-1].topic_id) == (more[0].name, more[0].topic_id):
        topics[-1].partitions += more[0].partitions
        more = more[1:]
    topics += more


def offset_fetch_error(request: OffsetFetchRequest, version: int, error: KafkaError) -> OffsetFetchResponse:
    """Return `error` for every group; before version 8 for the whole request or every partition."""
    requested = fetch_groups(request, version)
    if version < GROUPS_LISTED_SINCE:
        return fetch_response([responses.offset_fetch_error(requested[0], error.code, version)], version)
    return OffsetFetchResponse(
        groups=rows(lambda group: responses.offset_fetch_error(group, error.code, version), requested)
    )


def offset_delete(
    services: OffsetServices, context: "RequestContext", request: OffsetDeleteRequest
) -> "Reply[OffsetDeleteResponse]":
    """Delete offsets in the group's shard.

    The shard is called even if no topic is left, because only the shard can detect that the group does not exist.
    """
    remaining, refused = split_delete(request, TopicLookup(services.metadata), _find_filter(context))
    outcome: Reply[OffsetDeleteResponse] = services.groups.run(
        remaining.group_id,
        lambda shard, token, now_ms: shard.delete_offsets(remaining, context, token, now_ms),
    )
    return map_reply(outcome, lambda response: merge_delete(refused, response))


def offset_delete_error(request: OffsetDeleteRequest, version: int, error: KafkaError) -> OffsetDeleteResponse:
    """Return `error` for the whole request."""
    return responses.offset_delete_error(error.code)
