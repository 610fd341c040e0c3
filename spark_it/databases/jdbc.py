"""JDBC statements to a database, from the driver's Python through its JVM.

Spark's own reader and writer support neither transactions over several statements nor markers. JDBC drivers come from
Spark's jars: the thread's class loader finds them, since `java.sql.DriverManager` sees only the jars that the JVM was
started with.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from odradek.spark_it.definition.passwords import without_passwords
from odradek.spark_it.spark.java import causes, class_names, is_java_error

_POSITION = re.compile(r" Position: \d+$")  # in a statement that nobody sees
_NAME_PART = re.compile(r'"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|[^."`\[]+')

# Constants of java.sql, which py4j does not read from an object.
_NO_NULLS = 0
_READ_COMMITTED = 2


class DatabaseError(Exception):
    """What a database or its driver refused; `str()` is its message.

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
    """The parts of a table's name as a statement has it: schema.table, each in quotes or not."""
    return _NAME_PART.findall(table)


class NoDriverError(Exception):
    """None of the drivers that Spark has takes the address."""


def database_error(error: BaseException) -> DatabaseError | None:
    """What the database said, when that is why a call of the JVM or a Spark job failed; None for any other reason."""
    found = None
    for cause in causes(error):
        while cause is not None and "java.sql.SQLException" in class_names(cause):
            # The first one with a state says most; the one of a failed batch has its reason after it.
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
        said = database_error(error)
        if said is None:
            raise
        raise said from None


class Column(NamedTuple):
    """A column of a query's result: java.sql.Types's number, the database's name of the type, and whether null fits.

    `precision` and `scale` are the driver's: digits, digits after the point or of a second, characters of a text.
    """

    name: str
    type: int
    type_name: str
    is_nullable: bool
    precision: int = 0
    scale: int = 0
    is_generated: bool = False
    """Whether the database numbers rows in it."""


class UniqueIndex(NamedTuple):
    """A unique index or primary key. With `is_whole` it is of all rows and of the columns as they are; otherwise it has
    a condition or an expression, which `columns` lacks."""

    name: str
    columns: tuple[str, ...]
    is_whole: bool


class Connection:
    """A connection. Statements are committed one by one, but those of a `transaction`. Methods raise DatabaseError."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._quote: str | None = None

    def execute(self, statement: str, *parameters: str | int) -> int:
        """Runs a statement without a result; returns how many rows it changed."""
        with _database_errors():
            prepared = self._prepared(statement, parameters)
            try:
                return 0 if prepared.execute() else max(int(prepared.getUpdateCount()), 0)
            finally:
                prepared.close()

    def rows(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """The rows of a query: numbers and texts as Python has them. For few rows."""
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
        """The only value of a query's only row, as the database writes it; None if it is null."""
        with _database_errors():
            prepared = self._prepared(query, ())
            try:
                results = prepared.executeQuery()
                value = results.getString(1) if results.next() else None
                return None if value is None else str(value)
            finally:
                prepared.close()

    def columns(self, query: str) -> list[Column]:
        """The columns that a query has; it is run, and should have no rows."""
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
            # A plain statement: a question mark may be an operator.
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
        """Commits what the block did, or takes it back when it raises. Raises DatabaseError.

        Each statement sees at least the committed rows that the one before it saw.
        """
        with _database_errors():
            # MySQL's own level reads an old snapshot in a SELECT, and what is newest in an INSERT ... SELECT.
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
        """Takes back what the block did, and nothing else of the transaction, when it raises DatabaseError."""
        with _database_errors():
            savepoint = self._connection.setSavepoint()
        try:
            yield
        except DatabaseError:
            with _database_errors():
                self._connection.rollback(savepoint)
            raise
        finally:
            with _suppressed():  # not every driver can
                self._connection.releaseSavepoint(savepoint)

    def quoted(self, name: str) -> str:
        """A name in quotes, so that it is taken as it is; where the database knows no quotes, the name."""
        if self._quote is None:
            with _database_errors():
                self._quote = str(self._connection.getMetaData().getIdentifierQuoteString()).strip()
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}" if self._quote else name

    def place(self, table: str) -> tuple[str | None, str | None, str]:
        """Catalog, schema and name of a table, named as in a statement, as the database's own tables have them."""
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
        """The unique indexes of a table, named as in a statement."""
        with _database_errors():
            catalog, schema, name = self.place(table)
            results = self._connection.getMetaData().getIndexInfo(catalog, schema, name, True, True)
            found: dict[str, dict[int, str | None]] = {}
            partial = set()
            while results.next():
                index = results.getString("INDEX_NAME")
                if index is None or results.getBoolean("NON_UNIQUE"):
                    continue  # the first is the table's statistics
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
        """Columns of a table, named as in a statement, that a new row must have: not null, and nothing gives them.

        Empty where the database does not tell.
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
        """Schema and name of all tables whose names begin so, in whatever case."""
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
    """A statement without parameters, used like one with them."""

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
    """A number of a column; 0 where the driver cannot read it from the declared type."""
    with _suppressed():
        return int(read(at))
    return 0


@contextmanager
def _suppressed() -> Iterator[None]:
    """What fails while something is let go of says nothing that the work before did not say."""
    try:
        yield
    except Exception as error:
        if not is_java_error(error):
            raise


class Database:
    """A database and how to get at it, for statements and for Spark's reader and writer.

    Raises NoDriverError where the jar is missing.
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
            f"no JDBC driver takes {self.shown_url}: put the driver's jar and those of the other connectors into the "
            "folder of plugin.path, or their Maven coordinates into spark.jars.packages"
        )

    def connect(self) -> Connection:
        """A new connection. Raises DatabaseError."""
        properties = self._jvm.java.util.Properties()
        for name, value in self._properties.items():
            if value is not None:
                properties.setProperty(name, value)
        with _database_errors():
            connection = self._driver.connect(self.url, properties)
        if connection is None:
            raise NoDriverError(f"{self._driver.getClass().getName()} does not take {self.shown_url}")
        return Connection(connection)

    def column_type(self, type_: DataType) -> str:
        """How the database calls a type of Spark. Raises ValueError for one that it does not have."""
        dialect = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url)
        utils = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        try:
            in_java = self._jvm.org.apache.spark.sql.types.DataType.fromJson(type_.json())
            return str(utils.getJdbcType(in_java, dialect).databaseTypeDefinition())
        except Exception as error:
            if not is_java_error(error):
                raise
            raise ValueError(f"{type_.simpleString()} has no place in a table of this database") from None

    def options(self) -> dict[str, str]:
        """Options of Spark's `format("jdbc")`."""
        given = {"url": self.url, "driver": str(self._driver.getClass().getName())}
        return given | {name: value for name, value in self._properties.items() if value is not None}
