"""Apache Kafka's command line tools against a cluster of Odradek brokers."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.tools import run
from compat_tests.clients import load
from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, read, wait_until
from compat_tests.cluster.replicas import wait_until_described
from odradek.testing_cluster import OdradekCluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(300),
]

CLIENT = load("confluent")
PARTITION = re.compile(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S*)\s+Isr: (\S*)")


@pytest.fixture(scope="module")
def cluster() -> Iterator[OdradekCluster]:
    # Tests compare leaders and ISRs, which change when a broker that is only slow loses its session or lags behind.
    properties = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "60000"}
    with OdradekCluster(properties, session_timeout_ms=10_000) as cluster:
        yield cluster


class Tool:
    """Runs a tool with one broker's address, and returns its output."""

    def __init__(self, cluster: OdradekCluster) -> None:
        self._cluster = cluster

    def __call__(self, name: str, *arguments: str, broker: int = 1, check: bool = True, stdin: str = "") -> str:
        server = self._cluster.brokers[broker].bootstrap_servers
        result = run(name, "--bootstrap-server", server, *arguments, check=check, stdin=stdin)
        return result.stdout + result.stderr

    def create(self, topic: str, assignment: str, *arguments: str) -> None:
        self(tools.TOPICS, "--create", "--topic", topic, "--replica-assignment", assignment, *arguments)
        wait_until_described(self._cluster, topic)

    def describe(self, topic: str, *arguments: str, broker: int = 1) -> list[tuple[str, str, str, str]]:
        """Return (partition, leader, replicas, ISR) as printed."""
        return PARTITION.findall(self(tools.TOPICS, "--describe", "--topic", topic, *arguments, broker=broker))


@pytest.fixture
def tool(cluster: OdradekCluster) -> Tool:
    return Tool(cluster)


def has_no_directory(data_directory: Path, topic: str) -> bool:
    return not list(data_directory.glob(f"{topic}-?"))


