"""Offsets of a group coordinator that was suspended or cut off, and may have been replaced meanwhile.

The client of a transactional job that continued at an old offset would repeat its work.
"""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from odradek.replication.metadata.store import SessionEvent
from odradek.replication.replicas.leader_state import NEVER, PROVED_BY_FETCH_WAITS, Replication
from odradek.replication.replicas.tests.leading import Leader
from odradek.server.coordinators.proof_waits import VERIFY_AFTER_MS
from odradek.server.coordinators.tests.test_writes import TIMEOUT_MS, World
from odradek.server.handlers.coordinators import group_offsets
from odradek.server.request import RequestContext

PROVED_WITHIN_MS = PROVED_BY_FETCH_WAITS * 500
VERSION = 9


class FollowedWorld(World):
    """A world with the time of the last fetch of the other replica."""

    followed_ms = NEVER


@pytest.fixture
def world():
    world = FollowedWorld(commit_timeout_ms=TIMEOUT_MS)
    world.offsets._leader_state._cluster = Replication(world.metadata, Leader().queue, world.monotonic_ms, 30_000)
    world.commit(5)
    follow(world)
    follow(world)
    return world


def follow(world):
    """Let the other replica fetch up to the end, on one connection."""
    world.clock.advance(0.001)
    now_ms, previous_ms = world.monotonic_ms(), world.followed_ms
    world.offsets.update_follower(2, world.offsets.log.log_end_offset, 0, now_ms, -1, previous_ms)
    world.followed_ms = now_ms
    world.clock.advance(0)


def count_checks(world):
    """Return the number of timers of `ProofWaits`."""
    return sum(call.func.__qualname__.startswith("ProofWaits.") for call in world.clock.getDelayedCalls())


def begin_fetch(world, *, require_stable=True):
    """Begin OffsetFetch; return a list that gets the error or the offset."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics, member_epoch=-1)]
    context = RequestContext("h", "PLAINTEXT")
    context.api_version = VERSION
    found = []

    def received(response):
        [group] = response.groups
        found.append(ErrorCode(group.error_code) or group.topics[0].partitions[0].committed_offset)

    request = OffsetFetchRequest(groups=groups, require_stable=require_stable)
    group_offsets.offset_fetch(world, context, request).addCallback(received)
    return found


def test_offsets_of_a_coordinator_whose_followers_fetch_are_returned_at_once(world):
    assert begin_fetch(world) == [5]


def test_a_suspended_coordinator_returns_no_offset_if_it_was_replaced(world):
    """Its followers' last fetches may still be in its sockets. Soon it notices the loss of its session."""
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    follow(world)
    found = begin_fetch(world)
    world.offsets._leader_state._cluster.on_session(SessionEvent.EXPIRED, 1)
    for _ in range(90):
        world.clock.advance(TIMEOUT_MS / 100_000)
        assert found == []
    world.clock.advance(TIMEOUT_MS / 1_000)
    assert found == [ErrorCode.NOT_COORDINATOR]


def test_a_coordinator_that_the_metadata_store_confirms_returns_offsets_although_no_follower_fetches(world):
    """The followers hang, or only their connections to this broker are interrupted."""
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    confirm(world, True)
    found = begin_fetch(world)
    world.clock.advance(VERIFY_AFTER_MS / 1_000 - 0.001)
    assert found == []
    world.clock.advance(0.1)
    world.clock.advance(0.1)
    assert found == [5]


@pytest.mark.parametrize("answer", [False, RuntimeError("unexpected")])
def test_a_coordinator_without_a_proof_returns_no_offset(world, answer, caplog):
    """Only its connections to other brokers are interrupted, and another broker was elected."""
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    confirm(world, answer)
    found = begin_fetch(world)
    for _ in range(49):
        world.clock.advance(TIMEOUT_MS / 50_000)
        assert found == []
    world.clock.advance(0.2)
    assert found == [ErrorCode.NOT_COORDINATOR]
    assert ("unexpected error in a coordinator" in caplog.text) == isinstance(answer, Exception)


def confirm(world, answer):
    """Set the metadata store's answer."""

    async def confirm_leadership(partition):
        assert partition is world.offsets
        if isinstance(answer, Exception):
            raise answer
        return answer

    world.groups._confirm_leadership = confirm_leadership


def test_many_waiting_requests_need_one_timer(world):
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    found = [begin_fetch(world) for _ in range(50)]
    assert count_checks(world) == 1
    for _ in range(2):
        follow(world)
    world.clock.advance(0.05)
    assert found == [[5]] * 50
    assert count_checks(world) == 0


def test_a_suspended_coordinator_returns_offsets_when_its_followers_have_fetched_again(world):
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    follow(world)
    found = begin_fetch(world)
    assert found == []
    world.clock.advance(0.05)
    assert found == []
    follow(world)
    world.clock.advance(0.05)
    assert found == [5]


def test_a_coordinator_that_learns_of_its_replacement_meanwhile_returns_no_offset(world):
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    found = begin_fetch(world)
    world.groups.resign(0)
    world.clock.advance(0.05)
    assert found == [ErrorCode.NOT_COORDINATOR]


def test_a_client_that_does_not_require_stable_offsets_gets_them_at_once(world):
    world.clock.advance(2 * PROVED_WITHIN_MS / 1000)
    assert begin_fetch(world, require_stable=False) == [5]
