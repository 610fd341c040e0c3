"""Transactions against a broker: written once, whatever attempts there are, and in whatever order they act."""

import dataclasses
import itertools
import threading
import time
import weakref

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.spark_it.exactly_once.slots import BatchTransaction, MarkerError, OffsetTransaction, TransactionalSlot
from odradek.spark_it.exactly_once.transactions import (
    Clients,
    FencedError,
    TopicRecords,
    renew_marker,
    write_transaction,
)
from odradek.spark_it.interfaces.marker import BatchMarker, make_marker_number
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka.cluster import KafkaCluster
from spark_it.tests.records import messages, values
from spark_it.tests.unit.support import SOURCE, TOPIC, pipeline

GENERATION = 29_000_000
MARKERS = "markers"


class Bench:
    """A source, a target, and a group of their own on a broker."""

    def __init__(self, broker, topics, name):
        self.servers = broker.bootstrap_servers
        self.name = name
        self.source = topics.create(f"{name}-source", 2)
        self.target = topics.create(f"{name}-target", 2)
        self.dead = topics.create(f"{name}-dead")
        self.markers = topics.create(f"{name}-markers", 2)
        self.clients = Clients(self.servers)

    def offset_transaction(self, start, end, *, batch=0, partition=0, is_first=True, generation=GENERATION):
        return OffsetTransaction(
            slot=TransactionalSlot(f"{self.name}:{self.source}-{partition}", self.name, self.source, partition),
            end=end,
            generation=generation,
            batch=batch,
            is_first=is_first,
            resets="reset --to committed helps",
            start=start,
        )

    def batch_transaction(self, batch, *, part=0, is_first=None, generation=GENERATION):
        return BatchTransaction(
            slot=TransactionalSlot(f"{self.name}:p{part}", f"{self.name}:batches", self.markers, part),
            end=make_marker_number(generation, batch),
            generation=generation,
            batch=batch,
            is_first=batch == 0 if is_first is None else is_first,
            resets="reset --to earliest helps",
        )

    def transaction(self, kind, batch=0):
        """The transaction of a batch, of one kind."""
        if kind == "offsets":
            return self.offset_transaction(100 * batch, 100 * (batch + 1), batch=batch, is_first=batch == 0)
        return self.batch_transaction(batch)

    def records(self, *numbers, headers=None):
        texts = [str(number).encode() for number in numbers]
        return TopicRecords(self.target, texts, [b"row " + text for text in texts], headers)

    def written(self, **options):
        return values(self.servers, self.target, **options)

    def marker(self, transaction):
        consumer = self.clients.make_consumer(transaction.slot.group)
        try:
            [found] = consumer.committed([TopicPartition(transaction.slot.topic, transaction.slot.partition)], 30)
        finally:
            consumer.close()
        return None if found.offset < 0 else BatchMarker.read(found.offset, found.metadata)

    def cluster(self):
        return KafkaCluster(pipeline(f'bootstrap.servers = "{self.servers}"\n' + SOURCE + TOPIC).settings)


@pytest.fixture
def bench(broker, topics, unique):
    return Bench(broker, topics, unique)


def rows(*numbers):
    return sorted(b"row %d" % number for number in numbers)


KINDS = pytest.mark.parametrize("kind", ["offsets", "batches"])


