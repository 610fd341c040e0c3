"""Restarts of brokers whose logs may have lost records, which the controller notices late or not at all."""

import pytest

from odradek.replication.controller.partitions.tests.test_reassignment_in_cluster import begin
from odradek.replication.controller.registration import Registration
from odradek.replication.controller.tests.test_replica_recovery import fail_directory
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import Create, Delete, StoreDamagedError, run_now
from odradek.replication.metadata.znodes import RegistrationMark, Restart
from odradek.replication.tests.cluster_requests import alter_row, create, delete, nodes, shut_down, states
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import broker

CONTINUED = RegistrationMark(Restart.CONTINUED, 5)


@pytest.fixture
def world():
    return World()


class HeldEvents:
    """Events about the store, of one kind or of all, which the controller processes after `release`."""

    def __init__(self, controller, kind=None):
        self.changes = controller._store_changes
        self.post, self.held = self.changes._post, []
        self.changes._post = lambda *event: self.held.append(event) if kind in (None, event[0]) else self.post(*event)

    def release(self):
        self.changes._post = self.post
        for event in self.held:
            self.post(*event)


def fail_elections(controller):
    """Let elections fail until the returned function is called, which repeats them."""
    later = []
    elect_leaders = controller.changes.elect_leaders
    controller.deletion.run_later = lambda delay_ms, task: later.append(task)

    async def fail(why, **options):
        raise StoreDamagedError("a node")

    def repeat(world):
        controller.changes.elect_leaders = elect_leaders
        for task in later:
            world.run(task())

    controller.changes.elect_leaders = fail
    return repeat


def restart(world, broker_id):
    world.crash(broker_id)
    world.start(broker_id)


def renew_sessions(world, *broker_ids):
    """End the sessions of brokers, which begin new ones."""
    renewed = [world.nodes[broker_id] for broker_id in broker_ids]
    for node in renewed:
        world.server.expire(node.store)
    rejoins = [node.rejoin() for node in renewed]
    world.executor.finish()
    for rejoin in rejoins:
        rejoin.outcome()


def marks(world):
    return run_now(world.observer.get_children(znodes.RESTARTS))


def test_a_dead_replica_that_has_all_records_is_preferred_to_one_that_has_restarted(world):
    create(world, "t", (2, 3))
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    world.crash(3)
    world.executor.finish()
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(-1, 1, (3,))]
    world.start(3)
    assert states(world, "t") == [(3, 2, (3,))]


def test_a_replica_that_restarted_and_died_unnoticed_is_not_in_sync(world):
    create(world, "t", (2, 3))
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    world.crash(2)
    world.crash(3)
    world.executor.finish()
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(-1, 1, (3,))]


def test_replicas_that_have_all_restarted_are_elected(world):
    create(world, "t", (2, 3), (3, 2), (2,))
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    restart(world, 3)
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(2, 1, (2, 3)), (3, 1, (3, 2)), (2, 1, (2,))]


def test_a_replica_that_has_restarted_does_not_replace_a_leader_that_refuses_connections(world):
    create(world, "t", (2, 3))
    controller = world.active.controller
    events = HeldEvents(controller)
    restart(world, 3)
    controller.on_broker_refused(controller.image.brokers[2])
    world.executor.finish()
    assert states(world, "t") == [(2, 1, (2,))]
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(2, 1, (2,))]


def test_a_leader_that_has_restarted_begins_a_new_epoch(world):
    """It was elected before it restarted, and has no role now."""
    create(world, "t", (2, 3), (3, 2))
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(3, 1, (3,)), (3, 1, (3,))]
    assert world.fakes[2].roles == {("t", 0): (3, 1, (3,), (2, 3)), ("t", 1): (3, 1, (3,), (3, 2))}


def test_the_next_controller_notices_a_restart_that_preceded_a_write(world):
    """It compared the broker's epoch with the transaction of the last write only."""
    create(world, "t", (2, 3))
    controller = world.active.controller
    HeldEvents(controller)
    restart(world, 2)
    topic = controller.image.topics["t"]
    written = topic._replace(partitions=(topic.partitions[0]._replace(leader_epoch=1),))
    world.run(controller.put_partitions([written]))
    assert states(world, "t") == [(2, 1, (2, 3))]
    world.crash(1)
    world.executor.finish()
    [(leader, _, isr)] = states(world, "t")
    assert (leader, isr) == (3, (3,))
    assert marks(world) == []


def test_the_next_controller_prefers_a_dead_replica_to_one_that_has_restarted(world):
    create(world, "t", (2, 3))
    HeldEvents(world.active.controller)
    restart(world, 2)
    world.crash(3)
    world.crash(1)
    world.executor.finish()
    [(leader, _, isr)] = states(world, "t")
    assert (leader, isr) == (-1, (3,))
    world.start(3)
    [(leader, _, isr)] = states(world, "t")
    assert (leader, isr) == (3, (3,))


