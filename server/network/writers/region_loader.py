"""Region loader: file regions are read from the disk in threads, before the reactor thread sends them.

Records that were written long ago are on the disk only, and reading them there may take a second while the disk is
busy. All clients would wait for it if the reactor thread did it. A region that is in the page cache is sent at once.
"""

import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from odradek.log.background.tasks import Done
from odradek.log.storage.filesystem import File, FileRegion

PART_BYTES: Final = 1_048_576
"""Bytes that are checked or read at once: a connection whose region is larger queues for a thread again after each."""

_MOST_FILES: Final = 16
"""Files that are read ahead for one connection: those that it has read last."""

_MOST_READS_AHEAD: Final = 16
"""Reads ahead of one connection that are in progress. It may not need them, and reads for which other connections wait
are queued behind them."""

_READING_S: Final = 5.0
"""Time after which a connection counts as one whose records are in memory again: `sendfile` costs less than a copy."""

_VALID_S: Final = 1.0
"""Time after which a part is checked again. The kernel may evict it while a slow client does not read it."""


class FileSender(Protocol):
    """Sends and reads files (`Environment`)."""

    def monotonic(self) -> float:
        """Return the time of the monotonic clock in seconds."""

    def send_file(self, connection: socket.socket, file: File, position: int, size_bytes: int, /) -> int:
        """Send a part of a file; return the number of bytes sent. Raises OSError like `os.sendfile`."""

    def run_read(self, work: Callable[[], None], done: Done, /) -> None:
        """Call `work` in a thread, later `done` in the reactor thread."""


