"""Invariants of a cluster: each violation is reported."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.store import run_now
from odradek.replication.replicas.isr import IsrChange, IsrEvent, IsrState
from odradek.simulation.cluster.invariants import ClusterInvariants
from odradek.simulation.cluster.power import find_incomplete
from odradek.simulation.world import World

TOPIC_ID = bytes(range(16))
HEALTHY = PartitionMetadata(leader=1, leader_epoch=3, replicas=(1, 2, 3), isr=(1, 2, 3), controller_epoch=2)


class Tree:
    """A tree with one partition, which tests change."""

    def __init__(self):
        self.world = World(1, broker_count=3)
        assert self.world.zookeeper is not None
        self.store = self.world.zookeeper.tree.connect()
        for path in (znodes.BROKER_IDS, znodes.partition_path("t", 0)):
            run_now(self.store.ensure_path(path))
        for number in HEALTHY.replicas:
            run_now(self.store.create(znodes.broker_path(number)))
        run_now(self.store.set(znodes.topic_path("t"), znodes.encode_topic(TOPIC_ID, (HEALTHY,))))
        run_now(self.store.create(znodes.state_path("t", 0), znodes.encode_state(HEALTHY)))
        run_now(self.store.create(znodes.CONTROLLER_EPOCH, b"2"))
        self.invariants = ClusterInvariants(self.world.zookeeper, self.world.brokers)
        self.metadata = SimpleNamespace(controller_epoch=2)
        self.cluster = SimpleNamespace(_control=None)

    def change(self, **changes):
        state = HEALTHY._replace(**changes)
        run_now(self.store.set(znodes.state_path("t", 0), znodes.encode_state(state)))

    def found(self, *replicas):
        services = SimpleNamespace(replicas=replicas, metadata=self.metadata, cluster=self.cluster)
        process: Any = SimpleNamespace(
            name="broker-1", start_count=1, broker=SimpleNamespace(services=services), is_stopping=False
        )
        return list(self.invariants.check(process))


class Replica(SimpleNamespace):
    """A replica with what the invariants read, compared by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def replica(name="broker-1", **changes):
    epochs = SimpleNamespace(entries=[(1, 0), (3, 10)], latest_epoch=3)
    state = SimpleNamespace(
        leader_epochs=epochs, log_start_offset=0, last_stable_offset=20, high_watermark=20, log_end_offset=30,
        producer_state=SimpleNamespace(first_unstable_offset=-1), is_closed=False,
    )  # fmt: skip
    log = SimpleNamespace(
        state=state, latest_epoch=3,
        high_watermark=20, log_end_offset=30, config=SimpleNamespace(compacts=True, min_insync_replicas=2), segments=(),
    )  # fmt: skip
    made = Replica(
        topic="t", topic_id=TOPIC_ID, index=0, leader=1, leader_epoch=3, partition_epoch=0, is_leader=True,
        isr=(1, 2, 3), maximal_isr=(1, 2, 3), replicas=(1, 2, 3), log=log,
    )  # fmt: skip
    for key, value in changes.items():
        owners = {"entries": epochs, "high_watermark": log, "log_end_offset": log}
        setattr(owners.get(key, made), key, value)
    return made


@pytest.fixture
def tree():
    tree = Tree()
    assert tree.found(replica()) == []
    return tree


@pytest.mark.parametrize(
    "changes",
    [
        {"log_start_offset": 25},
        {"high_watermark": 31},
        {"log_end_offset": 15},
        {"producer_state": SimpleNamespace(first_unstable_offset=5), "last_stable_offset": -1},
        {"leader_epochs": SimpleNamespace(entries=[(1, 0), (4, 10)], latest_epoch=4)},
    ],
)
def test_a_log_that_becomes_inconsistent_is_reported(tree, changes):
    made = replica()
    assert tree.found(made) == []
    for name, value in changes.items():
        setattr(made.log.state, name, value)
    expected = "the log has leader epoch" if "leader_epochs" in changes else "does not hold"
    assert any(expected in what for what in tree.found(made))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"leader_epoch": 2}, "leader_epoch fell from 3 to 2"),
        ({"controller_epoch": 1}, "controller_epoch fell from 2 to 1"),
        ({"leader": 2}, "leaders 1 and 2 in epoch 3"),
        ({"isr": ()}, "ISR () of replicas"),
        ({"isr": (1, 4)}, "ISR (1, 4) of replicas"),
        ({"isr": (2, 3)}, "the leader 1 is not in the ISR"),
        ({"leader_recovery_state": 1}, "recovering with ISR"),
    ],
)
def test_wrong_states_in_zookeeper_are_reported(tree, changes, text):
    tree.change(**changes)
    assert any(text in what for what in tree.found())


