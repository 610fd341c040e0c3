"""What databases say differently from one another: how they replace rows, and what their errors mean."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from pyspark.sql import Column as FrameColumn
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from odradek.spark_it.jdbc import Column, DatabaseError

Quote = Callable[[str], str]

DROP_WAIT_S = 5
"""How long the drop of a table waits for those who write to it."""

_TRANSIENT_STATES = ("08", "40", "53", "57P", "55P03", "58", "HYT", "XX000")
_TRANSIENT_KINDS = (
    "java.sql.SQLTransientException",
    "java.sql.SQLRecoverableException",
    "java.sql.SQLNonTransientConnectionException",
)
_OTHER = 1111
"""java.sql.Types.OTHER"""
_OFFSET = re.compile(r"[+-]\d\d?(:\d\d)?")


class Dialect:
    """A database that keeps to the standard."""

    prefixes: ClassVar[tuple[str, ...]] = ()
    create_staging: ClassVar[str] = "CREATE TABLE"
    """How a table is begun that need not outlive a crash of the database."""
    options: ClassVar[Mapping[str, str]] = {}
    """Of the driver, for many rows in one statement."""
    writers: ClassVar[int | None] = None
    """How many may write at the same time; None for any number."""

    def begin(self, time_zone: str) -> Iterator[str]:
        """Statements at the beginning of a transaction; `time_zone` is what times without one mean."""
        yield from ()

    def is_bad_row(self, error: DatabaseError) -> bool:
        """Whether it is one row that the table does not take: its values, or a constraint."""
        return error.state[:2] in ("22", "23")

    def is_transient(self, error: DatabaseError) -> bool:
        """Whether the same may succeed later."""
        return error.state.startswith(_TRANSIENT_STATES) or any(kind in _TRANSIENT_KINDS for kind in error.kinds)

    def limited(self, select: str, rows: int) -> str:
        """The first rows of a statement that ends with its order."""
        return f"{select} FETCH FIRST {rows} ROWS ONLY"

    def time_literal(self, value: str) -> str:
        """A date or time, as the database writes it itself."""
        return f"TIMESTAMP '{value}'"

    def is_missing_table(self, error: DatabaseError) -> bool:
        """Whether there is no table of that name."""
        text = str(error).lower()
        return error.state in ("42P01", "42S02", "42X05") or "no such table" in text or "ora-00942" in text

    def drop(self, table: str) -> Iterator[str]:
        """Statements of a transaction that drops a table into which a writer that is cut off may still write."""
        yield f"DROP TABLE {table}"

    def value(self, staged: str, of_text: bool, target: Column) -> str:
        """A staged column as the target takes it."""
        return staged

    def unstorable(self, schema: StructType) -> FrameColumn | None:
        """Whether a row can be put into no table at all, whatever its columns; None if there are no such rows."""
        return None

    def row_by_row(self, numbers: str, statement: str, refused: str) -> str | None:
        """A statement that does `statement` for each number that query `numbers` has, called odradek_n in it. Of those
        that fail because of the row, number, SQLSTATE and message go to table `refused`. None where there is no such.
        """
        return None

    def upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        """Puts the rows of `select` into the place of those with the same keys. All names are quoted already."""
        on = " AND ".join(f"odradek_t.{key} = odradek_s.{key}" for key in keys)
        updates = ", ".join(f"{column} = odradek_s.{column}" for column in columns if column not in keys)
        matched = f" WHEN MATCHED THEN UPDATE SET {updates}" if updates else ""
        values = ", ".join(f"odradek_s.{column}" for column in columns)
        return (
            f"MERGE INTO {table} odradek_t USING ({select}) odradek_s ON ({on}){matched}"
            f" WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"
        )


class _Limit(Dialect):
    """A database with LIMIT, which takes a text for a time where it wants one."""

    def limited(self, select: str, rows: int) -> str:
        return f"{select} LIMIT {rows}"

    def time_literal(self, value: str) -> str:
        return f"'{value}'"


class _OnConflict(_Limit):
    """One with INSERT ... ON CONFLICT too."""

    def upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        updates = ", ".join(f"{column} = EXCLUDED.{column}" for column in columns if column not in keys)
        action = f"UPDATE SET {updates}" if updates else "NOTHING"
        conflict = f"ON CONFLICT ({', '.join(keys)}) DO {action}"
        return f"INSERT INTO {table} ({', '.join(columns)}) {select} {conflict}"


class PostgreSQL(_OnConflict):
    prefixes = ("jdbc:postgresql:", "jdbc:pgsql:")
    # Not logged: a crash of the database empties it, which the staging table's first row shows.
    create_staging = "CREATE UNLOGGED TABLE"
    options: ClassVar[Mapping[str, str]] = {"reWriteBatchedInserts": "true"}

    def begin(self, time_zone: str) -> Iterator[str]:
        zone = f"INTERVAL '{time_zone}' HOUR TO MINUTE" if _OFFSET.fullmatch(time_zone) else f"'{time_zone}'"
        yield f"SET LOCAL TIME ZONE {zone}"
        # What is deferred would fail at the commit, when nothing says any more which row it is.
        yield "SET CONSTRAINTS ALL IMMEDIATE"
        # A transaction of a driver that is cut off, not dead, holds the marker's row.
        yield "SET LOCAL lock_timeout = '60s'"

    def drop(self, table: str) -> Iterator[str]:
        # Else it would wait for a writer that sleeps within its transaction. What is left is dropped by a later run.
        yield f"SET LOCAL lock_timeout = '{DROP_WAIT_S}s'"
        yield from super().drop(table)

    def value(self, staged: str, of_text: bool, target: Column) -> str:
        # uuid, json, inet, enumerations: their text has to be cast. Other casts would cut and round without a word.
        is_other = target.type in (_OTHER, 2009) or target.type_name in ("json", "jsonb", "uuid", "xml")
        is_enumeration = target.type == 12 and target.type_name not in ("text", "varchar", "bpchar", "name", "citext")
        if of_text and (is_other or is_enumeration):
            name = target.type_name if target.type_name.startswith('"') else f'"{target.type_name}"'
            return f"CAST({staged} AS {name})"
        return staged

    def row_by_row(self, numbers: str, statement: str, refused: str) -> str | None:
        return f"""DO $odradek$
            DECLARE odradek_n BIGINT; odradek_state TEXT; odradek_message TEXT;
            BEGIN
                FOR odradek_n IN {numbers} LOOP
                    BEGIN
                        {statement};
                    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
                        GET STACKED DIAGNOSTICS
                            odradek_state = RETURNED_SQLSTATE, odradek_message = MESSAGE_TEXT;
                        INSERT INTO {refused} VALUES (odradek_n, odradek_state, 'ERROR: ' || odradek_message);
                    END;
                END LOOP;
            END $odradek$"""

    def unstorable(self, schema: StructType) -> FrameColumn | None:
        # No text has the character 0, and Spark's job does not say of which row it is.
        texts = [field.name for field in schema.fields if isinstance(field.dataType, StringType)]
        found = None
        for name in texts:
            has = f.coalesce(f.contains(f.col(quoted(name)), f.lit("\0")), f.lit(False))
            found = has if found is None else found | has
        return found


class SQLite(_OnConflict):
    prefixes = ("jdbc:sqlite:",)
    writers = 1

    def is_bad_row(self, error: DatabaseError) -> bool:
        return error.code & 0xFF in (19, 20)  # SQLITE_CONSTRAINT, SQLITE_MISMATCH

    def is_transient(self, error: DatabaseError) -> bool:
        return error.code & 0xFF in (5, 6, 10, 13, 14)  # BUSY, LOCKED, IOERR, FULL, CANTOPEN


class MySQL(_Limit):
    prefixes = ("jdbc:mysql:", "jdbc:mariadb:")
    options: ClassVar[Mapping[str, str]] = {"rewriteBatchedStatements": "true"}

    def drop(self, table: str) -> Iterator[str]:
        yield f"SET SESSION lock_wait_timeout = {DROP_WAIT_S}"
        yield from super().drop(table)

    def upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        updates = [column for column in columns if column not in keys] or list(keys)
        sets = ", ".join(f"{column} = VALUES({column})" for column in updates)
        return f"INSERT INTO {table} ({', '.join(columns)}) {select} ON DUPLICATE KEY UPDATE {sets}"


class SQLServer(_Limit):
    prefixes = ("jdbc:sqlserver:", "jdbc:jtds:sqlserver:")

    def limited(self, select: str, rows: int) -> str:
        return f"{select} OFFSET 0 ROWS FETCH NEXT {rows} ROWS ONLY"

    def upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        return super().upsert(table, columns, keys, select) + ";"


def dialect_of(url: str) -> Dialect:
    """The dialect of the database at a JDBC address."""
    for kind in (PostgreSQL, SQLite, MySQL, SQLServer):
        if url.lower().startswith(kind.prefixes):
            return kind()
    return Dialect()


def quoted(name: str) -> str:
    """A column's name for Spark, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"
