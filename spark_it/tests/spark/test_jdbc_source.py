"""Tables of a real PostgreSQL as sources of real streams."""

import threading

import pyarrow as pa
import pytest

from odradek.spark_it import checkpoint
from odradek.spark_it.lock import checkpoint_folder, lock_of, read_lock, write_lock
from odradek.spark_it.sources import SourceError, stream_of
from odradek.spark_it.sources import jdbc as jdbc_source
from odradek.spark_it.sources.jdbc_spool import Spool
from odradek.spark_it.spec_reader import parse

INCREMENTING = 'incrementing.column.name = "id"'
TIMESTAMP = 'mode = "timestamp"\ntimestamp.column.name = "at"\npk.fields = "id"'
WAIT_S = 60


@pytest.fixture
def table(unique):
    return unique.replace("-", "_").lower()[-50:]


class Streamed:
    """A pipeline's only source, run like the runner does: `batches` has the rows that each batch gave."""

    def __init__(self, spark, folder, source, trigger="available-now", generation=29_000_000):
        text = f'name = "p"\ntrigger = "{trigger}"\n[source.t]\nconnector = "jdbc"\n{source}\n'
        self.pipeline = parse(text + '[sink]\nconnector = "console"\n', {}, file="p.toml", folder=folder)
        self.spark = spark
        self.batches = []
        self.came = threading.Condition()
        if read_lock(self.pipeline.state_folder) is None:
            write_lock(self.pipeline.state_folder, lock_of(self.pipeline, None, generation))
        self.folder = checkpoint_folder(self.pipeline.state_folder, read_lock(self.pipeline.state_folder))

    def start(self):
        self.stream = stream_of("t", self.pipeline)
        rows = self.stream.decoded(self.stream.raw(self.spark, None)).select("row.*", "value")
        writer = rows.writeStream.queryName("p").foreachBatch(self._took).option("checkpointLocation", str(self.folder))
        trigger_ms = self.pipeline.settings.trigger_ms
        every = {"availableNow": True} if trigger_ms is None else {"processingTime": f"{trigger_ms} milliseconds"}
        return writer.trigger(**every).start()

    def _took(self, frame, number):
        with self.came:
            self.batches.append((number, frame.collect()))
            self.came.notify_all()

    def until(self, count):
        with self.came:
            assert self.came.wait_for(lambda: len(self.ids()) >= count, WAIT_S), self.batches

    def run(self):
        """Takes what there is; returns the ids of this run, and how many batches they came in."""
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


def test_rows_come_once_in_batches_and_the_same_when_repeated(postgres, streamed, table):
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
    # The rows are others by now, and more; the batch is not.
    checkpoint.rewind(pipe.folder)
    postgres.execute(f"UPDATE {table} SET text = 'changed'", f"INSERT INTO {table} VALUES (2550, 'late')")
    pipe.run()
    assert [(again, sorted(found)) for again, found in pipe.batches] == [(number, sorted(rows))]


def test_a_new_generation_and_a_lost_checkpoint_begin_anew(postgres, streamed, table):
    postgres.execute(f"CREATE TABLE {table} (id INT)", f"INSERT INTO {table} VALUES (1), (2)")
    pipe = streamed()
    assert pipe.run()[0] == [1, 2]
    for path in pipe.folder.rglob("*"):
        if path.is_file():
            path.unlink()
    assert pipe.run()[0] == [1, 2]
    write_lock(pipe.pipeline.state_folder, lock_of(pipe.pipeline, None, 29_000_001))
    pipe = streamed()
    assert pipe.run()[0] == [1, 2]
    assert [path.name for path in (pipe.pipeline.state_folder / "source" / "t").iterdir()] == ["29000001"]


def test_rows_of_one_time_come_together(postgres, streamed, table):
    postgres.execute(
        f"CREATE TABLE {table} (id INT, at TIMESTAMPTZ)",
        f"INSERT INTO {table} SELECT n, '2026-01-01 00:00:00.123456+00'::timestamptz + (n / 30) * interval '1 us'"
        " FROM generate_series(0, 99) n",
    )
    pipe = streamed(TIMESTAMP + "\nbatch.max.rows = 10")
    assert pipe.run() == (list(range(100)), 4)
    assert pipe.run() == ([], 0)


