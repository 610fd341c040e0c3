"""The topic sink: the records of rows, and batches that are written once whatever happened to earlier attempts."""

import json
import os
import time

import pytest
from pyspark.sql import functions as f

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.exactly_once.transactions import Clients
from odradek.spark_it.interfaces.sink import Claim, Range, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.sinks import topic as topic_sink
from odradek.spark_it.sinks.topic import find_numbers_for_parts
from spark_it.tests.clients import Killing, Overtaken
from spark_it.tests.records import messages, read, values
from spark_it.tests.unit.support import pipeline

GENERATION = 29_000_000
PARTS = 3


class Sunk:
    """A topic sink, its topics, and a source of PARTS partitions, which is never read."""

    def __init__(
        self,
        spark,
        broker,
        topics,
        folder,
        name,
        keys="",
        transaction_kind=TransactionKind.OFFSETS,
        target_partitions=2,
    ):
        self.spark = spark
        self.servers = broker.bootstrap_servers
        self.name = name
        self.source = topics.create(f"{name}-source", PARTS)
        self.target = topics.create(f"{name}-target", target_partitions)
        self.dead = topics.create(f"{name}-dead")
        self.pipeline = pipeline(
            f"""
name = "{name}"
bootstrap.servers = "{self.servers}"
tasks.max = {PARTS}
[source.orders]
connector = "topic"
topics = "{self.source}"
value.schema = "number BIGINT"
[sink]
connector = "topic"
topic = "{self.target}"
{keys}
[errors]
tolerance = "all"
deadletterqueue.topic.name = "{self.dead}"
""",
            folder=folder,
        )
        self._plan(0)
        self._plan(1)
        self.sink = topic_sink.make(self.pipeline, transaction_kind, spark, None)
        self.transaction_kind = transaction_kind

    def _plan(self, batch):
        """Plan a batch, as Spark does before it starts. A batch planned just now may be written without a marker."""
        planned = self.pipeline.state_folder / "checkpoint" / str(GENERATION) / "offsets" / str(batch)
        planned.parent.mkdir(parents=True, exist_ok=True)
        about = {"batchTimestampMs": int(time.time() * 1000)}
        offsets = {self.source: {str(one.partition): one.end for one in ranges(self.source, batch)}}
        planned.write_text(f"v1\n{json.dumps(about)}\n{json.dumps(offsets)}")

    def write(self, rows, dead=None, batch=0):
        if self.sink._records is None:
            self.sink.prepare(rows.schema)
            self.sink.claim(Claim("", GENERATION, is_new=True))
        of = ranges(self.source, batch) if self.transaction_kind is TransactionKind.OFFSETS else None
        return self.sink.write(rows, dead, SinkBatch(batch, GENERATION, self.spark, of))

    def written(self, **options):
        return values(self.servers, self.target, **options)

    def numbers(self):
        return sorted(json.loads(value)["number"] for value in self.written())

    def committed(self):
        cluster = KafkaCluster(self.pipeline.settings)
        found = cluster.fetch_committed(self.name, [(self.source, part) for part in range(PARTS)])
        return [found.get((self.source, part)) for part in range(PARTS)]


@pytest.fixture
def sunk(spark, broker, topics, tmp_path, unique):
    made = []

    def make(**options):
        number = len(made)
        made.append(Sunk(spark, broker, topics, tmp_path / str(number), f"{unique}-{number}", **options))
        return made[-1]

    yield make
    for one in made:
        one.sink.close()


def ranges(source, batch):
    return tuple(Range(source, part, 100 * batch, 100 * batch + 100) for part in range(PARTS))


def numbered(spark, count, start=0, parts=PARTS):
    return spark.range(start, start + count, 1, parts).select(f.col("id").alias("number"))


def dead_of(rows):
    """The dead letters of rows, each with its number."""
    number = f.col("number").cast("string").cast("binary")
    header = f.array(f.struct(f.lit("why").alias("key"), f.lit("bad").cast("binary").alias("value")))
    return rows.select(f.lit(None).cast("binary").alias("key"), number.alias("value"), header.alias("headers"))


def is_bad():
    return f.col("number") % 10 == 7


