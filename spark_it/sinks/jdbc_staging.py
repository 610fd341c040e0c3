"""The staging table of a database sink: Spark's tasks write the rows of a batch to it, and the driver moves them.

Each attempt at a batch has its own table, so that a late task or driver of another attempt cannot write to it. Every
row has a number from Spark's `monotonically_increasing_id()`; the rows of a partition have consecutive numbers. The
numbers show duplicate rows, of a task that Spark ran again after its commit. The driver writes a row before all others;
if it is missing, the database lost the table's rows in a crash.

A late task may commit at any time. Rows are only added, and a statement of the driver's transaction sees all rows that
the previous one saw. So if the number of rows is the same after the move as before, exactly these rows were moved.
"""

import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, TimestampNTZType

from odradek.spark_it.databases.dialects import Dialect, quote_column
from odradek.spark_it.databases.jdbc import (
    Database,
    DatabaseConnection,
    DatabaseError,
    find_database_error,
    split_table_name,
)
from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.interfaces.sink import SinkError

ROW = "odradek_row"
_ROWS_PER_PARTITION = 1 << 33
_FIRST_ROW = -2 * _ROWS_PER_PARTITION
"""The number of the row that the driver writes before all others."""
_ROWS_PER_QUERY = 1000


class RowSegment(NamedTuple):
    """Rows with consecutive numbers: `first` to `last`, inclusive."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


def qualify_name(table: str, name: str) -> str:
    """Return the name of table `name`, qualified with the schema of another table."""
    parts = split_table_name(table)
    return ".".join([*parts[:-1], name])


def make_staging_prefix(pipeline: str, table: str) -> str:
    """Return the prefix of the names of a pipeline's staging tables."""
    readable = re.sub(r"[^a-z0-9]+", "_", pipeline.lower())[:16]
    return f"odradek_{readable}_{hashlib.sha256(repr((pipeline, table)).encode()).hexdigest()[:10]}_"


def drop_leftover_tables(connection: DatabaseConnection, dialect: Dialect, pipeline: str, table: str) -> None:
    """Drop the staging tables of killed attempts."""
    with contextlib.suppress(DatabaseError):
        for schema, name in connection.list_tables(make_staging_prefix(pipeline, table)):
            schema_prefix = f"{connection.quote(schema)}." if schema else ""
            _drop_table(connection, dialect, f"{schema_prefix}{connection.quote(name)}")


def _drop_table(connection: DatabaseConnection, dialect: Dialect, table: str) -> None:
    """Drop a table that is not used again. Failures are ignored, for example while a task still writes to it."""
    with contextlib.suppress(DatabaseError), connection.transaction():
        for statement in dialect.make_drop_statements(table):
            connection.execute(statement)


def is_staged_as_text(dialect: Dialect, field: StructField) -> bool:
    """Return whether a column is staged as text and cast by the database."""
    return dialect.text_time_type is not None and isinstance(field.dataType, TimestampNTZType)


def declare_type(database: Database, dialect: Dialect, field: StructField) -> str:
    """Return the column type of the database for a field. Raises SinkError for a type that it cannot store."""
    try:
        return dialect.find_column_type(field.dataType) or database.find_column_type(field.dataType)
    except ValueError as error:
        raise SinkError(f"column {field.name}: {error}; cast it in SQL, or use to_json()") from None


