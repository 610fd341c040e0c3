"""Runs of successive records of one layout, compared in C: one byte of each record is a strided slice of the batch.

Records have the same layout if their lengths, the lengths of their keys and values and the sizes of their varints are
equal, and none has headers. The first record of a run is parsed; the columns show how many others have its layout.
"""

from __future__ import annotations

from typing import Final

from odradek.protocol.batches.record_shape import check_record, read_varint

MIN_RUN: Final = 16
MAX_RUN: Final = 1024
SINGLE_RECORDS: Final = 64
"""Records that are read one by one before a run is tried again."""
MAX_STRIDE_BYTES: Final = 384
MAX_RENUMBERED_STRIDE_BYTES: Final = 64
"""Maximum stride of records to renumber: the length is a single byte, and the columns are few enough to be copied."""
_ASCII: Final = bytes(range(128))
_CONTINUED: Final = bytes(range(128, 256))
_BLOCK: Final = 8192
"""Number of records with the same third byte of the offset delta."""
# The first and second byte of the offset deltas from 0 on, without and with a further byte.
_FIRST: Final = tuple(bytes(n << 1 & 127 | more for n in range(64)) * (1 + MAX_RUN // 64) for more in (0, 128))
_SECOND: Final = tuple(bytes(n >> 6 & 127 | more for n in range(_BLOCK + MAX_RUN)) for more in (0, 128))


class Run:
    """Up to `MAX_RUN` records with the layout of the record at `position`.

    count: number of records, 0 if a run is not worth a search; end: position after them
    """

    __slots__ = ("_block", "_deltas_at", "_numbers_at", "_stride_bytes", "_tail_at", "count", "end", "has_key")

    def __init__(self, data: bytes, position: int, most: int) -> None:
        """Raises as `check_record`."""
        self.count = 0
        _, _, self.has_key, end = check_record(data, position)
        self.end = end
        stride_bytes = self._stride_bytes = end - position
        most = min(most, MAX_RUN, (len(data) - position) // stride_bytes)
        if most < MIN_RUN or stride_bytes > MAX_STRIDE_BYTES or data[end - 1]:
            return
        _, start = read_varint(data, position)
        _, numbers_at = read_varint(data, start + 1)
        _, tail_at = read_varint(data, numbers_at)
        key_bytes, value_at = read_varint(data, tail_at)
        key_end = value_at
        value_at += max(0, key_bytes)
        value_bytes, value_end = read_varint(data, value_at)
        if value_end + max(0, value_bytes) != end - 1:
            # The last byte is not the header count.
            return
        equal = (*range(position, start), *range(tail_at, key_end), *range(value_at, value_end), end - 1)
        block = self._block = data[position : position + most * stride_bytes]
        for at in equal:
            column = block[at - position :: stride_bytes][:most]
            byte = data[at : at + 1]
            if column != byte * most:
                most = len(column) - len(column.lstrip(byte))
        self._deltas_at, self._numbers_at = start + 1 - position, numbers_at - position
        self._tail_at = tail_at - position
        for at in range(self._deltas_at, self._tail_at):
            kind = _ASCII if at in (self._numbers_at - 1, self._tail_at - 1) else _CONTINUED
            column = block[at::stride_bytes][:most]
            if column.translate(None, kind):
                most = len(column) - len(column.lstrip(kind))
        if most >= MIN_RUN:
            self.count = most
            self.end = position + most * stride_bytes

    def timestamp_deltas(self) -> set[int]:
        """The timestamp deltas that occur."""
        columns = [self._column(at) for at in range(self._deltas_at, self._numbers_at)]
        return {read_varint(bytes(delta), 0)[0] for delta in set(zip(*columns, strict=True))}

    def is_numbered(self, index: int) -> bool:
        """Return whether the offset deltas are consecutive from `index` on, all in one block."""
        size = self._tail_at - self._numbers_at
        last = index + self.count - 1
        if size != _varint_bytes(index << 1) or size != _varint_bytes(last << 1) or index // _BLOCK != last // _BLOCK:
            return False
        return all(
            self._column(self._numbers_at + byte) == expected
            for byte, expected in enumerate(_offset_deltas(index, self.count, size))
        )

    def renumbered(self, index: int) -> bytes:
        """Return the records with offset deltas from `index` on and attributes 0; b"" if they are too long."""
        size = _varint_bytes(index << 1)
        if size != _varint_bytes(index + self.count - 1 << 1) or self._stride_bytes > MAX_RENUMBERED_STRIDE_BYTES:
            return b""
        length = self._stride_bytes - (self._deltas_at - 1) - (self._tail_at - self._numbers_at) + size
        if length > 63:
            return b""
        columns = [
            bytes((length << 1,)) * self.count,
            bytes(self.count),
            *(self._column(at) for at in range(self._deltas_at, self._numbers_at)),
            *_offset_deltas(index, self.count, size),
            *(self._column(at) for at in range(self._tail_at, self._stride_bytes)),
        ]
        records = bytearray(self.count * len(columns))
        for at, column in enumerate(columns):
            records[at :: len(columns)] = column
        return bytes(records)

    def _column(self, at: int) -> bytes:
        return self._block[at :: self._stride_bytes][: self.count]


def records_to_block_end(index: int) -> int:
    """Return the maximum length of a run whose offset deltas begin with `index`."""
    return _BLOCK - index % _BLOCK


def _offset_deltas(index: int, count: int, size: int) -> list[bytes]:
    """Return the bytes of the offset deltas from `index` on, as columns."""
    columns = []
    for byte in range(size):
        more = byte < size - 1
        if byte == 0:
            start = index % 64
            columns.append(_FIRST[more][start : start + count])
        elif byte == 1:
            start = index % _BLOCK
            columns.append(_SECOND[more][start : start + count])
        else:
            columns.append(bytes((index >> 7 * byte - 1 & 127 | more << 7,)) * count)
    return columns


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
