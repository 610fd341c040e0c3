"""SQL dialects of databases: upserts, types, and the meaning of errors."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from pyspark.sql import Column as FrameColumn
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from odradek.spark_it.databases import lossy_types
from odradek.spark_it.databases.jdbc import DatabaseError, TableColumn
from odradek.spark_it.databases.lossy_types import is_lossy

Quote = Callable[[str], str]

DROP_WAIT_S = 5
"""Maximum time that DROP TABLE waits for the locks of writers."""

_TRANSIENT_STATES = ("08", "40", "53", "57P", "55P03", "58", "HYT", "XX000")
_TRANSIENT_KINDS = (
    "java.sql.SQLTransientException",
    "java.sql.SQLRecoverableException",
    "java.sql.SQLNonTransientConnectionException",
)
_OTHER = 1111
"""java.sql.Types.OTHER"""
_ARRAY_ELEMENTS = {
    "int2": lossy_types.SMALLINT,
    "int4": lossy_types.INTEGER,
    "int8": lossy_types.BIGINT,
    "float4": lossy_types.REAL,
    "float8": lossy_types.DOUBLE,
    "numeric": lossy_types.NUMERIC,
    "money": lossy_types.DOUBLE,
    "bool": lossy_types.BIT,
    "date": lossy_types.DATE,
    "time": lossy_types.TIME,
    "timetz": lossy_types.TIME,
    "timestamp": lossy_types.TIMESTAMP,
    "timestamptz": lossy_types.TIMESTAMP,
    "varchar": lossy_types.VARCHAR,
    "text": lossy_types.VARCHAR,
}
"""Types of the elements of PostgreSQL's arrays."""
_MAX_SCALE = 1000
_SCALES = 1024
_NO_LENGTH = (1 << 31) - 1
"""The precision that PostgreSQL's driver reports for a text of unlimited length."""
_LONG_DIGITS = 18
_MYSQL_SECONDS = len("2026-01-01 00:00:00")
_MYSQL_ANY_SCALE = 31
_OFFSET = re.compile(r"[+-]\d\d?(:\d\d)?")


class Dialect:
    """A database that follows the SQL standard."""

    prefixes: ClassVar[tuple[str, ...]] = ()
    create_staging: ClassVar[str] = "CREATE TABLE"
    """The beginning of the statement that creates a staging table, which may be lost in a crash of the database."""
    options: ClassVar[Mapping[str, str]] = {}
    """Options of the JDBC driver for statements with many rows."""
    max_writers: ClassVar[int | None] = None
    """Maximum number of concurrent writers; None for no limit."""
    nullable_suffix: ClassVar[str] = ""
    """The end of the declaration of a nullable column."""
    text_time_type: ClassVar[str | None] = None
    """The SQL type to which the text of a time without a zone is cast. If set, such times are staged as text, because
    the driver would change times that do not exist in Java's default time zone (start of daylight saving time)."""
    truncated_types: ClassVar[tuple[type[DataType], ...]] = ()
    """Types whose values the JDBC driver truncates, for every column type."""
    replaces_by_any_index: ClassVar[bool] = False
    """True if an upsert replaces a row that is equal in any unique index, not only in the keys."""
    prefix_index_query: ClassVar[str | None] = None
    """A query for the names of a table's prefix indexes. Its parameters are the table's database and name."""

    def make_begin_statements(self, time_zone: str) -> Iterator[str]:
        """Return the statements at the beginning of a transaction. `time_zone` is the zone of times without a zone."""
        yield from ()

    def is_bad_row(self, error: DatabaseError) -> bool:
        """Return whether the table rejected a row because of its values or a constraint."""
        return error.state[:2] in ("22", "23")

    def is_transient(self, error: DatabaseError) -> bool:
        """Return whether a retry may succeed."""
        return error.state.startswith(_TRANSIENT_STATES) or any(kind in _TRANSIENT_KINDS for kind in error.class_names)

    def limit_rows(self, select: str, rows: int) -> str:
        """Limit the rows of a SELECT that ends with ORDER BY."""
        return f"{select} FETCH FIRST {rows} ROWS ONLY"

    def make_time_literal(self, value: str) -> str:
        """Return the literal for a date or time in the database's notation."""
        return f"TIMESTAMP '{value}'"

    def make_unsupported_time_conditions(self, column: str) -> Iterator[str]:
        """Return SQL conditions for times and dates that are infinite or outside Python's range."""
        yield from ()

    def make_unsupported_number_conditions(self, column: str) -> Iterator[str]:
        """Return SQL conditions for NaN and infinity, for a column whose type has these values."""
        yield from ()

    def is_missing_table(self, error: DatabaseError) -> bool:
        """Return whether the table does not exist."""
        text = str(error).lower()
        return error.state in ("42P01", "42S02", "42X05") or "no such table" in text or "ora-00942" in text

    def make_drop_statements(self, table: str) -> Iterator[str]:
        """Return the statements that drop a table in a transaction. They may limit the wait for locks of a writer."""
        yield f"DROP TABLE {table}"

    def find_column_type(self, type_: DataType) -> str | None:
        """Return the column type for a Spark type if Spark itself would declare a lossy one; else None."""
        return None

    def normalize_column(self, column: TableColumn) -> TableColumn:
        """Return a column with type, precision and scale of the SQL standard, for a driver that reports others."""
        return column

    def is_lossy(self, type_: DataType, column: TableColumn) -> bool:
        """Return whether a normalized column changes values of a type without an error."""
        return is_lossy(type_, column)

    def make_value_expression(self, staged: str, is_text: bool, target: TableColumn) -> str:
        """Return an expression over a staged column that the target column accepts. `is_text` is for a STRING
        column."""
        return staged

    def make_unstorable_condition(self, schema: StructType) -> FrameColumn | None:
        """Return the condition for rows that no table can store; None if a table can store all rows."""
        return None

    def make_row_by_row_statement(self, numbers: str, statement: str, rejected: str) -> str | None:
        """Return a statement that executes `statement` for each result odradek_n of query `numbers`. If an execution
        fails because of the row, it writes number, SQLSTATE and message to table `rejected`. None if unsupported.
        """
        return None

    def make_upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        """Return a statement that inserts the rows of `select` or replaces rows with the same keys. Names are
        quoted."""
        on = " AND ".join(f"odradek_t.{key} = odradek_s.{key}" for key in keys)
        updates = ", ".join(f"{column} = odradek_s.{column}" for column in columns if column not in keys)
        matched = f" WHEN MATCHED THEN UPDATE SET {updates}" if updates else ""
        values = ", ".join(f"odradek_s.{column}" for column in columns)
        return (
            f"MERGE INTO {table} odradek_t USING ({select}) odradek_s ON ({on}){matched}"
            f" WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({values})"
        )