def test_a_restart_is_noticed_although_the_next_controller_ends_before_it_reads_the_marks():
    """The marks were ignored after it, and a broker without the last records was elected."""
    world = World((1, 2, 3, 4))
    create(world, "t", (3, 2, 4))
    HeldEvents(world.active.controller)
    restart(world, 2)
    # After the registration of 2, so that the epochs do not show its restart.
    alter_row(world, "t", 0, [3, 2], leader=3, leader_epoch=0, partition_epoch=0)
    store_changes = world.nodes[4].controller._store_changes

    async def fail():
        world.crash(4)

    store_changes.watch_all = fail
    for broker_id in (2, 3):
        world.nodes[broker_id].controller._abstains = True
    world.crash(1)
    world.executor.finish()
    assert 4 not in world.nodes or not world.nodes[4].controller.is_active
    for broker_id in (2, 3):
        world.nodes[broker_id].controller._abstains = False
        world.nodes[broker_id].controller.on_controller_moved()
    world.executor.finish()
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(3, (3,))]


def test_marks_of_the_time_of_a_controller_of_kafka_are_ignored(world):
    """It follows restarts, but deletes no marks: its successor removed all brokers of Odradek from all ISRs."""
    create(world, "t", (2, 3))
    run_now(world.observer.set(znodes.RESTARTS, b"0"))
    run_now(world.observer.create(znodes.restart_path(2)))
    world.crash(1)
    world.executor.finish()
    assert states(world, "t") == [(2, 0, (2, 3))]
    assert marks(world) == []
    assert run_now(world.observer.get(znodes.RESTARTS)).data == b"2"


def test_the_marks_of_restarts_go_when_they_have_been_followed(world):
    assert marks(world) == []
    restart(world, 2)
    assert marks(world) == []


def test_a_restart_during_the_election_keeps_its_mark(world):
    create(world, "t", (2, 3))
    controller = world.active.controller
    elect_leaders = controller.changes.elect_leaders

    async def elect(why, **options):
        controller.changes.elect_leaders = elect_leaders
        events = HeldEvents(controller)
        world.start(2, run=False)
        await elect_leaders(why, **options)
        assert marks(world) == ["2"]
        events.release()

    controller.changes.elect_leaders = elect
    world.crash(2)
    world.executor.finish()
    assert states(world, "t") == [(3, 1, (3,))]
    assert marks(world) == []


def test_leaders_are_elected_later_if_the_election_fails(world):
    """The image had the change of the registrations already, so that no later event repeated the election."""
    create(world, "t", (2, 3))
    controller = world.active.controller
    repeat_elections = fail_elections(controller)
    events = HeldEvents(controller)
    restart(world, 2)
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(2, 0, (2, 3))]
    repeat_elections(world)
    assert states(world, "t") == [(3, 1, (3,))]


def test_a_deletion_continues_on_a_broker_that_starts_although_the_election_fails(world):
    """The repeated election continued no deletion, and the topic remained until the broker's next start."""
    create(world, "t", (2, 3))
    world.crash(2)
    world.executor.finish()
    assert delete(world, "t") == {}
    assert nodes(world, znodes.TOPICS) == ["t"]
    repeat_elections = fail_elections(world.active.controller)
    world.start(2)
    repeat_elections(world)
    assert nodes(world, znodes.TOPICS) == []


def test_a_broker_registers_although_the_parent_of_the_marks_was_deleted():
    """It repeated its registration forever, without a delay."""
    world = World((1,))
    run_now(world.observer.delete(znodes.RESTARTS))
    node = world.nodes[1]
    exists, calls = node.store.exists, []

    async def count(path, watch=None):
        calls.append(path)
        assert len(calls) < 100
        return await exists(path, watch)

    node.store.exists = count
    world.server.expire(node.store)
    node.rejoin().outcome()
    assert node.controller.is_active


def test_a_controlled_shutdown_after_an_unnoticed_restart_leaves_no_isr_without_the_last_records(world):
    """The restarted leader remained as the only member of the ISR, and was elected again."""
    create(world, "t", (2, 3))
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    assert shut_down(world, 3) == (0, [("t", 0)])
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(3, 1, (3,))]


def test_a_cancelled_reassignment_after_an_unnoticed_restart_leaves_no_isr_without_the_last_records(world):
    """Without the added replica the restarted leader was the only member of the ISR, and was elected again."""
    create(world, "t", (2,))
    begin(world, [1, 3])
    assert not alter_row(world, "t", 0, [2, 3], leader=2, leader_epoch=1, partition_epoch=1).error_code
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    assert begin(world, None)[0] is not None
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(3, 2, (3,))]


