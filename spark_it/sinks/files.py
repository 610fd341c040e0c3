"""The files sink, exactly once: a folder `batch=<generation>-<id>` for each batch, which any program can read.

Spark writes into a folder whose name begins with a dot, which readers ignore. The complete folder is renamed,
atomically where the file system supports that (local file systems and HDFS; object stores copy). Its file `_rows`,
which readers ignore too, lists the other files: a folder that lacks one of them is an interrupted copy, and is written
again. `_done`, the last file, marks the folder as complete, even if readers delete files later. A complete folder is
never changed, not even by another process that writes the batch. The file `_state-<identity>` next to the folders names
the state of the pipeline that owns them; no other state writes.
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
from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import FilesSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.sinks.marker_checks import check_owners
from odradek.spark_it.spark.counting import CountedFrame
from odradek.spark_it.spark.errors import describe_error
from odradek.spark_it.spark.java import find_unavailable_reason

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
) -> "FolderSink":
    """Return the sink of a pipeline."""
    sink = pipeline.sink
    assert isinstance(sink, FilesSink)
    return FolderSink(pipeline.locate_path(sink.path), sink, spark)


class FolderSink:
    """A `BatchSink` with a folder for each batch."""

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
        with self._wrapping_errors():
            self._delete_old_attempts()
            attempt_folder = self._make_attempt_name("0-0")
            try:
                # Writing an empty frame detects types that the format does not support, and missing permissions.
                self._write_frame(self._spark.createDataFrame([], schema), attempt_folder)
            finally:
                self._files.delete(attempt_folder)

    def _delete_old_attempts(self) -> None:
        """Delete the folders of killed attempts at batches that are written.

        An attempt at another batch may be that of another driver that still runs: after a deletion it would write only
        its remaining files, and rename the folder as complete.
        """
        names = self._files.list_folders()
        newest = _find_newest_marker(names)
        for name in names:
            if (match := _ATTEMPT.fullmatch(name)) and _parse_marker(match) <= newest:
                self._files.delete(name)

    def read_marker(self) -> int:
        with self._wrapping_errors():
            return _find_newest_marker(self._files.list_folders())

    def read_owners(self) -> frozenset[str]:
        with self._wrapping_errors():
            return self._list_owners()

    def claim(self, claim: Claim) -> None:
        """Create the owner's file, then look for other owners: of two concurrent copies at least one detects the
        other."""
        title = f"files {self._path}"
        with self._wrapping_errors():
            existing_owners = self._list_owners()
            if existing_owners == {claim.state}:
                return
            claim.check(existing_owners, title)
            own_file = f"{STATE}{claim.state}"
            self._files.create(own_file, "")
            try:
                claim.check(self._list_owners(), title)
            except SinkError:
                self._files.delete(own_file)
                raise
            for state in claim.replaced:
                self._files.delete(f"{STATE}{state}")

    def _list_owners(self) -> frozenset[str]:
        return frozenset(name.removeprefix(STATE) for name in self._files.list_files() if name.startswith(STATE))

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: SinkBatch) -> WrittenCounts:
        number = f"{batch.generation}-{batch.id}"
        name = f"{COLUMN}={number}"
        with self._wrapping_errors():
            check_owners(self._list_owners(), batch, f"files {self._path}")
            written = self._read_row_count(name)
            if written is not None:
                return WrittenCounts(written)
            attempt_folder = self._make_attempt_name(number)
            counted = CountedFrame(rows)
            try:
                self._write_frame(counted.frame, attempt_folder)
                count = counted.get_row_count()
                content = {"rows": count, "files": self._files.list_sizes(attempt_folder)}
                self._files.create(f"{attempt_folder}/{ROWS}", json.dumps(content))
                self._rename_attempt(attempt_folder, name)
                return WrittenCounts(count)
            except BaseException:
                self._files.delete(attempt_folder)
                raise

    def _rename_attempt(self, attempt_folder: str, name: str) -> None:
        """Rename an attempt's folder to its final name, unless another driver has written the batch, with the same
        rows."""
        exists = self._files.exists(name)
        if self._read_row_count(name) is not None:
            self._files.delete(attempt_folder)
            return
        if exists:
            self._files.delete(name)
        self._files.rename(attempt_folder, name)
        self._files.create(f"{name}/{DONE}", "")

    def _read_row_count(self, name: str) -> int | None:
        """Return the number of rows of a complete batch; None if it is missing or incomplete.

        If a crash prevented `_done`, create it: readers may delete files of a complete folder.
        """
        text = self._files.read(f"{name}/{ROWS}")
        if text is None:
            return None
        content = json.loads(text)
        if not self._files.exists(f"{name}/{DONE}"):
            # `_rows` of an earlier version lists no files; it was the last file to be written.
            if "files" in content and not content["files"].items() <= self._files.list_sizes(name).items():
                return None
            self._files.create(f"{name}/{DONE}", "")
        return int(content["rows"])

    def _make_attempt_name(self, number: str) -> str:
        return f".{COLUMN}={number}.{secrets.token_hex(4)}"

    def _write_frame(self, frame: DataFrame, name: str) -> None:
        writer = frame.write.format(self._sink.format).mode("overwrite")
        if self._sink.compression_type is not None:
            writer = writer.option("compression", self._sink.compression_type)
        if self._sink.format in ("csv", "json"):
            writer = writer.options(**TIMESTAMP_OPTIONS)
        if self._sink.format == "csv":
            writer = writer.options(header="true", **STANDARD_CSV)
        if self._sink.format == "json":
            writer = writer.option("ignoreNullFields", False)
        writer.save(f"{self._path}/{name}")

    @contextmanager
    def _wrapping_errors(self) -> Iterator[None]:
        """Convert errors of the file system to SinkError. Errors in the computation of the rows are not converted."""
        try:
            yield
        except AnalysisException as error:
            raise SinkError(f"files {self._path}: {describe_error(error)}") from None
        except Exception as error:
            reason = find_unavailable_reason(error, self._path)
            if reason is None:
                if isinstance(error, PySparkException) and "UNSUPPORTED" in str(error.getCondition()):
                    raise SinkError(f"files {self._path}: {describe_error(error)}") from None
                raise
            text = f"files {self._path}: {reason}; every executor needs the folder, free space and write permission"
            raise SinkError(text, is_retriable=True) from None

    def close(self) -> None:
        """Do nothing: no resources are held between batches."""


def _find_newest_marker(names: Iterable[str]) -> int:
    """Return the marker of the newest batch that has a folder; 0 if no batch has one."""
    return max((_parse_marker(match) for match in map(_FOLDER.fullmatch, names) if match), default=0)


def _parse_marker(match: re.Match[str]) -> int:
    return make_marker_number(int(match[1]), int(match[2]))


class _FileSystem:
    """File operations below a folder, on any file system that Spark supports, through Hadoop's API."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._root = path
        self._path = jvm.org.apache.hadoop.fs.Path

    def _resolve(self, name: str) -> tuple[Any, Any]:
        path = self._path(f"{self._root}/{name}" if name else self._root)
        return path.getFileSystem(self._configuration), path

    def list_folders(self) -> list[str]:
        return [str(status.getPath().getName()) for status in self._list_statuses() if status.isDirectory()]

    def list_files(self) -> list[str]:
        return [str(status.getPath().getName()) for status in self._list_statuses() if status.isFile()]

    def _list_statuses(self) -> Any:
        system, path = self._resolve("")
        return system.listStatus(path) if system.exists(path) else []

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""
        system, path = self._resolve(name)
        system.delete(path, True)

    def exists(self, name: str) -> bool:
        system, path = self._resolve(name)
        return bool(system.exists(path))

    def list_sizes(self, name: str) -> dict[str, int]:
        """Return the sizes in bytes of the files in a folder, without those that readers ignore."""
        system, path = self._resolve(name)
        files = ((str(status.getPath().getName()), status) for status in system.listStatus(path) if status.isFile())
        return {file: int(status.getLen()) for file, status in files if file[0] not in "._"}

    def rename(self, old: str, new: str) -> None:
        """Rename a folder. Raises SinkError if the new name exists."""
        system, path = self._resolve(old)
        _, target = self._resolve(new)
        is_renamed = not system.exists(target) and system.rename(path, target)
        _, nested = self._resolve(f"{new}/{old}")
        if is_renamed and system.exists(nested):
            # Another driver created the folder after the check. Then `rename` moves the folder into the existing one.
            system.delete(nested, True)
            is_renamed = False
        if not is_renamed:
            raise SinkError(f"files {self._root}: {new} exists already, or cannot be created", is_retriable=True)

    def create(self, name: str, text: str) -> None:
        system, path = self._resolve(name)
        stream = system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def read(self, name: str) -> str | None:
        """Return the text of a small file; None if it does not exist or is empty."""
        system, path = self._resolve(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")) or None
        finally:
            stream.close()
