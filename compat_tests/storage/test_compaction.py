"""Compacted topics through real clients: the remaining records, refused records, and the files.

Segments roll because of the records' timestamps, and the brokers check for work ten times a second; tests wait for
the results by reading.
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import limits
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.backends import BROKERS, Broker
from compat_tests.clients import load
from compat_tests.clients.common import (
    Admin,
    ClientError,
    Code,
    ConsumerOptions,
    Message,
    ProducerOptions,
    Received,
    wait_until,
)
from compat_tests.conftest import SHARED_PROPERTIES

CLIENT = load("confluent")
QUICK = {
    **SHARED_PROPERTIES,
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "0",
}
SEGMENT_MS = 1000
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": str(SEGMENT_MS),
    "delete.retention.ms": "200",
    "max.message.bytes": "100000",
}
HOUR_MS = 3_600_000
TIMEOUT_SECONDS = 100
TICK = b"tick"


@pytest.fixture(scope="module")
def quick(backend: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that compacts as soon as there is something to compact."""
    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    with BROKERS[backend](QUICK) as started:
        yield started


@pytest.fixture
def admin(quick: Broker) -> Iterator[Admin]:
    with load("kafka_python").Admin(quick.bootstrap_servers) as made:
        yield made


class Clock:
    """Timestamps that make the next batch begin a segment."""

    def __init__(self, ago_ms: int = HOUR_MS) -> None:
        self.now_ms = int(time.time() * 1000) - ago_ms

    def roll(self) -> int:
        self.now_ms += 2 * SEGMENT_MS
        return self.now_ms


def write(producer: Any, topic: str, clock: Clock, records: list[tuple[bytes, bytes | None]]) -> None:
    """Write one batch, in its own segment if it is small."""
    timestamp_ms = clock.roll()
    producer.produce(topic, [Message(value, key, (), 0, timestamp_ms) for key, value in records])


def read_all(bootstrap: str, topic: str, *, committed_only: bool = False) -> list[Received]:
    """Return all records up to the last one, which consumers must be able to read."""
    records: list[Received] = []
    with CLIENT.Consumer(bootstrap, ConsumerOptions(committed_only=committed_only)) as consumer:
        _, end = consumer.bounds((topic, 0))
        consumer.assign([(topic, 0)])
        give_up_at = time.monotonic() + limits.CONDITION_S
        while not records or records[-1].offset < end - 1:
            records += consumer.poll(0.2)
            assert time.monotonic() < give_up_at, f"{records[-1:]} is the last of {topic} before {end}"
    return records


def is_compacted(records: list[Received]) -> bool:
    """Return whether each key occurs once, except for the key that only makes segments roll."""
    keys = [record.key for record in records if record.key != TICK]
    return len(keys) == len(set(keys))


def wait_for(
    bootstrap: str,
    topic: str,
    clock: Clock,
    condition: Callable[[list[Received]], bool],
    **options: Any,
) -> list[Received]:
    """Write further records until the records read meet a condition; return these."""

    records: list[Received] = []

    def meets() -> bool:
        nonlocal records
        write(producer, topic, clock, [(TICK, b"%d" % clock.now_ms)])
        records = read_all(bootstrap, topic, **options)
        return condition(records)

    def what() -> str:
        return f"compaction of {topic}, in which there are {[(r.offset, r.key, r.value) for r in records]}"

    with CLIENT.Producer(bootstrap, ProducerOptions()) as producer:
        wait_until(meets, TIMEOUT_SECONDS, what)
    return records


def without_ticks(records: list[Received]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records if record.key != TICK}


