"""Streams: triggers, checkpoints, restarts of query and broker, and deleted records."""

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from compat_tests.metrics_samples import scrape
from odradek.testing import OdradekBroker
from spark_it.tests.conftest import KEEPS_ALL
from spark_it.tests.data import Topics, digest, digest_of, rows
from spark_it.tests.kafka_frames import batches, finish, has_read, wait_for

AVAILABLE_NOW = {"availableNow": True}
DATA_LOSS = r"(?i)data.?loss|data may have been lost"
QUICKLY = {"processingTime": "200 milliseconds"}


@pytest.mark.side_by_side
def test_available_now_in_batches_of_limited_size(kafka, topics, unique):
    topics.produce(topics.create(unique, 3), rows(3000))
    stream = kafka.read_stream(unique, maxOffsetsPerTrigger=700)
    progress = finish(kafka.to_parquet(stream, "checkpoint", AVAILABLE_NOW))
    sizes = [batch["numInputRows"] for batch in progress]
    assert sum(sizes) == 3000
    assert max(sizes) <= 700
    assert len(sizes) >= 5
    assert digest(kafka.parquet()) == digest_of(rows(3000))


def test_a_processing_time_trigger_reads_new_records(kafka, topics, unique):
    topics.create(unique, 2)
    topics.produce(unique, rows(500))
    target = topics.create(f"{unique}-target", 2)
    query = kafka.write_stream(kafka.read_stream(unique).select("key", "value"), target, "checkpoint", QUICKLY)
    for done in (500, 900, 1300):
        wait_for(query, has_read(query, done))
        if done < 1300:
            topics.produce(unique, rows(400, start=done))
    query.stop()
    assert digest(kafka.read(target)) == digest_of(rows(1300))


def test_partitions_added_to_a_running_stream_are_read_from_their_start(kafka, topics, unique):
    topics.create(unique, 1)
    topics.produce(unique, rows(100))
    query = kafka.to_parquet(kafka.read_stream(unique), "checkpoint", QUICKLY)
    wait_for(query, lambda: bool(batches(query)))
    topics.add_partitions(unique, 3)
    for partition in (1, 2):
        topics.produce(unique, rows(100, start=100 * partition), partition=partition)
    wait_for(query, lambda: sum(batch["numInputRows"] for batch in batches(query)) >= 300)
    query.stop()
    assert digest(kafka.parquet()) == digest_of(rows(300))


def test_a_pattern_matches_topics_that_are_created_later(kafka, topics, unique):
    topics.produce(topics.create(f"{unique}-1"), rows(100))
    query = kafka.to_parquet(kafka.read_stream(subscribePattern=f"{unique}-.*"), "checkpoint", QUICKLY)
    wait_for(query, lambda: bool(batches(query)))
    topics.produce(topics.create(f"{unique}-2", 2), rows(100, start=100))
    wait_for(query, lambda: sum(batch["numInputRows"] for batch in batches(query)) >= 200)
    query.stop()
    assert digest(kafka.parquet()) == digest_of(rows(200))


def test_a_stream_from_a_timestamp(kafka, topics, unique):
    topics.create(unique, 2)
    base_ms = 1_700_000_000_000
    for step in range(4):
        for partition in (0, 1):
            start = 1000 * partition + 50 * step
            topics.produce(unique, rows(50, start), partition=partition, timestamp_ms=base_ms + 1000 * step)
    starting = {unique: {"0": base_ms + 1000, "1": base_ms + 2500}}
    finish(kafka.to_parquet(kafka.read_stream(unique, startingOffsetsByTimestamp=starting), "one", AVAILABLE_NOW))
    assert digest(kafka.parquet()) == digest_of(rows(150, start=50) + rows(50, start=1150))


def test_headers_and_ranges_within_a_stream(kafka, topics, unique):
    topics.create(unique)
    headers = [("trace", b"1"), ("trace", b"2"), ("none", None)]
    topics.produce(unique, rows(1000), headers=headers)
    target = topics.create(f"{unique}-target")
    stream = kafka.read_stream(unique, includeHeaders=True, minPartitions=4).select("key", "value", "headers")
    finish(kafka.write_stream(stream, target, "checkpoint", AVAILABLE_NOW, includeHeaders=True))
    found = kafka.read(target, includeHeaders=True)
    assert digest(found) == digest_of(rows(1000))
    [row] = found.select("headers").distinct().collect()
    assert [(key, None if value is None else bytes(value)) for key, value in row.headers] == headers


