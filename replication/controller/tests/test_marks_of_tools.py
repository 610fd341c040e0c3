"""Requests that other tools write into the metadata store while the controller does other work."""

import pytest

from odradek.protocol.messages.elect_leaders import ElectLeadersRequest
from odradek.protocol.messages.elect_leaders import ElectLeadersRequestTopicPartitions as TopicPartitions
from odradek.replication.controller.admin.elections import PREFERRED, ElectionAdmin
from odradek.replication.controller.events import EventKind
from odradek.replication.controller.partitions.tests.test_reassignment_in_cluster import begin, partition_epoch
from odradek.replication.controller.tests.test_operator_requests import row
from odradek.replication.controller.tests.test_replica_recovery import complete_reassignment
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER
from odradek.replication.metadata.loader import load_topic
from odradek.replication.metadata.store import NoNodeError, run_now
from odradek.replication.tests.cluster_requests import alter_row, create, nodes, states
from odradek.replication.tests.cluster_support import World

REASSIGN, ELECT = znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_ELECTION


@pytest.fixture
def world():
    return World()


@pytest.fixture
def tool(world):
    """The session of another tool."""
    return world.server.connect()


def request(*rows):
    return znodes.encode({"version": 1, "partitions": list(rows)})


def hold(world):
    """Let the controller process no further event until the returned function is called."""
    pause = world.executor.waiter()

    async def wait():
        await pause

    def release():
        pause.callback(None)
        world.executor.finish()

    world.active.controller._events.post(EventKind.BROKERS, "other work", wait)
    return release


def test_a_topic_is_deleted_that_is_marked_while_a_removed_replica_is_stopped(world, tool):
    """The topic's node still has the removed replica: the deletion waited forever for the end of a reassignment."""
    create(world, "t", (1, 2))
    world.fakes[2].is_up = False
    complete_reassignment(world, [1, 3])
    run_now(tool.create(znodes.deletion_path("t")))
    world.executor.finish()
    world.fakes[2].is_up = True
    world.executor.wake()
    world.executor.finish()
    world.executor.wake()
    world.executor.finish()
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []
    assert {broker_id for broker_id, fake in world.fakes.items() if ("t", 0) in fake.deleted} == {1, 2, 3}


def test_reassignments_that_are_requested_while_earlier_ones_end_are_begun(world, tool):
    """They were taken for finished ones and removed with them."""
    create(world, "t", (1, 2), (1, 2))
    run_now(tool.create(REASSIGN, request(row(0, 1, 3))))
    world.executor.finish()
    release = hold(world)
    world.active.controller._operator_requests._on_finished()
    run_now(tool.set(REASSIGN, request(row(0, 1, 3), row(1, 2, 3))))
    release()
    assert znodes.decode_reassignments(run_now(tool.get(REASSIGN)).data) == {("t", 0): (1, 3), ("t", 1): (2, 3)}
    for index, target in enumerate(((1, 3), (2, 3))):
        assert world.active.controller.reassignments.is_in_progress("t", index, target)


def test_a_request_that_is_written_before_the_last_one_is_removed_stays(world, tool, monkeypatch):
    create(world, "t", (1, 2), (1, 2))
    run_now(tool.create(REASSIGN, request(row(0, 1, 3))))
    world.executor.finish()
    store = world.active.controller.store
    later = request(row(1, 2, 3))
    read = store.get

    async def get(path, watch=None):
        node = await read(path, watch)
        is_ending = not world.active.controller.reassignments.is_in_progress("t", 0, (1, 3))
        if path == REASSIGN and node.data != later and is_ending:
            await tool.set(REASSIGN, later)
        return node

    monkeypatch.setattr(store, "get", get)
    added = alter_row(world, "t", 0, [1, 2, 3], leader_epoch=1, partition_epoch=partition_epoch(world))
    assert added.error_code == 0
    assert world.active.controller.reassignments.is_in_progress("t", 1, (2, 3))
    assert znodes.decode_reassignments(run_now(tool.get(REASSIGN)).data) == {("t", 1): (2, 3)}


def test_an_election_that_is_requested_again_during_the_last_one_is_executed(world, tool, monkeypatch):
    create(world, "t", (2, 1), (2, 1))
    world.crash(2)
    world.executor.finish()
    world.start(2)
    controller = world.active.controller
    topic = controller.image.topics["t"]
    in_sync = tuple([partition._replace(isr=(1, 2)) for partition in topic.partitions])
    world.run(controller.put_partitions([topic._replace(partitions=in_sync)]))
    elect = controller.elections.elect_preferred

    async def elect_slowly(partitions):
        await elect(partitions)
        if partitions == [("t", 0)]:
            await tool.set(ELECT, request(row(1)))

    monkeypatch.setattr(controller.elections, "elect_preferred", elect_slowly)
    run_now(tool.create(ELECT, request(row(0))))
    world.executor.finish()
    assert [leader for leader, _, _ in states(world, "t")] == [2, 2]
    with pytest.raises(NoNodeError):
        run_now(tool.get(ELECT))


def test_a_new_controller_removes_marks_if_deletion_is_disabled(world, tool):
    """The marked topic was not loaded, and its partitions had no leader until another controller was elected."""
    create(world, "t", (1, 2))
    world.nodes[2].controller.deletion.is_enabled = lambda: False
    hold(world)
    run_now(tool.create(znodes.deletion_path("t")))
    world.crash(1)
    world.executor.finish()
    assert nodes(world, znodes.DELETE_TOPICS) == []
    assert states(world, "t") == [(2, 2, (2,))]
    assert world.fakes[2].cache["t", 0] == (2, 2, (2,), (1, 2))


