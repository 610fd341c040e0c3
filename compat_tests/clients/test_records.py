"""Records through each client library: consumers read what producers wrote, for each pair of libraries."""

import time
import zlib
from typing import Any

import pytest

from compat_tests import clients
from compat_tests.clients.common import (
    ClientError,
    Code,
    ConsumerOptions,
    Message,
    ProducerOptions,
    Received,
    commit_in_group,
    numbers,
    read,
)

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
MB = 1_000_000


def produce(client: Any, broker: Any, topic: str, messages: list[Message], **options: Any) -> Any:
    with client.Producer(broker.bootstrap_servers, ProducerOptions(**options)) as producer:
        return producer.produce(topic, messages)


def consume(client: Any, broker: Any, topic: str, count: int, partition: int = 0, **options: Any) -> list[Received]:
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions(**options)) as consumer:
        consumer.assign([(topic, partition)])
        return read(consumer, count)


def content(records: list[Received]) -> list[tuple[Any, ...]]:
    return [(r.key, r.value, r.headers) for r in sorted(records, key=lambda r: r.offset)]


@pytest.mark.parametrize("codec", [pytest.param(None, marks=pytest.mark.side_by_side), *CODECS[1:]])
def test_every_library_reads_records_of_this_one(broker, client, library, topic, codec):
    """Keys, values and headers, including null, empty and repeated ones, are read as they were written."""
    messages = [
        Message(b"plain", b"key"),
        Message(None, b"tombstone"),
        Message(b"no key", None),
        Message(b"", b""),
        Message(b"headers", b"k", (("a", b"1"), ("b", b""), ("a", b"2"), ("\u00fc", b"\x00\xff"))),
        *(Message(b"%d" % n * 50, b"%d" % n) for n in range(200)),
    ]
    if "null_records" in client.FEATURES:
        messages.append(Message(None, None))
    if "null_headers" in client.FEATURES:
        messages.append(Message(b"null header", None, (("n", None), ("n", b"x"), ("n", None))))
    sent = produce(client, broker, topic, messages, compression=codec)
    assert [s.offset for s in sent] == list(range(len(messages)))
    expected = [(m.key, m.value, m.headers) for m in messages]
    for reader in clients.NAMES:
        got = content(consume(clients.load(reader), broker, topic, len(messages)))
        assert got == expected, f"written by {library}, read by {reader}"


