"""Fetch: records read, waits, limits, errors, and the partitions that a session omits."""

import errno
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.log.segments.tests.test_transaction_index import calls_of
from odradek.log.segments.transaction_index import AbortedTransaction
from odradek.log.storage.filesystem import ColdReadError
from odradek.log.storage.memory_filesystem import MemoryFile
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
)
from odradek.protocol.records import build_batch
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.store import run_now
from odradek.replication.replicas.partition import READ_COMMITTED
from odradek.replication.tests.support import Cluster
from odradek.server.config import BrokerConfig
from odradek.server.fetching.cold_reads import ColdReads
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.fetching.requested_partitions import PARTITIONS_PER_STEP
from odradek.server.fetching.session_cache import FetchSessionCache
from odradek.server.handlers.records.fetch import ENDED_INPUT_WAIT_MS, fetch
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices
from odradek.server.work.waits import shorten_wait

E = ErrorCode
BY_NAME, LATEST = 12, 18
UNKNOWN_ID = b"\x07" * 16


class World:
    """A cluster of one broker, a clock, and fetch requests."""

    def __init__(self):
        self.clock = Clock()
        self.cluster = Cluster()
        self.disk_reads = []
        self.services = SimpleNamespace(
            cold_reads=ColdReads(lambda work, done: self.disk_reads.append((work, done))),
            config=BrokerConfig({}),
            replicas=self.cluster.replicas,
            metadata=self.cluster.image,
            fetch_sessions=FetchSessionCache(2, itertools.count(1).__next__),
            readers=None,
            reactor=self.clock,
            monotonic_ms=lambda: int(self.clock.seconds() * 1000),
            slices=Slices(self.clock, self.clock.seconds),
        )
        self.services.completions = self.services.follower_completions = CompletionQueue(self.services.slices)
        self.created = []

    def create(self, name, partitions=1, **configs):
        [result] = create(self.cluster, new(name, partitions, configs=configs))
        assert result.error_code == 0
        self.created += [self.partition(name, index) for index in range(partitions)]
        return result.topic_id

    def delete(self, name):
        run_now(self.cluster.topics.delete_topics(DeleteTopicsRequest(topic_names=[name]), 1))

    def partition(self, topic, index=0):
        return self.cluster.replicas.get(topic, index)

    def append(self, topic, index=0, *, size=100):
        """Append one batch of one record. Return its size in bytes."""
        batch = build_batch([(0, None, b"v" * size, ())])
        self.partition(topic, index).append_as_leader(memoryview(batch), required_acks=-1, now_ms=0)
        return len(batch)

    def start_fetch(self, *asked, version=BY_NAME, forgotten=(), has_input_ended=False, context=None, **request):
        """Fetch (topic name or id, index, offset, options) of partitions. Return the response, or a Deferred of it.

        context: the connection; None for a new one
        """
        topics = []
        for topic, index, offset, options in (one if len(one) == 4 else (*one, {}) for one in asked):
            options = {"partition_max_bytes": 1 << 20, **options}
            partition = FetchRequestFetchPartition(partition=index, fetch_offset=offset, **options)
            topics.append(FetchRequestFetchTopic(**named(topic), partitions=[partition]))
        fields = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **request}
        left_out = [FetchRequestForgottenTopic(**named(topic), partitions=[index]) for topic, index in forgotten]
        message = FetchRequest(topics=topics, forgotten_topics_data=left_out, **fields)
        context = context or RequestContext("host", "PLAINTEXT")
        context.api_version = version
        context.has_input_ended = has_input_ended
        return fetch(self.services, context, message)

    def fetch(self, *asked, **request):
        """Fetch, and assert that the response is immediate."""
        response = self.start_fetch(*asked, **request)
        assert not isinstance(response, Deferred)
        return response

    def park(self, *asked, **request):
        """Fetch, and assert that the request waits. Return the Deferred and the list of its results."""
        deferred = self.start_fetch(*asked, **request)
        answers: list[Any] = []
        assert isinstance(deferred, Deferred)
        deferred.addBoth(answers.append)
        assert answers == []
        return deferred, answers

    def is_idle(self):
        """Return whether there is no timer, and no watcher of any partition, deleted ones included."""
        return not self.clock.getDelayedCalls() and not any(one.watchers for one in self.created)


