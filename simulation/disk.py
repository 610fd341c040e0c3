"""The disk of a simulated machine: files in memory that lose, tear and refuse what real ones do.

What a crash of the process keeps and a loss of power takes is `MemoryFileSystem`'s business. Added here: a disk that
is full, a directory that fails for good, a sync that fails and forgets what it should have written, and silence after
the process has died, so that nothing of it reaches the disk any more.
"""

import errno
import os
from collections.abc import Callable, Sequence
from random import Random

from odradek.log.storage.filesystem import File, Piece
from odradek.log.storage.memory_filesystem import MemoryFile, MemoryFileSystem, MemoryNode, SimulatedCrash

EPOCH_MS = 1_800_000_000_000
"""The time when the world begins."""


class SimulatedFile(MemoryFile):
    """A file of a SimulatedDisk."""

    __slots__ = ()
    _fs: "SimulatedDisk"

    def pread(self, position: int, size_bytes: int) -> bytes:
        self._fs.before_read(self.path)
        return self._node.content.read(position, size_bytes)

    def write_pieces(self, position: int, pieces: Sequence[Piece], size_bytes: int) -> None:
        super().write_pieces(position, pieces, size_bytes)
        self._fs.note_write(self.path, position, size_bytes)

    def sync(self) -> None:
        try:
            super().sync()
        except OSError:
            self._fs.sync_failed(self._node)
            raise


class SimulatedDisk(MemoryFileSystem):
    """All log directories of a machine.

    is_down: nothing can be read or written, since the process that tries to is dead
    is_full: what would make a file larger gets ENOSPC
    takes_no_files: what would make a new file gets ENOSPC, as when no inode is left
    broken: directories in which every operation gets EIO
    has_refused: whether an operation failed since a process began to use it
    """

    def __init__(self, wall_clock_ms: Callable[[], int], random: Random, on_crash: Callable[[], None]) -> None:
        super().__init__()
        self.is_down = False
        self.is_full = False
        self.takes_no_files = False
        self.broken: dict[str, None] = {}
        self.has_refused = False
        self.written_bytes = 0
        self._unsynced: list[MemoryNode] = []
        self._wall_clock_ms = wall_clock_ms
        self._random = random
        self._on_crash = on_crash

    @property
    def now_ms(self) -> int:
        """The wall clock."""
        return self._wall_clock_ms()

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        pass

    def repair(self) -> None:
        """From now on everything works."""
        self.is_full = self.takes_no_files = False
        self.broken.clear()
        self.heal()
        self._crash_at = None

    def come_down(self, *, is_power_loss: bool, lose_names: bool = False) -> None:
        """The process is dead, or the power gone, which takes what was not synced."""
        self.is_down = True
        if is_power_loss:
            self.crash(self._random, lose_names=lose_names)
        self._crash_at = None
        self._held.clear()

    def come_up(self) -> None:
        """A process begins to use it."""
        self.is_down = False
        self.has_refused = False

    def is_writable(self, directory: str) -> bool:
        """access(2); a no is a failed operation."""
        is_broken = directory in self.broken
        self.has_refused |= is_broken
        return not is_broken

    def open(self, path: str, *, create: bool = False) -> File:
        self.before_read(path)
        file = super().open(path, create=create)
        assert isinstance(file, MemoryFile)
        return SimulatedFile(self, path, file._node)

    def list_names(self, directory: str) -> list[str]:
        self.before_read(directory)
        return super().list_names(directory)

    def read_bytes(self, path: str) -> bytes:
        self.before_read(path)
        return super().read_bytes(path)

    def sync_path(self, path: str) -> None:
        try:
            super().sync_path(path)
        except OSError:
            self.sync_failed(self._nodes[path])
            raise

    def sync_failed(self, node: MemoryNode) -> None:
        """As Linux has it: what was to be written counts as written, and is there for as long as it is in memory."""
        node.changes.clear()
        if node not in self._unsynced:
            self._unsynced.append(node)

    def forget_unsynced(self) -> bool:
        """Memory is needed for something else: files whose sync has failed read as they are on the disk. Any?"""
        forgotten, self._unsynced = self._unsynced, []
        for node in forgotten:
            node.crash(None)
        return bool(forgotten)

    def before_read(self, path: str) -> None:
        """Raises what a read of a file gets."""
        if self.is_down:
            raise SimulatedCrash(f"read {path}")
        if self.broken:
            self._check_broken(path)

    def note_write(self, path: str, position: int, size_bytes: int) -> None:
        """Something was written."""
        self.written_bytes += size_bytes

    def before(self, operation: str, path: str, half_done: Callable[[], None] | None = None) -> None:
        if self.is_down:
            raise SimulatedCrash(f"{operation} {path}")
        if self.broken:
            self._check_broken(path)
        if (self.is_full and operation == "write") or ((self.is_full or self.takes_no_files) and operation == "create"):
            self.has_refused = True
            if half_done is not None:
                half_done()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        try:
            super().before(operation, path, half_done)
        except SimulatedCrash:
            self.is_down = True
            self._on_crash()
            raise
        except OSError:
            self.has_refused = True
            raise

    def _check_broken(self, path: str) -> None:
        for directory in self.broken:
            if path == directory or path.startswith(directory + "/"):
                self.has_refused = True
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
