"""Administration of a mixed cluster: topics, reassignments, elections, producer ids, quotas, controlled shutdown."""

import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compat_tests import limits
from compat_tests.administration.test_client_quotas import CONSUMER, PRODUCER, REQUEST, Client
from compat_tests.clients.common import wait_until
from compat_tests.cluster.load import NumberedLoad, check_numbers, read_numbers
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster
from compat_tests.cluster.mixed_brokers.requests import (
    Controller,
    Topic,
    ask,
    describe_topic,
    wait_for_all,
    wait_for_topic,
)
from compat_tests.cluster.replicas import read_log, wait_until_equal
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.replication.metadata.producer_id_blocks import BLOCK_SIZE
from odradek.replication.metadata.producer_id_blocks import PATH as LAST_BLOCK
from odradek.server.tests.wire import Wire

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(limits.TEST_S),
]

FIRST, SECOND, JAVA = 1, 2, 3
RECORDS = 50
"""Number of records that are acknowledged between two changes."""
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
FETCH_SIZE = 1 << 20
"""Default of `replica.fetch.max.bytes`."""
NO_ID = -1
FROM_ODRADEK, FROM_KAFKA = "set at odradek", "set/at kafka %"


@pytest.fixture(scope="module")
def mixed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Two brokers of Odradek and one of Apache Kafka, which is the first controller."""
    kinds = {FIRST: ODRADEK, SECOND: ODRADEK, JAVA: KAFKA}
    with MixedCluster(kinds, tmp_path_factory.mktemp("mixed")) as cluster:
        for number in (JAVA, FIRST, SECOND):
            cluster.start(number)
        yield cluster


def create(cluster: MixedCluster, controller: Controller, name: str, assignment: list[list[int]]) -> Topic:
    """Create a topic; return it when all brokers describe it."""
    code, topic_id = controller.create_topic(name, assignment)
    assert code == ErrorCode.NONE
    return wait_for_topic(cluster, name, assignment, topic_id)


def create_again(controller: Controller, name: str, assignment: list[list[int]]) -> bytes:
    """Create a topic when the controller has removed the one of the same name; return the id."""
    found: list[bytes] = []

    def is_created() -> bool:
        code, topic_id = controller.create_topic(name, assignment)
        assert code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        found.append(topic_id)
        return code == ErrorCode.NONE

    wait_until(is_created)
    return found[-1]


def wait_until_unknown(cluster: MixedCluster, name: str, topic_id: bytes) -> None:
    """Wait until no broker describes a topic, by its name or by its id."""

    def is_unknown(number: int) -> bool:
        codes = (
            describe_topic(cluster.port(number), name).error_code,
            describe_topic(cluster.port(number), None, topic_id).error_code,
        )
        return codes == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

    wait_for_all(cluster, is_unknown, f"deletion of {name}")


def produce(cluster: MixedCluster, name: str, topic: Topic, *values: bytes) -> None:
    """Write the values to each partition, with acks=all."""
    for index, state in topic.partitions.items():
        with Wire(cluster.port(state.leader)) as wire:
            assert wire.produce(name, *values, partition=index).error_code == ErrorCode.NONE


def find_directories(cluster: MixedCluster, topic: str) -> set[tuple[int, int]]:
    """Return broker and partition of each directory that has a topic's name."""
    return {
        (number, int(path.name.removeprefix(f"{topic}-")))
        for number, directory in cluster.data_directories.items()
        for path in directory.glob(f"{topic}-*")
        if path.name.removeprefix(f"{topic}-").isdigit()
    }


def replicas_of(assignment: list[list[int]]) -> set[tuple[int, int]]:
    """Return broker and partition of each replica."""
    return {(number, index) for index, replicas in enumerate(assignment) for number in replicas}


def read_topic_ids(cluster: MixedCluster, topic: str) -> set[bytes]:
    """Return the ids in the directories of a topic."""
    found: set[bytes] = set()
    for number, index in find_directories(cluster, topic):
        text = (cluster.data_directories[number] / f"{topic}-{index}" / "partition.metadata").read_text()
        found.add(base64.urlsafe_b64decode(text.partition("topic_id:")[2].strip() + "=="))
    return found


