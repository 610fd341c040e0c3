"""The files sink, whose folders are read by pyarrow as well as by Spark."""

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet
import pytest
from pyspark.sql import functions as f

from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.sinks import files as files_sink
from spark_it.tests.spark.batches import GENERATION, batch, pipeline_of, sink_for


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink_to(spark, tmp_path):
    def made(format_="parquet", keys="", session=None):
        text = f'connector = "files"\npath = "out"\nformat = "{format_}"\n{keys}'
        return sink_for(pipeline_of(text, tmp_path), session or spark)

    return made


def numbers(spark, count, start=0):
    return spark.range(start, start + count, 1, 3).select("id", f.format_string("row %d", "id").alias("text"))


def visible(folder: Path):
    """Files that readers do not skip, by folder."""
    found = {}
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part[0] in "._" for part in parts):
            found.setdefault(parts[:-1], []).append(parts[-1])
    return found


def test_a_repeated_batch_is_written_once(spark, sink_to, out):
    sink = sink_to()
    sink.prepare(numbers(spark, 1).schema)
    assert sink.read_marker() == 0
    for number in (0, 1):
        part = numbers(spark, 1000, 1000 * number)
        assert sink.write(part, None, batch(spark, number)).rows == 1000
        assert sink.write(part, None, batch(spark, number)).rows == 1000
    other = spark.newSession()
    again = sink_to(session=other)
    again.prepare(numbers(spark, 1).schema)
    assert again.read_marker() == make_marker_number(GENERATION, 1)
    assert again.write(numbers(other, 1000, 1000), None, batch(other, 1)).rows == 1000
    assert again.write(numbers(other, 500, 2000), None, batch(other, 2)).rows == 500
    table = pyarrow.parquet.read_table(out)
    assert (table.num_rows, len(set(table["id"].to_pylist()))) == (2500, 2500)
    assert pyarrow.dataset.dataset(out).count_rows() == 2500
    read = spark.read.parquet(str(out))
    assert (read.count(), read.select("id").distinct().count()) == (2500, 2500)
    assert {row[0] for row in read.select("batch").distinct().collect()} == {f"{GENERATION}-{n}" for n in range(3)}
    assert [len(folder) for folder in visible(out)] == [1, 1, 1]


def test_a_new_generation_writes_beside_the_old(spark, sink_to, out):
    sink = sink_to()
    for generation in (GENERATION, GENERATION + 1):
        sink.write(numbers(spark, 10), None, batch(spark, 0, generation))
    assert pyarrow.parquet.read_table(out).num_rows == 20
    assert sink.read_marker() == make_marker_number(GENERATION + 1, 0)
    assert sorted(visible(out)) == [(f"batch={GENERATION}-0",), (f"batch={GENERATION + 1}-0",)]


@pytest.mark.parametrize("window", ["rename", f"create {files_sink.ROWS}", f"create {files_sink.DONE}"])
def test_killed_while_a_folder_is_renamed(spark, sink_to, out, monkeypatch, window):
    sink = sink_to()
    rows = numbers(spark, 100)
    sink.prepare(rows.schema)
    sink.write(rows, None, batch(spark, 0))
    method, _, file = window.partition(" ")
    does = getattr(files_sink._FileSystem, method)

    class KilledError(BaseException):
        pass

    def dies(system, name, *more):
        if not name.endswith(file):
            return does(system, name, *more)
        patched.setattr(files_sink._FileSystem, "delete", lambda *_: None)  # a killed process deletes nothing
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(files_sink._FileSystem, method, dies)
        with pytest.raises(KilledError):
            sink.write(numbers(spark, 100, 100), None, batch(spark, 1))
    there = visible(out)
    assert pyarrow.parquet.read_table(out).num_rows == (200 if file == files_sink.DONE else 100)
    again = sink_to()
    again.prepare(rows.schema)
    assert again.write(numbers(spark, 100, 100), None, batch(spark, 1)).rows == 100
    assert sorted(pyarrow.parquet.read_table(out)["id"].to_pylist()) == list(range(200))
    # All files stay, so no reader finds their rows in other files.
    assert there.items() <= visible(out).items()
    sink_to().prepare(rows.schema)
    assert [path.name for path in out.glob(".batch*")] == []


def test_two_drivers_at_one_batch(spark, sink_to, out, monkeypatch):
    """One of them is presumed dead. After it has written its own files it finds the batch written, and leaves it."""
    first, sleeper = sink_to(), sink_to(session=spark.newSession())
    rows = numbers(spark, 100)
    first.prepare(rows.schema)
    there = {}

    def overtaken(moment):
        write = getattr(sleeper, moment)

        def overtaken_there(*given):
            done = write(*given)
            monkeypatch.undo()
            # A driver that starts does not delete what another one is writing.
            first.prepare(rows.schema)
            assert first.write(rows, None, batch(spark, len(there))).rows == 100
            there.update(visible(out))
            return done

        monkeypatch.setattr(sleeper, moment, overtaken_there)

    for number, moment in enumerate(("_write_frame", "_make_attempt_name")):
        overtaken(moment)
        assert sleeper.write(numbers(sleeper._spark, 100), None, batch(sleeper._spark, number)).rows == 100
        assert visible(out) == there
    sink_to().prepare(rows.schema)
    assert [path.name for path in out.glob(".batch*")] == []


