"""Transactions in partitions: allowed writes, reads, and the effect of markers."""

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.producer import ProduceResponse

from compat_tests.bad_frames import CONTROL, TRANSACTIONAL, Connection, batch, produce_request
from compat_tests.plain_requests import ask_for_coordinator
from compat_tests.transaction_frames import (
    EARLIEST,
    LARGEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Batch,
    Code,
    Partition,
    Producer,
    add_offsets,
    add_partitions,
    await_coordinator,
    await_topic,
    batches,
    delete_records,
    describe,
    describe_producers,
    end,
    fetch,
    finish,
    init,
    offset_at,
    produce,
    records_of,
    retry_until_ready,
    start,
    write,
    write_markers,
)

pytestmark = pytest.mark.side_by_side

NOTHING = -1
ABORT, COMMIT = 0, 1

_numbers = itertools.count()


@pytest.fixture(scope="module")
def topic_names(broker: Any) -> Iterator[Any]:
    """Create topics that are ready for use; one admin client for all of them."""
    from compat_tests.clients import load

    with load("kafka_python").Admin(broker.bootstrap_servers) as admin, Connection(broker.port) as connection:
        await_coordinator(connection)

        def make() -> str:
            name = f"transactions-log-{next(_numbers)}"
            admin.create_topic(name, 2)
            await_topic(connection, name, 2)
            return name

        yield make


@pytest.fixture
def connection(broker: Any) -> Iterator[Connection]:
    with Connection(broker.port) as made:
        yield made


@pytest.fixture
def here(topic_names: Any) -> Partition:
    """The first of a fresh topic's two partitions."""
    return topic_names(), 0


@pytest.fixture
def name() -> str:
    """A transactional id for one test."""
    return f"log-{next(_numbers)}-{uuid.uuid4().hex[:6]}"


NOBODY = Producer("", -1, -1)


def other(partition: Partition) -> Partition:
    return partition[0], 1 - partition[1]


def begin(connection: Connection, name: str, partition: Partition) -> Producer:
    """Return a producer with a transaction that contains the partition."""
    producer = start(connection, name)
    assert add_partitions(connection, producer, [partition])[partition] == Code.NONE
    return producer


def log(connection: Connection, partition: Partition) -> list[Batch]:
    return batches(fetch(connection, partition, isolation=READ_UNCOMMITTED).records)


def end_of(connection: Connection, partition: Partition, isolation: int = READ_UNCOMMITTED) -> int:
    error_code, offset = offset_at(connection, partition, isolation=isolation)
    assert error_code == Code.NONE
    return offset


# Allowed writes


@pytest.mark.parametrize("version", range(3, 12))
def test_records_of_a_transaction_that_holds_the_partition(connection, name, here, version):
    producer = begin(connection, name, here)
    assert produce(connection, producer, here, records_of(producer), version=version) == (Code.NONE, 0)
    assert produce(connection, producer, here, records_of(producer, 1, 2), version=version) == (Code.NONE, 1)
    finish(connection, producer)
    assert [(b.base_offset, b.count, b.marker is not None) for b in log(connection, here)] == [
        (0, 1, False),
        (1, 2, False),
        (3, 1, True),
    ]


@pytest.mark.parametrize("version", range(3, 12))
def test_records_of_a_partition_that_was_not_added(connection, name, here, version):
    """Producers before version 11 have no error that only aborts."""
    producer = begin(connection, name, other(here))
    expected = Code.INVALID_TXN_STATE if version < 11 else Code.TRANSACTION_ABORTABLE
    assert produce(connection, producer, here, records_of(producer), version=version) == (expected, NOTHING)
    assert end_of(connection, here) == 0
    assert describe_producers(connection, here) == (Code.NONE, [])
    # The transaction is unchanged.
    assert add_partitions(connection, producer, [here])[here] == Code.NONE
    assert produce(connection, producer, here, records_of(producer), version=version) == (Code.NONE, 0)


@pytest.mark.parametrize("version", [10, 11])
def test_records_without_any_transaction(connection, name, here, version):
    producer = start(connection, name)
    expected = Code.INVALID_TXN_STATE if version < 11 else Code.TRANSACTION_ABORTABLE
    assert produce(connection, producer, here, records_of(producer), version=version) == (expected, NOTHING)
    assert describe(connection, name).transaction_state == "Empty"