class _Limit(Dialect):
    """A database with LIMIT, which converts text literals to times."""

    def limit_rows(self, select: str, rows: int) -> str:
        return f"{select} LIMIT {rows}"

    def make_time_literal(self, value: str) -> str:
        return f"'{value}'"


class _OnConflict(_Limit):
    """A database with LIMIT and INSERT ... ON CONFLICT."""

    def make_upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        updates = ", ".join(f"{column} = EXCLUDED.{column}" for column in columns if column not in keys)
        action = f"UPDATE SET {updates}" if updates else "NOTHING"
        conflict = f"ON CONFLICT ({', '.join(keys)}) DO {action}"
        return f"INSERT INTO {table} ({', '.join(columns)}) {select} {conflict}"


class PostgreSQL(_OnConflict):
    prefixes = ("jdbc:postgresql:", "jdbc:pgsql:")
    # Unlogged tables are empty after a crash of the database; the staging table's first row reveals that.
    create_staging = "CREATE UNLOGGED TABLE"
    options: ClassVar[Mapping[str, str]] = {"reWriteBatchedInserts": "true"}
    text_time_type = "timestamp"

    def make_begin_statements(self, time_zone: str) -> Iterator[str]:
        zone = f"INTERVAL '{time_zone}' HOUR TO MINUTE" if _OFFSET.fullmatch(time_zone) else f"'{time_zone}'"
        yield f"SET LOCAL TIME ZONE {zone}"
        # Deferred constraints would fail at the commit, whose error does not identify the row.
        yield "SET CONSTRAINTS ALL IMMEDIATE"
        # The transaction of a disconnected driver may hold the lock of the marker's row.
        yield "SET LOCAL lock_timeout = '60s'"

    def make_drop_statements(self, table: str) -> Iterator[str]:
        # Without a timeout DROP would wait for a writer that is idle in a transaction. A later run drops the table.
        yield f"SET LOCAL lock_timeout = '{DROP_WAIT_S}s'"
        yield from super().make_drop_statements(table)

    def normalize_column(self, column: TableColumn) -> TableColumn:
        if column.type_name == "money":  # the driver reports a double
            return column._replace(type=lossy_types.DECIMAL, precision=17, scale=2)
        if column.scale > _MAX_SCALE:  # the negative scale of a NUMERIC, as eleven bits
            return column._replace(scale=column.scale - 2 * _SCALES)
        return column

    def is_lossy(self, type_: DataType, column: TableColumn) -> bool:
        if column.type == lossy_types.ARRAY and isinstance(type_, ArrayType):
            name = column.type_name.removeprefix("_")
            element = column._replace(type=_ARRAY_ELEMENTS.get(name, _OTHER), type_name=name)
            return self.is_lossy(type_.elementType, self.normalize_column(element))
        if isinstance(type_, BinaryType) and column.type_name == "bytea":
            return False
        if isinstance(type_, StringType) and column.type_name in ("name", "char"):
            return True  # truncated to 63 bytes and to one byte
        return is_lossy(type_, column)

    def make_unsupported_time_conditions(self, column: str) -> Iterator[str]:
        # The conditions include both infinities. The limits are in the years 1 to 9999 in every time zone.
        yield f"{column} < '0001-01-02 00:00:00+00'"
        yield f"{column} >= '9999-12-31 00:00:00+00'"

    def make_unsupported_number_conditions(self, column: str) -> Iterator[str]:
        # For NaN and both infinities the difference is NaN, which is not equal to 0.
        yield f"{column} - {column} <> 0"

    def make_value_expression(self, staged: str, is_text: bool, target: TableColumn) -> str:
        # Text must be cast to uuid, json, inet and enumerations. Other casts would silently truncate and round.
        is_other = target.type in (_OTHER, 2009) or target.type_name in ("json", "jsonb", "uuid", "xml")
        is_enumeration = target.type == 12 and target.type_name not in ("text", "varchar", "bpchar", "name", "citext")
        if is_text and (is_other or is_enumeration):
            name = target.type_name if target.type_name.startswith('"') else f'"{target.type_name}"'
            return f"CAST({staged} AS {name})"
        return _reject_trailing_spaces(staged, f"{staged} || '.'", target) if is_text else staged

    def make_row_by_row_statement(self, numbers: str, statement: str, rejected: str) -> str | None:
        return f"""DO $odradek$
            DECLARE odradek_n BIGINT; odradek_state TEXT; odradek_message TEXT;
            BEGIN
                FOR odradek_n IN {numbers} LOOP
                    BEGIN
                        {statement};
                    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
                        GET STACKED DIAGNOSTICS
                            odradek_state = RETURNED_SQLSTATE, odradek_message = MESSAGE_TEXT;
                        INSERT INTO {rejected} VALUES (odradek_n, odradek_state, 'ERROR: ' || odradek_message);
                    END;
                END LOOP;
            END $odradek$"""

    def make_unstorable_condition(self, schema: StructType) -> FrameColumn | None:
        # PostgreSQL's texts cannot contain U+0000, and the error of Spark's job does not identify the row.
        texts = [field.name for field in schema.fields if isinstance(field.dataType, StringType)]
        found = None
        for name in texts:
            has_zero = f.coalesce(f.contains(f.col(quote_column(name)), f.lit("\0")), f.lit(False))
            found = has_zero if found is None else found | has_zero
        return found


