"""File system in memory, for tests and simulation.

It simulates crashes, which lose unsynced changes and tear the last write, and failures of single operations.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from odradek.log.storage.file_lock import LockedError
from odradek.log.storage.filesystem import File, FileLock, Piece


class SimulatedCrash(BaseException):
    """A simulated crash of the machine. A BaseException, so that the handlers in the log do not catch it."""


class _Content:
    """Bytes of a file. Zeros at the end, as in a preallocated index, use no memory."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes = b"", size: int = 0) -> None:
        self.data = bytearray(data)
        self.size = size

    def copy(self) -> "_Content":
        return _Content(bytes(self.data), self.size)

    def read(self, position: int, size_bytes: int) -> bytes:
        end = min(position + size_bytes, self.size)
        return bytes(self.data[position:end]).ljust(max(0, end - position), b"\0")

    def write(self, position: int, data: bytes) -> None:
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self.size = max(self.size, len(self.data))

    def truncate(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.size = size_bytes


class MemoryNode:
    """A file in memory: its current content, its durable content, and the changes between them."""

    __slots__ = ("changes", "content", "durable", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.content = _Content()
        self.durable = _Content()
        self.changes: list[tuple[int, bytes | None]] = []
        self.modified_ms = modified_ms

    def write(self, position: int, data: bytes) -> None:
        self.content.write(position, data)
        self.changes.append((position, data))

    def truncate(self, size_bytes: int) -> None:
        self.content.truncate(size_bytes)
        self.changes.append((size_bytes, None))

    def sync(self) -> None:
        for position, data in self.changes:
            _apply(self.durable, position, data)
        self.changes.clear()

    def crash(self, random: Random | None) -> None:
        """Restore the durable content, with the part of the unsynced changes that `random` selects."""
        survived = self.durable
        if random is not None and self.changes:
            count = random.randint(0, len(self.changes))
            for position, data in self.changes[:count]:
                _apply(survived, position, data)
            for position, data in self.changes[count:]:
                # The page cache writes back in any order: a later write may reach the disk without this one.
                if data and random.random() < 0.3:
                    survived.write(position, data[: random.randint(1, len(data))])
        self.content = survived.copy()
        self.changes = []


def _apply(content: _Content, position: int, data: bytes | None) -> None:
    """Apply a change: write `data` at `position`, or truncate to `position` if `data` is None."""
    if data is None:
        content.truncate(position)
    else:
        content.write(position, data)


class _Names:
    """Files by path, and by directory, so that one is listed without the others; both in the order of insertion."""

    __slots__ = ("_by_directory", "by_path")

    def __init__(self) -> None:
        self.by_path: dict[str, MemoryNode] = {}
        self._by_directory: dict[str, dict[str, MemoryNode]] = {}

    def copy(self) -> "_Names":
        copied = _Names()
        for path, node in self.by_path.items():
            copied.put(path, node)
        return copied

    def put(self, path: str, node: MemoryNode) -> None:
        self.by_path[path] = node
        self._by_directory.setdefault(path.rpartition("/")[0], {})[path] = node

    def pop(self, path: str) -> MemoryNode:
        directory = path.rpartition("/")[0]
        files = self._by_directory[directory]
        del files[path]
        if not files:
            del self._by_directory[directory]
        return self.by_path.pop(path)

    def in_directory(self, directory: str) -> Mapping[str, MemoryNode]:
        return self._by_directory.get(directory, {})

    def below(self, directory: str) -> list[str]:
        """Return the paths in a directory and in those below it."""
        prefix = directory + "/"
        directories = [each for each in self._by_directory if each == directory or each.startswith(prefix)]
        if len(directories) < 2:  # the usual case
            return [path for each in directories for path in self._by_directory[each]]
        return [path for path in self.by_path if path.startswith(prefix)]


class MemoryFile:
    """A file of a MemoryFileSystem."""

    __slots__ = ("_fs", "_node", "path")
    fd = -1

    def __init__(self, fs: "MemoryFileSystem", path: str, node: MemoryNode) -> None:
        self._fs = fs
        self._node = node
        self.path = path

    def pread(self, position: int, size_bytes: int) -> bytes:
        return self._node.content.read(position, size_bytes)

    def pread_cached(self, position: int, size_bytes: int) -> bytes:
        return self.pread(position, size_bytes)

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.pread(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_cached(self, position: int, size_bytes: int) -> bytes | None:
        data = self.pread(position, size_bytes)
        return data if len(data) == size_bytes else None

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return True

    def load(self, position: int, size_bytes: int) -> None:
        self.pread(position, size_bytes)

    def drop_cached(self, position: int, size_bytes: int) -> None:
        pass

    def write_pieces(self, position: int, pieces: Sequence[Piece], size_bytes: int) -> None:
        data = b"".join(pieces)
        assert len(data) == size_bytes, "the caller's total is wrong"
        self._fs.before("write", self.path, lambda: self._node.write(position, data[: len(data) // 2]))
        self._node.write(position, data)
        self._node.modified_ms = self._fs.now_ms

    def size_bytes(self) -> int:
        return self._node.content.size

    def data_from(self, position: int) -> int:
        return position if position < len(self._node.content.data) else self._node.content.size

    def truncate(self, size_bytes: int) -> None:
        self._fs.before("truncate", self.path)
        self._node.truncate(size_bytes)
        self._node.modified_ms = self._fs.now_ms

    def sync(self) -> None:
        self._fs.before("sync", self.path)
        self._node.sync()

    def close(self) -> None:
        pass


class MemoryLock:
    def __init__(self, fs: "MemoryFileSystem", held: set[str], path: str) -> None:
        if path in held:
            raise LockedError(path)
        held.add(path)
        self._fs, self._held, self._path = fs, held, path

    def sync_file_system(self) -> bool:
        try:
            self._fs.sync_below(self._path.rpartition("/")[0])
        except OSError:
            return False
        return True

    def release(self) -> None:
        self._held.discard(self._path)


class _Fault(NamedTuple):
    operation: str
    at: int
    error: int
    path_contains: str


class MemoryFileSystem:
    """Files in memory, with simulated crashes, torn writes and failures.

    Operations that change something are counted in `operations` (all) and by name: write, truncate, sync, create,
    rename, remove, sync_directory.

    - `fail("write", after=3, error=errno.ENOSPC)`: the third write from now writes half and raises OSError.
    - `fail_at(n, error=errno.EIO)`: the n-th change from now, of any kind.
    - `is_full`: while it is set, nothing can be created, and a write writes half and raises ENOSPC.
    - `mounts`: directories where another file system begins.
    - `lost`: directories whose disk has failed: every access to a file or directory below one of them raises EIO.
    - `spare`: files that may still be opened and kept; below 0 every operation that needs a descriptor raises EMFILE.
    - `crash_at(n)`: the n-th change from now is half done (a write) or not done, and raises SimulatedCrash.
    - `crash()`: lose unsynced changes, and any lock held; with a Random, a random part of them survives, torn.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.operations = 0
        self._nodes = _Names()
        self._durable_names = _Names()
        self._directories: dict[str, set[str]] = {"/": set()}
        """Path -> names of the directories in it."""
        self._held: set[str] = set()
        self._faults: list[_Fault] = []
        self._counts: dict[str, int] = {}
        self._crash_at: int | None = None
        self._fail_at: tuple[int, int] | None = None
        self.is_full = False
        self.spare = 1 << 20
        self.mounts: set[str] = set()
        self.lost: set[str] = set()
        # Renames of directories that no sync of their parent directory has followed: (old, new) paths.
        self._unsynced_renames: list[tuple[str, str]] = []

    def fail_at(self, changes_from_now: int, *, error: int = errno.EIO) -> None:
        self._fail_at = (self.operations + changes_from_now, error)

    def fail(self, operation: str, *, after: int = 1, error: int = errno.EIO, path_contains: str = "") -> None:
        """Make the `after`-th `operation` from now on, for paths that contain `path_contains`, fail once."""
        count = self._counts.get(operation + path_contains, 0)
        self._faults.append(_Fault(operation, count + after, error, path_contains))

    def heal(self) -> None:
        """Cancel all scheduled faults."""
        self._faults.clear()
        self._fail_at = None
        self.is_full = False
        self.spare = 1 << 20

    def crash_at(self, changes_from_now: int) -> None:
        self._crash_at = self.operations + changes_from_now

    def crash(self, random: Random | None = None, *, lose_names: bool = False) -> None:
        """Crash and restart the machine.

        Names survive, as in a journaling file system, unless `lose_names`: then each directory has the names of its
        last sync. The removal of a directory is durable at once.
        """
        self._crash_at = None
        self.heal()
        self._held.clear()
        if lose_names:
            self._undo_renames()
            self._nodes = self._durable_names
        self._unsynced_renames.clear()
        for node in {id(node): node for node in self._nodes.by_path.values()}.values():
            node.crash(random)
        self._durable_names = self._nodes.copy()

    def replace_disk(self) -> None:
        """Lose everything, as if the disk was replaced by an empty one."""
        self._nodes, self._durable_names = _Names(), _Names()
        self._directories = {"/": set()}
        self._unsynced_renames.clear()
        self._held.clear()
        self.heal()

    def _undo_renames(self) -> None:
        for old, new in reversed(self._unsynced_renames):
            if new in self._directories and old not in self._directories:
                self._move_directory(new, old)

    def before(self, operation: str, path: str, half_done: Callable[[], None] | None = None) -> None:
        """Count a change, and fail or crash if a scheduled fault applies to it."""
        self._check_disk(path)
        self.operations += 1
        if self._crash_at is not None and self.operations >= self._crash_at:
            if half_done is not None:
                half_done()
            raise SimulatedCrash(f"{operation} {path}")
        if self._fail_at is not None and self.operations == self._fail_at[0]:
            self._raise(self._fail_at[1], path, half_done)
        if self.is_full and operation in ("write", "create"):
            self._raise(errno.ENOSPC, path, half_done)
        self._counts[operation] = self._counts.get(operation, 0) + 1
        for fault in self._faults:
            if fault.operation != operation or fault.path_contains not in path:
                continue
            key = operation + fault.path_contains
            if fault.path_contains:
                self._counts[key] = self._counts.get(key, 0) + 1
            if self._counts[key] == fault.at:
                self._faults.remove(fault)
                self._raise(fault.error, path, half_done)

    def _raise(self, error: int, path: str, half_done: Callable[[], None] | None) -> None:
        if half_done is not None:
            half_done()
        raise OSError(error, os.strerror(error), path)

    def spare_descriptors(self) -> int:
        return self.spare

    def _check_disk(self, path: str) -> None:
        if any(path == lost or path.startswith(f"{lost}/") for lost in self.lost):
            self._raise(errno.EIO, path, None)

    def _take_descriptor(self, path: str) -> None:
        self._check_disk(path)
        if self.spare < 0:
            self._raise(errno.EMFILE, path, None)

    def open(self, path: str, *, create: bool = False) -> File:
        self._take_descriptor(path)
        node = self._nodes.by_path.get(path)
        if node is None:
            if not create or path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.before("create", path)
            node = MemoryNode(self.now_ms)
            self._nodes.put(path, node)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        return path in self._nodes.by_path or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def device(self, path: str) -> int:
        return max((len(mount) for mount in self.mounts if f"{path}/".startswith(f"{mount}/")), default=0)

    def list_names(self, directory: str) -> list[str]:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self._take_descriptor(directory)
        files = self._nodes.in_directory(directory.rstrip("/"))
        return sorted({*self._directories[directory], *(path.rpartition("/")[2] for path in files)})

    def make_directory(self, path: str) -> None:
        made = set[str]()
        while path and path not in self._directories:
            self._directories[path] = made
            path, _, name = path.rpartition("/")
            made = {name}
        self._directories[path or "/"] |= made

    def rename(self, old: str, new: str) -> None:
        if old in self._directories:
            self.before("rename", old)
            self._move_directory(old, new)
            self._unsynced_renames.append((old, new))
            return
        if old not in self._nodes.by_path:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.before("rename", old)
        self._nodes.put(new, self._nodes.pop(old))

    def _move_directory(self, old: str, new: str) -> None:
        for names in (self._nodes, self._durable_names):
            for path in names.below(old):
                names.put(new + path[len(old) :], names.pop(path))
        moved = self._remove_directories(old)
        self.make_directory(new)
        for path, inner in moved.items():
            self._directories.setdefault(new + path[len(old) :], set()).update(inner)

    def _remove_directories(self, top: str) -> dict[str, set[str]]:
        """Remove a directory and those below it. Return them, by path, with the names of the directories in each."""
        parent, _, name = top.rpartition("/")
        self._directories[parent or "/"].discard(name)
        removed = {top: self._directories.pop(top)}
        waiting = [f"{top}/{inner}" for inner in removed[top]]
        while waiting:
            path = waiting.pop()
            removed[path] = self._directories.pop(path)
            waiting += [f"{path}/{inner}" for inner in removed[path]]
        return removed

    def remove(self, path: str) -> None:
        if path not in self._nodes.by_path:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.before("remove", path)
        self._nodes.pop(path)

    def remove_tree(self, directory: str) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self._take_descriptor(directory)
        self.before("remove", directory)
        for names in (self._nodes, self._durable_names):
            for path in names.below(directory):
                names.pop(path)
        self._remove_directories(directory)

    def size_bytes(self, path: str) -> int:
        return self._node(path).content.size

    def modified_ms(self, path: str) -> int:
        return self._node(path).modified_ms

    def set_modified_ms(self, path: str, timestamp_ms: int) -> None:
        self._node(path).modified_ms = timestamp_ms

    def read_bytes(self, path: str) -> bytes:
        content = self._node(path).content
        self._take_descriptor(path)
        return content.read(0, content.size)

    def space_bytes(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def sync_path(self, path: str) -> None:
        node = self._nodes.by_path.get(path)
        if node is not None:
            self._take_descriptor(path)
            self.before("sync", path)
            node.sync()

    def sync_directory(self, path: str) -> None:
        self._take_descriptor(path)
        self.before("sync_directory", path)
        self._unsynced_renames = [pair for pair in self._unsynced_renames if pair[1].rpartition("/")[0] != path]
        names, current = self._durable_names, self._nodes.in_directory(path)
        for name in [name for name in names.in_directory(path) if name not in current]:
            names.pop(name)
        for name, node in current.items():
            if names.by_path.get(name) is not node:
                names.put(name, node)

    def lock(self, path: str) -> FileLock:
        self.open(path, create=True)
        return MemoryLock(self, self._held, path)

    def sync_below(self, directory: str) -> None:
        """Sync all files and names in a directory and in those below it: one operation, a "sync"."""
        self.before("sync", directory)
        self._unsynced_renames = [pair for pair in self._unsynced_renames if not pair[1].startswith(f"{directory}/")]
        names, current = self._durable_names, self._nodes.by_path
        device = self.device(directory)
        for path in [path for path in names.below(directory) if path not in current]:
            names.pop(path)
        for path in self._nodes.below(directory):
            if self.device(path) == device:
                current[path].sync()
                names.put(path, current[path])

    def _node(self, path: str) -> MemoryNode:
        try:
            return self._nodes.by_path[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None