@pytest.mark.side_by_side
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_the_last_value_of_each_key_is_left(quick: Broker, admin: Admin, unique: str, codec: str | None) -> None:
    bootstrap, clock = quick.bootstrap_servers, Clock()
    admin.create_topic(unique, configs=COMPACT)
    expected: dict[bytes, bytes | None] = {}
    offsets: dict[bytes, int] = {}
    end = 0
    with CLIENT.Producer(bootstrap, ProducerOptions(compression=codec, idempotent=True)) as producer:
        for number in range(20):
            records: list[tuple[bytes, bytes | None]] = [
                (b"key%d" % (key % 15), b"%d of %d" % (number, key)) for key in range(number, number + 10)
            ]
            records.append((b"deleted%d" % (number % 3), b"value" if number < 10 else None))
            write(producer, unique, clock, records)
            for key, value in records:
                expected[key], offsets[key] = value, end
                end += 1
    left = {key: value for key, value in expected.items() if value is not None}
    found = wait_for(bootstrap, unique, clock, lambda records: is_compacted(records) and without_ticks(records) == left)
    kept = {record.key: record.offset for record in found if record.key != TICK}
    assert kept == {key: offsets[key] for key in left}, "records stay where they were"
    assert [record.offset for record in found] == sorted(record.offset for record in found)
    # Their producers continue: another record, and another reader.
    with CLIENT.Producer(bootstrap, ProducerOptions(idempotent=True)) as producer:
        producer.produce(unique, [Message(b"new", b"key3", (), 0, clock.roll())])
    assert without_ticks(read_all(bootstrap, unique))[b"key3"] == b"new"


@pytest.mark.side_by_side
def test_a_tombstone_is_kept_for_a_while(quick: Broker, admin: Admin, unique: str) -> None:
    """A tombstone is kept for delete.retention.ms, so that a slow reader does not miss it."""
    bootstrap, clock = quick.bootstrap_servers, Clock()
    admin.create_topic(unique, configs={**COMPACT, "delete.retention.ms": str(HOUR_MS)})
    with CLIENT.Producer(bootstrap, ProducerOptions()) as producer:
        for value in (b"1", b"2", None):
            write(producer, unique, clock, [(b"a", value), (b"b", value or b"3")])
    found = wait_for(bootstrap, unique, clock, is_compacted)
    assert without_ticks(found) == {b"a": None, b"b": b"3"}
    again = wait_for(bootstrap, unique, clock, lambda records: records[2].offset > found[-1].offset)
    assert without_ticks(again) == {b"a": None, b"b": b"3"}


@pytest.mark.side_by_side
def test_records_without_a_key_are_refused(quick: Broker, admin: Admin, unique: str) -> None:
    admin.create_topic(unique, configs=COMPACT)
    bootstrap = quick.bootstrap_servers
    # Both records are in one batch, which `flush` sends.
    with CLIENT.Producer(bootstrap, ProducerOptions(linger_ms=5000)) as producer:
        with pytest.raises(ClientError) as refused:
            producer.produce(unique, [Message(b"value"), Message(b"value", b"key")])
        assert refused.value.code == Code.INVALID_RECORD
        assert producer.produce(unique, [Message(b"value", b"key")])[0].offset == 0
    # Java's producer reports the error of the record.
    arguments = ["--bootstrap-server", bootstrap, "--topic", unique, "--sync"]
    reported = tools.run(tools.CONSOLE_PRODUCER, *arguments, stdin="value\n", check=False)
    assert "InvalidRecordException" in reported.stderr
    assert re.search(r"without (a )?key", reported.stderr)
    assert [record.key for record in read_all(bootstrap, unique)] == [b"key"]


