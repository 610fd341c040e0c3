"""Table `pipeline_batches`: which batch of a pipeline a database sink has written last.

A row for each pipeline and table that it writes, changed in the transaction of the batch's rows. Of two attempts that
are at it at once, the second waits at this row and then finds the batch written.
"""

import contextlib
from dataclasses import dataclass

from odradek.spark_it.dialects import Dialect
from odradek.spark_it.jdbc import Connection, DatabaseError
from odradek.spark_it.lock import marker
from odradek.spark_it.sinks import Batch, SinkError, Written
from odradek.spark_it.sinks.jdbc_staging import beside
from odradek.spark_it.sinks.recorded import is_written

TABLE = "pipeline_batches"
_COLUMNS = (
    "pipeline VARCHAR(200) NOT NULL",
    "target VARCHAR(250) NOT NULL",
    "generation BIGINT NOT NULL",
    "batch BIGINT NOT NULL",
    "row_count BIGINT NOT NULL",
    "dead_letter_count BIGINT NOT NULL",
    "PRIMARY KEY (pipeline, target)",
)


@dataclass(frozen=True)
class Markers:
    """The row of one pipeline and its table. Methods raise DatabaseError."""

    pipeline: str
    target: str
    dialect: Dialect

    @property
    def table(self) -> str:
        return beside(self.target, TABLE)

    def prepare(self, connection: Connection) -> None:
        """Makes table and row if need be."""
        try:
            rows = self._rows(connection)
        except DatabaseError as error:
            if not self.dialect.is_missing_table(error):
                raise
            # Two pipelines may come here at once; what is wrong else, the next statement says.
            with contextlib.suppress(DatabaseError):
                connection.execute(f"CREATE TABLE {self.table} ({', '.join(_COLUMNS)})")
            rows = self._rows(connection)
        if not rows:
            insert = f"INSERT INTO {self.table} (pipeline, target, generation, batch, row_count, dead_letter_count)"
            connection.execute(f"{insert} VALUES (?, ?, 0, -1, 0, 0)", self.pipeline, self.target)

    def _rows(self, connection: Connection) -> list[tuple[int, ...]]:
        query = f"SELECT generation, batch, row_count, dead_letter_count FROM {self.table}"
        return connection.rows(f"{query} WHERE pipeline = ? AND target = ?", self.pipeline, self.target)

    def newest(self, connection: Connection) -> int:
        """The marker of the last batch; 0 if none is written. Raises SinkError."""
        generation, number, *_ = self._row(connection)
        return marker(generation, number)

    def written(self, connection: Connection, batch: Batch) -> Written | None:
        """What the batch wrote, if it is written. Raises SinkError."""
        generation, number, row_count, dead_letter_count = self._row(connection)
        if is_written(marker(generation, number), batch, f"the last batch in {self.table}"):
            return Written(row_count, dead_letter_count)
        return None

    def _row(self, connection: Connection) -> tuple[int, ...]:
        rows = self._rows(connection)
        if not rows:
            raise SinkError(
                f"the row of pipeline {self.pipeline} in table {self.table} is gone, so it is not known what is "
                "written; put it back, or reset"
            )
        return rows[0]

    def take(self, connection: Connection, batch: Batch) -> bool:
        """Writes the batch's number, in a transaction; False if by now it is there, or a later one."""
        changed = connection.execute(
            f"UPDATE {self.table} SET generation = ?, batch = ? WHERE pipeline = ? AND target = ? "
            "AND (generation < ? OR (generation = ? AND batch < ?))",
            *(batch.generation, batch.id, self.pipeline, self.target, batch.generation, batch.generation, batch.id),
        )
        return changed == 1

    def note(self, connection: Connection, written: Written) -> None:
        """Writes what the batch wrote, in the same transaction."""
        connection.execute(
            f"UPDATE {self.table} SET row_count = ?, dead_letter_count = ? WHERE pipeline = ? AND target = ?",
            *(written.rows, written.dead_letters, self.pipeline, self.target),
        )
