"""The database sink against a real PostgreSQL, whose rows are counted by psycopg."""

import json
import sqlite3
from contextlib import closing

import pytest
from pyspark.sql import functions as f

from odradek.spark_it.databases import dialects
from odradek.spark_it.databases.dialects import Dialect, PostgreSQL
from odradek.spark_it.databases.jdbc import Database, DatabaseConnection
from odradek.spark_it.dead_letters.headers import (
    CLASS_NAME,
    EXCEPTION_CLASS_NAME,
    EXCEPTION_MESSAGE,
    STAGE,
    BadRecordError,
)
from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import Claim, SinkError, WrittenCounts
from odradek.spark_it.sinks import jdbc as jdbc_sink
from odradek.spark_it.sinks.jdbc_staging import StagingTable
from spark_it.tests.spark.batches import GENERATION, DeadLetters, batch, pipeline_of, sink_for


@pytest.fixture
def table(unique):
    return unique.replace("-", "_").lower()[-50:]


@pytest.fixture
def sink_to(spark, postgres, tmp_path, table):
    """A sink for the test's table: sink_to('pk.fields = "id"', dead_letters, name=..., tolerance=...)."""

    def made(keys="", dead_letters=None, session=None, table=table, **options):
        text = f"""
connector = "jdbc"
connection.url = "{postgres.jdbc_url}"
connection.user = "{postgres.user}"
connection.password = "{postgres.password}"
table.name.format = "{table}"
{keys}"""
        return sink_for(pipeline_of(text, tmp_path, **options), session or spark, dead_letters)

    return made


def numbers(spark, count, start=0):
    return spark.range(start, start + count, 1, 3).select("id", f.format_string("row %d", "id").alias("text"))


UPSERT = 'insert.mode = "upsert"\npk.fields = "id"'


def left_over(postgres):
    return [name for name in postgres.tables() if name.startswith("odradek_")]


def test_a_repeated_batch_is_written_once(spark, postgres, sink_to, table):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    sink = sink_to()
    rows = numbers(spark, 1000)
    sink.prepare(rows.schema)
    assert sink.read_marker() == 0
    for number in (0, 1):
        part = numbers(spark, 1000, 1000 * number)
        first = sink.write(part, None, batch(spark, number))
        assert (first.rows, first.dead_letters) == (1000, 0)
        assert sink.write(part, None, batch(spark, number)) == first
    # As after a crash between sink and checkpoint: another session, another sink.
    other = spark.newSession()
    again = sink_to(session=other)
    again.prepare(rows.schema)
    assert again.read_marker() == make_marker_number(GENERATION, 1)
    assert again.write(numbers(other, 1000, 1000), None, batch(other, 1)) == first
    assert again.write(numbers(other, 500, 2000), None, batch(other, 2)).rows == 500
    assert postgres.rows(f"SELECT count(*), count(DISTINCT id), max(text) FROM {table}") == [(2500, 2500, "row 999")]
    assert left_over(postgres) == []


def test_other_pipelines_and_generations_have_batches_of_their_own(spark, postgres, sink_to, table):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    rows = numbers(spark, 10)
    for name, generation in (("orders", 0), ("refunds", 0), ("orders", 1)):
        sink = sink_to(name=name)
        sink.prepare(rows.schema)
        for _ in range(2):
            assert sink.write(rows, None, batch(spark, 0, GENERATION + generation)).rows == 10
    assert postgres.value(f"SELECT count(*) FROM {table}") == 30


def test_an_older_checkpoint_is_refused(spark, postgres, sink_to, table):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    sink = sink_to()
    rows = numbers(spark, 10)
    sink.prepare(rows.schema)
    sink.write(rows, None, batch(spark, 5))
    with pytest.raises(SinkError, match=r"is batch 5, but this is batch 3: the checkpoint is older"):
        sink.write(rows, None, batch(spark, 3))
    with pytest.raises(SinkError, match=r"generation .*reset") as raised:
        sink.write(rows, None, batch(spark, 9, GENERATION - 1))
    assert not raised.value.is_retriable
    postgres.execute(f"DELETE FROM pipeline_batches WHERE target = '{table}'")
    with pytest.raises(SinkError, match="was deleted, so the last written batch is unknown"):
        sink.write(rows, None, batch(spark, 6))
    assert postgres.value(f"SELECT count(*) FROM {table}") == 10


