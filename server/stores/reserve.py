"""Reserve of the SQLite store: disk space that it keeps allocated, so that it accepts changes while the disk is full.

To free space on a full disk, topics are deleted or their retention is lowered, which are changes of the store. A change
is written to the write-ahead log first and copied into the database later, so space is allocated for both files:

- The write-ahead log has the size of the largest possible change: every page of the database, and the pages that are
  still to be copied. SQLite overwrites this file and never truncates it, and reads a file of zeros as an empty log. It
  removes the file when it closes the store; a new file with that name is then the reserve of the next start.
- The database has free pages, which a change uses before the file grows.

If there is not enough space to reserve, each commit tries again. A file system that never writes in place (Btrfs, ZFS)
needs free space nevertheless.
"""

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from odradek.log.storage.filesystem import OsFileSystem, is_disk_full

logger = logging.getLogger(__name__)

FILE_MODE = 0o600
"""Of a new store: it has hashes of passwords."""

MIN_LOG_BYTES = 4 << 20
_MARGIN_BYTES = 2 << 20
"""Pages that wait to be copied (CHECKPOINT_PAGES), headers of frames, and growth until the next `top_up`."""
_STEP_BYTES = 1 << 20
_LOG_HEADER_BYTES = 32
FREE_PAGES = 64
_FEW_FREE_PAGES = 32

SCHEMA = "CREATE TABLE IF NOT EXISTS reserve (content BLOB)"


class Reserve:
    """The reserve of the store at `path`. No method raises because of a full disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = path.with_name(path.name + "-wal")
        self._log_bytes = 0
        self._page_bytes = 4096
        self._is_short = False

    def on_open(self, connection: sqlite3.Connection) -> None:
        """Allocate the reserve of a store that was opened. Raises sqlite3.Error."""
        [self._page_bytes] = connection.execute("PRAGMA page_size").fetchone()
        self._log_bytes = 0
        self.top_up(connection)

    def top_up(self, connection: sqlite3.Connection) -> None:
        """Allocate missing space after a commit; executes two pragmas if none is missing. Raises sqlite3.Error."""
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        if pages * self._page_bytes + _MARGIN_BYTES > self._log_bytes:
            self._log_bytes = self._allocate_log(pages)
        [free_pages] = connection.execute("PRAGMA freelist_count").fetchone()
        if free_pages < _FEW_FREE_PAGES and self._has_room(2 * FREE_PAGES * self._page_bytes):
            self._add_free_pages(connection)

    def is_log_empty(self) -> bool:
        """Return whether the write-ahead log has no content. Call it before the store is opened."""
        try:
            with self._log_path.open("rb") as log:
                return not any(log.read(_LOG_HEADER_BYTES))
        except OSError:
            return True

    def can_replace_log(self) -> bool:
        """Return whether a truncated write-ahead log can be allocated again."""
        return self._has_room(max(self._log_bytes, MIN_LOG_BYTES))

    def on_log_truncated(self) -> None:
        """Let the next `top_up` allocate the write-ahead log."""
        self._log_bytes = 0

    def on_close(self) -> None:
        """Allocate the write-ahead log of the next start: SQLite has removed it with the close of the store."""
        with suppress(OSError):
            # A journaling file system reuses freed space only after its journal is written.
            OsFileSystem().sync_directory(str(self._path.parent))
            self._allocate_log(self._path.stat().st_size // self._page_bytes, is_urgent=True)

    def _allocate_log(self, pages: int, *, is_urgent: bool = False) -> int:
        """Allocate the write-ahead log for a database of `pages`; return the size of the file.

        Without `is_urgent` it is only allocated if enough space is free.
        """
        wanted = max(MIN_LOG_BYTES, pages * self._page_bytes + _MARGIN_BYTES + _STEP_BYTES)
        try:
            mode = self._path.stat().st_mode & 0o777
            # A close drops the process's locks on a file; SQLite has none on this file.
            descriptor = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        except OSError as error:
            logger.debug("no write-ahead log to allocate path=%s error=%s", self._log_path, error)
            return 0
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes < wanted and (is_urgent or self._has_room(wanted - size_bytes)):
                os.posix_fallocate(descriptor, 0, wanted)
                size_bytes = wanted
        except OSError as error:
            if not is_disk_full(error):
                logger.warning("cannot allocate the write-ahead log path=%s error=%s", self._log_path, error)
        finally:
            os.close(descriptor)
        self._report_shortage(size_bytes < wanted, wanted)
        return size_bytes

    def _report_shortage(self, is_short: bool, wanted: int) -> None:
        if is_short and not self._is_short:
            logger.warning(
                "no space for the reserve of the metadata store: on a full disk, topics cannot be deleted nor "
                "retention lowered; free disk space path=%s bytes=%d",
                self._log_path,
                wanted,
            )
        self._is_short = is_short

    def _has_room(self, size_bytes: int) -> bool:
        try:
            room = os.statvfs(self._path)
        except OSError:
            return False
        return room.f_bavail * room.f_frsize >= size_bytes

    def _add_free_pages(self, connection: sqlite3.Connection) -> None:
        """Write pages and free them again, in two transactions, so that they are part of the file."""
        try:
            connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (FREE_PAGES * self._page_bytes,))
            connection.execute("DELETE FROM reserve")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
                raise
