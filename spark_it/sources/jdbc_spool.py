"""Polls of a database on the disk of the driver: a file with rows for each, and one that says how far it went.

`polls/N.json` is written before `rows/N.parquet`; a poll is there when its rows are. Spark streams the folder `rows` in
the order of the files' times, which are made up so that they grow by a second from one to the next: Spark passes over a
file that is a week older than the newest, and so many polls it never is behind.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.spark_it.state_files import sync_folder, write_atomically

_EPOCH_S = 1_000_000_000
_DIGITS = 12


class Spool:
    """The polls of one source and one generation, from 0 on without a gap. Methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.rows = folder / "rows"
        self._polls = folder / "polls"
        self.rows.mkdir(parents=True, exist_ok=True)
        self._polls.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        for folder in (self.rows, self._polls):
            shutil.rmtree(folder)
            folder.mkdir()

    def last_number(self) -> int:
        """The number of the last poll; -1 if there is none."""
        return max((int(path.stem) for path in self.rows.glob("*.parquet") if path.stem.isdigit()), default=-1)

    def last(self) -> dict[str, Any] | None:
        """What `add` got with the last poll."""
        number = self.last_number()
        if number < 0:
            return None
        read: dict[str, Any] = json.loads((self._polls / f"{number:0{_DIGITS}d}.json").read_text("utf-8"))
        return read

    def add(self, table: pa.Table, reached: dict[str, Any]) -> int:
        """Adds a poll; returns its number."""
        number = self.last_number() + 1
        name = f"{number:0{_DIGITS}d}"
        write_atomically(self._polls / f"{name}.json", json.dumps(reached))
        beside = self.rows / f".{name}.{os.getpid()}.new"
        with beside.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        os.utime(beside, (_EPOCH_S + number, _EPOCH_S + number))
        beside.replace(self.rows / f"{name}.parquet")
        sync_folder(self.rows)
        return number

    def drop_before(self, number: int) -> None:
        """Deletes the polls before that one."""
        for folder in (self.rows, self._polls):
            for path in folder.iterdir():
                if path.stem.isdigit() and int(path.stem) < number:
                    path.unlink(missing_ok=True)