def named(topic):
    return {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}


def rows(response):
    return [row for topic in response.responses for row in topic.partitions]


def sizes(response):
    return [row.records.size_bytes if row.records else 0 for row in rows(response)]


def errors(response):
    return [row.error_code for row in rows(response)]


@pytest.fixture
def world():
    return World()


# -- records on the disk -------------------------------------------------------------------------------------------


class Disk:
    """Files that are on the disk only, by a part of their paths, until they are read with a wait or in a thread."""

    def __init__(self, world, monkeypatch):
        self.cold = set()
        self.waits = 0
        self._world = world
        pread = MemoryFile.pread

        def is_cold(file):
            return any(part in file.path for part in self.cold)

        def pread_cached(file, position, size_bytes):
            if is_cold(file):
                raise ColdReadError(file, position, size_bytes)
            return pread(file, position, size_bytes)

        def read(file, position, size_bytes):
            self.waits += is_cold(file)
            return pread(file, position, size_bytes)

        monkeypatch.setattr(MemoryFile, "pread_cached", pread_cached)
        monkeypatch.setattr(MemoryFile, "pread", read)
        monkeypatch.setattr(MemoryFile, "load", lambda file, position, size_bytes: self.cold.clear())

    def end_read(self, error=None):
        """End the read in a thread."""
        ((work, done),) = self._world.disk_reads
        self._world.disk_reads.clear()
        if error is None:
            work()
        done(error)


@pytest.fixture
def disk(world, monkeypatch):
    return Disk(world, monkeypatch)


def append_cold(world, disk, index=0):
    """Append a batch to topic t that no reader expects, and that is on the disk only. Return its size."""
    size = world.append("t", index)
    world.partition("t", index).log.segments[0].hints.clear()
    disk.cold.add(f"/t-{index}/")
    return size


def test_a_fetch_waits_until_a_thread_has_read_what_it_needs_to_find_the_records(world, disk):
    world.create("t")
    size = append_cold(world, disk)
    _, answers = world.park(("t", 0, 0))
    disk.end_read()
    assert sizes(answers[0]) == [size]
    assert disk.waits == 0
    assert world.is_idle()


def test_partitions_on_the_disk_do_not_delay_the_records_of_others(world, disk):
    world.create("t")
    world.create("u")
    size = append_cold(world, disk)
    other_size = world.append("u")
    assert sizes(world.fetch(("t", 0, 0), ("u", 0, 0))) == [0, other_size]
    disk.end_read()
    assert sizes(world.fetch(("t", 0, 0), ("u", 0, 0))) == [size, other_size]
    assert disk.waits == 0


def test_several_fetches_wait_for_one_read(world, disk):
    world.create("t")
    size = append_cold(world, disk)
    parked = [world.park(("t", 0, 0))[1] for _ in range(3)]
    disk.end_read()
    assert [sizes(answers[0]) for answers in parked] == [[size]] * 3


def test_at_the_end_of_its_wait_a_fetch_returns_the_records_that_are_on_the_disk(world, disk):
    world.create("t")
    size = append_cold(world, disk)
    _, answers = world.park(("t", 0, 0))
    world.clock.advance(0.5)
    assert sizes(answers[0]) == [size]
    assert disk.waits > 0


@pytest.mark.parametrize("partitions", [3, PARTITIONS_PER_STEP + 1])
def test_at_the_end_of_its_wait_a_fetch_waits_for_the_records_of_one_partition(world, disk, partitions):
    """The disk may be slow, and the reactor thread waits for it."""
    world.create("t", partitions)
    size = 0
    for index in range(partitions):
        size = append_cold(world, disk, index)
    asked = [("t", index, 0) for index in range(partitions)]
    deferred = world.start_fetch(*asked)
    answers: list[Any] = []
    deferred.addBoth(answers.append)
    world.clock.pump([0.001] * 10)
    assert answers == []
    assert disk.waits == 0
    world.clock.pump([0.5] + [0.001] * 10)
    assert sizes(answers[0]) == [size] + [0] * (partitions - 1)
    assert disk.waits == 1


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk fails"), OSError(errno.ENOMEM, "no memory")])
def test_after_an_error_of_a_thread_the_fetch_reads_at_once_and_reports_it(world, disk, error):
    world.create("t")
    size = append_cold(world, disk)
    _, answers = world.park(("t", 0, 0))
    disk.end_read(error)
    assert sizes(answers[0]) == [size]
    assert disk.waits == 1
    assert world.is_idle()


