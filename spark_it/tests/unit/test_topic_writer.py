"""Retries and transaction timeouts of the topic sink, without Spark."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.exactly_once.transactions import Clients, FencedError, SinkTransactionOutcome
from odradek.spark_it.interfaces.sink import SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.sinks.topic import TopicWriter
from spark_it.tests.unit.support import SOURCE, TOPIC, UNUSED, pipeline


@pytest.fixture
def writer(monkeypatch):
    def made(more="", *, overtaken):
        one = TopicWriter(pipeline(more + SOURCE + TOPIC), TransactionKind.OFFSETS, UNUSED)
        left, given = [FencedError("overtaken")] * overtaken, []

        def write(*_):
            given.append(one._clients.producer_configuration.get("transaction.timeout.ms"))
            if left:
                raise left.pop()
            return {0: SinkTransactionOutcome(5, 0, is_new=True)}

        monkeypatch.setattr(one, "_records", lambda rows: rows)
        monkeypatch.setattr(one._markers, "make_transactions", lambda batch: ["transaction"])
        monkeypatch.setattr(one, "_write_ranges", write)
        return one, given

    return made


@pytest.mark.parametrize(
    ("code", "said", "may_pass"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "topic out does not exist", False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "cannot write topic out: ", False),
        (KafkaError.LEADER_NOT_AVAILABLE, "cannot write topic out: ", True),
    ],
)
def test_a_topic_that_cannot_be_written(monkeypatch, code, said, may_pass):
    class Consumer:
        def list_topics(self, *_):
            return SimpleNamespace(topics={"out": SimpleNamespace(error=KafkaError(code))})

        def close(self):
            pass

    monkeypatch.setattr(Clients, "make_consumer", lambda *_: Consumer())
    one = TopicWriter(pipeline(SOURCE + TOPIC), TransactionKind.OFFSETS, UNUSED)
    with pytest.raises(SinkError) as failed:
        one._check_topics()
    assert str(failed.value).startswith(said) and failed.value.is_retriable == may_pass


def test_the_transaction_timeout_grows_with_each_overtaken_attempt(writer):
    one, given = writer(overtaken=2)
    for _ in range(2):
        with pytest.raises(SinkError, match="overtaken") as failed:
            one.write(UNUSED, None, SinkBatch(0, 1, UNUSED))
        assert failed.value.is_retriable
    for batch in range(2):
        assert one.write(UNUSED, None, SinkBatch(batch, 1, UNUSED)) == WrittenCounts(5)
    assert given == [None, "300000", "900000", "900000"]


def test_an_attempt_that_is_overtaken_repeatedly_is_not_retried(writer):
    one, given = writer('producer.override."transaction.timeout.ms" = 70000\n', overtaken=9)
    retriable = []
    for _ in range(3):
        with pytest.raises(SinkError) as failed:
            one.write(UNUSED, None, SinkBatch(0, 1, UNUSED))
        retriable.append(failed.value.is_retriable)
    assert retriable == [True, True, False] and given == ["70000"] * 3
