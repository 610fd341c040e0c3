"""Large batches are checked and searched between other requests, with the changes that these make."""

from types import SimpleNamespace

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from odradek.log.validation.tests.test_long_validation import many, raw_batch
from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.batches.compression import Codec
from odradek.protocol.batches.record_batch import HEADER, read_header
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import stamp_timestamps
from odradek.replication.controller.admin.tests.test_topic_admin import create, delete, new
from odradek.replication.tests.support import Cluster
from odradek.server.handlers.records.list_offsets import list_offsets
from odradek.server.handlers.records.produce import produce
from odradek.server.request import NO_RESPONSE, CloseConnection, RequestContext
from odradek.server.work.record_work import FREE_STEPS, MAX_IN_PROGRESS, RecordWork
from odradek.server.work.slices import Slices

VERSION = 9
NOW_MS = 1_700_000_000_000
SMALL = build_batch([(NOW_MS, None, b"v", ())])
MANY = 60_000
LARGE = raw_batch(many(MANY), MANY, codec=Codec.ZSTD)


def asked(*timestamps):
    return [
        ListOffsetsRequestListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
        for index, timestamp in enumerate(timestamps)
    ]


class Threads:
    """Calls that wait for a thread."""

    def __init__(self):
        self.waiting = []

    def run(self, call, done):
        self.waiting.append((call, done))

    def finish(self):
        while self.waiting:
            call, done = self.waiting.pop(0)
            call()
            done(None)


class Machine:
    """A broker's handlers; each reactor iteration is one step of long work."""

    def __init__(self):
        self.cluster = Cluster()
        create(self.cluster, new("t"))
        self.clock = Clock()
        self.threads = Threads()
        self.slices = Slices(self.clock, lambda: 0.0, 0)
        self.flushed = []
        self.services = SimpleNamespace(
            replicas=self.cluster.replicas,
            metadata=self.cluster.image,
            now_ms=lambda: NOW_MS,
            reactor=self.clock,
            record_work=RecordWork(self.slices, self.threads.run),
            flusher=SimpleNamespace(flush=self._flush),
        )

    def _flush(self, partition):
        synced = Deferred()
        self.flushed.append(synced)
        return synced

    @property
    def partition(self):
        return self.cluster.replicas.get("t", 0)

    def configure(self, **properties):
        changes = {name.replace("_", "."): str(value) for name, value in properties.items()}
        self.partition.configure(type(self.partition.log.config)(changes))

    def step(self, count=1):
        for _ in range(count):
            if self.clock.calls:
                # `advance` would also make the calls that this call schedules.
                call = self.clock.calls.pop(0)
                call.func(*call.args)

    def finish(self):
        for _ in range(10_000):
            if not self.clock.getDelayedCalls() and not self.threads.waiting:
                return
            self.threads.finish()
            self.step()
        raise AssertionError("the work does not end")

    def begin(self, handler, request, version=VERSION, context=None):
        context = context or RequestContext("host", "PLAINTEXT")
        context.api_version = version
        return Pending(handler(self.services, context, request))

    def produce(self, batch=LARGE, *, context=None, **fields):
        fields = {"acks": -1, "timeout_ms": 1000, **fields}
        data = ProduceRequestPartitionProduceData(index=0, records=memoryview(batch))
        topic = ProduceRequestTopicProduceData(name="t", partition_data=[data])
        return self.begin(produce, ProduceRequest(topic_data=[topic], **fields), context=context)

    def look_up(self, *timestamps):
        topic = ListOffsetsRequestListOffsetsTopic(name="t", partitions=asked(*timestamps))
        return self.begin(list_offsets, ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 7)


class Pending:
    """A request and its outcome."""

    def __init__(self, answer):
        self.deferred = answer
        self.outcome = None
        self.error = None
        if isinstance(answer, Deferred):
            answer.addCallbacks(self._answered, self._failed)
        else:
            self.outcome = answer

    def _answered(self, outcome):
        self.outcome = outcome

    def _failed(self, failure):
        self.error = failure.value

    @property
    def is_over(self):
        return self.outcome is not None or self.error is not None

    @property
    def row(self):
        [row] = self.outcome.responses[0].partition_responses
        return ErrorCode(row.error_code), row.base_offset


@pytest.fixture
def machine():
    return Machine()


