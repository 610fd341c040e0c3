"""Write-behind: what a follower copies long after it was written does not stay in memory.

A follower that was down copies gigabytes, which consumers read long ago. Left to the operating system, they replace in
memory what consumers read now, and wait there for the disk until the system makes each writer wait. A thread begins to
write them early, and removes what is written from memory.
"""

from functools import partial
from typing import Final

from odradek.log.background.tasks import RunInThread
from odradek.log.segments.segment import Segment

PART_BYTES: Final = 8 << 20
"""Bytes of a partition that are appended before a thread begins to write them."""

KEPT_BYTES: Final = 64 << 20
"""About that many bytes at the end of a partition stay in memory: consumers may read them soon."""

_PARTS_AGAIN: Final = 3
"""Parts whose removal is repeated with the next part: the disk may not have written them the first time."""


class WriteBehind:
    """Writes the appended bytes of one partition to the disk, part by part."""

    __slots__ = ("_begin", "_is_running", "_path", "_run_in_thread")

    def __init__(self, run_in_thread: RunInThread) -> None:
        self._run_in_thread = run_in_thread
        # The segment file of the last append. A reference would keep a deleted file on the disk.
        self._path = ""
        # What was appended to the file from this position on is not passed to a thread yet.
        self._begin = 0
        self._is_running = False

    def note_append(self, segment: Segment, appended_bytes: int, missing_bytes: int) -> None:
        """Note an append at the end of a segment, after which the log lacks about `missing_bytes` of the leader's."""
        file, end = segment.file, segment.size_bytes
        if missing_bytes < KEPT_BYTES:
            self._path = ""
            return
        if file.path != self._path or end < self._begin:
            self._path, self._begin = file.path, max(0, end - appended_bytes)
        if end - self._begin < PART_BYTES or self._is_running:
            return
        begin = max(0, self._begin - _PARTS_AGAIN * PART_BYTES)
        self._begin, self._is_running = end, True
        self._run_in_thread(partial(file.drop_cached, begin, end - begin), self._ended)

    def _ended(self, error: Exception | None) -> None:
        """Ignore an error: the file may be deleted, and the next sync reports that the disk fails."""
        self._is_running = False
