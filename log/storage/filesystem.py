"""The disk as the log sees it: the only module that opens files.

`OsFileSystem` is the real one. `MemoryFileSystem` is its twin for tests and simulation: it forgets what was not
synced when it crashes, tears the last write, and fails on command. Everything above is given its `FileSystem`.

Who closes a log file: nobody by hand. A region of a file may still be on its way to a slow consumer (sendfile) when
its segment is deleted, and a descriptor number that was closed and given out again would send another file's bytes. So
a file closes when its last reference goes; `close()` is for files that were never handed out.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple, Protocol

from odradek.log.storage import descriptors
from odradek.log.storage.file_lock import LockedError, OsLock
from odradek.protocol.errors import ErrorCode, KafkaError

Piece = bytes | bytearray | memoryview
TEMPORARY_SUFFIX = ".tmp"
_ZERO_CHECK_BYTES = 1 << 20


class LogDirFailure(KafkaError):  # noqa: N818 - a state of the directory, not of one call
    """An I/O error in a log directory: nothing in it can be trusted to take writes any more.

    `directory` is the log directory (an entry of log.dirs), which the caller takes offline. The operating system's
    error is the `__cause__`.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.directory = directory


class ShortageError(KafkaError):
    """A resource that an operation in a log directory needs is short. Nothing of it is left; it can be tried again.

    The operation is refused and everything else goes on: clients, to whom KAFKA_STORAGE_ERROR is one to try again
    after, lose nothing but time. The disk is sound, so the directory stays online.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.directory = directory


class DiskFullError(ShortageError):
    """There is no room for a write in a log directory.

    Apache Kafka takes such a directory offline until it is restarted. A sync that finds no room is another matter: what
    it was to write may be lost, so that is a LogDirFailure.
    """


class ExhaustedError(ShortageError):
    """The process or the machine has no file descriptor, or no memory, left for an operation in a log directory."""


_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_disk_full(error: BaseException) -> bool:
    """Whether it says that there is no room, on the disk or within the user's quota."""
    if isinstance(error, DiskFullError):
        return True
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_exhausted(error: BaseException) -> bool:
    """Return whether it reports that descriptors or memory ran out: nothing about the disk."""
    return isinstance(error, ExhaustedError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED)


def is_shortage(error: BaseException) -> bool:
    """Return whether an operation failed for a resource that is short, and can be tried again."""
    return is_disk_full(error) or is_exhausted(error)


def storage_error(directory: str, message: str, error: OSError) -> ShortageError | LogDirFailure:
    """The error to raise for an operation in a log directory that failed with `error`."""
    if is_disk_full(error):
        return DiskFullError(directory, message)
    return ExhaustedError(directory, message) if is_exhausted(error) else LogDirFailure(directory, message)


