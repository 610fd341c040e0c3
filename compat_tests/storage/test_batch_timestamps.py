"""Record batches whose header states a largest timestamp that differs from that of their records.

Both brokers store the largest timestamp of the records, so that retention, rolling and ListOffsets follow the records.
"""

import gzip
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import confluent_kafka
import crc32c
import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse

from compat_tests.bad_frames import BATCH, CRC_STARTS_AT, LOG_APPEND_TIME, Connection, produce, sized, varint
from compat_tests.clients import load
from compat_tests.clients.common import wait_until
from compat_tests.plain_requests import wait_for_topics

pytestmark = pytest.mark.side_by_side

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LATEST = -1
EARLIEST = -2
LATEST_RECORD = -3
GZIP = 1
INVALID_TIMESTAMP = 32
OK = 0


class StoredBatch(NamedTuple):
    """The fields of a stored batch that a broker may have changed."""

    base_offset: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    records: bytes


@pytest.fixture
def connection(broker: Any) -> Iterator[Connection]:
    with Connection(broker.port) as made:
        yield made


@pytest.fixture
def make_topic(broker: Any, unique: str) -> Callable[..., str]:
    """Create a topic with one partition and the given properties."""

    def make(**configs: str) -> str:
        name = f"{unique}-{time.monotonic_ns()}"
        with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
            admin.create_topic(name, configs={key.replace("_", "."): value for key, value in configs.items()})
        wait_for_topics(broker, [name])
        with Connection(broker.port) as probe:
            wait_until(lambda: not list_offset(probe, name, LATEST)[0])
        return name

    return make


def timed_batch(
    deltas: Sequence[int],
    *,
    base: int,
    stated: int,
    compress: int = 0,
    attributes: int = 0,
    offset_deltas: Sequence[int] | None = None,
) -> bytes:
    """Return a batch whose records have timestamps `base` + delta and whose header states `stated` as the largest."""
    payload = b"".join(
        _record(delta, offset_delta, b"k%d" % number, b"v" * (20 + number % 3))
        for number, (delta, offset_delta) in enumerate(zip(deltas, offset_deltas or range(len(deltas)), strict=True))
    )
    if compress == GZIP:
        payload = gzip.compress(payload)
    count = len(deltas)
    made = bytearray(BATCH.size)
    size = BATCH.size - 12 + len(payload)
    BATCH.pack_into(made, 0, 0, size, -1, 2, 0, attributes | compress, count - 1, base, stated, -1, -1, -1, count)
    made += payload
    struct.pack_into(">I", made, 17, crc32c.crc32c(bytes(made[CRC_STARTS_AT:])))
    return bytes(made)


def _record(timestamp_delta: int, offset_delta: int, key: bytes, value: bytes) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value) + b"\0"
    return varint(len(body)) + body


def fetch_batches(connection: Connection, topic: str) -> list[StoredBatch]:
    of_topic = FetchRequest.FetchTopic
    asked = of_topic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[of_topic(topic=topic, partitions=[asked])], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    answer = connection.ask(request, FetchResponse, 12)
    data = bytes(answer.responses[0].partitions[0].records or b"")
    found = []
    while data:
        fields = BATCH.unpack_from(data)
        end = 12 + fields[1]
        found.append(StoredBatch._make((fields[0], *fields[5:9], data[BATCH.size : end])))
        data = data[end:]
    return found


def list_offset(connection: Connection, topic: str, timestamp: int) -> tuple[int, int, int]:
    """Return (error code, offset, timestamp)."""
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    asked = of_topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[of_topic(name=topic, partitions=[asked])])
    (answer,) = connection.ask(request, ListOffsetsResponse, 7).topics[0].partitions
    return answer.error_code, answer.offset, answer.timestamp


both_codecs = pytest.mark.parametrize("compress", [0, GZIP])


@both_codecs
@pytest.mark.parametrize("count", [1, 3, 10, 100])
def test_the_stored_header_states_the_largest_timestamp_of_the_records(connection, make_topic, count, compress):
    """The client may state a smaller one, a larger one, none, or an absurd one."""
    now = int(time.time() * 1000)
    topic = make_topic()
    lies = [now - 5000, now + 5000, -1, 0, now + 10 * HOUR_MS, -(2**63)]
    for stated in lies:
        data = timed_batch(range(count), base=now, stated=stated, compress=compress)
        assert produce(connection, topic, data)[0] == OK
    stored = fetch_batches(connection, topic)
    assert [(one.attributes, one.base_timestamp, one.max_timestamp) for one in stored] == [
        (compress, now, now + count - 1)
    ] * len(lies)
    assert list_offset(connection, topic, LATEST_RECORD) == (OK, count - 1, now + count - 1)
    assert list_offset(connection, topic, now - 10) == (OK, 0, now)
    assert list_offset(connection, topic, now + 4000) == (OK, -1, -1)


@both_codecs
@pytest.mark.parametrize("count", [1, 3, 10])
def test_records_without_a_timestamp(connection, make_topic, count, compress):
    """librdkafka sends base timestamp -1, and a header that states 0."""
    topic = make_topic()
    assert list_offset(connection, topic, LATEST_RECORD) == (OK, -1, -1)
    assert produce(connection, topic, timed_batch([0] * count, base=-1, stated=0, compress=compress))[0] == OK
    (stored,) = fetch_batches(connection, topic)
    assert (stored.base_timestamp, stored.max_timestamp) == (-1, -1)
    assert list_offset(connection, topic, LATEST_RECORD) == (OK, 0, -1)
    assert list_offset(connection, topic, 0) == (OK, -1, -1)