def test_an_election_outside_the_isr_is_reported(tree):
    tree.change(isr=(1,))
    assert tree.found() == []
    tree.change(leader=2, leader_epoch=4, isr=(2,))
    assert any("leader 2 was not in the ISR (1,)" in what for what in tree.found())


def test_a_controller_epoch_has_one_owner(tree):
    run_now(tree.store.create(znodes.CONTROLLER, znodes.encode_controller(1, 0)))
    assert tree.found() == []
    run_now(tree.store.set(znodes.CONTROLLER, znodes.encode_controller(2, 0)))
    assert any("controllers" in what for what in tree.found())
    run_now(tree.store.set(znodes.CONTROLLER_EPOCH, b"1"))
    assert any("the controller epoch fell" in what for what in tree.found())


def test_a_write_of_an_earlier_controller_is_reported(tree):
    run_now(tree.store.set(znodes.CONTROLLER_EPOCH, b"3"))
    assert tree.found() == []
    tree.change(leader_epoch=4, controller_epoch=2)
    assert any("written by the controller of epoch 2 in 3" in what for what in tree.found())


def test_an_unclean_election_is_reported_unless_it_is_enabled(tree):
    tree.change(isr=(1,), leader_recovery_state=1, leader_epoch=4)
    assert any("an unclean election" in what for what in tree.found())
    tree.invariants.unclean = ("t",)
    tree.change(isr=(1,), leader_recovery_state=0, leader_epoch=5)
    tree.invariants.logged.add(("t", 0, 6))
    tree.change(isr=(1,), leader_recovery_state=1, leader_epoch=6)
    assert tree.found() == []
    tree.change(leader=2, isr=(2,), leader_recovery_state=1, leader_epoch=7)
    assert tree.found() == ["ZooKeeper t-0: an unclean election that no controller has logged"]


def elect_unclean(tree):
    """Elect broker 2 in epoch 6, without the records that broker 1 has committed."""
    tree.invariants.unclean = ("t",)
    tree.invariants.logged.add(("t", 0, 6))
    tree.change(leader=2, isr=(2,), leader_recovery_state=1, leader_epoch=6)
    assert tree.found() == []


def test_the_leader_of_an_unclean_election_may_lack_committed_records(tree):
    elect_unclean(tree)
    unclean = replica(leader=2, leader_epoch=6, isr=(2,), high_watermark=8, log_end_offset=15)
    assert tree.found(unclean) == []
    (election,) = tree.invariants.branches.elections
    assert (election.partition, election.leader_epoch, election.kept_end) == (("t", 0), 6, 0)


def test_the_next_leader_has_what_was_committed_after_an_unclean_election(tree):
    elect_unclean(tree)
    assert tree.found(replica(leader=2, leader_epoch=6, isr=(1, 2), high_watermark=15)) == []
    assert any("15 is committed" in what for what in tree.found(replica(leader_epoch=7, log_end_offset=14)))


def test_a_follower_of_an_uncleanly_elected_leader_may_still_have_lost_records(tree):
    elect_unclean(tree)
    assert tree.found(replica(leader=2, leader_epoch=6, isr=(2,), high_watermark=8, log_end_offset=15)) == []
    follower = replica(is_leader=False, leader=2, leader_epoch=6)
    assert tree.found(follower) == []
    follower.log.state.leader_epochs.entries.append((6, 15))
    follower.log.state.log_end_offset = 31
    assert any("high watermark 20, committed is 8" in what for what in tree.found(follower))


def test_a_topic_id_that_changes_is_reported(tree):
    run_now(tree.store.set(znodes.topic_path("t"), znodes.encode_topic(bytes(16), (HEALTHY,))))
    assert any("topic id" in what for what in tree.found())