class RegionLoader:
    """Reads the regions of one connection into the page cache, part by part.

    A client that reads one old part of a file mostly reads the next one as well. That is read from the disk while the
    client receives the one before it.

    on_loaded: called in the reactor thread, not from within `readable_bytes`, when there is something to send
    is_loading: a thread reads a part
    """

    __slots__ = (
        "_ahead", "_failure", "_is_closed", "_is_loaded", "_monotonic", "_on_loaded", "_readable_to", "_reading_to_s",
        "_reads_ahead", "_run_read", "_valid_to_s", "is_loading",
    )  # fmt: skip

    def __init__(self, files: FileSender, on_loaded: Callable[[], None]) -> None:
        self.is_loading = False
        self._monotonic = files.monotonic
        self._run_read = files.run_read
        self._on_loaded = on_loaded
        self._is_closed = False
        # Up to here, in bytes from its start, the current region was in the page cache when it was checked or loaded.
        self._readable_to = 0
        # Whether a thread has read these bytes.
        self._is_loaded = False
        self._valid_to_s = 0.0
        self._reading_to_s = 0.0
        # The error of a thread, as text: the exception refers to this object, and would be kept in a cycle.
        self._failure: str | None = None
        # The position up to which each file was read, by path: a reference would keep a deleted file on the disk.
        self._ahead: dict[str, int] = {}
        self._reads_ahead = 0

    def is_reading(self) -> bool:
        """Return whether threads have read from the disk for this connection lately.

        Then `read` is preferable to `sendfile`, which may wait although `is_cached` is true: the kernel reads ahead as
        well, and a page that it is reading is in the page cache.
        """
        return self._reads_ahead > 0 or self._monotonic() < self._reading_to_s

    def readable_bytes(self, region: FileRegion, already: int) -> int:
        """Return how many bytes of a region can be sent without a wait for the disk, after the first `already` bytes.

        0 while they are loaded (`is_loading`); `on_loaded` is called afterwards. Raises OSError if they could not be
        read.
        """
        if self.is_loading:
            return 0
        if self._failure is not None:
            raise OSError(self._failure)
        if readable_bytes := self._count_readable(already):
            return readable_bytes
        position, size_bytes = region.position + already, min(region.size_bytes - already, PART_BYTES)
        if not region.file.is_cached(position, size_bytes):
            self._begin_load(region, already)
            return 0
        self._set_readable(already + size_bytes)
        self._is_loaded = False
        if self._ahead:
            self._continue_ahead(region.file, position + size_bytes, size_bytes)
        return size_bytes

    def read(self, region: FileRegion, already: int, size_bytes: int) -> bytes | bytearray | None:
        """Read up to `size_bytes` of a region after the first `already` bytes; return None while they are loaded.

        `on_loaded` is called afterwards. Raises OSError as `readable_bytes`, or if the file ends there.
        """
        if not size_bytes:
            return b""
        if self.is_loading:
            return None
        if self._failure is not None:
            raise OSError(self._failure)
        position = region.position + already
        # More of the region is loaded only if these bytes are not in the page cache.
        data = region.file.read_cached(position, size_bytes)
        if data is not None:
            if self._ahead:
                self._continue_ahead(region.file, position + size_bytes, min(region.size_bytes, PART_BYTES))
        elif self._is_loaded and (loaded_bytes := self._count_readable(already)):
            # The bytes were evicted after the load, or no thread could read them. Each load is followed by progress.
            data = region.file.pread(position, min(size_bytes, loaded_bytes))
            self._readable_to = 0
            if not data:
                raise early_end_error(region.size_bytes - already)
        else:
            self._begin_load(region, already)
        return data

    def end_region(self) -> None:
        """Prepare for the next region."""
        self._readable_to = 0

    def close(self) -> None:
        """Read nothing any more."""
        self._is_closed = True
        # The owner of the function may refer to this object, and only the garbage collector would free such a cycle.
        self._on_loaded = _do_nothing

    def _count_readable(self, already: int) -> int:
        """Return how many bytes after the first `already` bytes were checked or loaded, not long ago."""
        if already < self._readable_to and self._monotonic() < self._valid_to_s:
            return self._readable_to - already
        return 0

    def _begin_load(self, region: FileRegion, already: int) -> None:
        position, size_bytes = region.position + already, min(region.size_bytes - already, PART_BYTES)
        self.is_loading = True
        self._load(region.file, position, size_bytes, partial(self._loaded, already + size_bytes))
        self._read_ahead(region.file, position + size_bytes, size_bytes)

    def _load(self, file: File, position: int, size_bytes: int, done: Done) -> None:
        """Read a part into the page cache in a thread, then call `done`."""

        def work() -> None:
            # Many reads may wait for a thread, and their clients may have disconnected meanwhile.
            if not self._is_closed:
                file.load(position, size_bytes)

        def ended(error: Exception | None) -> None:
            # A read may take long while the disk is slow.
            self._reading_to_s = self._monotonic() + _READING_S
            done(error)

        self._run_read(work, ended)

    def _continue_ahead(self, file: File, position: int, size_bytes: int) -> None:
        """Read ahead again if less is left of what was read than the client needs next."""
        end = self._ahead.get(file.path)
        if end is not None and end - position < size_bytes and self._reads_ahead < _MOST_READS_AHEAD:
            self._read_ahead(file, max(end, position), size_bytes)

    def _read_ahead(self, file: File, position: int, size_bytes: int) -> None:
        """Read as many bytes ahead as the client needs now, unless they are in the page cache."""
        ahead = self._ahead
        ahead.pop(file.path, None)
        if position >= file.size_bytes():
            return
        ahead[file.path] = position + size_bytes
        if len(ahead) > _MOST_FILES:
            del ahead[next(iter(ahead))]
        if not file.is_cached(position, size_bytes):
            self._reads_ahead += 1
            self._load(file, position, size_bytes, self._ahead_ended)

    def _ahead_ended(self, error: Exception | None) -> None:
        """Ignore an error: the read is repeated, and its error reported, when the client needs the bytes."""
        self._reads_ahead -= 1

    def _loaded(self, end: int, error: Exception | None) -> None:
        self.is_loading = False
        if isinstance(error, OSError):
            # The reactor thread does not repeat the read: a failing disk may take many seconds for each.
            self._failure = str(error)
        else:
            # Without a thread the reactor thread reads.
            self._set_readable(end)
            self._is_loaded = True
        self._on_loaded()

    def _set_readable(self, end: int) -> None:
        self._readable_to = end
        self._valid_to_s = self._monotonic() + _VALID_S


def early_end_error(rest_bytes: int) -> OSError:
    """Return the error of a region whose file ends before its last `rest_bytes` bytes."""
    return OSError(f"segment file ends {rest_bytes} bytes before the end of the file region")


def _do_nothing() -> None:
    """Replaces `on_loaded` when the connection is closed."""
