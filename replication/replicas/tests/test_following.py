"""A replica manager that follows the image in steps: the requests served between steps, and the order of the steps."""

import gc
import weakref

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import build_batch
from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.replication.replicas.partition import Partition
from odradek.replication.tests.support import Cluster, log_keys, memory_logs

ID, OTHER_ID = bytes([1]) * 16, bytes([2]) * 16
ALONE = PartitionMetadata(1, 0, (1,), (1,))
COUNT = 50


class Steps:
    """A RunSteps whose steps the test runs, taking turns between the tasks."""

    def __init__(self):
        self.work = []
        self.taken = 0

    def __call__(self, steps):
        self.work.append(steps)

    def run(self, count=100_000):
        while self.work and count:
            steps = self.work.pop(0)
            count -= 1
            self.taken += 1
            try:
                next(steps)
            except StopIteration:
                continue
            self.work.append(steps)


class StepwiseCluster(Cluster):
    """A cluster whose replica manager does a step only in `steps.run`."""

    def __init__(self):
        super().__init__()
        self.replicas.run_steps = self.steps = Steps()


@pytest.fixture
def cluster():
    return StepwiseCluster()


def publish(cluster, *topics, deleted=()):
    for name in deleted:
        cluster.image.remove_topic(name)
    for topic in topics:
        cluster.image.put_topic(topic)
    cluster.image.publish()


def topic(count=COUNT, name="t", topic_id=ID):
    return TopicMetadata(name, topic_id, (ALONE,) * count)


def error_of(call, *arguments):
    with pytest.raises(KafkaError) as raised:
        call(*arguments)
    return raised.value.code


def append(partition, value=b"v"):
    return partition.append_as_leader(memoryview(build_batch([(0, b"k", value, ())])), required_acks=1, now_ms=0)


def test_a_step_creates_one_log(cluster):
    publish(cluster, topic())
    for count in range(COUNT):
        assert log_keys(cluster) == [("t", index) for index in range(count)]
        cluster.steps.run(1)
    cluster.steps.run()
    assert cluster.steps.taken <= COUNT + 3
    assert [partition.is_leader for partition in cluster.replicas.list_led("t")] == [True] * COUNT