@both_codecs
def test_some_records_without_a_timestamp(connection, make_topic, compress):
    topic = make_topic()
    now = int(time.time() * 1000)
    deltas = [-now - 1 if number % 2 else number for number in range(10)]
    assert produce(connection, topic, timed_batch(deltas, base=now, stated=0, compress=compress))[0] == OK
    one_has = [0] * 9 + [now + 100]
    assert produce(connection, topic, timed_batch(one_has, base=-1, stated=0, compress=compress))[0] == OK
    assert [one.max_timestamp for one in fetch_batches(connection, topic)] == [now + 8, now + 99]
    assert list_offset(connection, topic, LATEST_RECORD) == (OK, 19, now + 99)
    assert list_offset(connection, topic, now + 1) == (OK, 2, now + 2)


@both_codecs
def test_negative_timestamps(connection, make_topic, compress):
    topic = make_topic()
    assert produce(connection, topic, timed_batch([0] * 10, base=-5, stated=-5, compress=compress))[0] == OK
    (stored,) = fetch_batches(connection, topic)
    assert (stored.base_timestamp, stored.max_timestamp) == (-5, -1)
    assert list_offset(connection, topic, LATEST_RECORD) == (OK, -1, -1)


@both_codecs
def test_no_record_may_be_too_far_ahead(connection, make_topic, compress):
    topic = make_topic()
    now = int(time.time() * 1000)

    def refused(deltas: Sequence[int], base: int, stated: int) -> bool:
        data = timed_batch(deltas, base=base, stated=stated, compress=compress)
        return produce(connection, topic, data)[0] == INVALID_TIMESTAMP

    assert refused([0] * 9 + [10 * HOUR_MS], now, now)
    assert refused([0, 0, 10 * HOUR_MS, 0, 0], now, now)
    assert refused([0] * 10, -(2**63), 0)
    assert refused([0] + [5] * 9, 2**63 - 2, 0)
    assert refused([0] + [-2] * 9, -(2**63) + 1, 0)
    assert refused([now] * 10, -(2**63), 0)
    assert fetch_batches(connection, topic) == []


@both_codecs
@pytest.mark.parametrize(
    ("configs", "attributes"),
    [
        ({"cleanup_policy": "compact"}, None),
        ({"compression_type": "gzip"}, GZIP),
        ({"compression_type": "uncompressed"}, 0),
        ({"message_timestamp_before_max_ms": str(HOUR_MS)}, None),
    ],
)
def test_topics_that_change_or_check_records(connection, make_topic, configs, attributes, compress):
    topic = make_topic(**configs)
    now = int(time.time() * 1000)
    assert produce(connection, topic, timed_batch(range(10), base=now, stated=0, compress=compress))[0] == OK
    assert produce(connection, topic, timed_batch([0] * 10, base=-1, stated=0, compress=compress))[0] == OK
    stored = fetch_batches(connection, topic)
    assert [one.max_timestamp for one in stored] == [now + 9, -1]
    assert {one.attributes for one in stored} == {compress if attributes is None else attributes}
    assert list_offset(connection, topic, LATEST_RECORD) == (OK, 9, now + 9)


@both_codecs
def test_log_append_time(connection, make_topic, compress):
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    for base in (-1, before + 10 * HOUR_MS):
        assert produce(connection, topic, timed_batch([0] * 10, base=base, stated=0, compress=compress))[0] == OK
    for stored in fetch_batches(connection, topic):
        assert stored.attributes == compress | LOG_APPEND_TIME
        assert before <= stored.max_timestamp <= int(time.time() * 1000)


def test_retention_uses_the_file_time_if_records_have_no_timestamp(start_broker, unique):
    """librdkafka with timestamp -1 states 1970 in the header. Two segments, one of them active."""
    quick = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "100"}
    broker = start_broker({**quick, "log.retention.ms": str(DAY_MS), "log.roll.ms": str(7 * DAY_MS)})
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        for name in (unique, f"{unique}-old"):
            admin.create_topic(name, configs={"segment.bytes": str(1 << 20)})
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
    for _ in range(1500):
        producer.produce(unique, b"v" * 1000, partition=0, timestamp=-1)
    assert producer.flush(20) == 0
    (log_directory,) = broker.data_dir.rglob(f"{unique}-0")
    log_files = sorted(log_directory.glob("*.log"))
    assert len(log_files) > 1
    with Connection(broker.port) as connection:
        assert len(fetch_batches(connection, unique)) < 1500, "librdkafka sends batches"
        assert {stored.max_timestamp for stored in fetch_batches(connection, unique)} == {-1}
        for _ in range(2):
            # Once both of these are gone, a whole check has begun and ended.
            two_days_ago = int(time.time() * 1000) - 2 * DAY_MS
            assert (
                produce(connection, f"{unique}-old", timed_batch([0], base=two_days_ago, stated=two_days_ago))[0] == OK
            )
            wait_until(lambda: is_empty(connection, f"{unique}-old"))
        assert list_offset(connection, unique, EARLIEST) == (OK, 0, -1)
        for file in log_files:
            os.utime(file, (time.time() - 2 * DAY_MS / 1000,) * 2)
        wait_until(lambda: is_empty(connection, unique))


def is_empty(connection: Connection, topic: str) -> bool:
    return list_offset(connection, topic, EARLIEST) == list_offset(connection, topic, LATEST)