def test_a_topic_id_that_was_used_before_is_reported(tree):
    run_now(tree.store.delete(znodes.state_path("t", 0)))
    run_now(tree.store.delete(znodes.partition_path("t", 0)))
    run_now(tree.store.delete(znodes.partitions_path("t")))
    run_now(tree.store.delete(znodes.topic_path("t")))
    assert tree.found() == []
    run_now(tree.store.create(znodes.topic_path("u"), znodes.encode_topic(bytes(16), (HEALTHY,))))
    assert tree.found() == []
    run_now(tree.store.create(znodes.topic_path("t"), znodes.encode_topic(TOPIC_ID, (HEALTHY,))))
    assert tree.found() == [f"ZooKeeper t: its id {TOPIC_ID.hex()} was used before, by t"]


@pytest.mark.parametrize("session", [5, 6])
def test_a_write_of_a_session_that_is_not_the_controllers_is_reported(tree, session):
    tree.world.zookeeper.writer = 5
    run_now(tree.store.set(znodes.CONTROLLER_EPOCH, b"3"))
    assert tree.found() == []
    tree.world.zookeeper.writer = session
    run_now(tree.store.create(znodes.topic_path("u"), znodes.encode_topic(bytes(16), (HEALTHY,))))
    assert tree.found() == []
    run_now(tree.store.ensure_path(znodes.DELETE_TOPICS))
    for where, write in (
        ("t-0", lambda: tree.change(leader_epoch=4, controller_epoch=3)),
        ("t", lambda: run_now(tree.store.set(znodes.topic_path("t"), znodes.encode_topic(TOPIC_ID, (HEALTHY,))))),
        ("u, its deletion", lambda: run_now(tree.store.create(znodes.deletion_path("u")))),
        ("u, its deletion", lambda: run_now(tree.store.delete(znodes.topic_path("u")))),
        ("u, its deletion", lambda: run_now(tree.store.delete(znodes.deletion_path("u")))),
    ):
        write()
        expected = [] if session == 5 else [f"ZooKeeper {where}: written in session 6, the controller has 5"]
        assert tree.found() == expected


def test_a_leader_without_committed_records_is_reported(tree):
    assert any("20 is committed" in what for what in tree.found(replica(leader_epoch=4, log_end_offset=19)))
    assert tree.found(replica(leader_epoch=5)) == []


def test_a_follower_with_an_uncommitted_high_watermark_is_reported(tree):
    found = tree.found(replica(is_leader=False, leader=2, high_watermark=21))
    assert any("high watermark 21, committed is 20" in what for what in found)


def test_blocks_of_producer_ids_do_not_overlap(tree):
    path = "/latest_producer_id_block"
    run_now(tree.store.create(path, b'{"block_start":"0","block_end":"999"}'))
    assert tree.found() == []
    run_now(tree.store.set(path, b'{"block_start":"1000","block_end":"1999"}'))
    assert tree.found() == []
    run_now(tree.store.set(path, b'{"block_start":"1500","block_end":"2499"}'))
    assert any("overlap" in what for what in tree.found())
    run_now(tree.store.set(path, b'{"block_start":"2500","block_end":"3499"}'))
    assert tree.found() == []
    run_now(tree.store.set(path, b'{"block_start":"2500","block_end":"3499"}'))
    assert any("overlap" in what for what in tree.found())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"leader_epoch": 2}, "the leader epoch was 3"),
        ({"high_watermark": 19}, "the high watermark fell from 20 to 19"),
        ({"entries": [(1, 10), (2, 10)]}, "do not increase"),
        ({"isr": (2, 3)}, "the leader is not in the ISR"),
        ({"isr": (1, 4)}, "ISR (1, 4) of replicas"),
        ({"maximal_isr": (1, 2)}, "maximal ISR (1, 2), ZooKeeper has (1, 2, 3)"),
    ],
)
def test_wrong_states_of_a_broker_are_reported(tree, changes, text):
    assert any(text in what for what in tree.found(replica(**changes)))


def test_a_replica_in_sync_without_all_records_is_reported(tree):
    log = SimpleNamespace(log_end_offset=20, config=SimpleNamespace(compacts=True, min_insync_replicas=2))
    run_on_second_broker(tree, log=log, topic_id=TOPIC_ID, index=0, leader_epoch=3)
    assert tree.found(replica(high_watermark=20)) == []
    assert any("the log of broker-2 in the ISR ends at 20" in what for what in tree.found(replica(high_watermark=21)))