class File(Protocol):
    """An open file, read and written at explicit positions."""

    path: str

    @property
    def fd(self) -> int:
        """The descriptor, for sendfile; -1 if there is none."""
        ...

    def pread(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` bytes from `position`; fewer only at the end of the file."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer from `position` on; how many bytes there were, fewer only at the end of the file."""
        ...

    def write_pieces(self, position: int, pieces: Sequence[Piece], size_bytes: int) -> None:
        """Write all pieces one after the other; `size_bytes` is their total. On OSError a part may be written."""
        ...

    def size_bytes(self) -> int: ...

    def data_from(self, position: int) -> int:
        """The first position from `position` on that may hold other bytes than zeros; the file's size if none does."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros that take no room on the disk."""
        ...

    def sync(self) -> None:
        """Return when what was written is on the disk. Safe to call from another thread."""
        ...

    def close(self) -> None: ...


class FileRegion(NamedTuple):
    """A piece of a log file: what a read returns instead of bytes, so that it can be sent without a copy."""

    file: File
    position: int
    size_bytes: int

    def read(self) -> bytes:
        """The bytes themselves (the copying path: TLS, tests)."""
        return self.file.pread(self.position, self.size_bytes)


class FileLock(Protocol):
    def release(self) -> None: ...

    def sync_file_system(self) -> bool:
        """Make everything durable that was written below the lock's directory, at once; return whether that is done.

        What lies in another file system (`FileSystem.device`) is left out.

        False where the system cannot do it, or has failed to write anything since the lock was taken: then each file
        has to be synced by itself, which tells the files that are concerned. Blocks; for any thread.
        """
        ...


class FileSystem(Protocol):
    """Names and files. Paths are absolute strings with `/`; errors are OSError, as the operating system gives them."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless `create`."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def device(self, path: str) -> int:
        """A number for the file system that a file or directory lies in."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Make it and its parents; no error if it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file that is there. Also for directories."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, directory: str) -> None: ...

    def size_bytes(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, timestamp_ms: int) -> None: ...

    def read_bytes(self, path: str) -> bytes: ...

    def space_bytes(self, path: str) -> tuple[int, int]:
        """Size of the file system that a directory lies in, and what of it is left for us."""
        ...

    def sync_path(self, path: str) -> None:
        """Sync a file by name; no error if it is gone."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make names created, renamed and removed in it durable; no error if it is gone."""
        ...

    def lock(self, path: str) -> FileLock:
        """Take the exclusive lock file at `path`; LockedError if it is held."""
        ...

    def spare_descriptors(self) -> int:
        """Files that may be opened now to be kept open, beyond a reserve for short use."""
        ...


def write_atomically(fs: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a small file: write `path`.tmp, sync it, rename it over `path`, sync the directory.

    Without `sync` a crash of the machine may leave the old content, the new, or an empty file; a crash of the
    process alone cannot. If it raises, nothing has changed.
    """
    temporary = path + TEMPORARY_SUFFIX
    try:
        write_whole(fs, temporary, data, sync=sync)
        fs.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            fs.remove(temporary)
        raise
    if sync:
        fs.sync_directory(path.rpartition("/")[0])


def write_whole(fs: FileSystem, path: str, *pieces: Piece, sync: bool) -> None:
    """Make a file of this content, or give it to one that is there. If it raises, something of it may be there."""
    file = fs.open(path, create=True)
    try:
        # A file that was cut to nothing is written to the disk when it is closed (ext4), which takes its time.
        if file.size_bytes():
            file.truncate(0)
        file.write_pieces(0, pieces, sum(map(len, pieces)))
        if sync:
            file.sync()
    finally:
        file.close()


def remove_if_exists(fs: FileSystem, path: str) -> bool:
    """Whether there was a file to remove."""
    try:
        fs.remove(path)
    except FileNotFoundError:
        return False
    return True


def ends_in_zeros(file: File, position: int) -> bool:
    """Return whether the file holds nothing but zeros from a position on. Reads what is not a hole."""
    end = file.size_bytes()
    while (position := file.data_from(position)) < end:
        data = file.pread(position, _ZERO_CHECK_BYTES)
        if data != bytes(len(data)):
            return False
        position += len(data)
    return True


class OsFile:
    """A file of the operating system."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def pread(self, position: int, size_bytes: int) -> bytes:
        data = os.pread(self.fd, size_bytes, position)
        if len(data) < size_bytes and data:
            pieces = [data]
            remaining = size_bytes - len(data)
            while remaining and (data := os.pread(self.fd, remaining, position + size_bytes - remaining)):
                pieces.append(data)
                remaining -= len(data)
            return b"".join(pieces)
        return data

    def read_into(self, position: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer) and (count := os.preadv(self.fd, [buffer[done:]], position + done)):
            done += count
        return done

    def write_pieces(self, position: int, pieces: Sequence[Piece], size_bytes: int) -> None:
        written = os.pwritev(self.fd, pieces, position)
        if written != size_bytes:
            self._write_rest(position, pieces, written)

    def _write_rest(self, position: int, pieces: Sequence[Piece], written: int) -> None:
        for piece in pieces:
            view = memoryview(piece)
            if written >= len(view):
                written -= len(view)
                position += len(view)
                continue
            view, position, written = view[written:], position + written, 0
            while view:
                count = os.pwrite(self.fd, view, position)
                if count == 0:
                    raise OSError(errno.EIO, "write made no progress", self.path)
                view, position = view[count:], position + count

    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def data_from(self, position: int) -> int:
        try:
            return os.lseek(self.fd, position, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: none up to the file's end. Anything else: the file system does not have holes.
            return self.size_bytes() if error.errno == errno.ENXIO else position

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self.fd, size_bytes)

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class OsFileSystem:
    """The operating system's files."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(path, os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def device(self, path: str) -> int:
        return os.stat(path).st_dev

    def list_names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, directory: str) -> None:
        shutil.rmtree(directory)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, timestamp_ms: int) -> None:
        os.utime(path, ns=(timestamp_ms * 1_000_000, timestamp_ms * 1_000_000))

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def space_bytes(self, path: str) -> tuple[int, int]:
        usage = os.statvfs(path)
        return usage.f_frsize * usage.f_blocks, usage.f_frsize * usage.f_bavail

    def sync_path(self, path: str) -> None:
        self._sync(path, os.O_RDWR)

    def sync_directory(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync(self, path: str, flags: int) -> None:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> FileLock:
        return OsLock(path)

    def spare_descriptors(self) -> int:
        return descriptors.spare()


class SimulatedCrash(BaseException):
    """The machine stopped in the middle of an operation. Not an Exception: no handler of the log may survive it."""


class _Content:
    """The bytes of a file; zeros at its end, as in a preallocated index, take no memory."""

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


class _Node:
    """A file in memory: as it reads now, as it is on the disk, and the changes in between."""

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
        """Back to what is on the disk, plus whatever part of the later changes `random` lets through."""
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
    """A change: bytes written at a position, or the file cut to a size."""
    if data is None:
        content.truncate(position)
    else:
        content.write(position, data)


class MemoryFile:
    """A file of a MemoryFileSystem."""

    __slots__ = ("_fs", "_node", "path")
    fd = -1

    def __init__(self, fs: "MemoryFileSystem", path: str, node: _Node) -> None:
        self._fs = fs
        self._node = node
        self.path = path

    def pread(self, position: int, size_bytes: int) -> bytes:
        return self._node.content.read(position, size_bytes)

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.pread(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

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


class _MemoryLock:
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
    """Files in memory that can be crashed, torn and made to fail.

    Operations that change something are counted in `operations` (all) and by name: write, truncate, sync, create,
    rename, remove, sync_directory.

    - `fail("write", after=3, error=errno.ENOSPC)`: the third write from now writes half and raises OSError.
    - `fail_at(n, error=errno.EIO)`: the n-th change from now, whichever it is.
    - `is_full`: until it is set back, nothing can be created, and a write writes half and raises ENOSPC.
    - `mounts`: directories where another file system begins.
    - `spare`: files that may still be opened and kept; below 0 whatever needs a descriptor raises EMFILE.
    - `crash_at(n)`: the n-th change from now is half done (a write) or not done, and raises SimulatedCrash.
    - `crash()`: lose what was not synced, and any lock held; with a Random, a random part of it survives, torn.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.operations = 0
        self._nodes: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._directories: set[str] = {"/"}
        self._held: set[str] = set()
        self._faults: list[_Fault] = []
        self._counts: dict[str, int] = {}
        self._crash_at: int | None = None
        self._fail_at: tuple[int, int] | None = None
        self.is_full = False
        self.spare = 1 << 20
        self.mounts: set[str] = set()

    def fail_at(self, changes_from_now: int, *, error: int = errno.EIO) -> None:
        self._fail_at = (self.operations + changes_from_now, error)

    def fail(self, operation: str, *, after: int = 1, error: int = errno.EIO, path_contains: str = "") -> None:
        """Let the `after`-th `operation` from now on (of a path with `path_contains` in it) fail, once."""
        count = self._counts.get(operation + path_contains, 0)
        self._faults.append(_Fault(operation, count + after, error, path_contains))

    def heal(self) -> None:
        """Forget the faults that were ordered and have not come yet."""
        self._faults.clear()
        self._fail_at = None
        self.is_full = False
        self.spare = 1 << 20

    def crash_at(self, changes_from_now: int) -> None:
        self._crash_at = self.operations + changes_from_now

    def crash(self, random: Random | None = None, *, lose_names: bool = False) -> None:
        """Stop the machine and start it again.

        File systems journal names, so they survive unless `lose_names`: then each directory is as at its last sync.
        """
        self._crash_at = None
        self.heal()
        self._held.clear()
        if lose_names:
            self._nodes = dict(self._durable_names)
        for node in {id(node): node for node in self._nodes.values()}.values():
            node.crash(random)
        self._durable_names = dict(self._nodes)

    def before(self, operation: str, path: str, half_done: Callable[[], None] | None = None) -> None:
        """Count a change about to be made, and fail or crash if that was ordered."""
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

    def _take_descriptor(self, path: str) -> None:
        if self.spare < 0:
            self._raise(errno.EMFILE, path, None)

    def open(self, path: str, *, create: bool = False) -> File:
        self._take_descriptor(path)
        node = self._nodes.get(path)
        if node is None:
            if not create or path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.before("create", path)
            node = self._nodes[path] = _Node(self.now_ms)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        return path in self._nodes or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def device(self, path: str) -> int:
        return max((len(mount) for mount in self.mounts if f"{path}/".startswith(f"{mount}/")), default=0)

    def list_names(self, directory: str) -> list[str]:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self._take_descriptor(directory)
        prefix = directory.rstrip("/") + "/"
        paths = [*self._nodes, *(path for path in self._directories if path != "/")]
        return sorted({p[len(prefix) :] for p in paths if p.startswith(prefix) and "/" not in p[len(prefix) :]})

    def make_directory(self, path: str) -> None:
        while path and path not in self._directories:
            self._directories.add(path)
            path = path.rpartition("/")[0]

    def rename(self, old: str, new: str) -> None:
        if old in self._directories:
            self.before("rename", old)
            for names in (self._nodes, self._durable_names):
                for path in [path for path in names if path.startswith(old + "/")]:
                    names[new + path[len(old) :]] = names.pop(path)
            moved = {path for path in self._directories if path == old or path.startswith(old + "/")}
            self._directories -= moved
            self._directories |= {new + path[len(old) :] for path in moved}
            return
        if old not in self._nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.before("rename", old)
        self._nodes[new] = self._nodes.pop(old)

    def remove(self, path: str) -> None:
        if path not in self._nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.before("remove", path)
        del self._nodes[path]

    def remove_tree(self, directory: str) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        self._take_descriptor(directory)
        self.before("remove", directory)
        for names in (self._nodes, self._durable_names):
            for path in [path for path in names if path.startswith(directory + "/")]:
                del names[path]
        self._directories = {
            path for path in self._directories if path != directory and not path.startswith(directory + "/")
        }

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
        node = self._nodes.get(path)
        if node is not None:
            self._take_descriptor(path)
            self.before("sync", path)
            node.sync()

    def sync_directory(self, path: str) -> None:
        self._take_descriptor(path)
        self.before("sync_directory", path)
        names = self._durable_names
        for name in [name for name in names if name.rpartition("/")[0] == path and name not in self._nodes]:
            del names[name]
        names.update({name: node for name, node in self._nodes.items() if name.rpartition("/")[0] == path})

    def lock(self, path: str) -> FileLock:
        self.open(path, create=True)
        return _MemoryLock(self, self._held, path)

    def sync_below(self, directory: str) -> None:
        """Sync all files and names in a directory and in those below it: one operation, a "sync"."""
        self.before("sync", directory)
        prefix, names = directory + "/", self._durable_names
        device = self.device(directory)
        for path in [path for path in names if path.startswith(prefix) and path not in self._nodes]:
            del names[path]
        for path, node in self._nodes.items():
            if path.startswith(prefix) and self.device(path) == device:
                node.sync()
                names[path] = node

    def _node(self, path: str) -> _Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None
