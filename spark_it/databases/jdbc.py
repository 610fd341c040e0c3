"""JDBC statements to a database, from the driver's Python through its JVM.

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

from odradek.spark_it.definition.passwords import without_passwords
from odradek.spark_it.spark.java import causes, class_names, is_java_error

_POSITION = re.compile(r" Position: \d+$")  # a position in a generated statement, which is not shown
_NAME_PART = re.compile(r'"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|[^."`\[]+')

# Constants of java.sql, which py4j does not read from an object.
_NO_NULLS = 0
_READ_COMMITTED = 2


class DatabaseError(Exception):
    """An error of a database or its driver; `str()` is its message.

    `state` is the SQLSTATE, empty if the driver has none, `code` the database's own number, `class_names` are the names
    of the Java class and its ancestors.
    """

    def __init__(self, message: str, state: str, code: int, class_names: tuple[str, ...]) -> None:
        super().__init__(_POSITION.sub("", " ".join(without_passwords(message).split())))
        self.state = state
        self.code = code
        self.class_names = class_names

    @property
    def class_name(self) -> str:
        return self.class_names[0] if self.class_names else ""


def parts_of(table: str) -> list[str]:
    """Split a qualified table name, whose parts may be quoted."""
    return _NAME_PART.findall(table)


class NoDriverError(Exception):
    """No driver in Spark's jars accepts the URL."""


def database_error(error: BaseException) -> DatabaseError | None:
    """Return the database's error because of which a JVM call or Spark job failed; None for any other error."""
    found = None
    for cause in causes(error):
        while cause is not None and "java.sql.SQLException" in class_names(cause):
            # The first exception with a SQLSTATE is the most specific; a BatchUpdateException has the reason as next.
            if found is None or not found.state:
                message, state = cause.getMessage(), cause.getSQLState()
                found = DatabaseError(message or "", state or "", cause.getErrorCode(), class_names(cause))
            cause = cause.getNextException()
    return found


@contextmanager
def _database_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        database_failure = database_error(error)
        if database_failure is None:
            raise
        raise database_failure from None


class Column(NamedTuple):
    """A column of a query's result: number in java.sql.Types, the database's type name, and nullability.

    `precision` and `scale` are the driver's: number of digits or characters, and of fractional digits.
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
    """A unique index or primary key. With `is_whole` it includes all rows and complete columns; otherwise it has a
    condition, an expression or a prefix length, which `columns` does not show."""

    name: str
    columns: tuple[str, ...]
    is_whole: bool


class Connection:
    """A connection in autocommit mode, except within `transaction`. Methods raise DatabaseError."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._quote: str | None = None

    def execute(self, statement: str, *parameters: str | int) -> int:
        """Execute a statement without result; return the number of changed rows."""
        with _database_errors():
            prepared = self._prepared(statement, parameters)
            try:
                return 0 if prepared.execute() else max(int(prepared.getUpdateCount()), 0)
            finally:
                prepared.close()

    def rows(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Return the rows of a query with numbers and texts as Python values. For few rows."""
        with _database_errors():
            prepared = self._prepared(query, parameters)
            try:
                results = prepared.executeQuery()
                width = range(1, results.getMetaData().getColumnCount() + 1)
                found = []
                while results.next():
                    found.append(tuple(results.getObject(at) for at in width))
                return found
            finally:
                prepared.close()

    def text(self, query: str) -> str | None:
        """Return the single value of a query as text in the database's notation; None if it is null."""
        with _database_errors():
            prepared = self._prepared(query, ())
            try:
                results = prepared.executeQuery()
                value = results.getString(1) if results.next() else None
                return None if value is None else str(value)
            finally:
                prepared.close()

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query. The query is executed, and should return no rows."""
        with _database_errors():
            prepared = self._prepared(query, ())
            try:
                about = prepared.executeQuery().getMetaData()
                return [
                    Column(
                        about.getColumnLabel(at),
                        about.getColumnType(at),
                        about.getColumnTypeName(at),
                        about.isNullable(at) != _NO_NULLS,
                        _reported(about.getPrecision, at),
                        _reported(about.getScale, at),
                        bool(_reported(about.isAutoIncrement, at)),
                    )
                    for at in range(1, about.getColumnCount() + 1)
                ]
            finally:
                prepared.close()

    def _prepared(self, statement: str, parameters: tuple[str | int, ...]) -> Any:
        if not parameters:
            # Not a prepared statement, in which a question mark could not be an operator.
            return _Plain(self._connection.createStatement(), statement)
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
        with _database_errors():
            # With MySQL's default level SELECT reads an old snapshot, but INSERT ... SELECT the newest rows.
            if self._connection.getMetaData().supportsTransactionIsolationLevel(_READ_COMMITTED):
                self._connection.setTransactionIsolation(_READ_COMMITTED)
            self._connection.setAutoCommit(False)
        try:
            yield
            with _database_errors():
                self._connection.commit()
        except BaseException:
            self._rollback()
            raise
        finally:
            with _suppressed():
                self._connection.setAutoCommit(True)

    def _rollback(self) -> None:
        with _suppressed():
            self._connection.rollback()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back only the statements of the `with` block if it raises DatabaseError."""
        with _database_errors():
            savepoint = self._connection.setSavepoint()
        try:
            yield
        except DatabaseError:
            with _database_errors():
                self._connection.rollback(savepoint)
            raise
        finally:
            with _suppressed():  # not every driver supports this
                self._connection.releaseSavepoint(savepoint)

    def quoted(self, name: str) -> str:
        """Return a name in quotes; unquoted if the database does not support quotes."""
        if self._quote is None:
            with _database_errors():
                self._quote = str(self._connection.getMetaData().getIdentifierQuoteString()).strip()
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}" if self._quote else name

    def place(self, table: str) -> tuple[str | None, str | None, str]:
        """Return catalog, schema and name of a table, as in the database's metadata. `table` is as in a statement."""
        with _database_errors():
            about = self._connection.getMetaData()

            def stored(name: str) -> str:
                if name[:1] in ('"', "`", "["):
                    return name[1:-1].replace(name[-1] * 2, name[-1])
                if about.storesLowerCaseIdentifiers():
                    return name.lower()
                return name.upper() if about.storesUpperCaseIdentifiers() else name

            *schemas, name = map(stored, parts_of(table))
            catalog, schema = self._connection.getCatalog(), self._connection.getSchema()
            if schemas and about.supportsSchemasInDataManipulation():
                schema = schemas[-1]
            elif schemas:
                catalog = schemas[-1]  # MySQL, whose databases are catalogs
            return catalog, schema, name

    def unique_indexes(self, table: str) -> list[UniqueIndex]:
        """Return the unique indexes of a table. `table` is as in a statement."""
        with _database_errors():
            catalog, schema, name = self.place(table)
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

    def needed_columns(self, table: str) -> list[str]:
        """Return the columns that a new row must have: NOT NULL columns without default. `table` is as in a statement.

        Empty if the database does not report them.
        """
        with _database_errors():
            catalog, schema, name = self.place(table)
            results = self._connection.getMetaData().getColumns(catalog, schema, name, None)
            needed = []
            while results.next():
                is_it = results.getString("TABLE_NAME") == name
                is_given = "YES" in (results.getString("IS_AUTOINCREMENT"), results.getString("IS_GENERATEDCOLUMN"))
                may_lack = results.getString("IS_NULLABLE") != "NO" or results.getString("COLUMN_DEF") is not None
                if is_it and not is_given and not may_lack:
                    needed.append(str(results.getString("COLUMN_NAME")))
            results.close()
            return needed

    def tables_beginning(self, prefix: str) -> list[tuple[str | None, str]]:
        """Return schema and name of all tables with this prefix, ignoring case."""
        with _database_errors():
            about = self._connection.getMetaData()
            as_stored = prefix.upper() if about.storesUpperCaseIdentifiers() else prefix
            results = about.getTables(self._connection.getCatalog(), None, as_stored + "%", None)
            found = []
            while results.next():
                found.append((results.getString("TABLE_SCHEM"), str(results.getString("TABLE_NAME"))))
            results.close()
            return found

    def close(self) -> None:
        with _suppressed():
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Plain:
    """Adapter with the interface of a prepared statement for a statement without parameters."""

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


