"""Delta and Iceberg tables, exactly once: the number of the batch is part of the table's commit.

Delta stores the last number of each writer (`txnAppId`, `txnVersion`) and skips a commit with an earlier or equal
number. In Iceberg the number is in the summary of a snapshot. The last number is looked up in the table's history of
snapshots, and the commit fails if rows were added after these snapshots (`iceberg_files`). Of two drivers that write
the same batch the second one detects that it is written. In Iceberg a batch without rows makes no snapshot; if it is
written again, nothing changes. Source: Delta's "Idempotent table writes in foreachBatch", Iceberg's SparkWriteOptions.

A property of the table has the identity of the pipeline's state that has claimed it; no other state begins a commit.
The property is checked before the commit, not atomically with it. Iceberg validates only rows, and its retries keep the
current properties, so a commit that began before a claim may succeed after it; but it succeeds before the first rows of
the new owner, or fails. In Delta a change of properties fails every commit that began before it; only a claim between
the check and the beginning of the commit is not detected.
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
from odradek.spark_it.databases.dialects import quote_column
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import DeltaSink, IcebergSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.sinks.iceberg_files import DataFiles, find_staging_name
from odradek.spark_it.sinks.marker_checks import check_owners, is_written
from odradek.spark_it.spark.counting import CountedFrame
from odradek.spark_it.spark.errors import describe_error
from odradek.spark_it.spark.java import find_unavailable_reason

_WIDER: Mapping[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType),
    ShortType: (IntegerType, LongType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
_MAX_HISTORY = 50
"""Number of commits of a Delta table that are searched for the outcome of a repeated batch."""


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "DeltaTable | IcebergTable":
    """Return the sink of a pipeline. Raises SinkError."""
    sink = pipeline.sink
    if isinstance(sink, DeltaSink):
        return DeltaTable(pipeline.name, pipeline.locate_path(sink.path), sink, spark)
    assert isinstance(sink, IcebergSink)
    return IcebergTable(pipeline, sink, spark)


class DeltaTable:
    """A `BatchSink`."""

    takes_dead_letters = False

    def __init__(self, name: str, path: str, sink: DeltaSink, spark: SparkSession) -> None:
        self._name = name
        self._writer = f"odradek.{name}"
        self._path = self._storage = path
        self._table = f"delta.{quote_column(path)}"
        self._title = f"delta {path}"
        self._sink = sink
        self._spark = spark

    def prepare(self, schema: StructType) -> None:
        with _wrapping_errors(self._title, self._storage):
            table = self._read_schema()
            if table is not None:
                find_missing_columns(self._title, schema, table, may_add=self._sink.auto_evolve)
                return
            empty = self._spark.createDataFrame([], make_nullable(schema))
            empty.write.format("delta").mode("append").save(self._path)

    def read_marker(self) -> int:
        with _wrapping_errors(self._title, self._storage):
            return self._read_marker()

    def read_owners(self) -> frozenset[str]:
        with _wrapping_errors(self._title, self._storage):
            return self._read_owners()

    def claim(self, claim: Claim) -> None:
        with _wrapping_errors(self._title, self._storage):
            _claim_table(self._spark, self._table, _name_owner_property(self._name), claim, self._read_owners)

    def _read_owners(self) -> frozenset[str]:
        found = self._load_snapshot().metadata().configuration().get(_name_owner_property(self._name))
        return frozenset({str(found.get())}) if found.isDefined() else frozenset()

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: SinkBatch) -> WrittenCounts:
        with _wrapping_errors(self._title, self._storage):
            check_owners(self._read_owners(), batch, self._title)
            if is_written(self._read_marker(), batch, "the last batch in the table"):
                return WrittenCounts(self._find_row_count(batch))
            table = self._read_schema()
            counted = CountedFrame(rows if table is None else cast_to_table(rows, table))
            writer = counted.frame.write.format("delta").mode("append")
            if self._sink.auto_evolve:
                writer = writer.option("mergeSchema", True)
            writer = writer.option("txnAppId", self._writer).option("txnVersion", batch.marker)
            writer.option("userMetadata", self._make_metadata(batch)).save(self._path)
            return WrittenCounts(counted.get_row_count())

    def _make_metadata(self, batch: SinkBatch) -> str:
        return json.dumps({"pipeline": self._writer, "generation": batch.generation, "batch": batch.id})

    def _read_schema(self) -> StructType | None:
        snapshot = self._load_snapshot()
        if snapshot.version() < 0:
            return None
        return StructType.fromJson(json.loads(snapshot.schema().json()))

    def _load_snapshot(self) -> Any:
        """Return the current snapshot; its version is -1 if the table does not exist."""
        jvm: Any = self._spark._jvm
        none = jvm.scala.Option.apply(None)
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path)
        return log.update(False, none, none)

    def _read_marker(self) -> int:
        """Return the marker of the last batch in the table; 0 if there is none."""
        found = self._load_snapshot().transactions().get(self._writer)
        return int(found.get()) if found.isDefined() else 0

    def _find_row_count(self, batch: SinkBatch) -> int:
        """Return the number of rows that an earlier attempt wrote; 0 if there were too many commits since."""
        jvm: Any = self._spark._jvm
        table = jvm.io.delta.tables.DeltaTable.forPath(self._spark._jsparkSession, self._path)
        history = DataFrame(table.history(_MAX_HISTORY), self._spark)
        found = history.where(f.col("userMetadata") == self._make_metadata(batch)).select("operationMetrics").first()
        return int(found[0].get("numOutputRows", 0)) if found is not None else 0

    def close(self) -> None:
        """Do nothing: no resources are held between batches."""


class IcebergTable:
    """A `BatchSink`. The catalog is registered in the session with a name derived from its configuration."""

    takes_dead_letters = False

    def __init__(self, pipeline: Pipeline, sink: IcebergSink, spark: SparkSession) -> None:
        self._sink = sink
        self._spark = spark
        self._title = f"iceberg {sink.iceberg_tables}"
        self._name = pipeline.name
        self._property = f"odradek.{pipeline.name}.batch"
        settings = dict(sink.passed["iceberg.catalog."])
        if "warehouse" in settings and settings.get("type") != "rest":
            settings["warehouse"] = pipeline.locate_path(settings["warehouse"])
        self._storage = settings.get("warehouse", sink.iceberg_tables)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        self._catalog = f"odradek_iceberg_{digest}"
        # Changes by other sessions must be visible.
        self._settings = {"cache-enabled": "false", **settings}
        self._configure(spark)
        *namespace, table = sink.iceberg_tables.split(".")
        self._namespace = ".".join([self._catalog, *map(quote_column, namespace)])
        self._table = f"{self._namespace}.{quote_column(table)}"

    def _configure(self, spark: SparkSession) -> None:
        """Register the catalog in a session. A batch has a different session than the pipeline."""
        spark.conf.set(f"spark.sql.catalog.{self._catalog}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in self._settings.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}.{key}", value)

    def prepare(self, schema: StructType) -> None:
        with _wrapping_errors(self._title, self._storage):
            if not self._spark.catalog.tableExists(self._table):
                if not self._sink.auto_create:
                    raise SinkError(f"{self._title}: the table does not exist; create it, or set auto.create = true")
                self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
                self._spark.createDataFrame([], make_nullable(schema)).writeTo(self._table).using("iceberg").create()
            missing = find_missing_columns(self._title, schema, self._read_schema(), may_add=self._sink.auto_evolve)
            if missing:
                columns = ", ".join(f"{quote_column(field.name)} {field.dataType.simpleString()}" for field in missing)
                self._spark.sql(f"ALTER TABLE {self._table} ADD COLUMNS ({columns})")

    def read_marker(self) -> int:
        with _wrapping_errors(self._title, self._storage):
            table = self._load_table()
            return self._read_marker(self._find_last_snapshot(table, table.currentSnapshot()))

    def read_owners(self) -> frozenset[str]:
        with _wrapping_errors(self._title, self._storage):
            return self._read_owners()

    def claim(self, claim: Claim) -> None:
        with _wrapping_errors(self._title, self._storage):
            _claim_table(self._spark, self._table, _name_owner_property(self._name), claim, self._read_owners)

    def _read_owners(self) -> frozenset[str]:
        return self._read_table_owners(self._load_table())

    def _read_table_owners(self, table: Any) -> frozenset[str]:
        found = table.properties().get(_name_owner_property(self._name))
        return frozenset() if found is None else frozenset({str(found)})

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: SinkBatch) -> WrittenCounts:
        with _wrapping_errors(self._title, self._storage):
            table = self._load_table()
            written = self._find_outcome(table, table.currentSnapshot(), batch)
            if written is not None:
                return written
            self._configure(batch.spark)
            name = find_staging_name(self._spark, self._table, table)
            schema = batch.spark.table(name).schema
            counted = CountedFrame(add_missing_columns(cast_to_table(rows, schema), schema))
            with DataFiles(counted.frame, name, table) as files:
                while True:
                    # Another driver may write the batch, or other programs may add rows, at any time.
                    table.refresh()
                    newest = table.currentSnapshot()
                    written = self._find_outcome(table, newest, batch)
                    if written is not None:
                        return written
                    if files.add(newest, {self._property: str(batch.marker)}):
                        return WrittenCounts(counted.get_row_count())

    def _find_outcome(self, table: Any, newest: Any, batch: SinkBatch) -> WrittenCounts | None:
        """Return the outcome of the batch if a snapshot up to `newest` has it. Raises SinkError if the table has a
        later batch, or belongs to another state."""
        check_owners(self._read_table_owners(table), batch, self._title)
        snapshot = self._find_last_snapshot(table, newest)
        if not is_written(self._read_marker(snapshot), batch, "the last batch in the table"):
            return None
        return WrittenCounts(int(snapshot.summary().get("added-records") or 0))

    def _read_schema(self) -> StructType:
        return self._spark.table(self._table).schema

    def _read_marker(self, snapshot: Any) -> int:
        return 0 if snapshot is None else int(snapshot.summary().get(self._property))

    def _load_table(self) -> Any:
        jvm: Any = self._spark._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._spark._jsparkSession, self._table)
        table.refresh()
        return table

    def _find_last_snapshot(self, table: Any, newest: Any) -> Any:
        """Return the last snapshot of this pipeline among `newest` and its ancestors; None if there is none."""
        snapshot = newest
        while snapshot is not None:
            if snapshot.summary().get(self._property) is not None:
                return snapshot
            parent = snapshot.parentId()
            # Older snapshots may have expired.
            snapshot = None if parent is None else table.snapshot(parent)
        return None

    def close(self) -> None:
        """Do nothing: no resources are held between batches."""


def _name_owner_property(name: str) -> str:
    return f"odradek.{name}.state"


def _claim_table(
    spark: SparkSession, table: str, property_: str, claim: Claim, owners: Callable[[], frozenset[str]]
) -> None:
    """Set a table's property to the identity of a state. Raises SinkError if another state claims it concurrently.

    If another copy reads the property before this change and sets it afterwards, this copy detects that at its first
    batch.
    """
    existing_owners = owners()
    if existing_owners == {claim.state}:
        return
    claim.check(existing_owners, f"table {table}")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{property_}' = '{claim.state}')")
    claim.confirm(owners(), f"table {table}")


def make_nullable(schema: StructType) -> StructType:
    """Return the columns of a new table. All are nullable, because a later version of the SQL may produce nulls."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def find_missing_columns(title: str, rows: StructType, table: StructType, *, may_add: bool) -> list[StructField]:
    """Return the columns that must be added to the table. Raises SinkError for mismatches."""
    by_name = {field.name.casefold(): field for field in table.fields}
    missing = []
    for field in rows.fields:
        table_field = by_name.get(field.name.casefold())
        if table_field is None:
            missing.append(field)
        elif not _is_assignable(field.dataType, table_field.dataType):
            raise SinkError(
                f"{title}: column {table_field.name} is {table_field.dataType.simpleString()}, but the pipeline has "
                f"{field.dataType.simpleString()}; cast it in SQL"
            )
    if missing and not may_add:
        near = nearest(missing[0].name.casefold(), by_name)
        hint = f" (did you mean {by_name[near].name}?)" if near else ""
        remedy = "add it, set auto.evolve = true, or remove it in SQL"
        raise SinkError(f"{title}: the table has no column {missing[0].name}{hint}; {remedy}")
    given = {name.casefold() for name in rows.names}
    required = [field.name for field in table.fields if not field.nullable and field.name.casefold() not in given]
    if required:
        raise SinkError(f"{title}: column {required[0]} is NOT NULL, but the pipeline has no such column")
    return missing