@pytest.mark.parametrize("version", [12, 13])
def test_records_that_add_their_partition(connection, name, topic_names, version):
    topic = topic_names()
    here = (topic, 0)
    topic_id = await_topic(connection, topic, 2) if version >= 13 else None
    producer = start(connection, name)
    for _ in range(3):
        write(connection, producer, here, records_of(producer), version=version, topic_id=topic_id)
        response = describe(connection, name)
        [topic_data] = response.topics
        assert (response.transaction_state, topic_data.topic, topic_data.partitions) == ("Ongoing", topic, [0])
        producer = finish(connection, producer, version=5)
    assert producer.epoch == 3
    assert [(b.epoch, b.marker and b.marker[0]) for b in log(connection, here)] == [
        (0, None),
        (1, COMMIT),
        (1, None),
        (2, COMMIT),
        (2, None),
        (3, COMMIT),
    ]


@pytest.mark.parametrize("version", [10, 11, 12])
def test_records_of_unknown_producers(connection, name, here, version):
    producer = begin(connection, name, here)

    def send_request(as_whom: Producer) -> int:
        return produce(connection, as_whom, here, records_of(as_whom), version=version)[0]

    assert send_request(producer._replace(transactional_id=f"{name}-unknown")) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(producer._replace(producer_id=producer.producer_id + 1000)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert send_request(producer.at(7)) == Code.INVALID_PRODUCER_EPOCH
    assert send_request(producer._replace(transactional_id="")) == Code.INVALID_REQUEST
    assert end_of(connection, here) == 0


@pytest.mark.parametrize("version", [3, 10, 11, 12])
def test_a_transactional_batch_in_a_request_without_an_id(connection, name, here, version):
    producer = begin(connection, name, here)
    response = produce(connection, producer, here, records_of(producer), version=version, transactional_id=None)
    assert response == (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NOTHING)


@pytest.mark.parametrize("version", [3, 10, 11, 12])
def test_a_plain_batch_in_a_request_with_an_id(connection, name, here, version):
    """The id alone does not make a batch transactional."""
    producer = begin(connection, name, here)
    assert produce(connection, producer, here, batch(), version=version) == (Code.NONE, 0)
    assert end_of(connection, here, READ_COMMITTED) == 1


@pytest.mark.parametrize("version", [3, 11, 12])
def test_a_plain_batch_of_the_producer_in_its_open_transaction(connection, name, here, version):
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer))
    plain = records_of(producer, 1, transactional=False)
    for transactional_id in (name, None):
        response = produce(connection, producer, here, plain, version=version, transactional_id=transactional_id)
        assert response == (Code.INVALID_TXN_STATE, NOTHING)
    assert end_of(connection, here) == 1


def test_a_plain_batch_of_the_producer_outside_of_a_transaction(connection, name, here):
    """Outside of a transaction it is an ordinary idempotent producer."""
    producer = start(connection, name)
    plain = records_of(producer, transactional=False)
    assert produce(connection, producer, here, plain) == (Code.NONE, 0)


@pytest.mark.parametrize("version", [11, 12])
def test_sequences_within_a_transaction(connection, name, here, version):
    producer = begin(connection, name, here)

    def send_request(sequence: int, count: int = 1) -> tuple[int, int]:
        return produce(connection, producer, here, records_of(producer, sequence, count), version=version)

    assert send_request(0, 3) == (Code.NONE, 0)
    assert send_request(0, 3) == (Code.NONE, 0)
    assert send_request(5) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, NOTHING)
    assert send_request(1, 2) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, NOTHING)
    assert send_request(3) == (Code.NONE, 3)
    # Apache Kafka recognizes the last five batches, Odradek ten.
    for sequence in range(4, 15):
        assert send_request(sequence) == (Code.NONE, sequence)
    assert send_request(0, 3) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, NOTHING)


