"""Delta and Iceberg tables, whose rows are counted by pyarrow from the files that their newest metadata names."""

import operator

import pyarrow.parquet
import pytest
from pyspark.sql import functions as f

from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.sinks import lakehouse
from odradek.spark_it.sinks.iceberg_files import DataFiles
from odradek.spark_it.sinks.lakehouse import DeltaTable, IcebergTable
from spark_it.tests.spark.batches import GENERATION, batch, pipeline_of, sink_for
from spark_it.tests.tables import column, delta_files, iceberg_files


def numbers(spark, count, start=0):
    return spark.range(start, start + count, 1, 3).select("id", f.format_string("row %d", "id").alias("text"))


class Table:
    """A table of either kind, in a folder of the test's own."""

    def __init__(self, kind, spark, folder):
        self.kind, self.spark, self.folder = kind, spark, folder

    def sink(self, keys="", name="orders", session=None):
        if self.kind == "delta":
            text = f'connector = "delta"\npath = "lake/shop/t"\n{keys}'
        else:
            text = f'connector = "iceberg"\niceberg.tables = "shop.t"\n{keys}\n'
            text += 'iceberg.catalog.type = "hadoop"\niceberg.catalog.warehouse = "lake"'
        return sink_for(pipeline_of(text, self.folder, name=name), session or self.spark)

    def rows(self, *columns):
        place = self.folder / "lake" / "shop" / "t"
        files = delta_files(place) if self.kind == "delta" else iceberg_files(place)
        found = zip(*(column(files, name) for name in columns or ["id"]), strict=True)
        return sorted(found, key=lambda row: [(value is None, value or 0) for value in row])


@pytest.fixture(params=["delta", "iceberg"])
def table(request, spark, tmp_path):
    return Table(request.param, spark, tmp_path)


def test_a_repeated_batch_is_written_once(spark, table):
    sink = table.sink()
    sink.prepare(numbers(spark, 1).schema)
    assert sink.read_marker() == 0
    for number in (0, 1):
        part = numbers(spark, 1000, 1000 * number)
        assert sink.write(part, None, batch(spark, number)).rows == 1000
        assert sink.write(part, None, batch(spark, number)).rows == 1000
    # As after a crash between sink and checkpoint: another session, another sink.
    other = spark.newSession()
    again = table.sink(session=other)
    again.prepare(numbers(other, 1).schema)
    assert again.read_marker() == make_marker_number(GENERATION, 1)
    assert again.write(numbers(other, 1000, 1000), None, batch(other, 1)).rows == 1000
    assert again.write(numbers(other, 500, 2000), None, batch(other, 2)).rows == 500
    assert table.rows() == [(n,) for n in range(2500)]


def test_other_pipelines_and_generations_have_batches_of_their_own(spark, table):
    rows = numbers(spark, 10)
    for name, generation in (("orders", 0), ("refunds", 0), ("orders", 1)):
        sink = table.sink(name=name)
        sink.prepare(rows.schema)
        for _ in range(2):
            assert sink.write(rows, None, batch(spark, 0, GENERATION + generation)).rows == 10
    assert len(table.rows()) == 30
    # Batches that other pipelines have written in between have no effect.
    refunds = table.sink(name="refunds")
    assert refunds.write(rows, None, batch(spark, 0)).rows == 10
    assert len(table.rows()) == 30
    with pytest.raises(SinkError, match=r"has generation .*reset") as raised:
        table.sink().write(rows, None, batch(spark, 1))
    assert not raised.value.is_retriable
    with pytest.raises(SinkError, match="is batch 0, but this is batch -1: the checkpoint is older"):
        refunds.write(rows, None, batch(spark, -1))
    assert len(table.rows()) == 30


def rows_in_data_files(folder):
    return sum(pyarrow.parquet.ParquetFile(file).metadata.num_rows for file in folder.rglob("*.parquet"))


@pytest.mark.parametrize("moment", ["CountedFrame", "DataFiles.add"])
def test_two_drivers_that_both_find_the_batch_missing(spark, tmp_path, monkeypatch, moment):
    """One of them is presumed dead. It has found the batch missing, and wakes when the other one has written it."""
    table = Table("iceberg", spark, tmp_path)
    first, sleeper = table.sink(), table.sink(session=spark.newSession())
    rows, other_rows = numbers(spark, 10), numbers(sleeper._spark, 10)
    first.prepare(rows.schema)
    first.write(numbers(spark, 5, 100), None, batch(spark, 0))
    overtaken = operator.attrgetter(moment)(lakehouse)

    def overtaken_there(*given):
        monkeypatch.undo()
        assert first.write(rows, None, batch(spark, 1)).rows == 10
        return overtaken(*given)

    monkeypatch.setattr(f"{lakehouse.__name__}.{moment}", overtaken_there)
    assert sleeper.write(other_rows, None, batch(sleeper._spark, 1)).rows == 10
    assert table.rows() == [(n,) for n in [*range(10), *range(100, 105)]]
    assert rows_in_data_files(tmp_path / "lake") == 15, "data files outside the table are left"
    first.write(numbers(spark, 10, 10), None, batch(spark, 2))
    with pytest.raises(SinkError, match="the last batch in the table is batch 2, but this is batch 1"):
        sleeper.write(other_rows, None, batch(sleeper._spark, 1))


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_another_pipeline_adds_meanwhile(spark, tmp_path, monkeypatch, version):
    """The batch is not written again: its files are added after those rows."""
    table = Table("iceberg", spark, tmp_path)
    orders, refunds = table.sink(), table.sink(name="refunds")
    orders.prepare(numbers(spark, 1).schema)
    spark.sql(f"ALTER TABLE {orders._table} SET TBLPROPERTIES ('format-version' = '{version}')")
    add = DataFiles.add

    def after_another(*given):
        monkeypatch.undo()
        refunds.write(numbers(spark, 10, 10), None, batch(spark, 7))
        return add(*given)

    monkeypatch.setattr(DataFiles, "add", after_another)
    assert orders.write(numbers(spark, 10), None, batch(spark, 0)).rows == 10
    assert table.rows() == [(n,) for n in range(20)]
    assert rows_in_data_files(tmp_path / "lake") == 20
    assert orders.read_marker() == make_marker_number(GENERATION, 0)
    assert refunds.read_marker() == make_marker_number(GENERATION, 7)
    # Streaming readers refuse other operations.
    operations = spark.table(f"{orders._table}.snapshots").select("operation").collect()
    assert {row.operation for row in operations} == {"append"}
    assert sorted(spark.table(orders._table).collect()) == sorted(numbers(spark, 20).collect())
    if version == 3:
        ids = spark.table(orders._table).select("_row_id").collect()
        assert sorted(row._row_id for row in ids) == list(range(20))


