"""Table `pipeline_batches`: the last batch that a database sink has written for a pipeline.

It has a row for each pipeline and target table, which is updated in the transaction of the batch's rows. Of two
concurrent attempts the second waits for the lock of this row, and then detects that the batch is written. Column
`state` is the identity of the pipeline's state that has claimed the row; no other state updates it.
"""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

from odradek.spark_it.databases.dialects import Dialect
from odradek.spark_it.databases.jdbc import DatabaseConnection, DatabaseError
from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.sinks.jdbc_staging import qualify_name
from odradek.spark_it.sinks.marker_checks import check_owners, is_written

TABLE = "pipeline_batches"
_COLUMNS = (
    "pipeline VARCHAR(200) NOT NULL",
    "target VARCHAR(250) NOT NULL",
    "generation BIGINT NOT NULL",
    "batch BIGINT NOT NULL",
    "row_count BIGINT NOT NULL",
    "dead_letter_count BIGINT NOT NULL",
    "state VARCHAR(32) NOT NULL",
    "PRIMARY KEY (pipeline, target)",
)


_UNCLAIMED = "-"
"""Not an empty string, because Oracle stores that as null."""


class _MarkerRow(NamedTuple):
    generation: int
    batch: int
    row_count: int
    dead_letter_count: int
    state: str

    @property
    def owners(self) -> frozenset[str]:
        return frozenset() if self.state == _UNCLAIMED else frozenset({self.state})


@dataclass(frozen=True)
class MarkerTable:
    """The row of one pipeline and its target table. Methods raise DatabaseError."""

    pipeline: str
    target: str
    dialect: Dialect

    @property
    def table(self) -> str:
        return qualify_name(self.target, TABLE)

    def prepare(self, connection: DatabaseConnection) -> None:
        """Create table and row if they are missing."""
        try:
            rows = self._query_rows(connection)
        except DatabaseError as error:
            if not self.dialect.is_missing_table(error):
                if "state" in str(error).lower() and error.state[:2] in ("42", "S0", ""):
                    raise SinkError(
                        f"table {self.table} has no column state, so an earlier version has created it ({error}); drop "
                        "it and reset each pipeline that has a row in it"
                    ) from None
                raise
            # Another pipeline may create the table at the same time; any other error recurs in the next statement.
            with contextlib.suppress(DatabaseError):
                connection.execute(f"CREATE TABLE {self.table} ({', '.join(_COLUMNS)})")
            rows = self._query_rows(connection)
        if not rows:
            columns = "pipeline, target, generation, batch, row_count, dead_letter_count, state"
            insert = f"INSERT INTO {self.table} ({columns}) VALUES (?, ?, 0, -1, 0, 0, ?)"
            connection.execute(insert, self.pipeline, self.target, _UNCLAIMED)

    def _query_rows(self, connection: DatabaseConnection) -> list[_MarkerRow]:
        query = f"SELECT generation, batch, row_count, dead_letter_count, state FROM {self.table}"
        found = connection.query_rows(f"{query} WHERE pipeline = ? AND target = ?", self.pipeline, self.target)
        return [_MarkerRow(*row) for row in found]

    def read_marker(self, connection: DatabaseConnection) -> int:
        """Return the marker of the last batch; 0 if none is written. Raises SinkError."""
        row = self._read_row(connection)
        return make_marker_number(row.generation, row.batch)

    def read_owners(self, connection: DatabaseConnection) -> frozenset[str]:
        """Return the state that has claimed the row; empty if none has. Raises SinkError."""
        return self._read_row(connection).owners

    def claim(self, connection: DatabaseConnection, claim: Claim) -> None:
        """Claim the row for a state. Raises SinkError if another state has claimed it since `read_owners`."""
        row = self._read_row(connection)
        if row.owners == {claim.state}:
            return
        claim.check(row.owners, f"the row of pipeline {self.pipeline} in table {self.table}")
        connection.execute(
            f"UPDATE {self.table} SET state = ?, generation = ?, batch = -1 "
            "WHERE pipeline = ? AND target = ? AND state = ?",
            *(claim.state, claim.generation, self.pipeline, self.target, row.state),
        )
        claim.confirm(self._read_row(connection).owners, f"table {self.table}")

    def read_outcome(self, connection: DatabaseConnection, batch: SinkBatch) -> WrittenCounts | None:
        """Return the outcome of the batch if it is written. Raises SinkError."""
        row = self._read_row(connection)
        check_owners(row.owners, batch, f"the row of pipeline {self.pipeline} in table {self.table}")
        if is_written(make_marker_number(row.generation, row.batch), batch, f"the last batch in {self.table}"):
            return WrittenCounts(row.row_count, row.dead_letter_count)
        return None

    def _read_row(self, connection: DatabaseConnection) -> _MarkerRow:
        rows = self._query_rows(connection)
        if not rows:
            raise SinkError(
                f"the row of pipeline {self.pipeline} in table {self.table} was deleted, so the last written batch is "
                "unknown; restore it, or reset"
            )
        return rows[0]

    def mark_written(self, connection: DatabaseConnection, batch: SinkBatch) -> bool:
        """Write the batch's number, within a transaction; return False if it or a later batch is already written."""
        changed = connection.execute(
            f"UPDATE {self.table} SET generation = ?, batch = ? WHERE pipeline = ? AND target = ? AND state = ? "
            "AND (generation < ? OR (generation = ? AND batch < ?))",
            *(batch.generation, batch.id, self.pipeline, self.target, batch.state or _UNCLAIMED),
            *(batch.generation, batch.generation, batch.id),
        )
        return changed == 1

    def write_outcome(self, connection: DatabaseConnection, written: WrittenCounts) -> None:
        """Write the outcome of the batch, in the transaction of `mark_written`."""
        connection.execute(
            f"UPDATE {self.table} SET row_count = ?, dead_letter_count = ? WHERE pipeline = ? AND target = ?",
            *(written.rows, written.dead_letters, self.pipeline, self.target),
        )