def test_an_error_of_a_read_for_one_fetch_does_not_delay_another_of_the_same_partition(world, disk):
    world.create("t")
    size = append_cold(world, disk)
    append_cold(world, disk)
    answers = [world.park(("t", 0, offset))[1] for offset in (0, 1)]
    disk.end_read(OSError(errno.ENOMEM, "no memory"))
    assert sizes(answers[0][0]) == [2 * size]
    disk.end_read()
    assert sizes(answers[1][0]) == [size]
    assert disk.waits == 1


def test_records_count_as_available_only_if_the_response_gets_them_without_a_wait(world, disk):
    """The response may have fewer bytes than a partition, so that a batch header has to be read."""
    world.create("t", 2)
    _, answers = world.park(("t", 0, 0), ("t", 1, 0), max_bytes=10)
    disk.cold.add("/t-0/")
    size = world.append("t")
    assert answers == []
    disk.end_read()
    assert sizes(answers[0]) == [size, 0]
    assert disk.waits == 0


@pytest.mark.parametrize("request_fields", [{"max_wait_ms": 0}, {"min_bytes": 0}])
def test_a_fetch_without_a_wait_returns_the_records_that_are_on_the_disk(world, disk, request_fields):
    world.create("t")
    size = append_cold(world, disk)
    assert sizes(world.fetch(("t", 0, 0), **request_fields)) == [size]
    assert not world.disk_reads


def test_a_fetch_of_a_lost_connection_ends_before_the_read_for_it(world, disk):
    world.create("t")
    append_cold(world, disk)
    deferred, answers = world.park(("t", 0, 0))
    deferred.cancel()
    disk.end_read()
    assert len(answers) == 1
    assert world.is_idle()


# -- waiting -------------------------------------------------------------------------------------------------------


def test_available_records_are_returned_at_once(world):
    world.create("t")
    size = world.append("t")
    [row] = rows(world.fetch(("t", 0, 0)))
    assert (row.error_code, row.high_watermark, row.last_stable_offset, row.log_start_offset) == (0, 1, 1, 0)
    assert row.records.size_bytes == size
    assert row.aborted_transactions is None
    assert world.is_idle()


def test_an_append_ends_the_wait_and_removes_watcher_and_timer(world):
    world.create("t")
    _, answers = world.park(("t", 0, 0))
    size = world.append("t")
    assert sizes(answers[0]) == [size]
    assert world.is_idle()
    world.append("t")
    world.clock.advance(1)
    assert len(answers) == 1


def test_the_timeout_ends_the_wait_with_the_available_records(world):
    world.create("t")
    size = world.append("t")
    _, answers = world.park(("t", 0, 0), min_bytes=10_000)
    world.clock.advance(0.499)
    assert answers == []
    world.clock.advance(0.001)
    assert sizes(answers[0]) == [size]
    assert world.is_idle()


def test_min_bytes_count_over_all_partitions(world):
    world.create("t", 2)
    world.create("u")
    size = world.append("t", 0)
    _, answers = world.park(("t", 0, 0), ("t", 1, 0), ("u", 0, 0), min_bytes=3 * size)
    world.append("u")
    assert answers == []
    world.append("t", 1)
    assert sizes(answers[0]) == [size] * 3


def test_min_bytes_are_limited_by_max_bytes(world):
    world.create("t")
    size = world.append("t")
    world.append("t")
    assert sizes(world.fetch(("t", 0, 0), min_bytes=1 << 30, max_bytes=size)) == [size]


def test_a_fetch_to_the_end_of_an_older_segment_does_not_wait_for_min_bytes(world):
    """One fetch returns at most the rest of an older segment, which appends do not extend."""
    world.create("t", **{"internal.segment.bytes": "1000"})
    size = world.append("t", size=700)
    world.append("t", size=700)
    assert len(world.partition("t").log.segments) == 2
    assert sizes(world.fetch(("t", 0, 0), min_bytes=10_000)) == [size]
    world.park(("t", 0, 1), min_bytes=10_000)


