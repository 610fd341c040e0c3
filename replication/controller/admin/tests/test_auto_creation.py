"""Automatic creation of topics by a broker that is not the controller."""

import json
import random
from itertools import pairwise

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.admin.auto_creation import ClusterAutoCreation
from odradek.replication.metadata import znodes
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import (
    Create,
    NodeExistsError,
    NoNodeError,
    SetData,
    StoreUnavailableError,
    TransactionError,
    run_now,
)
from odradek.replication.tests.support import Cluster, SomeBrokerConfig, SteppedExecutor, broker

CREATED = ErrorCode.LEADER_NOT_AVAILABLE
OFFSETS = "__consumer_offsets"


async def no_pause():
    pass


class Standby:
    """A broker that is not the controller, with its own session and metadata cache."""

    def __init__(self, server, *, brokers=(1, 2, 3), seed=5, pause=no_pause, store=None, **static):
        self.store = store or server.connect()
        self.metadata = ClusterMetadata()
        for broker_id in brokers:
            self.metadata.put_broker(broker(broker_id))
        configs = BrokerConfigs(2, SomeBrokerConfig(static), self.metadata)
        self.creation = ClusterAutoCreation(self.store, self.metadata, configs, random.Random(seed), pause)

    def create(self, *names):
        return {name: error.code for name, error in run_now(self.creation.auto_create(names)).items()}

    def topic(self, name):
        return json.loads(run_now(self.store.get(znodes.topic_path(name))).data)

    def configs(self, name):
        return znodes.decode_config(run_now(self.store.get(znodes.topic_config_path(name))).data)

    def has_topic(self, name):
        return run_now(self.store.exists(znodes.topic_path(name))) is not None


@pytest.fixture
def cluster():
    """The controller, broker 1; brokers 2 and 3 are registered."""
    return Cluster(others=(2, 3))


@pytest.fixture
def standby(cluster):
    return Standby(cluster.server, **{"num.partitions": "4", "default.replication.factor": "2"})


def test_the_controller_elects_leaders_of_a_topic_that_another_broker_creates(cluster, standby):
    assert standby.create("t") == {"t": CREATED}
    written = standby.topic("t")
    assert written["version"] == 3
    assert (written["adding_replicas"], written["removing_replicas"]) == ({}, {})
    assert standby.configs("t") == {}
    topic = cluster.image.topics["t"]
    assert znodes.uuid_text(topic.topic_id) == written["topic_id"]
    assert {str(index): list(one.replicas) for index, one in enumerate(topic.partitions)} == written["partitions"]
    assert [(one.leader, one.leader_epoch, one.isr) for one in topic.partitions] == [
        (one.replicas[0], 0, one.replicas) for one in topic.partitions
    ]


def test_replicas_are_assigned_round_robin_to_live_brokers(standby):
    standby.create("t")
    replicas = [standby.topic("t")["partitions"][str(index)] for index in range(4)]
    assert all(len(set(one)) == 2 and set(one) <= {1, 2, 3} for one in replicas)
    leaders = [one[0] for one in replicas]
    assert all(after % 3 == (before + 1) % 3 for before, after in pairwise(leaders))


def test_replicas_are_distributed_over_racks(cluster):
    static = {"num.partitions": "8", "default.replication.factor": "2"}
    standby = Standby(cluster.server, brokers=(1, 2, 3, 4), **static)
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    for broker_id, rack in racks.items():
        standby.metadata.put_broker(broker(broker_id)._replace(rack=rack))
    standby.create("t")
    assert [sorted(racks[one] for one in replicas) for replicas in standby.topic("t")["partitions"].values()] == [
        ["a", "b"]
    ] * 8
    standby.metadata.put_broker(broker(5))
    assert standby.create("u") == {"u": ErrorCode.UNKNOWN_SERVER_ERROR}, "one broker has no rack"


def test_internal_topics_have_their_own_properties(cluster):
    standby = Standby(cluster.server)
    assert standby.create(OFFSETS) == {OFFSETS: CREATED}
    assert [len(replicas) for replicas in standby.topic(OFFSETS)["partitions"].values()] == [3] * 50
    assert standby.configs(OFFSETS) == {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(100 << 20)
    }  # fmt: skip
    assert cluster.image.topic_configs[OFFSETS]["cleanup.policy"] == "compact"


def test_too_few_brokers_create_no_internal_topic(cluster, caplog):
    standby = Standby(cluster.server, brokers=(1, 2))
    for _ in range(3):
        assert standby.create(OFFSETS) == {OFFSETS: ErrorCode.INVALID_REPLICATION_FACTOR}
    assert not standby.has_topic(OFFSETS)
    assert len([line for line in caplog.messages if "automatic creation" in line]) == 1
    standby.metadata.put_broker(broker(3))
    assert standby.create(OFFSETS) == {OFFSETS: CREATED}


def test_without_live_brokers_no_topic_is_created(cluster):
    assert Standby(cluster.server, brokers=()).create("t") == {"t": ErrorCode.INVALID_REPLICATION_FACTOR}


