"""JDBC statements, which the Spark driver's Python process executes through its JVM.

Spark's own reader and writer support neither transactions over several statements nor markers. JDBC drivers come from
Spark's jars and are loaded by the thread's class loader, because `java.sql.DriverManager` loads only from the jars with
which the JVM was started.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from odradek.spark_it.definition.passwords import hide_passwords
from odradek.spark_it.spark.java import is_java_error, iter_causes, list_class_names

_POSITION = re.compile(r" Position: \d+$")  # a position in a generated statement, which messages do not contain
_NAME_PART = re.compile(r'"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|[^."`\[]+')

# Constants of java.sql, because py4j cannot read them from an object.
_NO_NULLS = 0
_READ_COMMITTED = 2


class DatabaseError(Exception):
    """An error of a database or its driver; `str()` is its message.

    `state` is the SQLSTATE, empty if the driver has none, `code` the error code of the database, `class_names` are the
    names of the Java class and its superclasses.
    """

    def __init__(self, message: str, state: str, code: int, class_names: tuple[str, ...]) -> None:
        super().__init__(_POSITION.sub("", " ".join(hide_passwords(message).split())))
        self.state = state
        self.code = code
        self.class_names = class_names

    @property
    def class_name(self) -> str:
        return self.class_names[0] if self.class_names else ""


def split_table_name(table: str) -> list[str]:
    """Split a qualified table name, whose parts may be quoted."""
    return _NAME_PART.findall(table)


class NoDriverError(Exception):
    """No driver in Spark's jars accepts the URL."""


def find_database_error(error: BaseException) -> DatabaseError | None:
    """Return the database error that made a JVM call or a Spark job fail; None if another error did."""
    found = None
    for cause in iter_causes(error):
        while cause is not None and "java.sql.SQLException" in list_class_names(cause):
            # The first exception with a SQLSTATE is the most specific. The reason of a BatchUpdateException is its
            # next.
            if found is None or not found.state:
                message, state = cause.getMessage(), cause.getSQLState()
                found = DatabaseError(message or "", state or "", cause.getErrorCode(), list_class_names(cause))
            cause = cause.getNextException()
    return found


@contextmanager
def _raising_database_errors() -> Iterator[None]:
    """Convert Java exceptions of a database to DatabaseError."""
    try:
        yield
    except Exception as error:
        database_failure = find_database_error(error)
        if database_failure is None:
            raise
        raise database_failure from None


class TableColumn(NamedTuple):
    """A column of a query's result. `type` is a number of java.sql.Types, `type_name` the name in the database.

    `precision` and `scale` are those of the driver: number of digits or characters, and number of fractional digits.
    """

    name: str
    type: int
    type_name: str
    is_nullable: bool
    precision: int = 0
    scale: int = 0
    is_generated: bool = False
    """The database generates the values, as for an identity column."""


class UniqueIndex(NamedTuple):
    """A unique index or primary key. With `is_complete` it includes all rows and complete columns; otherwise it has a
    condition, an expression or a prefix length, which `columns` does not show."""

    name: str
    columns: tuple[str, ...]
    is_complete: bool


