"""The age of segments, by which retention deletes them.

A segment is as old as its newest record, or as the last change of its file if no record has a timestamp. Batches that
this process appended as leader state the largest timestamp of their records. Batches that were found on the disk or
copied from a leader may state another: one in 1970 would have retention delete records that were written a moment ago,
one in a distant future would keep the log for ever. So where the stated timestamp and the file's modification time
disagree about an unverified segment, its records are read, in a thread, before it may be deleted.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING

from odradek.log.background.pacing import Pause
from odradek.log.background.tasks import RunInThread
from odradek.log.segments.segment import Segment
from odradek.log.segments.timestamps import BatchSearch
from odradek.protocol.compression import CompressionError
from odradek.protocol.record_batch import NO_TIMESTAMP, InvalidRecordError
from odradek.protocol.streaming import Step, run_steps

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def is_older(segment: Segment, bound_ms: int) -> bool:
    """Return whether the newest record is certainly from before `bound_ms`. Raises OSError."""
    newest_ms = segment.verified_timestamp_ms
    if newest_ms is not None:
        return newest_ms < bound_ms
    return segment.largest_timestamp_ms < bound_ms and segment.modified_ms < bound_ms


def is_doubtful(segment: Segment, bound_ms: int) -> bool:
    """Return whether only the records can tell if the segment is older than `bound_ms`. Raises OSError."""
    if segment.verified_timestamp_ms is not None:
        return False
    return (segment.largest_timestamp_ms < bound_ms) is not (segment.modified_ms < bound_ms)


def read_largest_timestamp(segment: Segment, size_bytes: int) -> Generator[Step, None, int]:
    """Find the largest timestamp of the records in the first `size_bytes` of a segment, in steps. Raises OSError.

    A batch that cannot be read counts with the timestamp that it states.
    """
    largest = NO_TIMESTAMP
    for position, header in segment.headers(0, size_bytes):
        timestamp = header.max_timestamp
        if not header.is_log_append_time:
            with suppress(InvalidRecordError, CompressionError):
                timestamp = yield from BatchSearch(segment, position, header).largest_timestamp()
        largest = max(largest, timestamp)
        yield None
    return largest


class AgeVerifier:
    """Reads doubtful segments, one at a time, in a thread. `retry(log, now_ms)` is called after each."""

    def __init__(
        self,
        run_in_thread: RunInThread,
        retry: Callable[["PartitionLog", int], None],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._run_in_thread = run_in_thread
        self._monotonic = monotonic
        self._sleep = sleep
        self._retry = retry
        self._waiting: dict[Segment, tuple[PartitionLog, int]] = {}
        self._is_reading = False

    def add(self, log: "PartitionLog", segment: Segment, now_ms: int) -> None:
        """Have `segment` read, unless it is waiting for that already."""
        self._waiting.setdefault(segment, (log, now_ms))
        if not self._is_reading:
            self._read_next()

    def _read_next(self) -> None:
        if not self._waiting:
            self._is_reading = False
            return
        self._is_reading = True
        segment, (log, now_ms) = next(iter(self._waiting.items()))
        size_bytes = segment.size_bytes
        found: list[int] = []

        def read() -> None:
            pause = Pause(self._monotonic, self._sleep)
            found.append(run_steps(read_largest_timestamp(segment, size_bytes), pause))

        def finish(error: Exception | None) -> None:
            del self._waiting[segment]
            try:
                if error is not None:
                    # The segment may be gone by now. If not, the next check of retention tries again.
                    logger.warning("segment cannot be read to verify its age segment=%s error=%s", segment, error)
                else:
                    segment.timestamps_read(found[0], size_bytes)
                    # If it has grown since, the next check of retention decides.
                    if segment.size_bytes == size_bytes and segment in log.segments and log.failure is None:
                        self._retry(log, now_ms)
            except Exception:
                logger.exception("retention failed after a segment was read; please report it log=%s", log)
            finally:
                self._read_next()

        self._run_in_thread(read, finish)
