"""AlterReplicaLogDirs and DescribeLogDirs: moves of the replicas of topic t, which has three partitions."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from odradek.log.partition_log import PartitionLog
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import append, folders, opened
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestAlterReplicaLogDir,
    AlterReplicaLogDirsRequestAlterReplicaLogDirTopic,
)
from odradek.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.replication.controller.admin.tests.test_topic_admin import create, delete, new
from odradek.replication.tests.support import Cluster
from odradek.server.handlers.topics.log_dirs import (
    alter_replica_log_dirs,
    alter_replica_log_dirs_error,
    describe_log_dirs,
)
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

E = ErrorCode
A, B = PATHS = ("/data/a", "/data/b")


def request(*rows: tuple[str, str, int]) -> AlterReplicaLogDirsRequest:
    """A request for moves of (directory, topic, partition)."""
    return AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDirsRequestAlterReplicaLogDir(
                path=path,
                topics=[AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(name=topic, partitions=[index])],
            )
            for path, topic, index in rows
        ]
    )


def codes(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic_name, row.partition_index): row.error_code
        for topic in response.results
        for row in topic.partitions
    }


class Broker:
    """The parts of a broker that requests about log directories use."""

    def __init__(self) -> None:
        self.threads, self.fs = Threads(), MemoryFileSystem()
        self.logs = opened(
            self.fs, PATHS, run_in_thread=self.threads, on_log_replaced=lambda log: self.log_replaced(log)
        )
        self.cluster = Cluster(logs=self.logs)
        self.replicas = self.cluster.replicas
        clock = Clock()
        self.services: Any = SimpleNamespace(
            replicas=self.replicas, logs=self.logs, now_ms=lambda: 0, slices=Slices(clock, clock.seconds)
        )
        create(self.cluster, new("t", 3))
        for partition in self.replicas:
            assert partition.log is not None
            append(partition.log, *[b"x"] * 10)
        self.threads.run()

    def log_replaced(self, log: PartitionLog) -> None:
        self.replicas.log_replaced(log)

    def home(self, index: int = 0) -> str:
        return self.replicas.get("t", index).leading_log().log_directory

    def target(self, index: int = 0) -> str:
        return B if self.home(index) == A else A

    def alter(self, *rows: tuple[str, str, int]) -> dict[tuple[str, int], int]:
        context = RequestContext("host", "PLAINTEXT")
        responses: list[Any] = []
        alter_replica_log_dirs(self.services, context, request(*rows)).addCallback(responses.append)
        return codes(responses[0])

    def describe(self, index: int = 0) -> set[tuple[str, int, bool]]:
        """Return (directory, lag, is future) of the replicas of a partition."""
        responses: list[Any] = []
        context = RequestContext("host", "PLAINTEXT")
        describe_log_dirs(self.services, context, DescribeLogDirsRequest(topics=None)).addCallback(responses.append)
        return {
            (result.log_dir, row.offset_lag, row.is_future_key)
            for result in responses[0].results
            for topic in result.topics
            for row in topic.partitions
            if row.partition_index == index
        }


def test_a_replica_moves_while_its_partition_is_used():
    broker = Broker()
    home, target = broker.home(), broker.target()
    assert broker.alter((target, "t", 0)) == {("t", 0): E.NONE}
    assert broker.describe() == {(home, 0, False), (target, 10, True)}
    partition = broker.replicas.get("t", 0)
    append(partition.leading_log(), b"y")
    broker.threads.run()
    assert broker.describe() == {(target, 0, False)}
    assert partition.leading_log().log_directory == target
    assert partition.leading_log().high_watermark == 11
    region = partition.read(0, 100_000)
    assert region is not None
    assert region.file is partition.leading_log().active_segment.file


def test_the_errors_of_each_partition():
    broker = Broker()
    target = broker.target()
    broker.replicas.partitions.pop(("t", 2))
    # The directory of a future replica has at most 255 characters in its name.
    almost, long = "t" * 213, "t" * 214
    rows = [
        (target, "t", 0), ("/none", "t", 1), (target, "t", 2), (target, "u", 0), (target, almost, 0), (target, long, 0),
    ]  # fmt: skip
    assert broker.alter(*rows) == {
        ("t", 0): E.NONE,
        ("t", 1): E.LOG_DIR_NOT_FOUND,
        ("t", 2): E.REPLICA_NOT_AVAILABLE,
        ("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        (almost, 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        (long, 0): E.INVALID_TOPIC_EXCEPTION,
    }
    assert broker.alter() == {}


def test_a_failed_directory_refuses_moves():
    broker = Broker()
    home, target = broker.home(), broker.target()
    broker.logs.fail_directory(target, OSError("dead"))
    assert broker.alter((target, "t", 0)) == {("t", 0): E.KAFKA_STORAGE_ERROR}
    assert broker.alter((home, "t", 0)) == {("t", 0): E.NONE}
    broker.replicas.directory_failed(home)
    assert broker.alter((home, "t", 0)) == {("t", 0): E.KAFKA_STORAGE_ERROR}


@pytest.mark.parametrize("path", PATHS)
def test_a_replica_that_comes_later_is_created_in_its_directory(path):
    broker = Broker()
    assert broker.alter((path, "u", 0)) == {("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION}
    create(broker.cluster, new("u", 1))
    assert broker.replicas.get("u", 0).leading_log().log_directory == path


def test_a_deleted_topic_leaves_no_future_replica():
    broker = Broker()
    broker.alter((broker.target(), "t", 0))
    broker.threads.run(2)
    delete(broker.cluster, names=["t"], version=5)
    broker.threads.run()
    assert broker.logs.table.future_logs == {}
    assert {*folders(broker.fs, A), *folders(broker.fs, B)} == {"t-0-delete", "t-1-delete", "t-2-delete"}


def test_an_error_of_the_request_is_in_each_row():
    rows = request((A, "t", 0), (B, "t", 1))
    response = alter_replica_log_dirs_error(rows, 2, KafkaError(E.UNKNOWN_SERVER_ERROR))
    assert codes(response) == {("t", 0): E.UNKNOWN_SERVER_ERROR, ("t", 1): E.UNKNOWN_SERVER_ERROR}
