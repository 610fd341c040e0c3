"""File system interface, and its implementation by the operating system. No other module opens files.

Every object that accesses the disk receives its `FileSystem` as a parameter: `OsFileSystem`, or in tests and simulation
`memory_filesystem.MemoryFileSystem`.

A log file is closed when its last reference is gone. When a segment is deleted, a region of its file may still be
queued for a slow consumer; a descriptor that was closed and reused would send another file's bytes. `close()` is for
files that are not shared.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from odradek.log.storage import descriptors
from odradek.log.storage.file_lock import OsLock
from odradek.log.storage.page_cache import lacks_pages
from odradek.protocol.errors import ErrorCode, KafkaError

Piece = bytes | bytearray | memoryview
TEMPORARY_SUFFIX = ".tmp"
_ZERO_CHECK_BYTES = 1 << 20
_LOAD_BYTES = 131_072
_SAMPLE_INTERVAL_BYTES = 131_072
"""As much as the kernel reads ahead by default. Samples find pages that are still being read, and missing ones where
they cannot be counted; each takes a microsecond."""

_SAMPLE = bytearray(1)
_NO_ACCESS_TIME: int = getattr(os, "O_NOATIME", 0)
"""Linux: otherwise the first read after a write changes the inode, and waits for the file system's journal."""

_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""Linux: a read that fails with EAGAIN instead of a wait for the disk. 0 elsewhere."""

_BEHIND_FILES = 1 << 62
"""A position behind the end of any file."""


class LogDirFailure(KafkaError):  # noqa: N818 - a state of the directory, not of one call
    """An I/O error in a log directory, after which no write to it is reliable.

    `directory` is the log directory (an entry of log.dirs), which the caller takes offline. The operating system's
    error is the `__cause__`.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.directory = directory


class ShortageError(KafkaError):
    """An operation in a log directory failed for lack of a resource. It had no effect and can be retried.

    The request gets KAFKA_STORAGE_ERROR, after which clients retry. The disk has not failed, so the directory stays
    online.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.directory = directory


class DiskFullError(ShortageError):
    """There is no disk space for a write in a log directory.

    Apache Kafka takes such a directory offline until its restart. A sync that fails for lack of disk space is a
    LogDirFailure, because the data that it was to write may be lost.
    """


class ExhaustedError(ShortageError):
    """There is no file descriptor or no memory for an operation in a log directory."""


_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error reports lack of space, on the disk or within the user's quota."""
    if isinstance(error, DiskFullError):
        return True
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error reports lack of descriptors or memory."""
    return isinstance(error, ExhaustedError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED)


def is_shortage(error: BaseException) -> bool:
    """Return whether an operation failed for lack of a resource, and can be retried."""
    return is_disk_full(error) or is_exhausted(error)


def storage_error(directory: str, message: str, error: OSError) -> ShortageError | LogDirFailure:
    """Return the error to raise for an operation in a log directory that failed with `error`."""
    if is_disk_full(error):
        return DiskFullError(directory, message)
    return ExhaustedError(directory, message) if is_exhausted(error) else LogDirFailure(directory, message)


class ColdReadError(Exception):
    """A part of a file that is to be read without a wait is on the disk only."""

    def __init__(self, file: "File", position: int, size_bytes: int) -> None:
        super().__init__(f"{file.path} is not in memory at {position}")
        self.file = file
        self.position = position
        self.size_bytes = size_bytes


class File(Protocol):
    """An open file, read and written at explicit positions."""

    path: str

    @property
    def fd(self) -> int:
        """The descriptor, for sendfile; -1 if there is none."""
        ...

    def pread(self, position: int, size_bytes: int) -> bytes:
        """Read `size_bytes` bytes from `position`; fewer only at the end of the file."""
        ...

    def pread_cached(self, position: int, size_bytes: int) -> bytes | bytearray:
        """Read as `pread`, without a wait for the disk. Raises ColdReadError."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer from `position` on. Return the number of bytes; fewer only at the end of the file."""
        ...

    def read_cached(self, position: int, size_bytes: int) -> bytes | bytearray | None:
        """Read bytes without a wait for the disk. Return None if not all are in memory, or the file ends before."""
        ...

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Return whether a read would not wait for the disk, as far as the page cache is known."""
        ...

    def load(self, position: int, size_bytes: int) -> None:
        """Read a part into memory, so that `is_cached` is true for a while. Blocks; for any thread."""
        ...

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """Begin to write a part to the disk, and remove what is written from memory. Blocks; for any thread."""
        ...

    def write_pieces(self, position: int, pieces: Sequence[Piece], size_bytes: int) -> None:
        """Write all pieces one after the other; `size_bytes` is their total. On OSError a part may be written."""
        ...

    def size_bytes(self) -> int: ...

    def data_from(self, position: int) -> int:
        """Return the first position from `position` on with data, which is not in a hole; the file's size if none."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file, or extend it with a hole: zeros that use no disk space."""
        ...

    def sync(self) -> None:
        """Make all writes durable. May be called in another thread."""
        ...

    def close(self) -> None: ...


class FileRegion(NamedTuple):
    """A region of a log file, which a read returns instead of bytes, so that it is sent without a copy."""

    file: File
    position: int
    size_bytes: int

    def read(self) -> bytes:
        """Read the bytes, for tests."""
        return self.file.pread(self.position, self.size_bytes)

    def read_cached(self) -> bytes | bytearray | None:
        """Read the bytes as with `File.read_cached`."""
        return self.file.read_cached(self.position, self.size_bytes)