def test_sequences_continue_over_transactions_of_one_epoch(connection, name, here):
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer, 0, 2))
    finish(connection, producer)
    add_partitions(connection, producer, [here])
    assert produce(connection, producer, here, records_of(producer, 3)) == (45, NOTHING)
    assert produce(connection, producer, here, records_of(producer, 2)) == (Code.NONE, 3)
    assert produce(connection, producer, here, records_of(producer, 2)) == (Code.NONE, 3)


def test_a_batch_waits_for_an_earlier_one_that_failed(connection, name, here):
    """The lowest sequence of a batch that waited for verification must be written first."""
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer, 0, 2))
    finish(connection, producer)
    add_partitions(connection, producer, [here])
    assert produce(connection, producer, here, records_of(producer, 1)) == (45, NOTHING)
    assert produce(connection, producer, here, records_of(producer, 2)) == (45, NOTHING)


def test_a_refused_batch_holds_back_those_of_higher_sequences(connection, name, here):
    """This holds for all senders, until a record of the producer, such as a marker, ends the wait."""
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer))
    ahead = producer.at(producer.epoch + 1)
    assert produce(connection, ahead, here, records_of(ahead)) == (Code.INVALID_PRODUCER_EPOCH, NOTHING)
    assert produce(connection, producer, here, records_of(producer, 1)) == (45, NOTHING)
    finish(connection, producer)
    add_partitions(connection, producer, [here])
    assert produce(connection, producer, here, records_of(producer, 1)) == (Code.NONE, 2)


def test_a_refused_batch_holds_back_plain_ones_as_well(connection, name, here):
    producer = start(connection, name)
    assert produce(connection, producer, here, records_of(producer)) == (Code.TRANSACTION_ABORTABLE, NOTHING)
    plain = records_of(producer, 3, transactional=False)
    assert produce(connection, producer, here, plain, transactional_id=None) == (45, NOTHING)
    plain = records_of(producer, 0, transactional=False)
    assert produce(connection, producer, here, plain, transactional_id=None) == (Code.NONE, 0)


def test_a_repeated_batch_after_its_transaction(connection, name, here):
    """Outside of a transaction it is not a repetition, but a batch without a transaction; in the next one it is."""
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer))
    finish(connection, producer)
    again = produce(connection, producer, here, records_of(producer))
    assert again == (Code.TRANSACTION_ABORTABLE, NOTHING)
    add_partitions(connection, producer, [here])
    assert produce(connection, producer, here, records_of(producer)) == (Code.NONE, 0)
    assert end_of(connection, here) == 2


def test_a_repeated_batch_after_its_transaction_in_version_12(connection, name, here):
    producer = start(connection, name)
    write(connection, producer, here, records_of(producer), version=12)
    new = finish(connection, producer, version=5)
    response = produce(connection, producer, here, records_of(producer), version=12)
    assert response == (Code.INVALID_PRODUCER_EPOCH, NOTHING)
    assert describe(connection, name).transaction_state == "CompleteCommit"
    assert produce(connection, new, here, records_of(new), version=12) == (Code.NONE, 2)


def test_a_new_epoch_begins_with_sequence_0(connection, name, here):
    producer = start(connection, name)
    write(connection, producer, here, records_of(producer, 0, 2), version=12)
    producer = finish(connection, producer, version=5)
    response = produce(connection, producer, here, records_of(producer, 5), version=12)
    assert response == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, NOTHING)
    assert produce(connection, producer, here, records_of(producer), version=12) == (Code.NONE, 3)


def test_control_batches_are_the_brokers(connection, name, here):
    producer = begin(connection, name, here)
    marker = batch(
        [(b"\0\0\0\0", b"\0\0\0\0\0\0")],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        attributes=CONTROL | TRANSACTIONAL,
    )
    assert produce(connection, producer, here, marker) == (Code.INVALID_RECORD, NOTHING)


def test_a_request_with_two_producers(connection, name, here):
    """One transactional id belongs to one producer."""
    first, second = start(connection, name), start(connection, f"{name}-2")
    for producer in (first, second):
        add_partitions(connection, producer, [here, other(here)])
    request = produce_request(here[0], records_of(first), partition=0, transactional_id=name)
    request.topic_data += produce_request(here[0], records_of(second), partition=1).topic_data
    answer = connection.ask(request, ProduceResponse, 11)
    response = {each.index: each.error_code for topic in answer.responses for each in topic.partition_responses}
    assert response == {0: Code.INVALID_PRODUCER_ID_MAPPING, 1: Code.INVALID_PRODUCER_ID_MAPPING}


