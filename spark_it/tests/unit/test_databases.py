"""Dialects, names and checks of databases, without a database."""

import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from odradek.spark_it.databases.dialects import Dialect, MySQL, PostgreSQL, SQLite, SQLServer, find_dialect
from odradek.spark_it.databases.jdbc import (
    DatabaseConnection,
    DatabaseError,
    TableColumn,
    UniqueIndex,
    split_table_name,
)
from odradek.spark_it.definition.passwords import hide_passwords
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import SinkBatch, SinkError
from odradek.spark_it.sinks.jdbc import _split_in_halves
from odradek.spark_it.sinks.jdbc_staging import RowSegment, make_staging_prefix, qualify_name
from odradek.spark_it.sinks.jdbc_target import Preparation, find_upsert_conflict
from odradek.spark_it.sinks.marker_checks import check_owners, is_written
from spark_it.tests.unit.support import UNUSED


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:postgresql://h/d?user=a&password=b%20c&x=1", "jdbc:postgresql://h/d?user=a&password=[hidden]&x=1"),
        ("jdbc:sqlserver://h;databaseName=d;password=b;x=1", "jdbc:sqlserver://h;databaseName=d;password=[hidden];x=1"),
        ("jdbc:sqlserver://h;password={b;c}}};x=1", "jdbc:sqlserver://h;password=[hidden];x=1"),
        ("jdbc:oracle:thin:scott/tiger@//h:1521/d", "jdbc:oracle:thin:scott/[hidden]@//h:1521/d"),
        ("jdbc:oracle:thin:@//h:1521/d", "jdbc:oracle:thin:@//h:1521/d"),
        ("jdbc:mysql://user:word@h/d", "jdbc:mysql://user:[hidden]@h/d"),
        ("jdbc:postgresql://h:5432/d", "jdbc:postgresql://h:5432/d"),
        ("cannot open jdbc:x://h?PASSWORD = b now", "cannot open jdbc:x://h?PASSWORD =[hidden] now"),
    ],
)
def test_passwords_are_not_shown(text, shown):
    assert hide_passwords(text) == shown


def test_names_of_tables():
    assert split_table_name('shop."My.Table"') == ["shop", '"My.Table"']
    assert split_table_name('"a""b"') == ['"a""b"']
    assert split_table_name("[dbo].[sales]") == ["[dbo]", "[sales]"]
    assert qualify_name('"My Shop".sales', "x") == '"My Shop".x'
    assert qualify_name("sales", "x") == "x"
    assert (
        make_staging_prefix("orders", "a") != make_staging_prefix("orders", "b") != make_staging_prefix("refunds", "b")
    )
    assert len(make_staging_prefix("A very long name of a pipeline", "t")) < 50


def test_halves_contain_all_rows_down_to_one():
    def split(part):
        if sum(map(len, part)) == 1:
            return [part[0].first]
        left, right = _split_in_halves(part)
        assert 0 <= sum(map(len, left)) - sum(map(len, right)) <= 1
        return split(left) + split(right)

    segments = [RowSegment(0, 0), RowSegment(100, 106), RowSegment(200, 201), RowSegment(300, 300)]
    assert split(segments) == [0, *range(100, 107), 200, 201, 300]


def test_the_last_batch_of_a_sink():
    batch = SinkBatch(7, 100, UNUSED)
    assert not is_written(0, batch, "x")
    assert not is_written(make_marker_number(100, 6), batch, "x")
    assert not is_written(make_marker_number(99, 1000), batch, "x")
    assert is_written(make_marker_number(100, 7), batch, "x")
    with pytest.raises(SinkError, match="x is batch 8, but this is batch 7: the checkpoint is older"):
        is_written(make_marker_number(100, 8), batch, "x")
    with pytest.raises(SinkError, match="x has generation 101, but this state of the pipeline has 100"):
        is_written(make_marker_number(101, 0), batch, "x")


def test_a_sink_of_another_copy():
    batch = SinkBatch(7, 100, UNUSED, state="one")
    check_owners({"one"}, batch, "x")
    check_owners(set(), batch, "x")
    with pytest.raises(SinkError, match=r"x belongs to another copy of this pipeline, .* reset this one") as refused:
        check_owners({"two"}, batch, "x")
    assert not refused.value.is_retriable