@pytest.mark.side_by_side
def test_both_policies_at_once(quick: Broker, admin: Admin, unique: str) -> None:
    """Old segments are deleted whole; in the others the last value of each key remains."""
    bootstrap = quick.bootstrap_servers
    configs = {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": str(10 * HOUR_MS)}
    admin.create_topic(unique, configs=configs)
    old, clock = Clock(20 * HOUR_MS), Clock()

    def begins_at(topic: str) -> int:
        with CLIENT.Consumer(bootstrap, ConsumerOptions()) as consumer:
            return consumer.bounds((topic, 0))[0]

    with CLIENT.Producer(bootstrap, ProducerOptions()) as producer:
        for value in (b"1", b"2"):
            write(producer, unique, old, [(b"old", value), (b"both", value)])

        # Compaction merges segments; a merged segment with a new record would not be deleted.
        def has_rolled() -> bool:
            write(producer, unique, old, [(TICK, b"")])
            return begins_at(unique) >= 4

        wait_until(has_rolled, TIMEOUT_SECONDS)
        for value in (b"3", b"4"):
            write(producer, unique, clock, [(b"new", value), (b"both", value)])
    found = wait_for(bootstrap, unique, clock, is_compacted)
    assert without_ticks(found) == {b"new": b"4", b"both": b"4"}


@pytest.mark.side_by_side
def test_a_topic_may_be_changed_to_compaction_and_back(quick: Broker, admin: Admin, unique: str) -> None:
    bootstrap, clock = quick.bootstrap_servers, Clock()
    admin.create_topic(unique, configs={**COMPACT, "cleanup.policy": "delete", "retention.ms": "-1"})
    with CLIENT.Producer(bootstrap, ProducerOptions()) as producer:
        for value in (b"1", b"2", b"3"):
            timestamp_ms = clock.roll()
            producer.produce(
                unique, [Message(value, b"a", (), 0, timestamp_ms), Message(b"no key", None, (), 0, timestamp_ms)]
            )
    admin.set_config(unique, "cleanup.policy", "compact")
    found = wait_for(bootstrap, unique, clock, lambda records: is_compacted(records))
    assert without_ticks(found) == {b"a": b"3"}, "records without a key are removed"
    admin.set_config(unique, "cleanup.policy", "delete")
    with CLIENT.Producer(bootstrap, ProducerOptions()) as producer:
        for last in (None, b"4", b"5"):
            write(producer, unique, clock, [(b"b", last)])
    assert [record.value for record in read_all(bootstrap, unique)][-3:] == [None, b"4", b"5"]


@pytest.mark.side_by_side
def test_compaction_of_the_offsets_topic_keeps_the_commits(start_broker: Callable[..., Any]) -> None:
    broker = start_broker({**QUICK, "offsets.topic.num.partitions": "1"})
    bootstrap = broker.bootstrap_servers
    with load("kafka_python").Admin(bootstrap) as admin:
        admin.create_topic("t")
        with CLIENT.Consumer(bootstrap, ConsumerOptions(group="rare")) as consumer:
            consumer.assign([("t", 0)])
            consumer.commit({("t", 0): (7, "kept")})
        for name, value in (("segment.ms", "50"), ("min.cleanable.dirty.ratio", "0.01")):
            admin.set_config("__consumer_offsets", name, value)
        last = 0
        with CLIENT.Consumer(bootstrap, ConsumerOptions(group="busy")) as consumer:
            consumer.assign([("t", 0)])

            def is_clean_enough() -> bool:
                nonlocal last
                last += 1
                consumer.commit({("t", 0): (last, "")})
                return cleaned_to(broker, "__consumer_offsets-0") > 20

            wait_until(is_clean_enough, TIMEOUT_SECONDS, what="compaction of the offsets topic")
    for clean in (True, False):
        broker.restart(clean=clean)
        with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
            wait_until(lambda: has_offsets(admin, "rare") and has_offsets(admin, "busy"), what="the commits")
            assert admin.group_offsets("rare") == {("t", 0): 7}
            assert admin.group_offsets("busy") == {("t", 0): last}


def has_offsets(admin: Admin, group: str) -> bool:
    try:
        return bool(admin.group_offsets(group))
    except ClientError:
        # The coordinator is still loading.
        return False


def cleaned_to(broker: Broker, partition: str) -> int:
    """Return a partition's offset in the broker's checkpoint; 0 if there is none yet."""
    try:
        lines = (Path(broker.data_dir) / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    except FileNotFoundError:
        return 0
    rows = [line.split(" ") for line in lines]
    return {f"{topic}-{number}": int(offset) for topic, number, offset in rows}.get(partition, 0)


# The files


def fill_with_everything(bootstrap: str, topic: str, clock: Clock) -> list[Received]:
    """Write values, tombstones, codecs and transactions of both outcomes, compacted; return the remaining records."""
    for number in range(3):
        for codec in (None, "gzip", "snappy", "lz4", "zstd"):
            with CLIENT.Producer(bootstrap, ProducerOptions(compression=codec, idempotent=True)) as producer:
                records = [(b"%d" % key, b"%d %d" % (number, key) * 20) for key in range(number * 5, 40)]
                write(producer, topic, clock, [*records, (b"gone", None), (b"t%d" % number, b"1")])
        for is_commit in (True, False):
            options = ProducerOptions(transactional_id=f"{topic}-{is_commit}")
            with CLIENT.Producer(bootstrap, options) as producer:
                producer.begin()
                write(producer, topic, clock, [(b"in", b"%d" % number), (b"only %r" % is_commit, b"1")])
                producer.commit() if is_commit else producer.abort()
    expected = {b"in", b"only True", *(b"t%d" % n for n in range(3)), *(b"%d" % n for n in range(40))}
    return wait_for(
        bootstrap,
        topic,
        clock,
        lambda records: is_compacted(records) and set(without_ticks(records)) == expected,
        committed_only=True,
    )


def check_files(directory: Path) -> str:
    """Check every file of a partition with Kafka's tool; return its output for the logs."""

    def dump(*suffixes: str) -> str:
        files = [path for path in sorted(directory.iterdir()) if path.suffix in suffixes and path.stat().st_size]
        arguments = ["--deep-iteration", "--print-data-log"] if ".log" in suffixes else []
        reported = tools.run(tools.DUMP_LOG_SEGMENTS, *arguments, "--files", ",".join(map(str, files)), heap="512m")
        for complaint in ("Mismatches", "not found", "Index timestamp", "Indexed offset", "corrupt", "Could not"):
            assert complaint not in reported.stdout
        assert "Exception" not in reported.stderr
        return reported.stdout

    logs = dump(".log")
    assert "isvalid: false" not in logs
    assert "isvalid: true" in logs
    indexes = dump(".index", ".timeindex", ".snapshot")
    assert "offset: " in indexes
    if any(path.suffix == ".txnindex" for path in directory.iterdir()):
        assert "producerId: " in dump(".txnindex")
    return logs


@pytest.mark.side_by_side
def test_kafkas_tool_reads_every_file_of_a_compacted_log(start_broker: Callable[..., Any]) -> None:
    broker = start_broker(QUICK)
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", configs={**COMPACT, "index.interval.bytes": "200"})
    # Ahead of the broker's clock, which determines the timestamps of transaction markers.
    fill_with_everything(broker.bootstrap_servers, "t", Clock(0))
    broker.stop()
    logs = check_files(Path(broker.data_dir) / "t-0")
    assert "endTxnMarker: COMMIT" in logs


def test_apache_kafka_serves_a_log_that_odradek_compacted(start_broker: Callable[..., Any], tmp_path: Path) -> None:
    """Apache Kafka creates a directory, Odradek fills and compacts it, and Apache Kafka serves it again."""
    with ApacheKafkaBroker(QUICK, directory=tmp_path) as kafka:
        with load("kafka_python").Admin(kafka.bootstrap_servers) as admin:
            admin.create_topic("t", configs=COMPACT)
        with CLIENT.Producer(kafka.bootstrap_servers, ProducerOptions()) as producer:
            producer.produce("t", [Message(b"first", b"first", (), 0)])
        kafka.stop()
    clock = Clock(0)
    broker = start_broker({**QUICK, "log.dirs.adopt": "true"}, directory=tmp_path)
    bootstrap = broker.bootstrap_servers
    with load("kafka_python").Admin(bootstrap) as admin:
        wait_until(lambda: "t" in admin.topics(), what="the topic")
    with CLIENT.Producer(bootstrap, ProducerOptions(idempotent=True)) as producer:
        for number in range(10):
            write(producer, "t", clock, [(b"%d" % (number % 4), b"%d" % number), (b"gone", None), (b"first", b"x")])
    wait_for(bootstrap, "t", clock, lambda records: is_compacted(records) and b"gone" not in without_ticks(records))
    ours = read_all(bootstrap, "t")
    broker.stop()
    with ApacheKafkaBroker({**QUICK, "log.cleaner.backoff.ms": "3600000"}, directory=tmp_path) as kafka:
        with load("kafka_python").Admin(kafka.bootstrap_servers) as admin:
            wait_until(lambda: "t" in admin.topics(), what="the topic")
        theirs = read_all(kafka.bootstrap_servers, "t")
        # More of the records that made segments roll may have been removed since.
        assert [record for record in theirs if record.key != TICK] == [record for record in ours if record.key != TICK]
        # Not idempotent: each broker allocates producer ids separately, beginning with the same one.
        with CLIENT.Producer(kafka.bootstrap_servers, ProducerOptions()) as producer:
            assert producer.produce("t", [Message(b"next", b"0", (), 0)])[0].offset == ours[-1].offset + 1
