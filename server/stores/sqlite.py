"""The embedded metadata store: one SQLite file in a log directory.

Durability: the write-ahead log is synced at each commit (synchronous=FULL), so that an acknowledged change survives the
end of the process and a power loss. Secrets that are removed or replaced are erased (`erasure`). The file is locked
while it is open. Reads use a small page cache: requests of clients are answered from the metadata image, not from the
store.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from odradek.log.storage.filesystem import OsFileSystem
from odradek.replication.metadata.store import (
    MetadataStoreError,
    Operation,
    OperationResult,
    Pacing,
    SessionEvent,
    StoreDamagedError,
    StoreUnavailableError,
)
from odradek.replication.metadata.znode_store import (
    NodeTable,
    Watches,
    Znode,
    ZnodeStore,
    delete_ephemerals,
    parent_of,
)
from odradek.server.stores.erasure import SecretErasure, has_secrets
from odradek.server.stores.reserve import Reserve
from odradek.server.stores.sqlite_file import (
    COLUMNS,
    Connect,
    StoreFormatError,
    StoreLockedError,
    connect,
    make_damaged_error,
    open_file,
    translate_error,
)

__all__ = ["FILE_NAME", "SqliteMetadataStore", "SqliteNodeTable", "StoreFormatError", "StoreLockedError"]

logger = logging.getLogger(__name__)

FILE_NAME = "odradek-metadata.db"
SETTLE_INTERVAL_S = 1.0
"""Wait before a store whose last commit has an unknown outcome is opened again."""

_ROWS_PER_STEP: Final = 50
"""Rows that are written in one step, which takes about 0.3 ms."""

CallLater = Callable[[float, Callable[[], None]], object]


class UnknownOutcomeError(StoreUnavailableError):
    """A COMMIT failed, and the file cannot be read now: the outcome of the change is unknown."""


class SqliteNodeTable(NodeTable):
    """Nodes in a SQLite file. Raises StoreFormatError, StoreLockedError, StoreUnavailableError when opened.

    The changes of a transaction are written at its commit, so that a node that it changes often is written once.

    A COMMIT that fails may have reached the file. Then the file is opened again and the number of its last transaction
    is read; until that succeeds (`settle`) nothing else can be read or written.
    """

    def __init__(self, path: Path, connect: Connect = connect) -> None:
        self._path = path
        self._connect = connect
        self._changed: dict[str, Znode | None] = {}
        self._number = 0
        self._unsettled: int | None = None
        self._reserve = Reserve(path)
        self._erasure = SecretErasure(path, self._reserve)
        was_log_empty = self._reserve.is_log_empty()
        self._connection = self._open()
        self._erasure.on_open(self._connection, was_log_empty=was_log_empty)

    def _open(self) -> sqlite3.Connection:
        connection = open_file(self._path, self._connect)
        try:
            self._reserve.on_open(connection)
        except sqlite3.Error as error:
            connection.close()
            raise translate_error(error, self._path) from error
        return connection

    def load(self, path: str) -> Znode | None:
        if path in self._changed:
            return self._changed[path]
        row = self._execute(f"SELECT {COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        return None if row is None else Znode(*row)

    def children(self, path: str) -> list[str]:
        start = 1 if path == "/" else len(path) + 1
        rows = self._execute("SELECT path FROM node WHERE parent = ?", (path,))
        return sorted(child[start:] for (child,) in rows)

    def ephemerals(self, session_id: int | None) -> list[str]:
        if session_id is None:
            rows = self._execute("SELECT path FROM node WHERE ephemeral_owner <> 0", ())
        else:
            query = "SELECT path FROM node WHERE ephemeral_owner <> 0 AND ephemeral_owner = ?"
            rows = self._execute(query, (session_id,))
        return sorted((path for (path,) in rows), reverse=True)

    def begin(self) -> int:
        self._execute("BEGIN IMMEDIATE", ())
        query = "UPDATE meta SET value = value + 1 WHERE name = 'last_id' RETURNING value"
        try:
            [number] = self._execute(query, ()).fetchone()
        except MetadataStoreError:
            self.roll_back()
            raise
        self._number = int(number)
        return self._number

    def put(self, path: str, record: Znode) -> None:
        self._changed[path] = record

    def remove(self, path: str) -> None:
        self._changed[path] = None

    def commit(self) -> None:
        """Commit the transaction. Raises UnknownOutcomeError if COMMIT failed and the file cannot be read."""
        try:
            for _ in self.prepare_commit():
                pass
        except MetadataStoreError:
            self.roll_back()
            raise
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            failure = translate_error(error, self._path)
            self._unsettled = self._number
            if not self.settle():
                raise failure from error
        self._erasure.after_commit(self._connection)
        try:
            self._reserve.top_up(self._connection)
        except sqlite3.Error as error:
            # The commit has succeeded; the next change discovers a problem of the file.
            logger.warning("cannot reserve space for the metadata store path=%s error=%s", self._path, error)

    def settle(self) -> bool:
        """Open the file again, and return whether the transaction whose COMMIT failed is durably in it.

        Raises UnknownOutcomeError if the file cannot be read.
        """
        number = self._unsettled
        assert number is not None
        with suppress(sqlite3.Error):
            self._connection.close()
        try:
            connection = self._connection = self._open()
            # The sync failed, so the data that is read may be in memory only. A checkpoint makes it durable.
            [is_blocked, _, _] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_blocked:
                raise StoreUnavailableError("its write-ahead log cannot be copied")
            self._reserve.on_open(connection)
            [last] = connection.execute("SELECT value FROM meta WHERE name = 'last_id'").fetchone()
            OsFileSystem().sync_directory(str(self._path.parent))
        except (sqlite3.Error, MetadataStoreError, OSError) as error:
            raise UnknownOutcomeError(
                f"metadata store {self._path}: a change failed, and its outcome cannot be read: {error}"
            ) from error
        self._unsettled = None
        is_made: bool = last >= number
        logger.warning("read the outcome of a failed commit of the metadata store path=%s made=%s", self._path, is_made)
        return is_made

    def prepare_commit(self) -> Generator[None, None, None]:
        """Write the changes of the transaction into the pages of the database, a few rows in each step."""
        changed = iter(self._changed.items())
        try:
            while rows := list(islice(changed, _ROWS_PER_STEP)):
                for path, record in rows:
                    if has_secrets(path):
                        self._note_removal(path, record)
                removed = [(path,) for path, record in rows if record is None]
                if removed:
                    self._connection.executemany("DELETE FROM node WHERE path = ?", removed)
                self._connection.executemany(
                    f"INSERT OR REPLACE INTO node (path, parent, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (_make_row(path, record) for path, record in rows if record is not None),
                )
                yield
        except sqlite3.Error as error:
            raise translate_error(error, self._path) from error
        self._changed = {}

    def _note_removal(self, path: str, record: Znode | None) -> None:
        row = self._connection.execute("SELECT data FROM node WHERE path = ?", (path,)).fetchone()
        if row is not None:
            self._erasure.on_removal(row[0], None if record is None else record.data)

    def roll_back(self) -> None:
        self._changed = {}
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise translate_error(error, self._path) from error

    def close(self) -> None:
        """Copy the write-ahead log into the file, and close and unlock it."""
        self._connection.close()
        self._reserve.on_close()

    def _execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        if self._unsettled is not None:
            raise StoreUnavailableError(f"metadata store {self._path}: the outcome of the last change is unknown")
        try:
            return self._connection.execute(statement, values)
        except sqlite3.Error as error:
            raise translate_error(error, self._path) from error


class SqliteMetadataStore(ZnodeStore):
    """The embedded store of a broker; a session lasts as long as the file is open.

    Ephemeral nodes of a process that has ended are deleted when the file is opened: the file was locked while the
    process ran, so its session has ended.

    While the outcome of a change is unknown the session is DISCONNECTED. `call_later` repeats opening the file until it
    can be read; then the session is CONNECTED, and the change was made or not.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        now_ms: Callable[[], int],
        *,
        call_later: CallLater = lambda seconds, action: None,
        connect: Connect = connect,
    ) -> None:
        self._path = Path(directory) / FILE_NAME
        self._call_later = call_later
        self._nodes = SqliteNodeTable(self._path, connect)
        watches = Watches()
        try:
            session_id = delete_ephemerals(self._nodes, watches, None, now_ms())
        except MetadataStoreError:
            self._nodes.close()
            raise
        super().__init__(self._nodes, watches, session_id, now_ms)

    is_shared = False

    def damaged(self, why: str) -> StoreDamagedError:
        return make_damaged_error(self._path, why)

    def _carry_out(self, operations: Sequence[Operation]) -> list[OperationResult]:
        try:
            return super()._carry_out(operations)
        except UnknownOutcomeError:
            self._disconnect()
            raise

    async def _carry_out_paced(self, operations: Sequence[Operation], pacing: Pacing) -> list[OperationResult]:
        try:
            return await super()._carry_out_paced(operations, pacing)
        except UnknownOutcomeError:
            self._disconnect()
            raise

    def pace(self, pacing: Pacing) -> None:
        self._pacing = pacing

    def _disconnect(self) -> None:
        self._notify(SessionEvent.DISCONNECTED)
        self._call_later(SETTLE_INTERVAL_S, self._settle)

    def _settle(self) -> None:
        if self._is_over:
            return
        try:
            self._nodes.settle()
        except UnknownOutcomeError:
            self._call_later(SETTLE_INTERVAL_S, self._settle)
        else:
            self._notify(SessionEvent.CONNECTED)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._nodes.close()


def has_store(directory: str | os.PathLike[str]) -> bool:
    """Return whether the directory has the file of a store that is not empty. Raises OSError."""
    try:
        return (Path(directory) / FILE_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def _make_row(path: str, record: Znode) -> tuple[object, ...]:
    return (
        path,
        "" if path == "/" else parent_of(path),
        record.data,
        record.created_id,
        record.modified_id,
        record.created_ms,
        record.modified_ms,
        record.version,
        record.ephemeral_owner,
        record.creations,
        record.child_count,
    )