def test_a_roll_during_the_wait_ends_it(world):
    world.create("t", **{"internal.segment.bytes": "1000"})
    size = world.append("t", size=700)
    _, answers = world.park(("t", 0, 0), min_bytes=10_000)
    world.append("t", size=700)
    assert sizes(answers[0]) == [size]


@pytest.mark.parametrize("wait", [0, -1, -(2**31)])
def test_a_fetch_without_max_wait_does_not_wait(world, wait):
    world.create("t")
    assert sizes(world.fetch(("t", 0, 0), max_wait_ms=wait)) == [0]


@pytest.mark.parametrize("least", [0, -5])
def test_a_fetch_without_min_bytes_does_not_wait(world, least):
    world.create("t")
    assert sizes(world.fetch(("t", 0, 0), min_bytes=least)) == [0]


def test_a_fetch_without_partitions_does_not_wait(world):
    assert rows(world.fetch()) == []


def test_a_client_that_disconnects_leaves_no_watcher_and_no_timer(world):
    world.create("t", 2)
    deferred, answers = world.park(("t", 0, 0), ("t", 1, 0))
    deferred.cancel()
    assert world.is_idle()
    world.append("t")
    world.clock.advance(1)
    assert len(answers) == 1


@pytest.mark.parametrize("max_wait_ms", [400, 1 << 30])
@pytest.mark.parametrize("is_before", [False, True])
def test_a_client_that_has_closed_its_side_does_not_wait_for_long(world, is_before, max_wait_ms):
    """The client may have disconnected, or may still read."""
    world.create("t")
    deferred, answers = world.park(("t", 0, 0), max_wait_ms=max_wait_ms, has_input_ended=is_before)
    if not is_before:
        world.clock.advance(0.1)
        shorten_wait(deferred)
    shorten_wait(deferred)
    world.clock.advance(min(max_wait_ms, ENDED_INPUT_WAIT_MS) / 1000 - 0.101)
    assert answers == []
    world.clock.advance(0.101)
    assert errors(answers[0]) == [E.NONE]
    assert world.is_idle()
    shorten_wait(deferred)


def test_all_waiting_fetches_return_the_appended_batch(world):
    world.create("t")
    parked = [world.park(("t", 0, 0))[1] for _ in range(3)]
    size = world.append("t")
    assert [sizes(answers[0]) for answers in parked] == [[size]] * 3


def test_a_deleted_topic_ends_the_wait_and_is_unknown(world):
    topic_id = world.create("t")
    _, by_name = world.park(("t", 0, 0))
    _, by_id = world.park((topic_id, 0, 0), version=LATEST)
    world.delete("t")
    assert errors(by_name[0]) == errors(by_id[0]) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.is_idle()


def test_missing_partitions_do_not_shorten_the_wait_for_others(world):
    world.create("t")
    _, answers = world.park((UNKNOWN_ID, 0, 0), (world.create("u"), 0, 0), version=LATEST)
    world.clock.advance(0.5)
    assert errors(answers[0]) == [E.NONE, E.UNKNOWN_TOPIC_ID]
    _, answers = world.park(("nowhere", 0, 0), ("t", 7, 0), ("t", 0, 0))
    size = world.append("t")
    assert errors(answers[0]) == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert sizes(answers[0]) == [size, 0, 0]


def test_a_fetch_of_missing_partitions_only_does_not_wait(world):
    world.create("t")
    assert errors(world.fetch((UNKNOWN_ID, 0, 0), (bytes(16), 0, 0), version=LATEST)) == [E.UNKNOWN_TOPIC_ID] * 2
    assert errors(world.fetch(("", 0, 0), ("t", -1, 0))) == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2


# -- limits --------------------------------------------------------------------------------------------------------


def test_the_first_batch_is_complete_with_any_limits(world):
    world.create("t", 2)
    size = world.append("t", 0)
    world.append("t", 1)
    small = {"partition_max_bytes": 1}
    assert sizes(world.fetch(("t", 0, 0, small), ("t", 1, 0, small))) == [size, 0]
    assert sizes(world.fetch(("t", 1, 0), ("t", 0, 0), max_bytes=1)) == [size, 0]


