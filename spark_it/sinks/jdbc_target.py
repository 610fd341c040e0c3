"""The table of a database sink: checks that it accepts the rows, and the statement that moves them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StringType, StructField, StructType

from odradek.properties import nearest
from odradek.spark_it.databases.dialects import Dialect, quoted
from odradek.spark_it.databases.jdbc import Column, Connection, Database, DatabaseError, UniqueIndex
from odradek.spark_it.databases.lossy_types import described, fitting_type
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.sinks.jdbc_staging import ROW, Staging, declared_type, is_wall_time

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

    def statement(self, staging: str, row: str, where: str) -> str:
        """Return the statement that moves rows of a staging table; of rows with the same keys only the last one."""
        if not self.keys:
            return f"INSERT INTO {self.table} ({', '.join(self.names)}) {self._select(staging, where)}"
        where = " AND ".join([f"({where})", *(f"{key} IS NOT NULL" for key in self.nullable_keys)])
        rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(self.staged_keys)} ORDER BY {row} DESC)"
        ranked = f"(SELECT odradek_r.*, {rank} AS odradek_rank FROM {staging} odradek_r WHERE {where}) odradek_l"
        select = self._select(ranked, "odradek_rank = 1")
        return self.dialect.upsert(self.table, self.names, self.keys, select)

    def _select(self, source: str, where: str) -> str:
        pairs = zip(self.values, self.names, strict=True)
        return f"SELECT {', '.join(f'{value} AS {name}' for value, name in pairs)} FROM {source} WHERE {where}"


class Preparation:
    """Creates or checks the table for rows of a schema, on one connection."""

    def __init__(
        self, sink: JdbcSink, database: Database, dialect: Dialect, connection: Connection, pipeline: str
    ) -> None:
        self._sink = sink
        self._table = sink.table_name_format
        self._database = database
        self._dialect = dialect
        self._connection = connection
        self._pipeline = pipeline

    def target(self, schema: StructType) -> TableTarget:
        """Return the table, after creating it or adding columns if necessary. Raises SinkError, DatabaseError."""
        self._check_fields(schema)
        keys = self._keys(schema)
        columns = self._columns()
        if columns is None:
            self._create(schema, keys)
            columns = self._columns() or []
        missing = self._missing(schema, columns)
        for field in missing:
            self._connection.execute(f"ALTER TABLE {self._table} ADD {self._declared(field)}")
        if missing:
            columns = self._columns() or []
        fitting = self._fitting(schema, keys, columns)
        staging = Staging(self._database, self._dialect, self._pipeline, self._table, schema)
        target = self._target(staging, fitting, keys)
        self._check_statement(staging, target, fitting)
        return target

    def check(self, schema: StructType) -> int | None:
        """Check the table without changing the database. Return the number of its columns; None if a run creates it.

        Raises SinkError, DatabaseError.
        """
        self._check_fields(schema)
        keys = self._keys(schema)
        columns = self._columns()
        if columns is None:
            if not self._sink.auto_create:
                raise self._no_table()
            return None
        self._missing(schema, columns)
        self._fitting(schema, keys, columns)
        return len(columns)

    def _check_fields(self, schema: StructType) -> None:
        if ROW in (name.lower() for name in schema.names):
            raise SinkError(f"column {ROW}: the name is reserved for row numbers; rename the column")
        if truncated := list(self._truncated(schema)):
            raise SinkError("; ".join(truncated))

    def _missing(self, schema: StructType, columns: Sequence[Column]) -> list[StructField]:
        """Return the fields for which a column is added. Raises SinkError if columns must not be added."""
        missing = [field for field in schema.fields if _matching(field.name, columns) is None]
        if missing and not self._sink.auto_evolve:
            raise SinkError("; ".join(self._no_column(field.name, columns) for field in missing))
        return missing

    def _fitting(
        self, schema: StructType, keys: Sequence[str], columns: Sequence[Column]
    ) -> list[tuple[StructField, Column]]:
        """Return the fields with their columns. Raises SinkError if a column cannot store the values, or the table
        needs values for other columns."""
        pairs = [(field, _matching(field.name, columns)) for field in schema.fields]
        fitting = [(field, column) for field, column in pairs if column is not None]
        if lossy := list(self._lossy(fitting, f" of table {self._table}")):
            raise SinkError("; ".join(lossy))
        self._check_needed_columns([column for _, column in fitting])
        if self._sink.insert_mode == "upsert" and self._dialect.replaces_by_any_index:
            self._check_unique_keys([column for field, column in fitting if field.name in keys], fitting, columns)
        return fitting

    def _keys(self, schema: StructType) -> list[str]:
        by_name = {name.casefold(): name for name in schema.names}
        for key in self._sink.pk_fields:
            if key.casefold() not in by_name:
                near = nearest(key.casefold(), by_name)
                hint = f", did you mean {by_name[near]}?" if near else f": {', '.join(schema.names)}"
                raise SinkError(f"pk.fields: the rows have no column {key}{hint}")
        return [by_name[key.casefold()] for key in self._sink.pk_fields]

    def _columns(self) -> list[Column] | None:
        try:
            found = self._connection.columns(f"SELECT * FROM {self._table} WHERE 1 = 0")
            return [self._dialect.normalized(column) for column in found]
        except DatabaseError as error:
            if self._dialect.is_missing_table(error):
                return None
            raise

    def _declared(self, field: StructField, keys: Sequence[str] = ()) -> str:
        type_name = declared_type(self._database, self._dialect, field)
        null = " NOT NULL" if field.name in keys else self._dialect.nullable
        return f"{self._connection.quoted(field.name)} {type_name}{null}"

    def _create(self, schema: StructType, keys: Sequence[str]) -> None:
        if not self._sink.auto_create:
            raise self._no_table()
        parts = [self._declared(field, keys) for field in schema.fields]
        if keys:
            parts.append(f"PRIMARY KEY ({', '.join(map(self._connection.quoted, keys))})")
        self._connection.execute(f"CREATE TABLE {self._table} ({', '.join(parts)})")

    def _no_table(self) -> SinkError:
        return SinkError(f"table {self._table} does not exist; create it, or set auto.create = true")

    def _no_column(self, name: str, columns: Sequence[Column]) -> str:
        by_name = {column.name.casefold(): column.name for column in columns}
        near = nearest(name.casefold(), by_name)
        hint = f" (did you mean {by_name[near]}?)" if near else ""
        remedy = "add it, set auto.evolve = true, or remove it in SQL"
        return f"table {self._table} has no column {name}{hint}; {remedy}"

    def _may_change(self, field: StructField) -> bool:
        return field.name.casefold() in (name.casefold() for name in self._sink.cast)

    def _truncated(self, schema: StructType) -> Iterator[str]:
        for field in schema.fields:
            if isinstance(field.dataType, self._dialect.cut_types) and not self._may_change(field):
                name = _in_sql(field.name)
                yield (
                    f"column {field.name}: this database's driver truncates a {field.dataType.simpleString()} to "
                    f"milliseconds, so values would change; write unix_micros({name}) or "
                    f'CAST({name} AS STRING) in SQL, or cast = "{field.name}" in [sink]'
                )

    def _lossy(self, pairs: Sequence[tuple[StructField, Column]], place: str) -> Iterator[str]:
        for field, column in pairs:
            if self._dialect.is_lossy(field.dataType, column) and not self._may_change(field):
                fitting = fitting_type(column)
                remedy = f'set cast = "{field.name}" in [sink] to allow it'
                if fitting is not None and not self._dialect.is_lossy(fitting, column):
                    cast = f"CAST({_in_sql(field.name)} AS {fitting.simpleString().upper()})"
                    remedy = f'write {cast} in SQL, or cast = "{field.name}" in [sink]'
                yield (
                    f"column {column.name}{place} is {described(column)}, but the pipeline has "
                    f"{field.dataType.simpleString()}, whose values could change; {remedy}"
                )

    def _check_needed_columns(self, given: Sequence[Column]) -> None:
        names = {column.name for column in given}
        missing = [name for name in self._connection.needed_columns(self._table) if name not in names]
        if missing:
            raise SinkError(
                f"table {self._table} needs a value for {', '.join(missing)}, which the pipeline does not have; "
                "select it in SQL, or give the column a default"
            )

    def _check_unique_keys(
        self, keys: Sequence[Column], fitting: Sequence[tuple[StructField, Column]], columns: Sequence[Column]
    ) -> None:
        given = {column.name for _, column in fitting}
        # Values that the database generates are unique.
        generated = [column.name for column in columns if column.is_generated and column.name not in given]
        indexes = self._connection.unique_indexes(self._table)
        if self._dialect.prefix_indexes is not None:
            catalog, schema, name = self._connection.place(self._table)
            query = self._dialect.prefix_indexes
            cut = {str(index) for (index,) in self._connection.rows(query, catalog or schema or "", name)}
            indexes = [index._replace(is_whole=index.is_whole and index.name not in cut) for index in indexes]
        conflict = why_not_unique([column.name for column in keys], indexes, generated)
        if conflict is not None:
            raise SinkError(f"table {self._table} cannot be upserted by {', '.join(self._sink.pk_fields)}: {conflict}")

    def _target(
        self, staging: Staging, fitting: Sequence[tuple[StructField, Column]], keys: Sequence[str]
    ) -> TableTarget:
        quoted = self._connection.quoted
        staged = [staging.column(self._connection, at) for at in range(len(fitting))]
        values = [
            f"CAST({name} AS {self._dialect.wall_time})"
            if is_wall_time(self._dialect, field)
            else self._dialect.value(name, isinstance(field.dataType, StringType), column)
            for name, (field, column) in zip(staged, fitting, strict=True)
        ]
        key_indexes = [at for at, (field, _) in enumerate(fitting) if field.name in keys]
        is_upsert = self._sink.insert_mode == "upsert"
        return TableTarget(
            self._table,
            self._dialect,
            tuple(quoted(column.name) for _, column in fitting),
            tuple(values),
            tuple(quoted(fitting[at][1].name) for at in key_indexes) if is_upsert else (),
            tuple(staged[at] for at in key_indexes) if is_upsert else (),
            tuple(staged[at] for at in key_indexes if fitting[at][1].is_nullable) if is_upsert else (),
        )

    def _check_statement(
        self, staging: Staging, target: TableTarget, fitting: Sequence[tuple[StructField, Column]]
    ) -> None:
        """Execute the statement for no rows, so that the database reports type mismatches."""
        row = self._connection.quoted(ROW)
        with staging.created(self._connection):
            staged = self._connection.columns(f"SELECT * FROM {staging.name} WHERE 1 = 0")
            as_staged = [
                (field, self._dialect.normalized(column)) for (field, _), column in zip(fitting, staged, strict=False)
            ]
            if lossy := list(self._lossy(as_staged, " while it is staged")):
                raise SinkError("; ".join(lossy))
            try:
                self._connection.execute(target.statement(staging.name, row, "1 = 0"))
            except DatabaseError as error:
                misfits = list(self._misfits(staging, target, fitting))
                if misfits:
                    raise SinkError("; ".join(misfits)) from None
                if target.keys and error.state[:2] == "42":
                    fields = ", ".join(self._sink.pk_fields)
                    remedy = "it needs a primary key or unique index on exactly these columns"
                    raise SinkError(f"table {self._table} cannot be upserted by {fields}: {error}; {remedy}") from None
                raise

    def _misfits(
        self, staging: Staging, target: TableTarget, fitting: Sequence[tuple[StructField, Column]]
    ) -> Iterator[str]:
        for (field, column), name, value in zip(fitting, target.names, target.values, strict=True):
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


def _matching(name: str, columns: Sequence[Column]) -> Column | None:
    """Return the column with this name; if none matches exactly, the only one that differs in case."""
    alike = [column for column in columns if column.name.casefold() == name.casefold()]
    exact = [column for column in alike if column.name == name]
    return exact[0] if exact else alike[0] if len(alike) == 1 else None


def _in_sql(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def why_not_unique(keys: Sequence[str], indexes: Sequence[UniqueIndex], generated: Sequence[str]) -> str | None:
    """Return the reason why an upsert could replace a row with other keys; None if it cannot.

    The database replaces the row that is equal in any unique index. Values of `generated` columns are unique.
    """
    key_columns = {key.casefold() for key in keys}
    generated_columns = {name.casefold() for name in generated}
    index_columns = [(index, {column.casefold() for column in index.columns}) for index in indexes]
    if not any(index.is_whole and columns == key_columns for index, columns in index_columns):
        return "it needs a primary key or unique index on exactly these columns, without prefix lengths"
    for index, columns in index_columns:
        # Rows that are equal in a superset of the key columns have equal keys.
        if not (index.is_whole and columns >= key_columns) and not columns & generated_columns:
            return (
                f"with unique index {index.name} it could replace rows with other keys; drop the index, or write to a "
                "table without it"
            )
    return None
