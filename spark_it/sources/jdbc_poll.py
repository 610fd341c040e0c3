"""Polls of a database table. A poll reads the rows since the last poll, by an increasing column.

A poll reads the rows after the end of the last one, up to an end that is queried first, so that rows with the same
value are in the same poll. With an overlap it reads the range below the last end again, for rows that committed late,
and skips rows of earlier polls. A row is identified by `pk.fields` and the column; with another value in the column it
is a new row.

Rows whose value has no order are skipped: null, NaN, infinity, and times outside Python's range. If a poll ended at
such a value, no later row could follow it.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    NumericType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from odradek.properties import nearest
from odradek.spark_it.databases.dialects import find_dialect, quote_column
from odradek.spark_it.databases.jdbc import (
    Database,
    DatabaseConnection,
    DatabaseError,
    NoDriverError,
    find_database_error,
)
from odradek.spark_it.definition.durations import parse_interval_ms
from odradek.spark_it.definition.source_keys import JdbcSource
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.sources.jdbc_spool import Spool
from odradek.spark_it.spark.errors import describe_error

_TIMES = (TimestampType, TimestampNTZType, DateType)
_FRACTIONS = (DecimalType, DoubleType, FloatType)
_EXACT = Context(prec=1000)
"""Decimal's default context rounds to 28 digits."""