def test_dialects():
    assert type(find_dialect("jdbc:postgresql://h/d")) is PostgreSQL
    assert type(find_dialect("jdbc:sqlite:x.db")) is SQLite
    assert type(find_dialect("jdbc:mariadb://h/d")) is MySQL
    assert type(find_dialect("jdbc:sqlserver://h")) is SQLServer
    assert type(find_dialect("jdbc:oracle:thin:@h")) is Dialect
    upsert = Dialect().make_upsert("t", ["k", "v"], ["k"], "SELECT 1 AS k, 2 AS v")
    assert upsert == (
        "MERGE INTO t odradek_t USING (SELECT 1 AS k, 2 AS v) odradek_s ON (odradek_t.k = odradek_s.k) "
        "WHEN MATCHED THEN UPDATE SET v = odradek_s.v WHEN NOT MATCHED THEN INSERT (k, v) VALUES "
        "(odradek_s.k, odradek_s.v)"
    )
    assert SQLServer().make_upsert("t", ["k"], ["k"], "s").endswith("VALUES (odradek_s.k);")
    assert "ON DUPLICATE KEY UPDATE v = VALUES(v)" in MySQL().make_upsert("t", ["k", "v"], ["k"], "s")
    assert (
        PostgreSQL().make_upsert("t", ["k"], ["k"], "SELECT 1")
        == "INSERT INTO t (k) SELECT 1 ON CONFLICT (k) DO NOTHING"
    )
    assert (
        next(iter(PostgreSQL().make_begin_statements("+02:00")))
        == "SET LOCAL TIME ZONE INTERVAL '+02:00' HOUR TO MINUTE"
    )
    assert next(iter(PostgreSQL().make_begin_statements("Europe/Vienna"))) == "SET LOCAL TIME ZONE 'Europe/Vienna'"


def test_kinds_of_errors():
    def error(state, code=0, *kinds):
        return DatabaseError("x", state, code, kinds)

    general = Dialect()
    assert general.is_bad_row(error("22001"))
    assert general.is_bad_row(error("23505"))
    assert not general.is_bad_row(error("08006"))
    assert not general.is_bad_row(error("42P01"))
    assert general.is_transient(error("08006"))
    assert general.is_transient(error("57P03"))
    assert general.is_transient(error("40P01"))
    assert general.is_transient(error("", 0, "x.Y", "java.sql.SQLTransientException"))
    assert not general.is_transient(error("28P01"))
    assert not general.is_transient(error("22001"))
    assert SQLite().is_bad_row(error("", 1555))
    assert SQLite().is_transient(error("", 5))
    assert not SQLite().is_bad_row(error("", 5))


@pytest.mark.parametrize(
    ("type_", "name", "of_text", "value"),
    [
        (1111, "uuid", True, 'CAST(c0 AS "uuid")'),
        (12, "mood", True, 'CAST(c0 AS "mood")'),
        (12, '"shop"."mood"', True, 'CAST(c0 AS "shop"."mood")'),
        (12, "varchar", True, "c0"),
        (4, "int4", True, "c0"),
        (1111, "uuid", False, "c0"),
    ],
)
def test_only_postgresqls_own_types_are_cast(type_, name, of_text, value):
    assert PostgreSQL().make_value_expression("c0", of_text, TableColumn("x", type_, name, True)) == value


def test_trailing_spaces_of_texts_are_not_truncated():
    column = TableColumn("x", 12, "varchar", True, 3, 0)
    expected = "CASE WHEN CHAR_LENGTH(c0) > 3 THEN c0 || '.' ELSE c0 END"
    assert PostgreSQL().make_value_expression("c0", True, column) == expected
    assert PostgreSQL().make_value_expression("c0", False, column) == "c0"
    assert PostgreSQL().make_value_expression("c0", True, column._replace(precision=(1 << 31) - 1)) == "c0"
    assert "CONCAT(c0, '.')" in MySQL().make_value_expression("c0", True, column)


def test_keys_of_an_upsert_by_any_unique_index():
    def said(*indexes, numbered=()):
        found = [
            UniqueIndex(f"i{at}", tuple(columns.split()), is_whole) for at, (columns, is_whole) in enumerate(indexes)
        ]
        return find_upsert_conflict(["a", "b"], found, numbered) or ""

    assert said(("a b", True)) == ""
    assert said(("B A", True)) == ""
    assert said(("a b", True), ("c b a", True)) == ""
    assert said(("a b", True), ("id", True), numbered=["ID"]) == ""
    missing = "it needs a primary key or unique index on exactly these columns"
    for indexes in ([], [("a", True)], [("a b c", True)], [("a b", False)], [("c", True)]):
        assert missing in said(*indexes), indexes
    for other in (("c", True), ("a", True), ("a b c", False), ("", False)):
        assert "with unique index i1 it could replace rows with other keys" in said(("a b", True), other), other


class FakeResults:
    """A ResultSet, with rows by the names of their columns."""

    def __init__(self, rows, columns=()):
        self._rows = list(rows)
        self._columns = columns

    def next(self):
        self._row = self._rows.pop(0) if self._rows else None
        return self._row is not None

    def getString(self, name):  # noqa: N802
        return self._row.get(name)

    def getObject(self, at):  # noqa: N802
        return list(self._row.values())[at - 1]

    getBoolean = getInt = getString  # noqa: N815

    def getMetaData(self):  # noqa: N802
        return FakeColumns(self._columns)

    def close(self):
        pass