def test_a_request_whose_partitions_are_added_in_part(connection, name, here):
    producer = begin(connection, name, here)
    request = produce_request(here[0], records_of(producer), partition=0, transactional_id=name)
    request.topic_data[0].partition_data += (
        produce_request(here[0], records_of(producer), partition=1).topic_data[0].partition_data
    )
    answer = connection.ask(request, ProduceResponse, 11)
    response = {each.index: each.error_code for topic in answer.responses for each in topic.partition_responses}
    assert response == {0: Code.NONE, 1: Code.TRANSACTION_ABORTABLE}


@pytest.mark.parametrize("acks", [0, 1])
def test_transactions_with_less_than_all_acknowledgements(connection, name, here, acks):
    """Only clients require acks=all."""
    producer = begin(connection, name, here)
    request = produce_request(here[0], records_of(producer), transactional_id=name, acks=acks)
    if acks:
        (response,) = connection.ask(request, ProduceResponse, 11).responses[0].partition_responses
        assert (response.error_code, response.base_offset) == (0, 0)
    else:
        connection.send(connection.frame(request, 11))
    finish(connection, producer)
    assert end_of(connection, here, READ_COMMITTED) == 2


def test_one_request_adds_all_its_partitions(connection, name, topic_names):
    topics = [topic_names() for _ in range(3)]
    producer = start(connection, name)
    request = produce_request(topics[0], records_of(producer), transactional_id=name)
    for topic in topics[1:]:
        request.topic_data += produce_request(topic, records_of(producer), partition=1).topic_data
    answer = connection.ask(request, ProduceResponse, 12)
    assert [each.partition_responses[0].error_code for each in answer.responses] == [0, 0, 0]
    response = describe(connection, name).topics
    assert {(each.topic, *each.partitions) for each in response} == {(topics[0], 0), (topics[1], 1), (topics[2], 1)}
    finish(connection, producer, version=5)
    assert end_of(connection, (topics[2], 1), READ_COMMITTED) == 2


def test_one_missing_partition_does_not_affect_the_others(connection, name, here):
    producer = start(connection, name)
    request = produce_request(here[0], records_of(producer), transactional_id=name)
    request.topic_data += produce_request("transactions-missing", records_of(producer)).topic_data
    answer = connection.ask(request, ProduceResponse, 12)
    response = {each.name: each.partition_responses[0].error_code for each in answer.responses}
    assert response == {here[0]: Code.NONE, "transactions-missing": Code.UNKNOWN_TOPIC_OR_PARTITION}
    (topic,) = describe(connection, name).topics
    assert (topic.topic, topic.partitions) == (here[0], [0])


def test_a_topic_deleted_in_its_transaction(connection, name, here, topic_names, broker):
    """A deleted topic needs no marker: the transaction ends."""
    there = (topic_names(), 0)
    producer = start(connection, name)
    write(connection, producer, here, records_of(producer), version=12)
    write(connection, producer, there, records_of(producer), version=12)
    delete_topic(broker, there[0])
    finish(connection, producer, version=5)
    assert describe(connection, name).topics == []
    assert end_of(connection, here, READ_COMMITTED) == 2


def delete_topic(broker: Any, topic: str) -> None:
    from compat_tests.clients import load

    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.delete_topic(topic)


# Zombies.


@pytest.mark.parametrize("version", [3, 10, 11, 12])
def test_a_fenced_producer_writes_nothing(connection, name, here, version):
    zombie = begin(connection, name, here)
    write(connection, zombie, here, records_of(zombie))
    new = start(connection, name)
    response = produce(connection, zombie, here, records_of(zombie, 1), version=version)
    assert response == (Code.INVALID_PRODUCER_EPOCH, NOTHING)
    # Nor while the new one has a transaction in the partition.
    add_partitions(connection, new, [here])
    write(connection, new, here, records_of(new))
    response = produce(connection, zombie, here, records_of(zombie, 1), version=version)
    assert response == (Code.INVALID_PRODUCER_EPOCH, NOTHING)
    finish(connection, new)
    fetched = fetch(connection, here)
    assert fetched.aborted == [(zombie.producer_id, 0)]