@pytest.mark.parametrize("codec", CODECS)
def test_five_megabyte_records(broker, client, unique, admin, codec):
    admin.create_topic(unique, configs={"max.message.bytes": str(6 * MB)})
    big = bytes(range(256)) * (5 * MB // 256)
    produce(client, broker, unique, [Message(big), Message(b"after")], compression=codec, max_request_bytes=6 * MB)
    records = consume(client, broker, unique, 2)
    assert [(len(r.value or b""), zlib.crc32(r.value or b"")) for r in records] == [
        (len(big), zlib.crc32(big)),
        (5, zlib.crc32(b"after")),
    ]


def test_a_record_over_the_limit_is_refused_and_the_next_is_accepted(broker, client, unique, admin):
    admin.create_topic(unique, configs={"max.message.bytes": "2000"})
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        with pytest.raises(ClientError) as refused:
            producer.produce(unique, [Message(b"x" * 3000)])
        assert refused.value.code == Code.MESSAGE_TOO_LARGE
        assert producer.produce(unique, [Message(b"small")])[0].offset == 0


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(broker, client, topic, acks):
    sent = produce(client, broker, topic, [Message(b"%d" % n) for n in range(50)], acks=acks)
    if acks != 0:
        assert [s.offset for s in sent] == list(range(50))
    assert [r.value for r in consume(client, broker, topic, 50)] == [b"%d" % n for n in range(50)]


def test_idempotent_producer_writes_each_record_once(broker, client, topic):
    """Many small batches in flight at once keep their order."""
    with client.Producer(broker.bootstrap_servers, ProducerOptions(idempotent=True, linger_ms=0)) as producer:
        for round_number in range(20):
            producer.produce(topic, [Message(b"%d" % (round_number * 100 + n)) for n in range(100)])
    assert [r.value for r in consume(client, broker, topic, 2000)] == [b"%d" % n for n in range(2000)]


def test_create_time_is_kept(broker, client, topic):
    now = int(time.time() * 1000)
    stamps = [now - 5000, now - 9000, now]
    produce(client, broker, topic, [Message(b"x", timestamp_ms=t) for t in stamps])
    assert [(r.timestamp_ms, r.timestamp_type) for r in consume(client, broker, topic, 3)] == [(t, 0) for t in stamps]


def test_log_append_time_replaces_the_producers(broker, client, unique, admin):
    admin.create_topic(unique, configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    produce(client, broker, unique, [Message(b"x", timestamp_ms=1000), Message(b"y", timestamp_ms=2000)])
    for record in consume(client, broker, unique, 2):
        assert record.timestamp_type == 1
        assert before - 1000 <= record.timestamp_ms <= int(time.time() * 1000) + 1000


def test_timestamps_out_of_bounds_are_refused(broker, client, unique, admin):
    admin.create_topic(unique, configs={"message.timestamp.before.max.ms": "60000"})
    with pytest.raises(ClientError) as refused:
        produce(client, broker, unique, [Message(b"x", timestamp_ms=1_000_000)])
    assert refused.value.code == Code.INVALID_TIMESTAMP


def test_null_key_on_a_compacted_topic_is_refused(broker, client, unique, admin):
    admin.create_topic(unique, configs={"cleanup.policy": "compact"})
    with pytest.raises(ClientError) as refused:
        produce(client, broker, unique, [Message(b"no key")])
    # aiokafka has no exception for the code, and reports an unknown error.
    assert refused.value.code in (Code.INVALID_RECORD, -1)


def test_the_topics_codec_wins_over_the_producers(broker, client, unique, admin):
    """Records that the broker recompresses have the same contents."""
    admin.create_topic(unique, configs={"compression.type": "zstd"})
    messages = [Message(b"%d" % n * 100, b"%d" % n, (("h", b"%d" % n),)) for n in range(300)]
    produce(client, broker, unique, messages, compression="gzip", linger_ms=20)
    got = content(consume(client, broker, unique, 300))
    assert got == [(m.key, m.value, m.headers) for m in messages]


@pytest.mark.needs("partitioner")
def test_own_partitioner(broker, client, unique, admin):
    admin.create_topic(unique, 4)
    sent = produce(
        client,
        broker,
        unique,
        [Message(b"v", b"%d" % n) for n in range(40)],
        partitioner=lambda key, partitions: partitions[int(key) % len(partitions)],
    )
    assert [s.partition for s in sent] == [n % 4 for n in range(40)]


def test_many_partitions_in_one_topic(broker, client, unique, admin):
    """One producer and one consumer over 100 partitions; each partition keeps its order."""
    admin.create_topic(unique, 100)
    produce(client, broker, unique, [Message(b"%d" % n, partition=n % 100) for n in range(1000)], idempotent=True)
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
        consumer.assign([(unique, p) for p in range(100)])
        records = read(consumer, 1000)
    for partition in range(100):
        values = numbers(r for r in records if r.partition == partition)
        assert values == list(range(partition, 1000, 100))


def test_seek_and_read_again_and_again(broker, client, topic):
    """Reads remove nothing: every read from any offset returns the same records."""
    produce(client, broker, topic, [Message(b"%d" % n) for n in range(100)])
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
        consumer.assign([(topic, 0)])
        for start in (0, 0, 57, 99, 0):
            consumer.poll(0.05)
            consumer.seek((topic, 0), start)
            wanted = {n: b"%d" % n for n in range(start, 100)}
            seen = {r.offset: r.value for r in read(consumer, 100 - start)}
            assert seen == wanted
        assert consumer.bounds((topic, 0)) == (0, 100)


def test_seek_by_time(broker, client, unique, admin):
    admin.create_topic(unique, 2)
    start = int(time.time() * 1000) - 100_000
    messages = [Message(b"%d" % n, partition=0, timestamp_ms=start + n * 100) for n in range(200)]
    produce(client, broker, unique, messages)
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
        consumer.assign([(unique, 0), (unique, 1)])

        def found(timestamp_ms: int) -> int | None:
            return consumer.offsets_for_times({(unique, 0): timestamp_ms})[(unique, 0)]

        assert [found(start - 1), found(start), found(start + 1), found(start + 19_900)] == [0, 0, 1, 199]
        # librdkafka returns the end for a time after the last record, the others nothing.
        assert found(start + 19_901) in (None, 200)
        assert consumer.offsets_for_times({(unique, 1): start})[(unique, 1)] in (None, 0)
        consumer.poll(0.05)
        consumer.seek((unique, 0), found(start + 15_000))
        assert read(consumer, 50)[0].offset == 150


def test_an_offset_out_of_range_is_an_error_without_a_reset_policy(broker, client, topic, admin):
    produce(client, broker, topic, [Message(b"%d" % n) for n in range(10)])
    admin.delete_records((topic, 0), 5)
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions(reset="none")) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 2)
        with pytest.raises(ClientError) as raised:
            read(consumer, 1)
        assert raised.value.code == Code.OFFSET_OUT_OF_RANGE
    assert [r.offset for r in consume(client, broker, topic, 5)] == [5, 6, 7, 8, 9]


