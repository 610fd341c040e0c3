"""Logs of a running broker: rolls, retention, DeleteRecords, compaction, deletion, and several log directories."""

import itertools
import os
import shutil
import socket
import time

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsPartition,
    DeleteRecordsRequestDeleteRecordsTopic,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from odradek.protocol.records import iter_batches, iter_records
from odradek.server.tests.wire import EARLIEST, LATEST, Wire, until
from odradek.testing import OdradekBroker

HOUR_MS = 3_600_000
QUICK = {
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "20",
    "log.segment.delete.delay.ms": "20",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "log.cleaner.backoff.ms": "20",
}
SEGMENT_BYTES = 1000
VALUE = b"x" * 300
"""Two batches of one such record fit into a segment, three do not."""

numbers = itertools.count()


def now_ms():
    return int(time.time() * 1000)


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker(QUICK) as broker:
        yield broker


@pytest.fixture
def wire(broker):
    with Wire(broker.port) as wire:
        yield wire


@pytest.fixture
def make_topic(wire):
    def make(**configs):
        name = f"topic-{next(numbers)}"
        wire.create_topic(name, **configs)
        return name

    return make


def files(broker, topic, suffix=".log", partition=0):
    """Base offsets of a partition's files with a suffix."""
    directory = broker.data_dir / f"{topic}-{partition}"
    return sorted(int(path.stem) for path in directory.glob(f"*{suffix}") if path.suffix == suffix)


def read_all(wire, topic):
    """Offsets, keys and values of all records of a topic."""
    found, offset, end = [], wire.offset(topic, EARLIEST), wire.offset(topic, LATEST)
    while offset < end:
        answer = wire.fetch(topic, offset)
        assert answer.error_code == 0
        records = [
            record for batch in iter_batches(memoryview(bytes(answer.records))) for record in iter_records(batch)
        ]
        found += [(one.offset, one.key, one.value) for one in records if one.offset >= offset]
        offset = max([one.offset for one in records], default=end) + 1
    return found


def delete_request(topic, offset, partition=0):
    asked = DeleteRecordsRequestDeleteRecordsPartition(partition_index=partition, offset=offset)
    topics = [DeleteRecordsRequestDeleteRecordsTopic(name=topic, partitions=[asked])]
    return DeleteRecordsRequest(topics=topics, timeout_ms=5000)


def delete_before(wire, topic, offset):
    (answer,) = wire.ask(delete_request(topic, offset)).topics[0].partitions
    return answer.error_code, answer.low_watermark


# Rolling


def test_a_full_segment_is_followed_by_another(broker, wire, make_topic):
    topic = make_topic(internal_segment_bytes=SEGMENT_BYTES)
    for _ in range(10):
        assert wire.produce(topic, VALUE).error_code == 0
    assert files(broker, topic) == [0, 2, 4, 6, 8]
    # The file of an active segment's index is created with its first entry.
    assert files(broker, topic, ".index") == [0, 2, 4, 6]
    directory = broker.data_dir / f"{topic}-0"
    assert all(path.stat().st_size <= SEGMENT_BYTES for path in directory.glob("*.log"))
    assert [offset for offset, _, _ in read_all(wire, topic)] == list(range(10))
    # A batch that is larger than a segment is refused.
    assert wire.produce(topic, b"x" * 2 * SEGMENT_BYTES).error_code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_an_old_segment_is_followed_by_another(broker, wire, make_topic):
    topic = make_topic(segment_ms=HOUR_MS)
    for age_ms in (5 * HOUR_MS, 4.5 * HOUR_MS, 2 * HOUR_MS, 0):
        wire.produce(topic, VALUE, timestamp_ms=now_ms() - int(age_ms))
    assert files(broker, topic) == [0, 2, 3]


# Retention


