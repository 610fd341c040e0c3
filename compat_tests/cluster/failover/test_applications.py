"""Kafka Streams, MirrorMaker 2 and distributed Connect, while a broker is killed."""

import json
import os
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests import processes
from compat_tests.apache_kafka.applications import (
    CONNECT,
    MIRROR_MAKER,
    WORD_COUNT,
    WORD_COUNT_INPUT,
    WORD_COUNT_OUTPUT,
    application,
)
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.apache_kafka.tools import RunningTool
from compat_tests.clients.common import wait_until
from compat_tests.cluster.load import NumberedLoad, read_numbers
from compat_tests.cluster.replicas import describe, wait_until_in_sync
from compat_tests.kill.load import read_whole
from odradek.testing_cluster import OdradekCluster

pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(400)]

PARTITIONS = 2
WORDS = 40
TIMEOUT_S = 120
COORDINATOR_UNAVAILABLE = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(scope="module")
def started_cluster() -> Iterator[OdradekCluster]:
    with OdradekCluster(PROPERTIES, directory=os.environ.get("ODRADEK_CLUSTER_DIRECTORY")) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: OdradekCluster) -> OdradekCluster:
    """The cluster with all brokers running, also after a test that failed."""
    for number, broker in started_cluster.brokers.items():
        if not broker.is_running:
            started_cluster.start_broker(number)
    return started_cluster


def create(admin: KafkaAdminClient, topic: str, replicas: int = 3) -> None:
    admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])
    wait_until_in_sync(admin, topic)


ADMIN_TIMEOUTS_MS = {"request.timeout.ms": "8000", "default.api.timeout.ms": "10000"}
"""Kafka's admin client waits so long for a broker that has left the metadata since it chose it: a minute by default."""


# Kafka Streams


