"""Moves of replicas between log directories (AlterReplicaLogDirs): with Kafka's tools, on Odradek and Apache Kafka."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import limits
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import CLUSTER_ID, NODE_ID
from compat_tests.backends import BROKERS, Broker
from compat_tests.conftest import SHARED_PROPERTIES
from odradek.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestAlterReplicaLogDir,
    AlterReplicaLogDirsRequestAlterReplicaLogDirTopic,
)
from odradek.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.protocol.records import iter_batches, iter_records
from odradek.server.tests.wire import Wire, until

pytestmark = pytest.mark.side_by_side

META = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={NODE_ID}\ndirectory.id=bW9yZWxvZ3NkaXJlY3Rvcg\n"
NONE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, LOG_DIR_NOT_FOUND = 0, 3, 17, 57


class Disks:
    """A broker with two log directories."""

    def __init__(self, broker: Broker, paths: tuple[Path, Path], wire: Wire) -> None:
        self.broker = broker
        self.paths = paths
        self.wire = wire
        self.me = wire.metadata().brokers[0].node_id

    def home(self, topic: str) -> Path:
        """The log directory of partition 0 of a topic, which Apache Kafka creates after its response."""
        [found] = until(lambda: [path for path in self.paths if (path / f"{topic}-0").exists()])
        return found

    def other(self, topic: str) -> Path:
        """The log directory without partition 0 of a topic."""
        home = self.home(topic)
        return next(path for path in self.paths if path != home)

    def request(self, *rows: tuple[str, str, int], version: int = 2) -> dict[tuple[str, int], int]:
        """Request moves of (directory, topic, partition); return the errors."""
        dirs = [
            AlterReplicaLogDirsRequestAlterReplicaLogDir(
                path=path,
                topics=[AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name=topic, partitions=[index])],
            )
            for path, topic, index in rows
        ]
        response = self.wire.ask(AlterReplicaLogDirsRequest(dirs=dirs), version)
        return {
            (topic.topic_name, row.partition_index): row.error_code
            for topic in response.results
            for row in topic.partitions
        }

    def described(self, topic: str) -> list[tuple[str, int, bool]]:
        """Return the directories of partition 0 of a topic, each with its lag and whether it is a future replica."""
        response = self.wire.ask(DescribeLogDirsRequest(topics=None), 4)
        return [
            (result.log_dir, row.offset_lag, row.is_future_key)
            for result in response.results
            for found in result.topics
            for row in found.partitions
            if found.name == topic and row.partition_index == 0
        ]


@pytest.fixture(scope="module")
def disks(backend: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    request.getfixturevalue("kafka_jars")
    directory = tmp_path_factory.mktemp("disks")
    paths = directory / "data", directory / "more"
    if backend == "kafka":
        paths[1].mkdir()
        (paths[1] / "meta.properties").write_text(META)
    properties = {**SHARED_PROPERTIES, "log.dirs": ",".join(map(str, paths))}
    with BROKERS[backend](properties, directory=directory) as broker, Wire(broker.port) as wire:
        yield Disks(broker, paths, wire)


class Load:
    """An idempotent producer in a thread; `acknowledged` are values by offset."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.errors: list[Any] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce, args=(broker.bootstrap_servers, topic))

    def _produce(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1})
        number = 0
        while not self._is_over.is_set():
            producer.produce(topic, b"%d" % number + bytes(500), partition=0, on_delivery=self._delivered)
            producer.poll(0)
            number += 1
            while number - len(self.acknowledged) > 1_000 and not self.errors:
                producer.poll(0.01)
        producer.flush()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged[message.offset()] = message.value()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def read_values(wire: Wire, topic: str, end_offset: int) -> dict[int, bytes | None]:
    """Fetch partition 0 of a topic; return the values by offset."""
    values: dict[int, bytes | None] = {}
    while len(values) < end_offset:
        for batch in iter_batches(wire.fetch(topic, len(values)).records):
            values |= {record.offset: record.value for record in iter_records(batch)}
    return values