@pytest.mark.parametrize("window", ["read_segments", "_finish"])
def test_killed_before_the_transaction_or_within_it(spark, postgres, sink_to, table, monkeypatch, window):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    sink = sink_to()
    rows = numbers(spark, 100)
    sink.prepare(rows.schema)

    class KilledError(BaseException):
        pass

    def dies(*_):
        raise KilledError

    owner = StagingTable if window == "read_segments" else jdbc_sink.JdbcTable
    with monkeypatch.context() as patched:
        patched.setattr(owner, window, dies)
        # A dead driver drops nothing.
        patched.setattr(DatabaseConnection, "execute", _without_drops(DatabaseConnection.execute))
        with pytest.raises(KilledError):
            sink.write(rows, None, batch(spark, 0))
    assert postgres.value(f"SELECT count(*) FROM {table}") == 0
    assert len(left_over(postgres)) == 1
    again = sink_to()
    again.prepare(rows.schema)
    again.claim(Claim("one", GENERATION))
    assert left_over(postgres) == []
    assert again.write(rows, None, batch(spark, 0, state="one")).rows == 100
    assert postgres.value(f"SELECT count(DISTINCT id) FROM {table}") == 100
    assert postgres.value(f"SELECT count(*) FROM {table}") == 100


def _without_drops(execute):
    def executed(connection, statement, *parameters):
        return 0 if statement.startswith("DROP") else execute(connection, statement, *parameters)

    return executed


def test_an_attempt_that_wakes_late_writes_nothing(spark, postgres, sink_to, table, monkeypatch):
    """An attempt stages its rows and sleeps; another one writes the batch; then the first one continues."""
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    rows = numbers(spark, 100)
    late, early = sink_to(), sink_to()
    late.prepare(rows.schema)
    early.prepare(rows.schema)
    take_over = jdbc_sink.JdbcTable._move_in_transaction

    def sleeps(sink, *arguments):
        monkeypatch.setattr(jdbc_sink.JdbcTable, "_move_in_transaction", take_over)
        assert early.write(rows, None, batch(spark, 0)).rows == 100
        return take_over(sink, *arguments)

    monkeypatch.setattr(jdbc_sink.JdbcTable, "_move_in_transaction", sleeps)
    assert late.write(rows, None, batch(spark, 0)).rows == 100
    assert postgres.value(f"SELECT count(*) FROM {table}") == 100


def test_staged_rows_that_are_duplicated_or_lost_are_detected(spark, postgres, sink_to, table, monkeypatch):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    rows = numbers(spark, 100)
    sink = sink_to()
    sink.prepare(rows.schema)
    fill = StagingTable.fill

    def and_then(statement):
        def filled(staging, *arguments):
            fill(staging, *arguments)
            postgres.execute(statement.format(staging.name))

        return filled

    for statement, message in (
        ("INSERT INTO {0} SELECT * FROM {0} WHERE odradek_row = 0", "ran a task again"),
        ("TRUNCATE {0}", "the database lost"),
    ):
        monkeypatch.setattr(StagingTable, "fill", and_then(statement))
        with pytest.raises(SinkError, match=message) as raised:
            sink.write(rows, None, batch(spark, 0))
        assert raised.value.is_retriable
    assert postgres.value(f"SELECT count(*) FROM {table}") == 0
    monkeypatch.setattr(StagingTable, "fill", fill)
    assert sink.write(rows, None, batch(spark, 0)).rows == 100


@pytest.mark.parametrize("moment", ["read_segments", "_insert_all", "read_as_json"])
def test_a_twin_of_a_task_that_writes_late(spark, postgres, sink_to, table, monkeypatch, moment):
    """A task that Spark considers lost writes its rows after they were checked, or moved to the table."""
    is_one_bad = moment == "read_as_json"
    postgres.execute(f"CREATE TABLE {table} (id BIGINT {'UNIQUE' if is_one_bad else ''}, text TEXT)")
    letters = DeadLetters()
    rows = numbers(spark, 10).union(numbers(spark, is_one_bad))
    sink = sink_to(dead_letters=letters)
    sink.prepare(rows.schema)
    owner = jdbc_sink.JdbcTable if moment == "_insert_all" else StagingTable
    look = getattr(owner, moment)

    def and_a_twin(self, *arguments):
        found = look(self, *arguments)
        (self if owner is StagingTable else arguments[1]).fill(rows, 3000)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(owner, moment, and_a_twin)
        with pytest.raises(SinkError, match="Spark ran a task again") as raised:
            sink.write(rows, None, batch(spark, 0))
    assert raised.value.is_retriable
    assert postgres.value(f"SELECT count(*) FROM {table}") == 0
    assert letters.records == []
    assert sink.write(rows, None, batch(spark, 0)).rows == 10
    assert postgres.rows(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(10, 10)]
    assert left_over(postgres) == []


