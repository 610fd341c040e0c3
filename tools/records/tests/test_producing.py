"""Errors of single lines, and a full queue, with a producer that fails as told."""

from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from odradek.tools.records import producing
from odradek.tools.records.input import BadLine, NewRecord


class FakeProducer:
    """Refuses `full` calls because the queue is full, values in `refused` at once, those in `failing` by a report."""

    full = 0
    made: ClassVar[list["FakeProducer"]] = []
    refused = frozenset({b"large"})
    failing = frozenset({b"lost"})

    def __init__(self, settings):
        self.sent: list[bytes | None] = []
        self.reports = []
        FakeProducer.made.append(self)

    def produce(self, topic, value=None, key=None, partition=-1, on_delivery=None, **options):
        if FakeProducer.full:
            FakeProducer.full -= 1
            raise BufferError
        if value in self.refused:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.sent.append(value)
        if value in self.failing:
            self.reports.append((on_delivery, Message(value=value, key=key)))

    def poll(self, timeout):
        for report, message in self.reports:
            report(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION), message)
        self.reports = []
        return 0

    flush = poll


@pytest.fixture
def errors(monkeypatch):
    monkeypatch.setattr(producing, "Producer", FakeProducer)
    monkeypatch.setattr(FakeProducer, "full", 0)
    return []


def test_errors_name_their_lines(errors):
    producer = producing.RecordProducer({}, "t", errors.append)
    producer.send_values([[b"1", b"large", b"lost", b"4"], [b"lost", b"6", b"lost"]], lambda size_bytes: None)
    producer.finish()
    assert [error.split(":")[:2] for error in errors] == [
        ["line 2", " MSG_SIZE_TOO_LARGE"],
        ["line 3", " NOT_LEADER_FOR_PARTITION"],
        ["line 5", " NOT_LEADER_FOR_PARTITION"],
        ["line 7", " NOT_LEADER_FOR_PARTITION"],
    ]
    assert (producer.produced, producer.failed) == (3, 4)


def test_errors_name_their_sources(errors):
    producer = producing.RecordProducer({}, "t", errors.append)
    producer.send(
        [NewRecord("a: line 1", None, b"lost"), BadLine("a: line 2", "bad"), NewRecord("b: line 1", b"k", b"1")]
    )
    producer.finish()
    assert sorted(error.split(":")[2] for error in errors) == [" NOT_LEADER_FOR_PARTITION", " bad"]
    assert (producer.produced, producer.failed) == (1, 2)


def test_a_full_queue_loses_nothing(errors, monkeypatch):
    producer = producing.RecordProducer({}, "t", errors.append)
    for send in (
        lambda: producer.send_values([[b"1", b"2"]], lambda size_bytes: None),
        lambda: producer.send([NewRecord("line 1", None, b"3")]),
    ):
        monkeypatch.setattr(FakeProducer, "full", 3)
        send()
    assert FakeProducer.made[-1].sent == [b"1", b"2", b"3"] and errors == []


def test_a_record_that_is_refused_after_the_queue_was_full(errors, monkeypatch):
    producer = producing.RecordProducer({}, "t", errors.append)
    monkeypatch.setattr(FakeProducer, "full", 1)
    producer.send_values([[b"large", b"2"]], lambda size_bytes: None)
    monkeypatch.setattr(FakeProducer, "full", 1)
    producer.send([NewRecord("line 3", None, b"large")])
    assert [error.split(":")[0] for error in errors] == ["line 1", "line 3"]
    assert (producer.produced, producer.failed) == (1, 2)
