"""DeleteRecords on slow, full or failing disks: a deletion that is answered without an error outlives a crash."""

import errno
from random import Random
from types import SimpleNamespace

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from odradek.log.config import LogConfig
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import append, opened
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsPartition,
    DeleteRecordsRequestDeleteRecordsTopic,
)
from odradek.replication.controller.admin.tests.test_topic_admin import create, delete, new
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.replicas.partition import Partition
from odradek.replication.tests.support import Cluster
from odradek.server.handlers.records.delete_records import delete_records
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

E = ErrorCode
PATHS = ("/data/a", "/data/b")
CHECKPOINT = "log-start-offset-checkpoint"


class Broker:
    """The parts of a broker that DeleteRecords uses; topic t has ten records in each of four partitions."""

    def __init__(self, configs=None):
        self.clock, self.threads, self.fs = Clock(), Threads(), MemoryFileSystem()
        self.logs = opened(self.fs, PATHS, run_in_thread=self.threads)
        self.cluster = Cluster(logs=self.logs)
        self.services = SimpleNamespace(
            replicas=self.cluster.replicas,
            logs=self.logs,
            reactor=self.clock,
            slices=Slices(self.clock, self.clock.seconds),
        )
        create(self.cluster, new("t", 4, configs=configs))
        for partition in self.cluster.replicas:
            assert partition.log is not None
            append(partition.log, *[b"x"] * 10)
        self.threads.run()

    def delete(self, *asked, timeout_ms=5000):
        """Delete records of (partition, offset) pairs. Return a dict of (error code, low watermark) by partition.

        The dict is filled when the response arrives.
        """
        partitions = [DeleteRecordsRequestDeleteRecordsPartition(partition_index=p, offset=o) for p, o in asked]
        topics = [DeleteRecordsRequestDeleteRecordsTopic(name="t", partitions=partitions)]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
        answer = delete_records(self.services, RequestContext("host", "PLAINTEXT"), request)
        found = {}

        def answered(response):
            rows = response.topics[0].partitions
            found.update({row.partition_index: (row.error_code, row.low_watermark) for row in rows})

        if isinstance(answer, Deferred):
            answer.addCallback(answered)
        else:
            answered(answer)
        return found

    def starts_after_crash(self):
        """Log start offsets after a power loss that keeps a random part of the unsynced data."""
        self.fs.crash(Random(1))
        ids = {name: topic.topic_id for name, topic in self.cluster.image.topics.items()}
        again = opened(self.fs, PATHS, ids=ids)
        return {log.partition: log.log_start_offset for log in again.all_logs()}

    def writes(self):
        """The number of written checkpoints of log start offsets."""
        return self.fs._counts.get("rename" + CHECKPOINT, 0)


@pytest.fixture
def broker():
    broker = Broker()
    # The file system counts the operations that a fault names; this fault never occurs.
    broker.fs.fail("rename", after=1_000_000, path_contains=CHECKPOINT)
    return broker


def test_a_response_waits_for_the_checkpoint(broker):
    found = broker.delete((0, 7))
    assert found == {}
    broker.threads.run()
    assert found == {0: (0, 7)}
    assert broker.clock.getDelayedCalls() == []
    assert broker.starts_after_crash() == {0: 7, 1: 0, 2: 0, 3: 0}


def test_a_deletion_that_changes_nothing_is_answered_at_once(broker):
    broker.delete((0, 7))
    broker.threads.run()
    assert broker.delete((0, 7)) == broker.delete((0, 3)) == {0: (0, 7)}
    assert broker.delete((1, 0)) == {1: (0, 0)}
    assert broker.threads.waiting == []


def test_a_deletion_that_changes_nothing_waits_for_an_unsaved_one(broker):
    first, second = broker.delete((0, 7)), broker.delete((0, 3))
    assert (first, second) == ({}, {})
    broker.threads.run()
    assert first == second == {0: (0, 7)}


def test_partitions_of_a_directory_share_a_write(broker):
    found = broker.delete(*[(partition, 5) for partition in range(4)])
    broker.threads.run()
    assert found == dict.fromkeys(range(4), (0, 5))
    assert broker.writes() == len(PATHS)


def test_requests_during_a_write_share_the_next(broker):
    answers = [broker.delete((0, offset)) for offset in range(1, 10)]
    assert len(broker.threads.waiting) == 1
    broker.threads.run(1)
    assert answers[0] == {0: (0, 1)}
    assert answers[1:] == [{}] * 8
    broker.threads.run()
    assert answers[1:] == [{0: (0, offset)} for offset in range(2, 10)]
    assert broker.writes() == 2
    assert broker.starts_after_crash()[0] == 9


def test_no_response_has_a_low_watermark_that_may_be_lost(broker):
    """The second request moves the start after the first one's write, and before the end of that write is reported."""
    first = broker.delete((0, 3))
    work, done = broker.threads.waiting.pop()
    work()
    second = broker.delete((0, 8))
    done(None)
    assert (first, second) == ({0: (0, 3)}, {})
    assert broker.starts_after_crash()[0] == 3


def test_a_full_disk_is_reported_and_the_next_attempt_succeeds(broker):
    broker.fs.is_full = True
    found = broker.delete((0, 7))
    broker.threads.run()
    assert found == {0: (E.KAFKA_STORAGE_ERROR, -1)}
    assert broker.logs.online_directories == list(PATHS)
    assert broker.cluster.replicas.get("t", 0).log.log_start_offset == 7
    broker.fs.is_full = False
    found = broker.delete((0, 7))
    broker.threads.run()
    assert found == {0: (0, 7)}
    assert broker.starts_after_crash()[0] == 7


