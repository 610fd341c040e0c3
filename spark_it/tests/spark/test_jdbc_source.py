"""Tables of a real PostgreSQL as sources of real streams."""

import threading

import pytest

from compat_tests import limits
from odradek.spark_it.definition.reader import parse
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.sources import jdbc as jdbc_source
from odradek.spark_it.sources.connectors import make_stream
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.lock import get_checkpoint_folder, make_lock, read_lock, write_lock
from spark_it.tests.spark.engine import Engine

INCREMENTING = 'incrementing.column.name = "id"'
TIMESTAMP = 'mode = "timestamp"\ntimestamp.column.name = "at"\npk.fields = "id"'
WAIT_S = limits.TOOL_S


@pytest.fixture
def table(unique):
    return unique.replace("-", "_").lower()[-50:]


class Streamed:
    """The only source of a pipeline, run as the runner does. `batches` has the rows of each batch."""

    def __init__(self, spark, folder, source, trigger="available-now", generation=29_000_000, home="pipelines"):
        text = f'name = "p"\nhome = "{home}"\ntrigger = "{trigger}"\n[source.t]\nconnector = "jdbc"\n{source}\n'
        self.pipeline = parse(text + '[sink]\nconnector = "console"\n', {}, file="p.toml", folder=folder)
        self.spark = spark
        self.batches = []
        self.came = threading.Condition()
        lock = read_lock(self.pipeline.state_folder)
        if lock is None:
            lock = make_lock(self.pipeline, None, generation)
            write_lock(self.pipeline.state_folder, lock)
        self.folder = get_checkpoint_folder(self.pipeline.state_folder, lock)

    def start(self):
        self.stream = make_stream("t", self.pipeline)
        rows = self.stream.decode(self.stream.read_stream(self.spark, None)).select("row.*", "value")
        writer = rows.writeStream.queryName("p").foreachBatch(self._took).option("checkpointLocation", str(self.folder))
        trigger_ms = self.pipeline.settings.trigger_ms
        every = {"availableNow": True} if trigger_ms is None else {"processingTime": f"{trigger_ms} milliseconds"}
        query = writer.trigger(**every).start()
        self.stream.start_background_work(query)
        return query

    def _took(self, frame, number):
        with self.came:
            self.batches.append((number, frame.collect()))
            self.came.notify_all()

    def until(self, count):
        with self.came:
            assert self.came.wait_for(lambda: len(self.ids()) >= count, WAIT_S), self.batches

    def run(self):
        """Read everything available. Return the ids of this run, and the number of its batches."""
        self.batches.clear()
        query = self.start()
        assert query.awaitTermination(WAIT_S)
        return self.ids(), len(self.batches)

    def ids(self):
        return sorted(row.id for _, rows in self.batches for row in rows)


@pytest.fixture
def streamed(spark, postgres, tmp_path, table):
    def made(keys=INCREMENTING, what=None, **options):
        text = f"""connection.url = "{postgres.jdbc_url}"
connection.user = "{postgres.user}"
connection.password = "{postgres.password}"
{what or f'table.whitelist = "{table}"'}
{keys}"""
        return Streamed(spark, tmp_path, text, **options)

    return made


def test_rows_are_read_once_and_a_repeated_batch_has_the_same_rows(postgres, streamed, table):
    postgres.execute(
        f'CREATE TABLE {table} ("id" BIGINT, text TEXT)',
        f"INSERT INTO {table} SELECT n, 'row ' || n FROM generate_series(1, 2500) n",
        f"INSERT INTO {table} VALUES (NULL, 'never')",
    )
    pipe = streamed(INCREMENTING + "\nbatch.max.rows = 1000")
    assert pipe.run() == (list(range(1, 2501)), 3)
    assert pipe.batches[0][1][0].value == b'{"id":1,"text":"row 1"}'
    assert pipe.run() == ([], 0)
    postgres.execute(f"INSERT INTO {table} SELECT n, 'row ' || n FROM generate_series(2501, 2600) n")
    assert pipe.run() == (list(range(2501, 2601)), 1)
    [(number, rows)] = pipe.batches
    # The rows of the table have changed; those of the batch have not.
    checkpoint.rewind(pipe.folder)
    postgres.execute(f"UPDATE {table} SET text = 'changed'", f"INSERT INTO {table} VALUES (2550, 'late')")
    pipe.run()
    assert [(again, sorted(found)) for again, found in pipe.batches] == [(number, sorted(rows))]