def test_a_rename_by_copying_that_was_interrupted(spark, sink_to, out):
    """An object store renames a folder by copying its files."""
    sink = sink_to()
    sink.write(numbers(spark, 100), None, batch(spark, 0))
    [folder] = out.glob("batch=*")
    (folder / files_sink.DONE).unlink()
    next(folder.glob("part-*")).unlink()
    assert sink.write(numbers(spark, 100), None, batch(spark, 0)).rows == 100
    assert sorted(pyarrow.parquet.read_table(out)["id"].to_pylist()) == list(range(100))
    # After a crash before DONE was created, the repeated batch creates it.
    (folder / files_sink.DONE).unlink()
    assert sink.write(numbers(spark, 100), None, batch(spark, 0)).rows == 100
    # Readers may delete the files of a completed batch that they have read.
    for part in folder.glob("part-*"):
        part.unlink()
    assert sink.write(numbers(spark, 100), None, batch(spark, 0)).rows == 100
    assert visible(out) == {}


def test_every_format(spark, tmp_path):
    texts = ["a,b", None, 'c"\nd', ' "\\", ', "  x "]
    rows = spark.createDataFrame(list(enumerate(texts, 1)), "id int, text string").coalesce(1)
    for format_, keys in (("json", ""), ("csv", ""), ("parquet", 'compression.type = "zstd"'), ("text", "")):
        text = f'connector = "files"\npath = "{format_}"\nformat = "{format_}"\n{keys}'
        sink = sink_for(pipeline_of(text, tmp_path), spark)
        frame = rows.select(f.col("id").cast("string")) if format_ == "text" else rows
        sink.prepare(frame.schema)
        assert sink.write(frame, None, batch(spark, 0)).rows == 5
        [[name]] = visible(tmp_path / format_).values()
        [file] = (tmp_path / format_).rglob(name)
        expected = [{"id": number, "text": one} for number, one in enumerate(texts, 1)]
        if format_ == "json":
            assert pyarrow.json.read_json(file).to_pylist() == expected
            assert [json.loads(line) for line in file.read_text().splitlines()] == expected
        elif format_ == "parquet":
            assert pyarrow.parquet.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
            assert pyarrow.parquet.read_table(file, partitioning=None).to_pylist() == expected
        elif format_ == "csv":
            read = pyarrow.csv.read_csv(
                file,
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
            )
            assert read.to_pylist() == expected
        else:
            assert file.read_text() == "1\n2\n3\n4\n5\n"


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_timestamps_keep_their_microseconds(spark, sink_to, out, format_):
    frame = spark.sql("SELECT TIMESTAMP '2026-01-02 03:04:05.000007Z' AS a, TIMESTAMP_NTZ '2026-01-02 03:04:05.1' AS b")
    sink_to(format_).write(frame, None, batch(spark, 0))
    [path] = out.rglob(f"*.{format_}")
    read = getattr(spark.read.schema("a timestamp, b timestamp_ntz"), format_)
    assert read(str(path), **({"header": True} if format_ == "csv" else {})).collect() == frame.collect()
    assert "05.000007Z" in path.read_text() and "05.100000" in path.read_text()


def test_a_batch_without_rows(spark, sink_to, out):
    sink = sink_to()
    empty = spark.createDataFrame([], "id long, text string")
    for _ in range(2):
        assert sink.write(empty, None, batch(spark, 0)).rows == 0
    sink.write(numbers(spark, 10), None, batch(spark, 1))
    assert pyarrow.parquet.read_table(out).num_rows == 10
    assert spark.read.parquet(str(out)).count() == 10


def test_schemas_that_a_format_refuses(spark, sink_to, tmp_path):
    for format_, select, message in (
        ("csv", "struct(1) AS a", "files .*out: The CSV datasource doesn't support the column `a`"),
        ("text", "1 AS a", "format text needs a single STRING column; the rows are struct<a:int>"),
        ("text", "'x' AS a, 'y' AS b", "format text needs a single STRING column"),
        ("parquet", "1 AS Batch", "column batch: readers derive a column of this name"),
    ):
        with pytest.raises(SinkError, match=message) as raised:
            sink_to(format_).prepare(spark.sql(f"SELECT {select}").schema)
        assert not raised.value.is_retriable


def test_a_folder_that_cannot_be_created_is_a_retriable_error(spark, sink_to, out):
    out.write_text("a file is in its place")
    sink = sink_to()
    rows = numbers(spark, 10)
    with pytest.raises(SinkError, match=r"files .*/out: .*free space and write permission") as raised:
        sink.prepare(rows.schema)
    assert raised.value.is_retriable
    out.unlink()
    sink.prepare(rows.schema)
    assert sink.write(rows, None, batch(spark, 0)).rows == 10
    assert pyarrow.parquet.read_table(out).num_rows == 10
