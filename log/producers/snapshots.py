"""The content of .snapshot files: the producers of a partition up to the offset in the file's name (KIP-98)."""

from contextlib import suppress
from struct import Struct
from typing import Final

from odradek.log.producers.table import RECORD
from odradek.log.storage.filesystem import FileSystem, is_shortage, write_whole
from odradek.protocol.batches.crc import crc32c

_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC_END: Final = 6


class CorruptSnapshotError(Exception):
    """A .snapshot file has an unknown version, a bad checksum or a wrong size."""


def encode_head(records: bytes | bytearray) -> bytes:
    """Return the bytes before the records in a .snapshot file: version, CRC-32C of the following bytes, count."""
    count = len(records) // RECORD.size
    return _HEAD.pack(_VERSION, crc32c(records, crc32c(_HEAD.pack(_VERSION, 0, count)[_CRC_END:])), count)


def encode_snapshot(records: bytes | bytearray) -> bytes:
    """Return the content of a .snapshot file: the head, then a RECORD for each producer."""
    return encode_head(records) + records


def decode_snapshot(data: bytes) -> memoryview:
    """Return the records in a .snapshot file. Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError("too short")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"unknown version {version}")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise CorruptSnapshotError("bad checksum")
    if len(data) != _HEAD.size + count * RECORD.size:
        raise CorruptSnapshotError(f"a file of {len(data)} bytes states {count} entries")
    records = memoryview(data)[_HEAD.size :]
    if len({fields[0] for fields in RECORD.iter_unpack(records)}) != count:
        raise CorruptSnapshotError("a producer occurs twice")
    return records


class SnapshotWrite:
    """A snapshot to be written in a thread, because the write of a large one blocks for tens of milliseconds.

    offset: the offset in the file's name
    is_written: the file is complete
    is_cancelled: the log was truncated or its directory renamed since; batches that are appended now may be of other
        producers, and the old path may be that of another log
    """

    __slots__ = ("_records", "is_cancelled", "is_written", "offset", "path")

    def __init__(self, path: str, offset: int, records: bytes) -> None:
        self.path = path
        self._records = records
        self.offset = offset
        self.is_written = False
        self.is_cancelled = False

    def run(self, fs: FileSystem, *, sync: bool) -> None:
        """Write the file, unless a resource is short, or the directory is gone. Blocks. Raises OSError.

        A recovery works without a snapshot, and rejects an incomplete one.
        """
        if self.is_cancelled:
            return
        try:
            write_whole(fs, self.path, encode_head(self._records), self._records, sync=sync)
        except OSError as error:
            with suppress(OSError):
                fs.remove(self.path)
            if not isinstance(error, FileNotFoundError) and not is_shortage(error):
                raise
        else:
            self.is_written = True

    def remove(self, fs: FileSystem) -> None:
        """Remove the file, because its segment was deleted. If that fails, the next start does it."""
        with suppress(OSError):
            fs.remove(self.path)