def test_a_twin_with_an_open_transaction_does_not_block_the_sink(spark, postgres, sink_to, table, monkeypatch):
    """The twin's rows are not committed. Its lock prevents a drop of the staging table; a later run drops it."""
    monkeypatch.setattr(dialects, "DROP_WAIT_S", 0.1)
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text TEXT)")
    rows = numbers(spark, 10)
    sink = sink_to()
    sink.prepare(rows.schema)
    check = StagingTable.check_unchanged
    with postgres.connect() as twin:
        twin.autocommit = False

        def and_a_sleeper(staging, *arguments):
            twin.execute(f"INSERT INTO {staging.name} SELECT * FROM {staging.name} WHERE odradek_row >= 0")
            check(staging, *arguments)

        monkeypatch.setattr(StagingTable, "check_unchanged", and_a_sleeper)
        assert sink.write(rows, None, batch(spark, 0)).rows == 10
        assert len(left_over(postgres)) == 1
        twin.commit()
    sink_to().claim(Claim("one", GENERATION))
    assert left_over(postgres) == []
    assert postgres.value(f"SELECT count(*) FROM {table}") == 10


@pytest.mark.parametrize("way", ["row by row", "by halves"])
def test_bad_rows_are_found_among_good_ones(spark, postgres, sink_to, table, way, monkeypatch):
    monkeypatch.setattr(jdbc_sink, "_ROW_BY_ROW_LIMIT", 50 if way == "row by row" else 0)
    postgres.execute(
        f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, text VARCHAR(8) NOT NULL, small SMALLINT CHECK (small >= 0))"
    )
    letters = DeadLetters()
    sink = sink_to(dead_letters=letters)
    rows = spark.range(0, 600, 1, 3).select(
        f.when(f.col("id") == 500, 3).otherwise(f.col("id")).alias("id"),
        f.when(f.col("id") == 100, f.lit(None)).when(f.col("id") == 101, "far too long").otherwise("x").alias("text"),
        f.when(f.col("id") == 599, 99999).when(f.col("id") == 0, -1).otherwise(f.col("id")).cast("int").alias("small"),
    )
    sink.prepare(rows.schema)
    for _ in range(2):
        written = sink.write(rows, None, batch(spark, 0))
        assert (written.rows, written.dead_letters) == (595, 5)
    assert postgres.rows(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(595, 595)]
    assert [json.loads(value) for _, value, _ in letters.records] == [
        {"id": 0, "text": "x", "small": -1},
        {"id": 100, "text": None, "small": 100},
        {"id": 101, "text": "far too long", "small": 101},
        {"id": 3, "text": "x", "small": 500},
        {"id": 599, "text": "x", "small": 99999},
    ]
    said = [headers for _, _, headers in letters.records]
    assert {headers[STAGE] for headers in said} == {b"TASK_PUT"}
    assert {headers[CLASS_NAME] for headers in said} == {f"jdbc {table}".encode()}
    assert {headers[EXCEPTION_CLASS_NAME] for headers in said} == {b"org.postgresql.util.PSQLException"}
    for headers, words in zip(said, ("check", "not-null", "too long", "duplicate key", "out of range"), strict=True):
        assert words in headers[EXCEPTION_MESSAGE].decode()
    assert left_over(postgres) == []


def test_dead_letters_are_written_before_the_rows(spark, postgres, sink_to, table):
    """A crash after the commit would lose them; one before it repeats the batch."""
    postgres.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, text TEXT)")

    class Full(DeadLetters):
        def write(self, dead):
            raise SinkError("no broker", is_retriable=True)

    sink = sink_to(dead_letters=Full())
    rows = numbers(spark, 10).union(numbers(spark, 1))
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match="no broker") as raised:
        sink.write(rows, None, batch(spark, 0))
    assert raised.value.is_retriable
    assert postgres.value(f"SELECT count(*) FROM {table}") == 0
    assert sink_to().write(rows, None, batch(spark, 0)).rows == 10


def test_texts_that_postgresql_cannot_store(spark, postgres, sink_to, table):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, text TEXT)")
    letters = DeadLetters()
    sink = sink_to(dead_letters=letters)
    rows = spark.createDataFrame([(1, "good"), (2, "a\0b"), (3, None), (1, "twice")], "id long, text string").coalesce(
        1
    )
    sink.prepare(rows.schema)
    written = sink.write(rows, None, batch(spark, 0))
    assert (written.rows, written.dead_letters) == (2, 2)
    assert postgres.rows(f"SELECT id, text FROM {table} ORDER BY id") == [(1, "good"), (3, None)]
    assert sorted(json.loads(value)["id"] for _, value, _ in letters.records) == [1, 2]
    strict = sink_to(tolerance="none")
    with pytest.raises(BadRecordError, match=r"0x00.*in row .*\"id\":2"):
        strict.write(rows, None, batch(spark, 1))


