"""Marks of restarts that a takeover, a failed election, the end of a session, or another writer interrupts."""

import pytest

from odradek.replication.controller.tests.test_damaged_nodes import damage
from odradek.replication.controller.tests.test_restarts import HeldEvents, marks, renew_sessions, restart
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import MetadataStoreError, TransactionError, run_now
from odradek.replication.metadata.znodes import RegistrationMark, Restart
from odradek.replication.tests.cluster_requests import create, states
from odradek.replication.tests.cluster_support import World


@pytest.fixture
def world():
    return World((1, 2, 3, 4))


def elect_only(world, *broker_ids):
    """Let only these brokers become the controller."""
    for broker_id, node in world.nodes.items():
        node.controller._abstains = broker_id not in broker_ids


def take_over_without_topic(world):
    """Damage the topic's node, and let broker 4 become the controller; return the data of the node."""
    path = znodes.topic_path("t")
    good = run_now(world.observer.get(path)).data
    damage(world, path)
    world.executor.finish()
    elect_only(world, 4)
    world.crash(1)
    world.executor.finish()
    return good


def leaders(world):
    return [(leader, isr) for leader, _, isr in states(world, "t")]


@pytest.mark.parametrize("is_repaired_before", [True, False])
@pytest.mark.parametrize("continues", [True, False])
def test_a_new_session_hides_no_restart_from_a_topic_that_could_not_be_read(world, continues, is_repaired_before):
    """Broker 2 has restarted and then begun a new session, and the next controller took it for one that continued."""
    create(world, "t", (2, 3))
    good = take_over_without_topic(world)
    restart(world, 2)
    if continues:
        renew_sessions(world, 2)
    elect_only(world, 3)
    world.crash(4)
    if not is_repaired_before:
        world.executor.finish()
    run_now(world.observer.set(znodes.topic_path("t"), good))
    world.executor.finish()
    assert leaders(world) == [(3, (3,))]


def test_a_broker_that_continued_in_this_term_leads_a_topic_that_becomes_readable(world):
    """It was taken for restarted, and a dead broker was preferred to it."""
    create(world, "t", (2, 3))
    good = take_over_without_topic(world)
    renew_sessions(world, 2)
    world.crash(3)
    world.executor.finish()
    run_now(world.observer.set(znodes.topic_path("t"), good))
    world.executor.finish()
    assert leaders(world) == [(2, (2,))]


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_restart_is_noticed_although_the_election_after_the_end_of_the_broker_failed(world, is_noticed):
    """A tool has removed a node, so that elections fail. The broker led again, without its last records."""
    create(world, "t", (2, 3))
    controller = world.active.controller
    later = []
    controller.deletion.run_later = lambda delay_ms, task: later.append(task)
    run_now(world.observer.delete(znodes.DELETE_TOPICS))
    world.executor.finish()
    events = HeldEvents(controller)
    world.crash(2)
    if is_noticed:
        events.release()
        world.executor.finish()
    world.start(2)
    events.release()
    world.executor.finish()
    assert not world.fakes[2].roles
    run_now(world.observer.ensure_path(znodes.DELETE_TOPICS))
    while later:
        world.run(later.pop(0)())
    assert states(world, "t") == [(3, 1, (3,))]


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_marks_of_the_time_of_a_controller_of_kafka_are_ignored_after_an_interrupted_takeover(world, is_interrupted):
    create(world, "t", (2, 3))
    run_now(world.observer.set(znodes.RESTARTS, b"0"))
    mark = znodes.encode_restart(RegistrationMark(Restart.LOSSY))
    run_now(world.observer.create(znodes.restart_path(2), mark))
    elect_only(world, 4)
    HeldEvents(world.active.controller)
    restarts = world.nodes[4].controller._store_changes._restarts
    read = restarts.read_for_takeover

    async def read_and_end():
        await read()
        if is_interrupted:
            world.crash(4)

    restarts.read_for_takeover = read_and_end
    world.crash(3)
    world.crash(1)
    world.executor.finish()
    if is_interrupted:
        elect_only(world, 2)
        world.nodes[2].controller.on_controller_moved()
        world.executor.finish()
    world.start(3)
    assert leaders(world) == [(2, (2,))]


@pytest.mark.parametrize("expires", [True, False])
def test_a_broker_that_lost_its_disk_stays_the_last_to_lead_in_its_next_session(world, expires):
    """Its mark was deleted while it had no session, although no election had used it."""
    create(world, "t", (2, 3))
    controller = world.active.controller
    world.crash(2)
    world.crash(3)
    world.executor.finish()
    events = HeldEvents(controller)
    world.fakes[2].failed.add(("t", 0))
    world.start(2, restart=Restart.LOST)
    if expires:
        world.server.expire(world.nodes[2].store)
        world.executor.finish()
    events.release()
    world.executor.finish()
    if expires:
        assert marks(world) == ["2"]
        task = world.nodes[2].rejoin()
        world.executor.finish()
        task.outcome()
    world.start(3)
    assert leaders(world) == [(3, (3,))]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_claim_is_repeated_after_a_change_of_the_parent_of_the_marks(world, is_deleted):
    """No watch fires for it, and there was no controller any more."""
    create(world, "t", (2, 3))
    for node in world.nodes.values():
        change_after_read(world, node.store, is_deleted)
    world.crash(1)
    world.executor.finish()
    assert world.active.fake.broker_id != 1


def test_a_claim_that_fails_at_the_parent_of_the_marks_is_not_repeated_at_once(world):
    """Without access to the node the repetition would never end."""
    create(world, "t", (2, 3))
    claims = []
    for node in world.nodes.values():
        refuse_claims(node.store, claims)
    world.crash(1)
    world.executor.finish()
    assert len(claims) == len(world.nodes)


def refuse_claims(store, claims):
    """Refuse the store's transactions that change the parent of the marks, the first ten."""
    transaction = store.transaction

    async def transact(operations):
        paths = [operation.path for operation in operations]
        if znodes.RESTARTS in paths and len(claims) < 10:
            claims.append(paths)
            raise TransactionError(paths.index(znodes.RESTARTS), MetadataStoreError("access is denied"))
        return await transaction(operations)

    store.transaction = transact


def change_after_read(world, store, is_deleted):
    """Write or delete the parent of the marks when the store has read it for the first time."""
    get, is_changed = store.get, []

    async def read(path, watch=None):
        node = await get(path, watch)
        if path == znodes.RESTARTS and not is_changed:
            is_changed.append(True)
            if is_deleted:
                run_now(world.observer.delete(path))
            else:
                run_now(world.observer.set(path, node.data))
        return node

    store.get = read