class DatabaseConnection:
    """A connection, in autocommit mode except within `transaction`. Methods raise DatabaseError."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._quote: str | None = None

    def execute(self, statement: str, *parameters: str | int) -> int:
        """Execute a statement without a result; return the number of changed rows."""
        with _raising_database_errors():
            prepared = self._prepare(statement, parameters)
            try:
                return 0 if prepared.execute() else max(int(prepared.getUpdateCount()), 0)
            finally:
                prepared.close()

    def query_rows(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Return the rows of a query as Python values. Only for few rows, of numbers and texts."""
        with _raising_database_errors():
            prepared = self._prepare(query, parameters)
            try:
                results = prepared.executeQuery()
                width = range(1, results.getMetaData().getColumnCount() + 1)
                found = []
                while results.next():
                    found.append(tuple(results.getObject(at) for at in width))
                return found
            finally:
                prepared.close()

    def query_text(self, query: str) -> str | None:
        """Return the single value of a query as text in the database's notation; None for null or no row."""
        with _raising_database_errors():
            prepared = self._prepare(query, ())
            try:
                results = prepared.executeQuery()
                value = results.getString(1) if results.next() else None
                return None if value is None else str(value)
            finally:
                prepared.close()

    def query_columns(self, query: str) -> list[TableColumn]:
        """Return the columns of a query. The query is executed, and should return no rows."""
        with _raising_database_errors():
            prepared = self._prepare(query, ())
            try:
                metadata = prepared.executeQuery().getMetaData()
                return [
                    TableColumn(
                        metadata.getColumnLabel(at),
                        metadata.getColumnType(at),
                        metadata.getColumnTypeName(at),
                        metadata.isNullable(at) != _NO_NULLS,
                        _read_number(metadata.getPrecision, at),
                        _read_number(metadata.getScale, at),
                        bool(_read_number(metadata.isAutoIncrement, at)),
                    )
                    for at in range(1, metadata.getColumnCount() + 1)
                ]
            finally:
                prepared.close()

    def _prepare(self, statement: str, parameters: tuple[str | int, ...]) -> Any:
        if not parameters:
            # A prepared statement would take a question mark that is an operator for a parameter.
            return _PlainStatement(self._connection.createStatement(), statement)
        prepared = self._connection.prepareStatement(statement)
        for at, parameter in enumerate(parameters, 1):
            if isinstance(parameter, int):
                prepared.setLong(at, parameter)
            else:
                prepared.setString(at, parameter)
        return prepared

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of the `with` block, or roll them back if it raises. Raises DatabaseError.

        Each statement sees at least the committed rows that the one before it saw.
        """
        with _raising_database_errors():
            # At MySQL's default isolation level SELECT reads an old snapshot, but INSERT ... SELECT the newest rows.
            if self._connection.getMetaData().supportsTransactionIsolationLevel(_READ_COMMITTED):
                self._connection.setTransactionIsolation(_READ_COMMITTED)
            self._connection.setAutoCommit(False)
        try:
            yield
            with _raising_database_errors():
                self._connection.commit()
        except BaseException:
            self._rollback()
            raise
        finally:
            with _suppressing_database_errors():
                self._connection.setAutoCommit(True)

    def _rollback(self) -> None:
        with _suppressing_database_errors():
            self._connection.rollback()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back only the statements of the `with` block if it raises DatabaseError."""
        with _raising_database_errors():
            savepoint = self._connection.setSavepoint()
        try:
            yield
        except DatabaseError:
            with _raising_database_errors():
                self._connection.rollback(savepoint)
            raise
        finally:
            with _suppressing_database_errors():  # not every driver supports this
                self._connection.releaseSavepoint(savepoint)

    def quote(self, name: str) -> str:
        """Quote a name; return it unchanged if the database does not support quotes."""
        if self._quote is None:
            with _raising_database_errors():
                self._quote = str(self._connection.getMetaData().getIdentifierQuoteString()).strip()
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}" if self._quote else name

    def locate_table(self, table: str) -> tuple[str | None, str | None, str]:
        """Return catalog, schema and name of a table as in the database's metadata. `table` is the name in
        statements."""
        with _raising_database_errors():
            metadata = self._connection.getMetaData()

            def to_stored_name(name: str) -> str:
                if name[:1] in ('"', "`", "["):
                    return name[1:-1].replace(name[-1] * 2, name[-1])
                if metadata.storesLowerCaseIdentifiers():
                    return name.lower()
                return name.upper() if metadata.storesUpperCaseIdentifiers() else name

            *schemas, name = map(to_stored_name, split_table_name(table))
            catalog, schema = self._connection.getCatalog(), self._connection.getSchema()
            if schemas and metadata.supportsSchemasInDataManipulation():
                schema = schemas[-1]
            elif schemas:
                catalog = schemas[-1]  # MySQL, whose databases are catalogs
            return catalog, schema, name

    def query_unique_indexes(self, table: str) -> list[UniqueIndex]:
        """Return the unique indexes of a table. `table` is the name in statements."""
        with _raising_database_errors():
            catalog, schema, name = self.locate_table(table)
            results = self._connection.getMetaData().getIndexInfo(catalog, schema, name, True, True)
            found: dict[str, dict[int, str | None]] = {}
            partial = set()
            while results.next():
                index = results.getString("INDEX_NAME")
                if index is None or results.getBoolean("NON_UNIQUE"):
                    continue  # table statistics, not an index
                column = results.getString("COLUMN_NAME")
                found.setdefault(str(index), {})[results.getInt("ORDINAL_POSITION")] = column
                if column is None or results.getString("FILTER_CONDITION") is not None:
                    partial.add(str(index))
            results.close()
        return [
            UniqueIndex(index, tuple(parts[at] or "" for at in sorted(parts)), index not in partial)
            for index, parts in found.items()
        ]

    def query_required_columns(self, table: str) -> list[str]:
        """Return the columns that a new row must have: NOT NULL columns without a default.

        `table` is the name in statements. The result is empty if the database does not report columns.
        """
        with _raising_database_errors():
            catalog, schema, name = self.locate_table(table)
            results = self._connection.getMetaData().getColumns(catalog, schema, name, None)
            required = []
            while results.next():
                is_of_table = results.getString("TABLE_NAME") == name
                is_generated = "YES" in (results.getString("IS_AUTOINCREMENT"), results.getString("IS_GENERATEDCOLUMN"))
                is_optional = results.getString("IS_NULLABLE") != "NO" or results.getString("COLUMN_DEF") is not None
                if is_of_table and not is_generated and not is_optional:
                    required.append(str(results.getString("COLUMN_NAME")))
            results.close()
            return required

    def list_tables(self, prefix: str) -> list[tuple[str | None, str]]:
        """Return schema and name of all tables whose names begin with a prefix, in either case."""
        with _raising_database_errors():
            metadata = self._connection.getMetaData()
            stored_prefix = prefix.upper() if metadata.storesUpperCaseIdentifiers() else prefix
            results = metadata.getTables(self._connection.getCatalog(), None, stored_prefix + "%", None)
            found = []
            while results.next():
                found.append((results.getString("TABLE_SCHEM"), str(results.getString("TABLE_NAME"))))
            results.close()
            return found

    def close(self) -> None:
        with _suppressing_database_errors():
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _PlainStatement:
    """A statement without parameters, with the interface of a prepared statement."""

    def __init__(self, statement: Any, text: str) -> None:
        self._statement = statement
        self._text = text

    def execute(self) -> bool:
        return bool(self._statement.execute(self._text))

    def executeQuery(self) -> Any:  # noqa: N802
        return self._statement.executeQuery(self._text)

    def getUpdateCount(self) -> int:  # noqa: N802
        return int(self._statement.getUpdateCount())

    def close(self) -> None:
        self._statement.close()