class FileLock(Protocol):
    """The lock file of a log directory."""
    def release(self) -> None: ...

    def sync_file_system(self) -> bool:
        """Make all writes below the lock's directory durable in one call; return whether that succeeded.

        Files in another file system (`FileSystem.device`) are not included.

        False if the system cannot do it, or has failed to write anything since the lock was taken: then each file
        must be synced separately, which identifies the affected files. Blocks; for any thread.
        """
        ...


class FileSystem(Protocol):
    """Names and files. Paths are absolute strings with `/`; errors are OSError, as in the operating system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless `create`."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def device(self, path: str) -> int:
        """Return the number of the file system that contains a file or directory."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; no error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory atomically; an existing file is replaced."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, directory: str) -> None: ...

    def size_bytes(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, timestamp_ms: int) -> None: ...

    def read_bytes(self, path: str) -> bytes: ...

    def space_bytes(self, path: str) -> tuple[int, int]:
        """Return the size of a directory's file system, and the space available to this user (bytes)."""
        ...

    def sync_path(self, path: str) -> None:
        """Sync a file by name; no error if it does not exist."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make created, renamed and removed names in a directory durable; no error if it does not exist."""
        ...

    def lock(self, path: str) -> FileLock:
        """Acquire the exclusive lock file at `path`. Raises LockedError if another process has it."""
        ...

    def spare_descriptors(self) -> int:
        """Return the number of files that may still be opened for long use, beyond the reserve for short use."""
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
    """Write a file, created or replaced. If it raises, the file may be incomplete."""
    file = fs.open(path, create=True)
    try:
        # ext4 writes a file that was truncated to 0 bytes to the disk when it is closed, which takes long.
        if file.size_bytes():
            file.truncate(0)
        file.write_pieces(0, pieces, sum(map(len, pieces)))
        if sync:
            file.sync()
    finally:
        file.close()


def remove_if_exists(fs: FileSystem, path: str) -> bool:
    """Remove a file if it exists; return whether it existed."""
    try:
        fs.remove(path)
    except FileNotFoundError:
        return False
    return True


def ends_in_zeros(file: File, position: int) -> bool:
    """Return whether the file contains only zeros from a position on. Holes are not read."""
    end = file.size_bytes()
    while (position := file.data_from(position)) < end:
        data = file.pread(position, _ZERO_CHECK_BYTES)
        if data != bytes(len(data)):
            return False
        if not data:
            # Another process has truncated the file.
            return True
        position += len(data)
    return True


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_reports_waits", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        # False if the file system does not support the flag. The files of tmpfs are in memory; on others, as NFS, the
        # reactor thread waits.
        self._reports_waits = _NO_WAIT != 0

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

    def pread_cached(self, position: int, size_bytes: int) -> bytes | bytearray:
        data = self.read_cached(position, size_bytes)
        if data is None:
            rest_bytes = max(0, self.size_bytes() - position)
            if rest_bytes < size_bytes:
                data = self.read_cached(position, rest_bytes)
        if data is None:
            raise ColdReadError(self, position, size_bytes)
        return data

    def read_into(self, position: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer) and (count := os.preadv(self.fd, [buffer[done:]], position + done)):
            done += count
        return done

    def read_cached(self, position: int, size_bytes: int) -> bytes | bytearray | None:
        if self._reports_waits:
            buffer = bytearray(size_bytes)
            try:
                return buffer if os.preadv(self.fd, [buffer], position, _NO_WAIT) == size_bytes else None
            except BlockingIOError:
                return None
            except OSError as error:
                self._note_support(error)
        data = self.pread(position, size_bytes)
        return data if len(data) == size_bytes else None

    def is_cached(self, position: int, size_bytes: int) -> bool:
        if not self._reports_waits or size_bytes <= 0:
            return True
        if lacks_pages(self.fd, position, size_bytes):
            return not self._check_support()
        last = position + size_bytes - 1
        try:
            for at in range(position, last, _SAMPLE_INTERVAL_BYTES):
                os.preadv(self.fd, [_SAMPLE], at, _NO_WAIT)
            os.preadv(self.fd, [_SAMPLE], last, _NO_WAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            self._note_support(error)
        return True

    def _check_support(self) -> bool:
        """Return whether the flag is supported, after a read that needs no page.

        File systems that keep their files elsewhere than in the page cache, as overlayfs and ZFS, do not support it.
        All pages of their files are missing, also after a load.
        """
        try:
            os.preadv(self.fd, [_SAMPLE], _BEHIND_FILES, _NO_WAIT)
        except BlockingIOError:
            return True
        except OSError as error:
            self._note_support(error)
        return self._reports_waits

    def _note_support(self, error: OSError) -> None:
        """Note that the flag is not supported, if that is the error. The read that follows reports any other."""
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            self._reports_waits = False

    def load(self, position: int, size_bytes: int) -> None:
        buffer = memoryview(bytearray(min(size_bytes, _LOAD_BYTES)))
        end = position + size_bytes
        while position < end and (count := os.preadv(self.fd, [buffer[: end - position]], position)):
            position += count

    def drop_cached(self, position: int, size_bytes: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, position, size_bytes, os.POSIX_FADV_DONTNEED)

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
            # ENXIO: no data up to the file's end. Any other error: the file system does not support holes.
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
        try:
            return OsFile(path, os.open(path, flags | _NO_ACCESS_TIME, 0o644))
        except PermissionError:
            # Only the owner of a file may read it without an update of its access time.
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
        try:
            os.mkdir(path)
        except (FileExistsError, FileNotFoundError):
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
