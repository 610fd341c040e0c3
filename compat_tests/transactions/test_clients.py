"""Transactions through each client library: all or nothing, for readers of committed records and for groups."""

import itertools
from typing import Any

import pytest

from compat_tests.clients.common import (
    ClientError,
    Code,
    ConsumerOptions,
    Message,
    ProducerOptions,
    numbers,
    read,
    wait_until,
)

FENCED = {Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED}


def producer(client: Any, broker: Any, transactional_id: str, **options: Any) -> Any:
    return client.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=transactional_id, **options))


def messages(*numbers: int, partition: int | None = None) -> list[Message]:
    return [Message(b"%d" % n, partition=partition) for n in numbers]


def values(client: Any, broker: Any, topic: str, count: int, *, committed_only: bool = True) -> list[int]:
    """Return the values that a reader gets of partition 0, up to `count` records; assert that there are no more."""
    options = ConsumerOptions(committed_only=committed_only)
    with client.Consumer(broker.bootstrap_servers, options) as consumer:
        consumer.assign([(topic, 0)])
        records = read(consumer, count)
        records += consumer.poll(0.5)
    return numbers(records)


@pytest.mark.side_by_side
def test_a_commit_makes_all_records_visible_and_an_abort_none(broker, client, library, topic, unique):
    with producer(client, broker, unique) as writer:
        for number in range(6):
            writer.begin()
            writer.produce(topic, messages(*range(number * 10, number * 10 + 10)))
            if number % 2:
                writer.abort()
            else:
                writer.commit()
    committed = [n for n in range(60) if n // 10 % 2 == 0]
    assert values(client, broker, topic, 30) == committed
    assert values(client, broker, topic, 60, committed_only=False) == list(range(60))


def test_an_open_transaction_holds_readers_back(broker, client, library, topic, unique):
    with producer(client, broker, unique) as first, producer(client, broker, f"{unique}-2") as second:
        first.begin()
        first.produce(topic, messages(0))
        second.begin()
        second.produce(topic, messages(1))
        second.commit()
        options = ConsumerOptions(committed_only=True)
        with client.Consumer(broker.bootstrap_servers, options) as consumer:
            consumer.assign([(topic, 0)])
            assert list(itertools.chain(*(consumer.poll(0.2) for _ in range(4)))) == []
            first.commit()
            assert numbers(read(consumer, 2)) == [0, 1]


def test_one_transaction_over_many_partitions(broker, client, library, unique, admin):
    admin.create_topic(unique, 10)
    with producer(client, broker, unique) as writer:
        for commits in (False, True):
            writer.begin()
            sent = [Message(b"%d" % (n + 1000 * commits), partition=n % 10) for n in range(100)]
            writer.produce(unique, sent)
            if commits:
                writer.commit()
            else:
                writer.abort()
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions(committed_only=True)) as consumer:
        consumer.assign([(unique, p) for p in range(10)])
        records = read(consumer, 100) + consumer.poll(0.5)
    assert sorted(int(record.value) for record in records) == list(range(1000, 1100))


@pytest.mark.side_by_side
def test_a_second_producer_of_the_same_id_fences_the_first(broker, client, library, topic, unique):
    with producer(client, broker, unique) as zombie:
        zombie.begin()
        zombie.produce(topic, messages(0))
        with producer(client, broker, unique) as new:
            new.begin()
            new.produce(topic, messages(1))
            # kafka-python 3.0.12 would react to a fenced Produce with an epoch bump, and so fence its successor.
            with pytest.raises(ClientError) as fenced:
                zombie.commit()
            assert is_fenced(fenced.value), fenced.value
            new.commit()
    assert values(client, broker, topic, 1) == [1]


def is_fenced(error: ClientError) -> bool:
    """Return whether the error is fencing: librdkafka has its own code, aiokafka an exception without a code."""
    return error.code in FENCED or "fenced" in str(error).lower() or "new producer instance" in str(error).lower()


@pytest.mark.side_by_side
def test_offsets_are_committed_with_the_records(broker, client, library, unique, admin):
    """Read, process, write: after every transaction the group's offset matches its output."""
    source, target = f"{unique}-in", f"{unique}-out"
    admin.create_topic(source)
    admin.create_topic(target)
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as writer:
        writer.produce(source, messages(*range(100)))
    options = ConsumerOptions(group=unique, committed_only=True)
    with client.Consumer(broker.bootstrap_servers, options) as consumer, producer(client, broker, unique) as writer:
        consumer.subscribe([source], None)
        done = 0
        while done < 100:
            records = read(consumer, 1)
            position = records[-1].offset + 1
            for commits in (False, True):
                writer.begin()
                writer.produce(target, [Message(record.value) for record in records])
                writer.send_offsets({(source, 0): position}, consumer)
                if commits:
                    writer.commit()
                    wait_until(lambda: admin.group_offsets(unique) == {(source, 0): position})  # noqa: B023
                else:
                    writer.abort()
                    assert admin.group_offsets(unique) == ({(source, 0): done} if done else {})
            done = position
    assert values(client, broker, target, 100) == list(range(100))


def test_a_transaction_past_its_timeout_is_aborted(broker, client, library, topic, unique):
    # The time that a busy machine may take to write the record.
    with producer(client, broker, unique, transaction_timeout_ms=3000) as late:
        late.begin()
        late.produce(topic, messages(0))
        options = ConsumerOptions(committed_only=True)
        with client.Producer(broker.bootstrap_servers, ProducerOptions()) as plain:
            plain.produce(topic, messages(1))
        with client.Consumer(broker.bootstrap_servers, options) as consumer:
            consumer.assign([(topic, 0)])
            # Only the abort makes the plain record readable.
            assert numbers(read(consumer, 1)) == [1]
        with pytest.raises(ClientError):
            late.commit()


def test_transactions_survive_a_restart(start_broker, client, library, unique):
    """A committed transaction stays committed, an open one continues, and the id has the same producer id."""
    broker = start_broker()
    with client.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(unique)
    with producer(client, broker, unique) as writer:
        writer.begin()
        writer.produce(unique, messages(0))
        writer.commit()
        writer.begin()
        writer.produce(unique, messages(1))
        writer.abort()
        for number, clean in enumerate((True, False)):
            writer.begin()
            writer.produce(unique, messages(2 + number * 2))
            broker.restart(clean=clean)
            writer.produce(unique, messages(3 + number * 2))
            writer.commit()
    assert values(client, broker, unique, 5) == [0, 2, 3, 4, 5]