class WordCounts:
    """Words that are written to the input of Kafka's example, and the counts that it writes for each word.

    counts: by word, in the order of reading
    """

    def __init__(self, bootstrap_servers: str) -> None:
        servers = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._producer = Producer({**servers, "enable.idempotence": True})
        self._consumer = Consumer({**servers, "group.id": "unused", "isolation.level": "read_committed"})
        self._consumer.assign([TopicPartition(WORD_COUNT_OUTPUT, index, 0) for index in range(PARTITIONS)])
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.written = 0

    def write(self, times: int) -> None:
        """Write each word so many times, spread over the partitions."""
        for _ in range(times * WORDS):
            word = b"word%d" % (self.written % WORDS)
            self._producer.produce(WORD_COUNT_INPUT, word, partition=self.written // WORDS % PARTITIONS)
            self.written += 1
        assert self._producer.flush(TIMEOUT_S) == 0

    def has_read_all(self) -> bool:
        """Read what there is; return whether there is a count for each written word."""
        for message in self._consumer.consume(500, timeout=0.2):
            key, value = message.key(), message.value()
            if message.error() is None:
                assert key is not None and value is not None
                self.counts[key.decode()].append(int.from_bytes(value))
        return sum(map(len, self.counts.values())) >= self.written

    def wait_until_counted(self, instances: list[RunningTool]) -> None:
        wait_until(
            self.has_read_all,
            TIMEOUT_S,
            lambda: f"{self.written} words; {dict(self.counts)}\n{[one.output()[-3000:] for one in instances]}",
        )

    def close(self) -> None:
        self._consumer.close()


def word_count(cluster: OdradekCluster, directory: Path, number: int) -> RunningTool:
    properties = {
        "application.id": "words",
        "client.id": f"instance-{number}",
        "bootstrap.servers": cluster.bootstrap_servers,
        "processing.guarantee": "exactly_once_v2",
        "num.standby.replicas": "1",
        "state.dir": str(directory / f"state-{number}"),
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
        **{f"admin.{name}": value for name, value in ADMIN_TIMEOUTS_MS.items()},
    }
    return application(directory, f"streams-{number}", WORD_COUNT, properties)


def has_all_stores(directory: Path, number: int) -> bool:
    """Return whether an instance has the stores of all tasks: its own, and those of which it has the standby."""
    stores = {path.parents[1].name for path in directory.glob(f"state-{number}/words/*/rocksdb/*")}
    return stores == {f"1_{index}" for index in range(PARTITIONS)}


def test_streams_count_each_word_once_when_a_broker_and_an_instance_are_killed(cluster, admin, tmp_path):
    """The other instance continues from its standby replicas; each count of a word is one more than the last."""
    for topic in (WORD_COUNT_INPUT, WORD_COUNT_OUTPUT):
        create(admin, topic)
    instances = [word_count(cluster, tmp_path, number) for number in (0, 1)]
    words = WordCounts(cluster.bootstrap_servers)
    with ExitStack() as stack:
        stack.callback(words.close)
        for instance in instances:
            stack.enter_context(instance)
        words.write(5)
        words.wait_until_counted(instances)
        wait_until(lambda: all(has_all_stores(tmp_path, number) for number in (0, 1)), TIMEOUT_S)
        words.write(5)
        killed = describe(admin, WORD_COUNT_INPUT)[0].leader
        cluster.kill(killed)
        instances[1].process.kill()
        words.write(10)
        words.wait_until_counted(instances)
        cluster.start_broker(killed)
        words.write(5)
        words.wait_until_counted(instances)
    assert words.counts == {f"word{n}": list(range(1, 26)) for n in range(WORDS)}


# MirrorMaker 2


def mirror_maker(single: ApacheKafkaBroker, cluster: OdradekCluster, directory: Path) -> RunningTool:
    properties = {
        "clusters": "single, cluster",
        "single.bootstrap.servers": single.bootstrap_servers,
        "cluster.bootstrap.servers": cluster.bootstrap_servers,
        "single->cluster.enabled": "true",
        "single->cluster.topics": "inwards, settled",
        "cluster->single.enabled": "true",
        "cluster->single.topics": "outwards",
        "groups": "readers",
        "sync.group.offsets.enabled": "true",
        **{f"cluster.{name}": value for name, value in ADMIN_TIMEOUTS_MS.items()},
    }
    for interval in ("refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets"):
        properties[f"{interval}.interval.seconds"] = "1"
    for name, other, replicas in (("single", "cluster", 1), ("cluster", "single", 3)):
        properties[f"{name}.plugin.discovery"] = "service_load"
        properties[f"{name}.offset.flush.interval.ms"] = "500"
        properties[f"{other}->{name}.replication.factor"] = str(replicas)
        for storage in ("offset.storage", "config.storage", "status.storage"):
            properties[f"{name}.{storage}.replication.factor"] = str(replicas)
        for topic in ("checkpoints", "heartbeats", "offset-syncs"):
            properties[f"{name}.{topic}.topic.replication.factor"] = str(replicas)
    return application(directory, "mirror-maker", MIRROR_MAKER, properties)


class Mirrored:
    """A topic under load, and its copy in the other cluster."""

    def __init__(self, source: str, topic: str, target: str, copy: str) -> None:
        self.load = NumberedLoad(source, topic, PARTITIONS)
        self._admin = KafkaAdminClient(bootstrap_servers=target.split(","))
        self._target = target
        self._copy = copy

    def is_whole(self) -> bool:
        """Return whether the copy has all acknowledged records in order; some may be repeated after a failure."""
        if self._copy not in self._admin.list_topics():
            return False
        expected = {index: sorted(self.load.acknowledged[index]) for index in range(PARTITIONS)}
        found = read_numbers(self._target, self._copy, PARTITIONS)
        copied = {index: list(dict.fromkeys(number for _, number in rows)) for index, rows in found.items()}
        return all(copied[index][: len(numbers)] == numbers for index, numbers in expected.items())

    def close(self) -> None:
        self._admin.close()


def write(bootstrap_servers: str, topic: str, count: int) -> None:
    """Write records to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for index in range(PARTITIONS):
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=index)
    assert producer.flush(TIMEOUT_S) == 0


def commit_offsets(bootstrap_servers: str, topic: str, offset: int) -> None:
    """Commit an offset of each partition, once the coordinator is found: a new broker first creates its partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "readers"})
    offsets = [TopicPartition(topic, index, offset) for index in range(PARTITIONS)]

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_UNAVAILABLE:
                raise
            return False
        return True

    try:
        wait_until(is_committed)
    finally:
        consumer.close()


