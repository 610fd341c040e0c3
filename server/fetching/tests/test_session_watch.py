"""The partitions that the fetches of a follower's session read: those that may have changed."""

from random import Random

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequestReplicaState
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.replicas.isr import IsrState
from odradek.replication.replicas.leader_state import Replication
from odradek.server.fetching.limited_read import LimitedRead, measure_available
from odradek.server.fetching.session_watch import SWEEP_MS
from odradek.server.handlers.records import fetch as handler
from odradek.server.handlers.records.tests.test_fetch import World, errors, rows, sizes
from odradek.server.handlers.records.tests.test_replica_fetch import EPOCH, IN_CLUSTER, ReplicaWorld, Throttle
from odradek.server.work.slices import Slices

COUNT = 250


class IsrChanges:
    """Records the changes that leaders propose."""

    def __init__(self):
        self.submitted = []

    def submit(self, owner, change):
        self.submitted.append(change)


class SessionWorld(ReplicaWorld):
    """Broker 1 leads the partitions of topic t; `next_fetch` continues the session of broker 2, their follower.

    offsets: the follower's log ends, by partition; known: the high watermark and log start that it has
    """

    def __init__(self, count=COUNT):
        World.__init__(self)
        self.create("t", count)
        self.id = self.cluster.image.topics["t"].topic_id
        self.offsets = [0] * count
        self.known = {}
        self.changed = set(range(count))
        self.forgotten = set()
        self.session_id = self.session_epoch = 0
        self.epochs = {}
        for index in range(count):
            self.lead(index)
        self.next_fetch(max_wait_ms=0)
        self.next_fetch(max_wait_ms=0)

    def begin_fetch(self, iterations=20, **fields):
        asked = [
            (self.id, index, self.offsets[index], {
                "current_leader_epoch": self.epochs.get(index, EPOCH), "log_start_offset": 0,
                "last_fetched_epoch": self.epochs.get(index, EPOCH),
            })
            for index in sorted(self.changed)
        ]  # fmt: skip
        forgotten = [(self.id, index) for index in sorted(self.forgotten)]
        self.changed, self.forgotten = set(), set()
        answers = []
        outcome = self.start_fetch(
            *asked,
            version=IN_CLUSTER,
            forgotten=forgotten,
            **{
                "replica_state": FetchRequestReplicaState(replica_id=2, replica_epoch=-1),
                "session_id": self.session_id,
                "session_epoch": self.session_epoch,
                **fields,
            },
        )
        if hasattr(outcome, "addCallback"):
            outcome.addCallback(answers.append)
            outcome.addErrback(lambda failure: None)
        else:
            answers.append(outcome)
        for _ in range(iterations):
            if not answers:
                self.clock.advance(0)
        return answers

    def next_fetch(self, **fields):
        """Fetch until there is a response; return the errors in it, by partition."""
        answers = self.begin_fetch(**fields)
        for _ in range(50):
            if not answers:
                self.clock.advance(0.02)
        return self.apply(answers[0])

    def apply(self, response):
        assert not response.error_code
        self.session_id, self.session_epoch = response.session_id, self.session_epoch + 1
        errors = {}
        for topic in response.responses:
            for row in topic.partitions:
                index = row.partition_index
                if row.error_code:
                    errors[index] = ErrorCode(row.error_code)
                    continue
                self.known[index] = row.high_watermark, row.log_start_offset
                if row.records:
                    self.offsets[index] = self.partition("t", index).log.log_end_offset
                    self.changed.add(index)
        return errors

    def watchers(self):
        return sum(len(partition.log_end_watchers) for partition in self.created)


@pytest.fixture
def world():
    return SessionWorld()


@pytest.fixture
def read(monkeypatch):
    """The numbers of partitions that were read, read by read."""
    counts = []
    original = LimitedRead.read

    def note(self, targets):
        counts.append(len(targets))
        original(self, targets)

    monkeypatch.setattr(LimitedRead, "read", note)
    return counts


def test_a_fetch_reads_changed_partitions_only(world, read):
    answers = world.begin_fetch()
    assert (answers, sum(read)) == ([], 0)
    world.append("t", 7)
    world.clock.advance(0)
    world.apply(answers[0])
    assert (world.offsets[7], sum(read)) == (1, 1)
    world.next_fetch(max_wait_ms=0)
    world.next_fetch(max_wait_ms=0)
    assert world.known[7] == (1, 0)
    read.clear()
    world.next_fetch()
    assert sum(read) == 0


