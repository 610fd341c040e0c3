"""Appends to a partition's log: produced batches, coordinators' records and replicated batches.

Sources: Kafka documentation ("Log"), KIP-98 (idempotent and transactional producers).
"""

from odradek.log.flush import LogFlusher
from odradek.log.producers import replay as producer_replay
from odradek.log.producers.replay import MarkerFields, parse_marker
from odradek.log.roll import SegmentRoller
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import MAX_RELATIVE_OFFSET
from odradek.log.state import LogState
from odradek.log.storage.filesystem import Piece
from odradek.log.validation.batch import (
    FEW_RECORDS,
    MAX_RECORDS_PER_STEP,
    CheckedBatch,
    CheckedRecords,
    Origin,
    StepwiseValidationRequired,
    check_batch,
    check_shallow,
    find_batches,
    is_simple_first_record,
    produced_batches,
    stamp,
)
from odradek.protocol.batches.compression import CompressionError
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import (
    ATTRIBUTES_POSITION,
    CONTROL_FLAG,
    CURRENT_MAGIC,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    STAMP,
    BatchHeader,
    InvalidRecordError,
    read_header,
)
from odradek.protocol.batches.record_chain import check_record_chain
from odradek.protocol.batches.record_shape import StepLimitError, check_record
from odradek.protocol.errors import ErrorCode, KafkaError

LATEST_PRODUCE_VERSION = 13
NO_OFFSET = -1
_MAX_SEQUENCE = 0x7FFFFFFF
_unpack_header = HEADER.unpack_from
_pack_stamp = STAMP.pack


