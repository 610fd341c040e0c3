"""Reads of a partition's log: regions of batches, lookups by timestamp and leader epoch, aborted transactions.

Sources: KIP-101 (leader epochs), KIP-98 (aborted transactions).
"""

from bisect import bisect_right
from collections.abc import Generator, Sequence

from odradek.log.segments import timestamps
from odradek.log.segments.segment_files import CorruptSegmentError
from odradek.log.segments.timestamps import TimestampOffset
from odradek.log.segments.transaction_index import AbortedTransaction, FoundTransactions
from odradek.log.state import LogState
from odradek.log.storage.filesystem import ExhaustedError, FileRegion, is_exhausted
from odradek.protocol.batches.compression import CompressionError
from odradek.protocol.batches.record_batch import InvalidRecordError
from odradek.protocol.batches.streaming import Step
from odradek.protocol.errors import ErrorCode, KafkaError

_FEW_TRANSACTIONS = 8


class LogReader:
    """Reads one log."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState) -> None:
        self._log = log

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int, at_least_one: bool, may_wait: bool = True
    ) -> FileRegion | None:
        """Return the region of one segment that begins with the batch of `offset` and ends below `upper_offset`.

        It has at most `max_bytes`, and may end anywhere after the first batch, which is complete. None if there is no
        batch below `upper_offset`, or, unless `at_least_one`, if the first batch does not fit. Raises KafkaError
        OFFSET_OUT_OF_RANGE; CORRUPT_MESSAGE if the bytes are not batches; KAFKA_STORAGE_ERROR if the disk fails.
        Raises ColdReadError if what it has to read is on the disk only, unless it `may_wait` for the disk.
        """
        log = self._log
        end_offset = log.log_end_offset
        if not log.log_start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of {log.log_start_offset} to {end_offset}",
            )
        try:
            if offset >= upper_offset:
                if offset == end_offset:
                    self.add_end_hint()
                return None
            return self._read(offset, max_bytes, min(upper_offset, end_offset), at_least_one, may_wait)
        except OSError as error:
            raise self._unreadable(error) from error

    def add_end_hint(self) -> None:
        """Prepare for a consumer at the log's end to read from this offset after the next append."""
        log = self._log
        log.active.add_hint(log.log_end_offset, log.active.size_bytes)

    def _read(
        self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool, may_wait: bool
    ) -> FileRegion | None:
        log = self._log
        index = len(log.bases) - 1
        if offset < log.bases[index]:
            index = bisect_right(log.bases, offset) - 1
        while True:
            segment = log.segments[index]
            position = segment.locate(offset, may_wait=may_wait)
            if position >= 0:
                break
            index += 1
            if index == len(log.segments):
                return None
        if upper_offset == log.log_end_offset or (
            segment is not log.active and upper_offset >= log.bases[index + 1]
        ):
            end = segment.size_bytes
        else:
            end = segment.locate(upper_offset, may_wait=may_wait)
            if end < 0:
                end = segment.size_bytes
            if upper_offset <= segment.base_offset:
                end = 0
        available = end - position
        if available <= 0:
            return None
        if available > max_bytes:
            first_batch_bytes, last_offset = segment.batch_at(position, may_wait=may_wait)
            if max_bytes < first_batch_bytes and not at_least_one:
                return None
            if max_bytes <= first_batch_bytes:
                segment.move_hint(offset, last_offset + 1, position + first_batch_bytes)
                return FileRegion(segment.file, position, min(first_batch_bytes, available))
            return FileRegion(segment.file, position, max_bytes)
        if segment is log.active:
            segment.add_hint(upper_offset, end)
        return FileRegion(segment.file, position, available)

    def _unreadable(self, error: OSError | ValueError) -> KafkaError:
        """Return the error of a failed read: no descriptor, a failed disk, or damaged records (CORRUPT_MESSAGE)."""
        log = self._log
        if is_exhausted(error):
            return ExhaustedError(log.log_directory, f"read refused in {log.directory}: {error}")
        if isinstance(error, OSError) and not isinstance(error, CorruptSegmentError):
            return log.fail("read", error)
        return log.damage_error(error)

    def offset_for_timestamp(self, timestamp: int) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record, in offset order, with this timestamp or a later one, in steps.

        The caller bounds the result by the high watermark or the last stable offset.
        """
        log = self._log
        try:
            while True:
                start_offset = log.log_start_offset
                found = yield from timestamps.offset_for_timestamp(log.segments, timestamp, start_offset)
                if found is None or found.offset >= log.log_start_offset:
                    return found
        except (OSError, InvalidRecordError, CompressionError) as error:
            raise self._unreadable(error) from error

    def offset_of_max_timestamp(self) -> Generator[Step, None, TimestampOffset | None]:
        """Find the first record with the largest timestamp of the log, in steps (KIP-734)."""
        try:
            return (yield from timestamps.offset_of_max_timestamp(self._log.segments))
        except (OSError, InvalidRecordError, CompressionError) as error:
            raise self._unreadable(error) from error

    def aborted_transactions(
        self, offset: int, region: FileRegion, *, may_wait: bool = True
    ) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions in the region that `read` returned for `offset`, possibly with later ones.

        There may be as many as batches in the region; each is created when it is accessed. Raises as `read`.
        """
        try:
            return self._aborted_transactions(offset, region, may_wait)
        except OSError as error:
            raise self._unreadable(error) from error

    def _aborted_transactions(
        self, offset: int, region: FileRegion, may_wait: bool
    ) -> Sequence[AbortedTransaction]:
        log = self._log
        index = max(0, bisect_right(log.bases, offset) - 1)
        while log.segments[index].file is not region.file:
            index += 1
            if index == len(log.segments):
                return []
        rest = 0
        for number in range(index, len(log.segments)):
            rest += log.segments[number].transaction_index.count_from(offset)
            if rest > _FEW_TRANSACTIONS:
                break
        if not rest:
            return []
        # Returning a few later ones costs less than finding the offset at which the region ends.
        upper = log.log_end_offset
        if rest > _FEW_TRANSACTIONS:
            end = region.position + region.size_bytes
            above = log.segments[index].offset_above_position(end, may_wait=may_wait)
            if above is not None:
                upper = above
            elif index + 1 < len(log.bases):
                upper = log.bases[index + 1]
        found = FoundTransactions()
        for number in range(index, len(log.segments)):
            if log.segments[number].transaction_index.find(offset, upper, found):
                break
        return found