def test_a_late_batch_does_not_hang_the_partition_with_old_clients(connection, name, here):
    """A batch after its transaction's end is verified, and therefore cannot open a transaction that never ends."""
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer))
    finish(connection, producer, commit=False)
    late = produce(connection, producer, here, records_of(producer, 1), version=10)
    assert late == (Code.INVALID_TXN_STATE, NOTHING)
    late = produce(connection, producer, here, records_of(producer, 1), version=11)
    assert late == (Code.TRANSACTION_ABORTABLE, NOTHING)
    assert end_of(connection, here, READ_COMMITTED) == end_of(connection, here) == 2


def test_a_late_batch_is_not_part_of_the_next_transaction(connection, name, here):
    """With version 12 each transaction has another epoch."""
    old = start(connection, name)
    write(connection, old, here, records_of(old), version=12)
    new = finish(connection, old, commit=False, version=5)
    write(connection, new, here, records_of(new), version=12)
    late = produce(connection, old, here, records_of(old, 1), version=12)
    assert late == (Code.INVALID_PRODUCER_EPOCH, NOTHING)
    finish(connection, new, version=5)
    assert fetch(connection, here).aborted == [(old.producer_id, 0)]


# Reads


def test_the_last_stable_offset_waits_for_the_oldest_transaction(connection, name, here):
    first = begin(connection, name, here)
    second = begin(connection, f"{name}-2", here)
    assert produce(connection, NOBODY, here, batch(), transactional_id=None) == (Code.NONE, 0)
    write(connection, first, here, records_of(first))
    write(connection, second, here, records_of(second))
    assert produce(connection, NOBODY, here, batch(), transactional_id=None) == (Code.NONE, 3)

    def seen() -> tuple[int, int, int, list[int]]:
        response = fetch(connection, here)
        assert end_of(connection, here, READ_COMMITTED) == response.last_stable_offset
        offsets = [each.base_offset for each in batches(response.records)]
        return response.code, response.high_watermark, response.last_stable_offset, offsets

    assert seen() == (0, 4, 1, [0])
    finish(connection, second)
    assert seen() == (0, 5, 1, [0])
    finish(connection, first, commit=False)
    assert seen() == (0, 6, 6, [0, 1, 2, 3, 4, 5])
    assert fetch(connection, here).aborted == [(first.producer_id, 1)]


@pytest.mark.parametrize("version", [4, 5, 7, 10, 11, 12, 13, 15, 16, 17, 18])
def test_a_fetch_of_each_isolation(connection, name, here, version):
    topic_id = await_topic(connection, here[0], 2) if version >= 13 else None
    aborted = begin(connection, name, here)
    write(connection, aborted, here, records_of(aborted, 0, 3))
    finish(connection, aborted, commit=False)
    opened = begin(connection, f"{name}-2", here)
    write(connection, opened, here, records_of(opened, 0, 2))

    response = fetch(connection, here, isolation=READ_UNCOMMITTED, version=version, topic_id=topic_id)
    assert (response.code, response.high_watermark, response.last_stable_offset, response.aborted) == (0, 6, 4, None)
    assert [b.base_offset for b in batches(response.records)] == [0, 3, 4]

    response = fetch(connection, here, isolation=READ_COMMITTED, version=version, topic_id=topic_id)
    assert (response.code, response.high_watermark, response.last_stable_offset) == (0, 6, 4)
    assert response.aborted == [(aborted.producer_id, 0)]
    assert [b.base_offset for b in batches(response.records)] == [0, 3]

    # At and beyond the last stable offset there are no records, and no error up to the high watermark.
    for offset in (4, 5, 6):
        response = fetch(connection, here, offset, version=version, topic_id=topic_id)
        assert (response.code, response.last_stable_offset, response.aborted, response.records) == (0, 4, [], b"")
    assert fetch(connection, here, 7, version=version, topic_id=topic_id).code == 1


