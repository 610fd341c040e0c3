"""Responses of a schema registry that are stored for a batch.

The records of a batch are decoded several times: for the rows and the dead letters of a stateful pipeline, by retried
tasks, and again after a crash. In between a schema may be registered or deleted, or be missing in a replica of the
registry. Then a record could be in both rows and dead letters, or in neither. So the first response that a worker
receives is written to a file of the batch, next to Spark's checkpoint, and every worker uses that file.
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
"""Number of batches whose responses are retained: the current one and the previous one."""


class Answer(NamedTuple):
    """The schema of an id; or, if `schema` is None, the reason why records with this id cannot be decoded."""

    schema: str | None
    why_not: str | None = None


class Place(NamedTuple):
    """Place of the stored responses for one side of a source: a folder with a subfolder per batch, and the side's name
    in those. The result of `of_batch` has the subfolder of one batch."""

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
    """Stored responses for one side of a source in one batch, in a worker process."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[int, Answer] = {}

    def get(self, schema_id: int, ask: Callable[[int], Answer]) -> Answer:
        """Return the batch's response for an id; `ask` is called if none is stored yet. Raises UnavailableError."""
        found = self._known.get(schema_id)
        if found is None:
            path = Path(self._place.folder, f"{self._place.name}.{schema_id}")
            found = self._known[schema_id] = _read(path) or _put(path, ask(schema_id))
        return found


def begin(folder: Path | None, batch_id: int) -> None:
    """Create the folder of a batch, which workers require, and remove those of batches that cannot be repeated.

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


def _put(path: Path, response: Answer) -> Answer:
    """Store a response, unless another worker has done so. Return the stored response."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(response, file)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        raise UnavailableError(
            f"{path.parent} does not exist on this machine; put `home` on a file system that all machines share"
        ) from None
    try:
        # Unlike a rename this fails if the file exists, and a file that exists is complete.
        path.hardlink_to(temporary)
        sync_folder(path.parent)
    except FileExistsError:
        response = _read(path) or response
    finally:
        temporary.unlink(missing_ok=True)
    return response
