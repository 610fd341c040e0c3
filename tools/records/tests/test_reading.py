"""Readers with a consumer that returns given batches: ends of ranges, errors, sizes of batches, no broker."""

from collections import deque
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.records.positions import Range
from odradek.tools.records.reading import MOST_RECORDS, Availability, GroupReader, PartitionReader


class FakeConsumer:
    """Returns the batches in `batches`, then empty ones."""

    def __init__(self, settings):
        self.settings = settings
        self.batches: deque[list[Message]] = deque()
        self.counts: list[int] = []
        self.paused: list[tuple[str, int]] = []
        self.stored: dict[tuple[str, int], int] = {}
        self.assigned: dict[tuple[str, int], int] = {}
        self.callbacks: dict[str, Any] = {}
        self.is_closed = False

    def close(self):
        self.is_closed = True

    def assign(self, partitions):
        self.assigned = {(one.topic, one.partition): one.offset for one in partitions}

    def subscribe(self, topics, **callbacks):
        self.callbacks = callbacks

    def consume(self, count, timeout):
        self.counts.append(count)
        return self.batches.popleft() if self.batches else []

    def pause(self, partitions):
        self.paused += [(one.topic, one.partition) for one in partitions]

    def store_offsets(self, offsets):
        self.stored |= {(one.topic, one.partition): one.offset for one in offsets}


def make(reader_type, *arguments, now=lambda: 0.0, **options):
    made: list[FakeConsumer] = []

    def make_consumer(settings):
        made.append(FakeConsumer(settings))
        return made[0]

    availability = options.pop("availability", Availability(lambda: None, pytest.fail))
    reader = reader_type({}, *arguments, availability, monotonic=now, make_consumer=make_consumer, **options)
    return reader, made[0]


def record(offset, partition=0):
    return Message(topic="t", partition=partition, offset=offset, value=b"%d" % offset)


def end(partition=0, code=KafkaError._PARTITION_EOF, offset=0):
    return Message(topic="t", partition=partition, offset=offset, value=b"an error", error=KafkaError(code))


def offsets(messages):
    return [(one.partition(), one.offset()) for one in messages]


def test_records_after_the_end_are_left_out():
    reader, consumer = make(PartitionReader, {("t", 0): Range(3, 6)}, is_endless=False)
    assert consumer.assigned == {("t", 0): 3}
    consumer.batches += [[record(3)], [record(4), record(5), record(6)], [record(7)]]
    assert offsets(reader.read()) == [(0, 3)]
    assert offsets(reader.read()) == [(0, 4), (0, 5)]
    assert consumer.paused == [("t", 0)]
    assert reader.read() is None


def test_each_partition_has_its_end():
    ranges = {("t", 0): Range(0, 2), ("t", 1): Range(5, 8), ("t", 2): Range(4, 4)}
    reader, consumer = make(PartitionReader, ranges, is_endless=False)
    assert consumer.assigned == {("t", 0): 0, ("t", 1): 5}
    consumer.batches += [
        [record(0), record(5, 1), record(1), record(2)],
        [record(3), record(6, 1)],
        [],
        # The last record was removed by compaction.
        [end(1)],
    ]
    assert offsets(reader.read()) == [(0, 0), (1, 5), (0, 1)]
    assert offsets(reader.read()) == [(1, 6)]
    assert offsets(reader.read()) == []
    assert offsets(reader.read()) == []
    assert reader.read() is None


def test_an_endless_reader_has_no_end():
    reader, consumer = make(PartitionReader, {("t", 0): Range(3, 3)}, is_endless=True)
    assert consumer.settings["enable.partition.eof"] is False
    consumer.batches += [[record(3), record(4)]]
    assert offsets(reader.read()) == [(0, 3), (0, 4)]
    assert reader.read() == []


def test_an_error_has_its_partition():
    reader, consumer = make(PartitionReader, {("t", 0): Range(0, 3)}, is_endless=False)
    consumer.batches += [[end(code=KafkaError.TOPIC_AUTHORIZATION_FAILED)]]
    with pytest.raises(RequestError, match=r"^t-0: TOPIC_AUTHORIZATION_FAILED: ") as caught:
        reader.read()
    assert caught.value.code == "TOPIC_AUTHORIZATION_FAILED"


class Probe:
    """A cluster that answers while `is_up`, and the warnings of a reader."""

    def __init__(self):
        self.is_up = True
        self.count = 0
        self.warnings: list[str] = []
        self.availability = Availability(self._probe, self.warnings.append)

    def _probe(self):
        self.count += 1
        if not self.is_up:
            raise NoResponseError("a:1 does not answer")


def make_with_probe(*, is_endless):
    times, probe = [0.0], Probe()
    options = {"is_endless": is_endless, "availability": probe.availability}
    reader, consumer = make(PartitionReader, {("t", 0): Range(0, 9)}, now=lambda: times[0], **options)
    note = partial(consumer.settings["error_cb"], KafkaError(KafkaError._ALL_BROKERS_DOWN))
    return reader, consumer, note, times, probe