def test_producing_to_a_missing_topic_creates_it(broker, client, unique, admin):
    assert [s.offset for s in produce(client, broker, unique, [Message(b"x")])] == [0]
    assert admin.partition_count(unique) == 2


def test_without_auto_creation_a_missing_topic_is_an_error(start_broker, client, unique):
    broker = start_broker({"auto.create.topics.enable": "false"})
    with pytest.raises((ClientError, TimeoutError)):
        produce(client, broker, unique, [Message(b"x")], timeout_ms=3000)
    with client.Admin(broker.bootstrap_servers) as admin:
        assert unique not in admin.topics()


def test_records_survive_a_clean_stop_and_a_crash(start_broker, client, unique):
    """Acknowledged records, commits and producers continue after both kinds of restart."""
    broker = start_broker()
    with client.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(unique)
    options = ConsumerOptions(group=unique, session_timeout_ms=10_000)
    for number, clean in enumerate((True, False)):
        produce(client, broker, unique, [Message(b"%d" % n) for n in range(number * 50, number * 50 + 50)])
        with client.Consumer(broker.bootstrap_servers, options) as consumer:
            consumer.subscribe([unique], None)
            records = read(consumer, 50)
            assert numbers(records) == list(range(number * 50, number * 50 + 50))
            commit_in_group(consumer, {(unique, 0): (number * 50 + 50, "so far")})
        broker.restart(clean=clean)
    assert numbers(consume(client, broker, unique, 100)) == list(range(100))
    with client.Consumer(broker.bootstrap_servers, options) as consumer:
        assert consumer.committed((unique, 0)) == 100


def test_clients_continue_after_a_restart_while_running(start_broker, client, unique):
    """The same producer and consumer objects reconnect to the broker."""
    broker = start_broker()
    with client.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(unique)
    with (
        client.Producer(broker.bootstrap_servers, ProducerOptions(idempotent=True)) as producer,
        client.Consumer(broker.bootstrap_servers, ConsumerOptions(group=unique)) as consumer,
    ):
        consumer.subscribe([unique], None)
        producer.produce(unique, [Message(b"before")])
        assert read(consumer, 1)[0].value == b"before"
        commit_in_group(consumer, {(unique, 0): (1, "")})
        broker.restart(clean=True)
        assert producer.produce(unique, [Message(b"after")])[0].offset == 1
        assert read(consumer, 1)[0].value == b"after"
        commit_in_group(consumer, {(unique, 0): (2, "")})
        assert consumer.committed((unique, 0)) == 2