def test_an_append_between_two_fetches_is_read_by_the_next(world):
    world.append("t", 3)
    world.append("t", 200)
    world.next_fetch()
    assert (world.offsets[3], world.offsets[200]) == (1, 1)


def test_a_high_watermark_that_another_follower_holds_back_is_sent_later(world):
    partition = world.lead(5, replicas=(1, 2, 3), isr=(1, 2, 3), epoch=EPOCH + 1)
    world.epochs[5] = EPOCH + 1
    world.changed.add(5)
    world.append("t", 5)
    for _ in range(3):
        world.next_fetch(max_wait_ms=0)
    assert (world.offsets[5], world.known[5][0]) == (1, 0)
    partition.update_follower(3, 1, 0, 0)
    assert partition.log.high_watermark == 1
    world.next_fetch()
    assert world.known[5] == (1, 0)


def test_a_log_start_that_retention_moves_is_sent_after_some_seconds(world):
    world.append("t", 4)
    for _ in range(3):
        world.next_fetch(max_wait_ms=0)
    world.partition("t", 4).log.advance_log_start(1)
    world.clock.advance(SWEEP_MS / 1000)
    world.next_fetch(max_wait_ms=0)
    assert world.known[4] == (1, 1)


def test_a_lost_leadership_is_reported(world):
    answers = world.begin_fetch()
    world.lead(9, leader=2, epoch=EPOCH + 1)
    world.clock.advance(0)
    assert world.apply(answers[0]) == {9: ErrorCode.FENCED_LEADER_EPOCH}


def test_a_deleted_topic_is_reported(world):
    answers = world.begin_fetch()
    world.delete("t")
    for _ in range(40):
        world.clock.advance(0.02)
    errors = world.apply(answers[0]) | world.next_fetch()
    assert errors == dict.fromkeys(range(COUNT), ErrorCode.UNKNOWN_TOPIC_ID)
    assert world.watchers() == 0


def test_a_follower_outside_of_the_isr_is_proposed_by_each_fetch(world, read):
    """The controller may have rejected an earlier proposal."""
    world.partition("t", 6).isr = (1,)
    world.clock.advance(SWEEP_MS / 1000)
    world.next_fetch(max_wait_ms=0)
    read.clear()
    for _ in range(3):
        world.next_fetch(max_wait_ms=0)
    assert read == [1, 1, 1]


def test_a_forgotten_partition_is_not_watched(world):
    world.forgotten.add(8)
    world.next_fetch(max_wait_ms=0)
    assert world.watchers() == COUNT - 1
    world.append("t", 8)
    world.next_fetch(max_wait_ms=0)
    assert world.offsets[8] == 0


def test_the_end_of_the_session_ends_its_watches(world):
    assert world.watchers() == COUNT
    world.services.fetch_sessions.remove(world.session_id)
    assert world.watchers() == 0


@pytest.mark.parametrize("is_first_read", [True, False])
def test_a_fetch_whose_session_ends_between_two_slices_watches_nothing_afterwards(world, is_first_read):
    """The follower may have lost its connection, and begun a new session."""
    world.services.slices = Slices(world.clock, world.clock.seconds, 0)
    if is_first_read:
        world.clock.advance(SWEEP_MS / 1000)
    answers = world.begin_fetch(iterations=0, min_bytes=1 << 20)
    if not is_first_read:
        for index in range(COUNT):
            world.append("t", index)
    assert (answers, world.watchers()) == ([], COUNT)
    world.clock.callLater(0 if is_first_read else 0.5, world.services.fetch_sessions.remove, world.session_id)
    world.clock.pump([0, *[0.02] * 50])
    assert len(answers) == 1
    assert world.watchers() == 0


def test_the_end_of_an_old_session_does_not_age_the_progress_in_a_new_one(world):
    old_id, follower = world.session_id, world.partition("t", 3).followers[2]
    world.changed, world.session_id, world.session_epoch = set(range(COUNT)), 0, 0
    for _ in range(3):
        world.next_fetch(max_wait_ms=0)
    world.services.fetch_sessions.remove(old_id)
    assert world.watchers() == COUNT
    world.clock.advance(1)
    world.next_fetch(max_wait_ms=0)
    assert follower.caught_up_ms == int(world.clock.seconds() * 1000)