def idempotent(sequence, batch=LARGE, *, producer_id=7, transactional=False):
    header = read_header(batch)
    flags = 0x10 if transactional else 0
    changed = bytearray(batch)
    header = header._replace(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    HEADER.pack_into(changed, 0, *header)
    stamp_timestamps(changed, header.attributes | flags, header.max_timestamp)
    return memoryview(changed)


# Produce


def test_others_append_while_a_large_batch_is_checked(machine):
    large = machine.produce()
    assert not large.is_over
    assert machine.produce(SMALL).row == (0, 0)
    machine.step(2)
    assert machine.produce(SMALL).row == (0, 1)
    machine.finish()
    assert large.row == (0, 2)
    assert machine.partition.log.log_end_offset == MANY + 2


def test_a_request_for_several_partitions_has_one_response(machine):
    create(machine.cluster, new("u", 2))
    rows = [ProduceRequestPartitionProduceData(index=0, records=LARGE)]
    more = [ProduceRequestPartitionProduceData(index=index, records=memoryview(SMALL)) for index in (0, 9)]
    topics = [
        ProduceRequestTopicProduceData(name="t", partition_data=rows),
        ProduceRequestTopicProduceData(name="u", partition_data=more),
    ]
    pending = machine.begin(produce, ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))
    assert not pending.is_over
    machine.finish()
    found = [(row.error_code, row.base_offset) for one in pending.outcome.responses for row in one.partition_responses]
    assert found == [(0, 0), (0, 0), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


def test_a_refused_record_is_named(machine):
    machine.configure(cleanup_policy="compact")
    pending = machine.produce()
    machine.finish()
    assert pending.row == (ErrorCode.INVALID_RECORD, -1)
    [row] = pending.outcome.responses[0].partition_responses
    assert row.record_errors[0].batch_index == 0


def test_without_acks_there_is_no_response(machine):
    pending = machine.produce(acks=0)
    machine.finish()
    assert pending.outcome is NO_RESPONSE
    assert machine.partition.log.log_end_offset == MANY


def test_without_acks_a_refusal_closes_the_connection(machine):
    machine.configure(cleanup_policy="compact")
    pending = machine.produce(acks=0)
    machine.finish()
    assert isinstance(pending.error, CloseConnection)


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (lambda machine: delete(machine.cluster, names=["t"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda machine: machine.partition.take_offline(), ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda machine: machine.partition.retire(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
    ids=["deleted", "offline", "another leader"],
)
def test_the_state_of_the_partition_after_the_check_counts(machine, happens, code):
    log = machine.partition.log
    pending = machine.produce()
    machine.step(2)
    happens(machine)
    machine.finish()
    assert pending.row == (code, -1)
    assert log.log_end_offset == 0


def test_a_failure_of_the_log_during_the_check_counts(machine):
    pending = machine.produce()
    machine.step(2)
    log = machine.partition.log
    log.state.fail("test", OSError(5, "broken"))
    machine.finish()
    assert pending.row == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"compression_type": "gzip"}, Codec.GZIP),
        ({"cleanup_policy": "compact"}, ErrorCode.INVALID_RECORD),
        ({"max_message_bytes": 10}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_properties_that_change_during_the_check_count(machine, properties, expected):
    pending = machine.produce()
    machine.step(2)
    machine.configure(**properties)
    machine.finish()
    if isinstance(expected, Codec):
        assert pending.row == (0, 0)
        assert read_header(machine.partition.read(0, 1000).read()).codec == expected
    else:
        assert pending.row == (expected, -1)


def test_a_batch_being_checked_is_appended_although_its_client_disconnects(machine):
    pending = machine.produce()
    machine.step(12)
    assert machine.services.record_work.in_progress == 1
    pending.deferred.cancel()
    assert isinstance(pending.error, CancelledError)
    machine.finish()
    assert machine.partition.log.log_end_offset == MANY
    assert machine.services.record_work.in_progress == 0


def test_a_stop_ends_checks_without_an_append(machine):
    pending = machine.produce()
    machine.step(2)
    machine.slices.stop()
    machine.finish()
    assert pending.error is not None
    assert machine.partition.log.log_end_offset == 0


def test_a_repetition_on_another_connection_is_appended_once(machine):
    first = machine.produce(idempotent(0))
    machine.step(3)
    again = machine.produce(idempotent(0))
    machine.finish()
    assert first.row == again.row == (0, 0)
    assert machine.partition.log.log_end_offset == MANY
    # A later repetition is answered without a check.
    assert machine.produce(idempotent(0)).row == (0, 0)


def test_the_sequence_is_checked_at_the_append(machine):
    assert machine.produce(idempotent(0, SMALL)).row == (0, 0)
    late = machine.produce(idempotent(1))
    machine.step(3)
    assert machine.produce(idempotent(1, SMALL)).row == (0, 1)
    machine.finish()
    assert late.row[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert machine.partition.log.log_end_offset == 2


def test_a_transaction_that_ends_during_the_check_accepts_no_batch(machine):
    may_append = [True]
    verified = SimpleNamespace(error=lambda partition: None, may_append=lambda partition: may_append[0])
    machine.services.verifier = SimpleNamespace(verify_produce=lambda request, version: verified)
    batch = idempotent(0, transactional=True)
    pending = machine.produce(batch, transactional_id="x")
    machine.step(3)
    may_append[0] = False
    machine.finish()
    assert pending.row == (ErrorCode.INVALID_TXN_STATE, -1)
    assert machine.partition.log.log_end_offset == 0
    may_append[0] = True
    pending = machine.produce(batch, transactional_id="x")
    machine.finish()
    assert pending.row == (0, 0)


def test_the_acknowledgement_waits_for_the_disk(machine):
    machine.configure(flush_messages=1)
    pending = machine.produce()
    machine.finish()
    assert machine.partition.log.log_end_offset == MANY
    assert not pending.is_over
    machine.flushed.pop().callback(True)
    assert pending.row == (0, 0)


def test_the_number_of_large_batches_in_progress_is_limited(machine):
    work = machine.services.record_work
    pending = [machine.produce() for _ in range(MAX_IN_PROGRESS + 2)]
    for _ in range(300):
        if work.waiting < 2:
            machine.step()
    assert work.in_progress == MAX_IN_PROGRESS
    assert work.waiting == 2
    # Short work does not wait for a place.
    short = machine.look_up(-1)
    machine.step(20)
    assert work.waiting == 2
    assert short.outcome.topics[0].partitions[0].offset == 0
    # The work of a client that disconnects while it waits is dropped.
    pending.pop().deferred.cancel()
    assert work.waiting == 1
    machine.finish()
    assert sorted(one.row for one in pending) == [(0, number * MANY) for number in range(MAX_IN_PROGRESS + 1)]
    assert work.in_progress == 0


def occupy(machine):
    """Produce large batches on one connection until all places are taken and others wait."""
    context = RequestContext("host", "PLAINTEXT")
    for _ in range(2 * MAX_IN_PROGRESS):
        machine.produce(context=context)
    for _ in range(300):
        if machine.services.record_work.waiting < MAX_IN_PROGRESS:
            machine.step()
    assert machine.services.record_work.waiting == MAX_IN_PROGRESS


def test_the_ends_of_many_logs_do_not_wait_for_a_place(machine):
    occupy(machine)
    for count in (20, 100):
        names = [f"none-{index}" for index in range(count)]
        topics = [ListOffsetsRequestListOffsetsTopic(name=name, partitions=asked(-1)) for name in [*names, "t"]]
        pending = machine.begin(list_offsets, ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        machine.step(20)
        assert pending.outcome.topics[-1].partitions[0].error_code == 0
        assert machine.services.record_work.waiting


def test_connections_get_places_in_turn(machine):
    work = machine.services.record_work
    ended = []

    def steps(name):
        for _ in range(2 * FREE_STEPS):
            yield None
        ended.append(name)

    for _ in range(3 * MAX_IN_PROGRESS):
        work.run(steps("first"), "first")
    for name in ("second", "third", "third"):
        work.run(steps(name), name)
    machine.finish()
    assert set(ended[:MAX_IN_PROGRESS]) == {"first"}
    assert sorted(ended[MAX_IN_PROGRESS : MAX_IN_PROGRESS + 4]) == ["first", "first", "second", "third"]
    assert (work.in_progress, work.waiting) == (0, 0)


def test_work_on_a_thread_keeps_its_place(machine):
    machine.configure(compression_type="gzip")
    pending = machine.produce()
    while not machine.threads.waiting and machine.clock.calls:
        machine.step()
    pending.deferred.cancel()
    machine.finish()
    assert machine.partition.log.log_end_offset == MANY
    assert machine.services.record_work.in_progress == 0


def test_a_call_keeps_its_place_until_it_ends_although_its_client_disconnects(machine):
    work = machine.services.record_work
    begun = []

    def steps(name):
        yield lambda: begun.append(name)

    for number in range(3 * MAX_IN_PROGRESS):
        pending = Pending(work.run(steps(number), number))
        machine.step(5)
        pending.deferred.cancel()
    assert len(machine.threads.waiting) == MAX_IN_PROGRESS
    assert work.in_progress == MAX_IN_PROGRESS
    last = Pending(work.run(steps("last"), "last"))
    machine.step(5)
    assert (len(machine.threads.waiting), work.waiting) == (MAX_IN_PROGRESS, 1)
    machine.finish()
    assert begun == [*range(MAX_IN_PROGRESS), "last"]
    assert last.deferred.called
    assert (work.in_progress, work.waiting) == (0, 0)


# ListOffsets


def found(pending):
    return [(row.error_code, row.offset, row.timestamp) for row in pending.outcome.topics[0].partitions]


def later_batch(count, later_at):
    """A batch whose records have timestamp delta 0, except one with 100."""
    times = bytearray(many(count))
    late = build_batch([(NOW_MS, None, b"", ()), (NOW_MS + 100, None, b"", ())])[61 + 7 :]
    assert len(late) == 8
    payload = times[: 7 * later_at] + late + times[7 * (later_at + 1) :]
    return raw_batch(bytes(payload), count, codec=Codec.ZSTD, max_timestamp=NOW_MS + 100)


def test_a_search_runs_in_steps_and_ends_at_its_result(machine):
    for later_at in (1000, 90_000):
        machine.produce(later_batch(100_000, later_at))
        machine.finish()
    late = machine.look_up(NOW_MS + 1)
    steps = 0
    while not late.is_over and steps < 1000:
        machine.step()
        steps += 1
    # 100,000 records, of which the 1,000th is the result.
    assert 2 < steps < 20
    assert found(late) == [(0, 1, NOW_MS + 100)]
    largest = machine.look_up(-3)
    machine.finish()
    assert found(largest) == [(0, 1, NOW_MS + 100)]


def test_partitions_are_searched_one_by_one(machine):
    create(machine.cluster, new("t2", 60))
    pending = machine.look_up(*([NOW_MS] * 40))
    machine.finish()
    rows = found(pending)
    assert rows[0] == (0, -1, -1)
    assert {row[0] for row in rows[1:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("happens", ["retire", "take_offline"])
def test_a_search_in_a_partition_that_is_lost_during_it_fails(machine, happens):
    machine.produce(later_batch(100_000, 90_000))
    machine.finish()
    pending = machine.look_up(NOW_MS + 1)
    machine.step(3)
    getattr(machine.partition, happens)()
    machine.finish()
    [(code, offset, _)] = found(pending)
    assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    assert offset == -1


def test_a_search_ends_when_its_client_disconnects(machine):
    machine.produce(later_batch(100_000, 90_000))
    machine.finish()
    pending = machine.look_up(NOW_MS + 1)
    machine.step(10)
    assert machine.services.record_work.in_progress == 1
    pending.deferred.cancel()
    assert isinstance(pending.error, CancelledError)
    assert machine.services.record_work.in_progress == 0
    assert not machine.clock.getDelayedCalls()


def test_a_search_continues_where_segments_are_deleted(machine):
    machine.configure(segment_bytes=1048576)
    machine.produce(later_batch(100_000, 90_000))
    machine.finish()
    log = machine.partition.log
    log.roll(NOW_MS)
    machine.produce(later_batch(100_000, 80_000))
    machine.finish()
    pending = machine.look_up(NOW_MS + 1)
    machine.step(10)
    log.delete_records_before(100_000)
    log.delete_old_segments(NOW_MS)
    assert len(log.segments) == 1
    machine.finish()
    assert found(pending) == [(0, 100_001, NOW_MS + 100)]


@pytest.mark.parametrize("timestamp", [NOW_MS + 150, -3])
def test_the_removal_of_files_during_a_search_is_no_disk_failure(machine, timestamp):
    machine.configure(file_delete_delay_ms=0, index_interval_bytes=1)
    for later_ms in range(100, 400, 100):
        for records in ([(NOW_MS + later_ms, None, bytes(99), ())], [(NOW_MS + later_ms + 1, None, b"", ())]):
            machine.produce(build_batch(records))
        machine.finish()
        machine.partition.log.roll(NOW_MS)
    pending = machine.look_up(timestamp)
    logs, directory = machine.cluster.logs, machine.partition.log.directory
    delete(machine.cluster, names=["t"])
    logs.run_due(NOW_MS)
    assert not logs.fs.is_directory(directory)
    assert [name for name in logs.fs.list_names("/data") if name.startswith("t-")] == []
    machine.finish()
    [(code, offset, _)] = found(pending)
    assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    assert offset == -1
    assert logs.online_directories == ["/data"]