def test_without_tolerance_the_error_has_the_row(spark, postgres, sink_to, table):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, text VARCHAR(6))")
    sink = sink_to(tolerance="none")
    rows = numbers(spark, 200)
    sink.prepare(rows.schema)
    with pytest.raises(BadRecordError, match=r'too long.*in row \{"id":100,"text":"row 100"\} \(TASK_PUT in jdbc'):
        sink.write(rows, None, batch(spark, 0))
    assert postgres.value(f"SELECT count(*) FROM {table}") == 0
    assert sink.write(numbers(spark, 100), None, batch(spark, 0)).rows == 100


@pytest.mark.parametrize("dialect", ["on conflict", "merge"])
def test_upsert_keeps_the_last_row_of_a_key(spark, postgres, sink_to, table, dialect, monkeypatch):
    postgres.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, text VARCHAR(9), note TEXT DEFAULT 'kept')")
    letters = DeadLetters()
    sink = sink_to(UPSERT, letters)
    if dialect == "merge":
        monkeypatch.setattr(type(sink._dialect), "make_upsert", Dialect.make_upsert)
    rows = spark.range(0, 1000, 1, 4).select(
        (f.col("id") % 10).alias("id"), f.format_string("row %d", "id").alias("text")
    )
    sink.prepare(rows.schema)
    for _ in range(2):
        assert sink.write(rows, None, batch(spark, 0)).rows == 1000
    expected = [(n, f"row {990 + n}", "kept") for n in range(10)]
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY id") == expected
    # The last row of key 5 is bad, so the one before it is kept.
    rows = spark.createDataFrame(
        [(5, "new"), (5, "newer"), (5, "much too long"), (11, "x"), (None, "no key")], "id long, text string"
    ).coalesce(1)
    written = sink.write(rows, None, batch(spark, 1))
    assert (written.rows, written.dead_letters) == (3, 2)
    expected[5] = (5, "newer", "kept")
    assert postgres.rows(f"SELECT * FROM {table} ORDER BY id") == [*expected, (11, "x", "kept")]
    assert [json.loads(value)["text"] for _, value, _ in letters.records] == ["much too long", "no key"]


def test_every_type_and_every_name(spark, postgres, sink_to, table):
    rows = spark.sql(
        """SELECT 1L AS id, 'ä\\'' AS `a "quoted" name`, true AS flag, 1.5D AS double,
           CAST(2.25 AS DECIMAL(12,2)) AS dec,
           TIMESTAMP'2026-03-29 02:30:00Z' AS at, TIMESTAMP_NTZ'2026-03-29 02:30:00' AS wall, DATE'2026-01-02' AS day,
           BINARY('bytes') AS bytes, CAST(3 AS TINYINT) AS tiny, ARRAY(1, 2) AS many, FLOAT(0.5) AS single"""
    )
    sink = sink_to("auto.create = true\n" + UPSERT)
    sink.prepare(rows.schema)
    sink.write(rows, None, batch(spark, 0))
    [found] = postgres.rows(f"SELECT * FROM {table}")
    assert found[0:4] == (1, "ä'", True, 1.5)
    assert str(found[4]) == "2.25"
    assert found[5].timestamp() == 1774751400
    assert found[6].isoformat() == "2026-03-29T02:30:00"
    assert (found[7].isoformat(), bytes(found[8]), *found[9:]) == ("2026-01-02", b"bytes", 3, [1, 2], 0.5)
    described = postgres.rows(
        f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}' ORDER BY 1"
    )
    assert ('a "quoted" name', "text") in described
    assert ("at", "timestamp with time zone") in described
    assert sink.write(rows, None, batch(spark, 1)).rows == 1
    assert postgres.value(f"SELECT count(*) FROM {table}") == 1


def test_local_times_that_do_not_exist_in_the_zone_of_java(spark, postgres, sink_to, table):
    """In Berlin 02:30 does not exist on the day when summer time begins, but a timestamp without a zone may have it."""
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    letters = DeadLetters()
    wall = "TIMESTAMP_NTZ'2026-03-29 02:30:00.123456'"
    rows = spark.sql(f"SELECT 1L AS id, {wall} AS wall UNION ALL SELECT null, {wall} UNION ALL SELECT 2L, null")
    postgres.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, wall TIMESTAMP)")
    sink = sink_to(dead_letters=letters)
    zones.setDefault(zones.getTimeZone("Europe/Berlin"))
    try:
        sink.prepare(rows.schema)
        assert sink.write(rows, None, batch(spark, 0)) == WrittenCounts(2, 1)
    finally:
        zones.setDefault(before)
    assert postgres.rows(f"SELECT wall::text FROM {table} ORDER BY id") == [("2026-03-29 02:30:00.123456",), (None,)]
    assert [json.loads(value)["wall"] for _, value, _ in letters.records] == ["2026-03-29T02:30:00.123456"]


