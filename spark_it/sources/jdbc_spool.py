"""The spool of a database source, on the driver's disk: a Parquet file for each poll, with its rows and its end.

Spark streams the folder `rows` in the order of modification times. These times are synthetic and increase by a second
from file to file. Spark ignores files that are more than a week older than the newest, but it is never that many polls
behind.

A spool has one writer, the last one to `claim` it. A writer writes a poll to a temporary file, compares the claim, and
renames the file. A claim is written before temporary files are deleted. So a late write of an earlier writer fails
because of the claim or because its file is deleted, even if the lock of the folder does not work across machines.
"""

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.spark_it.state.files import sync_folder, write_atomically

_EPOCH_S = 1_000_000_000
_DIGITS = 12
_REACHED = b"odradek.reached"


class SpoolFencedError(Exception):
    """A later writer has claimed the spool; `str()` names the folder."""


class LastPoll(NamedTuple):
    """The last poll: its number, -1 if there is none, and the position that `add` recorded."""

    number: int
    reached: dict[str, Any]


class Spool:
    """The polls of one source and one generation, numbered from 0 without a gap.

    Methods raise OSError; those that write raise SpoolFencedError unless this is the writer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows = folder / "rows"
        # On the local file system, even if Hadoop's default is another one.
        self.address = f"file:{self.rows}"
        self._writer = folder / "writer"
        self._claim = ""
        self.rows.mkdir(parents=True, exist_ok=True)

    def claim(self) -> None:
        """Become the writer, and fence any other."""
        with self._holding_lock():
            self._claim = uuid.uuid4().hex
            write_atomically(self._writer, self._claim)
            for path in self.rows.glob(".*.new"):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        with self._holding_claim():
            shutil.rmtree(self.rows)
            self.rows.mkdir()

    def find_last_number(self) -> int:
        """Return the number of the last poll; -1 if there is none."""
        return max((int(path.stem) for path in self.rows.glob("*.parquet") if path.stem.isdigit()), default=-1)

    def read_last(self) -> LastPoll:
        """Return the last poll."""
        number = self.find_last_number()
        if number < 0:
            return LastPoll(number, {})
        reached: dict[str, Any] = json.loads(pq.read_schema(self._path(number)).metadata[_REACHED])
        return LastPoll(number, reached)

    def add(self, table: pa.Table, reached: dict[str, Any], after: int) -> int:
        """Add the poll that follows number `after`; return its number."""
        number = after + 1
        temporary = self.rows / f".{number:0{_DIGITS}d}.{self._claim}.new"
        metadata = {**(table.schema.metadata or {}), _REACHED: json.dumps(reached).encode()}
        try:
            with temporary.open("wb") as file:
                pq.write_table(table.replace_schema_metadata(metadata), file)
                file.flush()
                os.fsync(file.fileno())
            os.utime(temporary, (_EPOCH_S + number, _EPOCH_S + number))
            with self._holding_claim():
                if self.find_last_number() != after:
                    raise SpoolFencedError(f"{self._folder} has polls of another writer")
                temporary.replace(self._path(number))
                sync_folder(self.rows)
        except FileNotFoundError:
            # A later claim has deleted the file or the folder.
            raise self._make_fenced_error() from None
        finally:
            temporary.unlink(missing_ok=True)
        return number

    def drop_before(self, number: int) -> None:
        """Delete the polls before a number."""
        with self._holding_claim():
            for path in self.rows.iterdir():
                if path.stem.isdigit() and int(path.stem) < number:
                    path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.rows / f"{number:0{_DIGITS}d}.parquet"

    def _make_fenced_error(self) -> SpoolFencedError:
        return SpoolFencedError(f"{self._folder} has a later writer")

    @contextmanager
    def _holding_claim(self) -> Iterator[None]:
        """Prevent claims by other writers for the duration of the `with` block."""
        try:
            with self._holding_lock():
                if self._writer.read_text("utf-8") != self._claim:
                    raise self._make_fenced_error()
                yield
        except FileNotFoundError:
            raise self._make_fenced_error() from None

    @contextmanager
    def _holding_lock(self) -> Iterator[None]:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
