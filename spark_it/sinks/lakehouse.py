"""Delta and Iceberg tables, exactly once: the batch's number is part of the table's commit.

Delta keeps the last number of each writer itself (`txnAppId`, `txnVersion`) and leaves out a commit that has come
already. Iceberg keeps what a writer says of a snapshot: the number is looked for in the table's line of snapshots, and
the batch is added on the condition that no rows were added after those (`iceberg_files`). Of two drivers that write the
same batch one finds that the other was first. A batch without rows leaves no snapshot in Iceberg, and needs none.
Source: Delta's "Idempotent table writes in foreachBatch", Iceberg's SparkWriteOptions.

A property of the table has the identity of the pipeline's state that has claimed it; no other one begins a commit.
The property is checked before the commit, not by it. Iceberg's condition is on rows only, and its retries keep whatever
properties the table has by then, so a commit that was begun before a claim may still come after it. It comes before the
first rows of the new owner, or fails. In Delta a change of properties fails every commit that was begun before it; only
a claim between the check and the beginning of the commit is not seen.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from odradek.properties import nearest
from odradek.spark_it.databases.dialects import quoted
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import DeltaSink, IcebergSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Batch, Claim, SinkError, Written
from odradek.spark_it.sinks.iceberg_files import DataFiles, staging_name
from odradek.spark_it.sinks.recorded import check_owners, is_written
from odradek.spark_it.spark.counting import CountedFrame
from odradek.spark_it.spark.errors import readable
from odradek.spark_it.spark.java import what_is_down

_WIDER: Mapping[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType),
    ShortType: (IntegerType, LongType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
_LOOK_BACK = 50
"""Commits of a Delta table that are looked through for what a repeated batch has written."""


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "DeltaTable | IcebergTable":
    """The sink of a pipeline. Raises SinkError."""
    sink = pipeline.sink
    if isinstance(sink, DeltaSink):
        return DeltaTable(pipeline.name, pipeline.located(sink.path), sink, spark)
    assert isinstance(sink, IcebergSink)
    return IcebergTable(pipeline, sink, spark)


class DeltaTable:
    """A `BatchSink`."""

    takes_dead_letters = False

    def __init__(self, name: str, path: str, sink: DeltaSink, spark: SparkSession) -> None:
        self._name = name
        self._writer = f"odradek.{name}"
        self._path = self._place = path
        self._table = f"delta.{quoted(path)}"
        self._title = f"delta {path}"
        self._sink = sink
        self._spark = spark

    def prepare(self, schema: StructType) -> None:
        with _explained(self._title, self._place):
            table = self._table_schema()
            if table is not None:
                misfits(self._title, schema, table, may_add=self._sink.auto_evolve)
                return
            empty = self._spark.createDataFrame([], nullable(schema))
            empty.write.format("delta").mode("append").save(self._path)

    def recorded(self) -> int:
        with _explained(self._title, self._place):
            return self._recorded()

    def owners(self) -> frozenset[str]:
        with _explained(self._title, self._place):
            return self._owners()

    def claim(self, claim: Claim) -> None:
        with _explained(self._title, self._place):
            _claim(self._spark, self._table, _owner_property(self._name), claim, self._owners)

    def _owners(self) -> frozenset[str]:
        found = self._snapshot().metadata().configuration().get(_owner_property(self._name))
        return frozenset({str(found.get())}) if found.isDefined() else frozenset()

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: Batch) -> Written:
        with _explained(self._title, self._place):
            check_owners(self._owners(), batch, self._title)
            if is_written(self._recorded(), batch, "the last batch in the table"):
                return Written(self._rows_of(batch))
            table = self._table_schema()
            counted = CountedFrame(rows if table is None else fitted(rows, table))
            writer = counted.frame.write.format("delta").mode("append")
            if self._sink.auto_evolve:
                writer = writer.option("mergeSchema", True)
            writer = writer.option("txnAppId", self._writer).option("txnVersion", batch.marker)
            writer.option("userMetadata", self._metadata(batch)).save(self._path)
            return Written(counted.rows())

    def _metadata(self, batch: Batch) -> str:
        return json.dumps({"pipeline": self._writer, "generation": batch.generation, "batch": batch.id})

    def _table_schema(self) -> StructType | None:
        snapshot = self._snapshot()
        if snapshot.version() < 0:
            return None
        return StructType.fromJson(json.loads(snapshot.schema().json()))

    def _snapshot(self) -> Any:
        """The table as it is now; of version -1 if there is none."""
        jvm: Any = self._spark._jvm
        none = jvm.scala.Option.apply(None)
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path)
        return log.update(False, none, none)

    def _recorded(self) -> int:
        """The marker of the last batch in the table; 0 if none is."""
        found = self._snapshot().transactions().get(self._writer)
        return int(found.get()) if found.isDefined() else 0

    def _rows_of(self, batch: Batch) -> int:
        """Rows that an earlier attempt has written; 0 if the table has moved on too far to say."""
        jvm: Any = self._spark._jvm
        table = jvm.io.delta.tables.DeltaTable.forPath(self._spark._jsparkSession, self._path)
        history = DataFrame(table.history(_LOOK_BACK), self._spark)
        found = history.where(f.col("userMetadata") == self._metadata(batch)).select("operationMetrics").first()
        return int(found[0].get("numOutputRows", 0)) if found is not None else 0

    def close(self) -> None:
        """Nothing is held between batches."""


class IcebergTable:
    """A `BatchSink`. The catalog is one of the session's, under a name made of its configuration."""

    takes_dead_letters = False

    def __init__(self, pipeline: Pipeline, sink: IcebergSink, spark: SparkSession) -> None:
        self._sink = sink
        self._spark = spark
        self._title = f"iceberg {sink.iceberg_tables}"
        self._name = pipeline.name
        self._property = f"odradek.{pipeline.name}.batch"
        settings = dict(sink.passed["iceberg.catalog."])
        if "warehouse" in settings and settings.get("type") != "rest":
            settings["warehouse"] = pipeline.located(settings["warehouse"])
        self._place = settings.get("warehouse", sink.iceberg_tables)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        self._catalog = f"odradek_iceberg_{digest}"
        # What another session has changed is to be seen.
        self._settings = {"cache-enabled": "false", **settings}
        self._configure(spark)
        *namespace, table = sink.iceberg_tables.split(".")
        self._namespace = ".".join([self._catalog, *map(quoted, namespace)])
        self._table = f"{self._namespace}.{quoted(table)}"

    def _configure(self, spark: SparkSession) -> None:
        """Makes the catalog known to a session; that of a batch is another than that of the pipeline."""
        spark.conf.set(f"spark.sql.catalog.{self._catalog}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in self._settings.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}.{key}", value)

    def prepare(self, schema: StructType) -> None:
        with _explained(self._title, self._place):
            if not self._spark.catalog.tableExists(self._table):
                if not self._sink.auto_create:
                    raise SinkError(f"{self._title}: there is no such table; create it, or write auto.create = true")
                self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
                self._spark.createDataFrame([], nullable(schema)).writeTo(self._table).using("iceberg").create()
            missing = misfits(self._title, schema, self._table_schema(), may_add=self._sink.auto_evolve)
            if missing:
                columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in missing)
                self._spark.sql(f"ALTER TABLE {self._table} ADD COLUMNS ({columns})")

    def recorded(self) -> int:
        with _explained(self._title, self._place):
            table = self._load()
            return self._recorded(self._last_snapshot(table, table.currentSnapshot()))

    def owners(self) -> frozenset[str]:
        with _explained(self._title, self._place):
            return self._owners()

    def claim(self, claim: Claim) -> None:
        with _explained(self._title, self._place):
            _claim(self._spark, self._table, _owner_property(self._name), claim, self._owners)

    def _owners(self) -> frozenset[str]:
        return self._owners_of(self._load())

    def _owners_of(self, table: Any) -> frozenset[str]:
        found = table.properties().get(_owner_property(self._name))
        return frozenset() if found is None else frozenset({str(found)})

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: Batch) -> Written:
        with _explained(self._title, self._place):
            table = self._load()
            written = self._written(table, table.currentSnapshot(), batch)
            if written is not None:
                return written
            self._configure(batch.spark)
            name = staging_name(self._spark, self._table, table)
            schema = batch.spark.table(name).schema
            counted = CountedFrame(completed(fitted(rows, schema), schema))
            with DataFiles(counted.frame, name, table) as files:
                while True:
                    # Another driver may have written the batch meanwhile, and others may add rows at any time.
                    table.refresh()
                    newest = table.currentSnapshot()
                    written = self._written(table, newest, batch)
                    if written is not None:
                        return written
                    if files.add(newest, {self._property: str(batch.marker)}):
                        return Written(counted.rows())

    def _written(self, table: Any, newest: Any, batch: Batch) -> Written | None:
        """What the table has of the batch up to snapshot `newest`, if it has the batch. Raises SinkError if it has a
        later one, or belongs to another state."""
        check_owners(self._owners_of(table), batch, self._title)
        snapshot = self._last_snapshot(table, newest)
        if not is_written(self._recorded(snapshot), batch, "the last batch in the table"):
            return None
        return Written(int(snapshot.summary().get("added-records") or 0))

    def _table_schema(self) -> StructType:
        return self._spark.table(self._table).schema

    def _recorded(self, snapshot: Any) -> int:
        return 0 if snapshot is None else int(snapshot.summary().get(self._property))

    def _load(self) -> Any:
        jvm: Any = self._spark._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._spark._jsparkSession, self._table)
        table.refresh()
        return table

    def _last_snapshot(self, table: Any, newest: Any) -> Any:
        """The last snapshot that this pipeline has made, of those that the table consists of at `newest`; or None."""
        snapshot = newest
        while snapshot is not None:
            if snapshot.summary().get(self._property) is not None:
                return snapshot
            parent = snapshot.parentId()
            # Older ones may have expired.
            snapshot = None if parent is None else table.snapshot(parent)
        return None

    def close(self) -> None:
        """Nothing is held between batches."""