def has_offsets(bootstrap_servers: str, topic: str, most: int) -> bool:
    """Return whether the group has an offset in each partition. MirrorMaker translates one to a lower or equal one."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "readers"})
    try:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return all(0 < found.offset <= most for found in consumer.committed(partitions, timeout=TIMEOUT_S))
    finally:
        consumer.close()


def test_mirror_maker_copies_into_and_out_of_the_cluster(cluster, admin, tmp_path):
    """A broker of Apache Kafka is the other side; a broker of the cluster is killed meanwhile."""
    with ExitStack() as stack:
        single = stack.enter_context(ApacheKafkaBroker())
        of_single = stack.enter_context(closing(KafkaAdminClient(bootstrap_servers=single.bootstrap_servers)))
        create(of_single, "inwards", replicas=1)
        create(of_single, "settled", replicas=1)
        create(admin, "outwards")
        # MirrorMaker translates no offset from before the last pair of offsets that it finds at its start: there are
        # too few records of this topic for a second pair.
        write(single.bootstrap_servers, "settled", 60)
        commit_offsets(single.bootstrap_servers, "settled", 50)
        inwards = Mirrored(single.bootstrap_servers, "inwards", cluster.bootstrap_servers, "single.inwards")
        outwards = Mirrored(cluster.bootstrap_servers, "outwards", single.bootstrap_servers, "cluster.outwards")
        for way in (inwards, outwards):
            stack.callback(way.close)
        running = stack.enter_context(mirror_maker(single, cluster, tmp_path))
        with inwards.load, outwards.load:
            for way in (inwards, outwards):
                way.load.wait_for_more()
                wait_until(way.is_whole, TIMEOUT_S, running.output)
            wait_until_in_sync(admin, "single.inwards")
            killed = describe(admin, "single.inwards")[0].leader
            cluster.kill(killed)
            for way in (inwards, outwards):
                way.load.wait_for_more()
        for way in (inwards, outwards):
            wait_until(way.is_whole, TIMEOUT_S, running.output)
        cluster.start_broker(killed)
        assert {len(state.replicas) for state in describe(admin, "single.inwards").values()} == {3}
        wait_until(partial(has_offsets, cluster.bootstrap_servers, "single.settled", 50), TIMEOUT_S, running.output)


# Connect


class Connect:
    """Workers of a Connect cluster, by the port of their REST interface."""

    def __init__(self, bootstrap_servers: str, directory: Path, size: int) -> None:
        self._ports = [processes.lasting_port() for _ in range(size)]
        self._workers = [
            application(
                directory,
                f"worker-{port}",
                CONNECT,
                {
                    "bootstrap.servers": bootstrap_servers,
                    "group.id": "workers",
                    "listeners": f"http://127.0.0.1:{port}",
                    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
                    "config.storage.topic": "connect-configs",
                    "offset.storage.topic": "connect-offsets",
                    "status.storage.topic": "connect-status",
                    "offset.storage.partitions": "2",
                    "status.storage.partitions": "2",
                    "offset.flush.interval.ms": "500",
                    "exactly.once.source.support": "enabled",
                    "plugin.discovery": "service_load",
                },
            )
            for port in self._ports
        ]
        self._stack = ExitStack()

    def __enter__(self) -> "Connect":
        for worker in self._workers:
            self._stack.enter_context(worker)
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._stack.close()

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request to the first worker, which forwards it if another one has to answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports[0]}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector. While a rebalance of the workers is due, they answer 409 and do nothing."""

        def is_created() -> bool:
            try:
                self.request("/connectors", {"name": name, "config": config})
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.CONFLICT:
                    raise
                return False
            return True

        wait_until(is_created, TIMEOUT_S, self.output)

    def is_ready(self) -> bool:
        """Return whether the first worker answers requests."""
        try:
            return self.request("/connectors") is not None
        except OSError:
            return False

    def workers_of_tasks(self) -> list[tuple[str, str]]:
        """Return the state and the worker of each task."""
        status = self.request("/connectors?expand=status").values()
        return [(task["state"], task["worker_id"]) for one in status for task in one["status"]["tasks"]]

    def output(self) -> str:
        """Return the ends of the outputs of all workers, which have errors only."""
        return "\n".join(worker.output()[-3000:] for worker in self._workers)