def _is_assignable(type_: DataType, table_type: DataType) -> bool:
    """Return whether every value of a type is a value of the table's type."""
    if type_.jsonValue() == table_type.jsonValue() or type(table_type) in _WIDER.get(type(type_), ()):
        return True
    if isinstance(type_, DecimalType) and isinstance(table_type, DecimalType):
        return (
            table_type.scale >= type_.scale and table_type.precision - table_type.scale >= type_.precision - type_.scale
        )
    # Nullability of nested fields is not compared; the table rejects nulls when they are written.
    return type_.simpleString() == table_type.simpleString()


def cast_to_table(rows: DataFrame, table: StructType) -> DataFrame:
    """Return the rows with the names and types of the table's columns."""
    by_name = {field.name.casefold(): field for field in table.fields}
    columns = []
    for field in rows.schema.fields:
        table_field = by_name.get(field.name.casefold())
        column = f.col(quote_column(field.name))
        if table_field is not None:
            column = (column if table_field.dataType == field.dataType else column.cast(table_field.dataType)).alias(
                table_field.name
            )
        columns.append(column)
    return rows.select(*columns)


def add_missing_columns(rows: DataFrame, table: StructType) -> DataFrame:
    """Return the rows with additional columns, with null, for the columns that only the table has."""
    given = {name.casefold() for name in rows.columns}
    missing = [field for field in table.fields if field.name.casefold() not in given]
    return rows.select("*", *(f.lit(None).cast(field.dataType).alias(field.name) for field in missing))


@contextmanager
def _wrapping_errors(title: str, storage: str) -> Iterator[None]:
    """Convert errors of a table to SinkError. Errors in the computation of the rows are not converted."""
    try:
        yield
    except AnalysisException as error:
        raise SinkError(f"{title}: {describe_error(error)}") from None
    except Exception as error:
        reason = find_unavailable_reason(error, storage)
        if reason is None:
            raise
        raise SinkError(f"{title}: {reason}; check that its storage is available", is_retriable=True) from None
