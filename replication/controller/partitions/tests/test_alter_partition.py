"""AlterPartition: changes of ISRs by leaders. Sections are those of `zookeeper-mode.md`."""


import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_partition import (
    AlterPartitionRequest,
)
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.cluster_requests import alter, alter_row, create, states
from odradek.replication.tests.cluster_support import World

E = ErrorCode


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize("version", [2, 3])
def test_alter_partition_changes_the_isr_without_a_new_leader_epoch(world, version):
    """Section 5: AlterPartition keeps the leader epoch and rewrites the controller epoch; UpdateMetadata follows."""
    create(world, "t", (1, 2, 3))
    world.take()
    row = alter_row(world, "t", 0, [1, 3], version=version)
    assert (row.error_code, row.leader_id, row.leader_epoch, row.isr, row.partition_epoch) == (0, 1, 0, [1, 3], 1)
    assert states(world, "t") == [(1, 0, (1, 3))]
    update = [("UM", [1, 2, 3], {"t-0": (1, 0, [1, 3])})]
    assert world.take() == {1: update, 2: update, 3: update}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"leader_epoch": 1}, E.NOT_CONTROLLER),
        ({"partition_epoch": 1}, E.NOT_CONTROLLER),
        ({"isr": [1, 2, 3]}, E.NONE),
        ({"recovery": 1}, E.INVALID_REQUEST),
        ({"isr": [1], "recovery": 1}, E.INVALID_REQUEST),
        ({"isr": [1, 4]}, E.INVALID_REQUEST),
        ({"isr": [2]}, E.INVALID_REQUEST),
        ({"leader": 2}, E.INVALID_REQUEST),
        ({"name": "unknown"}, E.UNKNOWN_TOPIC_ID),
        ({"index": 1}, E.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_alter_partition_refuses_a_partition(world, options, error):
    create(world, "t", (1, 2, 3))
    world.take()
    arguments = {"name": "t", "index": 0, "isr": [1, 2]} | options
    row = alter_row(world, arguments.pop("name"), arguments.pop("index"), arguments.pop("isr"), **arguments)
    assert row.error_code == error
    assert states(world, "t") == [(1, 0, (1, 2, 3))]
    assert world.take() == {}


def test_alter_partition_refuses_old_epochs_and_ineligible_replicas(world):
    create(world, "t", (1, 2, 3))
    assert alter_row(world, "t", 0, [1, 3]).error_code == E.NONE
    assert alter_row(world, "t", 0, [1, 3]).error_code == E.NONE
    assert alter_row(world, "t", 0, [1]).error_code == E.INVALID_UPDATE_VERSION
    world.crash(3)
    world.executor.finish()
    assert states(world, "t") == [(1, 1, (1,))]
    assert alter_row(world, "t", 0, [1, 2], partition_epoch=1).error_code == E.FENCED_LEADER_EPOCH
    now = {"leader_epoch": 1, "partition_epoch": 2}
    assert alter_row(world, "t", 0, [1, 3], **now).error_code == E.INELIGIBLE_REPLICA
    world.active.controller.context.shutting_down.add(2)
    assert alter_row(world, "t", 0, [1, 2], **now).error_code == E.INELIGIBLE_REPLICA
    assert states(world, "t") == [(1, 1, (1,))]


def test_alter_partition_refuses_a_member_that_has_restarted_since_it_was_proposed(world):
    """KIP-903: the restart removed nothing from the ISR, and the member may lack records that the leader counts."""
    create(world, "t", (1, 2, 3))
    assert alter_row(world, "t", 0, [1, 3]).error_code == E.NONE
    proposed = {1: -1, 2: world.fakes[2].epoch, 3: world.fakes[3].epoch}
    world.crash(2)
    world.start(2)
    row = alter_row(world, "t", 0, [1, 3, 2], partition_epoch=1, members=proposed)
    assert row.error_code == E.INELIGIBLE_REPLICA
    proposed[2] = world.fakes[2].epoch
    row = alter_row(world, "t", 0, [1, 3, 2], partition_epoch=1, members=proposed)
    assert (row.error_code, row.isr) == (E.NONE, [1, 3, 2])


def test_alter_partition_refuses_brokers_and_controllers_that_are_not(world):
    create(world, "t", (1, 2, 3))
    assert alter(world, "t", 0, [1, 3], epoch=0).error_code == E.STALE_BROKER_EPOCH
    assert alter(world, "t", 0, [1, 3], leader=9, epoch=0).error_code == E.STALE_BROKER_EPOCH
    request = AlterPartitionRequest(broker_id=1, broker_epoch=world.fakes[1].epoch)
    assert world.run(world.nodes[2].controller.alter_partition(request)).error_code == E.NOT_CONTROLLER


def test_a_state_that_another_wrote_is_read_again(world):
    """Section 2: a conditional write may already have succeeded; BADVERSION means to read again."""
    create(world, "t", (1, 2, 3))
    partition = world.active.controller.image.topics["t"].partitions[0]
    run_now(
        world.nodes[2].store.set(znodes.state_path("t", 0), znodes.encode_state(partition._replace(isr=(1, 2))))
    )
    assert alter_row(world, "t", 0, [1, 3]).error_code == E.INVALID_UPDATE_VERSION
    assert alter_row(world, "t", 0, [1, 2]).error_code == E.NONE
    world.crash(2)
    world.executor.finish()
    assert states(world, "t") == [(1, 1, (1,))]


def test_a_state_of_a_later_controller_makes_the_controller_resign(world):
    """Section 6: a state with a higher controller epoch aborts."""
    create(world, "t", (1, 2, 3))
    first = world.nodes[1]
    partition = first.controller.image.topics["t"].partitions[0]
    later = znodes.encode_state(partition._replace(isr=(1, 2), controller_epoch=2))
    run_now(world.nodes[2].store.set(znodes.state_path("t", 0), later))
    assert alter(world, "t", 0, [1, 3]).error_code == E.NOT_CONTROLLER
    world.executor.finish()
    assert world.active.controller.epoch == 2
    assert first.controller.epoch == 2 or not first.propagation.is_active
    assert states(world, "t") == [(1, 0, (1, 2))]


def test_a_broker_that_repeats_a_refused_request_is_logged_once(world, caplog):
    with caplog.at_level("INFO"):
        for epoch in (0, 0, 1, 1):
            for leader in (1, 2):
                alter(world, "t", 0, [1, 3], leader=leader, epoch=epoch)
    logged = [record.args for record in caplog.records if "is refused" in record.msg]
    assert logged == [(1, 0), (2, 0), (1, 1), (2, 1)]
