"""The database sink, exactly once: Spark's tasks write a batch to a staging table, then the driver moves its rows to
the table, in one transaction that also records the number of the batch.

Rows that the table rejects (SQLSTATE classes 22 and 23; errors such as a lost connection reject no rows) are found by
bisection: a half without such rows is moved with one statement. Rejected rows are written to the dead-letter topic
before the transaction commits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it.databases.dialects import Dialect, find_dialect
from odradek.spark_it.databases.jdbc import Database, DatabaseConnection, DatabaseError, NoDriverError
from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, FailureStage, make_error_headers
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.sinks.jdbc_marker import MarkerTable
from odradek.spark_it.sinks.jdbc_staging import ROW, RowSegment, StagingTable, collect_as_json, drop_leftover_tables
from odradek.spark_it.sinks.jdbc_target import Preparation, TableTarget

_ROW_BY_ROW_LIMIT = 2000
"""Maximum number of rows of a part with a bad row that is moved row by row. Not all databases can do this in one
statement."""
_REJECTED_TABLE = "odradek_refused"
_DEAD_TYPE = "key binary, value binary, headers array<struct<key: string, value: binary>>"


_RejectedRow = tuple[int, DatabaseError]
"""The number of a row that the table rejects, and the error."""
_Insert = Callable[[DatabaseConnection, StagingTable, Sequence[RowSegment]], list[_RejectedRow]]


class _BadRow(NamedTuple):
    row: str
    error: DatabaseError


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: DeadLetterWriter | None
) -> "JdbcTable":
    """Return the sink of a pipeline. Raises SinkError."""
    sink = pipeline.sink
    assert isinstance(sink, JdbcSink)
    return JdbcTable(pipeline, sink, spark, dead_letters)


class _StagingRejectedError(Exception):
    """The staging table rejected rows; the error does not identify them."""

    def __init__(self, error: DatabaseError) -> None:
        super().__init__(str(error))
        self.error = error


class JdbcTable:
    """A `BatchSink` for a table of a database."""

    takes_dead_letters = False

    def __init__(
        self, pipeline: Pipeline, sink: JdbcSink, spark: SparkSession, dead_letters: DeadLetterWriter | None
    ) -> None:
        self._name = pipeline.name
        self._tolerates = pipeline.errors.tolerance == "all"
        self._has_headers = pipeline.errors.deadletterqueue_context_headers_enable
        self._sink = sink
        self._spark = spark
        self._dead_letters = dead_letters
        self._dialect: Dialect = find_dialect(sink.connection_url)
        try:
            self._database = Database(spark, sink.connection_url, sink.connection_user, sink.connection_password)
        except NoDriverError as error:
            raise SinkError(str(error)) from None
        self._markers = MarkerTable(self._name, sink.table_name_format, self._dialect)
        self._target: TableTarget | None = None

    def prepare(self, schema: StructType) -> None:
        with self._wrapping_errors(), self._database.connect() as connection:
            preparation = Preparation(self._sink, self._database, self._dialect, connection, self._name)
            self._target = preparation.prepare_target(schema)
            self._markers.prepare(connection)

    def read_marker(self) -> int:
        with self._wrapping_errors(), self._database.connect() as connection:
            return self._markers.read_marker(connection)

    def read_owners(self) -> frozenset[str]:
        with self._wrapping_errors(), self._database.connect() as connection:
            return self._markers.read_owners(connection)

    def claim(self, claim: Claim) -> None:
        with self._wrapping_errors(), self._database.connect() as connection:
            self._markers.claim(connection, claim)
            # Only after the claim: until then another copy of the pipeline may be writing to its staging tables.
            drop_leftover_tables(connection, self._dialect, self._name, self._sink.table_name_format)

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: SinkBatch) -> WrittenCounts:
        if self._target is None:
            self.prepare(rows.schema)
        with self._wrapping_errors(), self._database.connect() as connection:
            written = self._markers.read_outcome(connection, batch)
            if written is not None:
                return written
            try:
                return self._attempt_write(connection, rows, batch, [])
            except _StagingRejectedError as rejected:
                storable, bad = self._split_storable(rows, rejected.error)
            return self._attempt_write(connection, storable, batch, bad)

    def _attempt_write(
        self, connection: DatabaseConnection, rows: DataFrame, batch: SinkBatch, bad: list[_BadRow]
    ) -> WrittenCounts:
        """Write the rows; `bad` has the rows that the staging table rejected in the previous attempt at the batch."""
        table = self._sink.table_name_format
        staging = StagingTable(self._database, self._dialect, self._name, table, rows.schema)
        with staging.create_temporarily(connection):
            try:
                staging.fill(rows, self._sink.batch_size)
            except DatabaseError as error:
                if self._dialect.is_bad_row(error):
                    raise _StagingRejectedError(error) from None
                raise
            return self._move_in_transaction(connection, staging, batch, bad)

    def _split_storable(self, rows: DataFrame, error: DatabaseError) -> tuple[DataFrame, list[_BadRow]]:
        """Return the rows that the staging table can store, and the others. Raises `error` if there are no others."""
        condition = self._dialect.make_unstorable_condition(rows.schema)
        bad = [] if condition is None else [_BadRow(row, error) for row in collect_as_json(rows, condition)]
        if condition is None or not bad:
            raise error
        self._require_tolerance(bad[0])
        return rows.where(~condition), bad

    def _move_in_transaction(
        self, connection: DatabaseConnection, staging: StagingTable, batch: SinkBatch, bad: list[_BadRow]
    ) -> WrittenCounts:
        """Move all rows in one transaction. If the table rejects a row, begin another one and search for bad rows."""
        try:
            with self._transaction(connection, batch) as is_first:
                if not is_first:
                    return self._read_outcome(connection, batch)
                return self._move_rows(connection, staging, batch, bad, self._insert_all)
        except DatabaseError as error:
            if not self._dialect.is_bad_row(error):
                raise
        staging.create_index(connection)
        with self._transaction(connection, batch) as is_first:
            if not is_first:
                return self._read_outcome(connection, batch)
            return self._move_rows(connection, staging, batch, bad, self._insert_by_halves)

    def _move_rows(
        self,
        connection: DatabaseConnection,
        staging: StagingTable,
        batch: SinkBatch,
        bad: list[_BadRow],
        insert: _Insert,
    ) -> WrittenCounts:
        assert self._target is not None
        segments = staging.read_segments(connection)
        rejected = [
            (number, self._make_null_key_error())
            for number in staging.find_null_keys(connection, self._target.nullable_keys)
        ]
        rejected = sorted([*rejected, *insert(connection, staging, segments)], key=itemgetter(0))
        json_by_number = staging.read_as_json(batch.spark, connection, [number for number, _ in rejected])
        # A repeated task may have written duplicates of bad rows, so bad rows are reported only after this check.
        staging.check_unchanged(connection, segments)
        bad = [*bad, *(_BadRow(json_by_number[number], error) for number, error in rejected)]
        if rejected:
            self._require_tolerance(bad[-len(rejected)])
        return self._finish(connection, batch, segments, bad, len(rejected))

    def _make_null_key_error(self) -> DatabaseError:
        message = f"null in pk.fields {', '.join(self._sink.pk_fields)}: a row without key cannot be upserted"
        return DatabaseError(message, "23502", 0, ("java.sql.SQLIntegrityConstraintViolationException",))

    @contextmanager
    def _transaction(self, connection: DatabaseConnection, batch: SinkBatch) -> Iterator[bool]:
        """Begin a transaction and write the batch's number in it; yield False if the batch was already written."""
        with connection.transaction():
            for statement in self._dialect.make_begin_statements(
                str(batch.spark.conf.get("spark.sql.session.timeZone"))
            ):
                connection.execute(statement)
            yield self._markers.mark_written(connection, batch)

    def _read_outcome(self, connection: DatabaseConnection, batch: SinkBatch) -> WrittenCounts:
        written = self._markers.read_outcome(connection, batch)
        if written is None:
            raise SinkError(f"the row of this pipeline in {self._markers.table} cannot be updated", is_retriable=True)
        return written

    def _insert_all(
        self, connection: DatabaseConnection, staging: StagingTable, segments: Sequence[RowSegment]
    ) -> list[_RejectedRow]:
        self._insert(connection, staging, segments)
        return []

    def _insert(self, connection: DatabaseConnection, staging: StagingTable, segments: Sequence[RowSegment]) -> None:
        assert self._target is not None
        where = staging.make_condition(connection, segments)
        connection.execute(self._target.make_statement(staging.name, connection.quote(ROW), where))

    def _insert_by_halves(
        self, connection: DatabaseConnection, staging: StagingTable, segments: Sequence[RowSegment]
    ) -> list[_RejectedRow]:
        """Move all rows that the table accepts; return the numbers of the others, sorted.

        With errors.tolerance none, stop at the first rejected row. Rows are moved in order: of two rows with the same
        key the later one is rejected, or in an upsert replaces the earlier one.
        """
        rejected: list[_RejectedRow] = []
        waiting = [list(segments)]
        while waiting and (self._tolerates or not rejected):
            part = waiting.pop()
            try:
                with connection.savepoint():
                    self._insert(connection, staging, part)
            except DatabaseError as error:
                if not self._dialect.is_bad_row(error):
                    raise
                size = sum(map(len, part))
                if size == 1:
                    rejected.append((part[0].first, error))
                    continue
                is_row_by_row = size <= _ROW_BY_ROW_LIMIT and self._tolerates
                bad_rows = self._insert_row_by_row(connection, staging, part, error) if is_row_by_row else None
                if bad_rows is not None:
                    rejected += bad_rows
                else:
                    waiting += reversed(_split_in_halves(part))
        return rejected

    def _insert_row_by_row(
        self, connection: DatabaseConnection, staging: StagingTable, part: Sequence[RowSegment], error: DatabaseError
    ) -> list[_RejectedRow] | None:
        """Move a part with one statement that continues after bad rows, and return the rejected rows. If the
        database has no such statement, move nothing and return None."""
        assert self._target is not None
        row = connection.quote(ROW)
        numbers = f"SELECT {row} FROM {staging.name} WHERE {staging.make_condition(connection, part)} ORDER BY {row}"
        insert = self._target.make_statement(staging.name, row, f"{row} = odradek_n")
        statement = self._dialect.make_row_by_row_statement(numbers, insert, _REJECTED_TABLE)
        if statement is None:
            return None
        columns = "number BIGINT, state TEXT, message TEXT"
        connection.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {_REJECTED_TABLE} ({columns}) ON COMMIT DROP")
        connection.execute(statement)
        rejected_rows = connection.query_rows(f"SELECT number, state, message FROM {_REJECTED_TABLE} ORDER BY number")
        connection.execute(f"DELETE FROM {_REJECTED_TABLE}")
        return [
            (int(number), DatabaseError(message, state, 0, error.class_names))
            for number, state, message in rejected_rows
        ]

    def _require_tolerance(self, bad: _BadRow) -> None:
        """Raise BadRecordError unless bad rows are tolerated."""
        if not self._tolerates or self._dead_letters is None:
            failure = self._describe_failure(bad.error)
            raise BadRecordError(None, failure._replace(message=f"{failure.message}, in row {bad.row}"))

    def _describe_failure(self, error: DatabaseError) -> Failure:
        return Failure(FailureStage.TASK_PUT, f"jdbc {self._sink.table_name_format}", error.class_name, str(error))

    def _finish(
        self,
        connection: DatabaseConnection,
        batch: SinkBatch,
        segments: Sequence[RowSegment],
        bad: Sequence[_BadRow],
        staged_bad: int = 0,
    ) -> WrittenCounts:
        """Write the outcome and the dead letters. Precedes the commit, because a crash after it would lose them."""
        written = WrittenCounts(sum(map(len, segments)) - staged_bad, len(bad))
        self._markers.write_outcome(connection, written)
        if bad:
            assert self._dead_letters is not None
            self._dead_letters.write(batch.spark.createDataFrame(list(map(self._make_dead_letter, bad)), _DEAD_TYPE))
        return written

    def _make_dead_letter(self, bad: _BadRow) -> tuple[None, bytes, list[tuple[str, bytes | None]]]:
        headers: list[tuple[str, bytes | None]] = []
        if self._has_headers:
            headers = make_error_headers(None, self._describe_failure(bad.error), connector_name=self._name, task_id=0)
        return None, bad.row.encode(), headers

    @contextmanager
    def _wrapping_errors(self) -> Iterator[None]:
        """Convert DatabaseError to SinkError, with a remedy, and add the database to the message of a SinkError."""
        where = f"database {self._database.shown_url}"
        try:
            yield
        except DatabaseError as error:
            if error.state.startswith("08"):
                text = f"{where} cannot be reached: {error}; start it, or correct connection.url"
            elif error.state.startswith("28"):
                text = f"{where} rejects connection.user and connection.password: {error}"
            else:
                text = f"{where}, table {self._sink.table_name_format}: {error}"
            raise SinkError(text, is_retriable=self._dialect.is_transient(error)) from None
        except SinkError as error:
            raise SinkError(f"{where}: {error}", is_retriable=error.is_retriable) from None

    def close(self) -> None:
        """Do nothing: no resources are held between batches."""


def _split_in_halves(segments: Sequence[RowSegment]) -> list[list[RowSegment]]:
    """Split segments into two parts of equal size; the first part has one row more if the number of rows is odd."""
    left: list[RowSegment] = []
    left_rows = (sum(map(len, segments)) + 1) // 2
    for at, segment in enumerate(segments):
        if len(segment) < left_rows:
            left.append(segment)
            left_rows -= len(segment)
            continue
        middle = segment.first + left_rows
        left.append(RowSegment(segment.first, middle - 1))
        right = [RowSegment(middle, segment.last)] if middle <= segment.last else []
        return [left, [*right, *segments[at + 1 :]]]
    return [left, []]
