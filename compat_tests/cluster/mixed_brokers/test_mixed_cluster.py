"""Brokers of Odradek and of Apache Kafka 3.9 in one cluster: leadership, coordinators and directories change hands."""

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import NotControllerError, RequestTimedOutError, UnknownBrokerIdError
from kafka.protocol.admin.topics import ElectionType

from compat_tests.clients.common import wait_until
from compat_tests.cluster.groups import GroupReader
from compat_tests.cluster.load import NumberedLoad, check_numbers, read_numbers
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster
from compat_tests.cluster.replicas import ask_repeatedly, describe, wait_until_equal, wait_until_in_sync
from compat_tests.cluster.transactions import TransactionalLoad, check_transactions

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(400),
]

PARTITIONS = 3
JAVA = 3
"""Id of the broker that is Apache Kafka's when a test starts."""
REQUEST_TIMEOUT_S = 30
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


@pytest.fixture(scope="module")
def mixed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Two brokers of Odradek and one of Apache Kafka, which is the controller."""
    directory = Path(os.environ.get("MIXED_CLUSTER_DIRECTORY") or tmp_path_factory.mktemp("mixed"))
    with MixedCluster({1: ODRADEK, 2: ODRADEK, JAVA: KAFKA}, directory) as cluster:
        for number in (JAVA, 1, 2):
            cluster.start(number)
        create_internal_topics(cluster.bootstrap_servers)
        yield cluster


def create_internal_topics(bootstrap_servers: str) -> None:
    servers = {"bootstrap.servers": bootstrap_servers}
    Producer({**servers, "transactional.id": "first"}).init_transactions(60)
    consumer = Consumer({**servers, "group.id": "first"})

    def is_loaded() -> bool:
        try:
            consumer.committed([TopicPartition("none", 0)], timeout=5)
        except KafkaException:
            return False
        return True

    try:
        wait_until(is_loaded)
    finally:
        consumer.close()


def create_topic(admin: KafkaAdminClient, name: str) -> None:
    """Create a topic once the brokers' metadata contain the new controller: the client repeats a request only once."""

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(name, PARTITIONS, 3)])
        except (RuntimeError, NotControllerError):
            return False
        return True

    wait_until(is_created)


def find_name(admin: KafkaAdminClient, topic: str, base: str, order: Sequence[Container[int]]) -> str:
    """Return a name whose coordinator's partition has replicas of `order`."""
    states = describe(admin, topic)
    for name in (f"{base}-{number}" for number in range(1000)):
        replicas = states[partition_of(name, len(states))].replicas
        if all(replica in allowed for replica, allowed in zip(replicas, order, strict=False)):
            return name
    raise AssertionError(f"no partition of {topic} has such replicas: {states}")


def partition_of(name: str, count: int) -> int:
    """Return the partition that Java's String.hashCode of a name selects."""
    code = 0
    for character in name:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % count


def controller(admin: KafkaAdminClient) -> int:
    return admin.describe_cluster()["controller_id"]


