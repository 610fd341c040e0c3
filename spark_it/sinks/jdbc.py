"""The database sink, exactly once: Spark's tasks write a batch to a staging table, then the driver moves it to the
table in one transaction with the number of the batch.

Rows that the table rejects (SQLSTATE 22 and 23, but not a lost connection) are found by bisection: a half without such
rows is moved with one statement. They are written to the dead-letter topic after the valid rows are in the transaction,
and before it commits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it.databases.dialects import Dialect, dialect_of
from odradek.spark_it.databases.jdbc import Connection, Database, DatabaseError, NoDriverError
from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, Stage, error_headers
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import Batch, Claim, SinkError, Written
from odradek.spark_it.sinks.jdbc_marker import MarkerTable
from odradek.spark_it.sinks.jdbc_staging import ROW, Segment, Staging, drop_left_over, unstorable
from odradek.spark_it.sinks.jdbc_target import Preparation, TableTarget

_ROW_BY_ROW_LIMIT = 2000
"""Largest part that is moved row by row if it contains a bad row, in databases that support this in one statement."""
_REFUSED = "odradek_refused"
_DEAD_TYPE = "key binary, value binary, headers array<struct<key: string, value: binary>>"


_Refused = tuple[int, DatabaseError]
"""The number of a row that the table rejects, and the error."""
_Insert = Callable[[Connection, Staging, Sequence[Segment]], list[_Refused]]


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


class _StagingRefusedError(Exception):
    """The staging table rejected rows. It is not yet known which ones."""

    def __init__(self, error: DatabaseError) -> None:
        super().__init__(str(error))
        self.error = error


class JdbcTable:
    """A `BatchSink`."""

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
        self._dialect: Dialect = dialect_of(sink.connection_url)
        try:
            self._database = Database(spark, sink.connection_url, sink.connection_user, sink.connection_password)
        except NoDriverError as error:
            raise SinkError(str(error)) from None
        self._markers = MarkerTable(self._name, sink.table_name_format, self._dialect)
        self._target: TableTarget | None = None

    def prepare(self, schema: StructType) -> None:
        with self._explained(), self._database.connect() as connection:
            preparation = Preparation(self._sink, self._database, self._dialect, connection, self._name)
            self._target = preparation.target(schema)
            self._markers.prepare(connection)

    def recorded(self) -> int:
        with self._explained(), self._database.connect() as connection:
            return self._markers.newest(connection)

    def owners(self) -> frozenset[str]:
        with self._explained(), self._database.connect() as connection:
            return self._markers.owners(connection)

    def claim(self, claim: Claim) -> None:
        with self._explained(), self._database.connect() as connection:
            self._markers.claim(connection, claim)
            # Before the claim these may be the staging tables of a batch that another copy is writing.
            drop_left_over(connection, self._dialect, self._name, self._sink.table_name_format)

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: Batch) -> Written:
        if self._target is None:
            self.prepare(rows.schema)
        with self._explained(), self._database.connect() as connection:
            written = self._markers.written(connection, batch)
            if written is not None:
                return written
            try:
                return self._attempt(connection, rows, batch, [])
            except _StagingRefusedError as refused:
                storable, bad = self._storable(rows, refused.error)
            return self._attempt(connection, storable, batch, bad)

    def _attempt(self, connection: Connection, rows: DataFrame, batch: Batch, bad: list[_BadRow]) -> Written:
        """Write the rows; `bad` are the rows of the batch that the staging table has rejected."""
        table = self._sink.table_name_format
        staging = Staging(self._database, self._dialect, self._name, table, rows.schema)
        with staging.created(connection):
            try:
                staging.fill(rows, self._sink.batch_size)
            except DatabaseError as error:
                if self._dialect.is_bad_row(error):
                    raise _StagingRefusedError(error) from None
                raise
            return self._move(connection, staging, batch, bad)

    def _storable(self, rows: DataFrame, error: DatabaseError) -> tuple[DataFrame, list[_BadRow]]:
        """Return the rows that the staging table can store, and the others."""
        condition = self._dialect.unstorable(rows.schema)
        bad = [] if condition is None else [_BadRow(row, error) for row in unstorable(rows, condition)]
        if condition is None or not bad:
            raise error
        self._require_tolerance(bad[0])
        return rows.where(~condition), bad

    def _move(self, connection: Connection, staging: Staging, batch: Batch, bad: list[_BadRow]) -> Written:
        """Move all rows in one transaction. If the table rejects a row, repeat that with a search for bad rows."""
        try:
            with self._transaction(connection, batch) as is_first:
                if not is_first:
                    return self._written_by_another(connection, batch)
                return self._move_rows(connection, staging, batch, bad, self._insert_all)
        except DatabaseError as error:
            if not self._dialect.is_bad_row(error):
                raise
        staging.index(connection)
        with self._transaction(connection, batch) as is_first:
            if not is_first:
                return self._written_by_another(connection, batch)
            return self._move_rows(connection, staging, batch, bad, self._insert_by_halves)

    def _move_rows(
        self, connection: Connection, staging: Staging, batch: Batch, bad: list[_BadRow], insert: _Insert
    ) -> Written:
        assert self._target is not None
        segments = staging.segments(connection)
        refused = [(number, self._no_key()) for number in staging.without_keys(connection, self._target.nullable_keys)]
        refused = sorted([*refused, *insert(connection, staging, segments)], key=itemgetter(0))
        json_by_number = staging.as_json(batch.spark, connection, [number for number, _ in refused])
        # Before bad rows are reported, because they may be duplicates that a repeated task has written.
        staging.check_unchanged(connection, segments)
        bad = [*bad, *(_BadRow(json_by_number[number], error) for number, error in refused)]
        if refused:
            self._require_tolerance(bad[-len(refused)])
        return self._finish(connection, batch, segments, bad, len(refused))

    def _no_key(self) -> DatabaseError:
        message = f"null in pk.fields {', '.join(self._sink.pk_fields)}: a row without key cannot be upserted"
        return DatabaseError(message, "23502", 0, ("java.sql.SQLIntegrityConstraintViolationException",))

    @contextmanager
    def _transaction(self, connection: Connection, batch: Batch) -> Iterator[bool]:
        """Begin a transaction and write the batch's number in it; yield False if the batch is already written."""
        with connection.transaction():
            for statement in self._dialect.begin(str(batch.spark.conf.get("spark.sql.session.timeZone"))):
                connection.execute(statement)
            yield self._markers.take(connection, batch)

    def _written_by_another(self, connection: Connection, batch: Batch) -> Written:
        written = self._markers.written(connection, batch)
        if written is None:
            raise SinkError(f"the row of this pipeline in {self._markers.table} cannot be updated", is_retriable=True)
        return written

    def _insert_all(self, connection: Connection, staging: Staging, segments: Sequence[Segment]) -> list[_Refused]:
        self._insert(connection, staging, segments)
        return []

    def _insert(self, connection: Connection, staging: Staging, segments: Sequence[Segment]) -> None:
        assert self._target is not None
        where = staging.where(connection, segments)
        connection.execute(self._target.statement(staging.name, connection.quoted(ROW), where))

    def _insert_by_halves(
        self, connection: Connection, staging: Staging, segments: Sequence[Segment]
    ) -> list[_Refused]:
        """Move all rows that the table accepts; return the numbers of the others, sorted. With errors.tolerance none,
        stop at the first. Earlier rows are moved first, so that of two rows with the same key the later one is
        rejected, or replaces the earlier one in an upsert."""
        refused: list[_Refused] = []
        waiting = [list(segments)]
        while waiting and (self._tolerates or not refused):
            part = waiting.pop()
            try:
                with connection.savepoint():
                    self._insert(connection, staging, part)
            except DatabaseError as error:
                if not self._dialect.is_bad_row(error):
                    raise
                size = sum(map(len, part))
                if size == 1:
                    refused.append((part[0].first, error))
                    continue
                is_row_by_row = size <= _ROW_BY_ROW_LIMIT and self._tolerates
                rejected = self._row_by_row(connection, staging, part, error) if is_row_by_row else None
                if rejected is not None:
                    refused += rejected
                else:
                    waiting += reversed(_halves(part))
        return refused

    def _row_by_row(
        self, connection: Connection, staging: Staging, part: Sequence[Segment], error: DatabaseError
    ) -> list[_Refused] | None:
        """Move a part with one statement that continues after bad rows, and return the rejected rows. If the
        database has no such statement, move nothing and return None."""
        assert self._target is not None
        row = connection.quoted(ROW)
        numbers = f"SELECT {row} FROM {staging.name} WHERE {staging.where(connection, part)} ORDER BY {row}"
        one = self._target.statement(staging.name, row, f"{row} = odradek_n")
        statement = self._dialect.row_by_row(numbers, one, _REFUSED)
        if statement is None:
            return None
        columns = "number BIGINT, state TEXT, message TEXT"
        connection.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {_REFUSED} ({columns}) ON COMMIT DROP")
        connection.execute(statement)
        rejected_rows = connection.rows(f"SELECT number, state, message FROM {_REFUSED} ORDER BY number")
        connection.execute(f"DELETE FROM {_REFUSED}")
        return [
            (int(number), DatabaseError(message, state, 0, error.class_names))
            for number, state, message in rejected_rows
        ]

    def _require_tolerance(self, bad: _BadRow) -> None:
        """Raise BadRecordError unless bad rows are tolerated."""
        if not self._tolerates or self._dead_letters is None:
            failure = self._failure(bad.error)
            raise BadRecordError(None, failure._replace(message=f"{failure.message}, in row {bad.row}"))

    def _failure(self, error: DatabaseError) -> Failure:
        return Failure(Stage.TASK_PUT, f"jdbc {self._sink.table_name_format}", error.class_name, str(error))

    def _finish(
        self,
        connection: Connection,
        batch: Batch,
        segments: Sequence[Segment],
        bad: Sequence[_BadRow],
        staged_bad: int = 0,
    ) -> Written:
        """Write the outcome and the dead letters, before the commit: after it a crash would lose them."""
        written = Written(sum(map(len, segments)) - staged_bad, len(bad))
        self._markers.note(connection, written)
        if bad:
            assert self._dead_letters is not None
            self._dead_letters.write(batch.spark.createDataFrame(list(map(self._dead_letter, bad)), _DEAD_TYPE))
        return written

    def _dead_letter(self, bad: _BadRow) -> tuple[None, bytes, list[tuple[str, bytes | None]]]:
        headers: list[tuple[str, bytes | None]] = []
        if self._has_headers:
            headers = error_headers(None, self._failure(bad.error), connector_name=self._name, task_id=0)
        return None, bad.row.encode(), headers

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of the database to SinkError, with a remedy."""
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


def _halves(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Split segments into two parts of equal size; the first may have one row more."""
    left: list[Segment] = []
    left_rows = (sum(map(len, segments)) + 1) // 2
    for at, segment in enumerate(segments):
        if len(segment) < left_rows:
            left.append(segment)
            left_rows -= len(segment)
            continue
        middle = segment.first + left_rows
        left.append(Segment(segment.first, middle - 1))
        right = [Segment(middle, segment.last)] if middle <= segment.last else []
        return [left, [*right, *segments[at + 1 :]]]
    return [left, []]
