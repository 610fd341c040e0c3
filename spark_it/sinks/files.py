"""The files sink, exactly once: a folder `batch=<generation>-<id>` for each batch, which any reader can read.

Spark writes into a folder whose name begins with a dot, which readers ignore. The folder is renamed when it is
complete, in one step where the file system supports that (every local one and HDFS; object stores copy). The file
`_rows` in it, which readers ignore too, names the other files: a folder that lacks one of them is an interrupted copy
and is written again. `_done`, the last file, marks a folder as complete, even if readers delete files later. A complete
folder is never changed, whichever process writes the batch. The file `_state-<identity>` beside the folders names the
state of the pipeline that writes them; no other state does.
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
from odradek.spark_it.spark.java import what_is_down

COLUMN = "batch"
"""What readers call the column that they make of the folders' names."""
ROWS = "_rows"
DONE = "_done"
STANDARD_CSV = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Options of Spark by which a quote within quotes is doubled (RFC 4180), and spaces around a value belong to it."""

STATE = "_state-"
"""Begins the name of a file; readers leave it out."""

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
                f"column {COLUMN}: readers make a column of that name of the folders of the batches; "
                "call it something else in SQL"
            )
        if self._sink.format == "text" and [type(field.dataType) for field in schema.fields] != [StringType]:
            raise SinkError(f"format text takes one column, a string; the rows are {schema.simpleString()}")
        with self._explained():
            self._tidy()
            beside = self._beside("0-0")
            try:
                # No rows, but Spark says what the format does not take, and the file system what it does not allow.
                self._write(self._spark.createDataFrame([], schema), beside)
            finally:
                self._files.delete(beside)

    def _tidy(self) -> None:
        """Deletes what attempts have left that died. Those at a batch that is not written may be another driver's, and
        alive: Spark would put in place what comes after the deletion, and take it for all."""
        names = self._files.folders()
        newest = _newest(names)
        for name in names:
            if (found := _ATTEMPT.fullmatch(name)) and _marker(found) <= newest:
                self._files.delete(name)

    def recorded(self) -> int:
        with self._explained():
            return _newest(self._files.folders())

    def owners(self) -> frozenset[str]:
        with self._explained():
            return self._owners()

    def claim(self, claim: Claim) -> None:
        """Create a file, and then look for those of others: of two copies at least one finds the other."""
        title = f"files {self._path}"
        with self._explained():
            before = self._owners()
            if before == {claim.state}:
                return
            claim.check(before, title)
            mine = f"{STATE}{claim.state}"
            self._files.create(mine, "")
            try:
                claim.check(self._owners(), title)
            except SinkError:
                self._files.delete(mine)
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
            beside = self._beside(number)
            counted = CountedFrame(rows)
            try:
                self._write(counted.frame, beside)
                count = counted.rows()
                whole = {"rows": count, "files": self._files.sizes(beside)}
                self._files.create(f"{beside}/{ROWS}", json.dumps(whole))
                self._put_in_place(beside, name)
                return Written(count)
            except BaseException:
                self._files.delete(beside)
                raise

    def _put_in_place(self, beside: str, name: str) -> None:
        """Gives a folder its name, unless another driver has put one there by now, which has the same rows."""
        is_there = self._files.is_there(name)
        if self._rows_in(name) is not None:
            self._files.delete(beside)
            return
        if is_there:
            self._files.delete(name)
        self._files.rename(beside, name)
        self._files.create(f"{name}/{DONE}", "")

    def _rows_in(self, name: str) -> int | None:
        """The rows of a batch that is there and whole; else None. A whole one is marked as done, if a crash came first:
        readers may delete its files from then on."""
        text = self._files.read(f"{name}/{ROWS}")
        if text is None:
            return None
        whole = json.loads(text)
        if not self._files.is_there(f"{name}/{DONE}"):
            # One without names was written last of all.
            if "files" in whole and not whole["files"].items() <= self._files.sizes(name).items():
                return None
            self._files.create(f"{name}/{DONE}", "")
        return int(whole["rows"])

    def _beside(self, number: str) -> str:
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
        """Turns what the file system says into what to do about it; an error of the rows' own goes on as it is."""
        try:
            yield
        except AnalysisException as error:
            raise SinkError(f"files {self._path}: {readable(error)}") from None
        except Exception as error:
            said = what_is_down(error, self._path)
            if said is None:
                if isinstance(error, PySparkException) and "UNSUPPORTED" in str(error.getCondition()):
                    raise SinkError(f"files {self._path}: {readable(error)}") from None
                raise
            text = f"files {self._path}: {said}; the folder must be there for every executor, with room and rights"
            raise SinkError(text, is_retriable=True) from None

    def close(self) -> None:
        """Do nothing: nothing is held between batches."""


def _newest(names: Iterable[str]) -> int:
    """The marker of the newest batch that has a folder; 0 if none has."""
    return max((_marker(found) for found in map(_FOLDER.fullmatch, names) if found), default=0)


def _marker(found: re.Match[str]) -> int:
    return marker_number(int(found[1]), int(found[2]))


class _FileSystem:
    """Names below a folder, on whatever file system it is, through Hadoop's API as Spark uses it."""

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
        """Deletes a folder and what is in it, if it is there."""
        system, path = self._at(name)
        system.delete(path, True)

    def is_there(self, name: str) -> bool:
        system, path = self._at(name)
        return bool(system.exists(path))

    def sizes(self, name: str) -> dict[str, int]:
        """The bytes of the files in a folder, but for those that readers leave out."""
        system, path = self._at(name)
        files = ((str(status.getPath().getName()), status) for status in system.listStatus(path) if status.isFile())
        return {file: int(status.getLen()) for file, status in files if file[0] not in "._"}

    def rename(self, old: str, new: str) -> None:
        """Raises SinkError when there is something of the new name."""
        system, path = self._at(old)
        _, target = self._at(new)
        is_done = not system.exists(target) and system.rename(path, target)
        _, within = self._at(f"{new}/{old}")
        if is_done and system.exists(within):
            # The other came between the two: a file system moves a folder into the one that has its name.
            system.delete(within, True)
            is_done = False
        if not is_done:
            raise SinkError(f"files {self._root}: {new} is there already, or cannot be made", is_retriable=True)

    def create(self, name: str, text: str) -> None:
        system, path = self._at(name)
        stream = system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def read(self, name: str) -> str | None:
        """The text of a small file; None if it does not exist, or empty."""
        system, path = self._at(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")) or None
        finally:
            stream.close()
