"""Waiting fetches of many partitions, and many waiting fetches: the cost of an append, and reads in slices."""

import errno
import gc
import sys
import tracemalloc
import weakref
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from odradek.log.storage.memory_filesystem import MemoryFile
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
)
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.replicas.partition import READ_COMMITTED, Partition
from odradek.server.fetching import session_cache
from odradek.server.fetching.limited_read import LimitedRead
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.fetching.session_cache import FetchPartition, FetchSession
from odradek.server.handlers.records import fetch as handler
from odradek.server.handlers.records.fetch import fetch
from odradek.server.handlers.records.tests.test_fetch import BY_NAME, World, begin, errors, partitions_of, rows, sizes
from odradek.server.request import RequestContext
from odradek.server.tests.background import run_iteration
from odradek.server.work.slices import SLICE_S, Slices

E = ErrorCode
PARTITIONS_PER_STEP = 5
MANY = 3 * PARTITIONS_PER_STEP
NEVER = 1 << 19
"""More bytes than any test appends."""


class Reads:
    """A list of the partitions that are read."""

    def __init__(self, monkeypatch):
        self.partitions = []
        read = Partition.read

        def counted(partition, *arguments, **options):
            self.partitions.append(partition.index)
            return read(partition, *arguments, **options)

        monkeypatch.setattr(Partition, "read", counted)

    def take(self):
        found, self.partitions = self.partitions, []
        return found


class SlowWorld(World):
    """A world in which each reading of the clock takes half a slice, so that an iteration does little work."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.services.slices = Slices(self.clock, self._tick)
        self.services.completions = self.services.follower_completions = CompletionQueue(self.services.slices)

    def _tick(self):
        self.now_s += SLICE_S / 2
        return self.now_s

    def iterate(self):
        """Run one reactor iteration. Return whether there was anything to do."""
        return run_iteration(self.clock)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Have fetches of more than PARTITIONS_PER_STEP partitions read in slices."""
    monkeypatch.setattr(handler, "PARTITIONS_PER_STEP", PARTITIONS_PER_STEP)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def slow():
    return SlowWorld()


def fetch_all(world, count, offset=0, *, version=BY_NAME, topic="t", **options):
    """Fetch many partitions of a topic. Return the handler's outcome, and the list of responses and failures."""
    asked = [
        FetchRequestFetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in range(count)
    ]
    fields = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **options}
    request = FetchRequest(topics=[FetchRequestFetchTopic(topic=topic, partitions=asked)], **fields)
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = version
    outcome = fetch(world.services, context, request)
    answers: list[Any] = []
    if isinstance(outcome, Deferred):
        outcome.addBoth(answers.append)
    else:
        answers.append(outcome)
    return outcome, answers


# -- cost of an append ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [PARTITIONS_PER_STEP, MANY])
def test_an_append_causes_reads_of_its_own_partition_only(world, monkeypatch, count):
    world.create("t", count)
    parked = [fetch_all(world, count, min_bytes=NEVER)[1] for _ in range(5)]
    reads = Reads(monkeypatch)
    world.append("t", 4)
    assert reads.take() == [4] * 5
    world.append("t", 3)
    assert reads.take() == [3] * 5
    assert parked == [[]] * 5
    world.clock.advance(0.5)
    assert all(sum(sizes(answers[0])) > 0 for answers in parked)
    assert world.is_idle()


@pytest.mark.parametrize("count", [PARTITIONS_PER_STEP, MANY])
def test_a_fetch_is_answered_when_its_bytes_reach_min_bytes_exactly(world, count):
    world.create("t", count)
    size = world.append("t", 2)
    _, answers = fetch_all(world, count, min_bytes=4 * size)
    world.append("t", 0)
    world.append("t", 0)
    assert answers == []
    world.append("t", count - 1)
    assert sum(sizes(answers[0])) == 4 * size
    assert sizes(answers[0])[0] == 2 * size
    assert world.is_idle()


def test_available_bytes_of_a_partition_count_up_to_its_limit(world):
    world.create("t", 2)
    size = world.append("t", 0)
    two = {"partition_max_bytes": 2 * size}
    _, answers = world.park(("t", 0, 0, two), ("t", 1, 0), min_bytes=4 * size)
    for _ in range(5):
        world.append("t", 0)
    assert answers == []
    world.append("t", 1)
    world.append("t", 1)
    assert sizes(answers[0]) == [2 * size] * 2