def test_clients_get_a_retriable_error_until_the_log_exists(cluster):
    publish(cluster, topic())
    cluster.steps.run(1)
    append(cluster.replicas.get("t", 0))
    assert error_of(cluster.replicas.get, "t", 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(cluster.replicas.get_by_id, ID, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(cluster.replicas.get, "t", COUNT) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.replicas.offline == []
    cluster.steps.run()
    append(cluster.replicas.get("t", 1))


@pytest.mark.slow
def test_growth_does_not_change_existing_partitions(cluster, monkeypatch):
    publish(cluster, topic(1000))
    cluster.steps.run()
    applied, apply = [], Partition.apply

    def note_applied(self, *arguments):
        applied.append(self.index)
        apply(self, *arguments)

    monkeypatch.setattr(Partition, "apply", note_applied)
    cluster.steps.taken = 0
    publish(cluster, topic(1003))
    cluster.steps.run()
    assert applied == [1000, 1001, 1002]
    assert cluster.steps.taken < 12


def test_changed_properties_reach_the_partitions_of_a_topic_that_grows(cluster):
    publish(cluster, topic(2))
    cluster.steps.run()
    cluster.image.put_topic_config("t", {"retention.ms": "77"})
    publish(cluster, topic(3))
    cluster.steps.run()
    assert {log.config.retention_ms for log in cluster.logs.all_logs()} == {77}
    cluster.image.put_topic_config("t", {})
    publish(cluster)
    cluster.steps.run()
    assert {log.config.retention_ms for log in cluster.logs.all_logs()} == {604800000}


@pytest.mark.parametrize("done", [0, 1, 3, 6, 8])
def test_a_topic_is_deleted_while_it_is_created(cluster, done):
    publish(cluster, topic(5))
    cluster.steps.run(done)
    publish(cluster, deleted=["t"])
    assert error_of(cluster.replicas.get, "t", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_of(cluster.replicas.get_by_id, ID, 0) == ErrorCode.UNKNOWN_TOPIC_ID
    cluster.steps.run()
    assert (log_keys(cluster), list(cluster.replicas)) == ([], [])


@pytest.mark.parametrize("done", [0, 1, 3, 6, 8])
def test_a_deleted_topic_is_not_confused_with_a_new_one_of_that_name(cluster, done):
    publish(cluster, topic(5))
    cluster.steps.run(done)
    old = [append(partition) and partition for partition in cluster.replicas]
    publish(cluster, topic(4, topic_id=OTHER_ID), deleted=["t"])
    for _ in range(30):
        for index in range(4):
            try:
                partition = cluster.replicas.get("t", index)
            except KafkaError as error:
                assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                assert partition.topic_id == OTHER_ID
                assert partition.log.log_end_offset == 0
        cluster.steps.run(1)
    assert log_keys(cluster) == [("t", index) for index in range(4)]
    assert {cluster.logs.topic_id("t", index) for index in range(4)} == {OTHER_ID}
    assert {error_of(append, partition) for partition in old} <= {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_deleted_topic_is_retired_before_other_tasks_continue(cluster):
    publish(cluster, topic(2, "gone", OTHER_ID))
    cluster.steps.run()
    partitions = list(cluster.replicas)
    publish(cluster, topic(1000))
    publish(cluster, deleted=["gone"])
    cluster.steps.run(5)
    assert {error_of(append, partition) for partition in partitions} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_listeners_are_called_when_all_partitions_of_a_topic_exist(cluster):
    calls = []
    cluster.replicas.listeners.append(lambda name: calls.append((name, len(cluster.replicas.list_led(name)))))
    publish(cluster, topic(3), topic(2, "u", OTHER_ID))
    cluster.steps.run()
    publish(cluster, deleted=["t"])
    cluster.steps.run()
    assert calls == [("t", 3), ("u", 2), ("t", 0)]


def test_a_task_that_fails_does_not_stop_later_ones(cluster):
    def fail(name):
        if name == "t":
            raise RuntimeError("a defect")

    cluster.replicas.listeners.append(fail)
    publish(cluster, topic(2))
    publish(cluster, topic(2, "u", OTHER_ID))
    cluster.steps.run()
    publish(cluster, deleted=["t"])
    cluster.steps.run()
    assert log_keys(cluster) == [("u", 0), ("u", 1)]


def test_a_waiter_for_a_change_is_resumed_when_it_is_applied(cluster):
    publish(cluster, topic(3))
    waiting = cluster.replicas.applied()
    with pytest.raises(TypeError):  # it awaits what this test's RunSteps does not return
        waiting.send(None)
    until = cluster.steps.work[-1]
    publish(cluster, topic(1000, "later", OTHER_ID))
    while until in cluster.steps.work:
        cluster.steps.run(1)
    assert len(cluster.replicas.list_led("t")) == 3
    assert len(cluster.replicas.list_led("later")) < 10


def test_after_a_stop_between_steps_the_next_start_does_the_rest():
    fs = MemoryFileSystem()
    cluster = Cluster()
    first = Cluster(logs=memory_logs(cluster.configs, fs=fs))
    steps = first.replicas.run_steps = Steps()
    publish(first, topic(5))
    steps.run(3)
    first.replicas.stop()
    publish(first, topic(2, "u", OTHER_ID))
    first.logs.close(0)
    assert len(log_keys(first)) == 3
    again = Cluster(logs=memory_logs(cluster.configs, fs=fs))
    publish(again, topic(5))
    assert log_keys(again) == [("t", index) for index in range(5)]


def test_a_retired_partition_keeps_no_file_open(cluster, tmp_path):
    publish(cluster, topic(1))
    cluster.steps.run()
    partition = cluster.replicas.get("t", 0)
    append(partition)
    region = partition.read(0, 1000)
    log = weakref.ref(partition.log)
    file = weakref.ref(region.file, lambda _: None) if hasattr(region.file, "__weakref__") else None
    gc.disable()
    try:
        publish(cluster, deleted=["t"])
        cluster.steps.run()
        assert partition.log is None
        assert log() is None
        assert region.read() != b""
    finally:
        gc.enable()
    assert file is None or file() is not None


def test_creating_a_log_does_not_iterate_over_all_others():
    class Logs(dict[tuple[str, int], PartitionLog]):
        def values(self):
            raise AssertionError("iteration over all logs")

        items = __iter__ = values

    cluster = Cluster(logs=memory_logs(Cluster().configs, ("/a", "/b")))
    logs: LogManager = cluster.logs
    logs.table.logs = Logs()
    for index in range(6):
        logs.create_log("t", index, ID, 0, is_new=True)
    logs.delete_log("t", 1)
    logs.create_log("t", 6, ID, 0, is_new=True)
    assert [logs.get("t", index).log_directory for index in (0, 2, 3, 4, 5, 6)] == ["/a", "/a", "/b", "/a", "/b", "/b"]
