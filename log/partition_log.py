"""The log of one partition: an ordered list of segments, of which the last takes the appends.

Sources: Kafka documentation ("Log"), KIP-98 (producers), KIP-101 (leader epochs), KIP-107 (DeleteRecords).
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from odradek.log import checkpoints, producer_replay, retention, timestamps
from odradek.log.config import LogConfig
from odradek.log.filesystem import FileRegion, FileSystem, LogDirFailure, Piece, remove_if_exists
from odradek.log.flush import FlushTask
from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.producer_state import ProducerState
from odradek.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DeletedSegment,
    Segment,
    remove_segment_files,
)
from odradek.log.transaction_index import AbortedTransaction
from odradek.log.validation import (
    FEW_RECORDS,
    CheckedBatch,
    Origin,
    check_batch,
    check_record,
    check_shallow,
    produced_batches,
    split_batches,
)
from odradek.properties import INT64_MAX
from odradek.protocol.crc import crc32c
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.record_batch import HEADER, BatchHeader, InvalidRecordError
from odradek.protocol.record_chain import check_record_chain

logger = logging.getLogger(__name__)

LATEST_PRODUCE_VERSION = 13
NO_OFFSET = -1
_MAX_RELATIVE_OFFSET = 0x7FFFFFFF
_MAX_SEQUENCE = 0x7FFFFFFF
# The part of a batch that the leader stamps (base offset, leader epoch) with the length between them.
_STAMP = Struct(">qii")
_unpack_header = HEADER.unpack_from
_pack_stamp = _STAMP.pack


class AppendInfo:
    """What became of an append.

    `log_append_time_ms` is -1 unless the topic has LogAppendTime. For a duplicate, offsets and time are those of the
    first time. `flush_due`: flush.messages wants everything synced before this is acknowledged.
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
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time_ms: int,
        log_start_offset: int,
        size_bytes: int,
        is_duplicate: bool,
        flush_due: bool,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.size_bytes = size_bytes
        self.is_duplicate = is_duplicate
        self.flush_due = flush_due