class Traffic:
    """An idempotent producer, a consumer group and a transactional producer, which run during a test.

    order: brokers that are the first, second, ... replica of the coordinators of the group and of the transactions
    moves: changes of the kind of broker that coordinates, as (topic, old kind, new kind)
    """

    def __init__(
        self, cluster: MixedCluster, admin: KafkaAdminClient, name: str, order: Sequence[Container[int]]
    ) -> None:
        self.cluster, self.admin = cluster, admin
        self.topic, self.transactions_topic = name, f"{name}-transactions"
        servers = cluster.bootstrap_servers
        for topic in (self.topic, self.transactions_topic):
            create_topic(admin, topic)
        self.names = {topic: find_name(admin, topic, name, order) for topic in (OFFSETS, TRANSACTIONS)}
        self.moves: set[tuple[str, str, str]] = set()
        # A broker of Apache Kafka that becomes the leader between two requests of a producer refuses the first as no
        # leader, and the second as out of order. librdkafka then begins a new epoch, and writes the first one again,
        # although the new leader may have replicated it.
        self.load = NumberedLoad(servers, self.topic, PARTITIONS, requests_in_flight=1)
        self.reader = GroupReader(servers, self.topic, self.names[OFFSETS])
        self.transactions = TransactionalLoad(servers, self.transactions_topic, PARTITIONS, self.names[TRANSACTIONS])
        self._stack = ExitStack()

    def __enter__(self) -> "Traffic":
        self.elect_preferred()
        for part in (self.load, self.reader, self.transactions):
            self._stack.enter_context(part)
        self.progress()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._stack.close()

    @property
    def topics(self) -> tuple[str, ...]:
        return self.topic, self.transactions_topic, OFFSETS, TRANSACTIONS

    def progress(self) -> None:
        """Wait until each client has progressed."""
        self.load.wait_for_more()
        self.transactions.wait_for_more()
        self.reader.wait_for_more()
        assert not self.transactions.unknown, self.transactions.errors

    def elect_preferred(self) -> None:
        """Elect the first replica of all partitions, and wait until they lead."""
        for topic in self.topics:
            wait_until_in_sync(self.admin, topic)
        wait_until(self._is_election_requested)
        for topic in self.topics:
            wait_until(partial(self._is_led_by_first_replicas, topic))

    def _is_election_requested(self) -> bool:
        """Request an election by a new client: one that has the id of a stopped controller keeps it.

        A controller of Apache Kafka may respond as late as the timeout of the request, although leaders have changed.
        """
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap_servers.split(","))
        try:
            admin.elect_leaders(ElectionType.PREFERRED, raise_errors=False)
        except (RuntimeError, NotControllerError, RequestTimedOutError, UnknownBrokerIdError):
            return False
        finally:
            admin.close()
        return True

    def _is_led_by_first_replicas(self, topic: str) -> bool:
        states = describe(self.admin, topic)
        return bool(states) and all(state.leader == state.replicas[0] for state in states.values())

    def coordinators(self) -> dict[str, str]:
        """Return the kind of the broker that coordinates the group, and the transactions."""
        found = {}
        for topic, name in self.names.items():
            states = ask_repeatedly(partial(describe, self.admin, topic))
            found[topic] = self.cluster.kinds[states[partition_of(name, len(states))].leader]
        return found

    def end_broker(self, number: int, *, clean: bool) -> None:
        """Stop or kill a broker, and wait until the clients have progressed without it."""
        before = self.coordinators()
        (self.cluster.stop if clean else self.cluster.kill)(number)
        self.progress()
        after = self.coordinators()
        self.moves |= {(topic, before[topic], after[topic]) for topic in before if before[topic] != after[topic]}

    def fail_over(self, number: int, *, clean: bool) -> None:
        """Stop or kill a broker, start it again, and give its leaderships back."""
        self.end_broker(number, clean=clean)
        self.cluster.start(number)
        self.elect_preferred()
        self.progress()

    def check(self) -> None:
        """All replicas are equal, and the records are those that were acknowledged."""
        servers, directories = self.cluster.bootstrap_servers, self.cluster.data_directories
        states = {topic: wait_until_in_sync(self.admin, topic) for topic in self.topics}
        assert not self.load.failures
        assert self.load.longest_pause_s < REQUEST_TIMEOUT_S, "a request timed out"
        check_numbers(self.load, read_numbers(servers, self.topic, PARTITIONS))
        check_transactions(self.transactions, read_numbers(servers, self.transactions_topic, PARTITIONS))
        for topic in self.topics:
            wait_until_equal(directories, topic, states[topic])


def test_leaders_move_while_a_broker_of_kafka_is_the_controller(cluster, admin):
    cluster.elect_controller(JAVA)
    with Traffic(cluster, admin, "controlled-by-kafka", ((1, 2), (JAVA,))) as traffic:
        assert {state.leader for state in describe(admin, traffic.topic).values()} == {1, 2, JAVA}
        for number, clean in ((1, False), (2, True)):
            traffic.fail_over(number, clean=clean)
        assert traffic.moves == {(topic, ODRADEK, KAFKA) for topic in (OFFSETS, TRANSACTIONS)}
        assert controller(admin) == JAVA
    traffic.check()


def test_leaders_move_while_a_broker_of_odradek_is_the_controller(cluster, admin):
    with Traffic(cluster, admin, "controlled-by-odradek", ((JAVA,),)) as traffic:
        cluster.elect_controller(JAVA)
        traffic.fail_over(JAVA, clean=False)
        first = controller(admin)
        assert first in (1, 2)
        traffic.fail_over(first, clean=False)
        second = cluster.elect_controller(1, 2)
        traffic.fail_over(second, clean=True)
        assert traffic.moves == {(topic, KAFKA, ODRADEK) for topic in (OFFSETS, TRANSACTIONS)}
    traffic.check()


def test_controllers_of_both_kinds_succeed_each_other(cluster, admin):
    with Traffic(cluster, admin, "elected", ((1, 2, JAVA),)) as traffic:
        for index, candidates in enumerate(((JAVA,), (1, 2), (JAVA,))):
            cluster.elect_controller(*candidates)
            create_topic(admin, f"created-{index}")
            wait_until_in_sync(admin, f"created-{index}")
            traffic.progress()
    traffic.check()


def test_a_broker_of_one_kind_replaces_one_of_the_other_with_its_directory(cluster, admin):
    with Traffic(cluster, admin, "replaced", ((JAVA,),)) as traffic:
        for kind, clean in ((ODRADEK, False), (KAFKA, True)):
            traffic.end_broker(JAVA, clean=clean)
            cluster.replace(JAVA, kind)
            traffic.elect_preferred()
            traffic.progress()
        assert traffic.moves == {(topic, KAFKA, ODRADEK) for topic in (OFFSETS, TRANSACTIONS)}
    traffic.check()
