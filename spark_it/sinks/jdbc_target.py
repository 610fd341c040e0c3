"""The table of a database sink: checks that it accepts the rows, and the statement that moves them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StringType, StructField, StructType

from odradek.properties import nearest
from odradek.spark_it.databases.dialects import Dialect, quote_column
from odradek.spark_it.databases.jdbc import Database, DatabaseConnection, DatabaseError, TableColumn, UniqueIndex
from odradek.spark_it.databases.lossy_types import describe_type, find_exact_type
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.sinks.jdbc_staging import ROW, StagingTable, declare_type, is_staged_as_text

_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class TableTarget:
    """A table that accepts the rows. `names` are its quoted columns in the frame's order, `values` the corresponding
    expressions over the staging table. For an upsert, `keys` are the columns of the key. `nullable_keys` are staged key
    columns that are nullable in the table; a row with null in one of them is rejected, because it would replace no row.
    """

    table: str
    dialect: Dialect
    names: tuple[str, ...]
    values: tuple[str, ...]
    keys: tuple[str, ...]
    staged_keys: tuple[str, ...]
    nullable_keys: tuple[str, ...]

    def make_statement(self, staging: str, row: str, where: str) -> str:
        """Return the statement that moves rows of a staging table; an upsert moves only the last row with a key."""
        if not self.keys:
            return f"INSERT INTO {self.table} ({', '.join(self.names)}) {self._select(staging, where)}"
        where = " AND ".join([f"({where})", *(f"{key} IS NOT NULL" for key in self.nullable_keys)])
        rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(self.staged_keys)} ORDER BY {row} DESC)"
        ranked = f"(SELECT odradek_r.*, {rank} AS odradek_rank FROM {staging} odradek_r WHERE {where}) odradek_l"
        select = self._select(ranked, "odradek_rank = 1")
        return self.dialect.make_upsert(self.table, self.names, self.keys, select)

    def _select(self, source: str, where: str) -> str:
        pairs = zip(self.values, self.names, strict=True)
        return f"SELECT {', '.join(f'{value} AS {name}' for value, name in pairs)} FROM {source} WHERE {where}"


class Preparation:
    """Preparation of the table for rows of a schema, on one connection."""

    def __init__(
        self, sink: JdbcSink, database: Database, dialect: Dialect, connection: DatabaseConnection, pipeline: str
    ) -> None:
        self._sink = sink
        self._table = sink.table_name_format
        self._database = database
        self._dialect = dialect
        self._connection = connection
        self._pipeline = pipeline

    def prepare_target(self, schema: StructType) -> TableTarget:
        """Return the table; create it or add columns if necessary. Raises SinkError, DatabaseError."""
        self._check_fields(schema)
        keys = self._find_keys(schema)
        columns = self._query_columns()
        if columns is None:
            self._create_table(schema, keys)
            columns = self._query_columns() or []
        missing = self._find_missing_fields(schema, columns)
        for field in missing:
            self._connection.execute(f"ALTER TABLE {self._table} ADD {self._declare_column(field)}")
        if missing:
            columns = self._query_columns() or []
        matched = self._match_columns(schema, keys, columns)
        staging = StagingTable(self._database, self._dialect, self._pipeline, self._table, schema)
        target = self._make_target(staging, matched, keys)
        self._check_statement(staging, target, matched)
        return target

    def check(self, schema: StructType) -> int | None:
        """Check the table without a change of the database. Return the number of its columns; None if a run creates it.

        Raises SinkError, DatabaseError.
        """
        self._check_fields(schema)
        keys = self._find_keys(schema)
        columns = self._query_columns()
        if columns is None:
            if not self._sink.auto_create:
                raise self._make_missing_table_error()
            return None
        self._find_missing_fields(schema, columns)
        self._match_columns(schema, keys, columns)
        return len(columns)

    def _check_fields(self, schema: StructType) -> None:
        if ROW in (name.lower() for name in schema.names):
            raise SinkError(f"column {ROW}: the name is reserved for row numbers; rename the column")
        if truncated := list(self._find_truncated_columns(schema)):
            raise SinkError("; ".join(truncated))

    def _find_missing_fields(self, schema: StructType, columns: Sequence[TableColumn]) -> list[StructField]:
        """Return the fields without a column in the table. Raises SinkError if columns must not be added."""
        missing = [field for field in schema.fields if _find_column(field.name, columns) is None]
        if missing and not self._sink.auto_evolve:
            raise SinkError("; ".join(self._describe_missing_column(field.name, columns) for field in missing))
        return missing

    def _match_columns(
        self, schema: StructType, keys: Sequence[str], columns: Sequence[TableColumn]
    ) -> list[tuple[StructField, TableColumn]]:
        """Return the fields with their columns. Raises SinkError if a column cannot store the values, or if the table
        requires values for other columns."""
        pairs = [(field, _find_column(field.name, columns)) for field in schema.fields]
        matched = [(field, column) for field, column in pairs if column is not None]
        if lossy := list(self._find_lossy_columns(matched, f" of table {self._table}")):
            raise SinkError("; ".join(lossy))
        self._check_required_columns([column for _, column in matched])
        if self._sink.insert_mode == "upsert" and self._dialect.replaces_by_any_index:
            self._check_unique_keys([column for field, column in matched if field.name in keys], matched, columns)
        return matched

    def _find_keys(self, schema: StructType) -> list[str]:
        by_name = {name.casefold(): name for name in schema.names}
        for key in self._sink.pk_fields:
            if key.casefold() not in by_name:
                near = nearest(key.casefold(), by_name)
                hint = f", did you mean {by_name[near]}?" if near else f": {', '.join(schema.names)}"
                raise SinkError(f"pk.fields: the rows have no column {key}{hint}")
        return [by_name[key.casefold()] for key in self._sink.pk_fields]

    def _query_columns(self) -> list[TableColumn] | None:
        try:
            found = self._connection.query_columns(f"SELECT * FROM {self._table} WHERE 1 = 0")
            return [self._dialect.normalize_column(column) for column in found]
        except DatabaseError as error:
            if self._dialect.is_missing_table(error):
                return None
            raise

    def _declare_column(self, field: StructField, keys: Sequence[str] = ()) -> str:
        type_name = declare_type(self._database, self._dialect, field)
        null = " NOT NULL" if field.name in keys else self._dialect.nullable_suffix
        return f"{self._connection.quote(field.name)} {type_name}{null}"

    def _create_table(self, schema: StructType, keys: Sequence[str]) -> None:
        if not self._sink.auto_create:
            raise self._make_missing_table_error()
        parts = [self._declare_column(field, keys) for field in schema.fields]
        if keys:
            parts.append(f"PRIMARY KEY ({', '.join(map(self._connection.quote, keys))})")
        self._connection.execute(f"CREATE TABLE {self._table} ({', '.join(parts)})")

    def _make_missing_table_error(self) -> SinkError:
        return SinkError(f"table {self._table} does not exist; create it, or set auto.create = true")

    def _describe_missing_column(self, name: str, columns: Sequence[TableColumn]) -> str:
        by_name = {column.name.casefold(): column.name for column in columns}
        near = nearest(name.casefold(), by_name)
        hint = f" (did you mean {by_name[near]}?)" if near else ""
        remedy = "add it, set auto.evolve = true, or remove it in SQL"
        return f"table {self._table} has no column {name}{hint}; {remedy}"

    def _may_change_values(self, field: StructField) -> bool:
        return field.name.casefold() in (name.casefold() for name in self._sink.cast)

    def _find_truncated_columns(self, schema: StructType) -> Iterator[str]:
        for field in schema.fields:
            if isinstance(field.dataType, self._dialect.truncated_types) and not self._may_change_values(field):
                name = _quote_if_needed(field.name)
                yield (
                    f"column {field.name}: this database's driver truncates a {field.dataType.simpleString()} to "
                    f"milliseconds, so values would change; write unix_micros({name}) or "
                    f'CAST({name} AS STRING) in SQL, or cast = "{field.name}" in [sink]'
                )

    def _find_lossy_columns(self, pairs: Sequence[tuple[StructField, TableColumn]], place: str) -> Iterator[str]:
        for field, column in pairs:
            if self._dialect.is_lossy(field.dataType, column) and not self._may_change_values(field):
                exact_type = find_exact_type(column)
                remedy = f'set cast = "{field.name}" in [sink] to allow it'
                if exact_type is not None and not self._dialect.is_lossy(exact_type, column):
                    cast = f"CAST({_quote_if_needed(field.name)} AS {exact_type.simpleString().upper()})"
                    remedy = f'write {cast} in SQL, or cast = "{field.name}" in [sink]'
                yield (
                    f"column {column.name}{place} is {describe_type(column)}, but the pipeline has "
                    f"{field.dataType.simpleString()}, whose values could change; {remedy}"
                )

    def _check_required_columns(self, given: Sequence[TableColumn]) -> None:
        names = {column.name for column in given}
        missing = [name for name in self._connection.query_required_columns(self._table) if name not in names]
        if missing:
            raise SinkError(
                f"table {self._table} needs a value for {', '.join(missing)}, which the pipeline does not have; "
                "select it in SQL, or give the column a default"
            )

    def _check_unique_keys(
        self,
        keys: Sequence[TableColumn],
        matched: Sequence[tuple[StructField, TableColumn]],
        columns: Sequence[TableColumn],
    ) -> None:
        given = {column.name for _, column in matched}
        # Values that the database generates are unique.
        generated = [column.name for column in columns if column.is_generated and column.name not in given]
        indexes = self._connection.query_unique_indexes(self._table)
        if self._dialect.prefix_index_query is not None:
            catalog, schema, name = self._connection.locate_table(self._table)
            query = self._dialect.prefix_index_query
            prefix_names = {
                str(index) for (index,) in self._connection.query_rows(query, catalog or schema or "", name)
            }
            indexes = [
                index._replace(is_complete=index.is_complete and index.name not in prefix_names) for index in indexes
            ]
        conflict = find_upsert_conflict([column.name for column in keys], indexes, generated)
        if conflict is not None:
            raise SinkError(f"table {self._table} cannot be upserted by {', '.join(self._sink.pk_fields)}: {conflict}")

    def _make_target(
        self, staging: StagingTable, matched: Sequence[tuple[StructField, TableColumn]], keys: Sequence[str]
    ) -> TableTarget:
        quote = self._connection.quote
        staged = [staging.quote_column(self._connection, at) for at in range(len(matched))]
        values = [
            f"CAST({name} AS {self._dialect.text_time_type})"
            if is_staged_as_text(self._dialect, field)
            else self._dialect.make_value_expression(name, isinstance(field.dataType, StringType), column)
            for name, (field, column) in zip(staged, matched, strict=True)
        ]
        key_indexes = [at for at, (field, _) in enumerate(matched) if field.name in keys]
        is_upsert = self._sink.insert_mode == "upsert"
        return TableTarget(
            self._table,
            self._dialect,
            tuple(quote(column.name) for _, column in matched),
            tuple(values),
            tuple(quote(matched[at][1].name) for at in key_indexes) if is_upsert else (),
            tuple(staged[at] for at in key_indexes) if is_upsert else (),
            tuple(staged[at] for at in key_indexes if matched[at][1].is_nullable) if is_upsert else (),
        )

    def _check_statement(
        self, staging: StagingTable, target: TableTarget, matched: Sequence[tuple[StructField, TableColumn]]
    ) -> None:
        """Execute the statement for no rows, with which the database reports mismatches of types."""
        row = self._connection.quote(ROW)
        with staging.create_temporarily(self._connection):
            staged = self._connection.query_columns(f"SELECT * FROM {staging.name} WHERE 1 = 0")
            staged_pairs = [
                (field, self._dialect.normalize_column(column))
                for (field, _), column in zip(matched, staged, strict=False)
            ]
            if lossy := list(self._find_lossy_columns(staged_pairs, " while it is staged")):
                raise SinkError("; ".join(lossy))
            try:
                self._connection.execute(target.make_statement(staging.name, row, "1 = 0"))
            except DatabaseError as error:
                mismatches = list(self._find_mismatches(staging, target, matched))
                if mismatches:
                    raise SinkError("; ".join(mismatches)) from None
                if target.keys and error.state[:2] == "42":
                    fields = ", ".join(self._sink.pk_fields)
                    remedy = "it needs a primary key or unique index on exactly these columns"
                    raise SinkError(f"table {self._table} cannot be upserted by {fields}: {error}; {remedy}") from None
                raise

    def _find_mismatches(
        self, staging: StagingTable, target: TableTarget, matched: Sequence[tuple[StructField, TableColumn]]
    ) -> Iterator[str]:
        for (field, column), name, value in zip(matched, target.names, target.values, strict=True):
            statement = f"INSERT INTO {self._table} ({name}) SELECT {value} FROM {staging.name} WHERE 1 = 0"
            try:
                self._connection.execute(statement)
            except DatabaseError as error:
                if error.state[:2] != "42":
                    raise
                yield (
                    f"column {column.name} of table {self._table} is {column.type_name}, but the pipeline has "
                    f"{field.dataType.simpleString()}; cast it in SQL"
                )


def _find_column(name: str, columns: Sequence[TableColumn]) -> TableColumn | None:
    """Return the column with a name; if there is none, the only column whose name differs in case; else None."""
    candidates = [column for column in columns if column.name.casefold() == name.casefold()]
    exact = [column for column in candidates if column.name == name]
    return exact[0] if exact else candidates[0] if len(candidates) == 1 else None


def _quote_if_needed(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote_column(name)


def find_upsert_conflict(keys: Sequence[str], indexes: Sequence[UniqueIndex], generated: Sequence[str]) -> str | None:
    """Return the reason why an upsert could replace a row with different keys; None if it cannot.

    The database replaces the row that is equal in any unique index. Values of `generated` columns are unique.
    """
    key_columns = {key.casefold() for key in keys}
    generated_columns = {name.casefold() for name in generated}
    index_columns = [(index, {column.casefold() for column in index.columns}) for index in indexes]
    if not any(index.is_complete and columns == key_columns for index, columns in index_columns):
        return "it needs a primary key or unique index on exactly these columns, without prefix lengths"
    for index, columns in index_columns:
        # Rows that are equal in a superset of the key columns have equal keys.
        if not (index.is_complete and columns >= key_columns) and not columns & generated_columns:
            return (
                f"with unique index {index.name} it could replace rows with other keys; drop the index, or write to a "
                "table without it"
            )
    return None