def test_invalid_and_colliding_names_are_refused(cluster, standby):
    standby.create("a.b")
    assert standby.create("a/b", "a_b", "ok", "") == {
        "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "ok": CREATED,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert not standby.has_topic("a_b")


def test_two_new_topics_with_colliding_names_are_not_both_created(standby):
    assert standby.create("a.b", "a_b") == {"a.b": CREATED, "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION}


def test_a_topic_that_exists_in_the_store_is_not_changed(cluster, standby):
    other = Standby(cluster.server, seed=9)
    other.create("t")
    written = other.topic("t")
    assert standby.create("t") == {"t": CREATED}
    assert standby.topic("t") == written


def test_of_two_brokers_that_create_a_topic_one_wins(cluster, standby):
    racing = Racing(standby.store, lambda: Standby(cluster.server, seed=9).create("t"))
    assert Standby(cluster.server, store=racing).create("t") == {"t": CREATED}
    assert len(standby.topic("t")["partitions"]) == 1, "the topic of the first broker"
    assert list(cluster.image.topics) == ["t"]


class Racing:
    """A store in which another broker acts before the first transaction."""

    def __init__(self, store, act):
        self._store = store
        self._act = act
        self.transactions = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def transaction(self, operations):
        self.transactions += 1
        act, self._act = self._act, lambda: None
        act()
        return await self._store.transaction(operations)


def test_an_orphaned_configuration_is_replaced(standby):
    path = znodes.topic_config_path("t")
    run_now(standby.store.create(path, znodes.encode_config({"retention.ms": "1"})))
    assert standby.create("t") == {"t": CREATED}
    assert standby.configs("t") == {}


def test_a_configuration_that_disappears_is_created(cluster, standby):
    path = znodes.topic_config_path("t")
    run_now(standby.store.create(path, znodes.encode_config({})))

    class Removing(Racing):
        async def transaction(self, operations):
            if any(isinstance(operation, SetData) for operation in operations):
                self._act = lambda: run_now(self._store.delete(path))
            return await super().transaction(operations)

    store = Removing(standby.store, lambda: None)
    assert Standby(cluster.server, store=store).create("t") == {"t": CREATED}
    assert store.transactions == 3
    assert standby.configs("t") == {}


def test_the_configuration_of_an_existing_topic_is_not_replaced(cluster, standby):
    def create_with_configs():
        run_now(
            cluster.store.transaction(
                [
                    Create(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "1"})),
                    Create(znodes.topic_path("t"), b"{}"),
                ]
            )
        )

    racing = Racing(standby.store, create_with_configs)
    assert Standby(cluster.server, store=racing).create("t") == {"t": CREATED}
    assert standby.configs("t") == {"retention.ms": "1"}


def test_a_topic_that_is_being_deleted_is_not_created(standby):
    run_now(standby.store.create(znodes.deletion_path("t")))
    assert standby.create("t") == {"t": CREATED}
    assert not standby.has_topic("t")
    run_now(standby.store.delete(znodes.deletion_path("t")))
    standby.create("t")
    assert standby.has_topic("t")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreUnavailableError("no connection"), ErrorCode.KAFKA_STORAGE_ERROR),
        (TransactionError(0, NoNodeError("/brokers/topics")), ErrorCode.UNKNOWN_SERVER_ERROR),
        (TransactionError(1, NodeExistsError("x")), CREATED),
    ],
)
def test_a_failure_of_the_store_is_the_topics_error(cluster, error, expected):
    class Failing(Racing):
        async def transaction(self, operations):
            raise error

    standby = Standby(cluster.server, store=Failing(cluster.server.connect(), lambda: None))
    assert standby.create("t") == {"t": expected}
    assert not standby.has_topic("t")
    standby.creation._store = cluster.server.connect()
    assert standby.create("t") == {"t": CREATED}
    assert standby.has_topic("t")


def test_a_store_that_cannot_be_read_fails_all_topics(cluster):
    class Unreadable(Racing):
        async def get_children(self, path, watch=None):
            raise StoreUnavailableError("no connection")

    standby = Standby(cluster.server, store=Unreadable(cluster.server.connect(), lambda: None))
    assert set(standby.create("t", "u").values()) == {ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_topic_that_another_request_creates_is_unknown_meanwhile(cluster):
    executor = SteppedExecutor()
    standby = Standby(cluster.server, pause=executor.step)
    first = executor.start(standby.creation.auto_create(["t", "u"]))
    executor._resume(executor.ready.popleft())
    executor._resume(executor.ready.popleft())
    second = executor.start(standby.creation.auto_create(["u", "v"]))
    executor.finish()
    assert {name: error.code for name, error in second.outcome().items()} == {
        "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "v": CREATED,
    }
    assert {error.code for error in first.outcome().values()} == {CREATED}
    standby.creation._pause = no_pause
    assert standby.create("u") == {"u": CREATED}, "no longer being created"


def test_a_request_for_too_many_partitions_creates_none(cluster, caplog):
    standby = Standby(cluster.server, **{"num.partitions": "100"})
    assert standby.create(*[f"t{number}" for number in range(101)]) == {}
    assert "10000 partitions at most" in caplog.text
    assert not standby.has_topic("t0")
    assert Standby(cluster.server).create(*[f"u{number}" for number in range(10_001)]) == {}