def _owner_property(name: str) -> str:
    return f"odradek.{name}.state"


def _claim(spark: SparkSession, table: str, property_: str, claim: Claim, owners: Callable[[], frozenset[str]]) -> None:
    """Makes a table's property the identity of a state. Raises SinkError if another one has claimed it meanwhile.

    A copy that reads the property before it is set, and sets it after, is found by the other's first batch.
    """
    before = owners()
    if before == {claim.state}:
        return
    claim.check(before, f"table {table}")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{property_}' = '{claim.state}')")
    claim.confirm(owners(), f"table {table}")


def nullable(schema: StructType) -> StructType:
    """The columns of a new table: what is never null in the statement of today may be in that of tomorrow."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def misfits(title: str, rows: StructType, table: StructType, *, may_add: bool) -> list[StructField]:
    """The columns that the table does not have, where they may be added. Raises SinkError for what does not fit."""
    by_name = {field.name.casefold(): field for field in table.fields}
    missing = []
    for field in rows.fields:
        there = by_name.get(field.name.casefold())
        if there is None:
            missing.append(field)
        elif not _fits(field.dataType, there.dataType):
            raise SinkError(
                f"{title}: column {there.name} is {there.dataType.simpleString()}, and the pipeline has "
                f"{field.dataType.simpleString()}; cast it in SQL"
            )
    if missing and not may_add:
        near = nearest(missing[0].name.casefold(), by_name)
        hint = f" (there is {by_name[near].name})" if near else ""
        helps = "add it, write auto.evolve = true, or leave it out in SQL"
        raise SinkError(f"{title}: there is no column {missing[0].name}{hint}; {helps}")
    given = {name.casefold() for name in rows.names}
    needed = [field.name for field in table.fields if not field.nullable and field.name.casefold() not in given]
    if needed:
        raise SinkError(f"{title}: column {needed[0]} must not be null, and the pipeline does not have it")
    return missing


def _fits(type_: DataType, there: DataType) -> bool:
    """Whether every value of a type is one of the other as well."""
    if type_.jsonValue() == there.jsonValue() or type(there) in _WIDER.get(type(type_), ()):
        return True
    if isinstance(type_, DecimalType) and isinstance(there, DecimalType):
        return there.scale >= type_.scale and there.precision - there.scale >= type_.precision - type_.scale
    # Whether what is within may be null is for the table to say, when it is.
    return type_.simpleString() == there.simpleString()


def fitted(rows: DataFrame, table: StructType) -> DataFrame:
    """The rows with the names and types that the table has for their columns."""
    by_name = {field.name.casefold(): field for field in table.fields}
    columns = []
    for field in rows.schema.fields:
        there = by_name.get(field.name.casefold())
        column = f.col(quoted(field.name))
        if there is not None:
            column = (column if there.dataType == field.dataType else column.cast(there.dataType)).alias(there.name)
        columns.append(column)
    return rows.select(*columns)


def completed(rows: DataFrame, table: StructType) -> DataFrame:
    """The rows with null in the columns that only the table has."""
    given = {name.casefold() for name in rows.columns}
    lacking = [field for field in table.fields if field.name.casefold() not in given]
    return rows.select("*", *(f.lit(None).cast(field.dataType).alias(field.name) for field in lacking))


@contextmanager
def _explained(title: str, place: str) -> Iterator[None]:
    """Turns what Spark says of a table into a SinkError; an error of the rows' own goes on as it is."""
    try:
        yield
    except AnalysisException as error:
        raise SinkError(f"{title}: {readable(error)}") from None
    except Exception as error:
        said = what_is_down(error, place)
        if said is None:
            raise
        raise SinkError(f"{title}: {said}; is what it is kept in there?", is_retriable=True) from None