class SQLite(_OnConflict):
    prefixes = ("jdbc:sqlite:",)
    max_writers = 1
    # The driver truncates times to milliseconds.
    truncated_types: ClassVar[tuple[type[DataType], ...]] = (TimestampType, TimestampNTZType)

    def find_column_type(self, type_: DataType) -> str | None:
        # SQLite's numbers are 64-bit integers or doubles; the driver writes a decimal as text.
        is_double = isinstance(type_, DecimalType) and type_.precision <= lossy_types.DOUBLE_DIGITS
        return "TEXT" if isinstance(type_, DecimalType) and not is_double else None

    def is_lossy(self, type_: DataType, column: TableColumn) -> bool:
        # The declared type only determines the column's affinity (SQLite's "Datatypes", section 3).
        name = column.type_name.upper()
        if any(part in name for part in ("CHAR", "CLOB", "TEXT")) and "INT" not in name:
            return isinstance(type_, DoubleType)  # written with 15 digits
        if "BLOB" in name:
            return False
        is_real = any(part in name for part in ("REAL", "FLOA", "DOUB")) and "INT" not in name
        if isinstance(type_, DecimalType):
            is_long = type_.precision > _LONG_DIGITS or is_real
            return type_.precision > lossy_types.DOUBLE_DIGITS and (type_.scale > 0 or is_long)
        if isinstance(type_, StringType):  # '007' would become 7
            return is_real or not any(part in name for part in ("DATE", "TIME", "JSON", "UUID"))
        return is_real and isinstance(type_, LongType)

    def is_bad_row(self, error: DatabaseError) -> bool:
        return error.code & 0xFF in (19, 20)  # SQLITE_CONSTRAINT, SQLITE_MISMATCH

    def is_transient(self, error: DatabaseError) -> bool:
        return error.code & 0xFF in (5, 6, 10, 13, 14)  # BUSY, LOCKED, IOERR, FULL, CANTOPEN


