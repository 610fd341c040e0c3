"""What can be read when all is over: every partition with both isolation levels, and every group's offsets."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.protocol.records import (
    ControlType,
    crc_is_valid,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
)
from odradek.simulation.api import ClientConnection, ConnectionLost
from odradek.simulation.history import FinalLog, FinalState, Isolation, Partition, ReadRecord
from odradek.simulation.scenario import Scenario

if TYPE_CHECKING:
    from odradek.simulation.world import World

PATIENCE_S: Final = 60.0
"""How long open transactions may take to time out, and coordinators to load."""

_FETCH_BYTES: Final = 1_000_000
_CLIENT_ID: Final = "final"


class _NotYetError(Exception):
    """An error that time should mend."""


async def read_all(world: "World", scenario: Scenario, groups: Iterable[str]) -> FinalState:
    """Read everything there is. A partition that cannot be read is missing from the result; the checker says so."""
    state = FinalState()
    deadline_s = world.clock.seconds() + PATIENCE_S
    connection: ClientConnection = await world.connect()
    for topic in scenario.topics:
        for index in range(topic.partitions):
            read = _read_compacted if topic.is_compacted else _read_both
            for log, isolation in await _patiently(world, deadline_s, read, connection, (topic.name, index)) or ():
                state.logs[(topic.name, index), isolation] = log
    for group in groups:
        offsets = await _patiently(world, deadline_s, _read_offsets, connection, group)
        if offsets is None:
            world.fail(f"the offsets of {group} cannot be read at the end")
            continue
        for partition, offset in offsets.items():
            state.offsets[group, partition] = offset
    connection.close()
    return state


async def _patiently(
    world: "World", deadline_s: float, read: Any, connection: ClientConnection, *what: Any
) -> Any:
    while True:
        is_last_try = world.clock.seconds() > deadline_s
        try:
            return await read(connection, *what, is_last_try=is_last_try)
        except (_NotYetError, ConnectionLost, ValueError) as error:
            if is_last_try or not isinstance(error, _NotYetError):
                world.trace(f"cannot read {what} at the end: {error!r}")
                return None
        await world.sleep(0.5)


async def _read_both(
    connection: ClientConnection, partition: Partition, *, is_last_try: bool
) -> list[tuple[FinalLog, Isolation]]:
    """With each isolation level."""
    return [(await _read_log(connection, partition, level, is_last_try=is_last_try), level) for level in Isolation]


async def _read_compacted(
    connection: ClientConnection, partition: Partition, *, is_last_try: bool
) -> list[tuple[FinalLog, Isolation]]:
    """With each isolation level, and with no compaction between."""
    logs = await _read_both(connection, partition, is_last_try=is_last_try)
    if is_last_try:
        return logs
    again = await _read_log(connection, partition, logs[0][1], is_last_try=is_last_try)
    if again.records != logs[0][0].records:
        raise _NotYetError(f"{partition} changes")
    return logs


async def _read_log(
    connection: ClientConnection, partition: Partition, isolation: Isolation, *, is_last_try: bool
) -> FinalLog:
    records: list[ReadRecord] = []
    offset = 0
    while True:
        data = await _fetch(connection, partition, isolation, offset)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset < data.log_start_offset:
            offset = data.log_start_offset
            continue
        if data.error_code != ErrorCode.NONE:
            raise _NotYetError(f"{partition} at {offset}: error {data.error_code}")
        if data.last_stable_offset < data.high_watermark and not is_last_try:
            raise _NotYetError(f"{partition} has an open transaction")
        batches = list(iter_batches(data.records)) if data.records else []
        if not batches:
            return FinalLog(tuple(records), offset, data.high_watermark)
        for record in _visible(batches, data.aborted_transactions or ()):
            if record.offset >= offset:
                records.append(record)
        offset = read_header(batches[-1]).next_offset


async def _fetch(connection: ClientConnection, partition: Partition, isolation: Isolation, offset: int) -> Any:
    wanted = FetchRequestFetchPartition(
        partition=partition[1], fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        isolation_level=isolation.value,
        topics=[FetchRequestFetchTopic(topic=partition[0], partitions=[wanted])],
    )
    answer = await connection.request(request, 11, client_id=_CLIENT_ID)
    return answer.responses[0].partitions[0]


def _visible(batches: list[memoryview], aborted: Iterable[Any]) -> Iterator[ReadRecord]:
    """The records that an application sees (KIP-98). Raises ValueError for a batch with a wrong checksum."""
    beginnings = sorted(((one.first_offset, one.producer_id) for one in aborted), reverse=True)
    hidden: set[int] = set()
    for batch in batches:
        if not crc_is_valid(batch):
            raise ValueError(f"the batch at offset {read_header(batch).base_offset} has a wrong checksum")
        header = read_header(batch)
        while beginnings and beginnings[-1][0] <= header.last_offset:
            hidden.add(beginnings.pop()[1])
        if header.is_control:
            for record in iter_records(batch):
                if parse_control_record(record).control_type is ControlType.ABORT:
                    hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            for record in iter_records(batch):
                headers = tuple((name, value) for name, value in record.headers)
                yield ReadRecord(record.offset, record.value, record.key, headers, record.timestamp)


async def _read_offsets(connection: ClientConnection, group: str, *, is_last_try: bool) -> dict[Partition, int]:
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=not is_last_try
    )
    (found,) = (await connection.request(request, 8, client_id=_CLIENT_ID)).groups
    if found.error_code != ErrorCode.NONE:
        raise _NotYetError(f"offsets of {group}: error {found.error_code}")
    offsets = {}
    for topic in found.topics:
        for row in topic.partitions:
            if row.error_code != ErrorCode.NONE:
                raise _NotYetError(f"offsets of {group}: error {row.error_code}")
            offsets[topic.name, row.partition_index] = row.committed_offset
    return offsets