def test_an_idle_follower_is_caught_up():
    """Its last fetch counts, not the last one that read the partition."""
    world = SessionWorld(1)
    partition, changes = world.partition("t"), IsrChanges()
    partition._leader_state._cluster = Replication(
        world.cluster.image, changes, lambda: int(world.clock.seconds() * 1000), 1_000
    )
    while world.clock.seconds() < 60:
        world.next_fetch()
    world.append("t")
    partition.shrink_isr()
    assert changes.submitted == []


@pytest.mark.parametrize("seed", range(25))
def test_random_changes_reach_the_follower(seed):
    """After a few fetches the follower has all records and the present offsets, also without a sweep."""
    random = Random(seed)
    count = random.choice([3, 30, 130])
    world = SessionWorld(count)
    followed = set(range(count))
    for _ in range(60):
        index = random.randrange(count)
        match random.randrange(6):
            case 0 | 1 | 2:
                world.append("t", index)
            case 3:
                world.next_fetch(max_wait_ms=random.choice([0, 100]), max_bytes=random.choice([1, 1 << 20]))
            case 4 if index:
                if index in followed:
                    followed.discard(index)
                    world.changed.discard(index)
                    world.forgotten.add(index)
                else:
                    followed.add(index)
                    world.forgotten.discard(index)
                    world.changed.add(index)
            case 5:
                answers = world.begin_fetch()
                world.append("t", random.randrange(count))
                for _ in range(50):
                    if not answers:
                        world.clock.advance(0.02)
                world.apply(answers[0])
    for _ in range(4):
        world.next_fetch(max_wait_ms=0)
    for index in followed:
        state = world.partition("t", index).log.state
        assert world.offsets[index] == state.log_end_offset == state.high_watermark
        assert world.known[index] == (state.high_watermark, state.log_start_offset)


# -- fetches of a follower that has all records -----------------------------------------------------------------------


@pytest.fixture
def caught_up():
    """Return the world of a session with two partitions whose next fetch asks for the end of partition 0."""
    world = SessionWorld(2)
    world.append("t", 0)
    world.next_fetch(max_wait_ms=0)
    return world


def test_a_fetch_at_the_log_end_waits_without_a_read(caught_up, read):
    read.clear()
    answers = caught_up.begin_fetch()
    assert (answers, read) == ([], [])
    assert caught_up.partition("t").followers[2].log_end_offset == 1
    assert caught_up.partition("t").log.high_watermark == 1
    caught_up.append("t", 1)
    caught_up.apply(answers[0])
    assert (caught_up.offsets, caught_up.known[0]) == ([1, 1], (1, 0)), "with the new high watermark of the other one"


def test_a_fetch_at_the_log_end_that_requires_no_bytes_does_not_wait(caught_up):
    assert caught_up.begin_fetch(iterations=0, min_bytes=0) != []


def test_an_append_that_the_progress_causes_ends_the_wait(caught_up):
    class Producer:
        def wake(self):
            caught_up.partition("t").watchers.pop(self)
            caught_up.append("t", 0)

    caught_up.partition("t").watchers[Producer()] = None
    answers = caught_up.begin_fetch()
    caught_up.apply(answers[0])
    assert caught_up.offsets[0] == 2


def test_a_fetch_at_the_log_end_from_an_earlier_registration_is_refused(caught_up):
    caught_up.partition("t").followers[2].broker_epoch = 7
    answers = caught_up.begin_fetch(replica_state=FetchRequestReplicaState(replica_id=2, replica_epoch=6))
    assert caught_up.apply(answers[0]) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert caught_up.partition("t").followers[2].log_end_offset == 0


