"""One poll of a database table: the rows since the last poll, by a growing column.

A poll returns the rows after the end of the last one, up to an end that is looked up first, so that rows with the same
value come together. With an overlap it reads the range below again, for rows that committed late, and skips those that
it has returned: they are identified by `pk.fields` and the column, since a row with a later time is a new one.

Rows whose column has no place in the order of the others are left out: null, NaN, infinity, and times that Python does
not support. If a poll ended at one, no later row would be after its end.
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
from odradek.spark_it.databases.dialects import dialect_of, quoted
from odradek.spark_it.databases.jdbc import Connection, Database, DatabaseError, NoDriverError, database_error
from odradek.spark_it.definition.durations import interval_ms
from odradek.spark_it.definition.source_keys import JdbcSource
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.sources.jdbc_spool import Spool
from odradek.spark_it.spark.errors import readable

_TIMES = (TimestampType, TimestampNTZType, DateType)
_FRACTIONS = (DecimalType, DoubleType, FloatType)
_EXACT = Context(prec=1000)
"""Decimal's default context rounds to 28 digits."""


class Poll:
    """Polls of the table of one source. Raises SourceError, and so do its methods."""

    def __init__(self, name: str, source: JdbcSource, spark: SparkSession) -> None:
        self._title = f"source {name}"
        self._source = source
        self._spark = spark
        self._dialect = dialect_of(source.connection_url)
        self._from = source.table_whitelist or f"({source.query}) odradek_q"
        self._is_time = source.mode == "timestamp"
        with self._explained():
            database = Database(spark, source.connection_url, source.connection_user, source.connection_password)
            self._database = database
            self._read_schema = self._reader(f"SELECT * FROM {self._from} WHERE 1 = 0").load().schema
        self._column = self._known(source.timestamp_column_name or source.incrementing_column_name or "")
        self._keys = [self._known(key).name for key in source.pk_fields]
        self._check_type()

    @property
    def schema(self) -> StructType:
        """Return the columns; a time without a zone is in Spark's session time zone."""

        def seen(field: StructField) -> StructField:
            is_local = isinstance(field.dataType, TimestampNTZType)
            return StructField(field.name, TimestampType() if is_local else field.dataType)

        return StructType([seen(field) for field in self._read_schema.fields])

    def _known(self, name: str) -> StructField:
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
                f"cannot go by; mode {other} takes another kind"
            )

    def left_out(self) -> str | None:
        """Return a line about the rows that no poll returns; None if there are none."""
        with self._explained(), self._database.connect() as connection:
            column = connection.quoted(self._column.name)
            [about] = connection.columns(f"SELECT {column} FROM {self._from} WHERE 1 = 0")
            conditions = [*([f"{column} IS NULL"] if about.is_nullable else []), *self._outside(column)]
            if not conditions:
                return None
            count = int(connection.text(f"SELECT COUNT(*) FROM {self._from} WHERE {' OR '.join(conditions)}") or 0)
        if not count:
            return None
        rows = "1 row is" if count == 1 else f"{count} rows are"
        what = "infinite, before the year 1, or 9999-12-31 or later" if self._is_time else "NaN or infinite"
        return f"{self._title}: {rows} left out, where {self._column.name} is null, {what}"

    def into(self, spool: Spool) -> bool:
        """Add new rows, up to batch.max.rows and those with the last one's value; return whether there were any.

        Raises jdbc_spool.FencedError as well.
        """
        number, last = spool.last()
        before: str | None = last.get("end")
        given: dict[str, str] = last.get("given", {})
        with self._explained(), self._database.connect() as connection:
            column = connection.quoted(self._column.name)
            inside = [f"NOT ({condition})" for condition in self._outside(column)]
            end = self._end(connection, column, before, inside) or before
            if end is None or (end == before and self._source.overlap is None):
                return False
            after = before if before is None or self._source.overlap is None else self._below(before)
            conditions = [*inside, f"{column} <= {self._literal(end)}"]
            if after is not None:
                conditions.append(f"{column} > {self._literal(after)}")
            found = self._rows(" AND ".join(conditions))
        if self._source.overlap is not None:
            found, given = self._not_given(found, given, self._below(end))
        if not len(found) and end == before:
            return False
        spool.add(found, {"end": end, "given": given}, after=number)
        return True

    def _end(self, connection: Connection, column: str, before: str | None, inside: list[str]) -> str | None:
        # Neither reaches nulls.
        beyond = f"{column} IS NOT NULL" if before is None else f"{column} > {self._literal(before)}"
        first = f"SELECT {column} FROM {self._from} WHERE {' AND '.join([beyond, *inside])} ORDER BY {column}"
        limited = self._dialect.limited(first, self._source.batch_max_rows)
        return connection.text(f"SELECT MAX({column}) FROM ({limited}) odradek_n")

    def _outside(self, column: str) -> list[str]:
        """Conditions of which one holds for a value, but null, that cannot be put in order with others."""
        if self._is_time:
            return list(self._dialect.endless_times(column))
        return list(self._dialect.endless_numbers(column)) if isinstance(self._column.dataType, _FRACTIONS) else []

    def _literal(self, value: str) -> str:
        return self._dialect.time_literal(value) if self._is_time else value

    def _below(self, end: str) -> str:
        """The value that far below another as the overlap goes."""
        overlap = self._source.overlap or "0"
        if not self._is_time:
            return f"{_EXACT.subtract(Decimal(end), Decimal(overlap)):f}"
        moment = self._moment(end)
        try:
            return str(moment - timedelta(milliseconds=interval_ms(overlap)))
        except OverflowError:
            return str(datetime.min.replace(tzinfo=moment.tzinfo))

    def _moment(self, value: str) -> datetime:
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            what = f"{self._column.name} has {value}, which is no time of the years 1 to 9999"
            raise SourceError(f"{self._title}: {what}; leave such rows out with query") from None

    def _reader(self, query: str) -> Any:
        reader = self._spark.read.format("jdbc").options(**self._database.options()).option("query", query)
        return reader.option("preferTimestampNTZ", True).option("fetchsize", 10_000)

    def _rows(self, where: str) -> pa.Table:
        frame = self._reader(f"SELECT * FROM {self._from} WHERE {where}").load()
        columns = [f.col(quoted(field.name)).cast(field.dataType) for field in self.schema.fields]
        return frame.select(*columns).toArrow()

    def _not_given(self, found: pa.Table, given: dict[str, str], after: str) -> tuple[pa.Table, dict[str, str]]:
        """The rows that were not given, and what is then given of the next overlap: values by the hash of their key."""
        values = found[self._column.name].to_pylist()
        keys = zip(*(found[key].to_pylist() for key in self._keys), values, strict=True)
        hashes = [hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:24] for key in keys]
        fresh = [at for at, hashed in enumerate(hashes) if hashed not in given]
        remembered = dict(given)
        for at in fresh:
            remembered[hashes[at]] = str(values[at])
        bound = self._comparable(after)
        kept = {hashed: value for hashed, value in remembered.items() if self._comparable(value) > bound}
        return found.take(pa.array(fresh, pa.int64())), kept

    def _comparable(self, value: str) -> Any:
        if not self._is_time:
            return Decimal(value)
        moment = self._moment(value)
        # Of a column without a zone the rows are in the session's: its wall is the database's.
        has_zone = isinstance(self._column.dataType, TimestampType)
        return moment if has_zone else moment.replace(tzinfo=None)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NoDriverError as error:
            raise SourceError(f"{self._title}: {error}") from None
        except DatabaseError as error:
            raise SourceError(self._said(error)) from None
        except SourceError:
            raise
        except Exception as error:
            said = database_error(error)
            if said is not None:
                raise SourceError(self._said(said)) from None
            if not isinstance(error, Py4JJavaError | PySparkException):
                raise
            # Such as a time in another column that Spark does not have.
            raise SourceError(f"{self._title}: rows cannot be read: {readable(error)}") from None

    def _said(self, error: DatabaseError) -> str:
        where = self._database.shown_url
        if error.state.startswith("08"):
            return f"{self._title}: database {where} cannot be reached: {error}; start it, or correct connection.url"
        return f"{self._title}: database {where}: {error}"
