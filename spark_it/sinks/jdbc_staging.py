"""The staging table of a database sink: Spark's tasks write the rows of a batch to it, and the driver moves them.

Each attempt at a batch has its own table, so that a late task or driver of another attempt cannot write to it. Every
row has a number from Spark's `monotonically_increasing_id()`; the rows of a partition have consecutive numbers. The
numbers reveal duplicate rows, of a task that Spark ran again after its commit. A row that the driver writes first
reveals that the database lost the table's rows in a crash, because then it is missing too.

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

from odradek.spark_it.databases.dialects import Dialect, quoted
from odradek.spark_it.databases.jdbc import Connection, Database, DatabaseError, database_error, parts_of
from odradek.spark_it.definition.durations import WRITTEN
from odradek.spark_it.interfaces.sink import SinkError

ROW = "odradek_row"
_ROWS_OF_A_PARTITION = 1 << 33
_FIRST = -2 * _ROWS_OF_A_PARTITION
"""The number of the row that the driver writes, to detect that the database lost the table's rows."""
_ROWS_PER_QUERY = 1000


class Segment(NamedTuple):
    """The rows with numbers `first` to `last`, inclusive, all of which exist."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


def beside(table: str, name: str) -> str:
    """Return the qualified name of table `name` in the schema of another table."""
    parts = parts_of(table)
    return ".".join([*parts[:-1], name])


def prefix_of(pipeline: str, table: str) -> str:
    """Return the common prefix of the names of a pipeline's staging tables."""
    readable = re.sub(r"[^a-z0-9]+", "_", pipeline.lower())[:16]
    return f"odradek_{readable}_{hashlib.sha256(repr((pipeline, table)).encode()).hexdigest()[:10]}_"


def drop_left_over(connection: Connection, dialect: Dialect, pipeline: str, table: str) -> None:
    """Drop the staging tables of killed attempts."""
    with contextlib.suppress(DatabaseError):
        for schema, name in connection.tables_beginning(prefix_of(pipeline, table)):
            in_schema = f"{connection.quoted(schema)}." if schema else ""
            _drop(connection, dialect, f"{in_schema}{connection.quoted(name)}")


def _drop(connection: Connection, dialect: Dialect, table: str) -> None:
    """Drop a table. Failures are ignored, as when a task still writes it, because it is not used again."""
    with contextlib.suppress(DatabaseError), connection.transaction():
        for statement in dialect.drop(table):
            connection.execute(statement)


def is_wall_time(dialect: Dialect, field: StructField) -> bool:
    """Return whether a column is staged as text and cast by the database."""
    return dialect.wall_time is not None and isinstance(field.dataType, TimestampNTZType)


def declared_type(database: Database, dialect: Dialect, field: StructField) -> str:
    """Return the column type of the database for a field. Raises SinkError for a type that it cannot store."""
    try:
        return dialect.column_type(field.dataType) or database.column_type(field.dataType)
    except ValueError as error:
        raise SinkError(f"column {field.name}: {error}; cast it in SQL, or use to_json()") from None


