"""Markers and coordinators' records on partitions whose high watermark the test controls."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups.records import OffsetCommitValue, offset_commit_record, offset_commit_tombstone
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.result import (
    CoordinatorRecord,
    CoordinatorResult,
    ReplyWhenWritten,
    TransactionalProducer,
    TransactionOutcome,
)
from odradek.coordinator.tests.driver import run_at_once
from odradek.coordinator.transactions import shard as transaction_shard
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.log.config import LogConfig
from odradek.log.recovery import open_partition_log
from odradek.log.storage.filesystem import DiskFullError, LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from odradek.protocol.messages.end_txn import EndTxnRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersRequestWritableTxnMarkerTopic,
    WriteTxnMarkersResponse,
)
from odradek.protocol.records import iter_batches, iter_records, parse_control_record, read_header
from odradek.replication.metadata.image import MetadataDelta, PartitionMetadata
from odradek.replication.replicas.partition import Partition
from odradek.server.coordinators import runtime as coordinator_runtime
from odradek.server.coordinators.context import PendingReply
from odradek.server.coordinators.groups import GroupCoordinatorRuntime
from odradek.server.coordinators.marker_sender import MarkerSender, TransactionMarker
from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
from odradek.server.handlers.coordinators.producers import init_producer_id
from odradek.server.handlers.coordinators.transaction_markers import write_txn_markers
from odradek.server.request import RequestContext
from odradek.server.tests.background import background

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
ID, EPOCH = 7, 3
NOW_MS = 1000
OFFSET_KEY = offset_commit_tombstone("g", "t", 0).key


class World:
    """A broker's parts, with partitions of one or two replicas."""

    def __init__(self, slice_s=1.0):
        self.clock = self.reactor = Clock()
        self.config = SimpleNamespace(request_timeout_ms=30_000)
        self.partitions = {}
        self.replicas = SimpleNamespace(get=self._get, partitions=self.partitions)
        self.metadata = SimpleNamespace(
            partition=lambda topic, index: self.partitions.get((topic, index)) and SimpleNamespace(leader=1)
        )
        shared = background(self.clock, slice_s)
        self.slices = shared["slices"]
        self.groups = GroupCoordinatorRuntime(
            GroupSettings(),
            reactor=self.clock,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            random_uuid=lambda: "id",
            partition_count=lambda: 1,
            load_buffer_bytes=1 << 20,
            **shared,
        )
        services: Any = self
        self.markers = MarkerSender(services)
        self.transactions = TransactionCoordinatorRuntime(
            TransactionSettings(marker_retry_backoff_ms=100),
            reactor=self.clock,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            take_producer_id=lambda: ID,
            begin_producer_ids_at=lambda least_id: None,
            partition_count=lambda: 1,
            load_buffer_bytes=1 << 20,
            markers=self.markers,
            **shared,
        )

    def now_ms(self):
        return NOW_MS + self.monotonic_ms()

    def monotonic_ms(self):
        return int(self.clock.seconds() * 1000)

    def _get(self, topic, index):
        if (topic, index) not in self.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partitions[topic, index]

    def add(self, topic, *, replicas=(1,)):
        log = open_partition_log(MemoryFileSystem(), f"/d/{topic}-0", topic, 0, LogConfig({}), now_ms=0, is_clean=True)
        partition = self.partitions[topic, 0] = Partition(topic, b"i" * 16, 0, 1)
        partition.apply(PartitionMetadata(1, 5, replicas, replicas), log)
        if topic == OFFSETS:
            self.groups.lead(partition)
        elif topic == STATE:
            self.transactions.lead(partition)
        return partition


@pytest.fixture
def world():
    return World()


def follow(partition):
    """Let the other replica fetch everything."""
    partition.update_follower(2, partition.log.log_end_offset, 0, NOW_MS)


def batches(partition):
    log = partition.log
    region = log.read(0, 1 << 20, upper_offset=log.log_end_offset, at_least_one=True)
    return [] if region is None else list(iter_batches(region.read()))


def markers(partition):
    """(type, coordinator epoch, producer epoch) of each marker."""
    found = []
    for batch in batches(partition):
        header = read_header(batch)
        if header.is_control:
            for record in iter_records(batch):
                control = parse_control_record(record)
                found.append((control.control_type.name, control.coordinator_epoch, header.producer_epoch))
    return found