@pytest.mark.parametrize("most", [0, -1, -(2**31)])
def test_absurd_limits_return_one_batch(world, most):
    world.create("t", 2)
    size = world.append("t", 0)
    world.append("t", 1)
    absurd = {"partition_max_bytes": most}
    assert sizes(world.fetch(("t", 0, 0, absurd), ("t", 1, 0, absurd), max_bytes=most)) == [size, 0]


def test_both_limits_apply_after_the_first_batch(world):
    world.create("t", 2)
    for _ in range(3):
        size = world.append("t", 0)
        world.append("t", 1)
    two = {"partition_max_bytes": 2 * size}
    assert sizes(world.fetch(("t", 0, 0, two), ("t", 1, 0))) == [2 * size, 3 * size]
    assert sizes(world.fetch(("t", 0, 0), ("t", 1, 0), max_bytes=4 * size)) == [3 * size, size]
    assert sizes(world.fetch(("t", 0, 0), ("t", 1, 0), max_bytes=3 * size)) == [3 * size, 0]


# -- errors and epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
def test_an_offset_outside_of_the_log_is_an_error_at_once(world, offset):
    world.create("t", 2)
    world.append("t")
    response = world.fetch(("t", 1, 0), ("t", 0, offset), min_bytes=1000)
    assert errors(response) == [E.NONE, E.OFFSET_OUT_OF_RANGE]
    row = rows(response)[1]
    assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (-1, -1, -1)
    assert row.records == b""


def test_a_newer_leader_epoch_is_an_error(world):
    world.create("t")
    epoch = world.partition("t").leader_epoch
    for current, error in ((epoch, E.NONE), (-1, E.NONE), (epoch + 1, E.UNKNOWN_LEADER_EPOCH)):
        assert errors(world.fetch(("t", 0, 0, {"current_leader_epoch": current}), min_bytes=0)) == [error]


def test_a_reader_with_another_history_gets_the_diverging_epoch(world):
    world.create("t")
    world.append("t")
    log = world.partition("t").log
    log.assign_epoch(4, 1)
    for last_epoch, offset, expected in ((0, 1, (-1, -1)), (2, 1, (0, 1)), (0, 9, (0, 1))):
        [row] = rows(world.fetch(("t", 0, offset, {"last_fetched_epoch": last_epoch}), min_bytes=0))
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == expected
        assert (row.error_code, row.records, row.aborted_transactions) == (0, b"", None)


def test_an_offset_below_the_log_is_out_of_range_with_any_epoch(world):
    world.create("t")
    world.append("t")
    world.append("t")
    partition = world.partition("t")
    partition.log.assign_epoch(4, 2)
    partition.delete_records(1)
    assert errors(world.fetch(("t", 0, 0, {"last_fetched_epoch": 2}))) == [E.OFFSET_OUT_OF_RANGE]


def test_a_read_committed_response_always_has_a_list_of_aborted_transactions(world):
    world.create("t")
    [row] = rows(world.fetch(("t", 0, 0), isolation_level=READ_COMMITTED, max_wait_ms=0))
    assert row.aborted_transactions == []


def test_many_aborted_transactions_are_created_when_the_response_is_encoded(world):
    world.create("t")
    world.append("t")
    count = 2_000
    index = world.partition("t").log.segments[0].transaction_index
    for number in range(count):
        index.append(AbortedTransaction(number, 0, 1 + number, 0))

    def begin():
        return world.fetch(("t", 0, 0), isolation_level=READ_COMMITTED, max_wait_ms=0)

    begin()
    found = []
    assert calls_of(lambda: found.append(begin())) < count
    [row] = rows(found[0])
    sent = [(one.producer_id, one.first_offset) for one in row.aborted_transactions]
    assert sent == [(number, 0) for number in range(count)]