def test_columns_of_the_databases_own_types(spark, postgres, sink_to, table):
    postgres.execute(
        f"CREATE TYPE mood_{table} AS ENUM ('sad', 'happy')",
        f"CREATE TABLE {table} (id UUID PRIMARY KEY, doc JSONB, mood mood_{table}, address INET, at TIMESTAMP,"
        " number SERIAL, made TIMESTAMPTZ NOT NULL DEFAULT now())",
    )
    letters = DeadLetters()
    sink = sink_to(UPSERT, letters)
    uuid = "0b0b0b0b-0000-4000-8000-00000000000{}"
    rows = spark.createDataFrame(
        [
            (uuid.format(1), '{"a": 1}', "happy", "10.0.0.1"),
            (uuid.format(2), "no json", "sad", "10.0.0.1"),
            (uuid.format(3), "{}", "angry", "10.0.0.1"),
        ],
        "id string, doc string, mood string, address string",
    ).withColumn("at", f.lit("2026-07-01T12:00:00Z").cast("timestamp"))
    sink.prepare(rows.schema)
    written = sink.write(rows, None, batch(spark, 0))
    assert (written.rows, written.dead_letters) == (1, 2)
    [(doc, mood, at)] = postgres.rows(f"SELECT doc, mood::text, at FROM {table}")
    # A TIMESTAMP column gets the time in the session's zone, whatever the zones of Java and the database are.
    assert (doc, mood, at.isoformat()) == ({"a": 1}, "happy", "2026-07-01T12:00:00")


def test_columns_that_do_not_fit(spark, postgres, sink_to, table):
    postgres.execute(
        f"CREATE TABLE {table} (id BIGINT, amount INTEGER, day DATE, ordered TIMESTAMP)",
        f"CREATE TABLE {table}_needy (id BIGINT, who TEXT NOT NULL)",
    )
    for select, message in (
        ("1L id, true AS day", "column day of table .* is date, but the pipeline has boolean, whose values could"),
        ("1L id, array(1) AS amount", "column amount of table .* is int4, but the pipeline has array<int>; cast it"),
        ("1L id, 2 AS amounts", r"has no column amounts \(did you mean amount\?\); add it, set auto.evolve = true"),
        ("1L id, struct(1) AS amount", "column amount: this database has no column type for struct<col1:int>"),
        ("1L id, 2 AS odradek_row", "column odradek_row"),
    ):
        with pytest.raises(SinkError, match=message) as raised:
            sink_to().prepare(spark.sql(f"SELECT {select}").schema)
        assert not raised.value.is_retriable
    for keys, name, message in (
        (UPSERT, table, "cannot be upserted by id: .* it needs a primary key or unique index"),
        (UPSERT.replace("id", "ids"), table, "the rows have no column ids, did you mean id"),
        ("", f"{table}_needy", "needs a value for who, which the pipeline does not have"),
        ("", f"{table}_nowhere", f"table {table}_nowhere does not exist; create it, or set auto.create = true"),
    ):
        with pytest.raises(SinkError, match=message):
            sink_to(keys, table=name).prepare(spark.sql("SELECT 1L AS id").schema)
    assert left_over(postgres) == []