class Staging:
    """One staging table: columns c0, c1 ... for the columns of the frame. Methods raise DatabaseError."""

    def __init__(self, database: Database, dialect: Dialect, pipeline: str, table: str, schema: StructType) -> None:
        self.name = beside(table, prefix_of(pipeline, table) + secrets.token_hex(4))
        self._database = database
        self._dialect = dialect
        self._schema = schema

    @contextmanager
    def created(self, connection: Connection) -> Iterator[None]:
        """Create the table, with its first row, for the duration of the `with` block.

        Raises SinkError for a type that the database cannot store, and a retriable one if the block fails because the
        table was dropped.
        """
        columns = [
            f"{self.column(connection, at)} {declared_type(self._database, self._dialect, field)}"
            f"{self._dialect.nullable}"
            for at, field in enumerate(map(self._staged, self._schema.fields))
        ]
        row = connection.quoted(ROW)
        connection.execute(f"{self._dialect.create_staging} {self.name} ({', '.join(columns)}, {row} BIGINT NOT NULL)")
        try:
            connection.execute(f"INSERT INTO {self.name} ({row}) VALUES ({_FIRST})")
            yield
        except DatabaseError as error:
            if self._dialect.is_missing_table(error) and self._is_missing(connection):
                raise SinkError(
                    f"staging table {self.name} was dropped by another process", is_retriable=True
                ) from None
            raise
        finally:
            _drop(connection, self._dialect, self.name)

    def _is_missing(self, connection: Connection) -> bool:
        try:
            connection.rows(f"SELECT 1 FROM {self.name} WHERE 1 = 0")
        except DatabaseError as error:
            return self._dialect.is_missing_table(error)
        return False

    def _staged(self, field: StructField) -> StructField:
        return StructField(field.name, StringType()) if is_wall_time(self._dialect, field) else field

    def column(self, connection: Connection, at: int) -> str:
        """Return the quoted name of the column for the frame's column `at`."""
        return connection.quoted(f"c{at}")

    def fill(self, rows: DataFrame, batch_size: int) -> None:
        """Write the rows of a batch in Spark's tasks. Errors in the computation of the rows are not converted."""
        named = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
        for at, field in enumerate(rows.schema.fields):
            if is_wall_time(self._dialect, field):
                named = named.withColumn(f"c{at}", f.col(f"c{at}").cast(StringType()))
        numbered = named.withColumn(ROW, f.monotonically_increasing_id())
        if self._dialect.writers is not None:
            numbered = numbered.coalesce(self._dialect.writers)
        writer = numbered.write.format("jdbc").mode("append").options(**self._options())
        try:
            writer.option("dbtable", self.name).option("batchsize", batch_size).save()
        except Exception as error:
            database_failure = database_error(error)
            if database_failure is None:
                raise
            raise database_failure from None

    def _options(self) -> dict[str, str]:
        return {**self._database.options(), **self._dialect.options}

    def segments(self, connection: Connection) -> list[Segment]:
        """Return the existing rows. Raises SinkError if rows are missing or duplicate."""
        row = connection.quoted(ROW)
        partition = f"FLOOR({row} / {_ROWS_OF_A_PARTITION})"
        query = f"SELECT {partition}, MIN({row}), MAX({row}), COUNT(*) FROM {self.name} GROUP BY {partition}"
        segments, has_first = [], False
        for _, first, last, count in connection.rows(query):
            segment = Segment(int(first), int(last))
            if segment.first == _FIRST:
                has_first = True
                continue
            if int(count) != len(segment) or segment.first % _ROWS_OF_A_PARTITION:
                raise _written_twice(int(count), len(segment))
            segments.append(segment)
        if not has_first:
            raise SinkError("the database lost the staging table's rows, for example in a crash", is_retriable=True)
        return sorted(segments)

    def check_unchanged(self, connection: Connection, segments: Sequence[Segment]) -> None:
        """Raise SinkError if the table has more rows than `segments`, in the transaction that has moved them: some of
        the additional rows may have been moved as well."""
        [(count,)] = connection.rows(f"SELECT COUNT(*) FROM {self.name}")
        expected = sum(map(len, segments)) + 1
        if int(count) != expected:
            raise _written_twice(int(count) - 1, expected - 1)

    def without_keys(self, connection: Connection, keys: Sequence[str]) -> list[int]:
        """Return the numbers of rows with null in one of these columns, sorted."""
        if not keys:
            return []
        row, nulls = connection.quoted(ROW), " OR ".join(f"{key} IS NULL" for key in keys)
        query = f"SELECT {row} FROM {self.name} WHERE {row} > {_FIRST} AND ({nulls}) ORDER BY {row}"
        return [int(number) for (number,) in connection.rows(query)]

    def index(self, connection: Connection) -> None:
        """Create an index on the row numbers, for moves of few rows."""
        connection.execute(f"CREATE INDEX {parts_of(self.name)[-1]}_i ON {self.name} ({connection.quoted(ROW)})")

    def where(self, connection: Connection, segments: Iterable[Segment]) -> str:
        """Return the SQL condition for rows of the segments."""
        row = connection.quoted(ROW)
        return " OR ".join(f"{row} BETWEEN {first} AND {last}" for first, last in segments) or "1 = 0"

    def as_json(self, spark: SparkSession, connection: Connection, numbers: Sequence[int]) -> dict[int, str]:
        """Return rows by number, as JSON with the frame's names and types."""
        json_by_number = {}
        for at in range(0, len(numbers), _ROWS_PER_QUERY):
            number_list = ", ".join(map(str, numbers[at : at + _ROWS_PER_QUERY]))
            query = f"SELECT * FROM {self.name} WHERE {connection.quoted(ROW)} IN ({number_list})"
            reader = spark.read.format("jdbc").options(**self._database.options()).option("query", query)
            staged_rows = reader.option("preferTimestampNTZ", True).load()
            columns = [
                f.col(f"c{at}").cast(_with_nulls(field.dataType)).alias(field.name)
                for at, field in enumerate(self._schema.fields)
            ]
            for row in staged_rows.select(ROW, json_of(columns)).collect():
                json_by_number[int(row[0])] = str(row[1])
        return json_by_number


def _with_nulls(type_: DataType) -> DataType:
    """Return the type as Spark reads it from a database, where array elements are nullable."""
    return ArrayType(_with_nulls(type_.elementType)) if isinstance(type_, ArrayType) else type_


def _written_twice(count: int, expected: int) -> SinkError:
    return SinkError(
        f"the staging table has {count} rows instead of {expected}: Spark ran a task again after it had written rows",
        is_retriable=True,
    )


def json_of(columns: Sequence[Column]) -> Column:
    """Return a column with the row as JSON, including null values."""
    return f.to_json(f.struct(*columns), {**WRITTEN, "ignoreNullFields": "false"})


def unstorable(rows: DataFrame, condition: Column) -> list[str]:
    """Return the rows that meet the condition, as JSON."""
    text = json_of([f.col(quoted(name)) for name in rows.columns])
    return [str(row[0]) for row in rows.where(condition).select(text).collect()]
