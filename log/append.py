"""Appending to a partition's log: the way of a produced batch, of a coordinator's records and of replicated ones.

Sources: Kafka documentation ("Log"), KIP-98 (idempotent and transactional producers).
"""

from struct import Struct

from odradek.log.producers import replay as producer_replay
from odradek.log.producers.replay import Marker, parse_marker
from odradek.log.segments.segment import Segment
from odradek.log.state import LogState
from odradek.log.storage.filesystem import Piece
from odradek.log.validation.batch import (
    FEW_RECORDS,
    MOST_RECORDS_AT_ONCE,
    CheckedBatch,
    CheckedRecords,
    LongValidation,
    Origin,
    check_batch,
    check_shallow,
    is_sound_first,
    produced_batches,
    split_batches,
    stamp,
)
from odradek.protocol.crc import crc32c
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.record_batch import HEADER, NO_TIMESTAMP, BatchHeader, InvalidRecordError, read_header
from odradek.protocol.record_chain import check_record_chain
from odradek.protocol.record_shape import TakesLongError, check_record

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
    first time. `flush_due`: flush.messages or flush.before.acks wants this synced before it is acknowledged.
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


class LogAppend(LogState):
    """Append, by a leader and by a follower."""

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
        """Validate, give offsets and append: one batch from a client, any number from a coordinator.

        `is_verified` says that the transaction coordinator knows the transaction of a transactional batch;
        `transaction_version` is that of the transaction a marker ends. Raises KafkaError (Kafka's order of checks);
        then nothing was appended, though a new segment may have been begun. Raises LongValidation if the records of a
        client's batch have to be checked in steps first; `checked` is the result of that, and counts for as long as
        the topic's properties stay the same.
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
                and not attributes & 0x2F
                and count == last_delta + 1
                and 0 < count <= MOST_RECORDS_AT_ONCE
                and base_offset == 0
                and max_timestamp - now_ms <= self._after_max_ms
                and (sequence >= 0 if producer_id >= 0 else not attributes & 0x10)
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
                        producers = self.producer_state
                        entry = producers.producers.recent.get(producer_id) or producers.producers.get(producer_id)
                        is_transactional = attributes & 0x10 != 0
                        if (
                            is_transactional
                            if entry is None
                            else entry.last_sequence + 1 != sequence
                            or entry.epoch != producer_epoch
                            or (entry.transaction_start >= 0) is not is_transactional
                        ) or (producers.verifications and producer_id in producers.verifications):
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
                    raise self._refuse_or_fail("append", error) from error
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
                        is_transactional,
                    )
                return AppendInfo(
                    offset,
                    last_offset,
                    max_timestamp,
                    -1,
                    self.log_start_offset,
                    size_bytes,
                    False,
                    end_offset - self.flushed_offset >= self._flush_messages,
                )
        self._raise_if_failed()
        if checked is not None and checked.config is self.config:
            batches = [stamp(checked, now_ms)]
        else:
            found = produced_batches(records, origin, produce_version)
            try:
                batches = [check_batch(batch, self.config, origin, now_ms) for batch in found]
            except LongValidation as long:
                # A client that repeats a request because the check took long needs no second one.
                duplicate = self._find_duplicate(read_header(long.batch))
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
            markers: dict[int, Marker | None] = {}
            for number, (header, (_, head, rest)) in enumerate(zip(headers, checked, strict=True)):
                if header.producer_id < 0:
                    continue
                if header.is_control:
                    marker = markers[number] = parse_marker(memoryview(bytes(head) + bytes(rest)))
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
            for number, header in enumerate(headers):
                producer_replay.add_batch(self.producer_state, segment, header, None, markers.get(number))
            self.producer_state.end_offset = offset
        except OSError as error:
            raise self._refuse_or_fail("append", error) from error
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
            self.log_end_offset - self.flushed_offset >= self._flush_messages,
        )

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int | None = None
    ) -> AppendInfo | None:
        """Append what a leader sent, offsets and bytes as they are; None if it held no batch to append.

        Batches of an epoch above `leader_epoch` are left out: their leader is not followed yet. Raises KafkaError
        CORRUPT_MESSAGE, UnexpectedOffsetError.
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
        try:
            segment = self._segment_for(headers, now_ms)
            for header in headers:
                if header.partition_leader_epoch != self.leader_epochs.latest_epoch:
                    self.assign_epoch(header.partition_leader_epoch, header.base_offset)
            segment.append_batches(list(batches), [(h.size_bytes, h.last_offset, h.max_timestamp) for h in headers])
            segment.has_checked_batches = False
            self.log_end_offset = headers[-1].next_offset
            for header, batch in zip(headers, batches, strict=True):
                producer_replay.add_batch(self.producer_state, segment, header, batch)
            self.producer_state.end_offset = self.log_end_offset
        except OSError as error:
            raise self._refuse_or_fail("append", error) from error
        return self._append_info(headers, -1)

    def _check_producer(self, header: BatchHeader, origin: Origin, is_verified: bool) -> AppendInfo | None:
        """The answer to a batch that was appended before; None for one that may be appended. Raises KafkaError."""
        state = self.producer_state
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
        """The answer to a batch that was appended before."""
        mark = self.producer_state.find_duplicate(
            header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
        )
        if mark is None:
            return None
        start, flushed_offset = self.log_start_offset, self.flushed_offset
        is_due = self.log_end_offset - flushed_offset >= self._flush_messages
        flush_due = is_due and mark.last_offset >= flushed_offset
        return AppendInfo(
            mark.first_offset, mark.last_offset, mark.timestamp, mark.timestamp, start, 0, True, flush_due
        )

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


def _records_are_sound(records: memoryview, count: int, base_timestamp: int, max_timestamp: int) -> bool:
    """True if the records of a plain batch chain, begin at its offset, and have the largest timestamp it states."""
    stated_delta = max_timestamp - base_timestamp
    if stated_delta < 0 or base_timestamp < NO_TIMESTAMP or 1 < count <= FEW_RECORDS:
        return False
    try:
        if check_record_chain(records, stated_delta) != stated_delta:
            return False
        if not is_sound_first(records) and check_record(records[61:], 0)[1]:
            return False
    except (InvalidRecordError, TakesLongError):
        return False
    return True