def test_segments_are_deleted_by_age(broker, wire, make_topic):
    topic = make_topic(internal_segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS)
    # The last segment is old as well, and is replaced by a new one.
    for age_ms in (3 * HOUR_MS, 3 * HOUR_MS, 2 * HOUR_MS, 2 * HOUR_MS, 2 * HOUR_MS):
        assert wire.produce(topic, VALUE, timestamp_ms=now_ms() - age_ms).error_code == 0
    until(lambda: wire.offset(topic, EARLIEST) == 5)
    until(lambda: files(broker, topic) == [5])
    assert wire.fetch(topic, 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert wire.produce(topic, VALUE).base_offset == 5
    assert wire.fetch(topic, 5).log_start_offset == 5


def test_segments_with_young_records_stay(broker, wire, make_topic):
    topic = make_topic(internal_segment_bytes=SEGMENT_BYTES, retention_ms=HOUR_MS)
    # The young record is the first: retention may check the segment before the others are written.
    for age_ms in (0, 3 * HOUR_MS, 3 * HOUR_MS, 3 * HOUR_MS):
        wire.produce(topic, VALUE, timestamp_ms=now_ms() - age_ms)
    witness = make_topic(retention_ms=1)
    wire.produce(witness, VALUE, timestamp_ms=now_ms() - HOUR_MS)
    until(lambda: wire.offset(witness, EARLIEST) == 1)
    # The first segment has a young record, and later segments are deleted only after it.
    assert wire.offset(topic, EARLIEST) == 0 and len(read_all(wire, topic)) == 4


def test_segments_are_deleted_by_size(broker, wire, make_topic):
    topic = make_topic(internal_segment_bytes=SEGMENT_BYTES, retention_bytes=2 * SEGMENT_BYTES)
    for _ in range(20):
        wire.produce(topic, VALUE)
    until(lambda: len(files(broker, topic)) <= 3)
    kept = read_all(wire, topic)
    # No more is deleted than necessary: without its first segment the rest would be below the limit.
    assert wire.offset(topic, EARLIEST) == kept[0][0] == files(broker, topic)[0]
    size = sum(path.stat().st_size for path in (broker.data_dir / f"{topic}-0").glob("*.log"))
    assert 2 * SEGMENT_BYTES <= size < 3 * SEGMENT_BYTES
    assert kept[-1][0] == 19


def test_a_slow_reader_gets_the_whole_response_from_a_deleted_segment(broker, wire, make_topic):
    topic = make_topic(segment_bytes=8 << 20)
    value = os.urandom(1 << 20)[:-1000]
    for _ in range(9):
        assert wire.produce(topic, value).error_code == 0
    first, second = files(broker, topic)
    with Wire(broker.port) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        request = Wire.fetch_request(topic, first)
        slow.send(request, 11)
        # The response has begun, and most of it is still a file region.
        assert slow.socket.recv(1, socket.MSG_PEEK)
        assert delete_before(wire, topic, 9) == (0, 9)
        until(lambda: files(broker, topic) == [second])
        until(lambda: not list((broker.data_dir / f"{topic}-0").glob("*.deleted")))
        answer = slow.receive(request, 11).responses[0].partitions[0]
    batches = list(iter_batches(memoryview(bytes(answer.records))))
    assert len(batches) == second == 8
    assert all(record.value == value for batch in batches for record in iter_records(batch))
    until(lambda: not any("(deleted)" in target for target in open_files(broker.pid)))


# DeleteRecords


def test_records_are_deleted_by_request(broker, wire, make_topic):
    topic = make_topic(internal_segment_bytes=SEGMENT_BYTES)
    for _ in range(10):
        wire.produce(topic, VALUE)
    assert delete_before(wire, topic, 5) == (0, 5)
    assert wire.offset(topic, EARLIEST) == 5
    assert wire.fetch(topic, 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [offset for offset, _, _ in read_all(wire, topic)] == [5, 6, 7, 8, 9]
    until(lambda: files(broker, topic) == [4, 6, 8])
    assert delete_before(wire, topic, 3) == (0, 5)
    assert delete_before(wire, topic, 11) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete_before(wire, topic, -2)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_before(wire, "no-such-topic", 0)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_before(wire, topic, -1) == (0, 10)
    assert wire.offset(topic, EARLIEST) == wire.offset(topic, LATEST) == 10


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill -9"])
def test_deleted_records_stay_deleted(clean):
    """The stop follows the response at once, a minute before the next checkpoint is due."""
    with OdradekBroker() as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t")
            for _ in range(10):
                wire.produce("t", VALUE)
        for offset in (7, 9):
            with Wire(broker.port) as wire:
                assert delete_before(wire, "t", offset) == (0, offset)
            broker.restart(clean=clean)
            with Wire(broker.port) as wire:
                assert (wire.offset("t", EARLIEST), wire.offset("t", LATEST)) == (offset, 10)


def test_answered_deletions_among_many_outlive_a_kill():
    """Many connections delete at the same time and share writes; the kill follows the first responses."""
    partitions = 20
    with OdradekBroker() as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t", partitions=partitions)
            for partition in range(partitions):
                wire.produce("t", *[VALUE] * 10, partition=partition)
        request = [delete_request("t", 1 + partition % 10, partition) for partition in range(partitions)]
        wires = [Wire(broker.port) for _ in range(partitions)]
        for wire, one in zip(wires, request, strict=True):
            wire.send(one, 2)
        acknowledged = {}
        for partition in (0, partitions - 1, partitions // 2):
            (answer,) = wires[partition].receive(request[partition], 2).topics[0].partitions
            assert answer.error_code == 0
            acknowledged[partition] = answer.low_watermark
        broker.restart(clean=False)
        for one in wires:
            one.socket.close()
        with Wire(broker.port) as wire:
            assert acknowledged == {partition: 1 + partition % 10 for partition in acknowledged}
            assert {p: wire.offset("t", EARLIEST, p) for p in acknowledged} == acknowledged


def held_files(broker, topic):
    """Files of a topic that the broker's process has open, deleted files included."""
    found = []
    for fd in os.listdir(f"/proc/{broker.pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{broker.pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [path for path in found if f"/{topic}-" in path]


def test_files_of_a_deleted_topic_are_closed_while_its_producers_stay_connected(broker, wire, make_topic):
    topic = make_topic(file_delete_delay_ms=20)
    with Wire(broker.port) as producer, Wire(broker.port) as consumer:
        for _ in range(3):
            assert producer.produce(topic, VALUE).error_code == 0
        assert consumer.fetch(topic, 0).error_code == 0
        assert held_files(broker, topic)
        state = DeleteTopicsRequestDeleteTopicState(name=topic)
        (answer,) = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000)).responses
        assert answer.error_code == 0
        until(lambda: not held_files(broker, topic))
        assert producer.produce(topic, VALUE).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Compaction


def test_a_compacted_topic_keeps_the_last_value_of_each_key(broker, wire, make_topic):
    topic = make_topic(
        cleanup_policy="compact", internal_segment_bytes=SEGMENT_BYTES, min_cleanable_dirty_ratio=0.01
    )
    for number in range(20):
        wire.produce(topic, b"%d" % number + VALUE, key=b"key-%d" % (number % 2))
    for _ in range(3):
        wire.produce(topic, VALUE, key=b"last")

    def is_compact():
        kept = read_all(wire, topic)
        keys = [key for _, key, _ in kept]
        return kept if keys.count(b"key-0") == keys.count(b"key-1") == 1 else None

    kept = until(is_compact)
    values = {key: (offset, value) for offset, key, value in kept}
    assert values[b"key-0"] == (18, b"18" + VALUE) and values[b"key-1"] == (19, b"19" + VALUE)
    assert wire.offset(topic, LATEST) == 23


# Deletion


def test_a_deleted_topic_leaves_nothing_on_the_disk(broker, wire, make_topic):
    topic = make_topic(internal_segment_bytes=SEGMENT_BYTES)
    for _ in range(6):
        wire.produce(topic, VALUE)
    state = DeleteTopicsRequestDeleteTopicState(name=topic)
    (answer,) = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000)).responses
    assert answer.error_code == 0
    assert not (broker.data_dir / f"{topic}-0").exists()
    assert wire.produce(topic, VALUE).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # A topic of the same name is created while the files of the deleted one still exist.
    wire.create_topic(topic)
    assert wire.produce(topic, VALUE).base_offset == 0
    until(lambda: not list(broker.data_dir.glob(f"{topic}*-delete")))
    until(lambda: not any("(deleted)" in target for target in open_files(broker.pid)))


