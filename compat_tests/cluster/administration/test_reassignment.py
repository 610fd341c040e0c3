"""Reassignments and elections in a cluster of real brokers, with Apache Kafka's tools and under load."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.zookeeper_mode import ZooKeeperModeBroker
from compat_tests.clients.common import wait_until
from compat_tests.cluster.replicas import wait_until_described
from odradek.server.tests.wire import Wire, until
from odradek.testing_cluster import OdradekCluster
from odradek.tools.cli.main import main

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[OdradekCluster]:
    # Tests compare leaders and ISRs, which change when a broker that is only slow loses its session or lags behind.
    properties = {"unclean.leader.election.enable": "false", "replica.lag.time.max.ms": "60000"}
    with OdradekCluster(properties, size=4, session_timeout_ms=6000) as started:
        yield started


def run(cluster: OdradekCluster, tool: str, *arguments: str, check: bool = True) -> str:
    result = tools.run(tool, "--bootstrap-server", cluster.bootstrap_servers, *arguments, check=check)
    return result.stdout + result.stderr


def create(cluster: OdradekCluster, topic: str, *replicas: tuple[int, ...]) -> None:
    text = ",".join(":".join(map(str, row)) for row in replicas)
    run(cluster, tools.TOPICS, "--create", "--topic", topic, "--replica-assignment", text)
    wait_until_described(cluster, topic)


def partitions(cluster: OdradekCluster, topic: str, ask: int = 4) -> list[tuple[list[int], int, list[int]]]:
    """Return (replicas, leader, sorted ISR) of each partition, from one broker."""
    with Wire(cluster.brokers[ask].port) as wire:
        [found] = wire.metadata(topic).topics
    rows = sorted(found.partitions, key=lambda row: row.partition_index)
    return [(row.replica_nodes, row.leader_id, sorted(row.isr_nodes)) for row in rows]


def write_plan(path: Path, topic: str, *replicas: list[int]) -> tuple[str, str]:
    rows = [{"topic": topic, "partition": index, "replicas": row} for index, row in enumerate(replicas)]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return "--reassignment-json-file", str(path)


def directories(cluster: OdradekCluster, topic: str) -> set[int]:
    """Return the brokers that have a log of the topic's partition 0."""
    return {number for number, broker in cluster.brokers.items() if (broker.data_dir / f"{topic}-0").exists()}


class Load:
    """A producer with acks=all in a thread; `sent` are the acknowledged values."""

    def __init__(self, cluster: OdradekCluster, topic: str, requests_in_flight: int = 5) -> None:
        self.sent: list[bytes] = []
        self.errors: list[Any] = []
        self._over = threading.Event()
        self._cluster, self._topic, self._requests_in_flight = cluster, topic, requests_in_flight
        self._thread = threading.Thread(target=self._produce)

    def _produce(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "max.in.flight": self._requests_in_flight,
                "linger.ms": 2,
                "delivery.timeout.ms": 60_000,
            }
        )
        number = 0
        while not self._over.is_set():
            value = b"%d" % number

            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    self.sent.append(message.value())
                else:
                    self.errors.append(error)

            producer.produce(self._topic, value, partition=0, on_delivery=delivered)
            producer.poll(0.001)
            number += 1
        producer.flush(60)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()


def consume(cluster: OdradekCluster, topic: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes] = []

        def has_all() -> bool:
            messages = consumer.consume(1000, timeout=0.2)
            values.extend(message.value() or b"" for message in messages if message.error() is None)
            return len(values) >= count

        wait_until(has_all, what=lambda: f"{len(values)} of {count} records")
        return values
    finally:
        consumer.close()


def test_partitions_move_to_other_brokers_under_load(cluster, unique, tmp_path):
    create(cluster, unique, (1, 2))
    with Load(cluster, unique) as load:
        until(lambda: len(load.sent) > 1000)
        for target in ([3, 4], [4, 1, 2], [2, 3]):
            plan = write_plan(tmp_path / "plan.json", unique, target)
            output = run(cluster, tools.REASSIGN_PARTITIONS, *plan, "--execute")
            assert "Successfully started partition reassignment" in output
            until(lambda: partitions(cluster, unique)[0][::2] == (target, sorted(target)))  # noqa: B023
            assert partitions(cluster, unique)[0][1] in target
            verified = run(cluster, tools.REASSIGN_PARTITIONS, *plan, "--verify")
            assert f"Reassignment of partition {unique}-0 is completed." in verified
            until(lambda: directories(cluster, unique) == set(target))  # noqa: B023
    assert load.errors == []
    assert consume(cluster, unique, len(load.sent)) == load.sent