class StagingTable:
    """One staging table, with columns c0, c1 ... for the columns of the frame. Methods raise DatabaseError."""

    def __init__(self, database: Database, dialect: Dialect, pipeline: str, table: str, schema: StructType) -> None:
        self.name = qualify_name(table, make_staging_prefix(pipeline, table) + secrets.token_hex(4))
        self._database = database
        self._dialect = dialect
        self._schema = schema

    @contextmanager
    def create_temporarily(self, connection: DatabaseConnection) -> Iterator[None]:
        """Create the table, with the driver's row, for the duration of the `with` block.

        Raises SinkError for a type that the database cannot store, and a retriable SinkError if the block fails because
        the table was dropped.
        """
        columns = [
            f"{self.quote_column(connection, at)} {declare_type(self._database, self._dialect, field)}"
            f"{self._dialect.nullable_suffix}"
            for at, field in enumerate(map(self._make_staged_field, self._schema.fields))
        ]
        row = connection.quote(ROW)
        connection.execute(f"{self._dialect.create_staging} {self.name} ({', '.join(columns)}, {row} BIGINT NOT NULL)")
        try:
            connection.execute(f"INSERT INTO {self.name} ({row}) VALUES ({_FIRST_ROW})")
            yield
        except DatabaseError as error:
            if self._dialect.is_missing_table(error) and self._is_missing(connection):
                raise SinkError(
                    f"staging table {self.name} was dropped by another process", is_retriable=True
                ) from None
            raise
        finally:
            _drop_table(connection, self._dialect, self.name)

    def _is_missing(self, connection: DatabaseConnection) -> bool:
        try:
            connection.query_rows(f"SELECT 1 FROM {self.name} WHERE 1 = 0")
        except DatabaseError as error:
            return self._dialect.is_missing_table(error)
        return False

    def _make_staged_field(self, field: StructField) -> StructField:
        return StructField(field.name, StringType()) if is_staged_as_text(self._dialect, field) else field

    def quote_column(self, connection: DatabaseConnection, at: int) -> str:
        """Return the quoted name of the column for the frame's column with index `at`."""
        return connection.quote(f"c{at}")

    def fill(self, rows: DataFrame, batch_size: int) -> None:
        """Write the rows of a batch in Spark's tasks. Only errors of the database are converted to DatabaseError."""
        named = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
        for at, field in enumerate(rows.schema.fields):
            if is_staged_as_text(self._dialect, field):
                named = named.withColumn(f"c{at}", f.col(f"c{at}").cast(StringType()))
        numbered = named.withColumn(ROW, f.monotonically_increasing_id())
        if self._dialect.max_writers is not None:
            numbered = numbered.coalesce(self._dialect.max_writers)
        writer = numbered.write.format("jdbc").mode("append").options(**self._options())
        try:
            writer.option("dbtable", self.name).option("batchsize", batch_size).save()
        except Exception as error:
            database_failure = find_database_error(error)
            if database_failure is None:
                raise
            raise database_failure from None

    def _options(self) -> dict[str, str]:
        return {**self._database.options(), **self._dialect.options}

    def read_segments(self, connection: DatabaseConnection) -> list[RowSegment]:
        """Return the rows of the table. Raises SinkError if rows are missing or duplicate."""
        row = connection.quote(ROW)
        partition = f"FLOOR({row} / {_ROWS_PER_PARTITION})"
        query = f"SELECT {partition}, MIN({row}), MAX({row}), COUNT(*) FROM {self.name} GROUP BY {partition}"
        segments, has_first_row = [], False
        for _, first, last, count in connection.query_rows(query):
            segment = RowSegment(int(first), int(last))
            if segment.first == _FIRST_ROW:
                has_first_row = True
                continue
            if int(count) != len(segment) or segment.first % _ROWS_PER_PARTITION:
                raise _make_duplicates_error(int(count), len(segment))
            segments.append(segment)
        if not has_first_row:
            raise SinkError("the database lost the staging table's rows, for example in a crash", is_retriable=True)
        return sorted(segments)

    def check_unchanged(self, connection: DatabaseConnection, segments: Sequence[RowSegment]) -> None:
        """Raise SinkError if the table has more rows than `read_segments`, in the transaction that has moved them: some
        of the additional rows may have been moved as well."""
        [(count,)] = connection.query_rows(f"SELECT COUNT(*) FROM {self.name}")
        expected = sum(map(len, segments)) + 1
        if int(count) != expected:
            raise _make_duplicates_error(int(count) - 1, expected - 1)

    def find_null_keys(self, connection: DatabaseConnection, keys: Sequence[str]) -> list[int]:
        """Return the numbers of rows with null in one of these columns, sorted."""
        if not keys:
            return []
        row, nulls = connection.quote(ROW), " OR ".join(f"{key} IS NULL" for key in keys)
        query = f"SELECT {row} FROM {self.name} WHERE {row} > {_FIRST_ROW} AND ({nulls}) ORDER BY {row}"
        return [int(number) for (number,) in connection.query_rows(query)]

    def create_index(self, connection: DatabaseConnection) -> None:
        """Create an index on the row numbers, for moves of few rows."""
        connection.execute(f"CREATE INDEX {split_table_name(self.name)[-1]}_i ON {self.name} ({connection.quote(ROW)})")

    def make_condition(self, connection: DatabaseConnection, segments: Iterable[RowSegment]) -> str:
        """Return the SQL condition for rows of the segments."""
        row = connection.quote(ROW)
        return " OR ".join(f"{row} BETWEEN {first} AND {last}" for first, last in segments) or "1 = 0"

    def read_as_json(
        self, spark: SparkSession, connection: DatabaseConnection, numbers: Sequence[int]
    ) -> dict[int, str]:
        """Return rows by number, as JSON with the frame's names and types."""
        json_by_number = {}
        for at in range(0, len(numbers), _ROWS_PER_QUERY):
            number_list = ", ".join(map(str, numbers[at : at + _ROWS_PER_QUERY]))
            query = f"SELECT * FROM {self.name} WHERE {connection.quote(ROW)} IN ({number_list})"
            reader = spark.read.format("jdbc").options(**self._database.options()).option("query", query)
            staged_rows = reader.option("preferTimestampNTZ", True).load()
            columns = [
                f.col(f"c{at}").cast(_make_elements_nullable(field.dataType)).alias(field.name)
                for at, field in enumerate(self._schema.fields)
            ]
            for row in staged_rows.select(ROW, make_json_column(columns)).collect():
                json_by_number[int(row[0])] = str(row[1])
        return json_by_number


def _make_elements_nullable(type_: DataType) -> DataType:
    """Return the type with nullable array elements, as Spark reads it from a database."""
    return ArrayType(_make_elements_nullable(type_.elementType)) if isinstance(type_, ArrayType) else type_


def _make_duplicates_error(count: int, expected: int) -> SinkError:
    return SinkError(
        f"the staging table has {count} rows instead of {expected}: Spark ran a task again after it had written rows",
        is_retriable=True,
    )


def make_json_column(columns: Sequence[Column]) -> Column:
    """Return a column with a row as JSON, including null values."""
    return f.to_json(f.struct(*columns), {**TIMESTAMP_OPTIONS, "ignoreNullFields": "false"})


def collect_as_json(rows: DataFrame, condition: Column) -> list[str]:
    """Return the rows that meet a condition, as JSON."""
    text = make_json_column([f.col(quote_column(name)) for name in rows.columns])
    return [str(row[0]) for row in rows.where(condition).select(text).collect()]
