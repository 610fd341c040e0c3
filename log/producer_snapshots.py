"""The content of .snapshot files: the producers of a partition up to the offset that the file is named by (KIP-98)."""

from struct import Struct
from typing import Final

from odradek.log.producer_table import RECORD
from odradek.protocol.crc import crc32c

_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC_END: Final = 6


class CorruptSnapshotError(Exception):
    """A .snapshot file has another version, a bad checksum or a wrong size."""


def encode_snapshot(records: bytes | bytearray) -> bytearray:
    """The content of a .snapshot file: version, CRC-32C of what follows it, count, then a RECORD for each producer."""
    data = bytearray(_HEAD.size)
    data += records
    _HEAD.pack_into(data, 0, _VERSION, 0, len(records) // RECORD.size)
    with memoryview(data) as view, view[_CRC_END:] as checked:
        crc = crc32c(checked)
    _HEAD.pack_into(data, 0, _VERSION, crc, len(records) // RECORD.size)
    return data


def decode_snapshot(data: bytes) -> memoryview:
    """The records of a .snapshot file. Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError("too short")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"unknown version {version}")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise CorruptSnapshotError("bad checksum")
    if len(data) != _HEAD.size + count * RECORD.size:
        raise CorruptSnapshotError(f"{count} entries announced in {len(data)} bytes")
    records = memoryview(data)[_HEAD.size :]
    if len({fields[0] for fields in RECORD.iter_unpack(records)}) != count:
        raise CorruptSnapshotError("a producer is there twice")
    return records