def test_a_log_directory_that_fails_after_an_unnoticed_restart_makes_no_restarted_replica_the_leader(world):
    """It was elected, and the records of the failed directory would have been truncated once it worked again."""
    create(world, "t", (2, 3))
    events = HeldEvents(world.active.controller)
    restart(world, 3)
    fail_directory(world, 2, ("t", 0))
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(-1, 2, (2,))]


def test_a_reassignment_is_not_completed_with_a_replica_that_restarted_unnoticed(world):
    """It became the only replica, and the others were deleted."""
    create(world, "t", (3,))
    begin(world, [2])
    events = HeldEvents(world.active.controller)
    restart(world, 2)
    assert not alter_row(world, "t", 0, [3, 2], leader=3, leader_epoch=1, partition_epoch=1).error_code
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(3, 2, (3,))]
    assert world.fakes[3].deleted == set()


def end_all(world):
    """End all processes before any controller notices one end."""
    HeldEvents(world.active.controller)
    for broker_id in sorted(world.nodes, key=lambda one: one == world.active.fake.broker_id):
        world.crash(broker_id)
    world.executor.finish()


def be_controller(world):
    """Keep the brokers from becoming the controller until the session that is returned expires."""
    session = world.server.connect()
    removal = [Delete(znodes.CONTROLLER)] if run_now(session.exists(znodes.CONTROLLER)) is not None else []
    creation = Create(znodes.CONTROLLER, znodes.encode_controller(9, 0), ephemeral=True)
    run_now(session.transaction([*removal, creation]))
    return session


def test_after_the_end_of_all_brokers_one_that_may_lack_records_is_not_elected_before_the_others(world):
    create(world, "t", (2, 3))
    end_all(world)
    world.start(2, restart=Restart.LOSSY)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(-1, (3,))]
    world.start(3, restart=Restart.LOSSY)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(3, (3,))]


def test_after_the_end_of_all_brokers_two_members_do_not_wait_for_a_third(world):
    """Both had registered before the takeover; the partition waited for the third, which could have lost its disk."""
    create(world, "t", (1, 2, 3))
    end_all(world)
    other = be_controller(world)
    for broker_id in (2, 3):
        world.start(broker_id, restart=Restart.LOSSY)
    world.server.expire(other)
    world.executor.finish()
    [(leader, _, isr)] = states(world, "t")
    assert (leader, isr) == (2, (2, 3))
    world.start(1, restart=Restart.LOST)
    assert [isr for _, _, isr in states(world, "t")] == [(2, 3)]


def test_a_broker_that_lost_logs_is_not_elected_before_a_dead_member_of_the_isr(world):
    """The controller has no replica, and has noticed the end of both."""
    create(world, "t", (2, 3), (2,))
    events = HeldEvents(world.active.controller)
    world.crash(2)
    world.crash(3)
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(-1, 1, (2, 3)), (-1, 1, (2,))]
    world.start(2, restart=Restart.LOST)
    assert states(world, "t") == [(-1, 2, (3,)), (2, 2, (2,))]
    world.start(3)
    assert states(world, "t") == [(3, 3, (3,)), (2, 2, (2,))]


def test_a_mark_that_is_written_between_the_reads_of_marks_and_registrations_is_followed(world):
    """The broker that lost logs was elected as the only member of the ISR."""
    create(world, "t", (2, 3))
    events = HeldEvents(world.active.controller)
    world.crash(2)
    world.crash(3)
    events.release()
    world.executor.finish()
    restarts = world.active.controller._store_changes._restarts
    read = restarts.read

    async def read_before():
        restarts.read = read
        await read()
        world.start(2, restart=Restart.LOST, run=False)

    restarts.read = read_before
    world.start(4)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(-1, (3,))]
    world.start(3)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(3, (3,))]


def test_one_that_may_lack_records_is_preferred_to_one_that_lost_logs(world):
    create(world, "t", (2, 3))
    end_all(world)
    other = be_controller(world)
    world.start(2, restart=Restart.LOST)
    world.start(3, restart=Restart.LOSSY)
    world.server.expire(other)
    world.start(1)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(3, (3,))]


def test_a_lossy_restart_that_no_controller_has_followed_is_not_covered_by_a_later_one(world):
    """The same process registers in a new session."""
    create(world, "t", (2, 3))
    end_all(world)
    run_now(Registration(world.server.connect(), lambda: 0).register(broker(2), Restart.LOSSY))
    run_now(world.observer.delete(znodes.broker_path(2)))
    world.start(2, restart=Restart.CONTINUED)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(-1, (3,))]


