"""One checkpoint of offsets in a log directory, written by any thread while its content goes on changing.

A write saves the content that was recorded last, not the one it was made for: however long it waits for a thread, it
cannot bring back an entry of a log that was deleted or truncated meanwhile. So that a new log never finds an entry of
its predecessor, its creation looks for one with `may_hold` and has it removed first. The file itself has Kafka's
format, which does not distinguish two topics of the same name.
"""

from threading import Lock

from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import FileSystem

Offsets = dict[tuple[str, int], int]
"""Offsets by topic and partition; replaced, never changed, once it was passed to a checkpoint."""


class OffsetCheckpointFile:
    """A checkpoint file: the content recorded for it, and what is on the disk.

    `record` and `may_hold` return at once, also during a write.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._recorded: Offsets = {}
        self._written: Offsets | None = None
        # The entries of writes under way or failed: on the disk is one of these contents, or the one written before.
        self._uncertain: Offsets | None = None
        self._is_closed = False
        self._state_lock = Lock()
        self._write_lock = Lock()

    def read(self) -> Offsets:
        """The entries on the disk. Raises OSError, MalformedFileError."""
        self._recorded = self._written = checkpoints.read_offsets(self._fs, self._path)
        return self._written

    def record(self, offsets: Offsets) -> bool:
        """Set the content that the file is to have; return whether it needs a write."""
        with self._state_lock:
            self._recorded = offsets
            return self._is_outdated()

    def recorded(self, key: tuple[str, int]) -> int | None:
        """Return the entry of a partition in the content that the file is to have."""
        return self._recorded.get(key)

    def write(self) -> None:
        """Make the file hold the recorded content, durably. Blocks; after an OSError the next call tries again."""
        with self._write_lock:
            with self._state_lock:
                offsets = self._recorded
                if self._is_closed or not self._is_outdated():
                    return
                self._uncertain = offsets if self._uncertain is None else {**self._uncertain, **offsets}
            checkpoints.write_offsets(self._fs, self._path, offsets)
            with self._state_lock:
                self._written = offsets
                self._uncertain = None

    def may_hold(self, key: tuple[str, int]) -> bool:
        """Return whether this partition has an entry on the disk, or might get one by a pending write."""
        with self._state_lock:
            contents = (self._recorded, self._written, self._uncertain)
            return any(offsets is not None and key in offsets for offsets in contents)

    def close(self) -> None:
        """Have writes that still wait do nothing, since the directory may be another broker's by then."""
        with self._write_lock:
            self._is_closed = True

    def _is_outdated(self) -> bool:
        return self._uncertain is not None or self._written != self._recorded