def open_files(pid):
    targets = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            targets.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:
            continue
    return targets


# Several directories


def described(broker):
    """Error code and partitions of each log directory, by path."""
    with Wire(broker.port) as wire:
        answer = wire.ask(DescribeLogDirsRequest(topics=None))
    return {
        result.log_dir: (
            result.error_code,
            {
                (topic.name, one.partition_index): one.partition_size
                for topic in result.topics
                for one in topic.partitions
            },
        )
        for result in answer.results
    }


def partition_codes(broker, topic, partitions):
    """Produce to each partition. Return the error codes."""
    with Wire(broker.port) as wire:
        return [wire.produce(topic, VALUE, partition=index).error_code for index in range(partitions)]


def test_partitions_are_spread_over_the_directories_and_stay_there(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]
    properties = {**QUICK, "log.dirs": ",".join(map(str, paths))}
    with OdradekBroker(properties, directory=tmp_path / "broker") as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t", partitions=9)
        assert partition_codes(broker, "t", 9) == [0] * 9
        before = described(broker)
        assert list(before) == [str(path) for path in paths]
        assert [(code, len(found)) for code, found in before.values()] == [(0, 3)] * 3
        for path in paths:
            assert (path / "meta.properties").exists() and len(list(path.glob("t-*"))) == 3
        for clean in (True, False):
            broker.restart(clean=clean)
            assert described(broker) == before
        with Wire(broker.port) as wire:
            assert [wire.offset("t", LATEST, index) for index in range(9)] == [1] * 9
            # Each partition has one record of the same size.
            sizes = {size for _, found in before.values() for size in found.values()}
            assert len(sizes) == 1 and sizes.pop() > len(VALUE)