def test_a_mark_during_a_takeover_is_removed_if_deletion_is_disabled(world, tool):
    create(world, "t", (1, 2))
    deletion = world.nodes[2].controller.deletion
    deletion.is_enabled = lambda: False
    refuse_marks = deletion.refuse_marks

    async def mark_late():
        deletion.refuse_marks = refuse_marks
        await tool.create(znodes.deletion_path("t"))
        return False

    deletion.refuse_marks = mark_late
    world.crash(1)
    world.executor.finish()
    assert nodes(world, znodes.DELETE_TOPICS) == []
    [(leader, _, isr)] = states(world, "t")
    assert (leader, isr) == (2, (2,))
    assert world.fakes[2].roles["t", 0][0] == 2


def test_leaders_are_elected_although_another_has_written_a_state(world, tool):
    """The request was refused with INVALID_UPDATE_VERSION."""
    create(world, "t", (1, 2))
    controller = world.active.controller
    partition = controller.image.topics["t"].partitions[0]
    changed = partition._replace(leader=2, leader_epoch=1)
    run_now(tool.set(znodes.state_path("t", 0), znodes.encode_state(changed)))
    controller.image.put_topic(controller.image.topics["t"]._replace(partitions=(changed,)))

    async def applied():
        pass

    topics = [TopicPartitions(topic="t", partitions=[0])]
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=topics, timeout_ms=1000)
    response = world.run(ElectionAdmin(controller, applied).elect(request))
    [result] = response.replica_election_results
    assert [row.error_code for row in result.partition_result] == [0]
    assert states(world, "t") == [(1, 2, (1, 2))]


def test_a_removed_replica_is_deleted_although_the_topic_is_deleted_meanwhile(world, tool):
    """In a new session its broker got no request, and refused the roles of a later topic of that name."""
    create(world, "t", (1, 2))
    world.fakes[2].is_up = False
    complete_reassignment(world, [1, 3])
    run_now(tool.create(znodes.deletion_path("t")))
    world.executor.finish()
    world.server.expire(world.nodes[2].store)
    world.executor.finish()
    world.nodes[2].rejoin()
    world.fakes[2].is_up = True
    for _ in range(3):
        world.executor.wake()
        world.executor.finish()
    assert ("t", 0) not in world.fakes[2].roles
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def begin_late_deletion(world, tool):
    """Mark a topic of brokers 1 and 2 while it is being reassigned to broker 3: the deletion waits for that."""
    create(world, "t", (1, 2), (1, 2))
    world.fakes[3].is_up = False
    begin(world, [2, 3])
    run_now(tool.create(znodes.deletion_path("t")))
    world.executor.finish()
    assert world.active.controller.deletion.has_blocked


def test_a_topic_that_is_deleted_after_its_reassignment_has_leaders_until_then(world, tool):
    """Without leaders neither ended, although all brokers had returned."""
    begin_late_deletion(world, tool)
    world.active.controller.on_broker_refused(world.active.controller.image.brokers[2])
    world.executor.finish()
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(1, (1,))] * 2


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_late_deletion_survives_the_failure_of_a_leader(is_controller):
    world = World((1, 2, 3) if is_controller else (4, 1, 2, 3))
    tool = world.server.connect()
    begin_late_deletion(world, tool)
    assert (world.active.controller.broker_id == 1) is is_controller
    world.crash(1)
    world.executor.finish()
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(2, (2,))] * 2
    world.fakes[3].is_up = True
    world.start(1)
    world.executor.wake()
    world.executor.finish()
    [(leader, epoch, isr), _] = states(world, "t")
    members = [*isr, 3]
    alter_row(
        world, "t", 0, members, leader=leader, leader_epoch=epoch, partition_epoch=partition_epoch(world)
    )
    world.executor.finish()
    assert nodes(world, znodes.TOPICS) == nodes(world, znodes.DELETE_TOPICS) == []


def test_the_state_of_a_deleted_topic_whose_leader_has_failed_begins_an_epoch(world, tool):
    """A leader epoch has one leader, and a state the epoch of the controller that wrote it."""
    create(world, "t", (3,))
    [(_, leader_epoch, _)] = states(world, "t")
    hold(world)
    run_now(tool.create(znodes.deletion_path("t")))
    world.crash(3)
    world.crash(world.active.fake.broker_id)
    world.executor.finish()
    [state] = run_now(load_topic(tool, "t")).partitions
    assert (state.leader, state.leader_epoch, state.isr) == (NO_LEADER, leader_epoch + 1, (3,))
    assert state.controller_epoch == world.active.controller.epoch


def test_leaders_are_elected_although_a_topic_is_marked_while_deletion_is_disabled(world, tool):
    """The topic was regarded as deleted, and had no leader after its mark was removed."""
    create(world, "t", (2, 3))
    world.active.controller.deletion.is_enabled = lambda: False
    release = hold(world)
    world.crash(2)
    run_now(tool.create(znodes.deletion_path("t")))
    release()
    assert nodes(world, znodes.DELETE_TOPICS) == []
    assert states(world, "t") == [(3, 1, (3,))]