def test_the_end_of_many_aborted_transactions_is_found_without_a_wait_for_the_disk(world, monkeypatch):
    """The offset after the records is in the header of the next batch with an index entry."""
    world.create("t")
    size = sum(world.append("t", size=1000) for _ in range(20)) // 20
    index = world.partition("t").log.segments[0].transaction_index
    for number in range(20):
        index.append(AbortedTransaction(number, number, number, number))
    end, cold, waits = 3 * size, [True], []
    pread = MemoryFile.pread

    def pread_cached(file, position, size_bytes):
        if cold and position >= end:
            raise ColdReadError(file, position, size_bytes)
        return pread(file, position, size_bytes)

    def read(file, position, size_bytes):
        waits.extend(cold if position >= end else [])
        return pread(file, position, size_bytes)

    monkeypatch.setattr(MemoryFile, "pread_cached", pread_cached)
    monkeypatch.setattr(MemoryFile, "pread", read)
    monkeypatch.setattr(MemoryFile, "load", lambda file, position, size_bytes: cold.clear())
    _, answers = world.park(("t", 0, 0, {"partition_max_bytes": end}), isolation_level=READ_COMMITTED)
    [(work, done)] = world.disk_reads
    work()
    done(None)
    [row] = rows(answers[0])
    assert row.records.size_bytes == end
    assert len(row.aborted_transactions) < 20
    assert waits == []


def test_a_transaction_index_that_cannot_be_read_takes_the_directory_offline(world, monkeypatch):
    """Requests that wait for the log, for a sync for example, would wait without end."""
    world.create("t")
    world.append("t")

    def broken(*_):
        raise OSError(errno.EIO, "broken")

    index = SimpleNamespace(count_from=lambda offset: 1, find=broken)
    monkeypatch.setattr(world.partition("t").log.segments[0], "transaction_index", index)
    assert errors(world.fetch(("t", 0, 0), isolation_level=READ_COMMITTED)) == [E.KAFKA_STORAGE_ERROR]
    assert world.partition("t").log is None