def odradek(cluster: OdradekCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of `odradek partition reassign`."""
    capsys.readouterr()
    code = main(["partition", "reassign", *arguments, "--bootstrap-server", cluster.bootstrap_servers])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_a_plan_of_odradek_is_applied_throttled_and_cancelled(cluster, unique, tmp_path, capsys):
    create(cluster, unique, (1, 2), (1, 2))
    with Wire(cluster.brokers[1].port) as wire:
        for _ in range(30):
            assert wire.produce(unique, b"x" * 100_000).error_code == 0
    planned = json.loads(odradek(cluster, capsys, "plan", unique, "--brokers", "3,4"))
    assert [sorted(one["replicas"]) for one in planned["partitions"]] == [[3, 4], [3, 4]]
    assert {one["replicas"][0] for one in planned["partitions"]} == {3, 4}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(planned))
    odradek(cluster, capsys, "apply", str(file), "--throttle", "1000", "--yes")
    # Partition 1 is empty, so that it may have moved already.
    ongoing = [row for row in json.loads(odradek(cluster, capsys, "list", "--json")) if row["partition"] == 0]
    assert [(row["topic"], sorted(row["adding"]), sorted(row["removing"])) for row in ongoing] == [
        (unique, [3, 4], [1, 2]),
    ]
    odradek(cluster, capsys, "cancel", str(file), "--yes")
    assert json.loads(odradek(cluster, capsys, "list", "--json")) == []
    until(lambda: partitions(cluster, unique)[0] == ([1, 2], 1, [1, 2]))

    odradek(cluster, capsys, "unthrottle", unique)
    odradek(cluster, capsys, "apply", str(file), "--yes")
    wanted = [one["replicas"] for one in planned["partitions"]]
    until(lambda: [row[0] for row in partitions(cluster, unique)] == wanted, 60)


def test_a_reassignment_is_throttled_listed_and_cancelled(cluster, unique, tmp_path):
    create(cluster, unique, (1, 2))
    value = b"x" * 100_000
    with Wire(cluster.brokers[1].port) as wire:
        for _ in range(30):
            assert wire.produce(unique, value).error_code == 0
    plan = write_plan(tmp_path / "plan.json", unique, [3, 4])
    run(cluster, tools.REASSIGN_PARTITIONS, *plan, "--execute", "--throttle", "1000")
    listed = run(cluster, tools.REASSIGN_PARTITIONS, "--list")
    assert f"{unique}-0: replicas: 3,4,1,2. adding: 3,4. removing: 1,2." in listed
    cancelled = run(cluster, tools.REASSIGN_PARTITIONS, *plan, "--cancel")
    assert f"Successfully cancelled partition reassignment for: {unique}-0" in cancelled
    until(lambda: partitions(cluster, unique)[0] == ([1, 2], 1, [1, 2]))
    until(lambda: directories(cluster, unique) == {1, 2})


def leaders(cluster: OdradekCluster, topic: str) -> list[int]:
    return [leader for _, leader, _ in partitions(cluster, topic)]


def test_preferred_and_unclean_elections(cluster, unique):
    alone = f"{unique}-alone"
    create(cluster, unique, (1, 2), (2, 3))
    create(cluster, alone, (1,))
    cluster.kill(1)
    until(lambda: (leaders(cluster, unique), leaders(cluster, alone)) == ([2, 2], [-1]))
    of_alone = ("--topic", alone, "--partition", "0")
    output = run(cluster, tools.LEADER_ELECTION, "--election-type", "unclean", *of_alone, check=False)
    assert "Eligible topic partition leaders are not available" in output
    cluster.start_broker(1)
    until(lambda: partitions(cluster, unique)[0] == ([1, 2], 2, [1, 2]))
    output = run(cluster, tools.LEADER_ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    assert f"{unique}-0" in output
    until(lambda: (leaders(cluster, unique), leaders(cluster, alone)) == ([1, 2], [1]))


def test_a_leader_that_is_not_in_sync_is_elected_when_that_is_enabled(cluster, unique):
    create(cluster, unique, (2, 3))
    run(cluster, tools.CONFIGS, "--alter", "--topic", unique, "--add-config", "min.insync.replicas=1")
    cluster.kill(3)
    until(lambda: partitions(cluster, unique)[0] == ([2, 3], 2, [2]))
    cluster.kill(2)
    until(lambda: partitions(cluster, unique)[0][1] == -1)
    cluster.start_broker(3)
    until(lambda: partitions(cluster, unique)[0] == ([2, 3], -1, [2]))
    run(cluster, tools.CONFIGS, "--alter", "--topic", unique, "--add-config", "unclean.leader.election.enable=true")
    until(lambda: partitions(cluster, unique)[0] == ([2, 3], 3, [3]))
    cluster.start_broker(2)
    until(lambda: partitions(cluster, unique)[0][2] == [2, 3])


@pytest.fixture
def mixed_cluster(cluster: OdradekCluster, tmp_path: Path) -> Iterator[OdradekCluster]:
    """The cluster with the brokers 11 and 12 of Apache Kafka 3.9; one of Odradek's is the controller."""
    added = [ZooKeeperModeBroker(number, cluster.zookeeper_connect, tmp_path / str(number)) for number in (11, 12)]
    try:
        for broker in added:
            broker.start()
        yield cluster
    finally:
        for broker in added:
            broker.close()


def test_partitions_move_between_brokers_of_both_kinds(mixed_cluster, unique, tmp_path):
    create(mixed_cluster, unique, (1, 2))
    # With several requests in flight, a move of the leader to a broker of Apache Kafka may duplicate a record: see
    # `test_mixed_cluster.Traffic`.
    with Load(mixed_cluster, unique, requests_in_flight=1) as load:
        until(lambda: len(load.sent) > 1000)
        for target in ([11, 12], [12, 2], [3, 11], [1, 2]):
            plan = write_plan(tmp_path / "plan.json", unique, target)
            run(mixed_cluster, tools.REASSIGN_PARTITIONS, *plan, "--execute")
            until(lambda: partitions(mixed_cluster, unique)[0][::2] == (target, sorted(target)), 60)  # noqa: B023
    assert load.errors == []
    assert consume(mixed_cluster, unique, len(load.sent)) == load.sent
    until(lambda: directories(mixed_cluster, unique) == {1, 2})
    assert not list(tmp_path.glob(f"1?/data/{unique}-0"))
