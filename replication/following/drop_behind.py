"""Drop-behind: what a follower copies long after it was written does not stay in the page cache.

A follower that was down copies gigabytes, which consumers read long ago. Left to the operating system, they replace in
memory what consumers read now, and wait there for the disk until the system makes each writer wait. Threads begin to
write them early, and remove what is written from memory.
"""

import logging
from typing import Final

from odradek.log.background.tasks import RunInThread
from odradek.log.segments.segment import Segment
from odradek.log.storage.filesystem import File

logger = logging.getLogger(__name__)

PART_BYTES: Final = 8 << 20
"""Bytes that are appended to a segment before they are passed to a thread."""

KEPT_BYTES: Final = 64 << 20
"""Nothing is removed while, by estimate, the partition lacks fewer bytes: consumers may soon read what it has."""

_PARTS_AGAIN: Final = 3
"""Parts whose removal the next call repeats, or all that the last one began: the disk may not have written them."""

_ALIGNMENT_BYTES: Final = 65_536
"""The last page is not removed: the next append would read it from the disk. A multiple of all sizes of pages."""

_Part = tuple[File, int, int]
"""File, position, size in bytes."""


class DropBehind:
    """Removes from the page cache what one partition appends while its log lacks much of the leader's."""

    __slots__ = (
        "_again", "_appended_bytes", "_appended_offsets", "_begin", "_end", "_file", "_is_running", "_is_stopped",
        "_parts", "_run_in_thread",
    )  # fmt: skip

    def __init__(self, run_in_thread: RunInThread) -> None:
        self._run_in_thread = run_in_thread
        # The segment file of the last append. Its bytes between these positions are not in a part yet.
        self._file: File | None = None
        self._begin = self._end = 0
        # What was appended since the log lacked as much.
        self._appended_bytes = self._appended_offsets = 0
        # For the next call in a thread, and those of the last one that it repeats.
        self._parts: list[_Part] = []
        self._again: list[_Part] = []
        self._is_running = False
        self._is_stopped = False

    def stop(self) -> None:
        """Remove nothing more: the partition is not followed any more, or the broker stops."""
        self._is_stopped = True
        self.forget()

    def note_append(self, segment: Segment, appended_bytes: int, appended_offsets: int, missing_offsets: int) -> None:
        """Note an append at the end of a segment, and how many offsets the log lacks after it."""
        self._appended_bytes += appended_bytes
        self._appended_offsets += max(1, appended_offsets)
        if missing_offsets * self._appended_bytes // self._appended_offsets < KEPT_BYTES:
            self.forget()
            return
        file, end = segment.file, segment.size_bytes
        if file is not self._file:
            self._complete_part()
            self._file, self._begin = file, end
        # The log may have been truncated.
        self._begin = min(self._begin, max(0, end - appended_bytes))
        self._end = end
        if end - self._begin >= PART_BYTES:
            self._complete_part()

    def forget(self) -> None:
        """Keep what is not removed yet: the log lacks little, or nothing."""
        self._file = None
        self._appended_bytes = self._appended_offsets = 0
        self._parts, self._again = [], []

    def _complete_part(self) -> None:
        end = self._end - self._end % _ALIGNMENT_BYTES
        if self._file is not None and self._begin < end:
            self._parts.append((self._file, self._begin, end - self._begin))
            self._begin = end
            self._start()

    def _start(self) -> None:
        """Pass the parts to a thread, unless one has not ended yet."""
        if self._parts and not self._is_running:
            again = max(_PARTS_AGAIN, len(self._parts))
            parts, self._parts = [*self._again, *self._parts], []
            self._again = parts[-again:]
            self._is_running = True
            self._run_in_thread(lambda: self._drop(parts), self._ended)

    def _drop(self, parts: list[_Part]) -> None:
        for file, position, size_bytes in parts:
            # A stop of the broker waits for threads.
            if self._is_stopped:
                return
            file.drop_cached(position, size_bytes)

    def _ended(self, error: Exception | None) -> None:
        self._is_running = False
        # The file may be deleted. The next sync reports that the disk fails.
        if error is not None and not isinstance(error, OSError):
            logger.error("removal from the page cache failed; please report it", exc_info=error)
        self._start()
