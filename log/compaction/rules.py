"""Rules of compaction: what remains of each batch. Pure functions and state, without I/O.

Sources: Kafka documentation ("Log Compaction"); KIP-98 (transactions in compacted topics), KIP-534 (delete horizon).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from odradek.log.compaction.offset_map import OffsetMap
from odradek.log.segments.transaction_index import AbortedTransaction, TransactionIndex
from odradek.properties import INT64_MAX
from odradek.protocol.batches.compression import DecompressedTooLargeError
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    read_header,
    wrap_int64,
)

_UINT32 = Struct(">I")
_NO_TIMESTAMP = -1


class LastRecord(NamedTuple):
    """Of a live producer: the last offset of its data (-1 if there is none left to know of) and its epoch."""

    last_data_offset: int
    epoch: int


class Transactions:
    """Which transactions a pass over a log is in, and whether their markers are still needed."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ahead = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        # By producer: the transaction, and whether data of it was seen.
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.index: TransactionIndex | None = None

    def _advance(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            entry = self._ahead.pop()
            self._aborted.setdefault(entry.producer_id, (entry, False))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (found[0], True)
        return True

    def is_spent(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether no record of the transaction that a control batch ends is left; its marker can go then.

        An aborted transaction of which something is left is written to `index`.
        """
        from odradek.protocol.records import ControlType, iter_records, parse_control_record

        self._advance(header.last_offset)
        for record in iter_records(batch):
            kind = parse_control_record(record).control_type
            if kind == ControlType.ABORT:
                entry, has_data = self._aborted.pop(header.producer_id, (None, False))
                if entry is not None and has_data and self.index is not None:
                    self.index.append(entry)
                return not has_data
            if kind == ControlType.COMMIT:
                had_data = header.producer_id in self._committed
                self._committed.discard(header.producer_id)
                return not had_data
            return False
        return True


class Filter:
    """Decides, batch after batch in the order of offsets, what stays.

    `upper_offset` is where the range that is cleaned ends: the batch before it stays, empty if need be, so that the
    log's offsets still add up. `last_records` are those of the live producers.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: Transactions,
        *,
        upper_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._upper_offset = upper_offset
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, INT64_MAX)
        self.last_records: dict[int, LastRecord] = {}

    def apply(self, header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, "bytes | memoryview"] | None:
        """The batch as it stays, with its header; None if it goes. Raises InvalidRecordError, CompressionError."""
        from odradek.protocol.records import empty_batch

        horizon = header.delete_horizon_ms
        if header.is_control:
            is_spent = self._transactions.is_spent(header, batch)
            kept = None
            if header.record_count and not (is_spent and horizon is not None and horizon <= self._now_ms):
                kept = self._with_horizon(header, batch, None) if is_spent and horizon is None else batch
        elif self._transactions.is_aborted(header):
            kept = None
        else:
            kept = self._apply_to_records(header, batch, horizon)
        if kept is batch:
            return header, batch
        if kept is None:
            if not self._must_stay(header):
                return None
            kept = empty_batch(header)
        return read_header(kept), kept

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._upper_offset:
            return True
        last = self.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _apply_to_records(
        self, header: BatchHeader, batch: memoryview, horizon: int | None
    ) -> "bytes | memoryview | None":
        data, position = open_records(header, batch)
        base_offset, latest, newest_of = header.base_offset, self._offsets.latest_offset, self._offsets.get
        keep_tombstones = horizon is None or self._now_ms < horizon
        kept: list[tuple[int, int, int, int]] = []
        has_tombstone = False
        for start, end, timestamp_delta, offset_delta, key, has_value in iter_keys(data, position, header.record_count):
            offset = base_offset + offset_delta
            if offset <= latest and (key is None or offset < newest_of(key) or not (has_value or keep_tombstones)):
                continue
            kept.append((start, end, timestamp_delta, offset))
            has_tombstone = has_tombstone or not has_value
        if not kept:
            return None
        if has_tombstone and horizon is None:
            # A base timestamp in the future can make the records too large to be read again. Then the tombstones stay.
            with suppress(DecompressedTooLargeError):
                return self._with_horizon(header, batch, {offset for _, _, _, offset in kept})
        if len(kept) == header.record_count:
            return batch
        max_timestamp = header.max_timestamp
        if not header.is_log_append_time:
            timestamps = (wrap_int64(header.base_timestamp + delta) for _, _, delta, _ in kept)
            max_timestamp = max(_NO_TIMESTAMP, max(timestamps))
        payload = b"".join([data[start:end] for start, end, _, _ in kept])
        return _assemble(header._replace(max_timestamp=max_timestamp, record_count=len(kept)), payload)

    def _with_horizon(self, header: BatchHeader, batch: memoryview, offsets: set[int] | None) -> bytes:
        """The batch with its records at `offsets` (all of them if None), and when its tombstones may go."""
        from odradek.protocol.records import iter_records, rebuild_batch

        kept = [record for record in iter_records(batch) if offsets is None or record.offset in offsets]
        return rebuild_batch(header, kept, delete_horizon_ms=self._horizon_ms)


def open_records(header: BatchHeader, batch: memoryview) -> tuple[bytes, int]:
    """The bytes of the records, and where in them the first begins."""
    if not header.attributes & 7:
        return bytes(batch), RECORD_BATCH_OVERHEAD
    from odradek.protocol.batches.compression import decompress
    from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES

    return decompress(header.codec, batch[RECORD_BATCH_OVERHEAD:], MAX_DECOMPRESSED_BYTES), 0


def _assemble(header: BatchHeader, payload: bytes) -> bytes:
    """Record bytes that kept their deltas, under a header that kept its bases."""
    if header.attributes & 7:
        from odradek.protocol.batches.batch_builder import compress_records

        payload = compress_records(header.codec, payload)
    sized = header._replace(batch_length=RECORD_BATCH_OVERHEAD - LOG_OVERHEAD + len(payload), crc=0)
    batch = bytearray(HEADER.pack(*sized))
    batch += payload
    with memoryview(batch) as view, view[ATTRIBUTES_POSITION:] as checked:
        crc = crc32c(checked)
    _UINT32.pack_into(batch, CRC_POSITION, crc)
    return bytes(batch)


def iter_keys(data: bytes, position: int, count: int) -> Iterator[tuple[int, int, int, int, bytes | None, bool]]:
    """(start, end, timestamp delta, offset delta, key, whether it has a value) of each record; headers stay closed.

    Raises InvalidRecordError.
    """
    try:
        for _ in range(count):
            start = position
            size_bytes, position = _varint(data, position)
            end = position + size_bytes
            timestamp_delta, position = _varint(data, position + 1)
            offset_delta, position = _varint(data, position)
            key_bytes, position = _varint(data, position)
            key = None
            if key_bytes >= 0:
                key = data[position : position + key_bytes]
                position += key_bytes
            value_bytes, position = _varint(data, position)
            if size_bytes < 0 or position + max(0, value_bytes) > end or end > len(data):
                raise InvalidRecordError(f"record at byte {start} states {size_bytes} bytes")
            yield start, end, timestamp_delta, offset_delta, key, value_bytes >= 0
            position = end
    except IndexError as error:
        raise InvalidRecordError(f"record at byte {position} is cut short") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position
    raw, shift = byte & 0x7F, 7
    while byte >= 128:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), position