class FakeColumns:
    """A ResultSetMetaData."""

    def __init__(self, columns):
        self._columns = columns

    def getColumnCount(self):  # noqa: N802
        return len(self._columns)

    def __getattr__(self, name):
        fields = {
            "getColumnLabel": "name",
            "getColumnType": "type",
            "getColumnTypeName": "type_name",
            "isNullable": "is_nullable",
            "getPrecision": "precision",
            "getScale": "scale",
            "isAutoIncrement": "is_generated",
        }
        return lambda at: getattr(self._columns[at - 1], fields[name])


class FakeMySQL:
    """A connection to MySQL that answers as Connector/J does: databases are catalogs, a functional part of an index has
    no name, and only the information schema shows that an index has a prefix of a column."""

    TABLE = (
        TableColumn("id", -5, "BIGINT", False, 19, 0),
        TableColumn("email", 12, "VARCHAR", True, 200, 0),
        TableColumn("at", 93, "DATETIME", True, 26, 0),
        TableColumn("row_id", -5, "BIGINT", False, 19, 0, True),
    )

    def __init__(self, indexes, cut=()):
        self._indexes = indexes
        self._cut = cut
        self.asked = []

    def getMetaData(self):  # noqa: N802
        return self

    def getCatalog(self):  # noqa: N802
        return "shop"

    def getSchema(self):  # noqa: N802
        return None

    def storesLowerCaseIdentifiers(self):  # noqa: N802
        return False

    storesUpperCaseIdentifiers = supportsSchemasInDataManipulation = storesLowerCaseIdentifiers  # noqa: N815

    def getIdentifierQuoteString(self):  # noqa: N802
        return "`"

    def getColumns(self, *_):  # noqa: N802
        return FakeResults([])

    def getIndexInfo(self, catalog, schema, table, unique, approximate):  # noqa: N802
        assert unique
        self.asked.append((catalog, schema, table))
        found = []
        for name, columns in self._indexes.items():
            for at, column in enumerate(columns.split(), 1):
                shown = None if column == "-" else column
                row = {"NON_UNIQUE": False, "INDEX_NAME": name, "TYPE": 3, "ORDINAL_POSITION": at, "COLUMN_NAME": shown}
                found.append({**row, "FILTER_CONDITION": None})
        return FakeResults(found)

    def createStatement(self):  # noqa: N802
        return self

    def prepareStatement(self, statement):  # noqa: N802
        assert "sub_part IS NOT NULL" in statement
        self.parameters = {}
        return self

    def setString(self, at, value):  # noqa: N802
        self.parameters[at] = value

    def executeQuery(self, statement=None):  # noqa: N802
        if statement is None:
            self.asked.append((self.parameters[1], self.parameters[2]))
            return FakeResults([{"index_name": name} for name in self._cut], ("index_name",))
        return FakeResults([], self.TABLE)

    def close(self):
        pass


@pytest.mark.parametrize(
    ("indexes", "cut", "refused"),
    [
        ({"PRIMARY": "id"}, [], None),
        ({"PRIMARY": "row_id", "u": "ID"}, [], None),
        ({"PRIMARY": "id", "u": "id email"}, [], None),
        ({"PRIMARY": "row_id"}, [], "it needs a primary key or unique index on exactly these columns"),
        ({"PRIMARY": "id email"}, [], "it needs a primary key or unique index on exactly these columns"),
        ({"PRIMARY": "-"}, [], "it needs a primary key or unique index on exactly these columns"),
        ({"PRIMARY": "id", "u": "email"}, [], "with unique index u it could replace rows with other keys"),
        ({"PRIMARY": "row_id", "u": "id"}, ["u"], "it needs a primary key or unique index on exactly these columns"),
        ({"PRIMARY": "id", "u": "id -"}, [], "with unique index u it could replace rows with other keys"),
    ],
)
def test_an_upsert_in_mysql_needs_one_unique_index(indexes, cut, refused):
    sink = JdbcSink(
        {
            "connector": "jdbc",
            "connection.url": "jdbc:mysql://h/shop",
            "table.name.format": "other.sales",
            "insert.mode": "upsert",
            "pk.fields": "id",
        }
    )
    fake = FakeMySQL(indexes, cut)
    preparation = Preparation(sink, UNUSED, MySQL(), DatabaseConnection(fake), "orders")
    schema = StructType().add("Id", LongType()).add("email", StringType()).add("at", TimestampType())
    if refused is None:
        assert preparation.check(schema) == len(FakeMySQL.TABLE)
    else:
        with pytest.raises(SinkError, match=f"table other.sales cannot be upserted by id: {refused}"):
            preparation.check(schema)
    assert fake.asked == [("other", None, "sales"), ("other", "sales")]