class PolledTable:
    """The table of one source. The constructor and all methods raise SourceError."""

    def __init__(self, name: str, source: JdbcSource, spark: SparkSession) -> None:
        self._title = f"source {name}"
        self._source = source
        self._spark = spark
        self._dialect = find_dialect(source.connection_url)
        self._from = source.table_whitelist or f"({source.query}) odradek_q"
        self._is_time = source.mode == "timestamp"
        with self._wrapping_errors():
            database = Database(spark, source.connection_url, source.connection_user, source.connection_password)
            self._database = database
            self._read_schema = self._make_reader(f"SELECT * FROM {self._from} WHERE 1 = 0").load().schema
        self._column = self._find_field(source.timestamp_column_name or source.incrementing_column_name or "")
        self._keys = [self._find_field(key).name for key in source.pk_fields]
        self._check_type()

    @property
    def schema(self) -> StructType:
        """Return the columns. A time without a zone is read in Spark's session time zone."""

        def with_session_zone(field: StructField) -> StructField:
            is_local = isinstance(field.dataType, TimestampNTZType)
            return StructField(field.name, TimestampType() if is_local else field.dataType)

        return StructType([with_session_zone(field) for field in self._read_schema.fields])

    def _find_field(self, name: str) -> StructField:
        fields: dict[str, StructField] = {field.name.casefold(): field for field in self._read_schema.fields}
        if name.casefold() not in fields:
            near = nearest(name.casefold(), fields)
            hint = f", did you mean {fields[near].name}?" if near else f"; it has {', '.join(self._read_schema.names)}"
            raise SourceError(f"{self._title}: the table has no column {name}{hint}")
        return fields[name.casefold()]

    def _check_type(self) -> None:
        type_ = self._column.dataType
        if not isinstance(type_, _TIMES if self._is_time else NumericType):
            other = "incrementing" if self._is_time else "timestamp"
            raise SourceError(
                f"{self._title}: column {self._column.name} is {type_.simpleString()}, which mode {self._source.mode} "
                f"does not support; choose another column or mode {other}"
            )

    def describe_skipped_rows(self) -> str | None:
        """Return a warning with the number of rows that polls skip; None if they skip none."""
        with self._wrapping_errors(), self._database.connect() as connection:
            column = connection.quote(self._column.name)
            [metadata] = connection.query_columns(f"SELECT {column} FROM {self._from} WHERE 1 = 0")
            conditions = [*([f"{column} IS NULL"] if metadata.is_nullable else []), *self._make_skip_conditions(column)]
            if not conditions:
                return None
            count = int(
                connection.query_text(f"SELECT COUNT(*) FROM {self._from} WHERE {' OR '.join(conditions)}") or 0
            )
        if not count:
            return None
        rows = "1 row is" if count == 1 else f"{count} rows are"
        what = "infinite, before the year 1, or 9999-12-31 or later" if self._is_time else "NaN or infinite"
        return f"{self._title}: {rows} skipped, where {self._column.name} is null, {what}"

    def poll_into(self, spool: Spool) -> bool:
        """Add a poll to the spool; return False if there is nothing to add.

        It has at most batch.max.rows rows, and further rows with the last value. Also raises
        jdbc_spool.SpoolFencedError.
        """
        number, last = spool.read_last()
        last_end: str | None = last.get("end")
        returned: dict[str, str] = last.get("given", {})
        with self._wrapping_errors(), self._database.connect() as connection:
            column = connection.quote(self._column.name)
            inside = [f"NOT ({condition})" for condition in self._make_skip_conditions(column)]
            end = self._query_end(connection, column, last_end, inside) or last_end
            if end is None or (end == last_end and self._source.overlap is None):
                return False
            after = last_end if last_end is None or self._source.overlap is None else self._subtract_overlap(last_end)
            conditions = [*inside, f"{column} <= {self._make_literal(end)}"]
            if after is not None:
                conditions.append(f"{column} > {self._make_literal(after)}")
            rows = self._read_rows(" AND ".join(conditions))
        if self._source.overlap is not None:
            rows, returned = self._remove_returned(rows, returned, self._subtract_overlap(end))
        if not len(rows) and end == last_end:
            return False
        spool.add(rows, {"end": end, "given": returned}, after=number)
        return True

    def _query_end(
        self, connection: DatabaseConnection, column: str, last_end: str | None, inside: list[str]
    ) -> str | None:
        # Neither condition is true for null.
        condition = f"{column} IS NOT NULL" if last_end is None else f"{column} > {self._make_literal(last_end)}"
        first = f"SELECT {column} FROM {self._from} WHERE {' AND '.join([condition, *inside])} ORDER BY {column}"
        limited = self._dialect.limit_rows(first, self._source.batch_max_rows)
        return connection.query_text(f"SELECT MAX({column}) FROM ({limited}) odradek_n")

    def _make_skip_conditions(self, column: str) -> list[str]:
        """Return SQL conditions for values without an order, except null."""
        if self._is_time:
            return list(self._dialect.make_unsupported_time_conditions(column))
        return (
            list(self._dialect.make_unsupported_number_conditions(column))
            if isinstance(self._column.dataType, _FRACTIONS)
            else []
        )

    def _make_literal(self, value: str) -> str:
        return self._dialect.make_time_literal(value) if self._is_time else value

    def _subtract_overlap(self, end: str) -> str:
        """Return `end` minus the overlap."""
        overlap = self._source.overlap or "0"
        if not self._is_time:
            return f"{_EXACT.subtract(Decimal(end), Decimal(overlap)):f}"
        moment = self._parse_time(end)
        try:
            return str(moment - timedelta(milliseconds=parse_interval_ms(overlap)))
        except OverflowError:
            return str(datetime.min.replace(tzinfo=moment.tzinfo))

    def _parse_time(self, value: str) -> datetime:
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            what = f"{self._column.name} has {value}, which is not a time in the years 1 to 9999"
            raise SourceError(f"{self._title}: {what}; exclude such rows with query") from None

    def _make_reader(self, query: str) -> Any:
        reader = self._spark.read.format("jdbc").options(**self._database.options()).option("query", query)
        return reader.option("preferTimestampNTZ", True).option("fetchsize", 10_000)

    def _read_rows(self, where: str) -> pa.Table:
        frame = self._make_reader(f"SELECT * FROM {self._from} WHERE {where}").load()
        columns = [f.col(quote_column(field.name)).cast(field.dataType) for field in self.schema.fields]
        return frame.select(*columns).toArrow()

    def _remove_returned(self, rows: pa.Table, returned: dict[str, str], after: str) -> tuple[pa.Table, dict[str, str]]:
        """Return the rows that no earlier poll returned, and all returned rows of the next overlap, as values by the
        hash of their key."""
        values = rows[self._column.name].to_pylist()
        keys = zip(*(rows[key].to_pylist() for key in self._keys), values, strict=True)
        hashes = [hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:24] for key in keys]
        new_indexes = [at for at, hashed in enumerate(hashes) if hashed not in returned]
        all_returned = dict(returned)
        for at in new_indexes:
            all_returned[hashes[at]] = str(values[at])
        bound = self._parse_value(after)
        still_in_overlap = {hashed: value for hashed, value in all_returned.items() if self._parse_value(value) > bound}
        return rows.take(pa.array(new_indexes, pa.int64())), still_in_overlap

    def _parse_value(self, value: str) -> Any:
        if not self._is_time:
            return Decimal(value)
        moment = self._parse_time(value)
        # Values of a column without a zone have the session's zone; their local time is the database's value.
        has_zone = isinstance(self._column.dataType, TimestampType)
        return moment if has_zone else moment.replace(tzinfo=None)

    @contextmanager
    def _wrapping_errors(self) -> Iterator[None]:
        try:
            yield
        except NoDriverError as error:
            raise SourceError(f"{self._title}: {error}") from None
        except DatabaseError as error:
            raise SourceError(self._describe_error(error)) from None
        except SourceError:
            raise
        except Exception as error:
            database_failure = find_database_error(error)
            if database_failure is not None:
                raise SourceError(self._describe_error(database_failure)) from None
            if not isinstance(error, Py4JJavaError | PySparkException):
                raise
            # For example, another column has a time outside Spark's range.
            raise SourceError(f"{self._title}: rows cannot be read: {describe_error(error)}") from None

    def _describe_error(self, error: DatabaseError) -> str:
        where = self._database.shown_url
        if error.state.startswith("08"):
            return f"{self._title}: database {where} cannot be reached: {error}; start it, or correct connection.url"
        return f"{self._title}: database {where}: {error}"
