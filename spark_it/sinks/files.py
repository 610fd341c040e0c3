"""The files sink, exactly once: a folder `batch=<generation>-<id>` for each batch, which any reader can read.

Spark writes into a folder whose name begins with a dot, which readers ignore. The complete folder is renamed,
atomically where the file system supports that (local file systems and HDFS; object stores copy). Its file `_rows`,
which readers ignore too, lists the other files: a folder that lacks one of them is an interrupted copy, and is written
again. `_done`, the last file, marks the folder as complete, even if readers delete files later. A complete folder is
never changed, whichever process writes the batch. The file `_state-<identity>` next to the folders names the state of
the pipeline that owns them; no other state writes.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.durations import WRITTEN
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import FilesSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.marker import marker_number
from odradek.spark_it.interfaces.sink import Batch, Claim, SinkError, Written
from odradek.spark_it.sinks.recorded import check_owners
from odradek.spark_it.spark.counting import CountedFrame
from odradek.spark_it.spark.errors import readable
from odradek.spark_it.spark.java import unavailable_reason

COLUMN = "batch"
"""The partition column that readers derive from the folders' names."""
ROWS = "_rows"
DONE = "_done"
STANDARD_CSV = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Spark options for RFC 4180: a quote within quotes is doubled, and spaces around a value are part of it."""

STATE = "_state-"
"""Prefix of the file with the owner; readers ignore files with this prefix."""

_FOLDER = re.compile(rf"{COLUMN}=(\d+)-(\d+)")
_ATTEMPT = re.compile(rf"\.{COLUMN}=(\d+)-(\d+)\.[0-9a-f]+")


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "Folders":
    """Return the sink of a pipeline."""
    sink = pipeline.sink
    assert isinstance(sink, FilesSink)
    return Folders(pipeline.located(sink.path), sink, spark)


class Folders:
    """A `BatchSink`."""

    takes_dead_letters = False

    def __init__(self, path: str, sink: FilesSink, spark: SparkSession) -> None:
        self._path = path
        self._sink = sink
        self._spark = spark
        self._files = _FileSystem(spark, path)

    def prepare(self, schema: StructType) -> None:
        if COLUMN in (name.lower() for name in schema.names):
            raise SinkError(
                f"column {COLUMN}: readers derive a column of this name from the folders' names; rename it in SQL"
            )
        if self._sink.format == "text" and [type(field.dataType) for field in schema.fields] != [StringType]:
            raise SinkError(f"format text needs a single STRING column; the rows are {schema.simpleString()}")
        with self._explained():
            self._delete_old_attempts()
            attempt_folder = self._attempt_folder("0-0")
            try:
                # Writing an empty frame detects types that the format does not support, and missing permissions.
                self._write(self._spark.createDataFrame([], schema), attempt_folder)
            finally:
                self._files.delete(attempt_folder)

    def _delete_old_attempts(self) -> None:
        """Delete the folders of killed attempts at batches that are written.

        An attempt at another batch may be another driver's, and still running: after a deletion it would write only its
        remaining files, and rename the folder as complete.
        """
        names = self._files.folders()
        newest = _newest(names)
        for name in names:
            if (match := _ATTEMPT.fullmatch(name)) and _marker(match) <= newest:
                self._files.delete(name)

    def recorded(self) -> int:
        with self._explained():
            return _newest(self._files.folders())

    def owners(self) -> frozenset[str]:
        with self._explained():
            return self._owners()

    def claim(self, claim: Claim) -> None:
        """Create the owner's file, then look for others: of two concurrent copies at least one detects the other."""
        title = f"files {self._path}"
        with self._explained():
            existing_owners = self._owners()
            if existing_owners == {claim.state}:
                return
            claim.check(existing_owners, title)
            own_file = f"{STATE}{claim.state}"
            self._files.create(own_file, "")
            try:
                claim.check(self._owners(), title)
            except SinkError:
                self._files.delete(own_file)
                raise
            for state in claim.replaced:
                self._files.delete(f"{STATE}{state}")

    def _owners(self) -> frozenset[str]:
        return frozenset(name.removeprefix(STATE) for name in self._files.files() if name.startswith(STATE))

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: Batch) -> Written:
        number = f"{batch.generation}-{batch.id}"
        name = f"{COLUMN}={number}"
        with self._explained():
            check_owners(self._owners(), batch, f"files {self._path}")
            written = self._rows_in(name)
            if written is not None:
                return Written(written)
            attempt_folder = self._attempt_folder(number)
            counted = CountedFrame(rows)
            try:
                self._write(counted.frame, attempt_folder)
                count = counted.rows()
                content = {"rows": count, "files": self._files.sizes(attempt_folder)}
                self._files.create(f"{attempt_folder}/{ROWS}", json.dumps(content))
                self._rename_attempt(attempt_folder, name)
                return Written(count)
            except BaseException:
                self._files.delete(attempt_folder)
                raise

    def _rename_attempt(self, attempt_folder: str, name: str) -> None:
        """Rename an attempt's folder to its final name, unless another driver has written the batch, with the same
        rows."""
        exists = self._files.is_there(name)
        if self._rows_in(name) is not None:
            self._files.delete(attempt_folder)
            return
        if exists:
            self._files.delete(name)
        self._files.rename(attempt_folder, name)
        self._files.create(f"{name}/{DONE}", "")

    def _rows_in(self, name: str) -> int | None:
        """Return the number of rows of a complete batch; None if it is missing or incomplete.

        If a crash prevented `_done`, create it: readers may delete files of a complete folder.
        """
        text = self._files.read(f"{name}/{ROWS}")
        if text is None:
            return None
        content = json.loads(text)
        if not self._files.is_there(f"{name}/{DONE}"):
            # `_rows` of an earlier version lists no files; it was the last file to be written.
            if "files" in content and not content["files"].items() <= self._files.sizes(name).items():
                return None
            self._files.create(f"{name}/{DONE}", "")
        return int(content["rows"])

    def _attempt_folder(self, number: str) -> str:
        return f".{COLUMN}={number}.{secrets.token_hex(4)}"

    def _write(self, frame: DataFrame, name: str) -> None:
        writer = frame.write.format(self._sink.format).mode("overwrite")
        if self._sink.compression_type is not None:
            writer = writer.option("compression", self._sink.compression_type)
        if self._sink.format in ("csv", "json"):
            writer = writer.options(**WRITTEN)
        if self._sink.format == "csv":
            writer = writer.options(header="true", **STANDARD_CSV)
        if self._sink.format == "json":
            writer = writer.option("ignoreNullFields", False)
        writer.save(f"{self._path}/{name}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of the file system to SinkError. Errors in the computation of the rows are not converted."""
        try:
            yield
        except AnalysisException as error:
            raise SinkError(f"files {self._path}: {readable(error)}") from None
        except Exception as error:
            reason = unavailable_reason(error, self._path)
            if reason is None:
                if isinstance(error, PySparkException) and "UNSUPPORTED" in str(error.getCondition()):
                    raise SinkError(f"files {self._path}: {readable(error)}") from None
                raise
            text = f"files {self._path}: {reason}; every executor needs the folder, free space and write permission"
            raise SinkError(text, is_retriable=True) from None

    def close(self) -> None:
        """Do nothing: nothing is held between batches."""


def _newest(names: Iterable[str]) -> int:
    """The marker of the newest batch that has a folder; 0 if none has."""
    return max((_marker(match) for match in map(_FOLDER.fullmatch, names) if match), default=0)


def _marker(match: re.Match[str]) -> int:
    return marker_number(int(match[1]), int(match[2]))


class _FileSystem:
    """File operations below a folder, on any file system that Spark supports, through Hadoop's API."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._root = path
        self._path = jvm.org.apache.hadoop.fs.Path

    def _at(self, name: str) -> tuple[Any, Any]:
        path = self._path(f"{self._root}/{name}" if name else self._root)
        return path.getFileSystem(self._configuration), path

    def folders(self) -> list[str]:
        return [str(status.getPath().getName()) for status in self._found() if status.isDirectory()]

    def files(self) -> list[str]:
        return [str(status.getPath().getName()) for status in self._found() if status.isFile()]

    def _found(self) -> Any:
        system, path = self._at("")
        return system.listStatus(path) if system.exists(path) else []

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""
        system, path = self._at(name)
        system.delete(path, True)

    def is_there(self, name: str) -> bool:
        system, path = self._at(name)
        return bool(system.exists(path))

    def sizes(self, name: str) -> dict[str, int]:
        """Return the sizes in bytes of the files in a folder, without those that readers ignore."""
        system, path = self._at(name)
        files = ((str(status.getPath().getName()), status) for status in system.listStatus(path) if status.isFile())
        return {file: int(status.getLen()) for file, status in files if file[0] not in "._"}

    def rename(self, old: str, new: str) -> None:
        """Rename a folder. Raises SinkError if the new name exists."""
        system, path = self._at(old)
        _, target = self._at(new)
        is_renamed = not system.exists(target) and system.rename(path, target)
        _, nested = self._at(f"{new}/{old}")
        if is_renamed and system.exists(nested):
            # Another driver created the folder after the check. Then `rename` moves the folder into the existing one.
            system.delete(nested, True)
            is_renamed = False
        if not is_renamed:
            raise SinkError(f"files {self._root}: {new} exists already, or cannot be created", is_retriable=True)

    def create(self, name: str, text: str) -> None:
        system, path = self._at(name)
        stream = system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def read(self, name: str) -> str | None:
        """Return the text of a small file; None if it does not exist or is empty."""
        system, path = self._at(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")) or None
        finally:
            stream.close()
