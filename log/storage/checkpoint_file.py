"""Checkpoint file of offsets in a log directory, written by any thread while its content changes.

A write saves the content that was recorded last, not the content at the time of its request: even if it waits long for
a thread, it cannot restore an entry of a log that was deleted or truncated meanwhile. Kafka's format does not
distinguish two successive topics of the same name, so the creation of a log checks for an entry of the deleted log with
`may_hold` and removes it first.
"""

from threading import Lock

from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import FileSystem

Offsets = dict[tuple[str, int], int]
"""Offsets by topic and partition. After it was passed to a checkpoint, it must not be changed."""


class OffsetCheckpointFile:
    """A checkpoint file: its `recorded` content, which `read` and `record` replace, and its content on the disk.

    `record` and `may_hold` do not block, even during a write.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.recorded: Offsets = {}
        self._written: Offsets | None = None
        # All entries of writes in progress or failed. The file has the content of one of these writes, or `_written`.
        self._uncertain: Offsets | None = None
        self._is_closed = False
        self._state_lock = Lock()
        self._write_lock = Lock()

    def read(self) -> Offsets:
        """Read the entries from the disk. Raises OSError, MalformedFileError."""
        self.recorded = self._written = checkpoints.read_offsets(self._fs, self._path)
        return self._written

    def record(self, offsets: Offsets) -> bool:
        """Set the content to write; return whether a write is necessary."""
        with self._state_lock:
            self.recorded = offsets
            return self._is_outdated()

    def write(self) -> None:
        """Write the recorded content durably. Blocks. After an OSError the next call tries again."""
        with self._write_lock:
            with self._state_lock:
                offsets = self.recorded
                if self._is_closed or not self._is_outdated():
                    return
                self._uncertain = offsets if self._uncertain is None else {**self._uncertain, **offsets}
            checkpoints.write_offsets(self._fs, self._path, offsets)
            with self._state_lock:
                self._written = offsets
                self._uncertain = None

    def may_hold(self, key: tuple[str, int]) -> bool:
        """Return whether the file contains an entry of this partition, or a pending write may add one."""
        with self._state_lock:
            written, uncertain = self._written, self._uncertain
            is_written = (written is not None and key in written) or (uncertain is not None and key in uncertain)
            return is_written or key in self.recorded

    def close(self) -> None:
        """Make later writes do nothing: another broker may use the directory. Waits for a write in progress."""
        with self._write_lock:
            self._is_closed = True

    def _is_outdated(self) -> bool:
        return self._uncertain is not None or self._written != self.recorded