def test_a_batch_without_rows(spark, table):
    sink = table.sink()
    empty = numbers(spark, 0)
    sink.prepare(empty.schema)
    for _ in range(2):
        assert sink.write(empty, None, batch(spark, 0)).rows == 0
    assert sink.write(numbers(spark, 10), None, batch(spark, 1)).rows == 10
    assert table.rows() == [(n,) for n in range(10)]


def test_columns_that_do_not_fit_and_columns_that_are_new(spark, table):
    sink = table.sink()
    sink.prepare(spark.sql("SELECT 1L AS id, 1 AS amount, CAST(1 AS DECIMAL(12,2)) AS total").schema)
    for select, message in (
        ("1L id, 'x' AS amount", "column amount is int, but the pipeline has string; cast it in SQL"),
        ("1L id, 2L AS amount", "column amount is int, but the pipeline has bigint"),
        ("1L id, CAST(1 AS DECIMAL(12,4)) AS total", r"column total is decimal\(12,2\), but"),
        (
            "1L id, 2 AS amounts",
            r"the table has no column amounts \(did you mean amount\?\); add it, set auto.evolve = true",
        ),
    ):
        with pytest.raises(SinkError, match=message) as raised:
            table.sink().prepare(spark.sql(f"SELECT {select}").schema)
        assert not raised.value.is_retriable
    # Columns of narrower types fit, in any order and case.
    narrow = spark.sql("SELECT CAST(7.5 AS DECIMAL(4,1)) AS Total, 2 AS ID")
    sink = table.sink()
    sink.prepare(narrow.schema)
    assert sink.write(narrow, None, batch(spark, 0)).rows == 1
    wide = spark.sql("SELECT 3L AS id, 'new' AS note")
    sink = table.sink("auto.evolve = true")
    sink.prepare(wide.schema)
    for _ in range(2):
        assert sink.write(wide, None, batch(spark, 1)).rows == 1
    assert [tuple(map(str, row)) for row in table.rows("id", "total", "note")] == [
        ("2", "7.50", "None"),
        ("3", "None", "new"),
    ]


def test_a_column_that_is_never_null_may_be_null_later(spark, table):
    counted = numbers(spark, 10).groupBy().agg(f.count("*").alias("id"))
    assert not counted.schema["id"].nullable
    sink = table.sink()
    sink.prepare(counted.schema)
    sink.write(counted, None, batch(spark, 0))
    again = table.sink()
    maybe = spark.createDataFrame([(None,)], "id long")
    again.prepare(maybe.schema)
    assert again.write(maybe, None, batch(spark, 1)).rows == 1
    assert table.rows() == [(10,), (None,)]


def test_a_commit_that_fails_is_retriable(spark, table):
    sink = table.sink()
    rows = numbers(spark, 10)
    sink.prepare(rows.schema)
    sink.write(rows, None, batch(spark, 0))
    place = table.folder / "lake" if table.kind == "delta" else table.folder / "lake" / "shop" / "t" / "data"
    place.rename(table.folder / "away")
    place.write_text("a file is in its place")
    with pytest.raises(SinkError, match=rf"{table.kind} ") as raised:
        table.sink().write(numbers(spark, 10, 10), None, batch(spark, 1))
    assert raised.value.is_retriable, str(raised.value)
    place.unlink()
    (table.folder / "away").rename(place)
    assert table.sink().write(numbers(spark, 10, 10), None, batch(spark, 1)).rows == 10
    assert table.rows() == [(n,) for n in range(20)]


def test_a_missing_iceberg_table_without_auto_create(spark, tmp_path):
    text = 'connector = "iceberg"\niceberg.tables = "shop.t"\n'
    text += 'iceberg.catalog.type = "hadoop"\niceberg.catalog.warehouse = "lake"\n'
    sink = sink_for(pipeline_of(text + "auto.create = false", tmp_path), spark)
    with pytest.raises(SinkError, match=r"the table does not exist; create it, or set auto.create = true"):
        sink.prepare(spark.range(1).schema)


def test_each_connector_has_its_kind_of_table(spark, tmp_path):
    delta = sink_for(pipeline_of('connector = "delta"\npath = "x"', tmp_path), spark)
    assert isinstance(delta, DeltaTable)
    text = 'connector = "iceberg"\niceberg.tables = "a.b"\niceberg.catalog.type = "hadoop"\n'
    text += 'iceberg.catalog.warehouse = "x"'
    assert isinstance(sink_for(pipeline_of(text, tmp_path), spark), IcebergTable)
