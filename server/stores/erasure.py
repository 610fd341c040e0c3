"""Erasure of removed secrets from the files of the SQLite store: hashes of passwords, encrypted passwords.

`PRAGMA secure_delete` overwrites rows that are deleted and pages that are freed. Copies remain in two places, from
which `SecretErasure` removes them after the commit of such a change:

- The write-ahead log keeps its pages until others overwrite them. It is copied into the database and truncated, and the
  reserve allocates it again.
- A page that is split or merged may keep the bytes of a row that has moved to another page, in about one of 1,000
  removals. The file is searched for the removed values, and rebuilt (VACUUM) if it contains one.

File systems and disks may keep the blocks of a truncated file: that is beyond this module.
"""

import logging
import re
import sqlite3
from pathlib import Path
from typing import Final

from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CONFIG_ROOT, USERS
from odradek.server.stores.reserve import Reserve

logger = logging.getLogger(__name__)

MARK: Final = "erased"
"""Name of a row of `meta`: the file was made, or has been rebuilt, by a version that erases secrets."""

_SECRET_PATHS: Final = (f"{CONFIG_ROOT}/{USERS}/", f"{znodes.BROKER_CONFIGS}/")
_SECRET: Final = re.compile(rb"[A-Za-z0-9+/=]{24,}")
"""Hashes and encrypted passwords in base64. Names and values of other properties are shorter."""
_PIECE_BYTES: Final = 16
"""Of a secret that is searched for: a remaining part of 31 bytes contains a whole piece."""
_MAX_PIECES: Final = 64
"""More pieces are not searched for: the file is rebuilt, which takes 5 ms per MB."""
_CHUNK_BYTES: Final = 256 << 10
"""Of the file, searched at once. Whole pages, so that no row is divided."""


def has_secrets(path: str) -> bool:
    """Return whether the node may contain secrets."""
    return path.startswith(_SECRET_PATHS)


class SecretErasure:
    """Erases the secrets that the changes of a store remove. No method raises: an erasure that fails is repeated later.

    Call `on_open` once, `on_removal` for each removed or replaced value, and `after_commit` after the COMMIT.
    """

    def __init__(self, path: Path, reserve: Reserve) -> None:
        self._path = path
        self._reserve = reserve
        self._pieces: set[bytes] = set()
        self._is_due = False
        self._must_rebuild = False

    def on_open(self, connection: sqlite3.Connection, *, was_log_empty: bool) -> None:
        """Let the first commit erase what an earlier version, or a process that was killed, has left."""
        is_known = connection.execute("SELECT 1 FROM meta WHERE name = ?", (MARK,)).fetchone() is not None
        self._must_rebuild = not is_known
        self._is_due = not is_known or not was_log_empty

    def on_removal(self, removed: bytes | None, replacement: bytes | None) -> None:
        """Note a value that the current transaction removes."""
        if not removed or removed == replacement:
            return
        kept = replacement or b""
        for secret in _SECRET.findall(removed):
            ends = range(len(secret), _PIECE_BYTES - 1, -_PIECE_BYTES)
            pieces = (secret[end - _PIECE_BYTES : end] for end in ends)
            self._pieces.update(piece for piece in pieces if piece not in kept)
        self._is_due = self._is_due or bool(self._pieces)
        if len(self._pieces) > _MAX_PIECES:
            self._pieces.clear()
            self._must_rebuild = True

    def after_commit(self, connection: sqlite3.Connection) -> None:
        """Erase what the committed transactions have removed."""
        # On a full disk the log keeps its space, without which topics could not be deleted.
        if not self._is_due or not self._reserve.can_replace_log():
            return
        try:
            _truncate_log(connection)
            if self._must_rebuild or self._is_found(connection):
                _rebuild(connection)
                connection.execute("INSERT OR IGNORE INTO meta VALUES (?, 1)", (MARK,))
                _truncate_log(connection)
        except (sqlite3.Error, OSError) as error:
            self._must_rebuild = True
            logger.warning(
                "removed secrets may still be in the metadata store; the next change erases them path=%s error=%s",
                self._path, error,
            )  # fmt: skip
        else:
            self._is_due = self._must_rebuild = False
        self._pieces.clear()
        self._reserve.on_log_truncated()

    def _is_found(self, connection: sqlite3.Connection) -> bool:
        # Read by SQLite: a second descriptor of the file would drop the locks of the process when it is closed.
        content = memoryview(connection.serialize())
        for start in range(0, len(content), _CHUNK_BYTES):
            chunk = bytes(content[start : start + _CHUNK_BYTES])
            if any(piece in chunk for piece in self._pieces):
                return True
        return False


def _truncate_log(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _rebuild(connection: sqlite3.Connection) -> None:
    connection.execute("VACUUM")