def outcome(*topics, commit=True):
    return TransactionOutcome("x", ID, EPOCH, 9, commit, 2, tuple((topic, 0) for topic in topics))


# -- markers -------------------------------------------------------------------------------------------------------


def test_a_marker_is_done_when_it_is_replicated(world):
    quick, slow = world.add("quick"), world.add("slow", replicas=(1, 2))
    done = []
    run_at_once(world.markers.send(outcome("quick", "slow", "gone", commit=False), lambda *answer: done.append(answer)))
    assert done == [(("quick", 0), 0), (("gone", 0), 0)], "a deleted partition needs no marker"
    assert markers(quick) == markers(slow) == [("ABORT", 9, EPOCH)]
    follow(slow)
    assert done[2:] == [(("slow", 0), 0)]
    follow(slow)
    assert len(done) == 3
    assert not slow.watchers


def test_a_marker_of_a_partition_that_another_broker_leads_fails(world):
    slow = world.add("slow", replicas=(1, 2))
    done = []
    run_at_once(world.markers.send(outcome("slow"), lambda *answer: done.append(answer)))
    slow.apply(PartitionMetadata(2, 6, (1, 2), (1, 2)), slow.log)
    assert done == [(("slow", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    run_at_once(world.markers.send(outcome("slow"), lambda *answer: done.append(answer)))
    assert done[1:] == [(("slow", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_a_late_marker_is_refused(world):
    world.add("t")
    done = []
    world.markers.write(("t", 0), TransactionMarker(ID, EPOCH, 9, True, 2), done.append)
    world.markers.write(("t", 0), TransactionMarker(ID, EPOCH - 1, 9, True, 2), done.append)
    world.markers.write(("t", 0), TransactionMarker(ID, EPOCH, 8, True, 2), done.append)
    assert done == [0, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]


def test_markers_of_another_broker_are_written(world):
    world.add("t")
    slow = world.add("slow", replicas=(1, 2))
    entry = WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=ID,
        producer_epoch=EPOCH,
        transaction_result=True,
        topics=[
            WriteTxnMarkersRequestWritableTxnMarkerTopic(name=name, partition_indexes=[0])
            for name in ("t", "slow", "gone")
        ],
        coordinator_epoch=4,
        transaction_version=2,
    )
    context = RequestContext("h", "PLAINTEXT")
    empty = write_txn_markers(world, context, WriteTxnMarkersRequest(markers=[])).result
    assert isinstance(empty, WriteTxnMarkersResponse)
    assert empty.markers == []
    waiting = write_txn_markers(world, context, WriteTxnMarkersRequest(markers=[entry]))
    answers: list[Any] = []
    waiting.addCallback(answers.append)
    assert not answers
    follow(slow)
    (row,) = answers[0].markers
    assert row.producer_id == ID
    codes = {topic.name: topic.partitions[0].error_code for topic in row.topics}
    assert codes == {"t": 0, "slow": 0, "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_markers_that_are_not_replicated_in_time_fail_alone(world):
    world.add("t")
    slow = world.add("slow", replicas=(1, 2))
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequestWritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=EPOCH,
                transaction_result=True,
                topics=[
                    WriteTxnMarkersRequestWritableTxnMarkerTopic(name=name, partition_indexes=[0])
                    for name in ("t", "slow")
                ],
                coordinator_epoch=9,
            )
            for producer_id in (ID, ID + 1)
        ]
    )
    answers: list[Any] = []
    write_txn_markers(world, RequestContext("h", "PLAINTEXT"), request).addCallback(answers.append)
    world.clock.advance(29.9)
    assert not answers
    world.clock.advance(0.1)
    codes = {
        (row.producer_id, topic.name): topic.partitions[0].error_code
        for row in answers[0].markers
        for topic in row.topics
    }
    assert codes == {
        (producer_id, name): error
        for producer_id in (ID, ID + 1)
        for name, error in (("t", ErrorCode.NONE), ("slow", ErrorCode.REQUEST_TIMED_OUT))
    }
    follow(slow)
    assert len(answers) == 1


def test_the_timeout_of_markers_ends_with_their_response(world):
    slow = world.add("slow", replicas=(1, 2))
    entry = WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=ID,
        producer_epoch=EPOCH,
        topics=[WriteTxnMarkersRequestWritableTxnMarkerTopic(name="slow", partition_indexes=[0])],
    )
    write_txn_markers(world, RequestContext("h", "PLAINTEXT"), WriteTxnMarkersRequest(markers=[entry]))
    follow(slow)
    assert not world.clock.getDelayedCalls()


# -- offsets ---------------------------------------------------------------------------------------------------------


def commit_offset(world, offset):
    """Run the decision of a TxnOffsetCommit. Return the list of responses."""
    result = CoordinatorResult()
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp=NOW_MS,
        expire_timestamp=-1,
        topic_id=b"\0" * 16,
    )
    result.records.append(offset_commit_record("g", "t", 0, value))
    result.producer = TransactionalProducer(ID, EPOCH)

    def decide(shard, token, now_ms):
        result.completions.append(ReplyWhenWritten(token, "written", lambda error: error))
        return result

    outcome = world.groups.run_on(0, decide)
    answers = [outcome] if isinstance(outcome, str) else []
    if not answers:
        outcome.addCallback(answers.append)
    return answers


def visible(world):
    found = world.groups.shard(0)._state.offsets.replicated("g", "t", 0)
    return None if found is None else found.value.offset


def test_offsets_are_written_in_the_transaction_and_wait_for_its_marker(world):
    offsets = world.add(OFFSETS)
    assert commit_offset(world, 5) == ["written"]
    header = read_header(batches(offsets)[0])
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (ID, EPOCH, -1)
    assert offsets.log.last_stable_offset == 0
    assert visible(world) is None
    done = []
    world.markers.write((OFFSETS, 0), TransactionMarker(ID, EPOCH, 0, True), done.append)
    assert done == [0]
    assert visible(world) == 5


def test_a_marker_takes_effect_after_earlier_writes(world):
    offsets = world.add(OFFSETS, replicas=(1, 2))
    done = []
    answers = commit_offset(world, 5)
    world.markers.write((OFFSETS, 0), TransactionMarker(ID, EPOCH, 0, True), done.append)
    assert (answers, done, visible(world)) == ([], [], None)
    follow(offsets)
    assert (answers, done, visible(world)) == (["written"], [0], 5)


def test_a_marker_for_a_loading_group_shard_is_refused(world):
    done = []
    partition = world.add("t")
    world.partitions[OFFSETS, 0] = partition
    world.markers.write((OFFSETS, 0), TransactionMarker(ID, EPOCH, 0, True), done.append)
    assert done == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not markers(partition)


def test_a_marker_that_an_append_causes_is_written_after_it(world):
    """The log is synced elsewhere: the next append notifies the waiting marker, which causes another marker."""
    offsets = world.add(OFFSETS)
    offsets.configure(LogConfig({"flush.before.acks": "true"}))
    done = []

    def write_next_marker(error):
        done.append(error)
        world.markers.write((OFFSETS, 0), TransactionMarker(ID, EPOCH, 0, True), done.append)

    world.markers.write((OFFSETS, 0), TransactionMarker(ID + 1, EPOCH, 0, True), write_next_marker)
    offsets.log.flush(0)
    answers = commit_offset(world, 5)
    assert (answers, done) == ([], [0])
    offsets.log.flush(0)
    offsets.synced()
    assert (answers, done, visible(world)) == (["written"], [0, 0], 5)


def test_a_partial_write_loads_the_shard_again(world, monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "_RECORDS_PER_BATCH", 1)
    offsets = world.add(OFFSETS)
    commit_offset(world, 5)
    world.markers.write((OFFSETS, 0), TransactionMarker(ID, EPOCH, 0, True), lambda error: None)
    result = CoordinatorResult()
    result.is_atomic = False
    result.records += [CoordinatorRecord(OFFSET_KEY, None)] * 2
    append = offsets._leader_log.append_as_leader

    def append_once(*args, **how):
        if offsets.log.log_end_offset > 2:
            raise DiskFullError("/d", "no room")
        return append(*args, **how)

    monkeypatch.setattr(offsets._leader_log, "append_as_leader", append_once)
    world.groups.run_on(0, lambda shard, token, now_ms: result)
    assert world.groups.shard(0).coordinator_state is CoordinatorState.LOADING
    world.clock.advance(0)
    world.clock.advance(0)
    assert world.groups.shard(0).coordinator_state is CoordinatorState.ACTIVE
    assert visible(world) is None, "the state is that of the log"


def test_a_write_is_not_acknowledged_by_the_high_watermark_of_a_follower(world):
    offsets = world.add(OFFSETS, replicas=(1, 2))
    answers = commit_offset(world, 5)
    log = offsets.log
    offsets.apply(PartitionMetadata(2, 6, (1, 2), (1, 2)), log)
    log.update_high_watermark(log.log_end_offset)
    offsets.wake_watchers()
    assert answers == [ErrorCode.NOT_COORDINATOR], "the offset may hold another record by now"
    world.groups.lead_only([])
    assert answers == [ErrorCode.NOT_COORDINATOR]


def test_a_shard_that_fails_after_a_write_is_loaded_again(world, caplog):
    class Failing(ReplyWhenWritten):
        def written(self, result, now_ms):
            raise RuntimeError("a defect")

    offsets = world.add(OFFSETS, replicas=(1, 2))
    world.clock.advance(0)
    first, second = CoordinatorResult(), []
    first.records.append(CoordinatorRecord(OFFSET_KEY, None))
    first.completions.append(Failing(None, "written", lambda error: error))
    world.groups.run_on(0, lambda shard, token, now_ms: first)
    second = commit_offset(world, 5)
    follow(offsets)
    assert "please report" in caplog.text
    assert second == [ErrorCode.NOT_COORDINATOR]
    for _ in range(3):
        world.clock.advance(0)
    assert world.groups.shard(0).coordinator_state is CoordinatorState.ACTIVE


def test_a_marker_is_written_with_any_limit_of_the_topic(world):
    world.add("t").configure(LogConfig({"max.message.bytes": "70"}))
    done = []
    world.markers.write(("t", 0), TransactionMarker(ID, EPOCH, 9, True, 2), done.append)
    assert done == [0]


def test_records_of_a_divisible_result_fit_the_limit_of_the_topic(world):
    offsets = world.add(OFFSETS)
    offsets.configure(LogConfig({"max.message.bytes": "300"}))
    result = CoordinatorResult()
    result.is_atomic = False
    result.records += [CoordinatorRecord(OFFSET_KEY, None)] * 50
    world.groups.run_on(0, lambda shard, token, now_ms: result)
    assert offsets.log.log_end_offset == 50
    assert max(len(batch) for batch in batches(offsets)) <= 300


# -- disk failures ---------------------------------------------------------------------------------------------------


class DiskFailureWatcher:
    """A watcher that the next append wakes, and that finds a disk failure."""

    def __init__(self, partition):
        self.partition = partition
        partition.watchers[self] = None

    def wake(self):
        del self.partition.watchers[self]
        self.partition.take_offline()


def test_a_disk_failure_during_an_append_ends_the_coordinator(world):
    DiskFailureWatcher(world.add(STATE))
    assert [answer.error_code for answer in Client(world).init()] == [ErrorCode.NOT_COORDINATOR]
    assert world.transactions.shard(0).coordinator_state is CoordinatorState.CLOSED


@pytest.mark.parametrize("topic", [OFFSETS, "t"])
def test_a_disk_failure_during_the_append_of_a_marker_is_an_error(world, topic):
    partition = world.add(topic)
    DiskFailureWatcher(partition)
    done = []
    world.markers.write((topic, 0), TransactionMarker(ID, EPOCH, 0, True), done.append)
    assert done in ([ErrorCode.NOT_LEADER_OR_FOLLOWER], [ErrorCode.KAFKA_STORAGE_ERROR])
    assert not partition.watchers


def raises(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    "read",
    [raises(LogDirFailure("/d", "broken")), lambda *_, **__: SimpleNamespace(read=raises(OSError("broken")))],
    ids=["index", "records"],
)
def test_a_disk_failure_during_a_load_ends_the_coordinator(world, monkeypatch, read):
    state = world.add(STATE)
    Client(world).init()
    world.transactions.resign(0)
    monkeypatch.setattr(state.log, "read", read)
    monkeypatch.setattr(state, "_on_failure", lambda failure: state.take_offline())
    world.transactions.lead(state)
    world.clock.advance(0)
    assert state.log is None
    assert world.transactions.shard(0).coordinator_state is CoordinatorState.CLOSED


# -- the coordinator -------------------------------------------------------------------------------------------------


class Client:
    """A producer that sends requests to the coordinator. Each returns the list of its response."""

    def __init__(self, world, transactional_id="x"):
        self.world = world
        self.id = transactional_id
        self.producer_id = ID
        self.context = SimpleNamespace(api_version=3)

    def ask(self, how, request):
        outcome = self.world.transactions.run(
            self.id, lambda shard, token, now_ms: getattr(shard, how)(request, self.context, token, now_ms)
        )
        answers = []
        if hasattr(outcome, "addCallback"):
            outcome.addCallback(answers.append)
        else:
            answers.append(outcome)
        return answers

    def init(self, timeout_ms=60_000):
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=timeout_ms)
        return self.ask("init_producer_id", request)

    def add(self, *topics):
        named = [AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=topic, partitions=[0]) for topic in topics]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=named,
        )
        return self.ask("add_partitions", request)

    def end(self):
        request = EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=0, committed=True
        )
        return self.ask("end_txn", request)

    @property
    def state(self):
        return self.world.transactions.shard(0).describe([self.id])[0].transaction_state


