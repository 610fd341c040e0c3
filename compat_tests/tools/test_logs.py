"""`odradek log` on directories of Odradek and Apache Kafka: the facts of Kafka's DumpLogSegments, and no findings.

Each directory has all codecs, headers, several segments, transactions that were committed, aborted and left open,
commits of offsets, a group, and a compacted topic.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.backends import BROKERS
from compat_tests.clients import load
from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, wait_until
from compat_tests.conftest import SHARED_PROPERTIES
from odradek.tools.cli.main import main

pytestmark = pytest.mark.usefixtures("kafka_jars")

CLIENT = load("confluent")
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
GROUP, MEMBERS = "committed", "subscribed"
SEGMENTED, COMPACTED, TRANSACTIONS = "segmented", "compacted", "transactions"
QUICK = {
    **SHARED_PROPERTIES,
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0",
    "log.segment.delete.delay.ms": "20",
    "log.initial.task.delay.ms": "0",
}


def fill(bootstrap: str, data: Path) -> None:
    with load("kafka_python").Admin(bootstrap) as admin:
        admin.create_topic("codecs", len(CODECS))
        configs = {"segment.bytes": str(1 << 20), "index.interval.bytes": "1024"}
        admin.create_topic(SEGMENTED, 1, configs=configs)
        admin.create_topic(COMPACTED, 1, configs={"cleanup.policy": "compact", "segment.ms": "1000"})
        admin.create_topic(TRANSACTIONS, 1)
        admin.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
    for partition, codec in enumerate(CODECS):
        with CLIENT.Producer(bootstrap, ProducerOptions(compression=codec, idempotent=True)) as producer:
            headers = (("first", b"1"), ("second", None))
            records = [Message(b"value %d" % n * 5, b"key %d" % n, headers, partition) for n in range(200)]
            producer.produce("codecs", [*records, Message(None, b"tombstone", (), partition)])
    with CLIENT.Producer(bootstrap, ProducerOptions(linger_ms=0)) as producer:
        for start in range(0, 900, 50):
            producer.produce(SEGMENTED, [Message(b"%06d" % n * 400, b"%d" % n) for n in range(start, start + 50)])
        producer.produce("stamped", [Message(b"%d" % n) for n in range(20)])
    fill_transactions(bootstrap)
    fill_groups(bootstrap)
    compact(bootstrap, data)


def fill_transactions(bootstrap: str) -> None:
    open_one = CLIENT.Producer(bootstrap, ProducerOptions(transactional_id="open", idempotent=True))
    with CLIENT.Producer(bootstrap, ProducerOptions(transactional_id="ended", idempotent=True)) as producer:
        for number in range(6):
            producer.begin()
            producer.produce(TRANSACTIONS, [Message(b"%d" % number, b"key")])
            if number == 2:
                open_one.begin()
                open_one.produce(TRANSACTIONS, [Message(b"open", b"key")])
            producer.abort() if number % 2 else producer.commit()
    open_one.close()


def fill_groups(bootstrap: str) -> None:
    with CLIENT.Consumer(bootstrap, ConsumerOptions(group=GROUP)) as consumer:
        consumer.assign([("codecs", 0)])
        consumer.commit({("codecs", 0): (123, "half way"), (SEGMENTED, 0): (9, "")})
    with CLIENT.Consumer(bootstrap, ConsumerOptions(group=MEMBERS)) as consumer:
        consumer.subscribe(["stamped"], None)
        wait_until(lambda: consumer.poll(0.1), what="records of the group")


def compact(bootstrap: str, data: Path) -> None:
    """Write segments with the same keys, and wait until they are compacted."""
    then_ms = int(time.time() * 1000) - 3_600_000
    with CLIENT.Producer(bootstrap, ProducerOptions(linger_ms=0)) as producer:
        for number in range(4):
            keys = [b"a", b"b", b"%d" % number]
            records = [Message(b"%d" % number, key, (), 0, then_ms + 5000 * number) for key in keys]
            producer.produce(COMPACTED, records)
    checkpoint = data / "cleaner-offset-checkpoint"
    wait_until(lambda: checkpoint.exists() and f"\n{COMPACTED} 0 " in checkpoint.read_text(), what="a compaction")


@pytest.fixture(scope="module", params=["odradek", "kafka"])
def data(request: pytest.FixtureRequest, kafka_jars: object) -> Iterator[Path]:
    """The data directory of a broker that has stopped."""
    directory = request.getfixturevalue("tmp_path_factory").mktemp("log-tools")
    with BROKERS[request.param](QUICK, directory=directory) as broker:
        data = Path(broker.data_dir)
        fill(broker.bootstrap_servers, data)
        assert main(["log", "verify", str(data)]) == 0, "while the broker uses the directory"
        broker.stop()
        yield data


Dump = Callable[..., dict[str, list[str]]]


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    """`odradek log dump`: the lines for each file that has any."""

    def run(*arguments: object) -> dict[str, list[str]]:
        capsys.readouterr()
        assert main(["log", "dump", *map(str, arguments)]) == 0
        return split(capsys.readouterr().out)

    return run


def split(output: str) -> dict[str, list[str]]:
    parts = re.split(r"^Dumping (\S+)\n", output, flags=re.MULTILINE)
    lines = {
        path: [line.strip() for line in text.splitlines()] for path, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {path: found for path, found in lines.items() if found}


def dump_with_kafka(files: list[Path], *options: str) -> dict[str, list[str]]:
    """DumpLogSegments: its lines in the form of `odradek log dump`."""
    listed = ",".join(map(str, sorted(file for file in files if file.stat().st_size)))
    output = tools.run(tools.DUMP_LOG_SEGMENTS, *options, "--files", listed).stdout
    output = re.sub(r"^(Log starting offset|Snapshot end offset): .*\n", "", output, flags=re.MULTILINE)
    return split(re.sub(r"OptionalLong(\.empty|\[(\d+)\])", lambda match: match[2] or "none", output))


def without_values(line: str) -> str:
    """Return a record's line with the names of its headers only, and without a key or value that is null."""
    headers = re.search(r" headers: \[(.*?)\]", line)
    assert headers is not None
    names = ",".join(pair.partition("=")[0] for pair in headers[1].split(",") if pair)
    line = line.replace(headers[0], f" headerKeys: [{names}]", 1)
    return line.replace(" key: null", "").replace(" payload: null", "")


