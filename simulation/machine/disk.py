"""The disk of a simulated machine: an in-memory file system with the failures of real disks.

`MemoryFileSystem` implements the effects of process crashes and power losses. This module adds a full disk, a directory
that fails permanently, a sync that fails and drops the data it should have written, and the end of all writes after the
process has died.
"""

import errno
import os
from collections.abc import Callable, Sequence
from random import Random

from odradek.log.storage.filesystem import ColdReadError, File, Piece
from odradek.log.storage.memory_filesystem import MemoryFile, MemoryFileSystem, MemoryNode, SimulatedCrash

EPOCH_MS = 1_800_000_000_000
"""Wall-clock time at the start of the simulation."""


class SimulatedFile(MemoryFile):
    """A file on a SimulatedDisk. Sometimes it is on the disk only, until a thread has loaded a part of it."""

    __slots__ = ("_is_cold",)
    _fs: "SimulatedDisk"

    def __init__(self, fs: "SimulatedDisk", path: str, node: MemoryNode) -> None:
        super().__init__(fs, path, node)
        self._is_cold = False

    def pread(self, position: int, size_bytes: int) -> bytes:
        self._fs.before_read(self.path)
        return self._node.content.read(position, size_bytes)

    def pread_cached(self, position: int, size_bytes: int) -> bytes:
        if not self.is_cached(position, size_bytes):
            raise ColdReadError(self, position, size_bytes)
        return self.pread(position, size_bytes)

    def read_cached(self, position: int, size_bytes: int) -> bytes | None:
        return super().read_cached(position, size_bytes) if self.is_cached(position, size_bytes) else None

    def is_cached(self, position: int, size_bytes: int) -> bool:
        # Reads of a small region are tried twice before they are left to a thread.
        self._is_cold = self._is_cold or self._fs.evicts()
        return not self._is_cold

    def load(self, position: int, size_bytes: int) -> None:
        self._is_cold = False
        super().load(position, size_bytes)

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
    """The log directories of a machine.

    is_down: nothing can be read or written, because the process is dead
    is_full: operations that extend a file raise ENOSPC
    takes_no_files: operations that create a file raise ENOSPC, as without free inodes
    broken: directories in which every operation raises EIO
    has_refused: true if an operation has failed since the process started
    """

    def __init__(self, wall_clock_ms: Callable[[], int], random: Random, on_crash: Callable[[], None]) -> None:
        super().__init__()
        self.is_down = False
        self.is_full = False
        self.takes_no_files = False
        self.broken: dict[str, None] = {}
        self.has_refused = False
        self.written_bytes = 0
        self._reads = 0
        self._unsynced: list[MemoryNode] = []
        self._wall_clock_ms = wall_clock_ms
        self._random = random
        self._on_crash = on_crash

    @property
    def now_ms(self) -> int:
        """The wall clock, in ms since 1970."""
        return self._wall_clock_ms()

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        pass

    def repair(self) -> None:
        """Clear all failures."""
        self.is_full = self.takes_no_files = False
        self.broken.clear()
        self.heal()
        self._crash_at = None

    def cancel_crash(self) -> None:
        """Cancel the crash that `crash_at` has scheduled."""
        self._crash_at = None

    def come_down(self, *, is_power_loss: bool, lose_names: bool = False) -> None:
        """End the process, or the power; a power loss drops unsynced data."""
        self.is_down = True
        if is_power_loss:
            self.crash(self._random, lose_names=lose_names)
        self._crash_at = None
        self._held.clear()

    def come_up(self) -> None:
        """Called at the start of a process."""
        self.is_down = False
        self.has_refused = False

    def evicts(self) -> bool:
        """Return whether a read that must not wait finds that the file is not in memory any more: one of five."""
        self._reads = (self._reads + 1) % 5
        return self._reads == 0

    def is_writable(self, directory: str) -> bool:
        """Return the result of access(2). False counts as a failed operation."""
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
            self.sync_failed(self._nodes.by_path[path])
            raise

    def sync_failed(self, node: MemoryNode) -> None:
        """Mark the data as written, as Linux does: it can be read until it leaves the page cache."""
        node.changes.clear()
        if node not in self._unsynced:
            self._unsynced.append(node)

    def forget_unsynced(self) -> bool:
        """Drop the page cache: files whose sync failed are read from the disk. Return whether there were any."""
        forgotten, self._unsynced = self._unsynced, []
        for node in forgotten:
            node.crash(None)
        return bool(forgotten)

    @property
    def may_lose_data(self) -> bool:
        """True if data whose sync failed, or will fail, is lost when the process ends."""
        return bool(self.broken or self._unsynced)

    def before_read(self, path: str) -> None:
        """Raise the failure of a read, if any."""
        if self.is_down:
            raise SimulatedCrash(f"read {path}")
        if self.broken:
            self._check_broken(path)

    def note_write(self, path: str, position: int, size_bytes: int) -> None:
        """Called after a write."""
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