@pytest.mark.parametrize("dead", ["few", "many"])
def test_ranges_written_again_and_again(sunk, dead, monkeypatch):
    """Rows 30 to 59 are partition 1, which has no good row."""
    if dead == "many":
        monkeypatch.setattr(topic_sink, "MAX_PACKED_BYTES", 0)
    made = sunk(target_partitions=1)
    every = numbered(made.spark, 90)
    good = every.where(~is_bad() & ~f.col("number").between(30, 59))
    first = f.col("number") == 7
    # A union of two frames, as two expectations give.
    bad = dead_of(every.where(first)).unionAll(dead_of(every.where(is_bad() & ~first)))
    expected = [n for n in range(90) if n % 10 != 7 and not 30 <= n < 60]
    dead_ones = [n for n in range(90) if n % 10 == 7]
    for _ in range(2):
        assert made.write(good, bad) == WrittenCounts(len(expected), len(dead_ones))
        assert made.committed() == [100, 100, 100]
        [found] = read(made.servers, made.target).values()
        in_order = [json.loads(one.value())["number"] for one in found]
        assert sorted(in_order) == expected
        # The order within a source partition is kept.
        assert [n for n in in_order if n < 30] == [n for n in expected if n < 30]
        assert [n for n in in_order if n >= 60] == [n for n in expected if n >= 60]
        letters = messages(made.servers, made.dead)
        assert sorted(int(one.value()) for one in letters) == dead_ones
        assert all(one.headers() == [("why", b"bad")] for one in letters)
    assert made.write(numbered(made.spark, 30, start=1000), batch=1) == WrittenCounts(30, 0)
    assert made.committed() == [200, 200, 200]
    assert len(made.numbers()) == len(expected) + 30


@pytest.mark.parametrize("dead", ["few", "many"])
def test_no_rows_at_all(sunk, dead, monkeypatch):
    """Spark's optimizer finds the frame empty, so no range has a task."""
    if dead == "many":
        monkeypatch.setattr(topic_sink, "MAX_PACKED_BYTES", 0)
    made = sunk()
    every = numbered(made.spark, 30)
    for _ in range(2):
        assert made.write(every.where("false"), dead_of(every.where(is_bad()))) == WrittenCounts(0, 3)
        assert made.committed() == [100, 100, 100]
    assert made.write(every.where("false"), batch=1) == WrittenCounts(0, 0)
    assert made.committed() == [200, 200, 200]
    assert made.written() == []
    assert len(values(made.servers, made.dead)) == 3


def test_batches_written_again_and_again(sunk):
    made = sunk(transaction_kind=TransactionKind.BATCHES, keys='key.fields = "country"')
    every = numbered(made.spark, 600)
    counted = every.groupBy((f.col("number") % 50).cast("string").alias("country")).agg(f.count("*").alias("number"))
    bad = dead_of(every.where(is_bad()))
    for batch in (0, 1):
        for _ in range(2):
            assert made.write(counted, bad, batch) == WrittenCounts(50, 60)
            found = messages(made.servers, made.target)
            assert len(found) == 50 * (batch + 1)
            assert {(one.key(), one.value()) for one in found} == {
                (b"%d" % n, b'{"country":"%d","number":12}' % n) for n in range(50)
            }
            assert len(values(made.servers, made.dead)) == 60 * (batch + 1)
    # A batch without rows counts as written.
    for _ in range(2):
        assert made.write(counted.where("false"), None, 2) == WrittenCounts(0, 0)
    assert made.write(counted, None, 3) == WrittenCounts(50, 0)
    with pytest.raises(SinkError, match="belongs to a later batch: the checkpoint is older"):
        made.write(counted, None, 2)
    assert len(made.written()) == 150


def test_records_without_key_are_spread_over_all_parts(sunk):
    made = sunk(transaction_kind=TransactionKind.BATCHES)
    frame = topic_sink._partition_by_hash(dead_of(numbered(made.spark, 300)), None, PARTS)
    parts = [row["count"] for row in frame.groupBy("part").count().collect()]
    assert len(parts) == PARTS and min(parts) > 50
    with pytest.raises(Exception, match="partition 0 has records of parts 0 to 2"):
        made.sink._markers.prepare()
        transactions = made.sink._markers.make_transactions(SinkBatch(0, GENERATION, made.spark))
        made.sink._write_transactions(frame.coalesce(1), transactions, {})
    assert made.written() == []