@pytest.mark.parametrize("other", [-1, 3])
def test_a_fetch_at_the_log_end_by_another_client_is_no_progress_of_the_follower(caught_up, other):
    """A consumer needs no right to replicate, and must not let acks=all end early."""
    caught_up.lead(0, replicas=(1, 2, 3), isr=(1, 2, 3), epoch=EPOCH + 1)
    caught_up.epochs[0] = EPOCH + 1
    caught_up.next_fetch(max_wait_ms=0)
    caught_up.append("t", 0)
    caught_up.next_fetch(max_wait_ms=0)
    caught_up.begin_fetch(replica_state=FetchRequestReplicaState(replica_id=other))
    assert caught_up.offsets[0] == 2
    assert caught_up.partition("t").followers[2].log_end_offset == 1


def test_a_fetch_at_the_log_end_in_another_leader_epoch_is_refused(caught_up):
    caught_up.lead(0, epoch=EPOCH + 1)
    assert caught_up.next_fetch() == {0: ErrorCode.FENCED_LEADER_EPOCH}


def test_bytes_of_an_earlier_fetch_do_not_delay_a_fetch_at_the_log_end():
    """Partition 0 had many records in the last response, and is the first that the retry measures."""
    world = SessionWorld(6)
    for _ in range(9):
        world.append("t", 0)
    world.next_fetch(max_wait_ms=0)
    answers, woken = world.begin_fetch(), []
    with pytest.MonkeyPatch.context() as patch:
        # As in the server: one retry for all appends of a reactor iteration.
        patch.setattr(world.services.follower_completions, "add", woken.append)
        for index in (1, 2, 3, 4, 0):
            world.append("t", index)
    [operation] = woken
    world.services.follower_completions.add(operation)
    assert len(sizes(answers[0])) == 5


# -- retries of a fetch with few unsettled partitions ----------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """The indexes of the partitions that were measured, in order."""
    indexes = []

    def note(target, *arguments):
        indexes.append(target.requested.index)
        return measure_available(target, *arguments)

    monkeypatch.setattr(handler, "measure_available", note)
    return indexes


@pytest.fixture
def waiting():
    """Return the world of a session with six partitions, the size of a batch, and the answers of a waiting fetch.

    The fetch waits for three batches, and partition 0 has one.
    """
    world = SessionWorld(6)
    size = world.append("t", 5)
    world.next_fetch(max_wait_ms=0)
    world.next_fetch(max_wait_ms=0)
    world.next_fetch(max_wait_ms=0)
    answers = world.begin_fetch(min_bytes=3 * size)
    assert world.append("t", 0) == size
    assert answers == []
    return world, size, answers


def test_bytes_of_several_partitions_complete_a_fetch(waiting, measured):
    world, size, answers = waiting
    world.append("t", 1)
    assert answers == []
    world.append("t", 0)
    assert [(row.partition_index, row.records.size_bytes) for row in rows(answers[0])] == [(0, 2 * size), (1, size)]
    assert measured == []


def test_partitions_are_measured_after_few_of_them_were_read(measured):
    world = SessionWorld(6)
    size = world.append("t", 0)
    world.append("t", 0)
    world.next_fetch(max_wait_ms=0)
    answers = world.begin_fetch(min_bytes=6 * size)
    for index in (0, 1, 2, 3, 4):
        world.append("t", index)
    assert (answers, measured) == ([], [4])
    world.append("t", 4)
    assert sizes(answers[0]) == [size, size, size, size, 2 * size]


def test_a_partition_that_goes_offline_between_two_retries_ends_the_wait(waiting):
    world, _, answers = waiting
    world.partition("t", 0).take_offline()
    assert world.apply(answers[0]) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    world.append("t", 1)
    world.next_fetch()
    assert world.offsets[1] == 1


def test_a_topic_that_is_deleted_between_two_retries_ends_the_wait(waiting):
    world, _, answers = waiting
    world.delete("t")
    errors = world.apply(answers[0]) | world.next_fetch()
    assert errors == dict.fromkeys(range(6), ErrorCode.UNKNOWN_TOPIC_ID)
    assert world.watchers() == 0


