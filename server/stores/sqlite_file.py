"""The SQLite file of the embedded metadata store: opening, schema, and translation of errors.

Because the file is locked while it is open, SQLite keeps the index of its write-ahead log on the heap and needs no
shared memory file. No temporary file is used, because the disk may be full.
"""

import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

from odradek.log.storage.filesystem import OsFileSystem
from odradek.replication.metadata.store import MetadataStoreError, StoreDamagedError, StoreUnavailableError
from odradek.server.stores import reserve
from odradek.server.stores.erasure import MARK

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
PAGE_CACHE_KIB = 512
CHECKPOINT_PAGES = 256

Connect = Callable[[Path], sqlite3.Connection]

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

REMEDY = (
    "restore a backup of it and remove the -wal file beside it, or move both away and start with log.dirs.adopt=true, "
    "which adopts the topics in the log directories"
)


class StoreFormatError(MetadataStoreError):
    """The file is not a metadata store, or has a format that this version does not support."""


class StoreLockedError(MetadataStoreError):
    """Another process has the store open."""


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that locks the file at its first access. Raises sqlite3.Error."""
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def open_file(path: Path, connect: Connect) -> sqlite3.Connection:
    """Open the store, or create it durably. The whole file is checked, which takes 15 ms for 20,000 nodes.

    Raises StoreFormatError, StoreLockedError, StoreDamagedError, StoreUnavailableError.
    """
    try:
        is_new = _make_private(path)
        connection = connect(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailableError(f"cannot open the metadata store {path}: {error}") from error
    try:
        _configure(connection)
        _prepare_schema(connection, path)
        _check_integrity(connection, path)
        if is_new:
            OsFileSystem().sync_directory(str(path.parent))
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise translate_error(error, path) from error
        raise
    return connection


def _make_private(path: Path) -> bool:
    """Create the file if there is none, for its owner only; return whether it is new.

    It has hashes of passwords. SQLite gives the write-ahead log the mode of the file. An existing file loses the access
    of others and keeps that of its group, which may make backups.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, reserve.FILE_MODE))
    except FileExistsError:
        # Without opening the file: a close drops the process's locks on it.
        _hide_from_others(path)
        _hide_from_others(path.with_name(path.name + "-wal"))
        return False
    return True


def _hide_from_others(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & stat.S_IRWXO:
            path.chmod(mode & ~stat.S_IRWXO)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning(
            "other users can read hashes of passwords in the metadata store; remove their access path=%s error=%s",
            path, error.strerror,
        )  # fmt: skip


def _configure(connection: sqlite3.Connection) -> None:
    for setting in (
        "locking_mode=EXCLUSIVE",
        "journal_mode=WAL",
        "synchronous=FULL",
        "temp_store=MEMORY",
        "secure_delete=ON",
        "journal_size_limit=-1",
        f"cache_size=-{PAGE_CACHE_KIB}",
        f"wal_autocheckpoint={CHECKPOINT_PAGES}",
    ):
        connection.execute(f"PRAGMA {setting}")


def _prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    execute = connection.execute
    execute("BEGIN EXCLUSIVE")
    tables = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        for statement in SCHEMA.split(";"):
            execute(statement)
        execute("INSERT INTO meta VALUES ('format_version', ?), ('last_id', 0), (?, 1)", (FORMAT_VERSION, MARK))
        execute(f"INSERT INTO node (path, parent, {COLUMNS}) VALUES ('/', '', NULL, 0, 0, 0, 0, 0, 0, 0, 0)")
    elif "meta" not in tables:
        raise StoreFormatError(f"{path} is not a metadata store of Odradek")
    else:
        _check_format(connection, path)
    execute(reserve.SCHEMA)
    execute("COMMIT")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    row = connection.execute("SELECT value FROM meta WHERE name = 'format_version'").fetchone()
    version = row[0] if row else None
    if version != FORMAT_VERSION:
        raise StoreFormatError(
            f"the metadata store {path} has format {version}, but this version of Odradek supports {FORMAT_VERSION}: "
            "start the version that wrote it, or a newer one"
        )


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreDamagedError for a damaged page, because of which nodes could be missing and topics deleted."""
    [why] = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if why != "ok":
        raise make_damaged_error(path, str(why))


def make_damaged_error(path: Path, why: str) -> StoreDamagedError:
    """Return the error for a damaged file; its message contains the remedy."""
    return StoreDamagedError(f"the metadata store {path} is damaged ({' '.join(why.split())}); {REMEDY}")


def translate_error(error: sqlite3.Error, path: Path) -> MetadataStoreError:
    """Return the store's error for an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_NOTADB:
        return StoreFormatError(f"{path} is not a metadata store of Odradek, or is damaged ({error}); {REMEDY}")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLockedError(f"the metadata store {path} is open in another process")
    if primary == sqlite3.SQLITE_CORRUPT or "Could not decode" in str(error) or "no such table" in str(error):
        failure = make_damaged_error(path, str(error))
        logger.error("%s", failure)
        return failure
    logger.error("metadata store cannot be used now path=%s error=%s", path, error)
    return StoreUnavailableError(f"metadata store {path}: {error}")

