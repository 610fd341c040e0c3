"""Fetches of followers, and consumers that fetch from followers (zookeeper-mode.md section 10, KIP-392)."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchRequestReplicaState
from odradek.replication.metadata.image import Endpoint, PartitionMetadata
from odradek.replication.replicas.leader_state import NEVER, Replication
from odradek.server.config import BrokerConfig
from odradek.server.fetching.limited_read import LimitedRead
from odradek.server.fetching.requested_partitions import PARTITIONS_PER_STEP
from odradek.server.handlers.records import fetch as handler
from odradek.server.handlers.records.tests.test_fetch import BY_NAME, World, errors, rows, sizes
from odradek.server.request import RequestContext

E = ErrorCode
EPOCH = 7
IN_CLUSTER = 17
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ReplicaWorld(World):
    """Broker 1 leads t-0 and t-1 with a follower on broker 2; `followed` makes it a follower itself."""

    def __init__(self, **config):
        super().__init__()
        self.services.config = BrokerConfig(config)
        self.create("t", 2)
        self.id = self.cluster.image.topics["t"].topic_id
        for index in range(2):
            self.lead(index)

    def lead(self, index=0, *, leader=1, replicas=(1, 2), isr=(1, 2), epoch=EPOCH):
        partition = self.partition("t", index)
        partition.apply(PartitionMetadata(leader, epoch, replicas, isr, partition_epoch=epoch), partition.log)
        return partition

    def replica_fetch(self, *offsets, replica=2, broker_epoch=-1, is_parked=False, version=IN_CLUSTER, **fields):
        """Fetch (index, offset, options) of topic t as a follower."""
        asked = [
            (self.id, index, offset, {"current_leader_epoch": EPOCH, "log_start_offset": 0, **options})
            for index, offset, options in offsets
        ]
        state = FetchRequestReplicaState(replica_id=replica, replica_epoch=broker_epoch)
        start = self.park if is_parked else self.fetch
        return start(*asked, version=version, replica_state=state, **fields)

    def high_watermark(self, index=0):
        return self.partition("t", index).log.high_watermark


@pytest.fixture
def world():
    return ReplicaWorld()


def test_a_follower_reads_up_to_the_log_end_with_any_isolation_level(world):
    size = world.append("t")
    for level in (0, 1):
        [row] = rows(world.replica_fetch((0, 0, {}), isolation_level=level))
        assert (row.records.size_bytes, row.high_watermark, row.log_start_offset) == (size, 0, 0)
    assert sizes(world.fetch((world.id, 0, 0), version=IN_CLUSTER, max_wait_ms=0)) == [0], "a consumer does not"


def test_a_fetch_records_progress_and_returns_the_high_watermark_that_results(world):
    world.append("t")
    world.append("t")
    [row] = rows(world.replica_fetch((0, 1, {}), broker_epoch=4))
    follower = world.partition("t").followers[2]
    assert (follower.log_end_offset, follower.log_start_offset, follower.broker_epoch) == (1, 0, 4)
    assert (row.high_watermark, world.high_watermark()) == (1, 1)
    assert not world.partition("t").log_end_watchers
    [row] = rows(world.replica_fetch((0, 2, {}), max_wait_ms=0))
    assert row.high_watermark == 2


def test_progress_of_an_old_broker_epoch_is_refused(world):
    world.append("t")
    world.replica_fetch((0, 0, {}), broker_epoch=4)
    assert errors(world.replica_fetch((0, 1, {}), broker_epoch=3)) == [E.NOT_LEADER_OR_FOLLOWER]
    assert world.high_watermark() == 0


def test_progress_ends_the_waits_of_consumers_and_producers(world):
    _, consumer = world.park((world.id, 0, 0), version=IN_CLUSTER)
    size = world.append("t")
    assert consumer == []
    world.replica_fetch((0, 1, {}), max_wait_ms=0)
    assert sizes(consumer[0]) == [size]


def test_a_fetch_proves_that_the_follower_followed_at_the_time_of_the_fetch_before_on_its_connection(world):
    """Fetches of two connections may both have waited in their sockets while the leader was suspended."""
    context, follower = RequestContext("host", "PLAINTEXT"), world.partition("t").followers[2]

    def fetch(**fields):
        world.clock.advance(1)
        world.replica_fetch((0, 0, {}), max_wait_ms=0, session_epoch=0, **fields)
        return world.services.monotonic_ms()

    fetch()
    fetch()
    fetch(context=context)
    assert follower.proved_ms == NEVER
    before_ms = fetch(context=context)
    fetch()
    last_ms = fetch(context=context)
    assert before_ms < follower.proved_ms + 1_000 <= last_ms
    fetch(context=context)
    assert follower.proved_ms == last_ms


def test_an_append_ends_the_wait_of_a_follower(world):
    _, answers = world.replica_fetch((0, 0, {}), (1, 0, {}), is_parked=True)
    size = world.append("t", 1)
    assert sizes(answers[0]) == [0, size]
    assert not any(world.partition("t", index).log_end_watchers for index in range(2))


def test_a_high_watermark_that_moves_does_not_end_the_wait_of_a_follower(world):
    """As in Apache Kafka since KAFKA-9952: the next response has it."""
    world.lead(replicas=(1, 2, 3), isr=(1, 2), epoch=EPOCH + 1)
    world.append("t")
    epoch = {"current_leader_epoch": EPOCH + 1}
    _, answers = world.replica_fetch((0, 1, epoch), replica=3, is_parked=True)
    world.replica_fetch((0, 1, epoch), max_wait_ms=0)
    assert (world.high_watermark(), answers) == (1, [])
    world.clock.advance(0.5)
    assert rows(answers[0])[0].high_watermark == 1


def test_a_diverging_follower_gets_the_divergence_and_no_progress(world):
    """L: fetch 33 in epoch 15 -> diverging 13/30."""
    world.append("t")
    world.lead(epoch=EPOCH + 2)
    world.append("t")
    world.append("t")
    options = {"current_leader_epoch": EPOCH + 2, "last_fetched_epoch": EPOCH + 1}
    [row] = rows(world.replica_fetch((0, 2, options)))
    assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset, row.records) == (EPOCH, 1, b"")
    assert world.partition("t").followers[2].log_end_offset == -1
    assert world.high_watermark() == 0


def test_an_offset_outside_of_the_log_is_no_progress(world):
    world.append("t")
    assert errors(world.replica_fetch((0, 2, {}))) == [E.OFFSET_OUT_OF_RANGE]
    assert world.partition("t").followers[2].log_end_offset == -1
    assert world.high_watermark() == 0


def test_epochs_and_assignment_are_checked(world):
    world.append("t")

    def error(replica=2, epoch=EPOCH, version=IN_CLUSTER):
        return errors(world.replica_fetch((0, 1, {"current_leader_epoch": epoch}), replica=replica, version=version))

    assert error(epoch=EPOCH - 1) == [E.FENCED_LEADER_EPOCH]
    assert error(epoch=EPOCH + 1) == [E.UNKNOWN_LEADER_EPOCH]
    assert error(replica=3) == [E.UNKNOWN_LEADER_EPOCH]
    assert error(replica=3, epoch=-1) == [E.NOT_LEADER_OR_FOLLOWER]
    assert error(replica=1) == [E.UNKNOWN_LEADER_EPOCH]
    world.lead(leader=2, epoch=EPOCH + 1)
    assert error(epoch=EPOCH + 1) == [E.NOT_LEADER_OR_FOLLOWER], "followers fetch from the leader only"
    assert world.high_watermark() == 0


def test_a_lost_leadership_ends_the_wait_of_a_follower(world):
    _, answers = world.replica_fetch((0, 0, {}), (1, 0, {}), is_parked=True)
    world.lead(leader=2, epoch=EPOCH + 1)
    assert errors(answers[0]) == [E.FENCED_LEADER_EPOCH, E.NONE]


def test_a_follower_that_is_unassigned_while_it_waits_is_refused(world):
    _, answers = world.replica_fetch((0, 0, {}), (1, 0, {}), is_parked=True)
    partition = world.partition("t")
    partition.apply(PartitionMetadata(1, EPOCH, (1, 3), (1,), partition_epoch=EPOCH + 1), partition.log)
    assert errors(answers[0]) == [E.UNKNOWN_LEADER_EPOCH, E.NONE]


def test_the_follower_id_of_older_versions_is_in_the_request(world):
    world.append("t")
    options = {"current_leader_epoch": EPOCH}
    world.fetch(("t", 0, 1, options), version=BY_NAME, replica_id=2, max_wait_ms=0)
    assert world.high_watermark() == 1


def test_a_session_of_a_follower_has_rows_of_changed_partitions_only(world):
    world.append("t")
    opened = world.replica_fetch((0, 0, {}), (1, 0, {}), session_epoch=0)
    assert [row.partition_index for row in rows(opened)] == [0, 1]
    session = {"session_id": opened.session_id, "max_wait_ms": 0}
    response = world.replica_fetch((0, 1, {}), session_epoch=1, **session)
    assert [(row.partition_index, row.high_watermark) for row in rows(response)] == [(0, 1)]
    assert rows(world.replica_fetch(session_epoch=2, **session)) == []
    follower = world.partition("t", 1).followers[2]
    before = follower.fetch_ms
    world.clock.advance(1)
    world.replica_fetch(session_epoch=3, **session)
    assert follower.fetch_ms == before + 1000, "every partition of the session is fetched"


def test_each_request_records_progress_once(world, monkeypatch):
    """A second record, when the wait ends, would be of a time at which the follower had no more than before."""
    _, answers = world.replica_fetch((0, 0, {}), is_parked=True)
    world.clock.advance(0.3)
    world.append("t")
    assert len(answers) == 1
    assert world.partition("t").followers[2].fetch_ms == 0


class NextWrite:
    """A coordinator that appends when its last record is replicated."""

    def __init__(self, world, index):
        self.world = world
        self.index = index

    def wake(self):
        del self.world.partition("t", 1).watchers[self]
        self.world.append("t", self.index)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("is_in_session", [True, False])
def test_an_append_that_the_progress_of_a_follower_causes_ends_its_wait(world, index, is_in_session):
    """The follower would get the records after replica.fetch.wait.max.ms, or with those of another append."""
    world.append("t", 1)
    session = {}
    if is_in_session:
        opened = world.replica_fetch((0, 0, {}), (1, 0, {}), session_epoch=0, max_wait_ms=0)
        session = {"session_id": opened.session_id, "session_epoch": 1}
    world.partition("t", 1).watchers[NextWrite(world, index)] = None
    asked = [(world.id, at, at, {"current_leader_epoch": EPOCH, "log_start_offset": 0}) for at in (0, 1)]
    state = FetchRequestReplicaState(replica_id=2)
    response = world.start_fetch(*asked, version=IN_CLUSTER, replica_state=state, **session).result
    [row] = [row for row in rows(response) if row.records]
    assert row.partition_index == index


def test_a_large_fetch_of_a_follower_is_read_in_slices(world, monkeypatch):
    monkeypatch.setattr(handler, "PARTITIONS_PER_STEP", 1)
    size = world.append("t", 1)
    deferred = world.start_fetch(
        *[(world.id, index, index, {"current_leader_epoch": EPOCH}) for index in range(2)],
        version=IN_CLUSTER,
        replica_state=FetchRequestReplicaState(replica_id=2),
    )
    answers = []
    deferred.addBoth(answers.append)
    world.clock.pump([0] * 9)
    assert answers == []
    assert world.high_watermark(1) == 1
    assert size
    world.append("t", 0)
    world.clock.pump([0] * 9)
    assert sizes(answers[0]) == [size, 0]


def test_a_step_of_a_followers_first_read_has_few_partitions(world, monkeypatch):
    """Progress in each of a hundred partitions would complete a hundred produce requests in one step."""
    steps, read = [], LimitedRead.read

    def counted(self, targets):
        steps.append(len(targets))
        read(self, targets)

    monkeypatch.setattr(LimitedRead, "read", counted)
    count = 3 * handler.FOLLOWER_PARTITIONS_PER_STEP
    assert count < PARTITIONS_PER_STEP, "a consumer's fetch of so many is read at once"
    world.create("many", count)
    topic_id = world.cluster.image.topics["many"].topic_id
    for index in range(count):
        partition = world.partition("many", index)
        partition.apply(PartitionMetadata(1, EPOCH, (1, 2), (1, 2)), partition.log)
    deferred = world.start_fetch(
        *[(topic_id, index, 0, {"current_leader_epoch": EPOCH}) for index in range(count)],
        version=IN_CLUSTER,
        replica_state=FetchRequestReplicaState(replica_id=2),
        max_wait_ms=0,
    )
    world.clock.pump([0] * 9)
    assert len(rows(deferred.result)) == count
    assert steps == [handler.FOLLOWER_PARTITIONS_PER_STEP] * 3


class NoAnswers:
    """A controller that answers no change of an ISR."""

    def submit(self, owner, change):
        """Leave the change pending."""


class Throttle:
    """A throttle of partition 0 that a test controls."""

    def __init__(self):
        self.is_on = True
        self.sent = []

    def is_exceeded(self, topic, index):
        return self.is_on and (topic, index) == ("t", 0)

    def record(self, topic, index, size_bytes):
        self.sent.append((topic, index, size_bytes))


@pytest.fixture
def throttled():
    """Return a world and its throttle; follower 3 is not in sync."""
    world = ReplicaWorld()
    throttle = Throttle()
    for index in range(2):
        world.lead(index, leader=2, epoch=EPOCH + 1)
        partition = world.partition("t", index)
        partition._cluster = Replication(
            world.cluster.image, NoAnswers(), world.services.monotonic_ms, 30_000, throttle
        )
        world.lead(index, replicas=(1, 2, 3), isr=(1, 2), epoch=EPOCH + 2)
    return world, throttle


THROTTLED = {"current_leader_epoch": EPOCH + 2}


def test_a_throttled_follower_gets_no_records_until_the_rate_falls(throttled):
    """KIP-73. Its progress is recorded."""
    world, throttle = throttled
    size = world.append("t")
    _, answers = world.replica_fetch((0, 0, THROTTLED), replica=3, is_parked=True)
    world.append("t")
    assert answers == []
    world.clock.advance(0.5)
    assert (sizes(answers[0]), errors(answers[0]), throttle.sent) == ([0], [0], [])
    assert world.partition("t").followers[3].log_end_offset == 0
    throttle.is_on = False
    assert sizes(world.replica_fetch((0, 0, THROTTLED), replica=3)) == [2 * size]
    assert throttle.sent == [("t", 0, 2 * size)]


def test_a_throttled_partition_does_not_delay_others_nor_members_of_the_isr(throttled):
    world, throttle = throttled
    size = world.append("t")
    assert sizes(world.replica_fetch((0, 0, THROTTLED), replica=2)) == [size]
    _, answers = world.replica_fetch((0, 0, THROTTLED), (1, 0, THROTTLED), replica=3, is_parked=True)
    world.append("t")
    assert answers == []
    world.append("t", 1)
    assert sizes(answers[0]) == [0, size]
    assert throttle.sent == [("t", 0, size), ("t", 1, size)]


def test_consumers_are_not_throttled(throttled):
    world, throttle = throttled
    size = world.append("t")
    world.partition("t").update_follower(2, 1, 0, 0)
    assert sizes(world.fetch((world.id, 0, 0), version=IN_CLUSTER)) == [size]
    assert throttle.sent == []


# -- consumers that read from followers -----------------------------------------------------------------------------


@pytest.fixture
def followed():
    """Return a world in which broker 1 follows broker 2 and has records 0 to 2, of which 0 and 1 are replicated."""
    world = ReplicaWorld()
    for _ in range(2):
        world.append("t")
    world.partition("t").update_follower(2, 2, 0, 0)
    world.append("t")
    world.lead(leader=2, epoch=EPOCH + 1)
    assert (world.high_watermark(), world.partition("t").log.log_end_offset) == (2, 3)
    return world


def consumer_fetch(world, offset, *, version=IN_CLUSTER, **options):
    name = world.id if version >= 13 else "t"
    return world.fetch((name, 0, offset, options), version=version, max_wait_ms=0)


def test_a_follower_serves_consumers_up_to_its_high_watermark(followed):
    [row] = rows(consumer_fetch(followed, 0))
    assert (row.error_code, row.high_watermark, row.log_start_offset) == (0, 2, 0)
    assert followed.partition("t").read(0, 1 << 20, leader_only=False).size_bytes == row.records.size_bytes
    [row] = rows(consumer_fetch(followed, 1, version=11))
    assert row.records.size_bytes


def test_a_consumer_between_high_watermark_and_log_end_of_a_follower_waits(followed):
    assert (errors(consumer_fetch(followed, 2)), sizes(consumer_fetch(followed, 2))) == ([0], [0])
    assert (errors(consumer_fetch(followed, 3)), sizes(consumer_fetch(followed, 3))) == ([0], [0])
    assert errors(consumer_fetch(followed, 4)) == [E.OFFSET_OUT_OF_RANGE]
    assert errors(consumer_fetch(followed, -1)) == [E.OFFSET_OUT_OF_RANGE]


def test_old_consumers_are_sent_to_the_leader(followed):
    assert errors(consumer_fetch(followed, 0, version=10)) == [E.NOT_LEADER_OR_FOLLOWER]


def test_a_follower_names_the_leader_that_it_learned_before_the_image_did(followed):
    """LeaderAndIsr arrives before UpdateMetadata (section 7); KIP-951."""
    image = followed.cluster.image
    endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", "other", 9002),)
    image.put_broker(image.brokers[1]._replace(broker_id=2, endpoints=endpoints))
    response = consumer_fetch(followed, 0, current_leader_epoch=EPOCH)
    [row] = rows(response)
    assert (row.error_code, row.current_leader.leader_id) == (E.FENCED_LEADER_EPOCH, 2)
    assert row.current_leader.leader_epoch == EPOCH + 1
    assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "other")]


def test_a_follower_checks_the_consumers_epoch(followed):
    assert errors(consumer_fetch(followed, 0, current_leader_epoch=EPOCH)) == [E.FENCED_LEADER_EPOCH]
    assert errors(consumer_fetch(followed, 0, current_leader_epoch=EPOCH + 2)) == [E.UNKNOWN_LEADER_EPOCH]
    [row] = rows(consumer_fetch(followed, 3, current_leader_epoch=EPOCH + 1, last_fetched_epoch=EPOCH + 1))
    assert row.error_code == E.OFFSET_OUT_OF_RANGE, "the follower has no record of that epoch yet"


def test_a_debugging_client_reads_up_to_the_log_end_of_any_replica(followed):
    size = followed.partition("t").log.size_bytes
    response = followed.fetch(("t", 0, 0), version=BY_NAME, replica_id=-2)
    assert sizes(response) == [size]


# -- selection of a follower ----------------------------------------------------------------------------------------


class RackedWorld(ReplicaWorld):
    """Brokers 1, 2 and 3 in racks a, b and b; consumers of listener PLAINTEXT."""

    def __init__(self, **config):
        super().__init__(**{"replica.selector.class": RACK_AWARE, **config})
        image = self.cluster.image
        for broker_id, rack in ((1, "a"), (2, "b"), (3, "b")):
            endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9000 + broker_id),)
            image.put_broker(image.brokers[1]._replace(broker_id=broker_id, rack=rack, endpoints=endpoints))
        partition = self.partition("t")
        partition._cluster = Replication(image, NoAnswers(), self.services.monotonic_ms, 30_000)
        self.lead(leader=2, epoch=EPOCH + 1)
        self.lead(replicas=(1, 2, 3), isr=(1, 2, 3), epoch=EPOCH + 2)
        for _ in range(4):
            self.append("t")
        partition.update_follower(2, 2, 0, 10)
        partition.update_follower(3, 3, 1, 10)

    def selected(self, offset, rack="b", version=IN_CLUSTER):
        name = self.id if version >= 13 else "t"
        [row] = rows(self.fetch((name, 0, offset), version=version, rack_id=rack, max_wait_ms=500, min_bytes=0))
        assert row.error_code == 0
        if row.preferred_read_replica >= 0:
            assert row.records == b""
        return row.preferred_read_replica


def test_a_leader_names_the_most_caught_up_member_of_the_isr_in_the_consumers_rack():
    world = RackedWorld()
    assert world.selected(1) == 3
    assert world.selected(0) == 2, "the log of broker 3 begins at 1"
    assert world.selected(3) == 3
    assert world.selected(4) == -1, "no follower has it yet"
    assert world.selected(1, version=11) == 3
    world.partition("t").update_follower(2, 3, 0, 20)
    assert world.selected(1) == 3, "broker 3 was caught up at the same time and has the larger id"
    world.partition("t").update_follower(2, 4, 0, 20)
    assert world.selected(1) == 2


def test_a_leader_serves_consumers_of_its_own_rack_and_of_none():
    world = RackedWorld()
    assert [world.selected(1, rack) for rack in ("a", "c", "")] == [-1, -1, -1]


def test_a_follower_outside_of_the_isr_or_without_the_listener_is_not_selected():
    world = RackedWorld()
    brokers = world.cluster.image.brokers
    brokers[3] = brokers[3]._replace(endpoints=(Endpoint("INTERNAL", "PLAINTEXT", "host", 1),))
    assert world.selected(1) == 2
    del brokers[2]
    assert world.selected(1) == -1
    world = RackedWorld()
    world.lead(replicas=(1, 2, 3), isr=(1, 2), epoch=EPOCH + 3)
    assert world.selected(1) == 2


def test_without_a_selector_the_leader_serves_all_consumers():
    world = RackedWorld()
    world.services.config = BrokerConfig({})
    assert world.selected(1) == -1


def test_a_redirected_consumer_does_not_wait_and_its_session_has_the_row_again():
    world = RackedWorld()
    opened = world.fetch((world.id, 0, 1), version=IN_CLUSTER, rack_id="b", session_epoch=0, min_bytes=1000)
    assert rows(opened)[0].preferred_read_replica == 3
    session = {"session_id": opened.session_id, "session_epoch": 1, "rack_id": "b", "version": IN_CLUSTER}
    assert rows(world.fetch(**session))[0].preferred_read_replica == 3


def test_a_fetch_that_fails_leaves_no_watcher(world, monkeypatch):
    """The follower repeats its fetch, and each one left a watcher of each partition."""

    def fail(read, targets):
        raise AssertionError("a bug")

    monkeypatch.setattr(LimitedRead, "read", fail)
    for _ in range(2):
        with pytest.raises(AssertionError, match="a bug"):
            world.replica_fetch((0, 0, {}), (1, 0, {}))
    assert not any(world.partition("t", index).log_end_watchers for index in (0, 1))
