"""Staging tables of two copies of a pipeline, in SQLite without Java."""

import sqlite3
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructType

from odradek.spark_it.databases.dialects import SQLite
from odradek.spark_it.databases.jdbc import DatabaseError
from odradek.spark_it.interfaces.sink import Claim, SinkError
from odradek.spark_it.sinks import jdbc as jdbc_sink
from odradek.spark_it.sinks.jdbc_staging import StagingTable, make_staging_prefix
from spark_it.tests.unit.support import UNUSED, pipeline

SCHEMA = StructType().add("id", LongType())
SINK = """
name = "orders"
[source.orders]
connector = "generator"
[sink]
connector = "jdbc"
connection.url = "jdbc:sqlite:"
table.name.format = "sales"
"""


class Database:
    """A `Database` and its connection, on SQLite in memory."""

    shown_url = "jdbc:sqlite:"

    def __init__(self):
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    def execute(self, statement, *parameters):
        try:
            return self._connection.execute(statement, parameters).rowcount
        except sqlite3.Error as error:
            raise DatabaseError(str(error), "", 1, ()) from None

    def query_rows(self, query, *parameters):
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(str(error), "", 1, ()) from None

    def list_tables(self, prefix):
        found = self.query_rows("SELECT NULL, name FROM sqlite_master WHERE type = 'table'")
        return [(schema, name) for schema, name in found if name.startswith(prefix)]

    @contextmanager
    def connect(self):
        yield self

    transaction = connect

    def quote(self, name):
        return f'"{name}"'

    def find_column_type(self, _):
        return "BIGINT"


@pytest.fixture
def database():
    return Database()


@pytest.fixture
def copy(database, monkeypatch):
    """Make the sinks of copies of one pipeline."""
    monkeypatch.setattr(jdbc_sink, "Database", lambda *_: database)
    monkeypatch.setattr(jdbc_sink, "Preparation", lambda *_: SimpleNamespace(prepare_target=lambda _: None))

    def made():
        sink = jdbc_sink.make(pipeline(SINK), None, UNUSED, None)
        sink.prepare(SCHEMA)
        return sink

    return made


def staging_of(database):
    return StagingTable(database, SQLite(), "orders", "sales", SCHEMA)


def test_a_copy_that_is_refused_drops_nothing(database, copy):
    one = copy()
    one.claim(Claim("one", 1, is_new=True))
    staging = staging_of(database)
    with staging.create_temporarily(database):
        two = copy()
        with pytest.raises(SinkError, match="by another copy"):
            two.claim(Claim("two", 1, is_new=True))
        assert database.list_tables(make_staging_prefix("orders", "sales")) == [(None, staging.name)]


@pytest.mark.parametrize("owner", ["one", "two"])
def test_the_owner_drops_staging_tables_of_earlier_runs(database, copy, owner):
    copy().claim(Claim("one", 1, is_new=True))
    database.execute(f"CREATE TABLE {staging_of(database).name} (id BIGINT)")
    copy().claim(Claim(owner, 2, frozenset({"one"})))
    assert database.list_tables(make_staging_prefix("orders", "sales")) == []


def test_a_dropped_staging_table_is_a_retriable_error(database):
    """A copy that replaces this one drops it. The next attempt checks which copy owns the sink."""
    staging = staging_of(database)
    with pytest.raises(SinkError, match=f"{staging.name} was dropped") as raised, staging.create_temporarily(database):
        database.execute(f"DROP TABLE {staging.name}")
        database.query_rows(f"SELECT * FROM {staging.name}")
    assert raised.value.is_retriable
    # A missing target is not a dropped staging table.
    with pytest.raises(DatabaseError, match="no such table: sales"), staging.create_temporarily(database):
        database.query_rows("SELECT * FROM sales")
