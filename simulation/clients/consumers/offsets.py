"""ListOffsets, OffsetFetch and OffsetCommit for consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from odradek.simulation.api import ConnectionLost
from odradek.simulation.clients.link import RETRIABLE, Link
from odradek.simulation.history import LATEST, Isolation, OffsetCommit, Outcome, Partition

_OFFSET_FETCH: Final = 9
_FIRST_STABLE: Final = 7
_FIRST_WITH_ISOLATION: Final = 2
_MAY_BE_STORED: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""Errors of a commit that was appended but not replicated in time, or whose coordinator resigned."""


def _by_topic(partitions: Sequence[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


async def list_end(link: Link, partition: Partition, isolation: Isolation) -> int:
    """Return the end of a partition and record it in the history. Raises GaveUp."""
    row = ListOffsetsRequestListOffsetsPartition(partition_index=partition[1], timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation.value,
        topics=[ListOffsetsRequestListOffsetsTopic(name=partition[0], partitions=[row])],
    )
    if link.versions.of(request) < _FIRST_WITH_ISOLATION:
        isolation = Isolation.READ_UNCOMMITTED
    started = link.history.moment()

    def make() -> ListOffsetsRequest:
        nonlocal started
        started = link.history.moment()
        return request

    response = await link.request_until(make, lambda answer: int(answer.topics[0].partitions[0].error_code))
    found = response.topics[0].partitions[0]
    if found.error_code != ErrorCode.NONE:
        link.history.note_odd(link.name, f"ListOffsets: {ErrorCode(found.error_code).name}")
        return 0
    link.history.record_end_offset(link.name, started, partition, isolation, found.offset, found.leader_epoch)
    return int(found.offset)


async def fetch_committed(link: Link, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Return the committed offsets of a group, -1 for none; stable ones if the version has that. Raises GaveUp."""
    topic_ids = await link.topic_ids(list(dict.fromkeys(topic for topic, _ in partitions)))
    by_topic = _by_topic(partitions)
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name=name, partition_indexes=rows) for name, rows in by_topic.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    OffsetFetchRequestTopics(name=name, topic_id=topic_ids[name], partition_indexes=rows)
                    for name, rows in by_topic.items()
                ],
            )
        ],
        require_stable=True,
    )
    stable = link.versions.of(request) >= _FIRST_STABLE
    started = link.history.moment()

    def make() -> OffsetFetchRequest:
        nonlocal started
        started = link.history.moment()
        return request

    response = await link.request_until(make, _fetch_code)
    if _fetch_code(response) != ErrorCode.NONE:
        link.history.note_odd(link.name, f"OffsetFetch: {ErrorCode(_fetch_code(response)).name}")
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    found = dict.fromkeys(partitions, -1)
    for topic in response.groups[0].topics if response.groups else response.topics:
        name = topic.name or names.get(getattr(topic, "topic_id", b""), "?")
        for row in topic.partitions:
            found[name, row.partition_index] = row.committed_offset
    for partition, offset in found.items():
        link.history.record_fetch(link.name, started, group, partition, offset, stable=stable)
    return found


def _fetch_code(answer: Any) -> int:
    if answer.groups:
        group = answer.groups[0]
        rows = [row for topic in group.topics for row in topic.partitions]
        code: int = group.error_code
    else:
        rows = [row for topic in answer.topics for row in topic.partitions]
        code = answer.error_code
    return code or next((row.error_code for row in rows if row.error_code), 0)


class Committer(Protocol):
    """The group member that commits."""

    generation: int
    member_id: str
    instance_id: str | None


async def commit(link: Link, group: str, offsets: Mapping[Partition, int], member: Committer) -> int:
    """Commit offsets with retries; return the error code, -1 if the last retry lost its connection."""
    topic_ids = await link.topic_ids(list(dict.fromkeys(topic for topic, _ in offsets)))
    commits = {
        partition: link.history.begin_commit(link.name, group, partition, offset, member.generation)
        for partition, offset in offsets.items()
    }
    request = _commit_request(group, offsets, member, topic_ids)
    code = -1
    refusals: list[int] = []
    try:
        code = await _commit(link, request, commits, refusals)
    finally:
        was_lost = any(one.lost for one in commits.values())
        may_be_stored = was_lost or not _MAY_BE_STORED.isdisjoint(refusals)
        for one in commits.values():
            if code == ErrorCode.NONE:
                link.history.end_commit(one, Outcome.OK)
            else:
                # An error does not determine the outcome of earlier attempts.
                certain = code >= 0 and code not in RETRIABLE and not may_be_stored
                if code == -1:
                    link.history.lose_commit(one)
                link.history.end_commit(
                    one, Outcome.FAILED if certain else Outcome.UNKNOWN, error=ErrorCode(code).name
                )
    return code


async def _commit(
    link: Link, request: OffsetCommitRequest, commits: Mapping[Partition, OffsetCommit], refusals: list[int]
) -> int:
    """Send until the response is not retriable; earlier error codes are added to `refusals`."""
    code = -1
    for attempt in range(6):
        try:
            response = await link.request(request)
        except ConnectionLost:
            code = -1
            for one in commits.values():
                link.history.lose_commit(one)
        else:
            rows = [row for topic in response.topics for row in topic.partitions]
            code = next((row.error_code for row in rows if row.error_code), 0)
            if code not in RETRIABLE:
                if code == ErrorCode.UNKNOWN_SERVER_ERROR:
                    link.history.note_odd(link.name, "OffsetCommit: UNKNOWN_SERVER_ERROR")
                return code
            refusals.append(code)
        await link.back_off(attempt)
    return code


def _commit_request(
    group: str, offsets: Mapping[Partition, int], member: Committer, topic_ids: Mapping[str, bytes]
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (topic, index), offset in offsets.items():
        row = topics.setdefault(
            topic, OffsetCommitRequestTopic(name=topic, topic_id=topic_ids[topic], partitions=[])
        )
        row.partitions.append(
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=list(topics.values()),
    )