def test_aborted_transactions_that_overlap_the_range_read(connection, name, here):
    ids = []
    for number in range(4):
        producer = begin(connection, f"{name}-{number}", here)
        write(connection, producer, here, records_of(producer, 0, 2))
        finish(connection, producer, commit=number == 1)
        ids.append(producer.producer_id)
    # Three records and a marker each: 0-2, 3-5 (committed), 6-8, 9-11.
    everything = [(ids[0], 0), (ids[2], 6), (ids[3], 9)]
    assert fetch(connection, here).aborted == everything
    assert fetch(connection, here, 1).aborted == everything
    assert fetch(connection, here, 2).aborted == everything
    assert fetch(connection, here, 3).aborted == everything[1:]
    assert fetch(connection, here, 8).aborted == everything[1:]
    assert fetch(connection, here, 9).aborted == everything[2:]
    assert fetch(connection, here, 12).aborted == []
    # At least one batch is returned; the list may cover more than the returned records, but not less.
    assert (ids[0], 0) in (fetch(connection, here, 0, max_bytes=1).aborted or [])


def test_interleaved_transactions(connection, name, here):
    first, second = begin(connection, name, here), begin(connection, f"{name}-2", here)
    for number in range(3):
        write(connection, first, here, records_of(first, number))
        write(connection, second, here, records_of(second, number))
    finish(connection, second, commit=False)
    finish(connection, first, commit=False)
    response = fetch(connection, here)
    assert response.aborted == sorted([(first.producer_id, 0), (second.producer_id, 1)])
    markers = [(b.producer_id, b.base_offset, b.marker[0]) for b in batches(response.records) if b.marker]
    assert markers == [(second.producer_id, 6, ABORT), (first.producer_id, 7, ABORT)]
    # A fetch from after the first one's records still lists it: its marker comes later.
    assert fetch(connection, here, 6).aborted == sorted([(first.producer_id, 0), (second.producer_id, 1)])
    assert fetch(connection, here, 7).aborted == [(first.producer_id, 0)]


@pytest.mark.parametrize("version", [2, 5, 7, 8, 9, 10, 11])
def test_offsets_by_isolation(connection, name, here, version):
    opened = begin(connection, name, here)
    stamp = 1_700_000_000_000
    for number in range(2):
        records = batch(timestamp_ms=stamp + number * 1000)
        assert produce(connection, NOBODY, here, records, transactional_id=None)[0] == Code.NONE
    write(connection, opened, here, records_of(opened, timestamp_ms=stamp + 5000))

    def at(timestamp: int, isolation: int) -> tuple[int, int]:
        return offset_at(connection, here, timestamp, isolation=isolation, version=version)

    assert at(LATEST, READ_UNCOMMITTED) == (0, 3)
    assert at(LATEST, READ_COMMITTED) == (0, 2)
    assert at(EARLIEST, READ_COMMITTED) == (0, 0)
    assert at(stamp + 500, READ_COMMITTED) == (0, 1)
    assert at(stamp + 4000, READ_UNCOMMITTED) == (0, 2)
    assert at(stamp + 4000, READ_COMMITTED) == (0, -1)
    finish(connection, opened)
    assert at(LATEST, READ_COMMITTED) == (0, 4)
    assert at(stamp + 4000, READ_COMMITTED) == (0, 2)


def test_the_largest_timestamp_by_isolation(connection, name, here):
    """Beyond the last stable offset it is not known yet."""
    opened = begin(connection, name, here)
    stamp = 1_700_000_000_000
    assert produce(connection, NOBODY, here, batch(timestamp_ms=stamp), transactional_id=None)[0] == Code.NONE
    write(connection, opened, here, records_of(opened, timestamp_ms=stamp + 5000))
    assert offset_at(connection, here, LARGEST, isolation=READ_UNCOMMITTED) == (0, 1)
    assert offset_at(connection, here, LARGEST, isolation=READ_COMMITTED) == (0, -1)
    finish(connection, opened)
    # The marker has the broker's time, which is later.
    assert offset_at(connection, here, LARGEST, isolation=READ_COMMITTED) == (0, 2)