@KINDS
@pytest.mark.side_by_side
def test_a_transaction_is_written_with_its_marker_and_only_once(bench, kind):
    transaction = bench.transaction(kind)
    headers = [[("a", b"1"), ("a", None)], None]
    dead = TopicRecords(bench.dead, [None], [b"not good"], [[("why", b"bad")]], is_dead=True)
    given = [bench.records(1, 2, headers=headers), dead, bench.records(3)]
    assert write_transaction(transaction, given, bench.clients) == (3, 1, True)
    assert bench.marker(transaction)[:3] == (transaction.end, GENERATION, 0)
    assert write_transaction(transaction, given, bench.clients) == (3, 1, False)
    assert bench.written() == rows(1, 2, 3)
    assert {message.key(): message.headers() for message in messages(bench.servers, bench.target)} == {
        b"1": [("a", b"1"), ("a", None)],
        b"2": None,
        b"3": None,
    }
    [dead] = messages(bench.servers, bench.dead)
    assert (dead.key(), dead.value(), dead.headers()) == (None, b"not good", [("why", b"bad")])
    following = bench.transaction(kind, batch=1)
    assert write_transaction(following, [bench.records(4)], bench.clients) == (1, 0, True)
    assert write_transaction(following, [bench.records(4)], bench.clients) == (1, 0, False)
    assert bench.written() == rows(1, 2, 3, 4)
    assert bench.marker(following)[:3] == (following.end, GENERATION, 1)


class Watching(Clients):
    """Clients that call `producing` or `reading` with the name of each method before a producer or consumer runs it."""

    def make_producer(self, transactional_id):
        return _Watched(super().make_producer(transactional_id), type(self).producing)

    def make_consumer(self, group, *, is_stable=True):
        return _Watched(super().make_consumer(group, is_stable=is_stable), type(self).reading)

    @staticmethod
    def producing(name):
        """Overridden."""

    @staticmethod
    def reading(name):
        """Overridden."""


class _Watched:
    def __init__(self, inner, before):
        self._inner, self._before = inner, before

    def __getattr__(self, name):
        self._before(name)
        return getattr(self._inner, name)


@KINDS
@pytest.mark.side_by_side
def test_an_attempt_that_wakes_late_is_refused(bench, kind):
    transaction = bench.transaction(kind)
    has_written, may_go_on = threading.Event(), threading.Event()
    said = []

    class Sleeping(Watching):
        @staticmethod
        def producing(name):
            if name == "commit_transaction":
                has_written.set()
                assert may_go_on.wait(60)

    def late():
        try:
            write_transaction(transaction, [bench.records(*range(100))], Sleeping(bench.servers))
        except SinkError as error:
            said.append(error)

    zombie = threading.Thread(target=late)
    zombie.start()
    assert has_written.wait(60)
    assert write_transaction(transaction, [bench.records(*range(100))], bench.clients).is_new
    following = bench.transaction(kind, batch=1)
    assert write_transaction(following, [bench.records(100)], bench.clients).is_new
    may_go_on.set()
    zombie.join(60)
    [error] = said
    assert isinstance(error, FencedError) and not error.is_retriable
    assert "a later attempt has fenced it" in str(error)
    assert bench.written() == rows(*range(101))
    assert bench.marker(transaction).offset == following.end


@pytest.mark.side_by_side
def test_fencing_comes_before_the_marker_is_read(bench):
    """Between reading and fencing another attempt could commit."""
    asked = []

    class Watched(Watching):
        producing = reading = staticmethod(asked.append)

    assert write_transaction(bench.transaction("offsets"), [bench.records(1)], Watched(bench.servers)).is_new
    steps = [name for name, _ in itertools.groupby(asked)]
    assert steps == [
        "list_topics",
        "init_transactions",
        "committed",
        "begin_transaction",
        "consumer_group_metadata",
        "send_offsets_to_transaction",
        "produce",
        "commit_transaction",
        "close",
    ]


def test_records_are_made_while_the_transaction_begins(bench):
    """Records that are made before the marker is read are not lost."""
    has_begun, are_made = threading.Event(), threading.Event()

    class Slow(Watching):
        @staticmethod
        def producing(name):
            if name == "init_transactions":
                has_begun.set()
                assert are_made.wait(60)

    def made():
        assert has_begun.wait(60)
        yield from (bench.records(n) for n in range(5))
        are_made.set()
        yield bench.records(5)

    transaction = bench.transaction("offsets")
    for is_new in (True, False):
        has_begun.clear()
        are_made.clear()
        assert write_transaction(transaction, made(), Slow(bench.servers)) == (6, 0, is_new)
    assert bench.written() == rows(*range(6))