def test_values_that_the_table_would_change(spark, postgres, sink_to, table):
    """Each value would silently be rounded or truncated; a cast in SQL or in the sink permits it."""
    postgres.execute(
        f"CREATE TABLE {table} (id BIGINT, price NUMERIC(10,2), free NUMERIC, tens NUMERIC(4,-3), short REAL,"
        " long FLOAT8, whole INT, day DATE, at TIMESTAMP(0), moment TIMESTAMPTZ(3), hour TIME, few REAL[], sum MONEY,"
        " tag VARCHAR(3))"
    )
    for select, of, helps in (
        ("1.239 AS price", r"price of .* is numeric\(10,2\), .* decimal\(4,3\)", r"CAST\(price AS DECIMAL\(10,2\)\)"),
        ("0.1D AS price", r"price of .* is numeric\(10,2\), .* double", r"CAST\(price AS DECIMAL\(10,2\)\)"),
        ("0.1D AS free", "free of .* is numeric, .* double", r"CAST\(free AS DECIMAL\(38,18\)\)"),
        ("1234 AS tens", r"tens of .* is numeric\(4,-3\), .* int", "cast = "),
        ("0.1D AS short", "short of .* is float4, .* double", r"CAST\(short AS FLOAT\)"),
        ("1L AS long", "long of .* is float8, .* bigint", r"CAST\(long AS DOUBLE\)"),
        ("1.5D AS whole", "whole of .* is int4, .* double", r"CAST\(whole AS INT\)"),
        ("'1' AS whole", "whole of .* is int4, .* string", r"CAST\(whole AS INT\)"),
        ("now() AS day", "day of .* is date, .* timestamp", r"CAST\(day AS DATE\)"),
        ("now() AS at", r"at of .* is timestamp\(0\), .* timestamp", 'cast = "at" in'),
        ("now() AS moment", r"moment of .* is timestamptz\(3\), .* timestamp", 'cast = "moment" in'),
        ("now() AS hour", "hour of .* is time, .* timestamp", 'cast = "hour" in'),
        ("array(0.1D) AS few", "few of .* is _float4, .* array<double>", 'cast = "few" in'),
        ("1.239 AS sum", r"sum of .* is money\(17,2\), .* decimal\(4,3\)", "CAST"),
    ):
        rows = spark.sql(f"SELECT 1L AS id, {select}")
        message = f"column {of}, whose values could change; (write|set) .*{helps}"
        with pytest.raises(SinkError, match=message) as raised:
            sink_to().prepare(rows.schema)
        assert not raised.value.is_retriable
    assert left_over(postgres) == []
    fits = """SELECT 1L AS id, CAST(1.239 AS DECIMAL(10,2)) AS price, CAST(2 AS DECIMAL(38,18)) AS free,
        CAST(0.1D AS FLOAT) AS short, 16777217 AS long, CAST(1.5D AS INT) AS whole, DATE'2026-01-02' AS day,
        TIMESTAMP'2026-01-02 03:04:05.6Z' AS at, array(CAST(0.5D AS FLOAT)) AS few, 'a  ' AS tag"""
    letters = DeadLetters()
    sink = sink_to('cast = "At"', letters)
    rows = spark.sql(fits).union(spark.sql(fits.replace("'a  '", "'ab  '"))).coalesce(1)
    sink.prepare(rows.schema)
    # Trailing spaces of a text that is too long are not truncated either.
    assert sink.write(rows, None, batch(spark, 0)) == WrittenCounts(1, 1)
    assert [json.loads(value)["tag"] for _, value, _ in letters.records] == ["ab  "]
    [found] = postgres.rows(f"SELECT price, free, short, long, whole, day::text, at::text, few, tag FROM {table}")
    assert (str(found[0]), *found[1:5]) == ("1.24", 2, pytest.approx(0.1), 16777217.0, 1)
    assert found[5:] == ("2026-01-02", "2026-01-02 03:04:06", [0.5], "a  ")


def test_rows_without_a_key_replace_none(spark, postgres, sink_to, table):
    """A unique index permits any number of nulls, so each batch would insert such rows again."""
    postgres.execute(f"CREATE TABLE {table} (id BIGINT UNIQUE, text TEXT)")
    letters = DeadLetters()
    sink = sink_to(UPSERT, letters)
    rows = spark.createDataFrame([(1, "a"), (None, "b"), (2, "c"), (None, "d")], "id long, text string").coalesce(1)
    sink.prepare(rows.schema)
    for number in (0, 1):
        assert sink.write(rows, None, batch(spark, number)) == WrittenCounts(2, 2)
    assert postgres.rows(f"SELECT id, text FROM {table} ORDER BY id") == [(1, "a"), (2, "c")]
    assert [json.loads(value)["text"] for _, value, _ in letters.records] == ["b", "d"] * 2
    why = letters.records[0][2][EXCEPTION_MESSAGE]
    assert why is not None and b"a row without key cannot be upserted" in why
    with pytest.raises(BadRecordError, match=r'null in pk.fields id.*in row \{"id":null,"text":"b"\}'):
        sink_to(UPSERT, tolerance="none").write(rows, None, batch(spark, 2))


