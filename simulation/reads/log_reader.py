"""Reads of a whole partition by plain fetches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.records import (
    ControlType,
    crc_is_valid,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
)
from odradek.simulation.api import ClientConnection
from odradek.simulation.clients.lasting_connection import LastingConnection
from odradek.simulation.history import EARLIEST, LARGEST, LATEST, FinalLog, Isolation, Lookup, Partition, ReadRecord

Connection = ClientConnection | LastingConnection

_FETCH_BYTES: Final = 1_000_000
_FETCH_VERSION: Final = 11
_LIST_OFFSETS_VERSION: Final = 7

__all__ = ["EARLIEST", "LARGEST", "LATEST", "Connection", "NotYetError", "list_offset", "read_log"]


class NotYetError(Exception):
    """A temporary error; the read has to be repeated."""


async def read_log(
    connection: Connection, client_id: str, partition: Partition, isolation: Isolation, *, is_last_try: bool
) -> FinalLog:
    """Read a partition from start to end. Raises NotYetError, ConnectionLost, and ValueError for a corrupt batch.

    With `is_last_try` the read does not wait for open transactions. The high watermark of the result belongs to the
    response with the last records: that of a new leader may be lower for a time, and bounds only its own responses.
    """
    records: list[ReadRecord] = []
    stamps: list[tuple[int, int]] = []
    offset = start_offset = 0
    high_watermark: int | None = None
    while True:
        data = await _fetch(connection, client_id, partition, isolation, offset)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset == 0:
            offset = start_offset = (await list_offset(connection, client_id, partition, EARLIEST)).offset
            if offset:
                continue
        if data.error_code != ErrorCode.NONE:
            raise NotYetError(f"{partition} at {offset}: error {data.error_code}")
        if data.last_stable_offset < data.high_watermark and not is_last_try:
            raise NotYetError(f"{partition} has an open transaction")
        batches = list(iter_batches(data.records)) if data.records else []
        if not batches:
            bound = data.high_watermark if high_watermark is None else high_watermark
            return FinalLog(tuple(records), offset, bound, start_offset, tuple(stamps))
        high_watermark = data.high_watermark
        for batch in batches:
            stamps += (
                (record.offset, record.timestamp) for record in _decode(bytes(batch)) if record.offset >= offset
            )
        for record in _visible(batches, data.aborted_transactions or ()):
            if record.offset >= offset:
                records.append(record)
        offset = read_header(batches[-1]).next_offset


async def list_offset(connection: Connection, client_id: str, partition: Partition, wanted: int) -> Lookup:
    """Look up the offset of a timestamp or of a special position. Raises NotYetError and ConnectionLost."""
    row = ListOffsetsRequestListOffsetsPartition(partition_index=partition[1], timestamp=wanted)
    request = ListOffsetsRequest(topics=[ListOffsetsRequestListOffsetsTopic(name=partition[0], partitions=[row])])
    answer = await connection.request(request, _LIST_OFFSETS_VERSION, client_id=client_id)
    found = answer.topics[0].partitions[0]
    if found.error_code != ErrorCode.NONE:
        raise NotYetError(f"{partition} for {wanted}: error {found.error_code}")
    return Lookup(partition, wanted, found.offset, found.timestamp)


async def _fetch(
    connection: Connection, client_id: str, partition: Partition, isolation: Isolation, offset: int
) -> Any:
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
    answer = await connection.request(request, _FETCH_VERSION, client_id=client_id)
    return answer.responses[0].partitions[0]


def _visible(batches: list[memoryview], aborted: Iterable[Any]) -> Iterator[ReadRecord]:
    """Iterate over the records that an application receives (KIP-98). Raises ValueError for a wrong checksum."""
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
            yield from _decode(bytes(batch))


@lru_cache(maxsize=10_000)
def _decode(batch: bytes) -> tuple[ReadRecord, ...]:
    """Return the records of a batch. Cached, as a client that reads whole logs decodes the same batches each time."""
    epoch = read_header(batch).partition_leader_epoch
    return tuple(
        ReadRecord(record.offset, record.value, record.key, tuple(record.headers), record.timestamp, epoch)
        for record in iter_records(batch)
    )