def test_a_transaction_from_beginning_to_end(world):
    world.add(STATE)
    data = world.add("t")
    client = Client(world)
    assert client.init()[0].error_code == 0
    assert client.add("t")[0].results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    assert client.end()[0].error_code == 0
    assert markers(data) == [("COMMIT", 5, 0)]
    assert client.state == "CompleteCommit"


def test_only_a_new_transactional_id_waits_for_producer_ids(world):
    """A producer that starts again needs no controller."""
    world.add(STATE)
    world.clock.advance(0)
    Client(world).init()
    waits = []

    async def prefetch():
        waits.append(Deferred())
        await waits[-1]

    services: Any = SimpleNamespace(
        transactions=world.transactions, producer_ids=SimpleNamespace(is_empty=True, prefetch=prefetch)
    )

    def init(transactional_id):
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        answers: list[Any] = []
        maybeDeferred(init_producer_id, services, context, request).addCallback(answers.append)
        return answers

    context = RequestContext("host", "PLAINTEXT")
    context.api_version = 5
    known, unknown = init("x"), init("y")
    assert [(answer.producer_id, answer.producer_epoch) for answer in known] == [(ID, 1)]
    assert not unknown
    waits.pop().callback(None)
    assert [(answer.producer_id, answer.producer_epoch) for answer in unknown] == [(ID, 0)]
    world.transactions.resign(0)
    assert [answer.error_code for answer in init("z")] == [ErrorCode.NOT_COORDINATOR]
    assert not waits