def test_a_new_generation_and_a_lost_checkpoint_start_over(postgres, streamed, table):
    postgres.execute(f"CREATE TABLE {table} (id INT)", f"INSERT INTO {table} VALUES (1), (2)")
    pipe = streamed()
    assert pipe.run()[0] == [1, 2]
    for path in pipe.folder.rglob("*"):
        if path.is_file():
            path.unlink()
    assert pipe.run()[0] == [1, 2]
    write_lock(pipe.pipeline.state_folder, make_lock(pipe.pipeline, None, 29_000_001))
    pipe = streamed()
    assert pipe.run()[0] == [1, 2]
    assert [path.name for path in (pipe.pipeline.state_folder / "source" / "t").iterdir()] == ["29000001"]


def test_rows_of_one_time_are_in_one_batch(postgres, streamed, table):
    postgres.execute(
        f"CREATE TABLE {table} (id INT, at TIMESTAMPTZ)",
        f"INSERT INTO {table} SELECT n, '2026-01-01 00:00:00.123456+00'::timestamptz + (n / 30) * interval '1 us'"
        " FROM generate_series(0, 99) n",
    )
    pipe = streamed(TIMESTAMP + "\nbatch.max.rows = 10")
    assert pipe.run() == (list(range(100)), 4)
    assert pipe.run() == ([], 0)


@pytest.mark.parametrize("type_", ["TIMESTAMP", "TIMESTAMPTZ"])
def test_rows_that_commit_late_are_read_within_the_overlap(postgres, streamed, table, type_):
    def insert(*rows):
        postgres.execute(*(f"INSERT INTO {table} VALUES ({n}, '2026-01-01 00:{at}+00')" for n, at in rows))

    postgres.execute(f"CREATE TABLE {table} (id INT, at {type_})")
    pipe = streamed(TIMESTAMP + '\noverlap = "10 minutes"')
    insert((1, "30:00"), (2, "31:00"), (3, "40:00"))
    assert pipe.run()[0] == [1, 2, 3]
    insert((4, "29:59"), (5, "30:00.5"), (6, "39:00"))
    assert pipe.run()[0] == [5, 6]
    assert pipe.run()[0] == []
    insert((7, "45:00"))
    assert pipe.run()[0] == [7]
    insert((8, "36:00"), (9, "34:00"))
    postgres.execute(f"UPDATE {table} SET at = at + interval '6 minutes' WHERE id = 6")
    assert pipe.run()[0] == [6, 8]
    assert pipe.run()[0] == []


def test_numbers_that_commit_late(postgres, streamed, table):
    postgres.execute(f"CREATE TABLE {table} (id NUMERIC(20), tag TEXT)", f"INSERT INTO {table} VALUES (100, 'a')")
    pipe = streamed(INCREMENTING + '\noverlap = "10"\npk.fields = "id,tag"')
    assert pipe.run()[0] == [100]
    postgres.execute(f"INSERT INTO {table} VALUES (90, 'x'), (91, 'b'), (100, 'b'), (101, 'c')")
    assert pipe.run()[0] == [91, 100, 101]
    assert pipe.run()[0] == []


