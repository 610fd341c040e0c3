"""Transactions and groups on three brokers, while brokers are killed: coordinators and partitions move.

The brokers have one listener for clients, and another one for each other. After a second the controller returns
leaderships to preferred replicas.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka.admin import NewTopic

from compat_tests.clients.common import wait_until
from compat_tests.cluster.connections import find_remote_ports
from compat_tests.cluster.replicas import ask_repeatedly, describe, wait_until_in_sync
from odradek.testing_cluster import OdradekCluster

pytestmark = [
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(400),
]

PARTITIONS = 6
TIMEOUT_S = 60
NAMES = ("x", "y", "z")


@pytest.fixture(scope="module")
def cluster() -> Iterator[OdradekCluster]:
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "leader.imbalance.check.interval.seconds": "1",
    }
    with OdradekCluster(properties, directory=os.environ.get("ODRADEK_CLUSTER_DIRECTORY")) as cluster:
        yield cluster


class TransactionalLoad:
    """A producer whose transactions write one record to each partition; every third transaction is aborted.

    committed: numbers of the committed transactions
    """

    def __init__(self, bootstrap_servers: str, topic: str, name: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self.name = name
        self.committed: list[int] = []
        self.failure: BaseException | None = None
        self._has_more = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"transactions {name}")

    def __enter__(self) -> "TransactionalLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        self._thread.join(2 * TIMEOUT_S)
        assert not self._thread.is_alive()

    def wait_for_more(self, count: int = 6) -> None:
        """Wait until more transactions are committed."""
        with self._has_more:
            wanted = len(self.committed) + count
            reached = self._has_more.wait_for(lambda: len(self.committed) >= wanted or self.failure, 2 * TIMEOUT_S)
        assert reached and self.failure is None, self.failure

    def _run(self) -> None:
        try:
            producer = Producer({"bootstrap.servers": self._bootstrap_servers, "transactional.id": self.name})
            producer.init_transactions(TIMEOUT_S)
            number = 0
            while not self._is_stopping:
                self._transact(producer, number)
                number += 1
        except BaseException as error:
            self.failure = error
            raise

    def _transact(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self._topic, f"{self.name}-{number}".encode(), partition=partition)
        try:
            if number % 3 == 2:
                # Otherwise librdkafka may end a transaction whose first AddPartitionsToTxn got CONCURRENT_TRANSACTIONS,
                # and fail for ever because the one before it is complete: INVALID_TXN_STATE, as with Apache Kafka.
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
                return
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT_S)
            return
        with self._has_more:
            self.committed.append(number)
            self._has_more.notify_all()


def read_committed(bootstrap_servers: str, topic: str, expected: int) -> Counter[str]:
    """Read records of committed transactions as a group; return the number of each."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"readers of {topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    read: Counter[str] = Counter()
    ended: set[int] = set()
    while read.total() < expected or len(ended) < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{read.total()} of {expected} records"
        if message.error():
            ended.add(message.partition())
        else:
            read[message.value().decode()] += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    return read


def test_transactions_are_whole_when_brokers_are_killed(cluster, admin):
    admin.create_topics([NewTopic("transactions", PARTITIONS, 3)])
    wait_until_in_sync(admin, "transactions")
    loads = [TransactionalLoad(cluster.bootstrap_servers, "transactions", name) for name in NAMES]
    with loads[0], loads[1], loads[2]:
        for load in loads:
            load.wait_for_more()
        for broker_id in sorted(cluster.brokers):
            cluster.kill(broker_id)
            for load in loads:
                load.wait_for_more()
            cluster.start_broker(broker_id)
            wait_until_in_sync(admin, "transactions")
    assert not [load.failure for load in loads if load.failure]
    committed = {f"{load.name}-{number}": PARTITIONS for load in loads for number in load.committed}
    assert read_committed(cluster.bootstrap_servers, "transactions", sum(committed.values())) == committed


def test_the_controller_returns_leaderships_to_preferred_replicas(cluster, admin):
    """Brokers that were killed lead again."""

    def are_preferred() -> bool:
        states = ask_repeatedly(lambda: describe(admin, "transactions"))
        return all(state.leader == state.replicas[0] for state in states.values())

    wait_until(are_preferred)
    cluster.kill(2)
    wait_until(lambda: not are_preferred())
    cluster.start_broker(2)
    wait_until(are_preferred)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="connections are read from /proc")
def test_brokers_connect_to_each_other_on_their_own_listener_and_clients_do_not(cluster, admin):
    admin.create_topics([NewTopic("internal", PARTITIONS, 3)])
    wait_until_in_sync(admin, "internal")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for partition in range(PARTITIONS):
        producer.produce("internal", b"v", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    client_ports, internal_ports = (
        {int(broker.addresses[number].rpartition(":")[2]) for broker in cluster.brokers.values()} for number in (0, 1)
    )
    assert len(client_ports | internal_ports) == 6
    assert {node["port"] for node in admin.describe_cluster()["brokers"]} == client_ports
    for broker in cluster.brokers.values():
        others = internal_ports - {int(broker.addresses[1].rpartition(":")[2])}
        # A connection between brokers may just be renewed.
        wait_until(lambda pid=broker.pid, others=others: find_remote_ports(pid) >= others)  # type: ignore[misc]
        assert not find_remote_ports(broker.pid) & client_ports
    assert find_remote_ports(os.getpid()) & client_ports
    assert not find_remote_ports(os.getpid()) & internal_ports


def test_topics_are_created_automatically_by_every_broker(cluster, admin):
    for broker_id, broker in cluster.brokers.items():
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(f"automatic-{broker_id}", b"v")
        assert producer.flush(TIMEOUT_S) == 0
    for broker_id in cluster.brokers:
        wait_until_in_sync(admin, f"automatic-{broker_id}")


def test_a_group_survives_its_coordinators(cluster, admin):
    """A member commits after every record, while each broker is stopped in turn."""
    admin.create_topics([NewTopic("grouped", 1, 3)])
    wait_until_in_sync(admin, "grouped")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    consumer: Any = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "survivors",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["grouped"])
    written = read = 0

    def produce_and_read(count: int) -> None:
        nonlocal written, read
        for _ in range(count):
            producer.produce("grouped", str(written).encode())
            written += 1
        assert producer.flush(TIMEOUT_S) == 0
        while read < written:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the member gets no records"
            if not message.error():
                assert int(message.value()) == read, "a record is repeated or missing"
                read += 1
                consumer.commit(message, asynchronous=False)

    def fetch_committed() -> list[TopicPartition]:
        try:
            return consumer.committed(consumer.assignment(), TIMEOUT_S)
        except KafkaException as error:
            # The controller elects preferred leaders soon after it takes over; librdkafka does not repeat this request.
            assert error.args[0].code() == KafkaError.NOT_COORDINATOR, error
            return []

    produce_and_read(5)
    for broker_id in sorted(cluster.brokers):
        assert cluster.stop_broker(broker_id) == 0
        produce_and_read(5)
        cluster.start_broker(broker_id)
        wait_until_in_sync(admin, "grouped")
    committed = wait_until(fetch_committed)
    assert [partition.offset for partition in committed] == [written]
    consumer.close()