def test_the_end_is_not_written_before_the_last_marker(world):
    world.add(STATE)
    slow = world.add("slow", replicas=(1, 2))
    client = Client(world)
    client.init()
    client.add("slow")
    assert client.end()[0].error_code == 0, "the response follows the decision"
    assert client.state == "PrepareCommit"
    follow(slow)
    assert client.state == "CompleteCommit"


def test_failed_markers_are_retried(world):
    world.add(STATE)
    data = world.add("t")
    client = Client(world)
    client.init()
    client.add("t")
    data.apply(PartitionMetadata(2, 6, (1, 2), (1, 2)), data.log)
    client.end()
    assert client.state == "PrepareCommit"
    data.apply(PartitionMetadata(1, 7, (1,), (1,)), data.log)
    world.clock.advance(0.2)
    assert client.state == "CompleteCommit"
    assert markers(data) == [("COMMIT", 5, 0)]


def test_a_coordinator_that_fails_after_a_marker_is_loaded_again(world, monkeypatch, caplog):
    """The markers of the other partitions are sent nevertheless, and the transaction ends."""
    world.add(STATE)
    partitions = [world.add(name) for name in ("t", "u")]
    client = Client(world)
    client.init()
    client.add("t", "u")
    with monkeypatch.context() as patch:
        patch.setattr(transaction_shard.TransactionShard, "marker_written", raises(RuntimeError("unexpected")))
        client.end()
        assert "unexpected" in caplog.text
    for _ in range(3):
        world.clock.advance(0)
    assert client.state == "CompleteCommit"
    assert all(markers(partition) for partition in partitions)


