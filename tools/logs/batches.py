"""Reading of the batches in a .log file, also behind damage, with one batch in memory at a time.

`odradek.log` reads a segment only up to its first bad byte. A tool continues at the next valid batch, because damage at
the end of a log differs from damage before valid batches.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from odradek.log.storage.filesystem import File, ends_in_zeros
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH,
    CURRENT_MAGIC,
    HEADER,
    LEAST_BATCH_LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)

_READ_BYTES: Final = 1 << 20
_MAX_OFFSET: Final = 1 << 62


class StoredBatch(NamedTuple):
    """A batch with a valid checksum. `fields` are those of `BatchHeader`; `data` is valid until the next read."""

    position: int
    fields: tuple[int, ...]
    data: memoryview


class Damage(NamedTuple):
    """Bytes that are no valid batch.

    end: position of the next valid batch, or the end of the file
    header: the header, if its length leads to the end of the file or to another batch
    is_last: no valid batch follows
    has_zeros_only: all bytes up to the end of the file are zeros
    """

    position: int
    end: int
    reason: str
    header: BatchHeader | None
    is_last: bool
    has_zeros_only: bool


def read_batches(file: File, end: int, position: int = 0) -> Iterator[StoredBatch | Damage]:
    """Yield the batches from `position`, where a batch begins, up to `end`, and the damage between them."""
    read_into, unpack, make = file.read_into, HEADER.unpack_from, StoredBatch
    buffer = bytearray(min(_READ_BYTES, max(end - position, 1)))
    view = memoryview(buffer)
    next_offset = 0
    while position < end:
        size = read_into(position, view[: min(len(buffer), end - position)])
        at = 0
        while at + RECORD_BATCH_OVERHEAD <= size:
            fields = unpack(buffer, at)
            after = at + LOG_OVERHEAD + fields[1]
            if after > size or fields[1] < LEAST_BATCH_LENGTH or fields[3] != CURRENT_MAGIC:
                break
            if crc32c(view[at + ATTRIBUTES_POSITION : after]) != fields[4]:
                break
            yield make(position + at, fields, view[at:after])
            next_offset = fields[0] + fields[6] + 1
            at = after
        position += at
        if size < len(view) and position + size - at < end:
            # The file was truncated meanwhile.
            end = position + size - at
        if position >= end:
            return
        needed = _bytes_needed(view[at:size], end - position)
        if needed <= size - at:
            damage = _find_damage(file, position, end, view[at : at + needed], next_offset)
            yield damage
            position = damage.end
        elif needed > len(buffer):
            buffer = bytearray(needed)
            view = memoryview(buffer)


def _bytes_needed(rest: memoryview, left: int) -> int:
    """Return the number of bytes that a check needs: a header or a complete batch, at most `left`."""
    if len(rest) < RECORD_BATCH_OVERHEAD:
        return min(RECORD_BATCH_OVERHEAD, left)
    length: int = BATCH_LENGTH.unpack_from(rest, LENGTH_POSITION)[0]
    needed = LOG_OVERHEAD + length
    return needed if RECORD_BATCH_OVERHEAD <= needed <= left else min(RECORD_BATCH_OVERHEAD, left)


def _find_damage(file: File, position: int, end: int, head: memoryview, next_offset: int) -> Damage:
    header = BatchHeader._make(HEADER.unpack_from(head)) if len(head) >= RECORD_BATCH_OVERHEAD else None
    if not any(head) and ends_in_zeros(file, position):
        return Damage(position, end, "only zeros follow", None, is_last=True, has_zeros_only=True)
    reason = _describe(header, len(head), end - position)
    is_framed = header is not None and LEAST_BATCH_LENGTH <= header.batch_length <= end - position - LOG_OVERHEAD
    if header is not None and is_framed:
        follower = position + header.size_bytes
        if follower == end or is_batch(file, follower, end, next_offset):
            return Damage(position, follower, reason, header, is_last=follower == end, has_zeros_only=False)
    found = _search_batch(file, position + 1, end, next_offset)
    return Damage(position, found, reason, None, is_last=found == end, has_zeros_only=False)


def _describe(header: BatchHeader | None, size: int, left: int) -> str:
    if header is None:
        return f"the header of a batch is incomplete ({size} bytes)"
    if header.batch_length < LEAST_BATCH_LENGTH:
        return f"a batch has length {header.batch_length}"
    if header.magic in (0, 1):
        return f"records have message format v{header.magic}, which is not supported since Apache Kafka 4.0"
    if header.magic != CURRENT_MAGIC:
        return f"a batch has magic {header.magic}"
    if header.size_bytes > left:
        return f"a batch of {header.size_bytes} bytes is incomplete ({left} bytes), or its length is wrong"
    return f"the batch with offsets {header.base_offset} to {header.last_offset} does not match its checksum"


def _search_batch(file: File, position: int, end: int, next_offset: int) -> int:
    """Return the position of the next valid batch from `position` on; `end` if there is none."""
    while position < end:
        chunk = file.pread(position, min(_READ_BYTES, end - position))
        if not chunk:
            # The file was truncated meanwhile.
            return end
        at = chunk.find(CURRENT_MAGIC, MAGIC_POSITION)
        while at >= 0:
            candidate = position + at - MAGIC_POSITION
            length = int.from_bytes(chunk[at - MAGIC_POSITION + LENGTH_POSITION :][:4], "big")
            fits = LEAST_BATCH_LENGTH <= length <= end - candidate - LOG_OVERHEAD
            if fits and is_batch(file, candidate, end, next_offset):
                return candidate
            at = chunk.find(CURRENT_MAGIC, at + 1)
        # The next chunk begins with the bytes whose magic is not in this one.
        position += len(chunk) - MAGIC_POSITION if len(chunk) == _READ_BYTES else len(chunk)
    return end


def is_batch(file: File, position: int, end: int, next_offset: int) -> bool:
    """Return whether a complete batch with a valid checksum, and offsets from `next_offset` on, is at `position`."""
    head = file.pread(position, RECORD_BATCH_OVERHEAD)
    if len(head) < RECORD_BATCH_OVERHEAD:
        return False
    header = BatchHeader._make(HEADER.unpack(head))
    if header.magic != CURRENT_MAGIC or not LEAST_BATCH_LENGTH <= header.batch_length <= end - position - LOG_OVERHEAD:
        return False
    if not next_offset <= header.base_offset <= header.last_offset < _MAX_OFFSET:
        return False
    body = file.pread(position + ATTRIBUTES_POSITION, header.size_bytes - ATTRIBUTES_POSITION)
    return crc32c(body) == header.crc
