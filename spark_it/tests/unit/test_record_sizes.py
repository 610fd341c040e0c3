"""Limits of record sizes, and records of that size at a broker."""

import pyarrow as pa
import pytest

from odradek.spark_it.dead_letters.writer import DeadLetterWriter, produce_all
from odradek.spark_it.exactly_once.transactions import Clients
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka import record_sizes
from odradek.spark_it.kafka.record_sizes import MAX_MESSAGE_BYTES, find_size_limits, measure_record
from spark_it.tests.records import messages
from spark_it.tests.unit.support import pipeline

FRAME = 100


def test_the_size_of_a_record():
    assert measure_record(None, None, []) == 0
    assert measure_record(b"ab", b"cde", [("h", b"ij"), ("k", None)]) == 2 + 3 + (1 + 2 + 10) + (1 + 10)


@pytest.mark.parametrize(
    ("override", "largest", "most", "batch"),
    [
        ({}, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES, 1_000_000),
        ({"message.max.bytes": "5000"}, 5000, 5000, 1_000_000),
        ({"message.max.bytes": "2000000"}, MAX_MESSAGE_BYTES, 2_000_000, 1_000_000),
        ({"message.max.bytes": "2000000", "compression.type": "zstd"}, 2_000_000, 2_000_000, 1_000_000),
        ({"compression.codec": "lz4", "batch.size": "70"}, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES, 70),
        ({"message.max.bytes": "many"}, MAX_MESSAGE_BYTES, "many", 1_000_000),
    ],
)
def test_the_configuration_of_a_producer(monkeypatch, override, largest, most, batch):
    monkeypatch.setattr(record_sizes, "_fetch_max_message_bytes", lambda *_: MAX_MESSAGE_BYTES)
    found = find_size_limits(["out"], {}, override)
    assert found.largest == {"out": largest - FRAME}
    assert (found.configuration["message.max.bytes"], found.configuration["batch.size"]) == (str(most), str(batch))


@pytest.mark.side_by_side
def test_a_topic_that_does_not_exist_yet(broker, unique, monkeypatch):
    monkeypatch.setattr(record_sizes, "_PROPAGATION_S", 0.2)
    assert find_size_limits([unique], {"bootstrap.servers": broker.bootstrap_servers}, {}).largest == {
        unique: MAX_MESSAGE_BYTES - FRAME
    }


def test_a_broker_that_is_down(monkeypatch):
    monkeypatch.setattr(record_sizes, "_TIMEOUT_S", 0.5)
    with pytest.raises(SinkError, match=r"cannot look up max\.message\.bytes of topic out") as down:
        find_size_limits(["out"], {"bootstrap.servers": "127.0.0.1:1"}, {})
    assert down.value.is_retriable


@pytest.mark.side_by_side
def test_records_as_large_as_topics_take(broker, topics, unique):
    """The largest records are accepted, with small ones in the same transaction."""
    small = topics.create(f"{unique}-small", config={"max.message.bytes": "20000"})
    large = topics.create(f"{unique}-large", config={"max.message.bytes": "3000000"})
    found = find_size_limits([small, large], {"bootstrap.servers": broker.bootstrap_servers}, {})
    assert found.largest == {small: 20_000 - FRAME, large: 3_000_000 - FRAME}
    producer = Clients(broker.bootstrap_servers, found.configuration).make_producer(unique)
    producer.init_transactions(30)
    producer.begin_transaction()
    headers = [("h" * 100, b"v" * 100)] * 10
    for topic, most in found.largest.items():
        value = b"v" * (most - measure_record(b"k", b"", headers))
        assert measure_record(b"k", value, headers) == most
        producer.produce(topic, value, b"k", headers=[*headers])
        for _ in range(200):
            producer.produce(topic, b"v" * 1000)
    producer.commit_transaction(60)
    for topic in (small, large):
        assert len(messages(broker.bootstrap_servers, topic)) == 201


def test_dead_letters_that_are_too_large_keep_their_headers(broker, topics, unique):
    topic = topics.create(unique, config={"max.message.bytes": "5000"})
    made = pipeline(f"""
name = "shop"
bootstrap.servers = "{broker.bootstrap_servers}"
[source.orders]
connector = "topic"
topics = "orders"
value.schema = "customer STRING"
[sink]
connector = "console"
[errors]
deadletterqueue.topic.name = "{topic}"
""")
    writer = DeadLetterWriter(made)
    largest = writer._find_max_size()
    assert largest == 5000 - FRAME
    said = [{"key": "__connect.errors.offset", "value": b"7"}, {"key": "mine", "value": b"1"}]
    names = sum(len(one["key"]) + len(one["value"]) + 10 for one in said)
    rows = [
        {"key": b"k", "value": b"v" * (largest - names - 1), "headers": said},
        {"key": b"k", "value": b"v" * (largest - names), "headers": said},
        {"key": None, "value": b"small", "headers": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    assert produce_all(topic, writer._configuration, [batch], largest) == 3
    found = [(one.key(), len(one.value() or b""), one.headers()) for one in messages(broker.bootstrap_servers, topic)]
    headers = [("__connect.errors.offset", b"7"), ("mine", b"1")]
    brief = [headers[0], ("__connect.errors.record.left.out", b"true")]
    assert found == [(b"k", largest - names - 1, headers), (None, 0, brief), (None, 5, None)]
