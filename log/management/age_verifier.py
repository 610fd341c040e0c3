"""Reading of segments whose age is in doubt (`segment_age`)."""

import logging
from collections.abc import Callable

from odradek.log.background.pacing import Pause
from odradek.log.background.tasks import RunInThread
from odradek.log.partition_log import PartitionLog
from odradek.log.segment_age import read_largest_timestamp
from odradek.log.segments.segment import Segment
from odradek.protocol.batches.streaming import run_steps

logger = logging.getLogger(__name__)


class AgeVerifier:
    """Reads doubtful segments, one at a time, in a thread. `retry(log, now_ms)` is called after each."""

    def __init__(
        self,
        run_in_thread: RunInThread,
        retry: Callable[[PartitionLog, int], None],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._run_in_thread = run_in_thread
        self._monotonic = monotonic
        self._sleep = sleep
        self._retry = retry
        self._waiting: dict[Segment, tuple[PartitionLog, int]] = {}
        self._is_reading = False

    def add(self, log: PartitionLog, segment: Segment, now_ms: int) -> None:
        """Schedule a read of `segment`, unless one is scheduled."""
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
                    # The segment may have been deleted. Otherwise the next check of retention tries again.
                    logger.warning("segment cannot be read to verify its age segment=%s error=%s", segment, error)
                else:
                    segment.set_read_timestamp(found[0], size_bytes)
                    # If it has grown since, the next check of retention decides.
                    if segment.size_bytes == size_bytes and segment in log.segments and log.failure is None:
                        self._retry(log, now_ms)
            except Exception:
                logger.exception("retention failed after a segment was read; please report it log=%s", log)
            finally:
                self._read_next()

        self._run_in_thread(read, finish)