@pytest.mark.parametrize(("isr", "is_reported"), [((1, 2, 3), True), ((1, 3), False)])
def test_a_replaced_leader_may_have_members_that_have_left_the_isr(tree, isr, is_reported):
    log = SimpleNamespace(log_end_offset=0, config=SimpleNamespace(compacts=True, min_insync_replicas=2))
    run_on_second_broker(tree, log=log, topic_id=TOPIC_ID, index=0, leader_epoch=4)
    tree.change(leader=3, leader_epoch=4, isr=isr)
    found = tree.found(replica(high_watermark=21))
    assert any("the log of broker-2 in the ISR ends at 0" in what for what in found) == is_reported


def test_a_high_watermark_that_rises_with_too_few_replicas_in_sync_is_reported(tree):
    assert tree.found(replica(isr=(1,))) == []
    assert any("rose with ISR (1,)" in what for what in tree.found(replica(isr=(1,), high_watermark=21)))


def test_an_epoch_has_one_leader(tree):
    services = SimpleNamespace(replicas=[replica()], metadata=tree.metadata, cluster=tree.cluster)
    broker = SimpleNamespace(services=services)
    other: Any = SimpleNamespace(name="broker-2", start_count=1, is_stopping=False, broker=broker)
    assert any("broker-1 leads in the same epoch" in what for what in tree.invariants.check(other))


def test_a_broker_that_follows_an_earlier_controller_again_is_reported(tree):
    tree.metadata.controller_epoch = 3
    assert tree.found() == []
    tree.metadata.controller_epoch = 2
    assert tree.found() == ["broker-1 follows the controller of epoch 2 after that of 3"]


def test_a_broker_that_accepts_a_request_of_an_earlier_controller_is_reported(tree):
    tree.cluster._control = SimpleNamespace(_controller_epoch=3)
    assert tree.found() == []
    tree.cluster._control._controller_epoch = 2
    assert tree.found() == ["broker-1 follows the controller of epoch 2 after that of 3"]


@pytest.mark.parametrize(("epoch", "is_reported"), [(-1, False), (2, True), (3, False)])
def test_a_replica_that_joins_the_isr_without_the_leader_epoch_is_reported(tree, epoch, is_reported):
    run_on_second_broker(tree, topic_id=TOPIC_ID, index=0, leader_epoch=epoch, log=None)
    tree.change(isr=(1, 3))
    found = tree.found(replica(isr=(1, 3)))
    assert any("replica 2 joins the ISR" in what for what in found) == is_reported


@pytest.mark.parametrize(("epoch", "is_reported"), [(-1, False), (6, True), (7, False)])
def test_a_replica_that_joined_the_isr_in_an_old_registration_is_reported(tree, epoch, is_reported):
    change = IsrChange((1, 2, 3), 3, 0, (-1, -1, epoch))
    leader = replica(_leader_state=SimpleNamespace(isr=IsrState((1, 2)).propose(IsrEvent.EXPAND, change)))
    controller = SimpleNamespace(image=SimpleNamespace(brokers={3: SimpleNamespace(epoch=7)}))
    replicas = SimpleNamespace(partitions={("t", 0): leader})
    tree.world.brokers[0].broker = SimpleNamespace(
        services=SimpleNamespace(replicas=replicas, controller=controller)
    )
    run_now(tree.store.create(znodes.CONTROLLER, znodes.encode_controller(1, 0)))
    tree.change(isr=(1, 2))
    assert tree.found() == []
    tree.change(isr=(1, 2, 3))
    assert any("replica 3 joined the ISR in its registration 6" in what for what in tree.found()) == is_reported


def run_on_second_broker(tree, **fields):
    """Let the second broker run with a replica."""
    replicas = SimpleNamespace(partitions={("t", 0): SimpleNamespace(**fields)})
    process = tree.world.brokers[1]
    process.broker, process.is_up = SimpleNamespace(services=SimpleNamespace(replicas=replicas)), True


def test_a_cluster_without_its_brokers_is_incomplete(tree):
    assert find_incomplete(tree.world) == "broker-1 is not up"
