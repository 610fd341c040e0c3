"""The partitions that the fetches of a follower's session read: those that may have changed."""

from random import Random

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequestReplicaState
from odradek.replication.replicas.leader_state import Replication
from odradek.server.fetching.limited_read import LimitedRead
from odradek.server.fetching.session_watch import SWEEP_MS
from odradek.server.tests.test_fetch import World
from odradek.server.tests.test_replica_fetch import EPOCH, IN_CLUSTER, ReplicaWorld
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
            replica_state=FetchRequestReplicaState(replica_id=2, replica_epoch=-1),
            **{"session_id": self.session_id, "session_epoch": self.session_epoch, **fields},
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