def test_a_fetch_does_not_wait_for_bytes_that_its_response_has_no_room_for(world):
    world.create("t", 2)
    size = world.append("t", 0)
    world.append("t", 1)
    limit = size + size // 2
    assert sizes(world.fetch(("t", 0, 0), ("t", 1, 0), min_bytes=limit, max_bytes=limit)) == [size, 0]


def test_partitions_without_room_in_the_response_are_not_read(world, monkeypatch):
    world.create("t", 50)
    for index in range(50):
        size = world.append("t", index)
    reads = Reads(monkeypatch)
    _, [response] = fetch_all(world, 50, max_bytes=2 * size)
    assert reads.take() == [0, 1]
    assert sizes(response) == [size] * 2 + [0] * 48
    assert {row.high_watermark for row in rows(response)} == {1}


def test_a_fetch_waits_for_the_high_watermark_not_the_log_end(world):
    world.create("t", 2)
    partition = world.partition("t")
    partition.apply(PartitionMetadata(1, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)
    _, answers = world.park(("t", 0, 0), ("t", 1, 0))
    size = world.append("t")
    assert answers == []
    partition.update_follower(2, 1, 0, 0)
    assert sizes(answers[0]) == [size, 0]


def test_a_read_committed_fetch_waits_for_the_last_stable_offset(world):
    world.create("t", 2)
    log = world.partition("t").log
    world.append("t")
    log.producer_state.first_unstable_offset = 0
    _, answers = world.park(("t", 0, 0), ("t", 1, 0), isolation_level=READ_COMMITTED)
    world.partition("t").wake_watchers()
    assert answers == []
    log.producer_state.first_unstable_offset = -1
    world.partition("t").wake_watchers()
    assert sizes(answers[0])[0] > 0


def _new_epoch(world):
    partition = world.partition("t")
    partition.apply(PartitionMetadata(1, partition.leader_epoch + 1, (1,), (1,)), partition.log)


def _other_leader(world):
    partition = world.partition("t")
    partition.apply(PartitionMetadata(2, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)


FAILURES = {
    "a newer leader epoch": (_new_epoch, E.FENCED_LEADER_EPOCH),
    "another leader": (_other_leader, E.FENCED_LEADER_EPOCH),
    "offline": (lambda world: world.partition("t").take_offline(), E.KAFKA_STORAGE_ERROR),
    "deleted": (lambda world: world.delete("t"), E.UNKNOWN_TOPIC_OR_PARTITION),
    "records deleted": (lambda world: world.partition("t").delete_records(2), E.OFFSET_OUT_OF_RANGE),
}


@pytest.mark.parametrize(("change", "error"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_partition_that_becomes_unreadable_ends_the_wait(world, change, error, is_first):
    world.create("t", 1)
    world.create("u", 2)
    world.append("t")
    world.append("t")
    epoch = {"current_leader_epoch": world.partition("t").leader_epoch}
    asked = [("t", 0, 0, epoch), ("u", 0, 0)]
    _, answers = world.park(*(asked if is_first else reversed(asked)), min_bytes=NEVER)
    change(world)
    assert sorted(errors(answers[0])) == [E.NONE, error]
    assert world.is_idle()


def test_segments_may_be_deleted_while_a_fetch_waits(world):
    """The positions found at the start of the wait are not used again."""
    world.create("t", 2, **{"internal.segment.bytes": "1000"})
    for _ in range(3):
        size = world.append("t", size=300)
    partition = world.partition("t")
    _, answers = world.park(("t", 0, 2), ("t", 1, 0), min_bytes=NEVER)
    partition.log.roll(0)
    world.append("t", size=300)
    assert sizes(answers[0]) == [size, 0]
    _, answers = world.park(("t", 0, 3), ("t", 1, 0), min_bytes=NEVER)
    partition.log.state.high_watermark = 4
    assert partition.log.delete_old_segments(10**15)
    partition.wake_watchers()
    assert errors(answers[0]) == [E.OFFSET_OUT_OF_RANGE, E.NONE]


# -- many fetches of one partition ---------------------------------------------------------------------------------


def test_an_append_completes_a_few_of_many_fetches_in_each_iteration(slow):
    slow.create("t")
    parked = [slow.park(("t", 0, 0))[1] for _ in range(40)]
    size = slow.append("t")
    done = [sum(map(len, parked))]
    while slow.iterate():
        done.append(sum(map(len, parked)))
    assert done[-1] == 40
    assert max(after - before for before, after in pairwise([0, *done])) <= 3
    assert all(sizes(answers[0]) == [size] for answers in parked)
    assert not any(one.watchers for one in slow.cluster.replicas)


def test_a_queued_fetch_whose_client_disconnects_is_not_answered(slow):
    slow.create("t")
    parked = [slow.park(("t", 0, 0)) for _ in range(10)]
    slow.append("t")
    deferred, answers = parked[-1]
    assert answers == []
    deferred.cancel()
    assert answers[0].check(CancelledError)
    while slow.iterate():
        pass
    assert [len(answers) for _, answers in parked] == [1] * 10


def test_timeouts_of_many_fetches_are_spread_over_iterations(slow):
    slow.create("t")
    parked = [slow.park(("t", 0, 0))[1] for _ in range(40)]
    slow.clock.rightNow += 0.5
    done = [0]
    while slow.iterate():
        done.append(sum(map(len, parked)))
    assert done[-1] == 40
    assert max(after - before for before, after in pairwise(done)) <= 3


# -- many partitions -----------------------------------------------------------------------------------------------


def test_a_fetch_of_many_partitions_is_read_in_slices(slow, monkeypatch):
    slow.create("t", MANY)
    size = slow.append("t", 5)
    steps = []
    read = LimitedRead.read

    def counted(self, targets):
        steps.append(len(targets))
        read(self, targets)

    monkeypatch.setattr(LimitedRead, "read", counted)
    _, answers = fetch_all(slow, MANY)
    assert answers == []
    while slow.iterate() and not answers:
        pass
    assert len(rows(answers[0])) == MANY
    assert sum(sizes(answers[0])) == size
    assert max(steps) == PARTITIONS_PER_STEP
    assert not any(one.watchers for one in slow.cluster.replicas)


@pytest.mark.parametrize("iterations", range(8))
def test_an_append_during_the_first_read_is_not_missed(slow, iterations):
    """The read is before the partition, behind it, or done."""
    slow.create("t", MANY)
    _, answers = fetch_all(slow, MANY)
    for _ in range(iterations):
        slow.iterate()
    size = slow.append("t", PARTITIONS_PER_STEP // 2)
    for _ in range(30):
        slow.iterate()
    assert sum(sizes(answers[0])) == size
    assert not any(one.watchers for one in slow.cluster.replicas)


@pytest.mark.parametrize("iterations", range(8))
def test_a_topic_that_is_deleted_during_the_first_read_ends_it(slow, iterations):
    slow.create("t", MANY)
    partitions = list(slow.cluster.replicas)
    _, answers = fetch_all(slow, MANY)
    for _ in range(iterations):
        slow.iterate()
    slow.delete("t")
    for _ in range(30):
        slow.iterate()
    assert E.UNKNOWN_TOPIC_OR_PARTITION in errors(answers[0])
    assert not any(one.watchers for one in partitions)


@pytest.mark.parametrize("iterations", range(12))
def test_a_fetch_whose_client_disconnects_leaves_no_watcher(slow, iterations):
    slow.create("t", MANY)
    partitions = list(slow.cluster.replicas)
    outcome, answers = fetch_all(slow, MANY)
    for number in range(iterations):
        if number == 8:
            slow.append("t")
        slow.iterate()
    if not answers:
        outcome.cancel()
        assert answers[0].check(CancelledError)
    assert not any(one.watchers for one in partitions)
    while slow.iterate():
        pass
    assert len(answers) == 1
    assert slow.is_idle()


def test_a_response_for_many_partitions_is_complete_after_a_wait(slow):
    slow.create("t", MANY)
    _, answers = fetch_all(slow, MANY)
    while not any(call.getTime() > 0 for call in slow.clock.getDelayedCalls()):
        slow.iterate()
    size = slow.append("t", MANY - 1)
    for _ in range(30):
        slow.iterate()
    assert sizes(answers[0]) == [0] * (MANY - 1) + [size]


# -- sessions on two connections -----------------------------------------------------------------------------------


def test_a_session_of_many_partitions_returns_only_changed_ones(slow):
    slow.create("t", MANY)
    _, answers = fetch_all(slow, MANY, session_epoch=0, max_wait_ms=0)
    while not answers:
        slow.iterate()
    session = {"session_id": answers[0].session_id, "max_wait_ms": 0}
    slow.append("t", 7)
    for epoch in (1, 2):
        outcome, answers = slow.start_fetch(**session, session_epoch=epoch), []
        outcome.addBoth(answers.append)
        while not answers:
            slow.iterate()
        assert partitions_of(answers[0]) == [("t", 7)]


@pytest.mark.parametrize("iterations", range(6))
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_session_is_continued_by_one_of_two_connections(slow, iterations, forgotten):
    """The request of the other gets INVALID_FETCH_SESSION_EPOCH at any point of its processing."""
    slow.create("t", MANY)
    _, answers = fetch_all(slow, MANY, session_epoch=0, max_wait_ms=0)
    while not answers:
        slow.iterate()
    session = {"session_id": answers[0].session_id}
    first, answers = slow.start_fetch(**session, session_epoch=1), []
    first.addBoth(answers.append)
    for _ in range(iterations):
        slow.iterate()
    with pytest.raises(KafkaError) as raised:
        slow.start_fetch(**session, session_epoch=1)
    assert raised.value.code == E.INVALID_FETCH_SESSION_EPOCH
    left_out = [("t", index) for index in range(MANY)] if forgotten else []
    second = slow.start_fetch(**session, session_epoch=2, forgotten=left_out, max_wait_ms=0)
    others: list[Any] = []
    if isinstance(second, Deferred):
        second.addBoth(others.append)
    else:
        others.append(second)
    slow.append("t", 3)
    for _ in range(60):
        slow.iterate()
    assert (answers[0].error_code, rows(answers[0])) == (E.INVALID_FETCH_SESSION_EPOCH, [])
    assert others[0].error_code == E.NONE


@pytest.mark.parametrize("iterations", range(12))
def test_changes_in_a_superseded_response_are_returned_later(slow, iterations):
    """A partition without records is returned for its changed high watermark."""
    slow.create("t", MANY)
    _, answers = fetch_all(slow, MANY, session_epoch=0, max_wait_ms=0)
    while not answers:
        slow.iterate()
    session = {"session_id": answers[0].session_id, "max_wait_ms": 0}
    for index in range(MANY):
        slow.append("t", index)
    at_end = [("t", index, 1) for index in range(MANY)]
    first, answers = slow.start_fetch(*at_end, **session, session_epoch=1), []
    first.addBoth(answers.append)
    (held,) = slow.services.fetch_sessions._sessions.values()
    assert held.epoch == 2
    while held.is_busy:
        slow.iterate()
    for _ in range(iterations):
        slow.iterate()
    for epoch in (2, 3):
        following, others = slow.start_fetch(**session, session_epoch=epoch), []
        following.addBoth(others.append)
        while not others:
            slow.iterate()
        answers += others
    assert answers[0].error_code == E.NONE or rows(answers[0]) == []
    assert {row.partition_index for answer in answers for row in rows(answer) if row.high_watermark == 1} == set(
        range(MANY)
    )


def open_session(world, count):
    """Open a session of many partitions. Return its id and the session."""
    _, answers = fetch_all(world, count, session_epoch=0, max_wait_ms=0)
    while not answers:
        world.iterate()
    session_id = answers[0].session_id
    return session_id, world.services.fetch_sessions._sessions[session_id]


@pytest.mark.parametrize("change", ["add", "forget"])
def test_a_session_takes_no_request_while_a_large_one_is_applied(slow, monkeypatch, change):
    slow.create("t", MANY)
    session_id, held = open_session(slow, MANY)
    applied = []
    update = FetchSession.update

    def counted(session, asked, forgotten):
        applied.append(len(asked) + len(forgotten))
        update(session, asked, forgotten)

    monkeypatch.setattr(FetchSession, "update", counted)
    if change == "add":
        _, answers = fetch_all(slow, MANY, topic="none", session_id=session_id, session_epoch=1, max_wait_ms=0)
    else:
        answers, forgotten = [], [("t", index) for index in range(MANY - 1)]
        fetched = slow.start_fetch(session_id=session_id, session_epoch=1, forgotten=forgotten, max_wait_ms=0)
        fetched.addBoth(answers.append)
    while held.is_busy:
        for epoch in (1, 2):
            with pytest.raises(KafkaError) as raised:
                slow.start_fetch(session_id=session_id, session_epoch=epoch)
            assert raised.value.code == E.INVALID_FETCH_SESSION_EPOCH
        slow.iterate()
    while not answers:
        slow.iterate()
    assert max(applied) <= PARTITIONS_PER_STEP
    assert len(held.partitions) == (2 * MANY if change == "add" else 1)
    assert answers[0].session_id == session_id


@pytest.mark.parametrize("iterations", range(3))
def test_a_session_with_a_partly_applied_request_ends(slow, iterations):
    session_id, held = open_session(slow, MANY)
    outcome, answers = fetch_all(slow, MANY, topic="none", session_id=session_id, session_epoch=1)
    for _ in range(iterations):
        slow.iterate()
    assert held.is_busy
    outcome.cancel()
    assert answers[0].check(CancelledError)
    assert len(slow.services.fetch_sessions) == 0


@pytest.mark.parametrize("field", ["topics", "forgotten_topics_data"])
def test_topics_without_partitions_take_steps_too(slow, field):
    session_id, _ = open_session(slow, 1)
    kind = FetchRequestFetchTopic if field == "topics" else FetchRequestForgottenTopic
    topics = {"topics": [], field: [kind(topic="t", partitions=[])] * 10 * PARTITIONS_PER_STEP}
    request = FetchRequest(session_id=session_id, session_epoch=1, max_wait_ms=0, min_bytes=1, **topics)
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = BY_NAME
    answers: list[Any] = []
    fetch(slow.services, context, request).addBoth(answers.append)
    for _ in range(3):
        slow.iterate()
        assert answers == []
    while not answers:
        slow.iterate()
    assert answers[0].session_id == session_id


def test_a_session_that_becomes_too_large_ends(slow, monkeypatch):
    monkeypatch.setattr(session_cache, "MAX_SESSION_PARTITIONS", 2 * MANY)
    monkeypatch.setattr(handler, "MAX_SESSION_PARTITIONS", 2 * MANY)
    session_id, held = open_session(slow, MANY)
    for epoch, topic in enumerate(("u", "v"), 1):
        _, answers = fetch_all(slow, MANY, topic=topic, session_id=session_id, session_epoch=epoch, max_wait_ms=0)
        while not answers:
            slow.iterate()
        assert len(held.partitions) <= 2 * MANY + PARTITIONS_PER_STEP
    assert answers[0].value.code == E.FETCH_SESSION_ID_NOT_FOUND
    assert len(slow.services.fetch_sessions) == 0
    # A fetch of that many partitions is answered without a session.
    _, answers = fetch_all(slow, 2 * MANY + 1, session_epoch=0, max_wait_ms=0)
    while not answers:
        slow.iterate()
    assert (answers[0].session_id, len(rows(answers[0]))) == (0, 2 * MANY + 1)


@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_a_response_for_many_partitions_is_built_in_steps(world, monkeypatch, epoch):
    world.create("t", MANY)
    _, answers = fetch_all(world, MANY, session_epoch=0, max_wait_ms=0)
    session_id = answers[0].session_id if epoch == 1 else 0
    for index in range(MANY):
        world.append("t", index)
    sent_in_step, longest = [], []
    record_sent = FetchPartition.record_sent

    def counted(*args):
        sent_in_step.append(args)
        return record_sent(*args)

    monkeypatch.setattr(FetchPartition, "record_sent", counted)
    run = world.services.slices.run

    def measured(work):
        while True:
            try:
                yield next(work)
            except StopIteration as end:
                return end.value
            finally:
                longest.append(len(sent_in_step))
                sent_in_step.clear()

    monkeypatch.setattr(world.services.slices, "run", lambda work: run(measured(work)))
    _, answers = fetch_all(world, MANY, session_id=session_id, session_epoch=epoch)
    assert sum(size > 0 for size in sizes(answers[0])) == MANY
    assert answers[0].session_id == session_id or epoch == 0
    assert max(longest) == (0 if epoch == -1 else PARTITIONS_PER_STEP)
    assert len(longest) >= 2 * MANY // PARTITIONS_PER_STEP


def test_a_new_request_of_a_session_does_not_change_an_older_one(world):
    world.create("t", 2)
    world.append("t")
    session = begin(world, ("t", 0, 1), ("t", 1, 0))
    _, answers = world.park(**{**session, "max_wait_ms": 500}, session_epoch=1)
    world.fetch(("t", 0, 99), **session, session_epoch=2)
    world.append("t", 1)
    assert answers[0].error_code == E.INVALID_FETCH_SESSION_EPOCH


# -- disk failures, missing partitions, memory ---------------------------------------------------------------------


@pytest.mark.parametrize("parked", [0, 20])
@pytest.mark.parametrize("partitions_per_step", [PARTITIONS_PER_STEP, 100])
def test_a_disk_failure_is_found_once_and_not_once_per_partition(world, monkeypatch, partitions_per_step, parked):
    monkeypatch.setattr(handler, "PARTITIONS_PER_STEP", partitions_per_step)
    count = 40
    world.create("t", count)
    for index in range(count):
        world.append("t", index)
    waiting = [fetch_all(world, count, 1)[1] for _ in range(parked)]
    for partition in world.cluster.replicas:
        partition.log.segments[0].hints.clear()
    failures = []

    def broken(*_):
        failures.append(1)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(MemoryFile, "pread", broken)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(stack_depth() + 100)
    try:
        _, answers = fetch_all(world, count)
    finally:
        sys.setrecursionlimit(limit)
    world.clock.advance(0)
    for found in (*waiting, answers):
        assert errors(found[0]) == [E.KAFKA_STORAGE_ERROR] * count
    assert len(failures) == 1
    assert world.is_idle()


@pytest.mark.parametrize("ends", ["append", "timeout"])
def test_partitions_that_do_not_exist_are_answered_in_steps(slow, monkeypatch, ends):
    slow.create("t", 1)
    refused = []
    refuse = LimitedRead.refuse

    def counted(*args, **options):
        refused.append(args)
        return refuse(*args, **options)

    monkeypatch.setattr(LimitedRead, "refuse", counted)
    _, answers = fetch_all(slow, 4 * MANY)
    while not any(call.getTime() > 0 for call in slow.clock.getDelayedCalls()):
        slow.iterate()
    refused.clear()
    if ends == "append":
        slow.append("t", 0)
    else:
        slow.clock.rightNow += 0.5
    counts = [0]
    while not answers:
        slow.iterate()
        counts.append(len(refused))
    assert counts[-1] == 4 * MANY - 1
    assert max(after - before for before, after in pairwise(counts)) <= 3 * PARTITIONS_PER_STEP


def test_a_fetch_that_waits_keeps_little_of_partitions_that_do_not_exist(slow):
    slow.create("t", 1)
    count = 5000
    tracemalloc.start()
    try:
        _, answers = fetch_all(slow, count)
        while not any(call.getTime() > 0 for call in slow.clock.getDelayedCalls()):
            slow.iterate()
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept_bytes / count < 250
    slow.append("t", 0)
    while not answers:
        slow.iterate()
    assert errors(answers[0]) == [E.NONE] + [E.UNKNOWN_TOPIC_OR_PARTITION] * (count - 1)


def stack_depth():
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


@pytest.mark.parametrize("count", [1, PARTITIONS_PER_STEP, MANY])
def test_an_answered_fetch_is_freed_without_a_collection(world, count, monkeypatch):
    world.create("t", count)
    freed = []

    class Fetch(handler._Fetch):
        __slots__ = ("__weakref__",)

        def __init__(self, *arguments):
            super().__init__(*arguments)
            freed.append(weakref.ref(self))

    monkeypatch.setattr(handler, "_Fetch", Fetch)
    gc.disable()
    try:
        outcome, answers = fetch_all(world, count)
        world.append("t")
        assert answers
        del outcome
        answers.clear()
        assert freed[0]() is None
    finally:
        gc.enable()