def test_a_broker_without_a_replica_is_refused_at_each_partition(world):
    world.create("t")
    world.append("t")
    known = ("t", 0, 0, {"current_leader_epoch": 0})
    response = world.fetch(("t", 0, 0), ("nowhere", 0, 0), replica_id=3)
    assert errors(response) == [E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert errors(world.fetch(known, replica_id=3)) == [E.UNKNOWN_LEADER_EPOCH]


# -- sessions ------------------------------------------------------------------------------------------------------


def begin(world, *asked, **request):
    """Open a session with a full fetch. Return the arguments of its later fetches."""
    session_id = world.fetch(*asked, session_epoch=0, max_wait_ms=0, **request).session_id
    assert session_id
    return {"session_id": session_id, "max_wait_ms": 0, "version": request.get("version", BY_NAME)}


def partitions_of(response):
    return [(topic.topic, row.partition_index) for topic in response.responses for row in topic.partitions]


def test_an_incremental_fetch_returns_only_changed_partitions(world):
    world.create("t", 3)
    session = begin(world, ("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    assert partitions_of(world.fetch(**session, session_epoch=1)) == []
    world.append("t", 1)
    assert partitions_of(world.fetch(**session, session_epoch=2)) == [("t", 1)]
    # The position is unchanged: the records are returned again.
    assert partitions_of(world.fetch(**session, session_epoch=3)) == [("t", 1)]
    assert partitions_of(world.fetch(("t", 1, 1), **session, session_epoch=4)) == []


def test_a_partition_that_returned_records_is_read_last_the_next_time(world):
    world.create("t", 2)
    for index in (0, 1):
        world.append("t", index)
    session = begin(world, ("t", 0, 0), ("t", 1, 0), max_bytes=1)
    assert partitions_of(world.fetch(**session, session_epoch=1, max_bytes=1)) == [("t", 0)]
    assert sizes(world.fetch(**session, session_epoch=2, max_bytes=1))[0] > 0
    assert partitions_of(world.fetch(**session, session_epoch=3, max_bytes=1)) == [("t", 0)]


def test_forgotten_partitions_are_not_fetched_and_an_empty_session_ends(world):
    world.create("t", 2)
    session = begin(world, ("t", 0, 0), ("t", 1, 0))
    world.append("t", 0)
    world.append("t", 1)
    assert partitions_of(world.fetch(**session, session_epoch=1, forgotten=[("t", 0), ("t", 9)])) == [("t", 1)]
    response = world.fetch(**session, session_epoch=2, forgotten=[("t", 1)])
    assert (response.session_id, partitions_of(response)) == (0, [])
    with pytest.raises(KafkaError) as raised:
        world.fetch(**session, session_epoch=3)
    assert raised.value.code == E.FETCH_SESSION_ID_NOT_FOUND


def test_the_first_success_after_an_error_is_returned(world):
    world.create("t")
    session = begin(world, ("t", 0, 0))
    assert errors(world.fetch(("t", 0, 5), **session, session_epoch=1)) == [E.OFFSET_OUT_OF_RANGE]
    assert errors(world.fetch(**session, session_epoch=2)) == [E.OFFSET_OUT_OF_RANGE]
    assert errors(world.fetch(("t", 0, 0), **session, session_epoch=3)) == [E.NONE]
    assert partitions_of(world.fetch(**session, session_epoch=4)) == []


def test_a_session_fetches_a_topic_that_is_created_later(world):
    session = begin(world, ("t", 0, 0))
    assert errors(world.fetch(**session, session_epoch=1)) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    world.create("t")
    world.append("t")
    assert errors(world.fetch(**session, session_epoch=2)) == [E.NONE]


def test_a_session_by_topic_id_does_not_accept_names(world):
    topic_id = world.create("t")
    session = begin(world, (topic_id, 0, 0), (UNKNOWN_ID, 0, 0), version=LATEST)
    assert errors(world.fetch(**session, session_epoch=1)) == [E.UNKNOWN_TOPIC_ID]
    forgotten = [(UNKNOWN_ID, 0)]
    assert partitions_of(world.fetch(**session, session_epoch=2, forgotten=forgotten)) == []
    world.append("t")
    response = world.fetch(**session, session_epoch=3)
    assert [topic.topic_id for topic in response.responses] == [topic_id]
    with pytest.raises(KafkaError) as raised:
        world.fetch(**{**session, "version": BY_NAME}, session_epoch=4)
    assert raised.value.code == E.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_can_be_opened_empty_and_filled_later(world):
    world.create("t")
    session = begin(world)
    world.append("t")
    assert partitions_of(world.fetch(("t", 0, 0), **session, session_epoch=1)) == [("t", 0)]


def test_a_full_fetch_closes_the_session_it_names(world):
    world.create("t")
    first = begin(world, ("t", 0, 0))
    begin(world, ("t", 0, 0), session_id=first["session_id"])
    assert len(world.services.fetch_sessions) == 1
    world.fetch(("t", 0, 0), session_id=2, session_epoch=-1, max_wait_ms=0)
    assert len(world.services.fetch_sessions) == 0


def test_a_fetch_is_answered_without_a_session_if_the_cache_is_full(world):
    world.create("t")
    for _ in range(2):
        begin(world, ("t", 0, 0))
    assert world.fetch(("t", 0, 0), session_epoch=0, max_wait_ms=0).session_id == 0


def test_a_waiting_fetch_fails_if_another_request_continues_its_session(world):
    world.create("t")
    session = begin(world, ("t", 0, 0))
    _, answers = world.park(**{**session, "max_wait_ms": 500}, session_epoch=1)
    assert partitions_of(world.fetch(**session, session_epoch=2)) == []
    size = world.append("t")
    assert (answers[0].error_code, answers[0].session_id) == (E.INVALID_FETCH_SESSION_EPOCH, session["session_id"])
    assert partitions_of(answers[0]) == []
    assert sizes(world.fetch(**session, session_epoch=3)) == [size]


def test_a_waiting_fetch_fails_if_another_request_empties_its_session(world):
    world.create("t")
    session = begin(world, ("t", 0, 0))
    _, answers = world.park(**{**session, "max_wait_ms": 500}, session_epoch=1)
    assert partitions_of(world.fetch(**session, session_epoch=2, forgotten=[("t", 0)])) == []
    world.append("t")
    assert partitions_of(answers[0]) == []
    assert answers[0].error_code == E.INVALID_FETCH_SESSION_EPOCH
    assert world.is_idle()
