"""Data directories: Apache Kafka's tools read those of Odradek, and Odradek serves those of Apache Kafka."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.clients import load
from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, Received, read, wait_until
from compat_tests.conftest import SHARED_PROPERTIES
from compat_tests.kill.files import find_complaints

pytestmark = pytest.mark.usefixtures("kafka_jars")

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
CLIENT = load("confluent")
SEGMENT_BYTES = 1_048_576
LARGE = 1500
GROUP = "keeps-its-place"


def fill(bootstrap: str) -> None:
    """Write topics with all possible contents: every codec, several segments, LogAppendTime, deletions, commits."""
    with load("kafka_python").Admin(bootstrap) as admin:
        admin.create_topic("codecs", len(CODECS))
        admin.create_topic("segments", 1, configs={"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "1024"})
        admin.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
        admin.create_topic("with-dots_and-dashes.1", 2)
        for partition, codec in enumerate(CODECS):
            with CLIENT.Producer(bootstrap, ProducerOptions(compression=codec, idempotent=True)) as producer:
                headers = (("a", b"1"), ("a", None))
                producer.produce(
                    "codecs",
                    [Message(b"value %d" % n * 5, b"key %d" % n, headers, partition) for n in range(300)]
                    + [Message(None, b"tombstone", (), partition), Message(b"", None, (), partition)],
                )
        with CLIENT.Producer(bootstrap, ProducerOptions(linger_ms=0)) as producer:
            for start in range(0, LARGE, 50):
                producer.produce("segments", [Message(b"%06d" % n * 400, b"%d" % n) for n in range(start, start + 50)])
            producer.produce("stamped", [Message(b"%d" % n) for n in range(20)])
            producer.produce("with-dots_and-dashes.1", [Message(b"x", partition=1)])
        with CLIENT.Consumer(bootstrap, ConsumerOptions(group=GROUP)) as consumer:
            consumer.assign([("codecs", 0)])
            consumer.commit({("codecs", 0): (123, "half way"), ("segments", 0): (LARGE, "")})
        admin.delete_records(("stamped", 0), 5)


def everything(bootstrap: str) -> dict[tuple[str, int], list[Received]]:
    """Return all records of all partitions that `fill` wrote, with offsets and timestamps."""
    partitions = [("codecs", n) for n in range(len(CODECS))]
    partitions += [
        ("segments", 0),
        ("stamped", 0),
        ("with-dots_and-dashes.1", 0),
        ("with-dots_and-dashes.1", 1),
    ]
    found = {}
    with CLIENT.Consumer(bootstrap, ConsumerOptions()) as consumer:
        for partition in partitions:
            start, end = consumer.bounds(partition)
            consumer.assign([partition])
            found[partition] = read(consumer, end - start)
    return found


def since(records: list[Received], known: list[Received]) -> list[Received]:
    """Omit records below the first known one: a crash may restore deleted records, which are then deleted again."""
    return [r for r in records if not known or r.offset >= known[0].offset]


def dump(files: list[Path], *arguments: str) -> str:
    listed = ",".join(map(str, sorted(files)))
    result = tools.run(tools.DUMP_LOG_SEGMENTS, *arguments, "--files", listed, heap="512m")
    assert find_complaints(result.stderr) == []
    return result.stdout


def sections(dumped: str) -> dict[str, str]:
    """Return the output for each file, by its path."""
    parts = re.split(r"^Dumping (\S+)\n", dumped, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


BOTH_ENDINGS = pytest.mark.parametrize(
    "clean",
    [pytest.param(True, id="stopped", marks=pytest.mark.side_by_side), pytest.param(False, id="killed")],
)


@BOTH_ENDINGS
def test_dump_log_segments_reads_every_file(start_broker: Callable[..., Any], clean: bool) -> None:
    """Logs with deep iteration, offset and time indexes, producer snapshots and the offsets topic."""
    broker = start_broker()
    fill(broker.bootstrap_servers)
    if not clean:
        # A second start, so that there are also files of a recovery.
        broker.restart(clean=False)
        everything(broker.bootstrap_servers)
    broker.stop() if clean else broker.kill()
    data = Path(broker.data_dir)
    logs = [*data.glob("codecs-*/*.log"), *data.glob("segments-0/*.log"), *data.glob("stamped-0/*.log")]
    dumped = dump(logs, "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in dumped
    assert "isvalid: true" in dumped
    offsets: dict[str, list[int]] = {}
    for path, text in sections(dumped).items():
        found = map(int, re.findall(r"^\| offset: (\d+) ", text, re.MULTILINE))
        offsets.setdefault(Path(path).parent.name, []).extend(found)
    expected = {f"codecs-{n}": list(range(302)) for n in range(len(CODECS))}
    assert offsets == {**expected, "segments-0": list(range(LARGE)), "stamped-0": list(range(20))}
    assert len([log for log in logs if log.parent.name == "segments-0"]) > 2

    indexes = [*data.glob("segments-0/*.index"), *data.glob("segments-0/*.timeindex")]
    snapshots = [*data.glob("codecs-*/*.snapshot"), *data.glob("segments-0/*.snapshot")]
    dumped = dump([i for i in indexes if i.stat().st_size] + snapshots)
    assert "is corrupt" not in dumped
    assert "Could not" not in dumped
    per_file = sections(dumped)
    assert any(p.endswith(".index") and "offset: " in text for p, text in per_file.items())
    assert any(p.endswith(".timeindex") and "timestamp: " in text for p, text in per_file.items())
    assert not clean or any(p.endswith(".snapshot") and "producerId: " in text for p, text in per_file.items())

    commits = dump(list(data.glob("__consumer_offsets-*/*.log")), "--deep-iteration", "--offsets-decoder")
    assert f'"group":"{GROUP}"' in commits
    # librdkafka's binding appends a NUL to the text.
    assert re.search(r'"offset":123.*"metadata":"half way', commits)


@pytest.mark.side_by_side
def test_the_other_files_have_kafkas_form(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    fill(broker.bootstrap_servers)
    broker.stop()
    data = Path(broker.data_dir)
    assert (data / ".kafka_cleanshutdown").exists()
    properties = dict(
        line.split("=", 1) for line in (data / "meta.properties").read_text().splitlines() if line[:1] != "#"
    )
    assert properties["version"] == "1"
    assert {"cluster.id", "node.id", "directory.id"} <= set(properties)
    assert len(properties["directory.id"]) == len(properties["cluster.id"]) == 22
    for partition in ("codecs-0", "segments-0"):
        text = (data / partition / "partition.metadata").read_text()
        assert re.fullmatch(r"version: 0\ntopic_id: [A-Za-z0-9_-]{22}", text)
        assert re.fullmatch(r"0\n1\n\d+ 0\n", (data / partition / "leader-epoch-checkpoint").read_text())
    offsets = {
        name: checkpoint(data / name)
        for name in (
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "log-start-offset-checkpoint",
        )
    }
    assert offsets["recovery-point-offset-checkpoint"]["segments-0"] == LARGE
    assert offsets["replication-offset-checkpoint"]["codecs-3"] == 302
    assert offsets["log-start-offset-checkpoint"] == {"stamped-0": 5}


def checkpoint(path: Path) -> dict[str, int]:
    version, count, *lines = path.read_text().splitlines()
    assert version == "0"
    assert len(lines) == int(count)
    rows = [line.split(" ") for line in lines]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


@BOTH_ENDINGS
def test_a_directory_of_apache_kafka_is_served(
    backend: str, start_broker: Callable[..., Any], tmp_path: Path, clean: bool
) -> None:
    """The records, offsets, timestamps, topic ids and commits are the same; writes continue at the next offset.

    With Apache Kafka as the backend, Apache Kafka itself serves its directory again.
    """
    with ApacheKafkaBroker(SHARED_PROPERTIES, directory=tmp_path) as writer:
        fill(writer.bootstrap_servers)
        before = everything(writer.bootstrap_servers)
        ids = topic_ids(writer.bootstrap_servers)
        writer.stop() if clean else writer.kill()
    broker = start_broker({"log.dirs.adopt": "true"}, directory=tmp_path)
    bootstrap = broker.bootstrap_servers
    with load("kafka_python").Admin(bootstrap) as admin:
        wait_until(lambda: set(ids) <= admin.topics(), what=f"topics {sorted(ids)}")
        assert {p: since(records, before[p]) for p, records in everything(bootstrap).items()} == before
        assert topic_ids(bootstrap) == ids
        wait_until(lambda: admin.group_offsets(GROUP), what="commits")
        assert admin.group_offsets(GROUP) == {("codecs", 0): 123, ("segments", 0): LARGE}
    with CLIENT.Producer(bootstrap, ProducerOptions()) as producer:
        assert producer.produce("segments", [Message(b"next")])[0].offset == LARGE
        assert producer.produce("codecs", [Message(b"next", partition=4)])[0].offset == 302
    # Partition 0 has state of Apache Kafka's producer 0: its id is not allocated again.
    with CLIENT.Producer(bootstrap, ProducerOptions(idempotent=True)) as producer:
        assert producer.produce("codecs", [Message(b"next", partition=0)])[0].offset == 302


def topic_ids(bootstrap: str) -> dict[str, Any]:
    with load("kafka_python").Admin(bootstrap) as admin:
        described = admin._admin.describe_topics()
    return {t["name"]: t["topic_id"] for t in described if not t["is_internal"]}


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_preallocated_segments_go_both_ways(start_broker: Callable[..., Any], tmp_path: Path, clean: bool) -> None:
    """With log.preallocate the active segment's file has its full size, as a hole; a stop truncates it, a crash not."""
    properties = {"log.preallocate": "true", "log.segment.bytes": str(SEGMENT_BYTES)}
    expected: list[bytes | None] = []

    def log_file() -> Path:
        (path,) = tmp_path.glob("data/preallocated-0/*.log")
        return path

    def write(broker: Any) -> None:
        for _ in range(3):
            value = b"%d" % len(expected)
            with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
                assert producer.produce("preallocated", [Message(value)])[0].offset == len(expected)
            expected.append(value)

    def check_file(broker: Any) -> None:
        size = log_file().stat()
        assert size.st_size == SEGMENT_BYTES
        assert size.st_blocks * 512 < SEGMENT_BYTES // 4
        broker.stop() if clean else broker.kill()
        assert (log_file().stat().st_size < 10_000) == clean

    def read_all(broker: Any) -> list[bytes | None]:
        with CLIENT.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
            consumer.assign([("preallocated", 0)])
            return [record.value for record in read(consumer, len(expected))]

    with ApacheKafkaBroker({**SHARED_PROPERTIES, **properties}, directory=tmp_path) as kafka:
        with load("kafka_python").Admin(kafka.bootstrap_servers) as admin:
            admin.create_topic("preallocated")
        write(kafka)
        check_file(kafka)
    broker = start_broker({**properties, "log.dirs.adopt": "true"}, directory=tmp_path)
    wait_until(lambda: read_all(broker) == expected, what="the records")
    write(broker)
    check_file(broker)
    with ApacheKafkaBroker({**SHARED_PROPERTIES, **properties}, directory=tmp_path) as kafka:
        wait_until(lambda: read_all(kafka) == expected, what="the records")
        write(kafka)
        kafka.stop() if clean else kafka.kill()
    broker = start_broker(directory=tmp_path)
    assert read_all(broker) == expected
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        assert producer.produce("preallocated", [Message(b"last")])[0].offset == len(expected)
    assert "Traceback" not in broker.log_text()
