"""A broker may refuse to start only because of disk errors during that start."""

import errno

import pytest

from odradek.log.storage.filesystem import LogDirFailure
from odradek.simulation.faults import Faults
from odradek.simulation.history import History
from odradek.simulation.scenario import FaultPlan
from odradek.simulation.world import World


@pytest.fixture
def world():
    world = World(1)
    Faults(world, History(world.now_ms), FaultPlan({}, 1.0), world.new_random())
    return world


def start(world):
    world.broker.start()
    return world.run(lambda: world.broker.is_up or not world.broker.is_alive, 60) and world.broker.is_up


def lock_out(world):
    """Lock the directory by another process: a start then fails without a disk error."""
    assert start(world)
    world.broker.kill()
    world.broker.disk.come_up()
    world.broker.disk.lock(f"{world.broker.directories[0]}/.lock")


def test_a_broker_that_loses_a_directory_after_the_last_fault_is_restarted():
    """The failure was reported late."""
    world = World(1, {"log.dirs": "/data1,/data2"})
    faults = Faults(world, History(world.now_ms), FaultPlan({}, 1.0), world.new_random())
    assert start(world)
    faults.end()
    world.run(lambda: False, 2)
    world.broker.broker.services.logs.log_dirs.work_failed("/data1", LogDirFailure("/data1", "removing failed"))
    world.run(lambda: False, 5)
    assert world.broker.start_count == 2
    assert world.broker.broker.services.logs.online_directories == ["/data1", "/data2"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_start_may_fail_because_of_an_error_that_has_ended(world, error):
    for _ in range(10):
        world.broker.disk.fail("write", error=error)
        assert not start(world)
    assert world.failures == []
    assert start(world)


def test_a_start_may_fail_because_of_a_directory_that_cannot_be_written(world):
    world.broker.disk.broken.update(dict.fromkeys(world.broker.directories))
    assert not start(world)
    assert world.failures == []


def test_a_start_may_not_fail_because_of_an_error_in_the_start_before(world):
    world.broker.disk.fail("write")
    assert not start(world)
    lock_out(world)
    assert not start(world)
    (failure,) = world.failures
    assert "does not start although no disk operation failed" in failure


def test_a_start_may_not_fail_because_of_an_error_that_did_not_occur(world):
    lock_out(world)
    world.broker.disk.fail("write", after=10_000)
    assert not start(world)
    assert len(world.failures) == 1


def broker_epoch(world):
    return world.broker.broker.services.metadata.brokers[1].epoch


def test_the_store_is_restored_between_two_processes(world):
    faults = Faults(world, History(world.now_ms), FaultPlan({}, 1.0), world.new_random())
    assert start(world)
    epoch = broker_epoch(world)
    world.broker.kill()
    assert world.run(lambda: world.broker.is_up, 60)
    assert broker_epoch(world) > epoch
    epoch = broker_epoch(world)
    faults.restore_store()
    world.broker.kill()
    assert world.run(lambda: world.broker.is_up, 60)
    later_epoch = broker_epoch(world)
    assert later_epoch > epoch
    assert world.run(lambda: not world.broker.is_up, 60)
    assert world.run(lambda: world.broker.is_up, 60)
    assert broker_epoch(world) <= later_epoch
    assert world.failures == []