def produce(cluster: OdradekCluster, topic: str, counts: list[int]) -> None:
    messages = [Message(b"%d" % n, partition=index) for index, count in enumerate(counts) for n in range(count)]
    with CLIENT.Producer(cluster.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(topic, messages)


def test_a_topic_is_created_grown_and_deleted_through_different_brokers(cluster, tool, unique):
    tool.create(unique, "3:1,2:3", "--config", "retention.ms=123456")
    expected = [("0", "3", "3,1", "3,1"), ("1", "2", "2,3", "2,3")]
    assert tool.describe(unique, broker=2) == expected
    assert tool.describe(unique, "--under-replicated-partitions") == []
    tool(
        tools.TOPICS,
        "--alter",
        "--topic",
        unique,
        "--partitions",
        "3",
        "--replica-assignment",
        "3:1,2:3,1:3",
        broker=3,
    )
    wait_until(lambda: tool.describe(unique, broker=2) == [*expected, ("2", "1", "1,3", "1,3")])
    produce(cluster, unique, [3, 2, 1])
    tool(tools.TOPICS, "--delete", "--topic", unique, broker=2)

    def is_gone(broker: int) -> bool:
        return "does not exist" in tool(tools.TOPICS, "--describe", "--topic", unique, broker=broker, check=False)

    for number in cluster.brokers:
        wait_until(partial(is_gone, number))
    for broker in cluster.brokers.values():
        wait_until(partial(has_no_directory, broker.data_dir, unique))
    again = tool(tools.TOPICS, "--create", "--topic", unique, "--replica-assignment", "1:9", check=False)
    assert "InvalidReplicaAssignmentException" in again
    large = tool(tools.TOPICS, "--create", "--topic", unique, "--replication-factor", "4", check=False)
    assert "InvalidReplicationFactorException" in large


def test_partitions_of_a_stopped_broker_are_under_replicated_until_the_preferred_election(cluster, tool, unique):
    tool.create(unique, "2:1:3")
    cluster.stop_broker(2)
    try:
        expected = [("0", "1", "2,1,3", "1,3")]
        wait_until(lambda: tool.describe(unique, "--under-replicated-partitions") == expected)
        assert tool.describe(unique, "--under-min-isr-partitions") == []
        assert tool.describe(unique, "--at-min-isr-partitions") != []
        assert tool.describe(unique, "--unavailable-partitions", broker=3) == []
    finally:
        cluster.start_broker(2)
    wait_until(lambda: set(tool.describe(unique)[0][3].split(",")) == {"1", "2", "3"})
    one = ("--topic", unique, "--partition", "0")
    output = tool(tools.LEADER_ELECTION, "--election-type", "preferred", *one, broker=3)
    assert re.search(rf"Successfully completed leader election \(PREFERRED\) for partitions {unique}-0", output)
    wait_until(lambda: tool.describe(unique, broker=3)[0][1] == "2")
    output = tool(tools.LEADER_ELECTION, "--election-type", "preferred", *one, broker=2)
    assert f"Valid replica already elected for partitions {unique}-0" in output


def test_configurations_are_the_same_at_each_broker(cluster, tool, unique):
    tool.create(unique, "1:2:3")

    def described(broker: int, *entity: str) -> str:
        return tool(tools.CONFIGS, "--describe", *entity, broker=broker)

    def is_described(broker: int, text: str, *entity: str) -> bool:
        return text in described(broker, *entity)

    def shown_by_all(text: str, *entity: str) -> None:
        for broker in cluster.brokers:
            wait_until(partial(is_described, broker, text, *entity), what=f"{text} at broker {broker}")

    of_topic = ("--entity-type", "topics", "--entity-name", unique)
    tool(
        tools.CONFIGS,
        "--alter",
        *of_topic,
        "--add-config",
        "cleanup.policy=[compact,delete],retention.ms=7777",
        broker=2,
    )
    shown_by_all("retention.ms=7777 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7777", *of_topic)
    default = ("--entity-type", "brokers", "--entity-default")
    tool(tools.CONFIGS, "--alter", *default, "--add-config", "log.cleaner.backoff.ms=14999", broker=3)
    shown_by_all("log.cleaner.backoff.ms=14999", *default)
    everything = described(1, "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "log.cleaner.backoff.ms=14999 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:" in everything
    third = ("--entity-type", "brokers", "--entity-name", "3")
    tool(tools.CONFIGS, "--alter", *third, "--add-config", "log.cleaner.backoff.ms=13999", broker=3)
    wait_until(lambda: "log.cleaner.backoff.ms=13999" in described(3, *third))
    assert "13999" not in described(1, "--entity-type", "brokers", "--entity-name", "1", "--all")
    tool(tools.CONFIGS, "--alter", *third, "--delete-config", "log.cleaner.backoff.ms", broker=3)
    tool(tools.CONFIGS, "--alter", *default, "--delete-config", "log.cleaner.backoff.ms", broker=1)
    wait_until(lambda: "14999" not in described(2, *default))
    metrics = ("--entity-type", "client-metrics", "--entity-name", unique)
    tool(tools.CONFIGS, "--alter", *metrics, "--add-config", "interval.ms=7777", broker=2)
    shown_by_all("interval.ms=7777", *metrics)
    tool(tools.CONFIGS, "--alter", *metrics, "--delete-config", "interval.ms", broker=3)
    wait_until(lambda: "7777" not in described(1, *metrics))


def test_offsets_and_directories_of_all_brokers(cluster, tool, unique):
    tool.create(unique, "1:2,2:3,3:1")
    produce(cluster, unique, [30, 20, 10])
    for broker in cluster.brokers:
        offsets = tool(tools.GET_OFFSETS, "--topic", unique, broker=broker)
        assert sorted(offsets.split()) == [f"{unique}:0:30", f"{unique}:1:20", f"{unique}:2:10"]
    output = tool(tools.LOG_DIRS, "--describe", "--topic-list", unique, broker=2)
    [report] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    found = {}
    for broker in report["brokers"]:
        [directory] = broker["logDirs"]
        assert directory["logDir"] == str(cluster.brokers[broker["broker"]].data_dir)
        for row in directory["partitions"]:
            found.setdefault(row["partition"], {})[broker["broker"]] = (
                row["size"] > 0,
                row["offsetLag"],
                row["isFuture"],
            )
    here = (True, 0, False)
    assert found == {
        f"{unique}-0": {1: here, 2: here},
        f"{unique}-1": {2: here, 3: here},
        f"{unique}-2": {3: here, 1: here},
    }


def test_brokers_of_the_cluster(cluster, tool):
    shown: list[str] = []
    for broker in cluster.brokers.values():
        result = run(tools.CLUSTER, "cluster-id", "--bootstrap-server", broker.bootstrap_servers)
        shown += re.findall(r"Cluster ID: (\S{22})$", result.stdout, re.M)
    assert len(shown) == 3
    assert len(set(shown)) == 1
    result = run(tools.CLUSTER, "list-endpoints", "--bootstrap-server", cluster.brokers[2].bootstrap_servers)
    rows = [line.split() for line in result.lines[1:]]
    assert sorted(row[:3] for row in rows) == [
        [str(number), "127.0.0.1", str(broker.port)] for number, broker in cluster.brokers.items()
    ]
    versions = tool(tools.BROKER_API_VERSIONS)
    assert len(re.findall(r"^127\.0\.0\.1:\d+ \(id: [123] rack: null isFenced: false\) -> \(", versions, re.M)) == 3


def test_a_group_and_its_offsets(cluster, tool, unique):
    tool.create(unique, "1:2:3,2:3:1")
    produce(cluster, unique, [10, 4])
    with CLIENT.Consumer(cluster.bootstrap_servers, ConsumerOptions(group=unique, client_id="shown")) as consumer:
        consumer.subscribe([unique], None)
        read(consumer, 14)
        consumer.commit({(unique, 0): (6, ""), (unique, 1): (4, "")})
        for broker in cluster.brokers:
            described = tool(tools.CONSUMER_GROUPS, "--describe", "--group", unique, broker=broker)
            rows = [line.split() for line in described.splitlines() if line.startswith(unique)]
            assert sorted(row[2:6] for row in rows) == [["0", "6", "10", "4"], ["1", "4", "4", "0"]]
        listed = tool(tools.CONSUMER_GROUPS, "--list", "--state", broker=3)
        assert re.search(rf"^{unique}\s+Stable", listed, re.M)
    reset = ("--reset-offsets", "--group", unique, "--topic", unique, "--to-earliest", "--execute")
    tool(tools.CONSUMER_GROUPS, *reset, broker=2)
    described = tool(tools.CONSUMER_GROUPS, "--describe", "--group", unique, broker=3)
    rows = [line.split() for line in described.splitlines() if line.startswith(unique)]
    assert sorted(row[2:6] for row in rows) == [["0", "0", "10", "10"], ["1", "0", "4", "4"]]
    assert "Deletion of requested consumer groups" in tool(tools.CONSUMER_GROUPS, "--delete", "--group", unique)