@KINDS
def test_rows_that_cannot_be_made_leave_nothing(bench, kind):
    transaction = bench.transaction(kind)

    def broken():
        yield bench.records(1, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_transaction(transaction, broken(), bench.clients)
    assert bench.marker(transaction) is None
    # Were the transaction open, a reader of committed records would wait for it.
    assert bench.written() == []
    assert write_transaction(transaction, [bench.records(1, 2)], bench.clients).is_new
    assert bench.written() == rows(1, 2)
    assert len(bench.written(isolation_level="read_uncommitted")) in (2, 4)


def test_more_records_than_the_queue_holds(bench):
    small = Clients(bench.servers, {"queue.buffering.max.messages": "100", "linger.ms": "1"})
    numbers = range(1000)
    transaction = bench.transaction("offsets")
    headers = [[("n", b"1")]] * 1000
    given = [bench.records(*numbers), bench.records(*numbers, headers=headers)]
    assert write_transaction(transaction, given, small) == (2000, 0, True)
    assert bench.written() == sorted([*rows(*numbers), *rows(*numbers)])


def test_a_transaction_without_records_moves_its_marker(bench):
    transaction = bench.offset_transaction(0, 7)
    assert write_transaction(transaction, [], bench.clients) == (0, 0, True)
    assert bench.marker(transaction).offset == 7
    assert bench.cluster().fetch_committed(bench.name, [(bench.source, 0)]) == {(bench.source, 0): 7}


@KINDS
def test_a_missing_marker(bench, kind):
    transaction = bench.transaction(kind, batch=1)
    with pytest.raises(MarkerError, match=r"is gone, expired or deleted.*; reset --to \w+ helps") as refused:
        write_transaction(transaction, [bench.records(1)], bench.clients)
    assert not refused.value.is_retriable
    assert bench.written(isolation_level="read_uncommitted") == []


def test_a_producer_ends_with_its_attempt_even_if_the_error_is_kept(bench):
    """A producer has threads, and a connection that it opens again and again."""
    made = []

    class Noted(Clients):
        def make_producer(self, transactional_id):
            producer = _Watched(super().make_producer(transactional_id), lambda _: None)
            made.append(weakref.ref(producer))
            return producer

    with pytest.raises(MarkerError) as _:
        write_transaction(bench.transaction("offsets", batch=1), [bench.records(1)], Noted(bench.servers))
    [producer] = made
    assert producer() is None


def test_a_checkpoint_that_is_older_than_what_is_written(bench):
    for batch in range(3):
        transaction = bench.offset_transaction(100 * batch, 100 * batch + 100, batch=batch, is_first=False)
        transaction = transaction if batch else bench.offset_transaction(0, 100)
        assert write_transaction(transaction, [bench.records(batch)], bench.clients).is_new
    again = bench.offset_transaction(100, 250, batch=1, is_first=False)
    assert write_transaction(again, [bench.records(7)], bench.clients) == (1, 0, False)
    straddling = bench.offset_transaction(250, 400, batch=2, is_first=False)
    with pytest.raises(MarkerError, match=r"is 300, but batch 2 has offsets 250 to 400: the checkpoint is older.*"):
        write_transaction(straddling, [bench.records(8)], bench.clients)
    assert bench.written() == rows(0, 1, 2)


@pytest.mark.parametrize("moved_to", [50, 100, 150, 300])
def test_an_offset_that_another_program_has_moved(bench, moved_to):
    """An offset that is not the start of the batch does not show that anything is written."""
    assert write_transaction(bench.offset_transaction(0, 100), [bench.records(0)], bench.clients).is_new
    bench.cluster().commit(bench.name, {(bench.source, 0): moved_to})
    transaction = bench.offset_transaction(100, 200, batch=1, is_first=False)
    if moved_to == 100:
        assert write_transaction(transaction, [bench.records(1)], bench.clients).is_new
        return
    with pytest.raises(MarkerError, match=f"is {moved_to}, but batch 1 has offsets 100 to 200: another program"):
        write_transaction(transaction, [bench.records(1)], bench.clients)
    assert bench.written() == rows(0)


def test_records_of_an_earlier_generation_do_not_count_as_written(bench):
    assert write_transaction(bench.offset_transaction(0, 500), [bench.records(0)], bench.clients).is_new
    reset = bench.offset_transaction(0, 300, generation=GENERATION + 1)
    with pytest.raises(MarkerError, match="an earlier state of the pipeline"):
        write_transaction(reset, [bench.records(0)], bench.clients)
    bench.cluster().commit(bench.name, {(bench.source, 0): 0})
    assert write_transaction(reset, [bench.records(0)], bench.clients).is_new
    assert bench.written() == rows(0, 0)


def test_batches_of_other_generations(bench):
    for batch in (0, 1):
        assert write_transaction(bench.batch_transaction(batch), [bench.records(batch)], bench.clients).is_new
    with pytest.raises(MarkerError, match="belongs to a later batch: the checkpoint is older"):
        write_transaction(bench.batch_transaction(0), [bench.records(0)], bench.clients)
    later = GENERATION + 1
    with pytest.raises(MarkerError, match="is gone"):
        write_transaction(bench.batch_transaction(1, generation=later), [bench.records(3)], bench.clients)
    assert write_transaction(bench.batch_transaction(0, generation=later), [bench.records(2)], bench.clients).is_new
    with pytest.raises(MarkerError, match="belongs to a later batch"):
        write_transaction(bench.batch_transaction(2), [bench.records(3)], bench.clients)
    assert bench.written() == rows(0, 1, 2)


@KINDS
def test_a_renewed_marker_has_the_same_content(bench, kind):
    transaction = bench.transaction(kind)
    renew_marker(transaction.slot, bench.clients)
    assert bench.marker(transaction) is None
    write_transaction(transaction, [bench.records(1)], bench.clients)
    before = bench.marker(transaction)
    renew_marker(transaction.slot, bench.clients)
    after = bench.marker(transaction)
    assert after[:3] == before[:3] and after.at_ms > before.at_ms
    assert not write_transaction(transaction, [bench.records(1)], bench.clients).is_new
    bench.cluster().commit(
        transaction.slot.group, {(transaction.slot.topic, transaction.slot.partition): transaction.end}
    )
    renew_marker(transaction.slot, bench.clients)
    after = bench.marker(transaction)
    assert after[:3] == (transaction.end, None, None) and after.at_ms > before.at_ms


def test_a_renewal_does_not_overwrite_a_later_marker(bench):
    first, second = bench.offset_transaction(0, 100), bench.offset_transaction(100, 200, batch=1)
    write_transaction(first, [bench.records(1)], bench.clients)

    class Late(Watching):
        """Clients that write the next batch between the read of the marker and its commit."""

        @staticmethod
        def reading(name):
            if name == "consumer_group_metadata":
                write_transaction(second, [bench.records(2)], bench.clients)

    with pytest.raises(FencedError):
        renew_marker(first.slot, Late(bench.servers))
    assert bench.marker(first).offset == 200


@pytest.mark.parametrize("metadata", ["", "x", "1:2:3", "1:2:3:4:5", "1:-2:3:", None, "a:b:c:d"])
def test_metadata_of_other_programs(metadata):
    assert BatchMarker.read(5, metadata) == BatchMarker(5)


@pytest.mark.parametrize(
    "said", [BatchMarker(5, 1, 2, 3, "0a"), BatchMarker(5, 1, 2, 3), BatchMarker(5, None, None, 3), BatchMarker(5)]
)
def test_metadata(said):
    assert BatchMarker.read(5, said.metadata) == said


@pytest.mark.side_by_side
def test_a_member_of_the_group_has_no_effect(bench):
    """For example a console make_consumer with the pipeline's group."""
    member = bench.clients.make_consumer(bench.name)
    try:
        member.subscribe([bench.target])
        while not member.assignment():
            member.poll(0.1)
        assert write_transaction(bench.offset_transaction(0, 100), [bench.records(1)], bench.clients).is_new
        assert not write_transaction(bench.offset_transaction(0, 100), [bench.records(1)], bench.clients).is_new
    finally:
        member.close()
    assert bench.written() == rows(1)


@pytest.mark.side_by_side
def test_a_transaction_that_takes_too_long(bench):
    transaction = bench.transaction("offsets")

    class Sleeping(Watching):
        """Clients that commit after the broker has ended the transaction, with a marker after its only record."""

        @staticmethod
        def producing(name):
            if name != "commit_transaction":
                return
            give_up_at = time.monotonic() + 90
            reader = bench.clients.make_consumer("reader")
            try:
                ends = 0
                while ends < 2:
                    assert time.monotonic() < give_up_at
                    places = [TopicPartition(bench.target, part) for part in (0, 1)]
                    ends = sum(reader.get_watermark_offsets(place, 10)[1] for place in places)
            finally:
                reader.close()

    # Longer than a busy machine takes to write the record.
    hasty = Sleeping(bench.servers, {"transaction.timeout.ms": "4000", "message.timeout.ms": "4000"})
    with pytest.raises(
        FencedError, match=r"or it took longer than transaction\.timeout\.ms .*; check that .*, or increase"
    ):
        write_transaction(transaction, [bench.records(1)], hasty)
    assert bench.written() == []
    assert write_transaction(transaction, [bench.records(1, 2)], bench.clients).is_new
    assert bench.written() == rows(1, 2)


def test_a_broker_that_is_down(bench):
    nobody = Clients("127.0.0.1:1", timeout_s=0.5)
    with pytest.raises(SinkError, match=r"cannot write .* at 127\.0\.0\.1:1: ") as failed:
        write_transaction(bench.transaction("offsets"), [], nobody)
    assert failed.value.is_retriable and not isinstance(failed.value, FencedError)


@pytest.mark.side_by_side
def test_a_deleted_source_topic_is_not_created_again(bench):
    transaction = bench.offset_transaction(0, 10)
    gone = dataclasses.replace(transaction, slot=transaction.slot._replace(topic=f"{bench.name}-gone"))
    with pytest.raises(SinkError):
        write_transaction(gone, [], dataclasses.replace(bench.clients, timeout_s=3))
    assert f"{bench.name}-gone" not in AdminClient({"bootstrap.servers": bench.servers}).list_topics(timeout=30).topics


def test_a_missing_topic_is_a_retriable_error(bench):
    clients = Clients(bench.servers, {"message.timeout.ms": "2000", "allow.auto.create.topics": "false"})
    transaction = bench.transaction("offsets")
    gone = TopicRecords("no-such-topic." + bench.name, [None], [b"x"])
    with pytest.raises(SinkError, match="cannot write") as failed:
        write_transaction(transaction, [gone], clients)
    assert failed.value.is_retriable
    assert bench.marker(transaction) is None
    assert write_transaction(transaction, [bench.records(1)], bench.clients).is_new


def test_a_record_that_is_too_large_is_a_permanent_error(bench):
    transaction = bench.transaction("offsets")
    with pytest.raises(SinkError, match="too large") as failed:
        write_transaction(
            transaction, [bench.records(1), TopicRecords(bench.target, [None], [bytes(2_000_000)])], bench.clients
        )
    assert not failed.value.is_retriable
    assert bench.written() == []


def test_a_transaction_timeout_that_is_shorter_than_the_delivery_timeout(bench):
    short = Clients(bench.servers, {"transaction.timeout.ms": "10000"})
    assert write_transaction(bench.transaction("offsets"), [bench.records(1)], short).is_new


def test_settings_that_librdkafka_refuses(bench):
    with pytest.raises(SinkError, match=r"invalid producer\.override or admin\.override: .*no\.such") as failed:
        write_transaction(bench.transaction("offsets"), [], Clients(bench.servers, {"no.such.thing": "1"}))
    assert not failed.value.is_retriable