@pytest.mark.parametrize("kind", [KAFKA, ODRADEK])
def test_a_topic_grows_and_is_deleted_and_created_again(cluster: MixedCluster, unique: str, kind: str) -> None:
    controller = Controller(cluster, kind)
    assignment = [[FIRST, JAVA], [JAVA, SECOND]]
    first = create(cluster, controller, unique, assignment)
    first_id = first.topic_id
    produce(cluster, unique, first, b"first")

    added = [[SECOND, FIRST], [JAVA, FIRST], [SECOND, JAVA]]
    assert controller.create_partitions(unique, 5, added) == ErrorCode.NONE
    grown = wait_for_topic(cluster, unique, [*assignment, *added], first_id)
    produce(cluster, unique, grown, b"second", b"third")
    assert find_directories(cluster, unique) == replicas_of([*assignment, *added])
    wait_until_equal(cluster.data_directories, unique, grown.partitions)

    assert controller.delete_topic(unique) == ErrorCode.NONE
    wait_until_unknown(cluster, unique, first_id)
    wait_until(lambda: not find_directories(cluster, unique), what=lambda: find_directories(cluster, unique))

    again = [[JAVA, FIRST], [SECOND, JAVA], [FIRST, SECOND]]
    second_id = create_again(controller, unique, again)
    assert second_id != first_id
    renewed = wait_for_topic(cluster, unique, again, second_id)
    produce(cluster, unique, renewed, b"4")
    assert read_numbers(cluster.bootstrap_servers, unique, len(again)) == {index: [(0, 4)] for index in range(3)}
    wait_until_equal(cluster.data_directories, unique, renewed.partitions)
    assert find_directories(cluster, unique) == replicas_of(again)
    assert read_topic_ids(cluster, unique) == {second_id}
    for number in cluster.kinds:
        assert describe_topic(cluster.port(number), None, first_id).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert describe_topic(cluster.port(number), None, second_id) == renewed


@pytest.mark.parametrize(
    ("kind", "stopped", "successor"),
    [(KAFKA, FIRST, ODRADEK), (ODRADEK, FIRST, KAFKA), (ODRADEK, JAVA, ODRADEK)],
    ids=["kafka-odradek", "odradek-kafka", "odradek"],
)
def test_a_deletion_ends_when_the_last_replica_returns(
    cluster: MixedCluster, unique: str, kind: str, stopped: int, successor: str
) -> None:
    controller = Controller(cluster, kind)
    assignment = [[FIRST, JAVA], [JAVA, FIRST]]
    first = create(cluster, controller, unique, assignment)
    produce(cluster, unique, first, b"1")
    cluster.stop(stopped)
    controller = Controller(cluster, kind)
    assert controller.delete_topic(unique) == ErrorCode.NONE
    wait_until_unknown(cluster, unique, first.topic_id)
    wait_until(lambda: find_directories(cluster, unique) == {(stopped, 0), (stopped, 1)})
    controller = Controller(cluster, successor)
    assert controller.create_topic(unique, [[SECOND]])[0] == ErrorCode.TOPIC_ALREADY_EXISTS
    cluster.start(stopped)
    wait_until(lambda: not find_directories(cluster, unique))
    second_id = create_again(controller, unique, assignment)
    assert second_id != first.topic_id
    second = wait_for_topic(cluster, unique, assignment, second_id)
    produce(cluster, unique, second, b"2")
    assert read_numbers(cluster.bootstrap_servers, unique, 2) == {0: [(0, 2)], 1: [(0, 2)]}
    wait_until_equal(cluster.data_directories, unique, second.partitions)


