"""Responses of a schema registry that are stored for a batch.

The records of a batch are decoded several times: for the rows and the dead letters of a stateful pipeline, by retried
tasks, and again after a crash. In between a schema may be registered or deleted, or be missing in a replica of the
registry. Then a record could be in both rows and dead letters, or in neither. Therefore the first response of a worker
is written to a file of the batch, next to Spark's checkpoint, and every worker uses that file.
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
_RETAINED_BATCHES = 2
"""Number of batches whose responses are retained: the current one and the previous one."""


class SchemaResponse(NamedTuple):
    """The schema of an id; if `schema` is None, `reason` states why records with this id cannot be decoded."""

    schema: str | None
    reason: str | None = None


class ResponseLocation(NamedTuple):
    """Location of the stored responses for keys or values of a source: a folder with a subfolder per batch, and the
    name of the files in it. The result of `get_batch_location` has the subfolder of one batch as its folder."""

    folder: str
    name: str

    def get_batch_location(self) -> "ResponseLocation":
        """Return the location for the batch of this task. Raises UnavailableError outside of a batch."""
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if batch is None:
            raise UnavailableError("records are decoded outside of a batch")
        return self._replace(folder=f"{self.folder}/{batch}")


class StoredResponses:
    """Stored responses for one side of a source in one batch. A worker process has one instance."""

    def __init__(self, location: ResponseLocation) -> None:
        self._location = location
        self._by_id: dict[int, SchemaResponse] = {}

    def get(self, schema_id: int, request: Callable[[int], SchemaResponse]) -> SchemaResponse:
        """Return the batch's response for an id; call `request` if none is stored yet. Raises UnavailableError."""
        found = self._by_id.get(schema_id)
        if found is None:
            path = Path(self._location.folder, f"{self._location.name}.{schema_id}")
            found = self._by_id[schema_id] = _read_response(path) or _store_response(path, request(schema_id))
        return found


def begin_batch(folder: Path | None, batch_id: int) -> None:
    """Create the folder of a batch, which workers require, and remove those of batches that are never repeated.

    Does nothing if `folder` is None. Raises OSError.
    """
    if folder is None:
        return
    (folder / str(batch_id)).mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name.isdigit() and int(old.name) <= batch_id - _RETAINED_BATCHES:
            shutil.rmtree(old, ignore_errors=True)


def _read_response(path: Path) -> SchemaResponse | None:
    try:
        return SchemaResponse(*json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None


def _store_response(path: Path, response: SchemaResponse) -> SchemaResponse:
    """Store a response, unless another worker has stored one. Return the stored response."""
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
        response = _read_response(path) or response
    finally:
        temporary.unlink(missing_ok=True)
    return response