def files_of(data: Path, *patterns: str) -> list[Path]:
    return [file for pattern in patterns for file in data.glob(pattern) if not file.parent.name.startswith("__")]


def test_batches_and_records(data: Path, dump: Dump):
    files = files_of(data, "*/*.log")
    found = dump("--records", *files)
    found = {
        path: [without_values(each) if each.startswith("| ") else each for each in lines]
        for path, lines in found.items()
    }
    assert found == dump_with_kafka(files, "--deep-iteration", "--print-data-log")
    names = {Path(path).parent.name for path in found}
    assert {*(f"codecs-{n}" for n in range(5)), f"{SEGMENTED}-0", f"{COMPACTED}-0", f"{TRANSACTIONS}-0"} <= names
    assert len([path for path in found if f"/{SEGMENTED}-0/" in path]) > 2
    assert any("endTxnMarker: ABORT" in line for lines in found.values() for line in lines)


def test_headers_and_keys(data: Path, dump: Dump):
    [path] = (data / "codecs-1").glob("*.log")
    [_, line] = dump("--records", "--from-offset", 7, "--max-records", 1, path)[str(path)]
    assert line.endswith(f"headers: [first=1,second=null] key: key 7 payload: {'value 7' * 5}")


def test_indexes_and_snapshots(data: Path, dump: Dump):
    files = files_of(data, "*/*.index", "*/*.timeindex", "*/*.txnindex", "*/*.snapshot")
    found = dump(*files)
    expected = dump_with_kafka(files)
    assert found == {path: lines for path, lines in expected.items() if not lines[-1].endswith(" is empty.")}
    assert {Path(path).suffix for path in found} == {".index", ".timeindex", ".txnindex", ".snapshot"}


def has_fields(found: Any, expected: Any) -> bool:
    """Return whether a decoded value has Kafka's fields, whose names are in camel case; Kafka omits some defaults."""
    if isinstance(expected, dict):
        return all(
            has_fields(found[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()], expected[name]) for name in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(has_fields, found, expected))
    return bool(found == expected)


TYPES = {"0": "OFFSET_COMMIT_LEGACY", "1": "OFFSET_COMMIT", "2": "GROUP_METADATA"}
_DECODED = re.compile(r"\| offset: (\d+) .*? key: (\{.*?\})(?: payload: (.*))?$")


@pytest.mark.parametrize(
    ("topic", "decoder", "types"),
    [
        ("__consumer_offsets", "--offsets-decoder", {"OFFSET_COMMIT", "GROUP_METADATA"}),
        ("__transaction_state", "--transaction-log-decoder", {"TRANSACTION_LOG"}),
    ],
)
def test_internal_topics(data: Path, capsys: pytest.CaptureFixture[str], topic: str, decoder: str, types: set[str]):
    files = sorted(file for file in data.glob(f"{topic}-*/*.log") if file.stat().st_size)
    lines = [line for each in dump_with_kafka(files, decoder).values() for line in each if line.startswith("| ")]
    lines = [line for line in lines if "endTxnMarker" not in line]
    capsys.readouterr()
    assert main(["log", "dump", "--records", "--json", *map(str, files)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    records = [row for row in rows if row["type"] == "record" and "control_type" not in row]
    assert {row["record_type"] for row in records} == types
    for row, line in zip(records, lines, strict=True):
        match = _DECODED.match(line)
        assert match is not None, line
        offset, key, payload = match.groups()
        kind, value = json.loads(key), json.loads(payload or "null")
        assert row["offset"] == int(offset)
        assert row["record_type"] == ("TRANSACTION_LOG" if kind["type"] == "0" else TYPES[kind["type"]])
        assert has_fields(row["record_key"], kind["data"])
        assert has_fields(row["record_value"], value and value["data"]), line


def test_nothing_is_found_in_intact_directories(data: Path, capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    assert main(["log", "verify", str(data)]) == 0
    assert re.search(r"checked: 0 errors, 0 warnings, \d+ notes?$", capsys.readouterr().out)


def test_a_partition_that_lost_a_byte(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The copy of a partition, whose file ends early."""
    copy = tmp_path / f"{SEGMENTED}-0"
    copy.mkdir()
    for file in (data / f"{SEGMENTED}-0").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    [first, *_] = sorted(copy.glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["log", "verify", "--json", str(copy)]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ("error", "batch", str(first)) in {(row.get("severity"), row.get("check"), row.get("path")) for row in rows}
