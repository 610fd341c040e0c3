"""Publications of the controller that are not built, or that a broker does not apply: they are repeated."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrResponse,
    LeaderAndIsrResponseLeaderAndIsrPartitionError,
    LeaderAndIsrResponseLeaderAndIsrTopicError,
)
from odradek.protocol.messages.stop_replica import StopReplicaResponse
from odradek.protocol.messages.update_metadata import UpdateMetadataResponse
from odradek.replication.controller.propagation.broker_queue import MAX_RESENDS_AFTER_ERROR
from odradek.replication.controller.propagation.requests import ControlBatch
from odradek.replication.controller.repetition import LONGEST_REPETITION_MS
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import StoreUnavailableError
from odradek.replication.tests.cluster_requests import create, delete, nodes, states
from odradek.replication.tests.cluster_support import World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def later(world):
    """The repetitions that the controller has scheduled: delays and tasks."""
    scheduled = []
    world.active.controller.deletion.run_later = lambda delay_ms, task: scheduled.append((delay_ms, task))
    return scheduled


def repeat(world, later):
    [(delay_ms, task)] = later
    later.clear()
    world.run(task())
    return delay_ms


def fail(world, broker_id, name, response_type):
    """Let a broker fail to apply a kind of requests, until the returned function is called."""
    fake = world.fakes[broker_id]
    apply = getattr(fake, name)

    async def refuse(request):
        return response_type(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

    def end():
        setattr(fake, name, apply)

    setattr(fake, name, refuse)
    return end


def send_to_the_end(world):
    """Let requests be sent again until they are dropped."""
    for _ in range(MAX_RESENDS_AFTER_ERROR):
        world.executor.wake()
        world.executor.finish()


def test_a_publication_that_cannot_be_built_is_repeated(world, later, monkeypatch):
    """The brokers got no roles, and later publications did not contain them."""
    add_roles = ControlBatch.add_roles

    def fail_once(*arguments):
        monkeypatch.setattr(ControlBatch, "add_roles", add_roles)
        raise AssertionError("a bug")

    monkeypatch.setattr(ControlBatch, "add_roles", fail_once)
    create(world, "t", (2, 3))
    create(world, "next", (2, 3))
    assert set(world.fakes[2].roles) == {("next", 0)}
    repeat(world, later)
    assert set(world.fakes[2].roles) == set(world.fakes[1].cache) == {("t", 0), ("next", 0)}
    assert not later


def test_roles_that_a_broker_did_not_apply_are_sent_again(world, later):
    """It kept its old role until its next start."""
    end = fail(world, 2, "leader_and_isr", LeaderAndIsrResponse)
    create(world, "t", (2, 3))
    delays_ms = []
    for _ in range(3):
        send_to_the_end(world)
        delays_ms.append(repeat(world, later))
    assert delays_ms == [1000, 2000, 4000]
    end()
    send_to_the_end(world)
    assert world.fakes[2].roles == {("t", 0): (2, 0, (2, 3), (2, 3))}
    assert not later


def test_roles_that_a_broker_refused_because_of_a_deleted_topic_are_sent_again(world, later):
    """It had missed the deletion, and a new controller sends roles before metadata. It got no role in the new topic."""
    fake = world.fakes[2]
    apply = fake.leader_and_isr

    async def refuse(request):
        fake.leader_and_isr = apply
        [topic] = request.topic_states
        rows = [
            LeaderAndIsrResponseLeaderAndIsrPartitionError(
                partition_index=row.partition_index, error_code=ErrorCode.INCONSISTENT_TOPIC_ID
            )
            for row in topic.partition_states
        ]
        return LeaderAndIsrResponse(
            topics=[LeaderAndIsrResponseLeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=rows)]
        )

    fake.leader_and_isr = refuse
    create(world, "t", (2,))
    assert fake.roles == {}
    assert repeat(world, later) == 1000
    assert fake.roles == {("t", 0): (2, 0, (2,), (2,))}
    assert not later


def test_replicas_that_a_broker_did_not_delete_are_deleted(world, later):
    """The topic remained until the next start of the broker."""
    create(world, "t", (2, 3))
    end = fail(world, 2, "stop_replica", StopReplicaResponse)
    assert delete(world, "t") == {}
    send_to_the_end(world)
    end()
    repeat(world, later)
    send_to_the_end(world)
    assert nodes(world, znodes.TOPICS) == []


def test_a_failed_election_does_not_wait_for_a_broker_that_applies_nothing(world, later):
    """Its partitions had no leader for up to 60 s, because of requests that another broker refused."""
    create(world, "t", (3, 2))
    fail(world, 2, "leader_and_isr", LeaderAndIsrResponse)
    create(world, "refused", (2,))
    send_to_the_end(world)
    for delay_ms in (1000, 2000, 4000):
        assert repeat(world, later) == delay_ms
        send_to_the_end(world)
    [publication] = later
    later.clear()
    context = world.active.controller.context
    write = context.write

    async def refuse(operations):
        raise StoreUnavailableError("access is denied")

    context.write = refuse
    world.crash(3)
    world.executor.finish()
    context.write = write
    assert publication[0] == 8000
    assert repeat(world, later) == 1000
    assert states(world, "t") == [(2, 1, (2,))]


def test_a_failure_long_after_the_last_repetition_is_repeated_soon(world, later):
    controller = world.active.controller
    controller.on_publication_failed()
    assert repeat(world, later) == 1000
    controller.on_publication_failed()
    assert repeat(world, later) == 2000
    world.monotonic_ms += LONGEST_REPETITION_MS + 1
    controller.on_publication_failed()
    assert repeat(world, later) == 1000


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_deletion_that_a_broker_has_not_got_yet_is_not_dropped_with_the_repetition(world, later, is_created_again):
    """The broker returned the topic to clients until the next controller: only deletions in progress were repeated."""
    create(world, "t", (2,))
    fake, waiter = world.fakes[3], world.executor.waiter()
    apply = fake.update_metadata

    async def wait(request):
        await waiter
        return await apply(request)

    fake.update_metadata = wait
    create(world, "slow", (2,))
    assert delete(world, "t") == {}
    assert nodes(world, znodes.TOPICS) == ["slow"]
    world.active.controller.on_publication_failed()
    if is_created_again:
        create(world, "t", (2,))
    repeat(world, later)
    fake.update_metadata = apply
    waiter.callback(None)
    world.take()
    world.executor.finish()
    expected = {("slow", 0), ("t", 0)} if is_created_again else {("slow", 0)}
    assert set(fake.cache) == set(world.fakes[1].cache) == expected
    # It would remove the new topic from the caches of the other brokers for a moment, with its committed offsets.
    for requests in world.take().values():
        assert ("UM", [1, 2, 3], {"t-0": (-2, 0, [2])}) not in requests or not is_created_again


def test_a_deletion_that_all_brokers_have_got_is_not_repeated(world, later):
    create(world, "t", (2,))
    delete(world, "t")
    world.active.controller.on_publication_failed()
    world.take()
    repeat(world, later)
    assert world.take() == {broker_id: [("UM", [1, 2, 3], {})] * 2 for broker_id in (1, 2, 3)}


def test_a_deletion_that_a_broker_did_not_apply_is_repeated(world, later):
    create(world, "t", (2,))
    end = fail(world, 3, "update_metadata", UpdateMetadataResponse)
    delete(world, "t")
    send_to_the_end(world)
    end()
    create(world, "next", (2,))
    assert set(world.fakes[3].cache) == {("t", 0), ("next", 0)}
    repeat(world, later)
    assert set(world.fakes[3].cache) == {("next", 0)}
