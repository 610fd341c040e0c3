"""Disk space that the SQLite store has reserved, so that it takes changes while the disk is full.

Deleting topics and lowering retention is how a full disk gets room again, and both are changes of the store. A change
is written to the write-ahead log first and copied into the database later, so both files hold space that nobody else
can take:

- The write-ahead log is allocated for the largest change there can be: every page of the database, and what is still
  to be copied. SQLite writes it over and over and never cuts it, and takes one of zeros for an empty one. It removes
  the file when it closes the store; what is allocated then anew under that name is the reserve of the next start.
- The database has free pages, which a change uses up before the file grows.

What cannot be reserved, for lack of room, is tried again with each commit. A file system that never writes in place
(Btrfs, ZFS) needs room all the same.
"""

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from odradek.log.storage.filesystem import OsFileSystem, is_disk_full

logger = logging.getLogger(__name__)

LEAST_LOG_BYTES = 4 << 20
_MARGIN_BYTES = 2 << 20
"""Pages that wait to be copied (CHECKPOINT_PAGES), headers of frames, and growth until the next look."""
_STEP_BYTES = 1 << 20
FREE_PAGES = 64
_FEW_FREE_PAGES = 32

SCHEMA = "CREATE TABLE IF NOT EXISTS reserve (content BLOB)"


class Reserve:
    """The reserve of the store at `path`. No method raises for a disk that has no room."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = path.with_name(path.name + "-wal")
        self._log_bytes = 0
        self._page_bytes = 4096
        self._is_short = False

    def opened(self, connection: sqlite3.Connection) -> None:
        """The file was opened: bring the reserve up to size. Raises sqlite3.Error."""
        [self._page_bytes] = connection.execute("PRAGMA page_size").fetchone()
        self._log_bytes = 0
        self.top_up(connection)

    def top_up(self, connection: sqlite3.Connection) -> None:
        """After a commit: reserve what is missing. Two pragmas, if nothing is. Raises sqlite3.Error."""
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        if pages * self._page_bytes + _MARGIN_BYTES > self._log_bytes:
            self._log_bytes = self._allocate_log(pages)
        [free_pages] = connection.execute("PRAGMA freelist_count").fetchone()
        if free_pages < _FEW_FREE_PAGES and self._has_room(2 * FREE_PAGES * self._page_bytes):
            self._add_free_pages(connection)

    def closed(self) -> None:
        """The file was closed, and its write-ahead log with it: allocate that of the next start."""
        with suppress(OSError):
            # A journaling file system gives out again what was freed once its journal is written.
            OsFileSystem().sync_directory(str(self._path.parent))
            self._allocate_log(self._path.stat().st_size // self._page_bytes, is_urgent=True)

    def _allocate_log(self, pages: int, *, is_urgent: bool = False) -> int:
        """Allocate the write-ahead log for a database of so many pages; how large the file is then.

        Unless `is_urgent`, what little room may be left is not touched.
        """
        wanted = max(LEAST_LOG_BYTES, pages * self._page_bytes + _MARGIN_BYTES + _STEP_BYTES)
        try:
            # SQLite holds no lock on this file that closing it here would drop.
            descriptor = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        self._note_shortage(size_bytes < wanted, wanted)
        return size_bytes

    def _note_shortage(self, is_short: bool, wanted: int) -> None:
        if is_short and not self._is_short:
            logger.warning(
                "no room for what the metadata store reserves: if the disk fills up, topics cannot be deleted nor "
                "retention lowered; free some path=%s bytes=%d",
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