def test_a_mark_does_not_cover_a_registration_by_a_broker_of_kafka(world):
    """The mark is of the registration before it, since a controller of Kafka deletes none."""
    create(world, "t", (2, 3))
    end_all(world)
    run_now(world.observer.create(znodes.restart_path(2), znodes.encode_restart(CONTINUED)))
    kafka = world.server.connect()
    run_now(kafka.create(znodes.broker_path(2), znodes.encode_broker(broker(2), 0), ephemeral=True))
    world.start(1)
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(-1, (3,))]


def test_after_the_expiry_of_all_sessions_leaders_and_isrs_stay(world):
    """The first broker that registered again left all ISRs, although its process had continued."""
    create(world, "t", (1, 2, 3), (2, 3, 1))
    before = states(world, "t")
    other = be_controller(world)
    renew_sessions(world, *world.nodes)
    world.server.expire(other)
    world.executor.finish()
    assert states(world, "t") == before
    assert marks(world) == ["1", "2", "3"]


@pytest.mark.parametrize("controller_id", [1, 2, 3])
def test_after_the_expiry_of_all_sessions_a_failed_controller_is_the_only_broker_that_failed(world, controller_id):
    """The next controller took all brokers for restarted ones, and preferred the dead one to them."""
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != controller_id]
    create(world, "t", *((controller_id, other) for other in others), *((other, controller_id) for other in others))
    other = be_controller(world)
    renew_sessions(world, *world.nodes)
    for broker_id in others:
        world.nodes[broker_id].controller._abstains = True
    world.server.expire(other)
    world.executor.finish()
    assert world.active.fake.broker_id == controller_id
    for broker_id in others:
        world.nodes[broker_id].controller._abstains = False
    world.crash(controller_id)
    world.executor.finish()
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(other, (other,)) for other in 2 * others]


def test_the_mark_of_a_broker_that_continued_goes_when_it_restarts(world):
    create(world, "t", (2, 3))
    renew_sessions(world, 3)
    assert marks(world) == ["3"]
    restart(world, 3)
    assert marks(world) == []


def test_a_broker_in_a_new_session_is_preferred_to_a_dead_one(world):
    """It has all records. The dead broker remained as the only member of the ISR, and led without its last records."""
    create(world, "t", (2, 3))
    events = HeldEvents(world.active.controller)
    renew_sessions(world, 3)
    world.crash(2)
    events.release()
    world.executor.finish()
    assert states(world, "t") == [(3, 1, (3,))]
    world.start(2)
    assert states(world, "t") == [(3, 1, (3,))]


def test_a_new_session_that_the_controller_notices_late_changes_no_leader(world):
    create(world, "t", (2, 3), (3, 2))
    before = states(world, "t")
    events = HeldEvents(world.active.controller)
    renew_sessions(world, 3)
    events.release()
    world.executor.finish()
    assert states(world, "t") == before
    assert marks(world) == ["3"]


def test_a_broker_in_a_new_session_that_begins_during_a_takeover_is_preferred_to_a_dead_one(world):
    """Its mark was written after the marks were read, and it was taken for one that had restarted."""
    create(world, "t", (2, 3))
    other = be_controller(world)
    world.crash(2)
    first, late = world.nodes[1], world.nodes[3]
    world.server.expire(first.store)
    world.server.expire(late.store)
    rejoin = first.rejoin()
    world.executor.finish()
    rejoin.outcome()
    restarts = first.controller._store_changes._restarts
    read = restarts.read_for_takeover

    async def read_before():
        await read()
        late.rejoin()

    restarts.read_for_takeover = read_before
    world.server.expire(other)
    world.executor.finish()
    assert [(leader, isr) for leader, _, isr in states(world, "t")] == [(3, (3,))]
    assert marks(world) == ["1", "3"]


@pytest.mark.parametrize(
    "data",
    [
        None, b"", b"x", b"[]", b"{}", b'{"restart":"better","first_epoch":1}', b'{"restart":3,"first_epoch":1}',
        b'{"version":1,"restart":null,"first_epoch":1}', b'{"restart":"continued"}',
        b'{"restart":"continued","first_epoch":-1}', b'{"restart":"continued","first_epoch":null}',
    ],
)  # fmt: skip
def test_a_mark_that_cannot_be_decoded_is_of_a_lossy_restart(data):
    assert znodes.decode_restart(data) == RegistrationMark(Restart.LOSSY)


@pytest.mark.parametrize("mark", [CONTINUED, RegistrationMark(Restart.LOSSY), RegistrationMark(Restart.LOST)])
def test_a_mark_is_encoded_and_decoded(mark):
    assert znodes.decode_restart(znodes.encode_restart(mark)) == mark