@pytest.mark.parametrize("parts", [1, 7])
def test_a_number_for_each_partition(spark, parts):
    numbers = find_numbers_for_parts(parts)
    frame = spark.createDataFrame([(part, number) for part, number in enumerate(numbers)], "part int, number int")
    found = frame.repartition(parts, "number").select("part", f.spark_partition_id().alias("at")).collect()
    assert {row.part: row.at for row in found} == {part: part for part in range(parts)}


def test_rows_that_are_not_computed_range_by_range(sunk):
    made = sunk()
    with pytest.raises(SinkError, match="do not match the source partitions; set stateful = true"):
        made.write(numbered(made.spark, 30, parts=2))
    assert made.written() == []
    # A transaction without a task must not count as an empty one.
    transactions = made.sink._markers.make_transactions(SinkBatch(0, GENERATION, made.spark, ranges(made.source, 0)))
    with pytest.raises(SinkError, match=r"has run no tasks for transactions \[2\] of the batch"):
        made.sink._write_transactions(made.sink._records(numbered(made.spark, 30, parts=2)), transactions, {})
    assert made.committed() == [100, 100, None]


@pytest.mark.side_by_side
@pytest.mark.parametrize(("kind", "moment"), [(TransactionKind.OFFSETS, "before"), (TransactionKind.BATCHES, "after")])
def test_a_worker_killed_around_its_commit(sunk, tmp_path, kind, moment):
    """tests/crash has all four combinations, without Spark."""
    made = sunk(transaction_kind=kind)
    flag = str(tmp_path / "killed")
    made.sink._clients = Killing(made.servers, flag=flag, moment=moment)
    every = numbered(made.spark, 90)
    rows, bad = every.where(~is_bad()), dead_of(every.where(is_bad()))
    with pytest.raises(SinkError, match="a worker process exited") as failed:
        made.write(rows, bad)
    assert failed.value.is_retriable and os.path.exists(flag)
    assert made.write(rows, bad) == WrittenCounts(81, 9)
    assert made.numbers() == [n for n in range(90) if n % 10 != 7]
    assert len(values(made.servers, made.dead)) == 9


@pytest.mark.parametrize("kind", list(TransactionKind))
def test_rows_that_cannot_be_computed(sunk, kind):
    """A transaction whose rows Spark stops computing is aborted, although its input looks complete to the task. It does
    not stay open, because readers of committed records would wait for it."""
    made = sunk(transaction_kind=kind)
    fails = f.when(f.col("number") == 59_999, f.raise_error("broken").cast("boolean"))
    every = numbered(made.spark, 90_000)
    # Twice, because one success may be luck: Spark ends the worker too, but not at once.
    for _ in range(2):
        with pytest.raises(Exception, match="broken"):
            made.write(every.where(fails.isNull() | fails))
        found = made.numbers()
        assert len(found) == len(set(found))
        # Other transactions may be committed, but only complete ones.
        if kind is TransactionKind.OFFSETS:
            assert len(found) % 30_000 == 0 and not set(found) & set(range(30_000, 60_000))
        else:
            assert found == []
    assert made.write(every) == WrittenCounts(90_000, 0)
    assert made.numbers() == list(range(90_000))


def test_an_attempt_that_is_overtaken_fails(sunk):
    made = sunk()
    rows = numbered(made.spark, 30)
    made.write(rows)

    made.sink._clients = Overtaken(made.servers)
    # At first the later attempt may be a task that Spark has yet to end.
    for is_retriable in (True, True, False):
        with pytest.raises(SinkError, match="a later attempt has fenced it") as said:
            made.write(numbered(made.spark, 30), batch=1)
        assert said.value.is_retriable is is_retriable
    assert made.numbers() == list(range(30))