class MySQL(_Limit):
    prefixes = ("jdbc:mysql:", "jdbc:mariadb:")
    options: ClassVar[Mapping[str, str]] = {"rewriteBatchedStatements": "true"}
    nullable_suffix = " NULL"  # without it, older versions make a TIMESTAMP NOT NULL, with the current time as default
    replaces_by_any_index = True
    prefix_index_query = (
        "SELECT DISTINCT index_name FROM information_schema.statistics "
        "WHERE table_schema = ? AND table_name = ? AND sub_part IS NOT NULL"
    )

    def make_begin_statements(self, time_zone: str) -> Iterator[str]:
        # Without strict mode MySQL truncates texts that are too long, and clips numbers that are too large.
        yield "SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')"

    def make_drop_statements(self, table: str) -> Iterator[str]:
        yield f"SET SESSION lock_wait_timeout = {DROP_WAIT_S}"
        yield from super().make_drop_statements(table)

    def find_column_type(self, type_: DataType) -> str | None:
        if isinstance(type_, BinaryType):
            return "LONGBLOB"  # a BLOB stores at most 64 kB
        if isinstance(type_, TimestampType):
            return "TIMESTAMP(6)"
        return "DATETIME(6)" if isinstance(type_, TimestampNTZType) else None

    def normalize_column(self, column: TableColumn) -> TableColumn:
        if column.type in lossy_types.TIMESTAMPS:
            # The driver reports the length of the text, with seconds, point and fraction, instead of a scale.
            return column._replace(scale=max(column.scale, column.precision - _MYSQL_SECONDS - 1, 0))
        if column.type == lossy_types.BIT:
            return column._replace(type=lossy_types.TINYINT)  # the driver reports TINYINT(1) as BIT
        return column

    def is_lossy(self, type_: DataType, column: TableColumn) -> bool:
        is_rounded = column.type in (lossy_types.REAL, lossy_types.DOUBLE) and column.scale < _MYSQL_ANY_SCALE
        if is_rounded and isinstance(type_, FloatType | DoubleType):  # DOUBLE(10,2)
            return True
        if is_rounded and isinstance(type_, DecimalType) and type_.scale > column.scale:
            return True
        if isinstance(type_, DateType) and column.type_name == "YEAR":
            return True
        return is_lossy(type_, column)

    def make_value_expression(self, staged: str, is_text: bool, target: TableColumn) -> str:
        return _reject_trailing_spaces(staged, f"CONCAT({staged}, '.')", target) if is_text else staged

    def make_upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        updates = [column for column in columns if column not in keys] or list(keys)
        sets = ", ".join(f"{column} = VALUES({column})" for column in updates)
        return f"INSERT INTO {table} ({', '.join(columns)}) {select} ON DUPLICATE KEY UPDATE {sets}"


class SQLServer(_Limit):
    prefixes = ("jdbc:sqlserver:", "jdbc:jtds:sqlserver:")

    def limit_rows(self, select: str, rows: int) -> str:
        return f"{select} OFFSET 0 ROWS FETCH NEXT {rows} ROWS ONLY"

    def find_column_type(self, type_: DataType) -> str | None:
        return "DATETIME2(6)" if isinstance(type_, TimestampType | TimestampNTZType) else None

    def is_lossy(self, type_: DataType, column: TableColumn) -> bool:
        # Characters outside a column's code page become question marks; NVARCHAR stores all characters.
        has_code_page = column.type in (lossy_types.CHAR, lossy_types.VARCHAR, lossy_types.LONGVARCHAR)
        return (isinstance(type_, StringType) and has_code_page) or is_lossy(type_, column)

    def make_upsert(self, table: str, columns: Sequence[str], keys: Sequence[str], select: str) -> str:
        return super().make_upsert(table, columns, keys, select) + ";"


def _reject_trailing_spaces(staged: str, longer: str, target: TableColumn) -> str:
    """Return an expression for a text, with which the database rejects a text that is too long only by spaces.

    According to the SQL standard the database would truncate such a text without an error. `longer` is the text with
    another character at its end.
    """
    if target.type != lossy_types.VARCHAR or not 0 < target.precision < _NO_LENGTH:
        return staged
    return f"CASE WHEN CHAR_LENGTH({staged}) > {target.precision} THEN {longer} ELSE {staged} END"


def find_dialect(url: str) -> Dialect:
    """Return the dialect of the database at a JDBC URL."""
    for kind in (PostgreSQL, SQLite, MySQL, SQLServer):
        if url.lower().startswith(kind.prefixes):
            return kind()
    return Dialect()


def quote_column(name: str) -> str:
    """Quote a column's name for Spark."""
    return "`" + name.replace("`", "``") + "`"
