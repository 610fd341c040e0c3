"""Polls of a database on the disk of the driver: a Parquet file for each, with its rows and how far the poll went.

Spark streams the folder `rows` in the order of the files' times, which are made up so that they grow by a second from
one to the next: Spark passes over a file that is a week older than the newest, and so many polls it never is behind.

A spool has one writer, the last to `claim` it. A poll is written beside its place, then the claim is compared, then the
file is moved to its place; a claim is written first, then files beside their place are deleted. So what an earlier
writer does late is refused by its claim, or by the loss of its file, even where the lock of the folder is not seen by
another machine.
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


class FencedError(Exception):
    """A later writer has claimed the spool; `str()` names the folder."""


class Last(NamedTuple):
    """The last poll: its number, -1 if there is none, and what `add` got with it."""

    number: int
    reached: dict[str, Any]


class Spool:
    """The polls of one source and one generation, from 0 on without a gap. Methods raise OSError; those that write
    raise FencedError unless this is the writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows = folder / "rows"
        # On this machine, whatever Hadoop's default file system is.
        self.address = f"file:{self.rows}"
        self._writer = folder / "writer"
        self._claim = ""
        self.rows.mkdir(parents=True, exist_ok=True)

    def claim(self) -> None:
        """Makes this the writer in place of any other."""
        with self._locked():
            self._claim = uuid.uuid4().hex
            write_atomically(self._writer, self._claim)
            for path in self.rows.glob(".*.new"):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        with self._held():
            shutil.rmtree(self.rows)
            self.rows.mkdir()

    def last_number(self) -> int:
        """The number of the last poll; -1 if there is none."""
        return max((int(path.stem) for path in self.rows.glob("*.parquet") if path.stem.isdigit()), default=-1)

    def last(self) -> Last:
        """The last poll."""
        number = self.last_number()
        if number < 0:
            return Last(number, {})
        reached: dict[str, Any] = json.loads(pq.read_schema(self._path(number)).metadata[_REACHED])
        return Last(number, reached)

    def add(self, table: pa.Table, reached: dict[str, Any], after: int) -> int:
        """Adds the poll that follows number `after`; returns its number."""
        number = after + 1
        beside = self.rows / f".{number:0{_DIGITS}d}.{self._claim}.new"
        metadata = {**(table.schema.metadata or {}), _REACHED: json.dumps(reached).encode()}
        try:
            with beside.open("wb") as file:
                pq.write_table(table.replace_schema_metadata(metadata), file)
                file.flush()
                os.fsync(file.fileno())
            os.utime(beside, (_EPOCH_S + number, _EPOCH_S + number))
            with self._held():
                if self.last_number() != after:
                    raise FencedError(f"{self._folder} has other polls than its writer has put there")
                beside.replace(self._path(number))
                sync_folder(self.rows)
        except FileNotFoundError:
            # Deleted by a later claim, by itself or with the folder.
            raise self._fenced() from None
        finally:
            beside.unlink(missing_ok=True)
        return number

    def drop_before(self, number: int) -> None:
        """Deletes the polls before that one."""
        with self._held():
            for path in self.rows.iterdir():
                if path.stem.isdigit() and int(path.stem) < number:
                    path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.rows / f"{number:0{_DIGITS}d}.parquet"

    def _fenced(self) -> FencedError:
        return FencedError(f"{self._folder} has a later writer")

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The block runs while no other writer can claim the spool."""
        try:
            with self._locked():
                if self._writer.read_text("utf-8") != self._claim:
                    raise self._fenced()
                yield
        except FileNotFoundError:
            raise self._fenced() from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
