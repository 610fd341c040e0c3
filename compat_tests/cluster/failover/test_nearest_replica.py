"""Consumers that read from the follower in their rack (KIP-392), and from the leader while that follower is down."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.tools import RunningTool
from compat_tests.clients.common import wait_until
from compat_tests.cluster.replicas import describe, wait_until_in_sync
from compat_tests.metrics_samples import scrape
from odradek.testing_cluster import OdradekCluster

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]

TOPIC = "t"
RACKS = {1: "north", 2: "south", 3: "east"}
LEADER, NEAR_CONFLUENT, NEAR_JAVA = RACKS
PROPERTIES = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "metrics.listener": "127.0.0.1:0",
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "60000",
}
RECORDS = 200
RECORD_BYTES = 500
TIMEOUT_S = 60


@pytest.fixture
def cluster() -> Iterator[OdradekCluster]:
    """A broker in each rack; broker 1 leads the topic."""
    # The leader remains the same, and sends nothing while the followers are in sync, also if brokers are slow.
    cluster = OdradekCluster(PROPERTIES, session_timeout_ms=10_000)
    for number, rack in RACKS.items():
        cluster.brokers[number].properties["broker.rack"] = rack
    with cluster:
        yield cluster


@pytest.fixture
def admin(cluster: OdradekCluster) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    admin.create_topics([NewTopic(TOPIC, replica_assignments={0: list(RACKS)})])
    wait_until_in_sync(admin, TOPIC)
    yield admin
    admin.close()


class Records:
    """Numbered records that are written to the topic."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "log_level": 0})
        self.values: list[str] = []

    def write(self, count: int) -> None:
        """Write further records, and wait until they are on all in-sync replicas."""
        for number in range(len(self.values), len(self.values) + count):
            value = f"{number} ".ljust(RECORD_BYTES, "x")
            self._producer.produce(TOPIC, value.encode())
            self.values.append(value)
        assert self._producer.flush(TIMEOUT_S) == 0


class ConfluentReader:
    """A confluent-kafka consumer with a rack."""

    def __init__(self, bootstrap_servers: str, rack: str) -> None:
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "unused",
                "client.rack": rack,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self._values: list[str] = []

    def read(self) -> list[str]:
        """Return all values received so far."""
        for message in self._consumer.consume(RECORDS, timeout=0.1):
            assert message.error() is None, message.error()
            self._values.append(message.value().decode())
        return self._values

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def confluent(cluster: OdradekCluster, admin: KafkaAdminClient) -> Iterator[ConfluentReader]:
    reader = ConfluentReader(cluster.bootstrap_servers, RACKS[NEAR_CONFLUENT])
    yield reader
    reader.close()


@pytest.fixture
def java(cluster: OdradekCluster, admin: KafkaAdminClient, tmp_path: Path) -> Iterator[RunningTool]:
    """Kafka's console consumer with a rack."""
    rack = ("--command-property", f"client.rack={RACKS[NEAR_JAVA]}")
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    what = ("--topic", TOPIC, "--partition", "0", "--offset", "earliest")
    with RunningTool(tmp_path / "consumer", tools.CONSOLE_CONSUMER, *servers, *what, *rack) as tool:
        yield tool


def read_java(tool: RunningTool) -> list[str]:
    """Return all values received so far. The other lines are warnings that a broker cannot be reached."""
    return [line for line in tool.output().splitlines() if line.endswith("x")]


def bytes_out(cluster: OdradekCluster, number: int) -> float:
    """Return the bytes that a broker has sent to consumers of the topic since its start."""
    found = scrape(f"{cluster.brokers[number].metrics_url}/metrics")
    return found.value("kafka_server_brokertopicmetrics_bytesout_total", topic=TOPIC)


def test_consumers_read_from_the_follower_in_their_rack_and_from_the_leader_without_it(cluster, admin, confluent, java):
    records = Records(cluster.bootstrap_servers)
    sent_by = partial(bytes_out, cluster)

    def has_all(read: Callable[[], list[str]]) -> bool:
        return len(read()) >= len(records.values)

    def write_and_read(count: int = RECORDS) -> None:
        """Write records, and wait until both consumers have them, in order and none twice."""
        records.write(count)
        for read in (confluent.read, partial(read_java, java)):
            wait_until(partial(has_all, read), what=java.output)
            assert read() == records.values

    def read_from_again(number: int) -> None:
        """Start a follower, and wait until the consumer in its rack has returned to it."""
        cluster.start_broker(number)
        wait_until_in_sync(admin, TOPIC)

        def is_read() -> bool:
            write_and_read(1)
            return sent_by(number) > 0

        wait_until(is_read)

    write_and_read()
    assert describe(admin, TOPIC)[0].leader == LEADER
    size = RECORDS * RECORD_BYTES
    assert sent_by(LEADER) == 0
    assert sent_by(NEAR_CONFLUENT) >= size
    assert sent_by(NEAR_JAVA) >= size

    assert cluster.stop_broker(NEAR_CONFLUENT) == 0
    write_and_read()
    assert sent_by(LEADER) >= size, "confluent-kafka reads from the leader"
    assert sent_by(NEAR_JAVA) >= 2 * size
    read_from_again(NEAR_CONFLUENT)

    before = sent_by(LEADER)
    cluster.kill(NEAR_JAVA)
    write_and_read()
    assert sent_by(LEADER) - before >= size, "the Java consumer reads from the leader"
    assert sent_by(NEAR_CONFLUENT) >= size
    read_from_again(NEAR_JAVA)
    assert describe(admin, TOPIC)[0].leader == LEADER