def test_brokers_that_are_down_end_the_command():
    """librdkafka reports the outage once, while it has further records in its queue."""
    reader, consumer, note, times, probe = make_with_probe(is_endless=False)
    note()
    consumer.batches += [[record(0)]]
    assert reader.read() and reader.read() == []
    times[0] = 31.0
    assert reader.read() == [] and probe.count == 1
    probe.is_up = False
    assert reader.read() == []
    times[0] = 60.0
    assert reader.read() == [] and probe.count == 1
    times[0] = 62.0
    with pytest.raises(NoResponseError, match="a:1 does not answer"):
        reader.read()


def test_an_idle_topic_is_no_outage():
    reader, _, _, times, probe = make_with_probe(is_endless=False)
    for times[0] in (0.0, 40.0, 80.0):
        assert reader.read() == []
    assert probe.count == 0


def test_an_endless_reader_warns_of_each_outage():
    reader, consumer, note, times, probe = make_with_probe(is_endless=True)
    probe.is_up = False
    note()
    for times[0] in (0.0, 1.0, 3.0, 6.0, 9.0):
        assert reader.read() == []
    note()
    for times[0] in (10.0, 13.0):
        assert reader.read() == []
    assert probe.count == 2
    assert probe.warnings == ["a:1 does not answer; reading continues when a broker answers"]
    consumer.batches += [[record(0)]]
    assert reader.read() and reader.read() == []
    note()
    for times[0] in (14.0, 17.0):
        assert reader.read() == []
    assert len(probe.warnings) == 2


@pytest.mark.parametrize("is_up", [False, True])
def test_a_member_leaves_its_group_only_if_a_broker_answers(is_up):
    probe = Probe()
    probe.is_up = is_up
    options = {"is_endless": True, "commits": True, "availability": probe.availability}
    reader, consumer = make(GroupReader, ["t"], **options)
    consumer.settings["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    reader.close()
    assert consumer.is_closed is is_up
    expected = [] if is_up else ["a:1 does not answer; the last offsets may not be committed"]
    assert probe.warnings == expected


def test_an_interrupt_that_the_client_loses():
    reader, consumer = make(PartitionReader, {("t", 0): Range(0, 9)}, is_endless=True)

    def consume(count, timeout):
        raise SystemError("<method 'consume' of 'cimpl.Consumer' objects> returned NULL without setting an exception")

    consumer.consume = consume
    with pytest.raises(KeyboardInterrupt):
        reader.read()


def test_batches_become_larger_unless_records_are_large():
    reader, consumer = make(PartitionReader, {("t", 0): Range(0, 9)}, is_endless=False)
    for size_bytes in (100, 100, 100, 100, 5 << 20, 4 << 20):
        reader.read()
        reader.adapt(1, size_bytes)
    reader.adapt(0, 0)
    reader.read()
    assert consumer.counts == [16, 64, 256, MOST_RECORDS, MOST_RECORDS, 1, 2]


def test_a_member_of_a_group_stops_at_the_ends_of_its_partitions():
    reader, consumer = make(GroupReader, ["t"], is_endless=False, commits=True)
    assert reader.read() == []
    consumer.callbacks["on_assign"](consumer, [TopicPartition("t", 0), TopicPartition("t", 1)])
    consumer.batches += [[record(3), record(7, 1), record(4), end(0)]]
    messages = reader.read()
    assert offsets(messages) == [(0, 3), (1, 7), (0, 4)]
    reader.processed(messages[:2])
    assert consumer.stored == {("t", 0): 4, ("t", 1): 8}
    assert reader.read() == []
    consumer.callbacks["on_revoke"](consumer, [TopicPartition("t", 1)])
    assert reader.read() is None


@pytest.mark.parametrize(
    ("read", "written", "stored"),
    [
        ([end(offset=6)], 0, {("t", 0): 6}),
        ([record(3), end(offset=6), record(7, 1)], 2, {("t", 0): 6, ("t", 1): 8}),
        ([record(3), record(4), end(offset=6)], 1, {("t", 0): 4}),
    ],
)
def test_a_member_commits_the_end_after_the_last_marker(read, written, stored):
    """The markers and the aborted records before the end remained as its lag."""
    reader, consumer = make(GroupReader, ["t"], is_endless=True, commits=True)
    consumer.batches += [read]
    reader.processed(reader.read()[:written])
    assert consumer.stored == stored


def test_a_member_that_must_not_commit_stores_no_offsets():
    reader, consumer = make(GroupReader, ["t"], is_endless=True, commits=False)
    assert consumer.settings["enable.auto.commit"] is False
    reader.processed([record(1)])
    assert consumer.stored == {}