def _reported(read: Callable[[int], Any], at: int) -> int:
    """Return a number of a column; 0 if the driver cannot derive it from the declared type."""
    with _suppressed():
        return int(read(at))
    return 0


@contextmanager
def _suppressed() -> Iterator[None]:
    """Suppress errors when resources are released; an earlier error is more relevant."""
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
        self._driver = self._found_driver()

    @property
    def shown_url(self) -> str:
        return without_passwords(self.url)

    def _found_driver(self) -> Any:
        jvm = self._jvm
        loader = jvm.Thread.currentThread().getContextClassLoader()
        drivers = jvm.java.util.ServiceLoader.load(jvm.Class.forName("java.sql.Driver"), loader).iterator()
        while drivers.hasNext():
            driver = drivers.next()
            with _suppressed():
                if driver.acceptsURL(self.url):
                    return driver
        raise NoDriverError(
            f"no JDBC driver accepts {self.shown_url}: put the driver's jar and those of the other connectors into the "
            "folder of plugin.path, or their Maven coordinates into spark.jars.packages"
        )

    def connect(self) -> Connection:
        """Return a new connection. Raises DatabaseError."""
        properties = self._jvm.java.util.Properties()
        for name, value in self._properties.items():
            if value is not None:
                properties.setProperty(name, value)
        with _database_errors():
            connection = self._driver.connect(self.url, properties)
        if connection is None:
            raise NoDriverError(f"{self._driver.getClass().getName()} does not accept {self.shown_url}")
        return Connection(connection)

    def column_type(self, type_: DataType) -> str:
        """Return the database's type for a Spark type. Raises ValueError if there is none."""
        dialect = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url)
        utils = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        try:
            in_java = self._jvm.org.apache.spark.sql.types.DataType.fromJson(type_.json())
            return str(utils.getJdbcType(in_java, dialect).databaseTypeDefinition())
        except Exception as error:
            if not is_java_error(error):
                raise
            raise ValueError(f"this database has no column type for {type_.simpleString()}") from None

    def options(self) -> dict[str, str]:
        """Return the options of Spark's `format("jdbc")`."""
        given = {"url": self.url, "driver": str(self._driver.getClass().getName())}
        return given | {name: value for name, value in self._properties.items() if value is not None}