def test_unique_indexes_as_drivers_report_them(spark, postgres, sink_to, table, tmp_path, monkeypatch):
    postgres.execute(
        f'CREATE TABLE {table} (id BIGINT UNIQUE, "Big" INT, text TEXT, n SERIAL PRIMARY KEY)',
        f'CREATE UNIQUE INDEX {table}_two ON {table} ("Big", id)',
        f"CREATE UNIQUE INDEX {table}_some ON {table} (text) WHERE id > 0",
        f"CREATE UNIQUE INDEX {table}_made ON {table} (lower(text))",
        f"CREATE INDEX {table}_none ON {table} (text)",
    )
    database = Database(spark, postgres.jdbc_url, postgres.user, postgres.password)
    with database.connect() as connection:
        found = {index.name.removeprefix(table): index for index in connection.query_unique_indexes(f"public.{table}")}
        assert [column.is_generated for column in connection.query_columns(f"SELECT * FROM {table}")] == [False] * 3 + [
            True
        ]
        assert [column.is_nullable for column in connection.query_columns(f"SELECT * FROM {table}")] == [True] * 3 + [
            False
        ]
    whole = {name: index.columns for name, index in found.items() if index.is_complete and name != "_made"}
    assert whole == {"_id_key": ("id",), "_pkey": ("n",), "_two": ("Big", "id")}
    assert not found["_some"].is_complete and found["_made"].columns != ("text",)
    # As in a database whose upsert uses any of them.
    monkeypatch.setattr(PostgreSQL, "replaces_by_any_index", True)
    schema = spark.sql("SELECT 1L AS id, 'x' AS text").schema
    with pytest.raises(SinkError, match=r"unique index .* it could replace rows with other keys"):
        sink_to(UPSERT).prepare(schema)
    postgres.execute(f"DROP INDEX {table}_some, {table}_made")
    sink_to(UPSERT).prepare(schema)
    with pytest.raises(SinkError, match="cannot be upserted by text: it needs a primary key or unique index"):
        sink_to(UPSERT.replace("id", "text")).prepare(schema)

    with closing(sqlite3.connect(tmp_path / "shop.db")) as sqlite:
        sqlite.execute("CREATE TABLE sales (id INT UNIQUE, text TEXT)")
        sqlite.execute("CREATE UNIQUE INDEX two ON sales (text, id)")
        sqlite.commit()
    with Database(spark, f"jdbc:sqlite:{tmp_path / 'shop.db'}", None, None).connect() as connection:
        assert {index.columns for index in connection.query_unique_indexes("sales")} == {("id",), ("text", "id")}


def test_a_table_grows_with_the_pipeline(spark, postgres, sink_to, table):
    postgres.execute(f"CREATE SCHEMA s_{table}")
    name = f"s_{table}.grows"
    first = spark.sql("SELECT 1L AS id")
    sink_to("auto.create = true", table=name).write(first, None, batch(spark, 0))
    sink = sink_to("auto.evolve = true", table=name)
    sink.write(spark.sql("SELECT 2L AS id, 'new' AS note"), None, batch(spark, 1))
    assert postgres.rows(f"SELECT id, note FROM {name} ORDER BY id") == [(1, None), (2, "new")]
    assert postgres.rows(f"SELECT pipeline, target, batch FROM s_{table}.pipeline_batches") == [("orders", name, 1)]


def test_a_batch_without_rows(spark, postgres, sink_to, table):
    sink = sink_to("auto.create = true")
    empty = spark.createDataFrame([], "id long, text string")
    sink.prepare(empty.schema)
    for _ in range(2):
        assert sink.write(empty, None, batch(spark, 0)).rows == 0
    assert postgres.value(f"SELECT batch FROM pipeline_batches WHERE target = '{table}'") == 0


def test_a_database_that_cannot_be_reached(spark, postgres, tmp_path):
    def said(url, user="shop", password=postgres.password):
        text = f'connector = "jdbc"\nconnection.url = "{url}"\nconnection.user = "{user}"\ntable.name.format = "t"\n'
        sink = sink_for(pipeline_of(f'{text}connection.password = "{password}"', tmp_path), spark)
        with pytest.raises(SinkError) as raised:
            sink.prepare(spark.range(1).schema)
        assert postgres.password not in str(raised.value)
        return str(raised.value), raised.value.is_retriable

    message, is_retriable = said("jdbc:postgresql://127.0.0.1:1/shop?password=secret%20word&x=1")
    assert is_retriable
    assert "jdbc:postgresql://127.0.0.1:1/shop?password=[hidden]&x=1 cannot be reached" in message
    assert "secret" not in message
    message, is_retriable = said(postgres.jdbc_url, password="wrong")
    assert not is_retriable
    assert "rejects connection.user and connection.password" in message
    assert said(postgres.jdbc_url.replace("/shop", "/nowhere"))[1] is False
    with pytest.raises(SinkError, match="no JDBC driver accepts jdbc:nosuch:x: put the driver's jar and those of"):
        said("jdbc:nosuch:x")