def test_a_coordinator_that_fails_repeatedly_is_loaded_again_after_a_growing_pause(world, monkeypatch):
    world.add(STATE)
    world.add("t")
    client = Client(world)
    client.init()
    client.add("t")
    failures = []

    def fail(*_):
        failures.append(world.clock.seconds())
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(transaction_shard.TransactionShard, "marker_written", fail)
        client.end()
        for _ in range(100):
            world.clock.advance(0.1)
    assert [round(seconds) for seconds in failures] == [0, 0, 1, 3, 7]
    for _ in range(10):
        world.clock.advance(1)
    assert client.state == "CompleteCommit"


def test_the_end_is_written_as_soon_as_enough_replicas_are_in_sync(world):
    state = world.add(STATE, replicas=(1, 2))
    world.clock.advance(0)
    slow = world.add("slow", replicas=(1, 2))
    client = Client(world)
    for do in (client.init, lambda: client.add("slow"), client.end):
        do()
        follow(state)
    state.configure(LogConfig({"min.insync.replicas": "2"}))
    state.apply(PartitionMetadata(1, 5, (1, 2), (1,), partition_epoch=1), state.log)
    follow(slow)
    world.clock.advance(1)
    assert client.state == "PrepareCommit"
    state.apply(PartitionMetadata(1, 5, (1, 2), (1, 2), partition_epoch=2), state.log)
    delta = MetadataDelta()
    delta.topics[STATE] = None
    world.transactions.metadata_changed(delta)
    world.clock.advance(0)
    world.clock.advance(0)
    follow(state)
    assert client.state == "CompleteCommit"