@pytest.mark.side_by_side
def test_a_query_continues_from_its_checkpoint_after_a_kill_of_the_broker(start_broker, own_kafka, unique):
    run_and_restart(start_broker(), own_kafka, unique, clean=False)


def test_a_query_continues_from_its_checkpoint_after_a_stop_of_the_broker(start_broker, own_kafka, unique):
    run_and_restart(start_broker(), own_kafka, unique, clean=True)


def run_and_restart(broker, own_kafka, unique, clean):
    """Restart the broker after each run. The next run continues where the last one ended, and no record is lost."""
    topics = Topics(broker.bootstrap_servers)
    kafka = own_kafka(broker)
    source, target = topics.create(unique, 2), topics.create(f"{unique}-target", 2)
    stream = kafka.read_stream(source, maxOffsetsPerTrigger=600).select("key", "value")
    total = 0
    for _ in range(2):
        topics.produce(source, rows(1000, start=total))
        total += 1000
        ends = [topics.ends(source, partition) for partition in (0, 1)]
        progress = finish(kafka.write_stream(stream, target, "checkpoint", AVAILABLE_NOW))
        assert sum(batch["numInputRows"] for batch in progress) == 1000
        broker.restart(clean=clean)
        assert [topics.ends(source, partition) for partition in (0, 1)] == ends
    assert finish(kafka.write_stream(stream, target, "checkpoint", AVAILABLE_NOW)) == []
    assert digest(kafka.read(target)) == digest_of(rows(total))


def test_a_running_stream_survives_a_restart_of_the_broker(start_broker, own_kafka, unique):
    broker = start_broker()
    topics = Topics(broker.bootstrap_servers)
    kafka = own_kafka(broker)
    topics.produce(topics.create(unique, 2), rows(1000))
    query = kafka.to_parquet(kafka.read_stream(unique), "checkpoint", QUICKLY)
    wait_for(query, has_read(query, 1000))
    broker.restart()
    topics.produce(unique, rows(1000, start=1000))
    wait_for(query, has_read(query, 2000))
    query.stop()
    assert digest(kafka.parquet()) == digest_of(rows(2000))


def test_the_lag_of_a_stream_is_in_the_metrics(own_kafka, unique):
    """Spark commits no offsets, and fetches again only when there are more records."""
    with OdradekBroker({"metrics.listener": "127.0.0.1:0", **KEEPS_ALL}) as broker:
        topics, kafka = Topics(broker.bootstrap_servers), own_kafka(broker)
        topics.produce(topics.create(unique, 1), rows(1000))

        def read_all():
            finish(kafka.to_parquet(kafka.read_stream(unique), "checkpoint", AVAILABLE_NOW))

        def find_lags():
            values = scrape(f"{broker.metrics_url}/metrics").values["odradek_reader_lag"]
            return [lag for labels, lag in values.items() if ("topic", unique) in labels]

        read_all()
        assert find_lags() == [0]
        topics.produce(unique, rows(400, start=1000))
        assert find_lags() == [400]
        read_all()
        assert max(find_lags()) <= 400
        assert min(find_lags()) == 0


@pytest.mark.side_by_side
@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go-on"])
def test_deleted_records(kafka, topics, unique, fail):
    """Records deleted before they are read fail the stream; with failOnDataLoss = false it skips them."""
    topics.produce(topics.create(unique), rows(100))
    stream = kafka.read_stream(unique, failOnDataLoss=fail)
    finish(kafka.to_parquet(stream, "checkpoint", AVAILABLE_NOW))
    topics.produce(unique, rows(100, start=100))
    topics.delete_records_before(unique, 0, 150)
    assert topics.ends(unique, 0) == (150, 200)
    query = kafka.to_parquet(stream, "checkpoint", AVAILABLE_NOW)
    if fail:
        with pytest.raises(StreamingQueryException, match=DATA_LOSS):
            finish(query)
        assert digest(kafka.parquet()) == digest_of(rows(100))
    else:
        finish(query)
        assert digest(kafka.parquet()) == digest_of(rows(100) + rows(50, start=150))


def test_a_batch_of_deleted_offsets(kafka, topics, unique):
    topics.produce(topics.create(unique), rows(100))
    topics.delete_records_before(unique, 0, 40)
    assert digest(kafka.read(unique)) == digest_of(rows(60, start=40))
    with pytest.raises(Exception, match=DATA_LOSS):
        kafka.read(unique, startingOffsets={unique: {"0": 10}}).agg(f.max("offset")).collect()
    going_on = kafka.read(unique, startingOffsets={unique: {"0": 10}}, failOnDataLoss=False)
    assert digest(going_on) == digest_of(rows(60, start=40))
