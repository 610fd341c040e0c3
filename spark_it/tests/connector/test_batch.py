"""Batch reads and writes of topics, by `spark.read` and `frame.write`."""

import itertools

import pytest
from pyspark.sql import functions as f

from spark_it.tests.data import digest, digest_of, rows, rows_in_spark

ODD_ROWS = [(None, b"no key"), (b"no value", None), (None, None), (b"", b""), (b"\x00\xff", "žlutý".encode())]


@pytest.mark.side_by_side
def test_rows_come_back_as_written(kafka, topics, unique):
    topics.create(unique, 3)
    given = rows(3000) + ODD_ROWS
    frame = kafka.spark.createDataFrame([list(row) for row in given], "key binary, value binary")
    kafka.write(frame, unique)
    found = kafka.read(unique)
    assert digest(found) == digest_of(given)
    spread = found.groupBy("partition").agg(f.count("*"), f.countDistinct("offset"), f.min("offset"), f.max("offset"))
    counts = {row[0]: row[1:] for row in spread.collect()}
    assert set(counts) == {0, 1, 2}
    for count, distinct, first, last in counts.values():
        assert (distinct, first, last) == (count, 0, count - 1)
    assert [row[0] for row in found.select("topic").distinct().collect()] == [unique]
    assert [row[0] for row in found.select("timestampType").distinct().collect()] == [0]


def test_rows_go_to_the_topic_and_partition_in_their_columns(kafka, topics, unique):
    names = [topics.create(f"{unique}-{letter}", 2) for letter in "ab"]
    given = [(names[n % 2], n % 4 // 2, str(n)) for n in range(40)]
    kafka.write(kafka.spark.createDataFrame(given, "topic string, partition int, value string"))
    found = kafka.read(",".join(names)).select("topic", "partition", f.col("value").cast("string")).collect()
    assert sorted(map(tuple, found)) == sorted(given)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(kafka, topics, unique, codec):
    topics.create(unique, 2)
    kafka.write(rows_in_spark(kafka.spark, 500), unique, kafka_compression_type=codec)
    topics.produce(unique, rows(500, start=500), compression_type=codec)
    assert digest(kafka.read(unique)) == digest_of(rows(1000))


@pytest.mark.side_by_side
def test_headers(kafka, topics, unique):
    topics.create(unique)
    headers = [("a", b"1"), ("b", None), ("a", b"2"), ("é", b"\x00\xff"), ("empty", b"")]
    frame = kafka.spark.createDataFrame(
        [("written", headers), ("none", None)], "value string, headers array<struct<key: string, value: binary>>"
    )
    kafka.write(frame.repartition(1).sortWithinPartitions("value"), unique, includeHeaders=True)
    topics.produce(unique, [(None, b"produced")], headers=headers)
    found = kafka.read(unique, includeHeaders=True).select(f.col("value").cast("string"), "headers").collect()
    shown = {
        row.value: row.headers and [(key, None if value is None else bytes(value)) for key, value in row.headers]
        for row in found
    }
    assert shown == {"written": headers, "none": None, "produced": headers}


def test_a_range_of_offsets(kafka, topics, unique):
    topics.create(unique, 2)
    for partition in (0, 1):
        topics.produce(unique, rows(100, start=1000 * partition), partition=partition)
    found = kafka.read(unique, startingOffsets={unique: {"0": 10, "1": -2}}, endingOffsets={unique: {"0": 30, "1": -1}})
    assert digest(found) == digest_of(rows(20, start=10) + rows(100, start=1000))
    nothing = kafka.read(unique, startingOffsets={unique: {"0": 100, "1": 100}})
    assert nothing.count() == 0


@pytest.mark.side_by_side
def test_offsets_by_timestamp(kafka, topics, unique):
    topics.create(unique, 2)
    base_ms = 1_700_000_000_000
    for step, partition in itertools.product(range(4), (0, 1)):
        start = 1000 * partition + 50 * step
        topics.produce(unique, rows(50, start), partition=partition, timestamp_ms=base_ms + 1000 * step)
    between = base_ms + 500
    found = kafka.read(
        unique,
        startingOffsetsByTimestamp={unique: {"0": between, "1": base_ms + 2000}},
        endingOffsetsByTimestamp={unique: {"0": base_ms + 2001, "1": base_ms + 9000}},
    )
    assert digest(found) == digest_of(rows(100, start=50) + rows(100, start=1100))
    for timestamp, first in ((base_ms - 1, 0), (base_ms + 3000, 150)):
        found = kafka.read(unique, startingTimestamp=timestamp)
        assert digest(found) == digest_of(rows(200 - first, first) + rows(200 - first, 1000 + first))
    beyond = {"startingTimestamp": base_ms + 60_000, "startingOffsetsByTimestampStrategy": "latest"}
    assert kafka.read(unique, **beyond).count() == 0


@pytest.mark.side_by_side
def test_several_tasks_read_one_partition(kafka, topics, unique):
    """minPartitions splits the offsets of a partition into ranges that are read in parallel."""
    topics.create(unique, 2)
    for partition in (0, 1):
        topics.produce(unique, rows(2000, start=5000 * partition), partition=partition)
    found = kafka.read(unique, minPartitions=7)
    assert found.rdd.getNumPartitions() >= 7
    assert digest(found) == digest_of(rows(2000) + rows(2000, start=5000))


def test_a_pattern_of_topics(kafka, topics, unique):
    for number in range(3):
        topics.produce(topics.create(f"{unique}-in-{number}", 1 + number), rows(100, start=100 * number))
    topics.produce(topics.create(f"{unique}-out"), rows(10, start=9000))
    found = kafka.read(subscribePattern=f"{unique}-in-.*")
    assert digest(found) == digest_of(rows(300))
    assert {row[0] for row in found.select("topic").distinct().collect()} == {f"{unique}-in-{n}" for n in range(3)}


def test_assigned_partitions(kafka, topics, unique):
    topics.create(unique, 3)
    for partition in range(3):
        topics.produce(unique, rows(50, start=100 * partition), partition=partition)
    found = kafka.read(assign={unique: [0, 2]})
    assert digest(found) == digest_of(rows(50) + rows(50, start=200))


def test_read_committed(kafka, topics, unique):
    topics.produce(topics.create(unique, 2), rows(400))
    assert digest(kafka.read(unique, kafka_isolation_level="read_committed")) == digest_of(rows(400))


def test_a_missing_topic(kafka, unique):
    with pytest.raises(Exception, match=r"UnknownTopicOrPartition|unknown topic|does not host"):
        kafka.read(f"{unique}-absent").count()


def test_log_append_time(kafka, topics, unique):
    topics.create(unique, config={"message.timestamp.type": "LogAppendTime"})
    topics.produce(unique, rows(20), timestamp_ms=1_600_000_000_000)
    found = kafka.read(unique)
    assert digest(found) == digest_of(rows(20))
    [row] = found.select(f.min("timestamp").cast("long"), f.min("timestampType")).collect()
    assert row[1] == 1
    assert row[0] > 1_700_000_000