class AppendInfo:
    """Result of an append. `flush_due` is computed at creation, from the log's end after the append.

    `log_append_time_ms` is -1 unless the topic has LogAppendTime. For a duplicate the offsets are those of the first
    append, and both times are its largest timestamp, as in Kafka. `flush_due`: flush.messages or
    flush.before.acks requires a sync before the acknowledgement.
    """

    __slots__ = (
        "first_offset",
        "flush_due",
        "is_duplicate",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "max_timestamp",
        "size_bytes",
    )

    def __init__(
        self,
        log: LogState,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time_ms: int,
        size_bytes: int,
        is_duplicate: bool,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log.log_start_offset
        self.size_bytes = size_bytes
        self.is_duplicate = is_duplicate
        flushed_offset = log.flushed_offset
        self.flush_due = log.log_end_offset - flushed_offset >= log.flush_messages and last_offset >= flushed_offset


class UnexpectedOffsetError(KafkaError):
    """Replicated batches begin below the follower's log end. The offsets are those of the first batch."""

    def __init__(self, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        text = f"offsets {first_offset} to {last_offset} cannot follow log end {log_end_offset}"
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        self.first_offset = first_offset
        self.last_offset = last_offset


class Appender:
    """Appends to one log, as a leader and as a follower, once its last truncation is durable."""

    __slots__ = ("_complete_truncation", "_log", "_revert_far_roll", "_segment_for")

    def __init__(self, log: LogState, roller: SegmentRoller, flusher: LogFlusher) -> None:
        self._log = log
        self._segment_for = roller.segment_for
        self._revert_far_roll = roller.revert_far_roll
        self._complete_truncation = flusher.complete_truncation

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        produce_version: int = LATEST_PRODUCE_VERSION,
        is_verified: bool = True,
        transaction_version: int = 0,
        checked: CheckedRecords | None = None,
    ) -> AppendInfo:
        """Validate, assign offsets and append: one batch from a client, any number from a coordinator.

        `is_verified`: the transaction coordinator has confirmed the transaction of a transactional batch;
        `transaction_version` is that of the transaction that a marker ends. Raises KafkaError (Kafka's order of
        checks); then nothing was appended, though a new segment may have been begun. Raises StepwiseValidationRequired
        if the records of a client's batch have to be checked in steps first; `checked` is the result of these steps.
        It is ignored if the topic's properties have changed since.

        This method is the fast path for a valid batch without compression and control records, and avoids Python
        calls; any other batch takes `_append_validated`.
        """
        log = self._log
        size_bytes = len(records)
        # Literals, because a lookup of each constant takes time: origin 0 is CLIENT; of the attributes 0x10 is
        # transactional, and 0x2F are codec, timestamp type and control.
        is_simple = origin == 0 and log.is_plain and size_bytes > RECORD_BATCH_OVERHEAD
        if is_simple:
            (
                base_offset, length, _, magic, crc, attributes, last_delta,
                base_timestamp, max_timestamp, producer_id, producer_epoch, sequence, count,
            ) = _unpack_header(records)  # fmt: skip
            stated_delta = max_timestamp - base_timestamp
            try:
                is_simple = (
                    length + LOG_OVERHEAD == size_bytes <= log.max_message_bytes
                    and magic == 2
                    and not attributes & 0x2F
                    and count == last_delta + 1
                    and (count == 1 or FEW_RECORDS < count <= MAX_RECORDS_PER_STEP)
                    and base_offset == 0
                    and max_timestamp - now_ms <= log.timestamp_after_max_ms
                    and (sequence >= 0 if producer_id >= 0 else not attributes & 0x10)
                    and size_bytes <= log.segment_limit_bytes
                    and log.failure is None
                    and log.unsynced_truncation is None
                    and stated_delta >= 0
                    and base_timestamp >= NO_TIMESTAMP
                    and crc32c(records[ATTRIBUTES_POSITION:]) == crc
                    # The records are complete, start at the batch's offset, and have its largest timestamp.
                    and check_record_chain(records, stated_delta) == stated_delta
                    and (is_simple_first_record(records) or not check_record(records[RECORD_BATCH_OVERHEAD:], 0)[1])
                )
            except (InvalidRecordError, StepLimitError):
                is_simple = False
        if not is_simple:
            return self._append_validated(
                records, leader_epoch, now_ms, origin, produce_version, is_verified, transaction_version, checked
            )
        offset = log.log_end_offset
        last_offset = offset + last_delta
        producers = log.producer_state
        try:
            segment = self._segment_for(size_bytes, offset, last_offset, max_timestamp, now_ms)
            if producer_id >= 0:
                entry = producers.producers.recent.get(producer_id) or producers.producers.get(producer_id)
                is_transactional = attributes & 0x10 != 0
                if (
                    is_transactional
                    if entry is None
                    else entry.last_sequence + 1 != sequence
                    or entry.epoch != producer_epoch
                    or (entry.transaction_start >= 0) is not is_transactional
                ) or (producers.verifications and producer_id in producers.verifications):
                    duplicate = self._check_producer(BatchHeader._make(_unpack_header(records)), origin, is_verified)
                    if duplicate is not None:
                        return duplicate
            if leader_epoch != log.leader_epochs.latest_epoch:
                log.assign_epoch(leader_epoch, offset)
            pieces = (_pack_stamp(offset, length, leader_epoch), records[MAGIC_POSITION:])
            segment.append(pieces, size_bytes, last_offset, max_timestamp)
        except OSError as error:
            raise log.refuse_or_fail("append", error) from error
        log.log_end_offset = producers.end_offset = last_offset + 1
        if producer_id >= 0:
            last_sequence = (sequence + last_delta) & _MAX_SEQUENCE
            producers.add_data(
                producer_id, producer_epoch, last_sequence, offset, last_offset, max_timestamp, is_transactional
            )
        return AppendInfo(log, offset, last_offset, max_timestamp, -1, size_bytes, False)

    def _append_validated(
        self,
        records: memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: Origin,
        produce_version: int,
        is_verified: bool,
        transaction_version: int,
        checked: CheckedRecords | None,
    ) -> AppendInfo:
        """Append batches of any kind, after all checks."""
        log = self._log
        log.raise_if_failed()
        self._complete_truncation()
        if checked is not None and checked.config is log.config:
            batches = [stamp(checked, now_ms)]
        else:
            found = produced_batches(records, origin, produce_version)
            try:
                batches = [check_batch(batch, log.config, origin, now_ms) for batch in found]
            except StepwiseValidationRequired as large:
                # During a check in steps the client may have repeated the request, so that the batch is in the log.
                duplicate = self._find_duplicate(read_header(large.batch))
                if duplicate is None:
                    raise
                return duplicate
        return self._append_checked(batches, leader_epoch, now_ms, origin, is_verified, transaction_version)

    def _append_checked(
        self,
        checked: list[CheckedBatch],
        leader_epoch: int,
        now_ms: int,
        origin: Origin,
        is_verified: bool,
        transaction_version: int,
    ) -> AppendInfo:
        log = self._log
        first_offset = offset = log.log_end_offset
        headers: list[BatchHeader] = []
        pieces: list[Piece] = []
        for header, head, rest in checked:
            header = header._replace(base_offset=offset, partition_leader_epoch=leader_epoch)
            headers.append(header)
            pieces += (_pack_stamp(offset, header.batch_length, leader_epoch), head[MAGIC_POSITION:], rest)
            offset = header.next_offset
        extents, size_bytes, max_timestamp = _measure(headers)
        try:
            segment = self._segment_for(size_bytes, first_offset, offset - 1, max_timestamp, now_ms)
            markers: dict[int, MarkerFields | None] = {}
            for number, (header, (_, head, rest)) in enumerate(zip(headers, checked, strict=True)):
                if header.producer_id < 0:
                    continue
                if header.is_control:
                    marker = markers[number] = parse_marker(memoryview(bytes(head) + bytes(rest)))
                    if marker is not None:
                        log.producer_state.check_marker(
                            header.producer_id, header.producer_epoch, marker.coordinator_epoch, transaction_version
                        )
                elif (duplicate := self._check_producer(header, origin, is_verified)) is not None:
                    return duplicate
            if leader_epoch != log.leader_epochs.latest_epoch:
                log.assign_epoch(leader_epoch, first_offset)
            segment.append_batches(pieces, extents)
            log.log_end_offset = offset
            for number, header in enumerate(headers):
                producer_replay.add_batch(log.producer_state, segment, header, None, markers.get(number))
            log.producer_state.end_offset = offset
        except OSError as error:
            if len(headers) > 1:
                log.sync_refused_batches()
            raise log.refuse_or_fail("append", error) from error
        log_append_time_ms = now_ms if log.config.message_timestamp_type == "LogAppendTime" else -1
        return AppendInfo(log, first_offset, offset - 1, max_timestamp, log_append_time_ms, size_bytes, False)

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int | None = None
    ) -> AppendInfo | None:
        """Append batches from the leader, offsets and bytes unchanged; return None if there is none to append.

        Offsets may be missing between batches, because compaction removed them on the leader. An incomplete batch at
        the end is ignored. The first batch of an epoch above `leader_epoch` and those after it are omitted: this broker
        does not follow their leader yet. Raises KafkaError CORRUPT_MESSAGE, UnexpectedOffsetError; LogDirFailure;
        ShortageError. Nothing was appended then, unless the batches are too far apart for one segment.
        """
        header = self._read_simple_replicated(records, leader_epoch)
        if header is not None:
            return self._append_simple_replicated(header, records, now_ms)
        log = self._log
        log.raise_if_failed()
        self._complete_truncation()
        headers, batches = self._replicated_batches(records, leader_epoch)
        if not headers:
            return None
        first_offset, last_offset = headers[0].base_offset, headers[-1].last_offset
        if first_offset < log.log_end_offset:
            raise UnexpectedOffsetError(first_offset, headers[0].last_offset, log.log_end_offset)
        markers = [
            _parse_replicated_marker(batch) if header.is_control and header.producer_id >= 0 else None
            for header, batch in zip(headers, batches, strict=True)
        ]
        if len(headers) > 1 and last_offset - log.next_base_offset > MAX_RELATIVE_OFFSET:
            return self._append_apart(records, headers[0].size_bytes, now_ms, leader_epoch)
        extents, size_bytes, max_timestamp = _measure(headers)
        # The leader may have appended a batch while the topic allowed larger segments. It gets a segment of its own.
        least_bytes = min(size_bytes, log.segment_limit_bytes)
        try:
            segment = self._segment_for(least_bytes, first_offset, last_offset, max_timestamp, now_ms)
            self._write_replicated(segment, headers, batches, extents)
            segment.has_checked_batches = False
            log.log_end_offset = last_offset + 1
            for header, marker in zip(headers, markers, strict=True):
                producer_replay.add_batch(log.producer_state, segment, header, None, marker)
            log.producer_state.end_offset = log.log_end_offset
        except OSError as error:
            raise self._refuse_replicated(error) from error
        return AppendInfo(log, first_offset, last_offset, max_timestamp, -1, size_bytes, False)

    def _append_apart(
        self, records: memoryview, first_bytes: int, now_ms: int, leader_epoch: int | None
    ) -> AppendInfo | None:
        """Append the first batch, then the others: compaction left gaps, and no segment can contain all of them.

        If this raises, the first batch may have been appended.
        """
        first = self.append_as_follower(records[:first_bytes], now_ms=now_ms, leader_epoch=leader_epoch)
        rest = self.append_as_follower(records[first_bytes:], now_ms=now_ms, leader_epoch=leader_epoch)
        if first is None or rest is None:
            return first
        max_timestamp, size_bytes = max(first.max_timestamp, rest.max_timestamp), first.size_bytes + rest.size_bytes
        return AppendInfo(self._log, first.first_offset, rest.last_offset, max_timestamp, -1, size_bytes, False)

    def _read_simple_replicated(self, records: memoryview, leader_epoch: int | None) -> BatchHeader | None:
        """Return the header of a single valid batch of the log's latest leader epoch; None in any other case.

        This is the usual response to a follower that is caught up. It needs none of the lists of `append_as_follower`.
        """
        log, size_bytes = self._log, len(records)
        if size_bytes <= RECORD_BATCH_OVERHEAD or log.failure is not None or log.unsynced_truncation is not None:
            return None
        header = BatchHeader._make(_unpack_header(records))
        epoch = header.partition_leader_epoch
        is_simple = (
            header.batch_length + LOG_OVERHEAD == size_bytes
            and header.magic == CURRENT_MAGIC
            and epoch == log.leader_epochs.latest_epoch
            and (leader_epoch is None or epoch <= leader_epoch)
            and header.base_offset >= log.log_end_offset
            and header.last_offset_delta >= 0
            and not header.attributes & CONTROL_FLAG
            and crc32c(records[ATTRIBUTES_POSITION:]) == header.crc
        )
        return header if is_simple else None

    def _append_simple_replicated(self, header: BatchHeader, records: memoryview, now_ms: int) -> AppendInfo:
        log, size_bytes = self._log, len(records)
        first_offset, max_timestamp = header.base_offset, header.max_timestamp
        last_offset = first_offset + header.last_offset_delta
        try:
            segment = self._segment_for(
                min(size_bytes, log.segment_limit_bytes), first_offset, last_offset, max_timestamp, now_ms
            )
            if not log.has_unwritten_epochs:
                log.write_epochs()
            segment.append((records,), size_bytes, last_offset, max_timestamp)
            segment.has_checked_batches = False
            log.log_end_offset = last_offset + 1
            if header.producer_id >= 0:
                producer_replay.add_batch(log.producer_state, segment, header, None)
            log.producer_state.end_offset = last_offset + 1
        except OSError as error:
            raise self._refuse_replicated(error) from error
        return AppendInfo(log, first_offset, last_offset, max_timestamp, -1, size_bytes, False)

    def _refuse_replicated(self, error: OSError) -> KafkaError:
        """Leave the log as it was before a failed append; return the error to raise.

        If this broker becomes the leader, its first batch begins at the log's end, below a far segment.
        """
        refusal = self._log.refuse_or_fail("append", error)
        if self._log.failure is None:
            self._revert_far_roll()
        return refusal

    def _write_replicated(
        self,
        segment: Segment,
        headers: list[BatchHeader],
        batches: list[memoryview],
        extents: list[tuple[int, int, int]],
    ) -> None:
        """Begin the leader epochs of replicated batches, and write these. If it raises OSError, nothing has changed."""
        log = self._log
        before = log.leader_epochs
        try:
            # A checkpoint with the epochs of batches that were refused must not be found after a crash.
            if not log.has_unwritten_epochs:
                log.write_epochs()
            for header in headers:
                if header.partition_leader_epoch != log.leader_epochs.latest_epoch:
                    log.assign_epoch(header.partition_leader_epoch, header.base_offset)
            segment.append_batches(batches, extents)
        except OSError:
            if log.leader_epochs is not before:
                log.leader_epochs = before
                before.dirty = True
                log.has_unwritten_epochs = False
            if len(batches) > 1:
                log.sync_refused_batches()
            raise

    def _replicated_batches(
        self, records: memoryview, leader_epoch: int | None
    ) -> tuple[list[BatchHeader], list[memoryview]]:
        """Return the batches to append as a follower, up to the first of an epoch above `leader_epoch`.

        Raises KafkaError CORRUPT_MESSAGE, also if offsets or leader epochs do not ascend.
        """
        headers: list[BatchHeader] = []
        batches: list[memoryview] = []
        previous_offset = NO_OFFSET
        previous_epoch = self._log.leader_epochs.latest_epoch
        for batch in find_batches(records):
            header = check_shallow(batch, self._log.config, Origin.REPLICATION)
            offset, epoch = header.base_offset, header.partition_leader_epoch
            if leader_epoch is not None and epoch > leader_epoch:
                break
            if header.magic != CURRENT_MAGIC:
                raise _corrupt(f"the batch at offset {offset} has unsupported magic {header.magic}")
            if header.last_offset_delta < 0:
                raise _corrupt(f"the batch at offset {offset} ends at {header.last_offset}")
            if offset <= previous_offset:
                raise _corrupt(f"offset {offset} follows {previous_offset}")
            if 0 <= epoch < previous_epoch:
                raise _corrupt(f"the batch at offset {offset} has leader epoch {epoch} after epoch {previous_epoch}")
            previous_offset, previous_epoch = header.last_offset, max(previous_epoch, epoch)
            headers.append(header)
            batches.append(batch)
        return headers, batches

    def _check_producer(self, header: BatchHeader, origin: Origin, is_verified: bool) -> AppendInfo | None:
        """Return the first append's result for a duplicate, None for a batch to append. Raises KafkaError."""
        state = self._log.producer_state
        producer_id, epoch = header.producer_id, header.producer_epoch
        if origin == Origin.CLIENT and (duplicate := self._find_duplicate(header)) is not None:
            return duplicate
        if header.is_transactional and not is_verified:
            state.check_in_transaction(producer_id, epoch)
        state.check_data(
            producer_id,
            epoch,
            header.base_sequence,
            is_transactional=header.is_transactional,
            is_client=origin == Origin.CLIENT,
        )
        return None

    def _find_duplicate(self, header: BatchHeader) -> AppendInfo | None:
        """Return the first append's result for a batch that was appended before."""
        batch = self._log.producer_state.find_duplicate(
            header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
        )
        if batch is None:
            return None
        return AppendInfo(self._log, batch.first_offset, batch.last_offset, batch.timestamp, batch.timestamp, 0, True)


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def _parse_replicated_marker(batch: memoryview) -> MarkerFields | None:
    """Return the marker in a control batch, as `parse_marker`. Raises KafkaError CORRUPT_MESSAGE."""
    try:
        return parse_marker(batch)
    except (InvalidRecordError, CompressionError) as error:
        raise _corrupt(f"a control batch cannot be read: {error}") from None


def _measure(headers: list[BatchHeader]) -> tuple[list[tuple[int, int, int]], int, int]:
    """Return (size, last offset, largest timestamp) of each batch, the total size, and the largest timestamp of all."""
    extents: list[tuple[int, int, int]] = []
    total_bytes = 0
    largest_timestamp = headers[0].max_timestamp
    for header in headers:
        size_bytes, max_timestamp = header.size_bytes, header.max_timestamp
        extents.append((size_bytes, header.last_offset, max_timestamp))
        total_bytes += size_bytes
        if max_timestamp > largest_timestamp:
            largest_timestamp = max_timestamp
    return extents, total_bytes, largest_timestamp