@pytest.mark.parametrize("type_", ["TIMESTAMP", "TIMESTAMPTZ"])
def test_rows_that_commit_late_come_within_the_overlap(postgres, streamed, table, type_):
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


def test_rows_that_come_while_it_runs(postgres, streamed, table, caplog):
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
        assert "does not exist; it is tried again" in caplog.text
        postgres.execute(f"INSERT INTO {table}_away VALUES (4)", f"ALTER TABLE {table}_away RENAME TO {table}")
        pipe.until(4)
    finally:
        query.stop()
    poller.join(WAIT_S)
    assert not poller.is_alive()
    assert pipe.ids() == [1, 2, 3, 4]


def test_polls_are_put_by_no_faster_than_they_are_taken_and_deleted_when_they_are(
    postgres, streamed, table, monkeypatch
):
    monkeypatch.setattr(jdbc_source, "KEPT", 2)
    postgres.execute(f"CREATE TABLE {table} (id INT)", f"INSERT INTO {table} SELECT generate_series(1, 12)")
    pipe = streamed(INCREMENTING + "\nbatch.max.rows = 1", trigger="100 ms")
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
    kept = sorted(int(path.stem) for path in pipe.stream._spool().rows.iterdir())
    assert kept[0] >= 8
    assert kept[-1] == 13


def event(spool, taken):
    """Of a query that has come so far."""
    return {"sources": [{"description": f"FileStreamSource[file:{spool.rows}]", "endOffset": {"logOffset": taken}}]}


def test_what_an_earlier_run_has_put_by_is_not_deleted_before_it_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(jdbc_source, "KEPT", 1)
    spool = Spool(tmp_path)
    for number in range(10):
        spool.add(pa.table({"id": [number]}), {"end": str(number)})
    poller = jdbc_source._Poller(None, spool, None, "p", 0.1)
    for taken, first in ((0, 0), (3, 2), (9, 8)):
        poller._tidy(event(spool, taken))
        assert min(int(path.stem) for path in spool.rows.iterdir()) == first
    poller._tidy(None)


def test_what_cannot_be_read(postgres, streamed, table):
    postgres.execute(f"CREATE TABLE {table} (id INT, at TIMESTAMP)")
    for keys, what, message in (
        ('incrementing.column.name = "ids"', None, "source t: the table has no column ids, did you mean id"),
        ('incrementing.column.name = "at"', None, "column at is timestamp_ntz, which mode incrementing cannot go by"),
        (TIMESTAMP.replace('"at"', '"id"'), None, "column id is int, which mode timestamp cannot go by"),
        (INCREMENTING, 'table.whitelist = "nowhere"', "source t: database jdbc:postgresql:.*nowhere.* does not exist"),
    ):
        with pytest.raises(SourceError, match=message):
            streamed(keys, what).start()
    pipe = streamed()
    text = 'incrementing.column.name = "id"\ntable.whitelist = "t"\nconnection.url = "jdbc:postgresql://127.0.0.1:1/x"'
    with pytest.raises(SourceError, match=r"source t: database jdbc:postgresql://127.0.0.1:1/x cannot be reached"):
        Streamed(pipe.spark, pipe.pipeline.folder, text).start()


def test_polls_on_disk(tmp_path):
    spool = Spool(tmp_path)
    assert (spool.last_number(), spool.last()) == (-1, None)
    for number in range(5):
        assert spool.add(pa.table({"id": [number]}), {"end": str(number)}) == number
    times = [path.stat().st_mtime for path in sorted(spool.rows.iterdir())]
    assert times == sorted(set(times))
    # Killed before the rows were in place: what was to be is not taken for what is.
    (spool.rows / "000000000004.parquet").unlink()
    assert Spool(tmp_path).last() == {"end": "3"}
    spool.drop_before(2)
    assert sorted(path.name for path in spool.rows.iterdir()) == ["000000000002.parquet", "000000000003.parquet"]
    assert Spool(tmp_path).last() == {"end": "3"}
    assert spool.add(pa.table({"id": [9]}), {"end": "9"}) == 4
    spool.clear()
    assert spool.last_number() == -1
