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
    """A table that takes the rows. `names` are its quoted columns in the frame's order, `values` what goes into them
    from the staging table; `keys` are those of `names` that tell a row from others, for an upsert only. Of these
    `nullable_keys`, as they are staged, may be null in the table: such a row would replace none, and is not taken.
    """

    table: str
    dialect: Dialect
    names: tuple[str, ...]
    values: tuple[str, ...]
    keys: tuple[str, ...]
    staged_keys: tuple[str, ...]
    nullable_keys: tuple[str, ...]

    def statement(self, staging: str, row: str, where: str) -> str:
        """Takes over those rows of a staging table; of rows with the same keys the last one, by their number."""
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
    """Makes sure that the table is there and takes rows of a schema, on one connection."""

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
        """The table, made or with more columns if need be. Raises SinkError, DatabaseError."""
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
        self._try(staging, target, fitting)
        return target

    def check(self, schema: StructType) -> int | None:
        """As far as it shows without a change of the database: how many columns the table has; None if the first batch
        makes it. Raises SinkError, DatabaseError."""
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
            raise SinkError(f"column {ROW}: rows are numbered under that name; call it something else")
        if cut := list(self._cut(schema)):
            raise SinkError("; ".join(cut))

    def _missing(self, schema: StructType, columns: Sequence[Column]) -> list[StructField]:
        """Fields for which the table gets a column. Raises SinkError if it gets none."""
        missing = [field for field in schema.fields if _matching(field.name, columns) is None]
        if missing and not self._sink.auto_evolve:
            raise SinkError("; ".join(self._no_column(field.name, columns) for field in missing))
        return missing

    def _fitting(
        self, schema: StructType, keys: Sequence[str], columns: Sequence[Column]
    ) -> list[tuple[StructField, Column]]:
        """The fields that have a column. Raises SinkError when that changes values, or the table needs others."""
        pairs = [(field, _matching(field.name, columns)) for field in schema.fields]
        fitting = [(field, column) for field, column in pairs if column is not None]
        if lossy := list(self._lossy(fitting, f" of table {self._table}")):
            raise SinkError("; ".join(lossy))
        self._nothing_lacks([column for _, column in fitting])
        if self._sink.insert_mode == "upsert" and self._dialect.replaces_by_any_index:
            self._keys_are_unique([column for field, column in fitting if field.name in keys], fitting, columns)
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
        return SinkError(f"there is no table {self._table}; create it, or write auto.create = true")

    def _no_column(self, name: str, columns: Sequence[Column]) -> str:
        by_name = {column.name.casefold(): column.name for column in columns}
        near = nearest(name.casefold(), by_name)
        hint = f" (there is {by_name[near]})" if near else ""
        helps = "add it, write auto.evolve = true, or leave it out in SQL"
        return f"table {self._table} has no column {name}{hint}; {helps}"

    def _may_change(self, field: StructField) -> bool:
        return field.name.casefold() in (name.casefold() for name in self._sink.cast)

    def _cut(self, schema: StructType) -> Iterator[str]:
        for field in schema.fields:
            if isinstance(field.dataType, self._dialect.cut_types) and not self._may_change(field):
                name = _in_sql(field.name)
                yield (
                    f"column {field.name}: this database's driver writes milliseconds of a "
                    f"{field.dataType.simpleString()}, so something would be lost; write unix_micros({name}) or "
                    f'CAST({name} AS STRING) in SQL, or cast = "{field.name}" in [sink]'
                )

    def _lossy(self, pairs: Sequence[tuple[StructField, Column]], place: str) -> Iterator[str]:
        for field, column in pairs:
            if self._dialect.is_lossy(field.dataType, column) and not self._may_change(field):
                fitting = fitting_type(column)
                helps = f'write cast = "{field.name}" in [sink] if it may be'
                if fitting is not None and not self._dialect.is_lossy(fitting, column):
                    cast = f"CAST({_in_sql(field.name)} AS {fitting.simpleString().upper()})"
                    helps = f'write {cast} in SQL, or cast = "{field.name}" in [sink]'
                yield (
                    f"column {column.name}{place} is {described(column)}, and the pipeline has "
                    f"{field.dataType.simpleString()}, of which something would be lost; {helps}"
                )

    def _nothing_lacks(self, given: Sequence[Column]) -> None:
        names = {column.name for column in given}
        lacking = [name for name in self._connection.needed_columns(self._table) if name not in names]
        if lacking:
            raise SinkError(
                f"table {self._table} needs a value for {', '.join(lacking)}, which the pipeline does not have; "
                "select it in SQL, or give the column a default"
            )

    def _keys_are_unique(
        self, keys: Sequence[Column], fitting: Sequence[tuple[StructField, Column]], columns: Sequence[Column]
    ) -> None:
        given = {column.name for _, column in fitting}
        # What the database numbers itself is never the same.
        numbered = [column.name for column in columns if column.is_generated and column.name not in given]
        indexes = self._connection.unique_indexes(self._table)
        if self._dialect.prefix_indexes is not None:
            catalog, schema, name = self._connection.place(self._table)
            query = self._dialect.prefix_indexes
            cut = {str(index) for (index,) in self._connection.rows(query, catalog or schema or "", name)}
            indexes = [index._replace(is_whole=index.is_whole and index.name not in cut) for index in indexes]
        wrong = why_not_unique([column.name for column in keys], indexes, numbered)
        if wrong is not None:
            raise SinkError(f"table {self._table} cannot be upserted by {', '.join(self._sink.pk_fields)}: {wrong}")

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
        at_keys = [at for at, (field, _) in enumerate(fitting) if field.name in keys]
        is_upsert = self._sink.insert_mode == "upsert"
        return TableTarget(
            self._table,
            self._dialect,
            tuple(quoted(column.name) for _, column in fitting),
            tuple(values),
            tuple(quoted(fitting[at][1].name) for at in at_keys) if is_upsert else (),
            tuple(staged[at] for at in at_keys) if is_upsert else (),
            tuple(staged[at] for at in at_keys if fitting[at][1].is_nullable) if is_upsert else (),
        )

    def _try(self, staging: Staging, target: TableTarget, fitting: Sequence[tuple[StructField, Column]]) -> None:
        """Takes over no row, so that the database says what does not fit."""
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
                    helps = "it needs a primary key or a unique index over just these columns"
                    raise SinkError(f"table {self._table} cannot be upserted by {fields}: {error}; {helps}") from None
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
                    f"column {column.name} of table {self._table} is {column.type_name}, and the pipeline has "
                    f"{field.dataType.simpleString()}; cast it in SQL"
                )


def _matching(name: str, columns: Sequence[Column]) -> Column | None:
    """The column of that name; but for its case, if only one is."""
    alike = [column for column in columns if column.name.casefold() == name.casefold()]
    exact = [column for column in alike if column.name == name]
    return exact[0] if exact else alike[0] if len(alike) == 1 else None


def _in_sql(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def why_not_unique(keys: Sequence[str], indexes: Sequence[UniqueIndex], numbered: Sequence[str]) -> str | None:
    """Why an upsert that replaces the row which is the same by any of the unique indexes does not replace just the one
    with the same keys; None if it does. Columns `numbered` are never the same."""
    wanted = {key.casefold() for key in keys}
    others = {name.casefold() for name in numbered}
    found = [(index, {column.casefold() for column in index.columns}) for index in indexes]
    if not any(index.is_whole and columns == wanted for index, columns in found):
        return "it needs a primary key or a unique index over just these columns, and over all that is in them"
    for index, columns in found:
        # Rows that are the same by more than the keys are the same by the keys.
        if not (index.is_whole and columns >= wanted) and not columns & others:
            return (
                f"unique index {index.name} would have it replace rows with other keys; drop it, or write to a table "
                "without it"
            )
    return None