def test_a_partition_that_does_not_exist_delays_no_other(measured):
    world = ReplicaWorld()
    deleted = world.create("u")
    partition = world.partition("u")
    partition.apply(PartitionMetadata(1, EPOCH, (1, 2), (1, 2)), partition.log)
    asked = [(topic_id, 0, 0, {"current_leader_epoch": EPOCH}) for topic_id in (world.id, deleted)]
    follower = {"version": IN_CLUSTER, "replica_state": FetchRequestReplicaState(replica_id=2)}
    opened = world.fetch(*asked, session_epoch=0, max_wait_ms=0, **follower)
    size = world.append("t")
    session = {"session_id": opened.session_id, "min_bytes": 3 * size, **follower}
    _, answers = world.park(session_epoch=1, **session)
    world.delete("u")
    assert (errors(answers[0]), sizes(answers[0])) == ([0, ErrorCode.UNKNOWN_TOPIC_ID], [size, 0])
    measured.clear()
    _, answers = world.park(session_epoch=2, **session)
    world.append("t")
    assert answers == []
    world.append("t")
    assert sorted(sizes(answers[0])) == [0, 3 * size]
    assert measured == [0, 0]


def test_a_lost_leadership_between_two_retries_ends_the_wait(waiting):
    world, _, answers = waiting
    world.lead(0, leader=2, epoch=EPOCH + 1)
    assert world.apply(answers[0]) == {0: ErrorCode.FENCED_LEADER_EPOCH}


def test_a_partition_that_is_throttled_between_two_retries_does_not_count():
    """Its records are in the response if the throttle has ended by then."""
    world, throttle = SessionWorld(2), Throttle()
    throttle.is_on = False
    for index in range(2):
        world.partition("t", index)._leader_state._cluster = Replication(
            world.cluster.image, IsrChanges(), world.services.monotonic_ms, 30_000, throttle
        )
        world.partition("t", index)._leader_state.set_isr(IsrState((1,)))
    size = world.append("t", 0)
    answers = world.begin_fetch(min_bytes=3 * size)
    world.append("t", 1)
    throttle.is_on = True
    world.append("t", 1)
    assert answers == [], "partition 0 is throttled"
    throttle.is_on = False
    world.append("t", 1)
    assert sizes(answers[0]) == [size, 3 * size]
    assert throttle.sent == [("t", 0, size), ("t", 1, 3 * size)], "records that were read but not sent do not count"


def test_an_append_during_the_read_of_a_retry_ends_the_wait(waiting, monkeypatch):
    world, _, answers = waiting
    original, missing = LimitedRead.read, [0, 2]

    def read_then_append(self, targets):
        original(self, targets)
        if missing:
            world.append("t", missing.pop())

    monkeypatch.setattr(LimitedRead, "read", read_then_append)
    world.clock.advance(0.1)
    assert answers == []
    world.append("t", 3)
    assert [row.partition_index for row in rows(answers[0])] == [0, 3, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_fetch_waits_exactly_until_its_bytes_are_available(seed):
    """The number of partitions with records passes the limit up to which they are read in each retry."""
    random = Random(seed)
    world = SessionWorld(10)
    size = world.append("t", 0)
    world.next_fetch(max_wait_ms=0)
    for _ in range(6):
        wanted = random.randrange(2, 20)
        answers = world.begin_fetch(min_bytes=wanted * size)
        for count in range(1, wanted + 1):
            assert answers == []
            world.append("t", random.randrange(10))
            assert len(answers) == (count == wanted)
        assert sum(sizes(answers[0])) == wanted * size
        world.apply(answers[0])


def test_a_superseded_fetch_does_not_read_what_the_next_one_measures(monkeypatch):
    """The next fetch would find no more bytes than the superseded one has read, and would wait in vain."""
    world = SessionWorld(handler.FOLLOWER_PARTITIONS_PER_STEP + 1)
    world.services.slices = Slices(world.clock, world.clock.seconds, 0)
    superseded = world.begin_fetch(min_bytes=1 << 20)
    [timer] = world.clock.calls
    original, appended = LimitedRead.read, []

    def read_then_change(self, targets):
        original(self, targets)
        if len(targets) == handler.FOLLOWER_PARTITIONS_PER_STEP:
            world.clock.callLater(0, change)

    def change():
        appended.extend(world.append("t", index) for index in range(5))
        timer.reset(0)

    monkeypatch.setattr(LimitedRead, "read", read_then_change)
    world.session_epoch += 1
    world.changed = set(range(len(world.offsets)))
    answers = world.begin_fetch(min_bytes=500)
    assert superseded[0].error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sum(sizes(answers[0])) >= 500
    assert len(appended) == 5
