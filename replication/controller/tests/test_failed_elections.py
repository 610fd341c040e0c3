"""Elections that the metadata store refuses: they are repeated, and nothing is lost before."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.partitions.tests.test_reassignment_in_cluster import begin
from odradek.replication.controller.tests.test_replica_recovery import fail_directory
from odradek.replication.controller.tests.test_restarts import HeldEvents, restart
from odradek.replication.metadata.store import StoreUnavailableError
from odradek.replication.tests.cluster_requests import alter_row, create, shut_down, states
from odradek.replication.tests.cluster_support import World


@pytest.fixture
def world():
    return World()


class FailedWrites:
    """The store refuses the writes of a controller, until `end`."""

    def __init__(self, world):
        self._world = world
        self._context = world.active.controller.context
        self._write = self._context.write
        self._later = []
        self._context.write = self._fail
        world.active.controller.deletion.run_later = lambda delay_ms, task: self._later.append(task)

    async def _fail(self, operations):
        raise StoreUnavailableError("access is denied")

    def end(self):
        """Accept writes from now on."""
        self._context.write = self._write

    def repeat(self):
        """Begin what is to be repeated after a delay."""
        later, self._later = self._later, []
        for task in later:
            self._world.run(task())

    @property
    def repetitions(self):
        return len(self._later)


def restart_without_election(world, broker_id):
    """Restart a broker while no leader can be elected; the store accepts writes afterwards."""
    events, writes = HeldEvents(world.active.controller), FailedWrites(world)
    restart(world, broker_id)
    events.release()
    world.executor.finish()
    writes.end()
    return writes


def test_a_leader_that_restarted_gets_its_former_role_in_no_case(world):
    """It led again in the same leader epoch, and its followers truncated the records that it had lost."""
    create(world, "t", (2, 3))
    writes = restart_without_election(world, 2)
    assert world.fakes[2].roles == {}
    writes.repeat()
    assert states(world, "t") == [(3, 1, (3,))]
    assert world.fakes[2].roles == {("t", 0): (3, 1, (3,), (2, 3))}


def test_a_replica_that_restarted_is_not_the_preferred_leader(world):
    create(world, "t", (3, 2))
    begin(world, [2, 3])
    writes = restart_without_election(world, 2)
    world.run(world.active.controller.rebalance_leaders(0))
    assert states(world, "t") == [(3, 1, (3, 2))]
    writes.repeat()
    assert states(world, "t") == [(3, 2, (3,))]


def test_a_controlled_shutdown_leaves_no_isr_without_the_last_records(world):
    """The restarted leader remained as the only member of the ISR, and was elected again."""
    create(world, "t", (2, 3))
    writes = restart_without_election(world, 2)
    assert shut_down(world, 3) == (ErrorCode.NONE, [("t", 0)])
    writes.repeat()
    assert states(world, "t") == [(3, 1, (3,))]


def test_a_cancelled_reassignment_leaves_no_isr_without_the_last_records(world):
    """Without the added replica the restarted leader was the only member of the ISR, and was elected again."""
    create(world, "t", (2,))
    begin(world, [1, 3])
    assert not alter_row(world, "t", 0, [2, 3], leader=2, leader_epoch=1, partition_epoch=1).error_code
    writes = restart_without_election(world, 2)
    assert begin(world, None)[0].code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    writes.repeat()
    assert states(world, "t") == [(3, 2, (3,))]


def test_an_election_after_the_failure_of_a_log_directory_is_repeated(world):
    """The replica counted as offline already, so that no later response of its broker caused an election."""
    create(world, "t", (2, 3))
    writes = FailedWrites(world)
    fail_directory(world, 2, ("t", 0))
    assert states(world, "t") == [(2, 0, (2, 3))]
    writes.repeat()
    assert writes.repetitions == 1
    writes.end()
    writes.repeat()
    assert states(world, "t") == [(3, 1, (3,))]
    assert writes.repetitions == 0
