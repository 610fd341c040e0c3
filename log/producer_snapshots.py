"""The content of .snapshot files: the producers of a partition up to the offset that the file is named by (KIP-98)."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from odradek.log.producer_entry import NO_OFFSET, NO_SEQUENCE, BatchMark, ProducerEntry
from odradek.protocol.crc import crc32c

_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC_END: Final = 6
_ENTRY: Final = Struct(">qhiqiqiq")
_NO_BATCH: Final = BatchMark(NO_SEQUENCE, NO_OFFSET, 0, -1)


class CorruptSnapshotError(Exception):
    """A .snapshot file has another version, a bad checksum or a wrong size."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The content of a .snapshot file: version, CRC-32C of what follows it, count, then 46 bytes for each producer."""
    body = bytearray()
    count = 0
    for entry in entries:
        last = entry.batches[-1] if entry.batches else _NO_BATCH
        count += 1
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_start,
        )
    rest = count.to_bytes(4, "big") + body
    return _VERSION.to_bytes(2, "big") + crc32c(rest).to_bytes(4, "big") + rest


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError("too short")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"unknown version {version}")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise CorruptSnapshotError("bad checksum")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"{count} entries announced in {len(data)} bytes")
    result = []
    for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        producer_id, epoch, sequence, last_offset, delta, timestamp, coordinator_epoch, start = fields
        entry = ProducerEntry(producer_id)
        entry.epoch = epoch
        if last_offset >= 0:
            entry.add(epoch, BatchMark(sequence, last_offset, delta, timestamp))
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_start = start if start >= 0 else NO_OFFSET
        result.append(entry)
    return result