def test_partitions_move_between_kinds_while_kafka_is_the_controller(cluster: MixedCluster, unique: str) -> None:
    controller = Controller(cluster, KAFKA)
    create(cluster, controller, unique, [[FIRST, SECOND]])
    # With several requests in flight, a move of the leader to a broker of Apache Kafka may duplicate a record: see
    # `test_mixed_cluster.Traffic`.
    with NumberedLoad(cluster.bootstrap_servers, unique, 1, requests_in_flight=1) as load:
        load.wait_for_more(RECORDS)
        for target in ([JAVA, FIRST], [SECOND, JAVA], [JAVA, FIRST], [FIRST, SECOND]):
            assert controller.reassign(unique, {0: target}) == [ErrorCode.NONE]
            topic = wait_for_topic(cluster, unique, [target])
            wait_until(lambda: find_directories(cluster, unique) == replicas_of([target]))  # noqa: B023
            load.wait_for_more(RECORDS)
    assert controller.list_reassignments(unique, 1) == {}
    assert not load.failures
    check_numbers(load, read_numbers(cluster.bootstrap_servers, unique, 1))
    wait_until_equal(cluster.data_directories, unique, topic.partitions)


def set_configs(cluster: MixedCluster, resource: tuple[int, str], values: dict[str, str | None]) -> None:
    """Set or remove configurations by the broker of Apache Kafka; return when it applies them."""
    configs = [
        IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=value is None, value=value)
        for name, value in values.items()
    ]
    one = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=resource[0], resource_name=resource[1], configs=configs
    )
    path = f"entityPath: {'topics' if resource[0] == TOPIC_RESOURCE else 'brokers'}/{resource[1]} "
    before = cluster.brokers[JAVA].log_text().count(path)
    [response] = ask(cluster.port(JAVA), IncrementalAlterConfigsRequest(resources=[one]), 1).responses
    assert response.error_code == ErrorCode.NONE, response.error_message
    wait_until(lambda: cluster.brokers[JAVA].log_text().count(path) > before, what=path)


def test_reassignments_of_kafka_are_listed_and_cancelled(cluster: MixedCluster, unique: str) -> None:
    """Kafka's controller begins all, and cancels half of them; then Odradek's cancels one and completes the last."""
    controller = Controller(cluster, KAFKA)
    # The broker of Apache Kafka leads the even partitions, and will follow the odd ones.
    assignment = [[JAVA, FIRST], [FIRST, SECOND]] * 2
    topic = create(cluster, controller, unique, assignment)
    targets = {0: [SECOND, FIRST], 1: [JAVA, SECOND], 2: [SECOND, FIRST], 3: [JAVA, SECOND]}
    even, odd = ([SECOND, FIRST, JAVA], [SECOND], [JAVA]), ([JAVA, SECOND, FIRST], [JAVA], [FIRST])
    # A follower's fetch gets one record of a partition, and then no more for seconds.
    for _ in range(4):
        produce(cluster, unique, topic, b"x" * (FETCH_SIZE - 4096))
    set_configs(cluster, (BROKER_RESOURCE, str(JAVA)), dict.fromkeys(RATES, "1000"))
    set_configs(cluster, (TOPIC_RESOURCE, unique), dict.fromkeys(THROTTLED, "*"))
    try:
        assert controller.reassign(unique, targets) == [ErrorCode.NONE] * 4
        assert controller.list_reassignments(unique, 4) == {0: even, 1: odd, 2: even, 3: odd}
        for number in (SECOND, JAVA):
            wait_until(partial(has_added_records, cluster.data_directories[number], unique, targets, number))
        assert controller.reassign(unique, {0: None, 1: None}) == [ErrorCode.NONE] * 2
        assert controller.reassign(unique, {0: None}) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
        assert controller.list_reassignments(unique, 4) == {2: even, 3: odd}
        # A controller of Apache Kafka that resigns before it has sent StopReplica leaves the replica where it is.
        wait_until(lambda: not find_directories(cluster, unique) & {(SECOND, 0), (JAVA, 1)})
        controller = Controller(cluster, ODRADEK)
        assert controller.list_reassignments(unique, 4) == {2: even, 3: odd}
        assert controller.reassign(unique, {2: None}) == [ErrorCode.NONE]
    finally:
        set_configs(cluster, (BROKER_RESOURCE, str(JAVA)), dict.fromkeys(RATES))
    # The replicas do not contain their former order: the target's is kept.
    result = [[FIRST, JAVA], [SECOND, FIRST], [FIRST, JAVA], [JAVA, SECOND]]
    topic = wait_for_topic(cluster, unique, result)
    assert controller.list_reassignments(unique, 4) == {}
    assert [topic.partitions[index].leader for index in range(4)] == [JAVA, FIRST, JAVA, JAVA]
    wait_until(
        lambda: find_directories(cluster, unique) == replicas_of(result), what=lambda: find_directories(cluster, unique)
    )
    produce(cluster, unique, topic, b"last")
    wait_until_equal(cluster.data_directories, unique, topic.partitions)