def test_records_deleted_under_an_open_transaction(connection, name, here):
    opened = begin(connection, name, here)
    write(connection, opened, here, records_of(opened, 0, 3))
    assert delete_records(connection, here, 2) == (Code.NONE, 2)
    response = fetch(connection, here, 2)
    assert (response.code, response.high_watermark, response.records) == (0, 3, b"")
    # Apache Kafka leaves it below the log start.
    assert response.last_stable_offset in (0, 2)
    assert delete_records(connection, here, -1) == (Code.NONE, 3)
    response = fetch(connection, here, 3)
    assert (response.code, response.high_watermark, response.last_stable_offset, response.records) == (0, 3, 3, b"")
    write(connection, opened, here, records_of(opened, 3, 2))
    assert fetch(connection, here, 3).last_stable_offset == 3
    finish(connection, opened, commit=False)
    response = fetch(connection, here, 3)
    assert (response.last_stable_offset, response.aborted) == (6, [(opened.producer_id, 0)])


# Describing producers.


def test_producers_of_a_partition(connection, name, here):
    assert describe_producers(connection, here) == (Code.NONE, [])
    assert describe_producers(connection, (here[0], 9)) == (Code.UNKNOWN_TOPIC_OR_PARTITION, [])
    assert describe_producers(connection, ("transactions-missing", 0)) == (Code.UNKNOWN_TOPIC_OR_PARTITION, [])

    def seen() -> list[tuple[int, ...]]:
        code, producers = describe_producers(connection, here)
        assert code == Code.NONE
        for each in producers:
            assert each.last_timestamp > 0
        return [
            (p.producer_id, p.producer_epoch, p.last_sequence, p.coordinator_epoch, p.current_txn_start_offset)
            for p in producers
        ]

    idempotent = init(connection, None)
    plain = Producer("", idempotent.producer_id, 0)
    sent = records_of(plain, 0, 4, transactional=False)
    assert produce(connection, plain, here, sent, transactional_id=None)[0] == 0
    of_plain = (idempotent.producer_id, 0, 3, -1, -1)
    assert seen() == [of_plain]

    producer = begin(connection, name, here)
    assert seen() == [of_plain]
    write(connection, producer, here, records_of(producer, 0, 2))
    write(connection, producer, here, records_of(producer, 2, 2))
    pid = producer.producer_id
    assert seen() == [of_plain, (pid, 0, 3, -1, 4)]
    finish(connection, producer)
    assert seen() == [of_plain, (pid, 0, 3, 0, -1)]
    add_partitions(connection, producer, [here])
    write(connection, producer, here, records_of(producer, 4))
    finish(connection, producer, version=5)
    assert seen() == [of_plain, (pid, 1, -1, 0, -1)]


def test_producers_of_the_offsets_topic(connection, name):
    ask_for_coordinator(connection)
    producer = start(connection, name)
    assert add_offsets(connection, producer, name) == Code.NONE
    index = describe(connection, name).topics[0].partitions[0]
    code, producers = describe_producers(connection, ("__consumer_offsets", index))
    assert code == Code.NONE
    assert producer.producer_id not in [each.producer_id for each in producers]


# Markers.