def append(file: Path, first: int, count: int) -> None:
    with open(file, "a") as lines:
        lines.writelines(f"{file.name} {number}\n" for number in range(first, first + count))


def lines_of(files: list[Path]) -> list[str]:
    return sorted(line for file in files for line in file.read_text().splitlines())


def read_values(bootstrap_servers: str, topic: str) -> list[str]:
    """Return the values of committed records, sorted."""
    log = read_whole(bootstrap_servers, topic, PARTITIONS, "read_committed")
    return sorted(record.value.decode() for records in log.values() for record in records)


def test_three_workers_of_connect_while_a_broker_is_killed(cluster, admin, tmp_path):
    """Source connectors copy each line of their files once into a topic; a sink connector copies it to a file."""
    sources = [tmp_path / f"source-{number}" for number in range(3)]
    sink = tmp_path / "sink"
    create(admin, "lines")
    for source in sources:
        append(source, 0, 100)
    file_source = {"connector.class": "FileStreamSource", "tasks.max": "1", "topic": "lines"}
    file_source["exactly.once.support"] = "required"
    configs = {source.name: {**file_source, "file": str(source)} for source in sources}
    configs["sink"] = {"connector.class": "FileStreamSink", "tasks.max": "1", "topics": "lines", "file": str(sink)}
    with Connect(cluster.bootstrap_servers, tmp_path, 3) as connect:
        wait_until(connect.is_ready, TIMEOUT_S, connect.output)
        for name, config in configs.items():
            connect.create(name, config)

        def is_spread() -> bool:
            """Return whether all tasks are running, on three workers."""
            found = connect.workers_of_tasks()
            states, workers = {state for state, _ in found}, {worker for _, worker in found}
            return len(found) == len(configs) and states == {"RUNNING"} and len(workers) == 3

        def wait_until_copied() -> None:
            wait_until(
                lambda: sink.exists() and set(sink.read_text().splitlines()) >= set(lines_of(sources)),
                TIMEOUT_S,
                connect.output,
            )

        wait_until(is_spread, TIMEOUT_S, lambda: f"{connect.workers_of_tasks()}\n{connect.output()}")
        wait_until_copied()
        killed = describe(admin, "lines")[0].leader
        cluster.kill(killed)
        for source in sources:
            append(source, 100, 100)
        wait_until_copied()
        cluster.start_broker(killed)
        for source in sources:
            append(source, 200, 100)
        wait_until_copied()
        # A worker that was without the group's coordinator for too long gets its tasks back; a failed task stays so.
        wait_until(lambda: {state for state, _ in connect.workers_of_tasks()} == {"RUNNING"}, TIMEOUT_S, connect.output)
        # The sink also reads what is not committed yet, and would never be if the workers were killed now.
        wait_until(
            lambda: len(read_values(cluster.bootstrap_servers, "lines")) >= len(lines_of(sources)),
            TIMEOUT_S,
            connect.output,
        )
    assert read_values(cluster.bootstrap_servers, "lines") == lines_of(sources)
