"""The packed table of producers is equivalent to a dictionary of entries, however few are kept as objects."""

import tracemalloc
from random import Random

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.management.producer_expiry import ProducerExpiryTask
from odradek.log.producers import table as producer_table
from odradek.log.producers.entry import BatchMetadata, ProducerEntry
from odradek.log.producers.table import RECORD, ProducerTable
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, opened


@pytest.fixture
def few_objects(monkeypatch):
    monkeypatch.setattr(producer_table, "_MAX_RECENT", 4)
    monkeypatch.setattr(producer_table, "_PACKED_AT_ONCE", 2)


def state_of(entry: ProducerEntry) -> tuple[object, ...]:
    return (
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.transaction_start,
        entry.batches,
    )


def record_of(entry: ProducerEntry) -> tuple[int, ...]:
    last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
    return (
        entry.producer_id,
        entry.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.transaction_start,
    )


def change(entry: ProducerEntry, random: Random, offset: int) -> None:
    """Change an entry at random, as appends and markers do."""
    what = random.random()
    if what < 0.6:
        sequence = random.choice([entry.last_sequence + 1, 2**31 - 1, -1])
        entry.add(max(0, entry.epoch), min(sequence, 2**31 - 1), offset, random.randrange(3), offset * 10)
    elif what < 0.75:
        entry.set_epoch(random.choice([entry.epoch, min(entry.epoch + 1, 32767), 32767]))
        entry.coordinator_epoch = random.randrange(5)
        entry.last_timestamp = offset * 10
    else:
        entry.transaction_start = random.choice([-1, offset])


@pytest.mark.parametrize("seed", range(20))
def test_the_table_is_equivalent_to_a_dictionary(few_objects, seed: int) -> None:
    random, table, model = Random(seed), ProducerTable(), {}
    for offset in range(600):
        producer_id = random.choice([random.randrange(30), 2**62 + random.randrange(3)])
        entry = table.get(producer_id)
        assert (entry is None) == (producer_id not in model) == (producer_id not in table)
        if entry is None:
            entry = table.add(producer_id)
            model[producer_id] = ProducerEntry(producer_id)
        elif random.random() < 0.1:
            table.remove(producer_id)
            del model[producer_id]
            continue
        how = random.random()
        for each in (entry, model[producer_id]):
            change(each, Random(how), offset)
        assert len(table.recent) <= 4
        if offset % 20 == 0:
            assert set(table) == set(model)
            assert len(table) == len(model)
            records = list(RECORD.iter_unpack(table.records))
            assert sorted(records) == sorted(map(record_of, model.values()))
    for producer_id in list(table):
        assert state_of(table[producer_id]) == state_of(model[producer_id])
    loaded = ProducerTable()
    loaded.load(bytes(table.records))
    assert loaded.records == table.records
    for producer_id in loaded:
        entry = loaded[producer_id]
        assert record_of(entry) == record_of(model[producer_id])
        assert len(entry.batches) == min(1, len(model[producer_id].batches))


def test_an_unknown_producer() -> None:
    with pytest.raises(KeyError):
        ProducerTable()[5]


@pytest.mark.parametrize("batches", [1, 10])
def test_a_producer_takes_little_memory(batches: int) -> None:
    """As Python objects, entries would take more than twice as much."""
    count = 10_000
    tracemalloc.start()
    table = ProducerTable()
    for producer_id in range(count):
        entry = table.add(10**9 + producer_id)
        for number in range(batches):
            entry.add(0, number, 10**10 + number, 0, 10**12)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count < 580


def manager_with_producers(count: int) -> LogManager:
    manager = opened(MemoryFileSystem(), ["/data/a"])
    for partition in range(3):
        state = manager.create_log("t", partition, TOPIC_ID, 0).producer_state
        for producer_id in range(count):
            state.add_data(producer_id, 0, 0, producer_id, producer_id, producer_id % 7, False)
    return manager


def test_expiry_examines_a_bounded_number_of_producers_in_a_step(monkeypatch) -> None:
    count = 12_000
    manager = manager_with_producers(count)
    examined = []
    idle_since = ProducerTable.idle_since

    def count_examined(self, timestamp_ms, end, most):
        examined[-1] += min(end, most)
        return idle_since(self, timestamp_ms, end, most)

    monkeypatch.setattr(ProducerTable, "idle_since", count_examined)
    step = ProducerExpiryTask(manager.all_logs, lambda: 1003)
    for log in manager.all_logs():
        log.producer_state.expiration_ms = 1000
    examined.append(0)
    while step(1003):
        examined.append(0)
    assert max(examined) <= 5000
    assert sum(examined) == 3 * count
    for log in manager.all_logs():
        assert set(log.producer_state.producers) == {p for p in range(count) if p % 7 > 3}


def test_an_open_transaction_keeps_its_producer_through_packing(few_objects) -> None:
    manager = manager_with_producers(0)
    state = manager.all_logs()[0].producer_state
    for producer_id in range(20):
        state.add_data(producer_id, 0, 0, producer_id, producer_id, 0, producer_id % 5 == 0)
    state.expiration_ms = 10
    assert state.remove_expired(1000, end=20, count=100) == 0
    assert set(state.producers) == {0, 5, 10, 15}
    assert state.find_duplicate(15, 0, 0, 0) == BatchMetadata(0, 15, 0, 0)