def _read_number(read: Callable[[int], Any], at: int) -> int:
    """Return a number from a column's metadata; 0 if the driver has none for the declared type."""
    with _suppressing_database_errors():
        return int(read(at))
    return 0


@contextmanager
def _suppressing_database_errors() -> Iterator[None]:
    """Suppress Java exceptions, for example when a resource is released: an earlier error is more relevant."""
    try:
        yield
    except Exception as error:
        if not is_java_error(error):
            raise


class Database:
    """The address and driver of a database, for statements and for Spark's reader and writer.

    Raises NoDriverError if the driver's jar is missing.
    """

    def __init__(self, spark: SparkSession, url: str, user: str | None, password: str | None) -> None:
        self.url = url
        self._jvm: Any = spark._jvm
        self._properties = {"user": user, "password": password}
        self._driver = self._find_driver()

    @property
    def shown_url(self) -> str:
        return hide_passwords(self.url)

    def _find_driver(self) -> Any:
        jvm = self._jvm
        loader = jvm.Thread.currentThread().getContextClassLoader()
        drivers = jvm.java.util.ServiceLoader.load(jvm.Class.forName("java.sql.Driver"), loader).iterator()
        while drivers.hasNext():
            driver = drivers.next()
            with _suppressing_database_errors():
                if driver.acceptsURL(self.url):
                    return driver
        raise NoDriverError(
            f"no JDBC driver accepts {self.shown_url}: put the driver's jar and those of the other connectors into the "
            "folder of plugin.path, or their Maven coordinates into spark.jars.packages"
        )

    def connect(self) -> DatabaseConnection:
        """Return a new connection. Raises DatabaseError."""
        properties = self._jvm.java.util.Properties()
        for name, value in self._properties.items():
            if value is not None:
                properties.setProperty(name, value)
        with _raising_database_errors():
            connection = self._driver.connect(self.url, properties)
        if connection is None:
            raise NoDriverError(f"{self._driver.getClass().getName()} does not accept {self.shown_url}")
        return DatabaseConnection(connection)

    def find_column_type(self, type_: DataType) -> str:
        """Return the database's type for a Spark type. Raises ValueError if there is none."""
        dialect = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url)
        utils = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        try:
            java_type = self._jvm.org.apache.spark.sql.types.DataType.fromJson(type_.json())
            return str(utils.getJdbcType(java_type, dialect).databaseTypeDefinition())
        except Exception as error:
            if not is_java_error(error):
                raise
            raise ValueError(f"this database has no column type for {type_.simpleString()}") from None

    def options(self) -> dict[str, str]:
        """Return the options of Spark's `format("jdbc")`."""
        given = {"url": self.url, "driver": str(self._driver.getClass().getName())}
        return given | {name: value for name, value in self._properties.items() if value is not None}
