"""Rows of batches and records in .log files and KRaft snapshots."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from odradek.log.segments.segment_files import INDEX_SUFFIX, LOG_SUFFIX
from odradek.log.storage.filesystem import FileSystem
from odradek.protocol.batches.compression import Codec, CompressionError
from odradek.protocol.batches.record_batch import CODEC_MASK, BatchHeader, InvalidRecordError
from odradek.protocol.batches.record_reader import Record, iter_records
from odradek.tools.logs.batches import Damage, is_batch, read_batches
from odradek.tools.logs.decoding import Row, decode_control, decoder_of, encode_bytes
from odradek.tools.logs.directories import base_offset
from odradek.tools.logs.index_files import open_offset_index

_CODECS: Final = {int(codec): codec.name.lower() for codec in Codec}
_PROGRESS_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class DumpOptions:
    """Options of a dump.

    has_records: dump the records in the batches, for which compressed batches are decompressed
    from_offset: batches and records below this offset are omitted
    on_progress: called with the number of bytes read since the last call
    """

    has_records: bool = False
    from_offset: int = 0
    on_progress: Callable[[int], None] = lambda size_bytes: None


class RecordLimit:
    """The number of records that may still be dumped; None for no limit."""

    def __init__(self, max_records: int | None) -> None:
        self.remaining = max_records

    @property
    def is_reached(self) -> bool:
        return self.remaining is not None and self.remaining <= 0

    def take(self, count: int) -> None:
        """Count dumped records."""
        if self.remaining is not None:
            self.remaining -= count


def dump_batches(fs: FileSystem, path: str, topic: str, options: DumpOptions, limit: RecordLimit) -> Iterator[Row]:
    """Yield the batches of a file, each followed by its records, and damage. Raises OSError."""
    file = fs.open(path)
    end = file.size_bytes()
    start = reported = _find_start(fs, path, options.from_offset, end)
    options.on_progress(start)
    decode = decoder_of(topic)
    for item in read_batches(file, end, start):
        if limit.is_reached:
            break
        if isinstance(item, Damage):
            yield from _dump_damage(item)
            continue
        header = BatchHeader._make(item.fields)
        if header.last_offset < options.from_offset:
            continue
        yield _batch_row(header, item.position, is_valid=True)
        if options.has_records:
            yield from _dump_records(header, item.data, options.from_offset, limit, decode)
        else:
            limit.take(header.record_count)
        if item.position - reported > _PROGRESS_BYTES:
            options.on_progress(item.position - reported)
            reported = item.position
    options.on_progress(end - reported)


def _find_start(fs: FileSystem, path: str, offset: int, end: int) -> int:
    """Return the position of a batch at or before the one with `offset`, by the offset index if it is right."""
    name = path.rpartition("/")[2]
    base = base_offset(name)
    if offset <= base or not name.endswith(LOG_SUFFIX):
        return 0
    found = 0
    try:
        for _, relative, position in open_offset_index(fs, path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX):
            if base + relative > offset:
                break
            found = position
    except FileNotFoundError:
        return 0
    return found if is_batch(fs.open(path), found, end, base) else 0


def _batch_row(header: BatchHeader, position: int, *, is_valid: bool) -> Row:
    return {
        "type": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "partition_leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "position": position,
        "timestamp_type": _timestamp_type(header),
        "max_timestamp": header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compression": _CODECS.get(header.attributes & CODEC_MASK, f"unknown ({header.attributes & CODEC_MASK})"),
        "crc": header.crc,
        "is_valid": is_valid,
    }


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _dump_damage(damage: Damage) -> Iterator[Row]:
    size = damage.end - damage.position
    if damage.has_zeros_only:
        yield {"type": "zeros", "position": damage.position, "size": size}
        return
    if damage.header is not None:
        yield _batch_row(damage.header, damage.position, is_valid=False)
    yield {"type": "damage", "position": damage.position, "size": size, "problem": damage.reason}


def _dump_records(
    header: BatchHeader,
    batch: memoryview,
    from_offset: int,
    limit: RecordLimit,
    decode: Callable[[Record], Row] | None,
) -> Iterator[Row]:
    is_numbered = header.base_sequence >= 0
    timestamp_type = _timestamp_type(header)
    try:
        for record in iter_records(batch):
            if record.offset < from_offset:
                continue
            if limit.is_reached:
                return
            limit.take(1)
            sequence = header.base_sequence + record.offset - header.base_offset if is_numbered else -1
            row: Row = {
                "type": "record",
                "offset": record.offset,
                "timestamp_type": timestamp_type,
                "timestamp": record.timestamp,
                "key_size": -1 if record.key is None else len(record.key),
                "value_size": -1 if record.value is None else len(record.value),
                "sequence": sequence & 0x7FFFFFFF if is_numbered else -1,
                "headers": [_header_row(name, value) for name, value in record.headers],
            }
            if header.is_control:
                row |= decode_control(record)
            elif decode is not None:
                row |= decode(record)
            else:
                row |= encode_bytes("key", record.key)
                row |= encode_bytes("value", record.value)
            yield row
    except (InvalidRecordError, CompressionError) as error:
        yield {"type": "error", "problem": f"the records of this batch cannot be read: {error}"}


def _header_row(name: str, value: bytes | None) -> Row:
    return encode_bytes("key", name.encode("utf-8", "surrogateescape")) | encode_bytes("value", value)