def test_a_database_that_stops_and_starts_again(spark, sink_to, tmp_path):
    """Down before the batch, and killed while it is staged: the same call succeeds when it runs again."""
    from spark_it.tests.postgres import PostgreSQL

    with PostgreSQL() as own:
        text = f'connector = "jdbc"\nconnection.url = "{own.jdbc_url}"\nconnection.user = "{own.user}"\n'
        text += f'connection.password = "{own.password}"\ntable.name.format = "t"\nauto.create = true'
        sink = sink_for(pipeline_of(text, tmp_path), spark)
        rows = numbers(spark, 100)
        sink.prepare(rows.schema)
        own.kill()
        with pytest.raises(SinkError, match="cannot be reached") as raised:
            sink.write(rows, None, batch(spark, 0))
        assert raised.value.is_retriable
        own.start()

        assert sink.write(rows, None, batch(spark, 0)).rows == 100
        fill = StagingTable.fill

        def and_dies(staging, *arguments):
            fill(staging, *arguments)
            own.kill()
            own.start()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StagingTable, "fill", and_dies)
            with pytest.raises(SinkError) as raised:
                sink.write(rows, None, batch(spark, 1))
            assert raised.value.is_retriable, str(raised.value)
        assert own.value("SELECT count(*) FROM t") == 100
        assert sink.write(numbers(spark, 100, 100), None, batch(spark, 1)).rows == 100
        assert own.rows("SELECT count(*), count(DISTINCT id) FROM t") == [(200, 200)]


def test_sqlite(spark, tmp_path):
    """A database without SQLSTATE, with one writer at a time, and with column types that restrict no values."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, text TEXT CHECK (length(text) < 9))")
        database.commit()
    keys = f'connector = "jdbc"\nconnection.url = "jdbc:sqlite:{file}"\n'
    letters = DeadLetters()
    upsert = sink_for(pipeline_of(f'{keys}table.name.format = "sales"\n{UPSERT}', tmp_path), spark, letters)
    rows = spark.range(0, 1000, 1, 4).select(
        (f.col("id") % 10).alias("id"), f.format_string("row %d", "id").alias("text")
    )
    upsert.prepare(rows.schema)
    for _ in range(2):
        assert upsert.write(rows, None, batch(spark, 0)).rows == 1000
    rows = spark.createDataFrame([(3, "new"), (11, "much too long"), (12, "x")], "id long, text string")
    assert upsert.write(rows, None, batch(spark, 1)) == WrittenCounts(2, 1)
    assert [json.loads(value) for _, value, _ in letters.records] == [{"id": 11, "text": "much too long"}]
    text = f'{keys}table.name.format = "made"\nauto.create = true\nauto.evolve = true'
    insert = sink_for(pipeline_of(text, tmp_path), spark)
    for number, frame in enumerate([numbers(spark, 500), numbers(spark, 500, 500).withColumn("more", f.lit(1.5))]):
        insert.prepare(frame.schema)
        for _ in range(2):
            assert insert.write(frame, None, batch(spark, number)).rows == 500
    with closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT id, text FROM sales ORDER BY id").fetchall()
        assert found == [(n, "new" if n == 3 else f"row {990 + n}") for n in range(10)] + [(12, "x")]
        [found] = database.execute("SELECT count(*), count(DISTINCT id), sum(more) FROM made").fetchall()
        assert found == (1000, 1000, 750.0)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1").fetchall()
        assert tables == [("made",), ("pipeline_batches",), ("sales",)]

    # The driver keeps milliseconds, numeric columns keep 15 digits; columns of text keep all.
    text = f'{keys}table.name.format = "exact"\nauto.create = true'
    much = "CAST('12345678901234567890.123456789' AS DECIMAL(38,9)) AS much"
    frame = spark.sql(f"SELECT {much}, 0.1 AS less, now() AS at")
    with pytest.raises(SinkError, match=r"column at: .* milliseconds, .* write unix_micros\(at\) or CAST"):
        sink_for(pipeline_of(text, tmp_path), spark).prepare(frame.schema)
    exact = sink_for(pipeline_of(text + '\ncast = "at"', tmp_path), spark)
    assert exact.write(frame, None, batch(spark, 0)).rows == 1
    with closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT much, less FROM exact").fetchall()
        assert found == [("12345678901234567890.123456789", 0.1)]
        database.execute("CREATE TABLE rough (much DECIMAL(38,9), code INTEGER)")
        database.commit()
    rough = sink_for(pipeline_of(f'{keys}table.name.format = "rough"', tmp_path), spark)
    for select, message in (
        ("CAST(1 AS DECIMAL(38,9)) AS much", r'much of table rough is DECIMAL\(38,9\), .* set cast = "much"'),
        ("'007' AS code", r"code of table rough is INTEGER, .* string, .* write CAST\(code AS INT\)"),
    ):
        with pytest.raises(SinkError, match=message):
            rough.prepare(spark.sql(f"SELECT {select}").schema)
