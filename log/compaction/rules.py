"""Rules of compaction: the records of a batch that are retained. No I/O.

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
    CODEC_MASK,
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
    """A producer's last record: the offset of its last data (-1 if the producer state has none) and its epoch."""

    last_data_offset: int
    epoch: int


class CleanedTransactions:
    """The ongoing transactions at the present position of a pass over the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        # By producer id: the aborted transaction, and whether the pass has read a batch of it.
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.index: TransactionIndex | None = None

    def _advance(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            entry = self._upcoming.pop()
            self._aborted.setdefault(entry.producer_id, (entry, False))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        transaction = self._aborted.get(header.producer_id)
        if transaction is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (transaction[0], True)
        return True

    def is_marker_removable(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether the transaction that a control batch ends has no batches left in the log.

        An aborted transaction that still has batches is added to `index`.
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


class BatchFilter:
    """Selects the records to retain, batch after batch in the order of offsets.

    `upper_offset` is the end of the range that is compacted. The last batch of the range is retained, if necessary
    without records, so that the end offset of the compacted segment stays the same. `last_records` contains the last
    record of each active producer, by producer id.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        *,
        upper_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._upper_offset = upper_offset
        self._now_ms = now_ms
        self._delete_horizon_ms = min(now_ms + delete_retention_ms, INT64_MAX)
        self.last_records: dict[int, LastRecord] = {}

    def apply(self, header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, "bytes | memoryview"] | None:
        """Return the retained header and batch; None to remove the batch.

        Raises InvalidRecordError, CompressionError.
        """
        from odradek.protocol.records import empty_batch

        horizon = header.delete_horizon_ms
        if header.is_control:
            is_removable = self._transactions.is_marker_removable(header, batch)
            retained = None
            if header.record_count and not (is_removable and horizon is not None and horizon <= self._now_ms):
                needs_horizon = is_removable and horizon is None
                retained = self._with_delete_horizon(header, batch, None) if needs_horizon else batch
        elif self._transactions.is_aborted(header):
            retained = None
        else:
            retained = self._retain_records(header, batch, horizon)
        if retained is batch:
            return header, batch
        if retained is None:
            if not self._needs_empty_batch(header):
                return None
            retained = empty_batch(header)
        return read_header(retained), retained

    def _needs_empty_batch(self, header: BatchHeader) -> bool:
        """Return whether a batch without retained records remains: as the end of the range, or for producer state."""
        if header.next_offset == self._upper_offset:
            return True
        last = self.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _retain_records(
        self, header: BatchHeader, batch: memoryview, horizon: int | None
    ) -> "bytes | memoryview | None":
        data, position = open_records(header, batch)
        base_offset, latest, last_offset_of = header.base_offset, self._offsets.latest_offset, self._offsets.get
        keep_tombstones = horizon is None or self._now_ms < horizon
        retained: list[tuple[int, int, int, int]] = []
        has_tombstone = False
        for start, end, timestamp_delta, offset_delta, key, has_value in iter_keys(data, position, header.record_count):
            offset = base_offset + offset_delta
            if offset <= latest and (key is None or offset < last_offset_of(key) or not (has_value or keep_tombstones)):
                continue
            retained.append((start, end, timestamp_delta, offset))
            has_tombstone = has_tombstone or not has_value
        if not retained:
            return None
        if has_tombstone and horizon is None:
            # The horizon replaces the base timestamp, which changes all timestamp deltas. If that makes the records too
            # large to be decompressed again, the batch gets no horizon, and its tombstones are retained.
            with suppress(DecompressedTooLargeError):
                return self._with_delete_horizon(header, batch, {offset for _, _, _, offset in retained})
        if len(retained) == header.record_count:
            return batch
        max_timestamp = header.max_timestamp
        if not header.is_log_append_time:
            timestamps = (wrap_int64(header.base_timestamp + delta) for _, _, delta, _ in retained)
            max_timestamp = max(_NO_TIMESTAMP, max(timestamps))
        payload = b"".join([data[start:end] for start, end, _, _ in retained])
        return _build_batch(header._replace(max_timestamp=max_timestamp, record_count=len(retained)), payload)

    def _with_delete_horizon(self, header: BatchHeader, batch: memoryview, offsets: set[int] | None) -> bytes:
        """Return the batch with a delete horizon and its records at `offsets` (None: all records)."""
        from odradek.protocol.records import iter_records, rebuild_batch

        retained = [record for record in iter_records(batch) if offsets is None or record.offset in offsets]
        return rebuild_batch(header, retained, delete_horizon_ms=self._delete_horizon_ms)


def open_records(header: BatchHeader, batch: memoryview) -> tuple[bytes, int]:
    """Decompress a batch. Return the bytes that contain the records, and the position of the first record in them."""
    if not header.attributes & CODEC_MASK:
        return bytes(batch), RECORD_BATCH_OVERHEAD
    from odradek.protocol.batches.compression import decompress
    from odradek.protocol.batches.record_chain import MAX_DECOMPRESSED_BYTES

    return decompress(header.codec, batch[RECORD_BATCH_OVERHEAD:], MAX_DECOMPRESSED_BYTES), 0


def _build_batch(header: BatchHeader, payload: bytes) -> bytes:
    """Build a batch of encoded records, whose deltas refer to the header's base offset and base timestamp."""
    if header.attributes & CODEC_MASK:
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
    """Yield (start, end, timestamp delta, offset delta, key, whether it has a value) of each record.

    Record headers are not parsed. Raises InvalidRecordError.
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
                raise InvalidRecordError(f"record at byte {start} has an invalid length of {size_bytes} bytes")
            yield start, end, timestamp_delta, offset_delta, key, value_bytes >= 0
            position = end
    except IndexError as error:
        raise InvalidRecordError(f"record at byte {position} is incomplete") from error


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