@pytest.mark.parametrize(("version", "transaction_version"), [(1, 0), (2, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_ends_an_open_transaction(connection, name, here, version, transaction_version, commit):
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer, 0, 2))
    marked = producer.at(1) if transaction_version == 2 else producer
    response = write_markers(
        connection, marked, [here], commit=commit, version=version, transaction_version=transaction_version
    )
    assert response == {here: Code.NONE}
    assert log(connection, here)[-1] == Batch(
        2, 1, producer.producer_id, marked.epoch, -1, True, (COMMIT if commit else ABORT, 0)
    )
    fetched = fetch(connection, here)
    assert fetched.last_stable_offset == 3
    assert fetched.aborted == ([] if commit else [(producer.producer_id, 0)])


def test_markers_to_several_partitions(connection, name, here):
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer))
    missing, no_index = ("transactions-missing", 0), (here[0], 9)
    response = write_markers(connection, producer, [here, other(here), missing, no_index])
    assert response == {
        here: Code.NONE,
        other(here): Code.NONE,
        missing: Code.UNKNOWN_TOPIC_OR_PARTITION,
        no_index: Code.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_marker_without_a_transaction(connection, name, here):
    """It is written, since an interrupted coordinator sends its markers again; nothing is aborted by it."""
    producer = start(connection, name)
    assert write_markers(connection, producer, [here]) == {here: Code.NONE}
    assert write_markers(connection, producer, [here], commit=True) == {here: Code.NONE}
    assert [b.marker for b in log(connection, here)] == [(ABORT, 0), (COMMIT, 0)]
    assert fetch(connection, here).aborted == []
    assert write_markers(connection, Producer("", 2**40, 0), [here]) == {here: Code.NONE}


@pytest.mark.parametrize(("transaction_version", "same_epoch"), [(0, Code.NONE), (1, Code.NONE), (2, 47)])
def test_markers_of_old_epochs(connection, name, here, transaction_version, same_epoch):
    """With transaction version 2 a marker has the next epoch, so one of the same epoch is an earlier transaction's."""
    producer = start(connection, name)
    producer = start(connection, name)
    add_partitions(connection, producer, [here])
    write(connection, producer, here, records_of(producer))

    def send_request(epoch: int) -> int:
        marked = producer.at(epoch)
        return write_markers(connection, marked, [here], transaction_version=transaction_version)[here]

    assert send_request(0) == Code.INVALID_PRODUCER_EPOCH
    assert send_request(1) == same_epoch
    assert send_request(4) == Code.NONE
    # Without an open transaction it may be repeated: the coordinator may not have received the response.
    assert send_request(4) == Code.NONE
    assert send_request(3) == Code.INVALID_PRODUCER_EPOCH
    assert send_request(5) == Code.NONE


def test_markers_of_invalid_producers(connection, name, here):
    """No coordinator sends them; Apache Kafka fails with an unknown error before it has written anything."""
    producer = begin(connection, name, here)
    unknown = ("transactions-missing", 0)
    for nobody in (producer.at(-1), producer._replace(producer_id=-1)):
        response = write_markers(connection, nobody, [here, unknown])
        assert response == {here: Code.UNKNOWN_SERVER_ERROR, unknown: Code.UNKNOWN_SERVER_ERROR}
        assert write_markers(connection, nobody, [unknown]) == {unknown: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert end_of(connection, here) == 0
    write(connection, producer, here, records_of(producer))
    assert write_markers(connection, producer.at(-1), [here]) == {here: Code.UNKNOWN_SERVER_ERROR}
    assert end_of(connection, here) == 1


def test_markers_of_a_coordinator_that_was_replaced(connection, name, here):
    producer = begin(connection, name, here)

    def send_request(coordinator_epoch: int) -> int:
        return write_markers(connection, producer, [here], coordinator_epoch=coordinator_epoch)[here]

    assert send_request(5) == Code.NONE
    assert send_request(4) == Code.TRANSACTION_COORDINATOR_FENCED
    assert send_request(5) == Code.NONE
    assert send_request(6) == Code.NONE


def test_a_marker_for_a_hanging_transaction(connection, name, here):
    """`kafka-transactions.sh abort` sends it, with values from DescribeProducers."""
    producer = begin(connection, name, here)
    write(connection, producer, here, records_of(producer))
    (hanging,) = describe_producers(connection, here)[1]
    assert hanging.current_txn_start_offset == 0
    shown = Producer("", hanging.producer_id, hanging.producer_epoch)
    epoch = max(hanging.coordinator_epoch, 0)
    assert write_markers(connection, shown, [here], coordinator_epoch=epoch, version=1) == {here: Code.NONE}
    assert describe_producers(connection, here)[1][0].current_txn_start_offset == -1
    assert end_of(connection, here, READ_COMMITTED) == 2
    # The coordinator has no state of it, and sends its own marker as well.
    assert end(connection, producer).code == Code.NONE
    retry_until_ready(lambda: add_partitions(connection, producer, [here])[here])
    assert [b.marker for b in log(connection, here)][1:] == [(ABORT, 0), (COMMIT, 0)]
