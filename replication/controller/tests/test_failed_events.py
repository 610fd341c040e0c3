"""Events of the controller that fail because the metadata store refuses a write: what they left undone is repeated."""

import os

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.partitions.tests.test_reassignment_in_cluster import node
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.tests.test_controller_random import Run
from odradek.replication.controller.tests.test_failed_elections import FailedWrites
from odradek.replication.controller.tests.test_replica_recovery import complete_reassignment
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.tests.cluster_requests import create, nodes, states
from odradek.replication.tests.cluster_support import World

FIRST_SEED = int(os.environ.get("ODRADEK_CONTROLLER_SEED", "1"))
SEEDS = int(os.environ.get("ODRADEK_CONTROLLER_SEEDS", "20"))
FAILED_WRITES = 0.3
"""The part of the writes that fails."""


@pytest.fixture
def world():
    return World()


def test_the_deletion_of_a_marked_topic_is_repeated(world):
    """The watch of the marks had fired: the topic remained until another topic was marked."""
    create(world, "t", (2, 3))
    writes = FailedWrites(world)
    run_now(world.observer.create(znodes.deletion_path("t")))
    world.executor.finish()
    writes.end()
    assert nodes(world, znodes.TOPICS) == ["t"]
    writes.repeat()
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def test_an_admin_request_times_out_if_the_session_ends(world):
    """The client got UNKNOWN_SERVER_ERROR, and the log asked for a report."""
    create(world, "t", (2, 3))
    controller = world.active.controller

    async def read_again():
        world.server.expire(world.active.store)
        await controller.changes.read_again(["t"])

    with pytest.raises(KafkaError) as failed:
        world.run(controller.request("alter reassignments", read_again))
    assert failed.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_replicas_that_a_reassignment_removed_leave_the_topics_node(world):
    """They stayed in the node until another broker became the controller."""
    create(world, "t", (1, 2))
    world.fakes[2].is_up = False
    complete_reassignment(world, [1, 3])
    assert node(world) == ((1, 3, 2), (), (2,))
    writes = FailedWrites(world)
    world.fakes[2].is_up = True
    world.executor.wake()
    world.executor.finish()
    writes.end()
    assert node(world) == ((1, 3, 2), (), (2,))
    writes.repeat()
    assert node(world) == ((1, 3), (), ())


def test_a_topic_of_another_broker_begins_although_the_first_attempt_failed(world):
    """It had no leader until other topics were created."""
    writes = FailedWrites(world)
    assignment = znodes.encode_topic(b"t" * 16, (new_partition((2, 3), (), 0),))
    run_now(world.observer.create(znodes.topic_path("t"), assignment))
    world.executor.finish()
    writes.end()
    writes.repeat()
    assert states(world, "t") == [(2, 0, (2, 3))]


def test_a_claim_that_failed_is_repeated():
    """No broker was the controller until another one started."""
    world = World((1,))
    controller = world.active.controller
    later = []
    controller.deletion.run_later = lambda delay_ms, task: later.append(task)
    transaction = controller.store.transaction

    async def fail(operations):
        raise StoreUnavailableError("access is denied")

    controller.store.transaction = fail
    run_now(world.observer.delete(znodes.CONTROLLER))
    world.executor.finish()
    assert not controller.is_active
    controller.store.transaction = transaction
    [repeat] = later
    world.run(repeat())
    assert controller.is_active


def change_config(world, **configs):
    run_now(world.observer.set(znodes.topic_config_path("t"), znodes.encode_config(configs)))
    notice = znodes.encode_config_change("topics/t")
    run_now(world.observer.create(f"{znodes.CONFIG_CHANGES}/config_change_", notice, sequential=True))
    world.executor.finish()


@pytest.mark.parametrize("broker_id", [1, 2])
@pytest.mark.parametrize("read", ["get_children", "get", "get_many"])
def test_a_configuration_that_could_not_be_read_is_read_again(world, monkeypatch, broker_id, read):
    """The notice was not read again, and without a watch neither were later ones, by the controller or a standby."""
    create(world, "t", (2, 3))
    controller = world.nodes[broker_id].controller
    later = []
    controller.deletion.run_later = lambda delay_ms, task: later.append(task)

    async def fail(*arguments):
        raise StoreUnavailableError("access is denied")

    with monkeypatch.context() as patch:
        patch.setattr(controller.store, read, fail)
        change_config(world, retention="1")
    assert "t" not in controller.image.topic_configs
    [repeat] = later
    world.run(repeat())
    assert controller.image.topic_configs["t"] == {"retention": "1"}
    change_config(world, retention="2")
    assert controller.image.topic_configs["t"] == {"retention": "2"}


class RunWithFailedWrites(Run):
    """A cluster without failures of brokers, in which a part of the controller's writes fails."""

    def __init__(self, seed):
        self.fails = False
        super().__init__(seed)

    def start(self, broker_id):
        super().start(broker_id)
        controller = self.world.nodes[broker_id].controller
        write = controller.context.write

        async def fail_sometimes(operations):
            if self.fails and self.random.random() < FAILED_WRITES:
                raise StoreUnavailableError("access is denied")
            return await write(operations)

        async def run_later(delay_ms, task):
            await self.world.executor.delay(delay_ms)
            await task()

        controller.context.write = fail_sometimes
        controller.deletion.run_later = lambda delay_ms, task: self.world.executor.start(run_later(delay_ms, task))

    def act(self, actions, count):
        for _ in range(count):
            self.random.choice(actions)()
            self.steps(self.random.choice((0, 1, 5, 20, 100, 400)))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_failed_writes_leave_nothing_undone(seed):
    run = RunWithFailedWrites(seed)
    run.start(4)
    run.steps(10_000)
    run.act([run.create, run.create, run.reassign, run.alter], 10)
    run.fails = True
    actions = [run.create, run.alter, run.reassign] * 2 + [run.delete, run.grow] + [run.mark] * 3
    run.act(actions, 25)
    run.fails = False
    run.steps(400_000)
    run.finish_reassignments()
    run.check_quiet()
    run.check_end()
    run.check_errors()