def test_keys_headers_and_columns_of_the_source(sunk):
    made = sunk(keys='key.fields = ["b", "a"]\nkey.format = "json"\ninclude.headers = true')
    made.write(
        made.spark.range(0, 3, 1, PARTS).select(
            f.lit(1).alias("a"),
            f.col("id").alias("b"),
            f.lit("x").alias("_topic"),
            f.expr("if(id = 0, null, array(struct('h' AS k, 'v' AS v), struct('i' AS k, null AS v)))").alias("headers"),
        )
    )
    found = sorted((one.key(), one.value(), one.headers()) for one in messages(made.servers, made.target))
    headers = [("h", b"v"), ("i", None)]
    assert found == [
        (b'{"b":0,"a":1}', b'{"a":1,"b":0}', None),
        (b'{"b":1,"a":1}', b'{"a":1,"b":1}', headers),
        (b'{"b":2,"a":1}', b'{"a":1,"b":2}', headers),
    ]


def test_text_with_a_key_and_tombstones_and_one_too_large(sunk):
    made = sunk(keys='key.fields = "_key"\nvalue.format = "string"')
    text = f.expr("CASE id WHEN 1 THEN null WHEN 3 THEN repeat('v', 1100000) ELSE concat('v', id) END")
    rows = made.spark.range(0, 4, 1, PARTS).select(
        f.col("id").alias("_key"), text.alias("text"), f.lit(1).alias("_offset")
    )
    for _ in range(2):
        assert made.write(rows) == WrittenCounts(3, 1)
        found = sorted((one.key(), one.value()) for one in messages(made.servers, made.target))
        assert found == [(b"0", b"v0"), (b"1", None), (b"2", b"v2")]
        # The record is too large for the dead-letter topic, too.
        [letter] = messages(made.servers, made.dead)
        assert (letter.key(), letter.value()) == (None, None)
        why = dict(letter.headers())["__connect.errors.exception.message"]
        assert why == b"a record has 1100001 bytes, but topic %s accepts 1048488" % made.target.encode()


@pytest.mark.parametrize(
    ("keys", "columns", "message"),
    [
        ('key.fields = "x"', "a INT, b INT", "unknown column x; the columns are a, b"),
        ("include.headers = true", "a INT", "unknown column headers"),
        ("include.headers = true", "a INT, headers INT", "the columns cannot be written"),
        ('key.fields = ["a", "b"]', "a INT, b INT", "key.format string needs a single column; found: a, b"),
        ('value.format = "string"', "a INT, b INT", "value.format string needs a single column; found: a, b"),
        ('value.format = "bytes"\nkey.fields = "a"', "a INT", "bytes needs a single column; found: none"),
        ("", "_topic STRING", "no columns are left for the value"),
    ],
)
def test_rows_that_cannot_be_records(sunk, keys, columns, message):
    made = sunk(keys=keys)
    with pytest.raises(SinkError, match=message) as refused:
        made.sink.prepare(made.spark.createDataFrame([], columns).schema)
    assert not refused.value.is_retriable


def test_a_missing_topic(sunk):
    made = sunk()
    made.sink._target = made.sink._target._replace(dead_topic=f"{made.name}-missing")
    with pytest.raises(SinkError, match=f"topic {made.name}-missing does not exist .*; create it"):
        made.sink.prepare(numbered(made.spark, 1).schema)
    made.sink._clients = Clients("127.0.0.1:1", timeout_s=0.2)
    with pytest.raises(SinkError, match=r"cannot look up topics at 127\.0\.0\.1:1") as down:
        made.sink.prepare(numbered(made.spark, 1).schema)
    assert down.value.is_retriable


AVRO = """
value.format = "avro"
value.schema = '{"type": "record", "name": "n", "fields": [{"name": "number", "type": "long"}]}'
"""


@pytest.mark.parametrize("kind", list(TransactionKind))
def test_rows_that_the_format_refuses_are_dead_letters(sunk, kind):
    made = sunk(keys=AVRO, transaction_kind=kind)
    rows = made.spark.range(0, 30, 1, PARTS).select(f.expr("if(id % 10 = 3, null, id)").alias("number"))
    for _ in range(2):
        assert made.write(rows, dead_of(numbered(made.spark, 1))) == WrittenCounts(27, 4)
        assert len(made.written()) == 27
        letters = {one.value(): dict(one.headers()) for one in messages(made.servers, made.dead)}
        assert set(letters) == {b"0", b"{}"}
        why = letters[b"{}"]
        assert why["__connect.errors.stage"] == b"TASK_PUT"
        assert why["__connect.errors.class.name"] == b"avro"
        assert why["__connect.errors.exception.message"].startswith(b"value: ")