def test_a_decision_has_no_effect_before_it_is_replicated(world):
    state = world.add(STATE, replicas=(1, 2))
    data = world.add("t")
    client = Client(world)
    for begun in (client.init, lambda: client.add("t")):
        answers = begun()
        assert not answers
        follow(state)
        assert answers
    answers = client.end()
    assert (answers, markers(data)) == ([], [])
    follow(state)
    assert answers[0].error_code == 0
    assert markers(data) == [("COMMIT", 5, 0)]


def test_the_next_coordinator_completes_a_transaction_with_a_newer_epoch(world):
    state = world.add(STATE)
    slow = world.add("slow", replicas=(1, 2))
    client = Client(world)
    client.init()
    client.add("slow")
    client.end()
    state.apply(PartitionMetadata(2, 7, (1, 2), (1, 2)), state.log)
    state.apply(PartitionMetadata(1, 8, (1,), (1,)), state.log)
    world.transactions.lead(state)
    world.clock.advance(0)
    assert markers(slow) == [("COMMIT", 5, 0), ("COMMIT", 8, 0)]
    follow(slow)
    assert client.state == "CompleteCommit"


def test_an_offline_partition_ends_the_coordinator(world):
    """A write in flight may be on the disk or not: no decision is possible before the next load."""
    state = world.add(STATE, replicas=(1, 2))
    client = Client(world)
    answers = client.init()
    state.take_offline()
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_COORDINATOR]
    assert client.add("t")[0].results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == (
        ErrorCode.NOT_COORDINATOR
    )
    world.clock.advance(30)  # the timer of writes that have ended
    assert not world.clock.getDelayedCalls()


def test_a_pending_reply_may_be_made_before_or_after_its_outcome():
    now, later = PendingReply(str), PendingReply(str)
    now.respond(1)
    assert now.outcome() == 1
    got: list[Any] = []
    later.outcome().addCallback(got.append)
    later.respond(2)
    assert got == [2]


# -- writes that are not replicated in time --------------------------------------------------------------------------


def test_a_decision_that_is_not_replicated_in_time_is_answered_and_stands(world, caplog):
    state = world.add(STATE, replicas=(1, 2))
    world.clock.advance(0)
    data = world.add("t")
    client = Client(world)
    answers = client.init()
    world.clock.advance(30)
    assert [answer.error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert client.init()[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    follow(state)
    assert len(answers) == 1
    begun, ended = client.add("t"), []
    follow(state)
    ended = client.end()
    assert begun[0].results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    world.clock.advance(30)
    assert [answer.error_code for answer in ended] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert client.end()[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert markers(data) == []
    follow(state)
    assert [kind for kind, *_ in markers(data)] == ["COMMIT"]
    follow(state)
    assert client.state == "CompleteCommit"
    assert client.end()[0].error_code == 0
    assert len(ended) == 1
    assert caplog.text.count("not replicated in time") == 2


def test_a_resignation_does_not_answer_a_timed_out_request_again(world):
    world.add(STATE, replicas=(1, 2))
    world.clock.advance(0)
    client = Client(world)
    answers = client.init()
    world.clock.advance(30)
    world.transactions.resign(0)
    assert [answer.error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