def test_a_failed_directory_affects_only_its_own_partitions(tmp_path):
    paths = [tmp_path / name for name in ("one", "two")]
    properties = {**QUICK, "log.dirs": ",".join(map(str, paths))}
    with OdradekBroker(properties, directory=tmp_path / "broker") as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t", partitions=4)
        assert partition_codes(broker, "t", 4) == [0] * 4
        lost = sorted(int(path.name.rpartition("-")[2]) for path in paths[1].glob("t-*"))
        assert len(lost) == 2
        broker.stop()
        shutil.move(paths[1], tmp_path / "aside")
        paths[1].write_text("not a directory")
        broker.start()
        assert [code for code, _ in described(broker).values()] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        codes = partition_codes(broker, "t", 4)
        assert [index for index, code in enumerate(codes) if code != 0] == lost
        assert {codes[index] for index in lost} == {ErrorCode.KAFKA_STORAGE_ERROR}
        with Wire(broker.port) as wire:
            [topic] = wire.metadata("t").topics
            assert [
                (row.partition_index, row.error_code, row.leader_id)
                for row in topic.partitions
                if row.offline_replicas == [1]
            ] == [(index, ErrorCode.LEADER_NOT_AVAILABLE, -1) for index in lost]
            assert all(wire.fetch("t", 0, index).error_code == codes[index] for index in range(4))
            wire.create_topic("new", partitions=2)
        assert partition_codes(broker, "new", 2) == [0, 0]
        broker.stop()
        paths[1].unlink()
        shutil.move(tmp_path / "aside", paths[1])
        broker.start()
        assert partition_codes(broker, "t", 4) == [0] * 4
        with Wire(broker.port) as wire:
            assert [wire.offset("t", LATEST, index) for index in range(4)] == [
                2 if index in lost else 3 for index in range(4)
            ]


def test_a_directory_added_later_gets_the_new_partitions(tmp_path):
    paths = [tmp_path / name for name in ("one", "two")]
    with OdradekBroker({**QUICK, "log.dirs": str(paths[0])}, directory=tmp_path / "broker") as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("old", partitions=3)
        broker.stop()
        broker.properties["log.dirs"] = ",".join(map(str, paths))
        broker.start()
        with Wire(broker.port) as wire:
            wire.create_topic("new", partitions=3)
        found = described(broker)
        assert [{name for name, _ in found[str(path)][1]} for path in paths] == [{"old"}, {"new"}]
        assert (paths[1] / "meta.properties").exists()