def has_added_records(data_directory: Path, topic: str, targets: dict[int, list[int]], number: int) -> bool:
    """Return whether a broker has records of a partition of which it is a new replica, the first of the target."""
    directories = [data_directory / f"{topic}-{index}" for index, target in targets.items() if target[0] == number]
    return any(directory.exists() and read_log(directory) for directory in directories)


@pytest.mark.parametrize("kind", [KAFKA, ODRADEK])
def test_preferred_leaders_of_both_kinds_are_elected(cluster: MixedCluster, unique: str, kind: str) -> None:
    controller = Controller(cluster, kind)
    former = [[FIRST, JAVA], [JAVA, SECOND], [FIRST, SECOND], [JAVA, FIRST]]
    before = create(cluster, controller, unique, former)
    # A reassignment to the same replicas in another order keeps the leaders.
    assignment = [[JAVA, FIRST], [SECOND, JAVA], [SECOND, FIRST], [JAVA, FIRST]]
    assert controller.reassign(unique, dict(enumerate(assignment[:3]))) == [ErrorCode.NONE] * 3
    reordered = wait_for_topic(cluster, unique, assignment)
    assert [state.leader for state in reordered.partitions.values()] == [
        state.leader for state in before.partitions.values()
    ]
    needed, not_needed = ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED
    assert controller.elect_preferred(unique, [0, 1, 2, 3, 4]) == [
        *(needed, needed, needed, not_needed),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]

    def is_led(number: int) -> bool:
        found = describe_topic(cluster.port(number), unique).partitions
        return all(state.leader == state.replicas[0] for state in found.values())

    wait_for_all(cluster, is_led, f"preferred leaders of {unique}")
    elected = wait_for_topic(cluster, unique, assignment, before.topic_id)
    changed = [
        index for index, state in elected.partitions.items() if state.leader != reordered.partitions[index].leader
    ]
    assert changed == [0, 1, 2]
    produce(cluster, unique, elected, b"value")
    wait_until_equal(cluster.data_directories, unique, elected.partitions)
    assert controller.elect_preferred(unique, [0, 1, 2, 3]) == [not_needed] * 4


