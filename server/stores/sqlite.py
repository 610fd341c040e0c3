"""The embedded metadata store: one SQLite file in a log directory.

Durability: the write-ahead log is synced at each commit (synchronous=FULL), so that a change that was acknowledged
outlives both the death of the process and the loss of power. The file is locked for as long as it is open; with the
lock held throughout, SQLite keeps the index of its write-ahead log on the heap and needs no shared memory file.
Reads go to the file through a small page cache: the broker answers its clients from the metadata image, not from here.
"""

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from odradek.replication.metadata_store import MetadataStoreError, StoreUnavailableError
from odradek.replication.znode_store import NodeTable, Record, Watches, ZnodeStore, delete_ephemerals, parent_of

logger = logging.getLogger(__name__)

FILE_NAME = "odradek-metadata.db"
FORMAT_VERSION = 1
PAGE_CACHE_KIB = 512
CHECKPOINT_PAGES = 256

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    data BLOB,
    created_id INTEGER NOT NULL,
    modified_id INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    version INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL,
    creations INTEGER NOT NULL,
    child_count INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX node_parent ON node (parent);
CREATE INDEX node_ephemeral ON node (ephemeral_owner) WHERE ephemeral_owner <> 0;
"""

COLUMNS = (
    "data, created_id, modified_id, created_ms, modified_ms, version, ephemeral_owner, creations, child_count"
)


class StoreFormatError(MetadataStoreError):
    """The file is no metadata store, or one of a format that this version does not know."""


class StoreLockedError(MetadataStoreError):
    """Another process has the store open."""


class SqliteNodeTable(NodeTable):
    """Nodes in a SQLite file. Raises StoreFormatError, StoreLockedError, StoreUnavailableError when opened.

    What a transaction changes is held back until it commits, so that a node it changes often is written once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed: dict[str, Record | None] = {}
        is_new = not path.exists()
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"cannot open the metadata store {path}: {error}") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._connection.close()
            raise self._translated(error) from error
        except StoreFormatError:
            self._connection.close()
            raise
        if is_new:
            _sync_directory(path.parent)

    def _open(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        execute(f"PRAGMA cache_size=-{PAGE_CACHE_KIB}")
        execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        execute("BEGIN EXCLUSIVE")
        tables = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            for statement in SCHEMA.split(";"):
                execute(statement)
            execute("INSERT INTO meta VALUES ('format_version', ?), ('last_id', 0)", (FORMAT_VERSION,))
            execute(f"INSERT INTO node (path, parent, {COLUMNS}) VALUES ('/', '', NULL, 0, 0, 0, 0, 0, 0, 0, 0)")
        elif "meta" not in tables:
            raise StoreFormatError(f"{self._path} is not a metadata store of Odradek")
        else:
            self._check_format()
        execute("COMMIT")

    def _check_format(self) -> None:
        row = self._connection.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
        version = row[0] if row else None
        if version != FORMAT_VERSION:
            raise StoreFormatError(
                f"the metadata store {self._path} has format {version}, this version of Odradek knows up to "
                f"{FORMAT_VERSION}: start the version that wrote it, or a newer one"
            )

    def load(self, path: str) -> Record | None:
        if path in self._changed:
            return self._changed[path]
        row = self._execute(f"SELECT {COLUMNS} FROM node WHERE path = ?", (path,)).fetchone()
        return None if row is None else Record(*row)

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
        return int(number)

    def put(self, path: str, record: Record) -> None:
        self._changed[path] = record

    def remove(self, path: str) -> None:
        self._changed[path] = None

    def commit(self) -> None:
        try:
            self._write_changes()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.roll_back()
            raise self._translated(error) from error
        self._changed = {}

    def _write_changes(self) -> None:
        removed = [(path,) for path, record in self._changed.items() if record is None]
        if removed:
            self._connection.executemany("DELETE FROM node WHERE path = ?", removed)
        self._connection.executemany(
            f"INSERT OR REPLACE INTO node (path, parent, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (_row(path, record) for path, record in self._changed.items() if record is not None),
        )

    def roll_back(self) -> None:
        self._changed = {}
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def close(self) -> None:
        """Copies the write-ahead log into the file and unlocks it."""
        self._connection.close()

    def _execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> MetadataStoreError:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_NOTADB:
            return StoreFormatError(f"{self._path} is not a metadata store of Odradek")
        if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreLockedError(f"the metadata store {self._path} is open in another process")
        logger.error("metadata store cannot be used now path=%s error=%s", self._path, error)
        return StoreUnavailableError(f"metadata store {self._path}: {error}")


class SqliteMetadataStore(ZnodeStore):
    """The embedded store of a broker; a session lasts as long as the file is open.

    Ephemeral nodes of a process that died are deleted when the file is opened again: a lone broker's session has
    surely expired by then, since the file was locked while it lived.
    """

    def __init__(self, directory: str | os.PathLike[str], now_ms: Callable[[], int]) -> None:
        self._nodes = SqliteNodeTable(Path(directory) / FILE_NAME)
        watches = Watches()
        try:
            session_id = delete_ephemerals(self._nodes, watches, None, now_ms())
        except MetadataStoreError:
            self._nodes.close()
            raise
        super().__init__(self._nodes, watches, session_id, now_ms)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._nodes.close()


def has_store(directory: str | os.PathLike[str]) -> bool:
    """Whether the directory has the file of a store; an empty one is none. Raises OSError."""
    try:
        return (Path(directory) / FILE_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def _row(path: str, record: Record) -> tuple[object, ...]:
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


def _sync_directory(directory: Path) -> None:
    """Makes the entry of a new file durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