def test_a_broken_disk_is_reported_for_its_partitions_only(broker):
    directories = {p.index: p.log.log_directory for p in broker.cluster.replicas}
    broker.fs.fail("write", path_contains=f"/data/a/{CHECKPOINT}", error=errno.EIO)
    found = broker.delete(*[(partition, 5) for partition in range(4)])
    broker.threads.run()
    expected = {p: (E.KAFKA_STORAGE_ERROR, -1) if path == "/data/a" else (0, 5) for p, path in directories.items()}
    assert found == expected
    assert broker.logs.online_directories == ["/data/b"]
    again = broker.delete(*[(partition, 6) for partition in range(4)])
    broker.threads.run()
    assert {p: code for p, (code, _) in again.items()} == {p: code for p, (code, _) in expected.items()}


@pytest.mark.parametrize(("timeout_ms", "limit_s"), [(5000, 5), (0, 1), (-1, 1)])
def test_a_response_waits_for_a_hanging_disk_up_to_its_timeout(broker, timeout_ms, limit_s):
    found = broker.delete((0, 7), (1, 99), timeout_ms=timeout_ms)
    broker.clock.advance(limit_s - 0.001)
    assert found == {}
    broker.clock.advance(0.002)
    assert found[0][0] == E.REQUEST_TIMED_OUT
    assert found[1] == (E.OFFSET_OUT_OF_RANGE, -1)
    broker.threads.run()
    assert broker.delete((0, 7)) == {0: (0, 7)}


def test_a_deletion_of_the_topic_during_the_write_fails_the_request(broker):
    found = broker.delete((0, 7))
    delete(broker.cluster, names=["t"], version=5)
    create(broker.cluster, new("t"))
    broker.threads.run()
    assert found == {0: (E.NOT_LEADER_OR_FOLLOWER, -1)}
    assert broker.starts_after_crash() == {0: 0}


def test_a_deletion_whose_client_disconnects_during_the_write_is_saved(broker):
    partitions = [DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=7)]
    topics = [DeleteRecordsRequestDeleteRecordsTopic(name="t", partitions=partitions)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=5000)
    answer = delete_records(broker.services, RequestContext("host", "PLAINTEXT"), request)
    answer.addErrback(lambda failure: None)
    answer.cancel()
    broker.threads.run()
    assert broker.clock.getDelayedCalls() == []
    assert broker.starts_after_crash()[0] == 7


def test_a_response_waits_for_followers_too(broker):
    partition = broker.cluster.replicas.get("t", 0)
    partition.apply(PartitionMetadata(1, 1, (1, 2), (1, 2)), partition.log)
    found = broker.delete((0, 7))
    broker.threads.run()
    partition.update_follower(2, 10, 6, 0)
    assert found == {}
    partition.update_follower(2, 10, 7, 0)
    assert found == {0: (0, 7)}


def test_a_change_of_one_partition_checks_no_other(broker, monkeypatch):
    """The failure of a directory with thousands of partitions checked all of them for each of them."""
    checked = []
    for index in range(4):
        partition = broker.cluster.replicas.get("t", index)
        partition.apply(PartitionMetadata(1, 1, (1, 2), (1, 2)), partition.log)
    found = broker.delete((0, 7), (1, 7), (2, 7), (3, 7))
    broker.threads.run()

    def low_watermark(partition):
        checked.append(partition.index)
        return 0

    monkeypatch.setattr(Partition, "low_watermark", property(low_watermark))
    for index in range(4):
        broker.cluster.replicas.get("t", index).wake_watchers()
    assert checked == [0, 1, 2, 3]
    assert found == {}


def test_a_start_at_a_segments_base_outlives_a_power_loss():
    """The removal of the segment before the start is not synced: its file may reappear."""
    broker = Broker({"segment.bytes": str(1 << 20)})
    log = broker.cluster.replicas.get("t", 0).log
    assert log is not None
    log.update_config(LogConfig({"internal.segment.bytes": "100"}, base=log.config))
    log.roll(0)
    append(log, b"y")
    log.flush(0)
    found = broker.delete((0, 10))
    broker.threads.run()
    assert found == {0: (0, 10)}
    name = f"{log.segments[0].base_offset:020d}.log"
    saved = broker.fs._nodes.by_path[f"{log.directory}/{name}"]
    broker.logs.delete_old_segments(log, 0)
    assert log.segments[0].base_offset == 10
    # Later requests write the checkpoint again.
    broker.delete((1, 1))
    broker.delete((2, 1))
    broker.threads.run()
    broker.fs.remove(f"{log.directory}/{name}.deleted")
    broker.fs._nodes.put(f"{log.directory}/{name}", saved)
    assert broker.starts_after_crash()[0] == 10


def test_a_request_is_completed_although_its_client_has_disconnected(broker):
    """The checkpoint is written too: deleted records do not reappear after a crash."""
    # Each step takes a slice of its own.
    broker.services.slices = Slices(broker.clock, broker.clock.seconds, 0.0)
    partitions = [DeleteRecordsRequestDeleteRecordsPartition(partition_index=p, offset=5) for p in range(4)]
    topics = [DeleteRecordsRequestDeleteRecordsTopic(name="t", partitions=partitions)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=5000)
    answer = delete_records(broker.services, RequestContext("host", "PLAINTEXT"), request)
    failures = []
    answer.addErrback(lambda failure: failures.append(failure.type))
    answer.cancel()
    assert failures == [CancelledError]
    broker.clock.pump([0] * 10)
    broker.threads.run()
    assert broker.starts_after_crash() == {0: 5, 1: 5, 2: 5, 3: 5}