@pytest.mark.parametrize(
    ("type_", "overlap"), [("TIMESTAMP", ""), ("TIMESTAMPTZ", 'overlap = "2 days"'), ("DATE", 'overlap = "1 ms"')]
)
def test_times_that_cannot_be_ordered_are_skipped(postgres, streamed, table, type_, overlap, caplog):
    def insert(*rows):
        postgres.execute(*(f"INSERT INTO {table} VALUES ({n}, {at})" for n, at in rows))

    postgres.execute(f"CREATE TABLE {table} (id INT, at {type_})")
    pipe = streamed(f"{TIMESTAMP}\n{overlap}\nbatch.max.rows = 1")
    endless = ["NULL", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'9999-12-31'"]
    endless.append("'5874897-12-31'" if type_ == "DATE" else "'294276-12-31'")
    insert(*enumerate(endless, 100))
    assert pipe.run()[0] == []
    insert((1, "'0001-01-02'"), (2, "'2026-01-01'"), (3, "'2026-01-02'"))
    assert pipe.run()[0] == [1, 2, 3]
    insert((4, "'2026-01-03'"), (106, "'infinity'"))
    assert pipe.run()[0] == [4]
    assert pipe.run()[0] == []
    why = "skipped, where at is null, infinite, before the year 1, or 9999-12-31 or later"
    assert f"source t: 6 rows are {why}" in caplog.text and f"source t: 7 rows are {why}" in caplog.text


@pytest.mark.parametrize("type_", ["NUMERIC", "DOUBLE PRECISION"])
def test_numbers_that_cannot_be_ordered_are_skipped(postgres, streamed, table, type_, caplog):
    postgres.execute(
        f"CREATE TABLE {table} (id {type_})",
        f"INSERT INTO {table} VALUES (1), ('NaN'), (NULL), ('Infinity'), ('-Infinity')",
    )
    pipe = streamed()
    assert pipe.run()[0] == [1]
    postgres.execute(f"INSERT INTO {table} VALUES (2.5), ('NaN')")
    assert pipe.run()[0] == [2.5]
    assert "source t: 5 rows are skipped, where id is null, NaN or infinite" in caplog.text


def test_an_overlap_of_large_numbers_is_exact(postgres, streamed, table):
    high = 12345678901234567890123456789012345678
    postgres.execute(f"CREATE TABLE {table} (id NUMERIC(38))", f"INSERT INTO {table} VALUES ({high})")
    pipe = streamed(INCREMENTING + '\noverlap = "10"\npk.fields = "id"')
    assert pipe.run()[0] == [high]
    postgres.execute(f"INSERT INTO {table} VALUES ({high - 10}), ({high - 9}), ({high + 1})")
    assert pipe.run()[0] == [high - 9, high + 1]


def test_a_query_and_times_without_a_zone(postgres, streamed, table):
    postgres.execute(
        f'CREATE TABLE {table} ("Id" INT, wall TIMESTAMP, moment TIMESTAMPTZ, day DATE)',
        f"INSERT INTO {table} VALUES (1, '2026-03-29 02:30', '2026-03-29 02:30+00', '2026-03-29')",
        f"INSERT INTO {table} VALUES (2, NULL, NULL, NULL)",
    )
    query = f'query = """SELECT "Id" AS id, wall, moment, day FROM {table} WHERE "Id" < 2"""'
    pipe = streamed(what=query)
    assert pipe.run()[0] == [1]
    [(_, [row])] = pipe.batches
    # Both are in the session's zone, UTC, whatever that of the database is.
    assert row.value == (
        b'{"id":1,"wall":"2026-03-29T02:30:00.000000Z","moment":"2026-03-29T02:30:00.000000Z","day":"2026-03-29"}'
    )


def test_rows_that_are_inserted_while_the_query_runs(postgres, streamed, table, caplog):
    postgres.execute(f"CREATE TABLE {table} (id INT)", f"INSERT INTO {table} VALUES (1), (2)")
    pipe = streamed(trigger="100 ms")
    query = pipe.start()
    try:
        pipe.until(2)
        postgres.execute(f"INSERT INTO {table} VALUES (3)")
        pipe.until(3)
        postgres.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
        poller = pipe.stream._poller
        for _ in range(600):
            if caplog.records:
                break
            poller._ended.wait(0.1)
        assert "does not exist; retrying" in caplog.text
        postgres.execute(f"INSERT INTO {table}_away VALUES (4)", f"ALTER TABLE {table}_away RENAME TO {table}")
        pipe.until(4)
    finally:
        query.stop()
    poller.join(WAIT_S)
    assert not poller.is_alive()
    assert pipe.ids() == [1, 2, 3, 4]


def test_polls_wait_for_the_query_and_are_deleted_when_they_are_read(postgres, streamed, table, monkeypatch):
    monkeypatch.setattr(jdbc_source, "RETAINED_POLLS", 2)
    postgres.execute(f"CREATE TABLE {table} (id INT)", f"INSERT INTO {table} SELECT generate_series(1, 12)")
    pipe = streamed(INCREMENTING + "\nbatch.max.rows = 1", trigger="100 ms", home="../a b%20c")
    query = pipe.start()
    try:
        pipe.until(12)
        postgres.execute(f"INSERT INTO {table} VALUES (13), (14)")
        pipe.until(14)
    finally:
        query.stop()
        pipe.stream.close()
    assert pipe.ids() == list(range(1, 15))
    assert [len(rows) for _, rows in pipe.batches] == [1] * 14
    kept = sorted(int(path.stem) for path in pipe.stream._spool.rows.iterdir())
    assert kept[0] >= 8
    assert kept[-1] == 13


def test_times_in_other_columns(postgres, streamed, table):
    """Columns other than the one that orders the rows."""
    postgres.execute(
        f"CREATE TABLE {table} (id INT, wall TIMESTAMP, moment TIMESTAMPTZ, day DATE)",
        f"INSERT INTO {table} VALUES (1, NULL, 'infinity', 'infinity')",
    )
    pipe = streamed()
    assert pipe.run()[0] == [1]
    [(_, [row])] = pipe.batches
    assert row.value == b'{"id":1,"moment":"9999-12-31T23:59:59.999000Z","day":"9999-12-31"}'
    postgres.execute(f"INSERT INTO {table} VALUES (2, 'infinity')")
    with pytest.raises(SourceError, match=r"source t: rows cannot be read: .*long overflow"):
        pipe.start()


def test_tables_that_cannot_be_read(postgres, streamed, table):
    postgres.execute(f"CREATE TABLE {table} (id INT, at TIMESTAMP)")
    for keys, what, message in (
        ('incrementing.column.name = "ids"', None, "source t: the table has no column ids, did you mean id"),
        (
            'incrementing.column.name = "at"',
            None,
            "column at is timestamp_ntz, which mode incrementing does not support",
        ),
        (TIMESTAMP.replace('"at"', '"id"'), None, "column id is int, which mode timestamp does not support"),
        (INCREMENTING, 'table.whitelist = "nowhere"', "source t: database jdbc:postgresql:.*nowhere.* does not exist"),
    ):
        with pytest.raises(SourceError, match=message):
            streamed(keys, what).start()
    pipe = streamed()
    text = 'incrementing.column.name = "id"\ntable.whitelist = "t"\nconnection.url = "jdbc:postgresql://127.0.0.1:1/x"'
    with pytest.raises(SourceError, match=r"source t: database jdbc:postgresql://127.0.0.1:1/x cannot be reached"):
        Streamed(pipe.spark, pipe.pipeline.folder, text).start()


def test_a_restart_of_the_query_ends_its_poller(spark, broker, postgres, tmp_path, unique, table):
    """The runner restarts a query whose broker is unavailable. A failed batch is repeated unchanged: it is one poll."""
    postgres.execute(f"CREATE TABLE {table} (id INT)", f"INSERT INTO {table} SELECT generate_series(1, 20)")
    engine = Engine(spark, broker.bootstrap_servers, tmp_path, unique)
    away = RuntimeError("org.apache.kafka.common.errors.TimeoutException: the topic of another source")
    engine.kept.failures += [away, away]
    stop, pollers = threading.Event(), set()

    def during(batch):
        pollers.add(tuple(thread for thread in threading.enumerate() if thread.name == "poll t"))
        if batch == 3:
            engine.kept.failures.append(away)
        if batch == 15:
            stop.set()

    engine.kept.during = during
    source = f"""[source.t]
connector = "jdbc"
connection.url = "{postgres.jdbc_url}"
connection.user = "{postgres.user}"
connection.password = "{postgres.password}"
table.whitelist = "{table}"
incrementing.column.name = "id"
batch.max.rows = 1
[errors]
retry.delay.max.ms = 10
"""
    engine.run('trigger = "50 milliseconds"\n' + source, now=False, stop=stop)
    assert sum("retrying in" in line for line in engine.said) == 3
    assert [row.id for row in engine.kept.rows] == list(range(1, 17))
    assert [number for number, _ in engine.kept.batches] == list(range(16))
    # Each run of the query that wrote a batch had one poller, and none is left.
    assert all(len(alive) == 1 for alive in pollers) and len(pollers) == 2
    assert not any(thread.name == "poll t" for thread in threading.enumerate())