class UnexpectedOffsetError(KafkaError):
    """A follower was given batches that begin before its log's end."""

    def __init__(self, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        text = f"offsets {first_offset} to {last_offset} cannot follow log end {log_end_offset}"
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        self.first_offset = first_offset
        self.last_offset = last_offset


class LoadedState(NamedTuple):
    """What recovery found; a PartitionLog is made of it."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producer_state: ProducerState


class PartitionLog:
    """Made by `odradek.log.recovery.open_partition_log`. Not thread-safe, but for `FlushTask.run` and reading regions.

    Offsets: `log_start_offset` <= `last_stable_offset` <= `high_watermark` <= `log_end_offset`. Everything below
    `recovery_point` is on the disk. After an I/O error `failure` is set and every change raises it again (E56).
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        state: LoadedState,
        *,
        now_ms: int,
        choose_jitter_ms: Callable[[int], int] = lambda most_ms: 0,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.segments = state.segments
        self._bases = [segment.base_offset for segment in state.segments]
        self._active = state.segments[-1]
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.recovery_point = state.recovery_point
        self.high_watermark = state.log_start_offset
        self.leader_epochs = state.leader_epochs
        self.producer_state = state.producer_state
        self.failure: LogDirFailure | None = None
        self.last_flush_ms = now_ms
        self._choose_jitter_ms = choose_jitter_ms
        self._unsynced_paths: set[str] = set()
        self.update_config(config)

    def update_config(self, config: LogConfig) -> None:
        """Take on changed topic properties; existing segments keep their index settings."""
        self.config = config
        self._segment_limit_bytes = config.segment_limit_bytes
        self._max_segment_ms = config.max_segment_ms
        self._max_message_bytes = config.max_message_bytes
        self._flush_messages = config.flush_messages
        self._after_max_ms = config.message_timestamp_after_max_ms
        # Whether no rule of the topic needs each record, or changes batches.
        self._is_plain = (
            config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == INT64_MAX
            and config.compression_type in ("producer", "uncompressed")
            and not config.compacts
        )

    def __repr__(self) -> str:
        return f"PartitionLog({self.directory}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def log_directory(self) -> str:
        """The entry of log.dirs that the partition's directory is in."""
        return self.directory.rpartition("/")[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch that wrote or was elected; -1 if none did."""
        return self.leader_epochs.latest_epoch

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        unstable = self.producer_state.first_unstable_offset
        if unstable < 0 or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def active_segment(self) -> Segment:
        return self._active

    def update_high_watermark(self, offset: int) -> int:
        """Set it, held between log start and log end; what it is now."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        elif offset < self.log_start_offset:
            offset = self.log_start_offset
        self.high_watermark = offset
        if self.producer_state.first_unstable_offset >= 0:
            self.producer_state.high_watermark_advanced(offset)
        return offset

    # Append

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
    ) -> AppendInfo:
        """Validate, give offsets and append: one batch from a client, any number from a coordinator.

        `is_verified` says that the transaction coordinator knows the transaction of a transactional batch;
        `transaction_version` is that of the transaction a marker ends. Raises KafkaError (Kafka's order of checks);
        then nothing was appended, though a new segment may have been begun.
        """
        if origin == 0 and self._is_plain and len(records) > 61:
            size_bytes = len(records)
            (
                base_offset,
                length,
                _,
                magic,
                crc,
                attributes,
                last_delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                producer_epoch,
                sequence,
                count,
            ) = _unpack_header(records)
            # Whatever is not the everyday batch, or has anything wrong with it, takes the long way.
            if (
                length + 12 == size_bytes <= self._max_message_bytes
                and magic == 2
                and not attributes & 0x3F
                and count == last_delta + 1
                and count > 0
                and base_offset == 0
                and max_timestamp - now_ms <= self._after_max_ms
                and (producer_id < 0 or sequence >= 0)
                and size_bytes <= self._segment_limit_bytes
                and self.failure is None
                and crc32c(records[21:]) == crc
                and _records_are_sound(records, count, base_timestamp, max_timestamp)
            ):
                offset = self.log_end_offset
                last_offset = offset + last_delta
                segment = self._active
                try:
                    if (
                        segment.size_bytes + size_bytes > self._segment_limit_bytes
                        or segment.indexes_full
                        or last_offset - segment.base_offset > _MAX_RELATIVE_OFFSET
                        or (
                            max_timestamp - segment.roll_timestamp > self._max_segment_ms - segment.roll_jitter_ms
                            and self._has_waited(segment, max_timestamp, now_ms)
                        )
                    ):
                        segment = self._roll(offset, now_ms)
                    if producer_id >= 0:
                        entry = self.producer_state.producers.get(producer_id)
                        if entry is not None and not (
                            entry.last_sequence + 1 == sequence
                            and entry.epoch == producer_epoch
                            and entry.transaction_start < 0
                        ):
                            duplicate = self._check_producer(
                                BatchHeader._make(_unpack_header(records)), origin, is_verified
                            )
                            if duplicate is not None:
                                return duplicate
                    if leader_epoch != self.leader_epochs.latest_epoch:
                        self.assign_epoch(leader_epoch, offset)
                    pieces = (_pack_stamp(offset, length, leader_epoch), records[16:])
                    segment.append(pieces, size_bytes, last_offset, max_timestamp)
                except OSError as error:
                    raise self._fail("append", error) from error
                self.log_end_offset = end_offset = last_offset + 1
                state = self.producer_state
                state.end_offset = end_offset
                if producer_id >= 0:
                    state.add_data(
                        producer_id,
                        producer_epoch,
                        (sequence + last_delta) & _MAX_SEQUENCE,
                        offset,
                        last_offset,
                        max_timestamp,
                        False,
                    )
                return AppendInfo(
                    offset,
                    last_offset,
                    max_timestamp,
                    -1,
                    self.log_start_offset,
                    size_bytes,
                    False,
                    end_offset - self.recovery_point >= self._flush_messages,
                )
        self._raise_if_failed()
        batches = produced_batches(records, origin, produce_version)
        checked = [check_batch(batch, self.config, origin, now_ms) for batch in batches]
        return self._append_checked(checked, leader_epoch, now_ms, origin, is_verified, transaction_version)

    def _append_checked(
        self,
        checked: list[CheckedBatch],
        leader_epoch: int,
        now_ms: int,
        origin: Origin,
        is_verified: bool,
        transaction_version: int,
    ) -> AppendInfo:
        first_offset = offset = self.log_end_offset
        headers: list[BatchHeader] = []
        pieces: list[Piece] = []
        for header, head, rest in checked:
            header = header._replace(base_offset=offset, partition_leader_epoch=leader_epoch)
            headers.append(header)
            pieces += (_pack_stamp(offset, header.batch_length, leader_epoch), head[16:], rest)
            offset = header.next_offset
        try:
            segment = self._segment_for(headers, now_ms)
            for header, (_, head, rest) in zip(headers, checked, strict=True):
                if header.producer_id < 0:
                    continue
                if header.is_control:
                    marker = producer_replay.parse_marker(memoryview(bytes(head) + bytes(rest)))
                    if marker is not None:
                        self.producer_state.check_marker(
                            header.producer_id, header.producer_epoch, marker.coordinator_epoch, transaction_version
                        )
                elif (duplicate := self._check_producer(header, origin, is_verified)) is not None:
                    return duplicate
            if leader_epoch != self.leader_epochs.latest_epoch:
                self.assign_epoch(leader_epoch, first_offset)
            segment.append_batches(pieces, [(h.size_bytes, h.last_offset, h.max_timestamp) for h in headers])
            self.log_end_offset = offset
            for header, (_, head, rest) in zip(headers, checked, strict=True):
                batch = memoryview(bytes(head) + bytes(rest)) if header.is_control else None
                producer_replay.add_batch(self.producer_state, segment, header, batch)
            self.producer_state.end_offset = offset
        except OSError as error:
            raise self._fail("append", error) from error
        log_append_time_ms = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return self._append_info(headers, log_append_time_ms)

    def _append_info(self, headers: list[BatchHeader], log_append_time_ms: int) -> AppendInfo:
        return AppendInfo(
            headers[0].base_offset,
            headers[-1].last_offset,
            max(header.max_timestamp for header in headers),
            log_append_time_ms,
            self.log_start_offset,
            sum(header.size_bytes for header in headers),
            False,
            self.log_end_offset - self.recovery_point >= self._flush_messages,
        )

    def append_as_follower(self, records: memoryview, *, leader_epoch: int | None = None) -> AppendInfo | None:
        """Append what a leader sent, offsets and bytes as they are; None if it held no batch to append.

        Batches of an epoch above `leader_epoch` are left out: their leader is not followed yet. Raises KafkaError E2,
        UnexpectedOffsetError.
        """
        self._raise_if_failed()
        batches: list[memoryview] = []
        headers: list[BatchHeader] = []
        for batch in split_batches(records):
            header = check_shallow(batch, self.config, Origin.REPLICATION)
            if leader_epoch is not None and header.partition_leader_epoch > leader_epoch:
                break
            previous = headers[-1].last_offset if headers else NO_OFFSET
            if header.last_offset <= previous:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"offset {header.last_offset} follows {previous}")
            batches.append(batch)
            headers.append(header)
        if not headers:
            return None
        if headers[0].base_offset < self.log_end_offset:
            raise UnexpectedOffsetError(headers[0].base_offset, headers[-1].last_offset, self.log_end_offset)
        # A follower has no clock of its own for this: its segments age by the records' timestamps.
        now_ms = max(header.max_timestamp for header in headers)
        try:
            segment = self._segment_for(headers, now_ms)
            for header in headers:
                if header.partition_leader_epoch != self.leader_epochs.latest_epoch:
                    self.assign_epoch(header.partition_leader_epoch, header.base_offset)
            segment.append_batches(list(batches), [(h.size_bytes, h.last_offset, h.max_timestamp) for h in headers])
            self.log_end_offset = headers[-1].next_offset
            for header, batch in zip(headers, batches, strict=True):
                producer_replay.add_batch(self.producer_state, segment, header, batch)
            self.producer_state.end_offset = self.log_end_offset
        except OSError as error:
            raise self._fail("append", error) from error
        return self._append_info(headers, -1)

    def _check_producer(self, header: BatchHeader, origin: Origin, is_verified: bool) -> AppendInfo | None:
        """The answer to a batch that was appended before; None for one that may be appended. Raises KafkaError."""
        state = self.producer_state
        producer_id, epoch = header.producer_id, header.producer_epoch
        if origin == Origin.CLIENT:
            mark = state.find_duplicate(producer_id, epoch, header.base_sequence, header.last_sequence)
            if mark is not None:
                start = self.log_start_offset
                return AppendInfo(
                    mark.first_offset, mark.last_offset, mark.timestamp, mark.timestamp, start, 0, True, False
                )
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

    def _segment_for(self, headers: list[BatchHeader], now_ms: int) -> Segment:
        """The active segment, or a new one if these batches call for it. Raises KafkaError E18."""
        size_bytes = sum(header.size_bytes for header in headers)
        if size_bytes > self._segment_limit_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size_bytes} bytes do not fit a segment of {self._segment_limit_bytes}",
            )
        segment = self._active
        if (
            segment.size_bytes + size_bytes > self._segment_limit_bytes
            or segment.indexes_full
            or headers[-1].last_offset - segment.base_offset > _MAX_RELATIVE_OFFSET
            or self._has_waited(segment, max(header.max_timestamp for header in headers), now_ms)
        ):
            return self._roll(headers[0].base_offset, now_ms)
        return segment

    def _has_waited(self, segment: Segment, max_timestamp: int, now_ms: int) -> bool:
        """Whether segment.ms has gone by: in the records' time, or by the clock if the first batch has none."""
        if segment.size_bytes == 0:
            return False
        first = segment.first_timestamp
        waited_ms = max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        return waited_ms > self._max_segment_ms - segment.roll_jitter_ms

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end; the active one itself if it is empty. Raises LogDirFailure."""
        self._raise_if_failed()
        try:
            return self._roll(self.log_end_offset, now_ms)
        except OSError as error:
            raise self._fail("roll", error) from error

    def _roll(self, first_offset: int, now_ms: int) -> Segment:
        base_offset = max(first_offset, self.log_end_offset)
        if base_offset == self._active.base_offset:
            return self._active
        self._active.seal()
        remove_segment_files(self.fs, self.directory, base_offset)
        segment = self._new_segment(base_offset, now_ms)
        self.segments.append(segment)
        self._bases.append(base_offset)
        self._active = segment
        state = self.producer_state
        state.end_offset = base_offset
        if state.take_snapshot(sync=False) is not None:
            self._unsynced_paths.add(state.snapshot_path(base_offset))
        logger.debug("rolled segment directory=%s base_offset=%d", self.directory, base_offset)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        jitter_ms = min(self.config.segment_jitter_ms, self._max_segment_ms)
        return Segment(
            self.fs,
            self.directory,
            base_offset,
            self.config,
            now_ms=now_ms,
            fresh=True,
            roll_jitter_ms=self._choose_jitter_ms(jitter_ms) if jitter_ms else 0,
        )

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that a leader epoch begins: at an election, and when the first batch of an epoch arrives."""
        if self.leader_epochs.assign(epoch, start_offset):
            self._write_epochs()

    def _write_epochs(self) -> None:
        """Unsynced: recovery finds epochs in the batches again, and a flush syncs this before it moves on."""
        if not self.leader_epochs.dirty:
            return
        path = f"{self.directory}/{checkpoints.LEADER_EPOCHS_FILE}"
        checkpoints.write_leader_epochs(self.fs, path, self.leader_epochs.entries, sync=False)
        self.leader_epochs.dirty = False
        self._unsynced_paths.add(path)

    # Read

    def read(self, offset: int, max_bytes: int, *, upper_offset: int, at_least_one: bool) -> FileRegion | None:
        """Where the batches from the one that holds `offset` on are, in one segment and below `upper_offset`.

        At most `max_bytes`, cut anywhere behind the first batch; the first batch is whole, or there is none: unless
        `at_least_one`, a first batch that does not fit gives None, as does reading at or behind `upper_offset`.
        Raises KafkaError E1 for an offset outside of the log, E56 if the disk fails.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of {self.log_start_offset} to {end_offset}",
            )
        try:
            if offset >= upper_offset:
                if offset == end_offset:
                    # A consumer that waits here asks for this offset again when something was appended.
                    self._active.add_hint(offset, self._active.size_bytes)
                return None
            return self._read(offset, max_bytes, min(upper_offset, end_offset), at_least_one)
        except OSError as error:
            raise self._fail("read", error) from error

    def _read(self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool) -> FileRegion | None:
        index = len(self._bases) - 1
        if offset < self._bases[index]:
            index = bisect_right(self._bases, offset) - 1
        while True:
            segment = self.segments[index]
            position = segment.locate(offset)
            if position >= 0:
                break
            index += 1
            if index == len(self.segments):
                return None
        if upper_offset == self.log_end_offset or (
            segment is not self._active and upper_offset >= self._bases[index + 1]
        ):
            end = segment.size_bytes
        else:
            end = segment.locate(upper_offset)
            if end < 0:
                end = segment.size_bytes
            if upper_offset <= segment.base_offset:
                end = 0
        available = end - position
        if available <= 0:
            return None
        if available > max_bytes:
            first_batch_bytes = segment.batch_size_at(position)
            if max_bytes < first_batch_bytes:
                return FileRegion(segment.file, position, min(first_batch_bytes, available)) if at_least_one else None
            return FileRegion(segment.file, position, max_bytes)
        if segment is self._active:
            segment.add_hint(upper_offset, end)
        return FileRegion(segment.file, position, available)

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below it, where it ends), or (-1, -1): KIP-101, KIP-320."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 if unknown."""
        return self.leader_epochs.epoch_for(offset)

    def offset_for_timestamp(self, timestamp: int) -> "timestamps.TimestampOffset | None":
        """The first record, in offset order, with this timestamp or a later one. The caller bounds it by HW or LSO."""
        try:
            return timestamps.offset_for_timestamp(self.segments, timestamp, self.log_start_offset)
        except OSError as error:
            raise self._fail("read", error) from error

    def offset_of_max_timestamp(self) -> "timestamps.TimestampOffset | None":
        """The first record that bears the largest timestamp of the log (KIP-734)."""
        try:
            return timestamps.offset_of_max_timestamp(self.segments)
        except OSError as error:
            raise self._fail("read", error) from error

    def aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTransaction]:
        """What a read_committed consumer must skip in a region that `read` gave for `offset`; it may name more."""
        try:
            return self._aborted_transactions(offset, region)
        except OSError as error:
            raise self._fail("read", error) from error

    def _aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTransaction]:
        index = next((i for i, segment in enumerate(self.segments) if segment.file is region.file), None)
        if index is None:
            return []
        upper = self.segments[index].offset_index.offset_above_position(region.position + region.size_bytes)
        if upper is None:
            upper = self._bases[index + 1] if index + 1 < len(self._bases) else self.log_end_offset
        found: list[AbortedTransaction] = []
        for segment in self.segments[index:]:
            entries, is_complete = segment.transaction_index.collect(offset, upper)
            found += entries
            if is_complete:
                break
        return found

    # Cut

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start to `offset`, -1 meaning the high watermark; what it is now (KIP-107).

        Segments that lie wholly before it go with the next `delete_old_segments`. Raises KafkaError: E1 for an offset
        above the high watermark, E44 for a topic that is only compacted.
        """
        self._raise_if_failed()
        if self.config.compacts and not self.config.deletes:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted")
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {self.high_watermark}"
            )
        self.advance_log_start(offset)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Move the log's start, never backwards: as DeleteRecords, a deleted segment or the leader has it."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.high_watermark = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producer_state.log_start_advanced(offset)
        try:
            self._write_epochs()
        except OSError as error:
            raise self._fail("epoch checkpoint", error) from error

    def truncate_to(self, offset: int, now_ms: int) -> list[DeletedSegment]:
        """Drop all batches that reach `offset`. The files of whole segments wait for `remove_deleted`."""
        self._raise_if_failed()
        try:
            if offset >= self.log_end_offset:
                self.leader_epochs.truncate_from_end(self.log_end_offset)
                self._write_epochs()
                return []
            if offset < self._bases[0]:
                return self._start_over(offset, now_ms)
            keep = bisect_right(self._bases, offset)
            deleted = self._drop(self.segments[keep:])
            self._active.truncate_to(offset, now_ms)
            self._set_end(offset)
            self.leader_epochs.truncate_from_end(offset)
            self._write_epochs()
            self.log_start_offset = min(self.log_start_offset, offset)
            producer_replay.rebuild(
                self.producer_state, self.segments, self.log_start_offset, offset, now_ms, is_clean=False
            )
            return deleted
        except OSError as error:
            raise self._fail("truncate", error) from error

    def start_over(self, offset: int, now_ms: int) -> list[DeletedSegment]:
        """Drop everything; the log is empty and starts and ends at `offset`."""
        self._raise_if_failed()
        try:
            return self._start_over(offset, now_ms)
        except OSError as error:
            raise self._fail("truncate", error) from error

    def _start_over(self, offset: int, now_ms: int) -> list[DeletedSegment]:
        deleted = [segment.mark_deleted() for segment in reversed(self.segments)]
        self._active = self._new_segment(offset, now_ms)
        self.segments[:] = [self._active]
        self._bases[:] = [offset]
        self.leader_epochs.clear()
        self._write_epochs()
        self.producer_state.truncate_fully(offset)
        self.log_start_offset = offset
        self._set_end(offset)
        return deleted

    def _set_end(self, offset: int) -> None:
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        if self.high_watermark > offset or self.high_watermark < self.log_start_offset:
            self.high_watermark = offset

    def _drop(self, segments: list[Segment]) -> list[DeletedSegment]:
        """Take segments out of the log, last first, so that a crash in between leaves no gap."""
        deleted = []
        for segment in reversed(segments):
            index = self._bases.index(segment.base_offset)
            marked = segment.mark_deleted()
            del self.segments[index], self._bases[index]
            deleted.append(self._with_snapshot(marked))
        self._active = self.segments[-1]
        return deleted

    def _with_snapshot(self, deleted: DeletedSegment) -> DeletedSegment:
        name = self.producer_state.forget_snapshot(deleted.base_offset)
        if name is None:
            return deleted
        marked = name + ".deleted"
        try:
            self.fs.rename(f"{self.directory}/{name}", f"{self.directory}/{marked}")
        except FileNotFoundError:
            return deleted
        return deleted._replace(names=(*deleted.names, marked))

    def delete_old_segments(self, now_ms: int) -> list[DeletedSegment]:
        """Apply retention and the log's start; the log's start moves up to the first segment that stays.

        The files are renamed; hand the result to `remove_deleted` after file.delete.delay.ms. Raises LogDirFailure.
        """
        self._raise_if_failed()
        try:
            count = retention.count_deletable(self, now_ms)
            if count == 0:
                return []
            if count == len(self.segments):
                self._roll(self.log_end_offset, now_ms)
            self.advance_log_start(self._bases[count])
            deleted = []
            for segment in self.segments[:count]:
                deleted.append(self._with_snapshot(segment.mark_deleted()))
                del self.segments[0], self._bases[0]
            return deleted
        except OSError as error:
            raise self._fail("retention", error) from error

    def remove_deleted(self, segments: list[DeletedSegment]) -> None:
        """Remove the files of deleted segments. Only files are touched: it may run in another thread."""
        try:
            for segment in segments:
                for name in segment.names:
                    remove_if_exists(self.fs, f"{self.directory}/{name}")
        except OSError as error:
            raise LogDirFailure(self.log_directory, f"removing deleted segments failed: {error}") from error

    # Flush and close

    def flush_due_offset(self, now_ms: int) -> int | None:
        """Up to where the log ought to be flushed now, by flush.messages, flush.ms or a roll; None if nowhere."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed > 0 and (
            unflushed >= self._flush_messages or now_ms - self.last_flush_ms >= self.config.flush_ms
        ):
            return self.log_end_offset
        return self._active.base_offset if self._active.base_offset > self.recovery_point else None

    def prepare_flush(self, target_offset: int | None = None) -> FlushTask | None:
        """The syncs that make everything below `target_offset` (the log's end) durable; None if there is nothing to do.

        Run the task in any thread, then hand it to `finish_flush` in this one.
        """
        self._raise_if_failed()
        target = self.log_end_offset if target_offset is None else min(target_offset, self.log_end_offset)
        if target <= self.recovery_point and not self._unsynced_paths:
            return None
        files, paths, new_names = [], sorted(self._unsynced_paths), False
        self._unsynced_paths.clear()
        for segment in self.segments[max(0, bisect_right(self._bases, self.recovery_point) - 1) :]:
            if segment.base_offset >= target:
                break
            files.append(segment.file)
            new_names = new_names or segment.base_offset >= self.recovery_point
            if segment is not self._active:
                # The active segment's indexes are built anew after a crash.
                paths += [segment.path(kind) for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
            paths.append(segment.path(TRANSACTION_INDEX_SUFFIX))
        directory = self.directory if new_names or paths else None
        return FlushTask(self.fs, self.log_directory, target, files, paths, directory)

    def finish_flush(self, task: FlushTask, now_ms: int) -> None:
        """The task ran: its target is the recovery point, unless the log was truncated below it meanwhile."""
        self.recovery_point = max(self.recovery_point, min(task.target_offset, self.log_end_offset))
        self.last_flush_ms = now_ms

    def flush(self, now_ms: int, target_offset: int | None = None) -> None:
        """All three steps of a flush at once; blocks. Raises LogDirFailure."""
        task = self.prepare_flush(target_offset)
        if task is not None:
            try:
                task.run()
            except LogDirFailure as failure:
                self.failure = failure
                raise
            self.finish_flush(task, now_ms)

    def close(self, now_ms: int) -> None:
        """Make everything durable, so that the next start need not recover. Blocks; raises LogDirFailure."""
        if self.failure is not None:
            return
        try:
            self._active.seal()
            was_new = self.recovery_point < self.log_end_offset or self._active.size_bytes == 0
            self.flush(now_ms)
            if was_new:
                for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                    self.fs.sync_path(self._active.path(kind))
            self.producer_state.take_snapshot(sync=True)
            if was_new:
                self.fs.sync_directory(self.directory)
        except OSError as error:
            raise self._fail("close", error) from error

    def move(self, directory: str) -> None:
        """The partition's directory has been renamed (it is being deleted, or was a future replica)."""
        self.directory = directory
        self.producer_state.directory = directory
        self._unsynced_paths.clear()
        for segment in self.segments:
            segment.move(directory)

    def _fail(self, what: str, error: OSError) -> LogDirFailure:
        logger.error("log directory failed directory=%s during=%s error=%s", self.directory, what, error)
        self.failure = LogDirFailure(self.log_directory, f"{what} failed in {self.directory}: {error}")
        return self.failure

    def _raise_if_failed(self) -> None:
        if self.failure is not None:
            raise LogDirFailure(self.log_directory, f"{self.directory} is offline after an I/O error")


def _records_are_sound(records: memoryview, count: int, base_timestamp: int, max_timestamp: int) -> bool:
    """Whether the records of a plain batch chain and the header's largest timestamp may be right."""
    try:
        check_record_chain(records)
    except InvalidRecordError:
        return False
    if count > FEW_RECORDS:
        return True
    return count == 1 and base_timestamp + check_record(records[61:], 0)[0] == max_timestamp
