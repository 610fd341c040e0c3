"""Answers of a schema registry that hold for a whole batch.

The records of a batch are decoded several times: for rows and for dead letters of a pipeline that keeps state, by tasks
that are retried, and again after a crash. Meanwhile a schema may be registered or deleted, or be missing from a replica
of the registry. Then a record would be among both rows and dead letters, or among neither. So the first answer that a
worker gets is written to a file of the batch, beside Spark's checkpoint, and every worker uses that file.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark import TaskContext

from odradek.spark_it.formats.columns import UnavailableError
from odradek.spark_it.state.files import sync_folder

BATCH_ID = "streaming.sql.batchId"
"""Spark's local property with the batch's number, which tasks can read. Source: MicroBatchExecution."""
_KEPT = 2
"""Batches whose answers are kept: the current one and the one before."""


class Answer(NamedTuple):
    """The schema of an id; or, if `schema` is None, the reason why records with this id cannot be decoded."""

    schema: str | None
    why_not: str | None = None


class Place(NamedTuple):
    """Place of the answers for one side of a source: a folder that has a folder for each batch, and the name of the
    side in those. After `of_batch` it is the folder of one batch."""

    folder: str
    name: str

    def of_batch(self) -> "Place":
        """Return the place for the batch of this task. Raises UnavailableError outside of a batch."""
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if batch is None:
            raise UnavailableError("records are decoded outside of a batch")
        return self._replace(folder=f"{self.folder}/{batch}")


class Answers:
    """Answers for one side of a source in one batch, in a worker process."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[int, Answer] = {}

    def get(self, schema_id: int, ask: Callable[[int], Answer]) -> Answer:
        """Return the batch's answer for an id; `ask` is called if there is none yet. Raises UnavailableError."""
        found = self._known.get(schema_id)
        if found is None:
            path = Path(self._place.folder, f"{self._place.name}.{schema_id}")
            found = self._known[schema_id] = _read(path) or _put(path, ask(schema_id))
        return found


def begin(folder: Path | None, batch_id: int) -> None:
    """Create the folder of a batch, without which workers fail, and remove those of batches that cannot be repeated.

    Does nothing if `folder` is None. Raises OSError.
    """
    if folder is None:
        return
    (folder / str(batch_id)).mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name.isdigit() and int(old.name) <= batch_id - _KEPT:
            shutil.rmtree(old, ignore_errors=True)


def _read(path: Path) -> Answer | None:
    try:
        return Answer(*json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None


def _put(path: Path, answer: Answer) -> Answer:
    """Write an answer unless another worker was first. Return the answer that the file has."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            json.dump(answer, file)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        raise UnavailableError(
            f"{path.parent} does not exist on this machine; put `home` on a file system that all machines share"
        ) from None
    try:
        # Unlike a rename this fails if the file exists, and a file that exists is complete.
        path.hardlink_to(beside)
        sync_folder(path.parent)
    except FileExistsError:
        answer = _read(path) or answer
    finally:
        beside.unlink(missing_ok=True)
    return answer