def read_log(directory: Path) -> bytes:
    """Return all batches in a partition's directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def test_kafkas_tools_move_a_replica_under_load(disks: Disks, unique: str, tmp_path: Path) -> None:
    disks.wire.create_topic(unique, 1, **{"segment.bytes": 1 << 20})
    servers = "--bootstrap-server", disks.broker.bootstrap_servers
    with Load(disks.broker, unique) as load:
        until(lambda: len(load.acknowledged) > 3_000, limits.CONDITION_S)
        source, target = disks.home(unique), disks.other(unique)
        before = read_log(source / f"{unique}-0")
        row = {"topic": unique, "partition": 0, "replicas": [disks.me], "log_dirs": [str(target)]}
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        options = (*servers, "--reassignment-json-file", str(plan))
        started = tools.run(tools.REASSIGN_PARTITIONS, *options, "--execute")
        assert f"for replica {unique}-0 with broker {disks.me}" in started.stdout
        until(lambda: (target / f"{unique}-0").exists() and not (source / f"{unique}-0").exists(), limits.CONDITION_S)
        count = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > count + 1_000, limits.CONDITION_S)
    verified = tools.run(tools.REASSIGN_PARTITIONS, *options, "--verify")
    assert f"Reassignment of replica {unique}-0-{disks.me} completed successfully." in verified.lines
    assert not load.errors
    assert read_log(target / f"{unique}-0")[: len(before)] == before
    assert disks.described(unique) == [(str(target), 0, False)]
    assert read_values(disks.wire, unique, max(load.acknowledged) + 1) == load.acknowledged


def test_a_move_reports_a_future_replica_until_it_is_cancelled(disks: Disks, unique: str) -> None:
    """The throttle holds the copy; the request to the present directory removes it."""
    disks.wire.create_topic(unique, 1)
    for _ in range(20):
        # Apache Kafka acknowledges the creation of the topic before it has it.
        until(lambda: disks.wire.produce(unique, bytes(200_000)).error_code == 0)
    source, target = str(disks.home(unique)), str(disks.other(unique))
    entity = "--entity-type", "brokers", "--entity-name", str(disks.me)
    alter = "--bootstrap-server", disks.broker.bootstrap_servers, "--alter", *entity
    limit = "replica.alter.log.dirs.io.max.bytes.per.second"
    tools.run(tools.CONFIGS, *alter, "--add-config", f"{limit}=1")
    try:
        assert disks.request((target, unique, 0)) == {(unique, 0): NONE}
        futures = until(lambda: [row for row in disks.described(unique) if row[2]])
        assert futures[0][0] == target
        assert 0 < futures[0][1] <= 20
        assert disks.request((target, unique, 0)) == {(unique, 0): NONE}
        assert (source, 0, False) in disks.described(unique)
        assert disks.request((source, unique, 0)) == {(unique, 0): NONE}
        until(lambda: disks.described(unique) == [(source, 0, False)])
    finally:
        tools.run(tools.CONFIGS, *alter, "--delete-config", limit)
    assert len(read_values(disks.wire, unique, 20)) == 20


def test_errors(disks: Disks, unique: str) -> None:
    disks.wire.create_topic(unique, 1)
    known, elsewhere = str(disks.home(unique)), "/nowhere"
    long = "t" * 249
    for version in (1, 2):
        assert disks.request((elsewhere, unique, 0), version=version) == {(unique, 0): LOG_DIR_NOT_FOUND}
    assert disks.request((known + "/", unique, 0)) == {(unique, 0): LOG_DIR_NOT_FOUND}
    assert disks.request((known, unique, 7)) == {(unique, 7): UNKNOWN_TOPIC_OR_PARTITION}
    assert disks.request((known, f"{unique}-none", 0)) == {(f"{unique}-none", 0): UNKNOWN_TOPIC_OR_PARTITION}
    assert disks.request((known, long, 0)) == {(long, 0): INVALID_TOPIC}
    assert disks.request((elsewhere, long, 0)) == {(long, 0): INVALID_TOPIC}
    assert disks.request((known, unique, 0), (elsewhere, unique, 0)) == {(unique, 0): LOG_DIR_NOT_FOUND}
    assert disks.request((elsewhere, unique, 0), (known, unique, 0)) == {(unique, 0): NONE}
    assert disks.request() == {}


def test_a_replica_is_created_in_the_directory_that_was_named(disks: Disks, unique: str) -> None:
    for number, path in enumerate((*disks.paths, *disks.paths)):
        name = f"{unique}-{number}"
        assert disks.request((str(path), name, 0)) == {(name, 0): UNKNOWN_TOPIC_OR_PARTITION}
        disks.wire.create_topic(name, 1)
        assert disks.home(name) == path
