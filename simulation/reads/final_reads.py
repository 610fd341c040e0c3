"""Final reads of a run: all partitions, with both isolation levels and by timestamp, and the groups' offsets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.simulation.api import ConnectionLost
from odradek.simulation.clients.cluster_operator import OPERATED_TOPICS
from odradek.simulation.clients.lasting_connection import LastingConnection
from odradek.simulation.history import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    FinalLog,
    FinalState,
    History,
    Isolation,
    Lookup,
    Partition,
)
from odradek.simulation.reads.log_reader import (
    EARLIEST,
    LARGEST,
    LATEST,
    Connection,
    NotYetError,
    list_offset,
    read_log,
)
from odradek.simulation.scenario import Scenario

if TYPE_CHECKING:
    from odradek.simulation.world import World

FINAL_READ_LIMIT_S: Final = 60.0
"""Time for open transactions to time out and for coordinators to load."""

_CLIENT_ID: Final = "final"
_METADATA_VERSION: Final = 12
_DESCRIBE_GROUPS_VERSION: Final = 5
_OFFSET_FETCH_VERSION: Final = 8


async def read_all(
    world: "World", scenario: Scenario, history: History, groups: Iterable[str]
) -> FinalState:
    """Read everything. A partition that cannot be read is missing from the result, which the checker reports."""
    state = FinalState()
    deadline_s = world.clock.seconds() + FINAL_READ_LIMIT_S
    connection = await _connect(world)
    await _list_topics(connection, scenario, history)
    for life in history.topics.lives:
        state.logs.update(life.readings if life.deletion is not None else {})
    for life in history.topics.living():
        for index in range(life.partitions):
            partition = life.topic, index
            for log, isolation in await _read_until(world, deadline_s, _read_both, connection, partition) or ():
                state.logs[life.partition(index), isolation] = log
    for topic in scenario.topics:
        for index in range(topic.partitions):
            read = _read_compacted if topic.is_compacted else _read_both
            partition = topic.name, index
            for log, isolation in await _read_until(world, deadline_s, read, connection, partition) or ():
                state.logs[partition, isolation] = log
            log = state.logs.get((partition, Isolation.READ_UNCOMMITTED))
            if log is not None and not topic.is_compacted:
                state.lookups += await _read_until(world, deadline_s, _look_up, connection, partition, log) or ()
    for group in groups:
        committed = _committed_by(history, group)
        offsets = await _read_until(world, deadline_s, _read_offsets, connection, group, committed, history)
        if offsets is None:
            world.fail(f"the offsets of {group} cannot be read at the end")
            continue
        for (name, index), offset in offsets.items():
            state.offsets[group, (history.topics.current_name(name), index)] = offset
    connection.close()
    return state


async def _connect(world: "World") -> Connection:
    return await world.connect() if world.zookeeper is None else LastingConnection(world)


def _committed_by(history: History, group: str) -> dict[str, list[int]]:
    """Return the partitions of which a group has tried to commit offsets, by topic."""
    topics: dict[str, list[int]] = {}
    for name, index in dict.fromkeys(commit.partition for commit in history.commits if commit.group == group):
        topics.setdefault(name.partition("#")[0], []).append(index)
    return {name: sorted(set(indexes)) for name, indexes in topics.items()}


async def _list_topics(connection: Connection, scenario: Scenario, history: History) -> None:
    """Record the existing topics in the history, except those created at the start of the run."""
    expected = {topic.name for topic in scenario.topics} | {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, *OPERATED_TOPICS}
    requested_at = history.moment()
    answer = await connection.request(MetadataRequest(topics=None), _METADATA_VERSION, client_id=_CLIENT_ID)
    for row in answer.topics:
        if row.name not in expected:
            history.topics.listed(_CLIENT_ID, requested_at, row.name, row.topic_id)


async def _read_until(
    world: "World", deadline_s: float, read: Any, connection: Connection, *what: Any
) -> Any:
    while True:
        is_last_try = world.clock.seconds() > deadline_s
        try:
            return await read(connection, *what, is_last_try=is_last_try)
        except (NotYetError, ConnectionLost, ValueError) as error:
            if is_last_try or not isinstance(error, NotYetError):
                world.trace(f"cannot read {what} at the end: {error!r}")
                return None
        await world.sleep(0.5)


async def _read_both(
    connection: Connection, partition: Partition, *, is_last_try: bool
) -> list[tuple[FinalLog, Isolation]]:
    """Read a partition with both isolation levels."""
    return [
        (await read_log(connection, _CLIENT_ID, partition, level, is_last_try=is_last_try), level)
        for level in Isolation
    ]


async def _read_compacted(
    connection: Connection, partition: Partition, *, is_last_try: bool
) -> list[tuple[FinalLog, Isolation]]:
    """Read a partition with both isolation levels, without a compaction in between."""
    logs = await _read_both(connection, partition, is_last_try=is_last_try)
    if is_last_try:
        return logs
    again = await read_log(connection, _CLIENT_ID, partition, logs[0][1], is_last_try=is_last_try)
    if again.records != logs[0][0].records:
        raise NotYetError(f"{partition} changed during the reads")
    return logs


async def _look_up(
    connection: Connection, partition: Partition, log: FinalLog, *, is_last_try: bool
) -> list[Lookup]:
    """Look up the largest timestamp, some timestamps of records, and the timestamps after those."""
    timestamps = sorted({timestamp for _, timestamp in log.stamps if timestamp >= 0})
    chosen = timestamps[:1] + timestamps[len(timestamps) // 2 :][:1] + timestamps[-1:]
    wanted = dict.fromkeys((LARGEST, 0, *chosen, *(timestamp + 1 for timestamp in chosen)))
    lookups = [await list_offset(connection, _CLIENT_ID, partition, one) for one in wanted]
    earliest = await list_offset(connection, _CLIENT_ID, partition, EARLIEST)
    latest = await list_offset(connection, _CLIENT_ID, partition, LATEST)
    # Retention may have moved the start in the meantime, and the end of a transaction the end.
    is_same = (earliest.offset, latest.offset) == (log.start_offset, log.end_offset)
    return [*lookups, earliest] if is_same else []


async def _read_offsets(
    connection: Connection,
    group: str,
    topics: dict[str, list[int]],
    history: History,
    *,
    is_last_try: bool,
) -> dict[Partition, int]:
    """Read the offsets of a group for all topics, once no transaction holds pending offsets for these partitions.

    A response for all topics omits partitions whose only offset is in an open transaction. It includes offsets of a
    deleted topic until their deletion is written, which may happen after the response to DeleteTopics.
    """
    lives = history.topics.lives
    deleted = {life.topic for life in lives} - {life.topic for life in history.topics.living()}
    named = [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    for topic in (await _fetch_offsets(connection, group, named)).topics:
        if not is_last_try and any(row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT for row in topic.partitions):
            raise NotYetError(f"{group} has an open transaction")
    offsets = {}
    for topic in (await _fetch_offsets(connection, group, None)).topics:
        if topic.name in deleted and not is_last_try:
            raise NotYetError(f"{group} has offsets of {topic.name}, which is deleted")
        for row in topic.partitions:
            if row.error_code != ErrorCode.NONE and not is_last_try:
                raise NotYetError(f"offsets of {group}: error {row.error_code}")
            offsets[topic.name, row.partition_index] = row.committed_offset
    return offsets


async def _fetch_offsets(
    connection: Connection, group: str, topics: list[OffsetFetchRequestTopics] | None
) -> Any:
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True
    )
    (found,) = (await connection.request(request, _OFFSET_FETCH_VERSION, client_id=_CLIENT_ID)).groups
    if found.error_code != ErrorCode.NONE:
        raise NotYetError(f"offsets of {group}: error {found.error_code}")
    return found


async def check_groups(world: "World", groups: Iterable[str]) -> None:
    """Fail the run for each group that still has members long after their clients have ended."""
    connection = await _connect(world)
    for group in groups:
        request = DescribeGroupsRequest(groups=[group])
        (described,) = (await connection.request(request, _DESCRIBE_GROUPS_VERSION, client_id=_CLIENT_ID)).groups
        if described.members:
            names = ", ".join(member.member_id for member in described.members)
            world.fail(f"group {group} still has members whose clients are gone: {names}")
    connection.close()