def test_blocks_of_producer_ids_never_overlap(cluster: MixedCluster) -> None:
    found: dict[int, list[int]] = {number: [] for number in cluster.kinds}

    def request_ids(number: int, last: int) -> None:
        """Get ids of a broker until one is above the last that earlier controllers have allocated."""
        with Wire(cluster.port(number)) as wire:
            while max(found[number], default=NO_ID) <= last:
                response = wire.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
                assert response.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                if response.error_code == ErrorCode.NONE:
                    found[number].append(response.producer_id)

    for kind in (KAFKA, ODRADEK, KAFKA):
        Controller(cluster, kind)
        with cluster.connect() as zookeeper:
            last = int(json.loads(zookeeper.get(LAST_BLOCK)[0] or b"{}").get("block_end", NO_ID))
        with ThreadPoolExecutor(len(found)) as executor:
            list(executor.map(request_ids, found, [last] * len(found)))
    ids = [each for of_broker in found.values() for each in of_broker]
    assert len(set(ids)) == len(ids)
    blocks = [{each // BLOCK_SIZE for each in of_broker} for of_broker in found.values()]
    assert len(set().union(*blocks)) == sum(map(len, blocks)), "a block has ids of several brokers"


def test_leaderships_move_before_kafka_stops_while_odradek_is_the_controller(
    cluster: MixedCluster, unique: str
) -> None:
    controller = Controller(cluster, ODRADEK)
    assignment = [[JAVA, FIRST, SECOND], [JAVA, SECOND, FIRST], [FIRST, JAVA, SECOND]]
    create(cluster, controller, unique, assignment)
    moved: dict[int, int] = {}
    """Time, in ms, at which ZooKeeper wrote that a partition has another leader than the broker of Apache Kafka."""

    def note_leader(index: int, data: bytes, stat: Any) -> None:
        if json.loads(data)["leader"] not in (JAVA, -1):
            moved.setdefault(index, stat.mtime)

    with (
        cluster.connect() as zookeeper,
        NumberedLoad(cluster.bootstrap_servers, unique, len(assignment), requests_in_flight=1) as load,
    ):
        for index in range(len(assignment)):
            path = f"/brokers/topics/{unique}/partitions/{index}/state"
            zookeeper.DataWatch(path, partial(note_leader, index))
        assert set(moved) == {2}
        load.wait_for_more(RECORDS)
        cluster.stop(JAVA)
        wait_until(lambda: len(moved) == len(assignment))
        # Later the broker closes its socket, and the controller moves leaderships for that reason too.
        assert max(moved.values()) <= find_controlled_shutdown(cluster.brokers[JAVA].log_text())
        load.wait_for_more(RECORDS)
        cluster.start(JAVA)
        load.wait_for_more(RECORDS)
        topic = wait_for_topic(cluster, unique, assignment)
        load.wait_for_more(RECORDS)
    assert not load.failures
    check_numbers(load, read_numbers(cluster.bootstrap_servers, unique, len(assignment)))
    wait_until_equal(cluster.data_directories, unique, topic.partitions)


def find_controlled_shutdown(log: str) -> int:
    """Return the time, in ms, of the last controlled shutdown that the controller confirmed."""
    [*_, last] = re.findall(r"^\[(\S+ \S+)\].* Controlled shutdown request returned successfully", log, re.MULTILINE)
    return round(datetime.strptime(last, "%Y-%m-%d %H:%M:%S,%f").timestamp() * 1000)


def is_throttled(port: int, client_id: str) -> bool:
    """Return whether a client that has used its quota gets the longest throttle time of a request quota."""
    with Client(port, client_id) as client:
        client.heartbeat()
    with Client(port, client_id) as client:
        return client.heartbeat() == 1000


def test_a_quota_set_on_either_kind_applies_to_both(cluster: MixedCluster) -> None:
    ports = {number: cluster.port(number) for number in (FIRST, JAVA)}
    for number, name in ((FIRST, FROM_ODRADEK), (JAVA, FROM_KAFKA)):
        with Client(ports[number], "admin") as admin:
            admin.set({"user": "ANONYMOUS", "client-id": name}, **{REQUEST: 0.001, PRODUCER: 5.0})
    for port in ports.values():
        for name in (FROM_ODRADEK, FROM_KAFKA):
            wait_until(lambda port=port, name=name: is_throttled(port, name))  # type: ignore[misc]
    described = []
    for port in ports.values():
        with Client(port, "admin") as admin:
            found = admin.describe([])[2] or []
            described.append({tuple(sorted(entity, key=str)): quotas for entity, quotas in found})
    assert described[0] == described[1]
    assert len(described[0]) == 2
    # A change at one broker keeps what the other has set, and a removal reaches the other.
    with Client(ports[FIRST], "admin") as admin:
        admin.set({"user": "ANONYMOUS", "client-id": FROM_KAFKA}, **{REQUEST: None, CONSUMER: 7.0})
    with Client(ports[JAVA], "admin") as admin:
        expected = {PRODUCER: 5.0, CONSUMER: 7.0}
        components: list[tuple[str, int, str | None]] = [("client-id", 0, FROM_KAFKA)]
        wait_until(lambda: [one[1] for one in admin.describe(components)[2] or []] == [expected])
    wait_until(lambda: not is_throttled(ports[JAVA], FROM_KAFKA))
