"""The search for producer ids in use, with the ids in one place at a time and a clock at 0."""

import itertools

import pytest

from odradek.coordinator.transactions.records import TransactionLogValue, transaction_record
from odradek.log.management.settings import LogManagerSettings
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import opened
from odradek.protocol.records import build_batch
from odradek.replication.metadata.memory_store import MemoryMetadataStore
from odradek.replication.metadata.producer_id_blocks import allocate_block
from odradek.replication.metadata.store import run_now
from odradek.server.coordinators.producer_id_floor import settle_producer_ids

EXPIRY_MS = 1000
SETTINGS = LogManagerSettings(num_recovery_threads_per_data_dir=1, producer_id_expiration_ms=EXPIRY_MS)
TRANSACTIONS = "__transaction_state"


def run_all(actions, threads):
    for action in actions:
        action()


class Machine:
    """Log directories of a broker; each `settle` is a start with a given store."""

    def __init__(self, *directories):
        self.fs = MemoryFileSystem()
        self.directories = directories or ("/data",)
        self.logs = self.open(0)

    def open(self, now_ms):
        config = {"internal.segment.bytes": "200"}
        return opened(self.fs, self.directories, config, now_ms=now_ms, settings=SETTINGS)

    def append(self, topic, batch, now_ms=0):
        log = self.logs.get(topic, 0) or self.logs.create_log(topic, 0, None, now_ms)
        log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=now_ms)

    def restart(self, *, now_ms=0, broker_epoch=7):
        self.logs.close(now_ms, broker_epoch)
        self.logs = self.open(now_ms)

    def settle(self, store, *, broker_epoch=8, now_ms=0, **options):
        least = run_now(settle_producer_ids(store, self.logs, 1, broker_epoch, now_ms, run_all, **options))
        assert run_now(allocate_block(store, 1, least)).start == least
        return least


def data(producer_id, sequence=0):
    return build_batch([(0, b"k", b"v" * 50, ())], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def value(name, *ids):
    first, previous, following = ids
    fields = TransactionLogValue(
        producer_id=first, previous_producer_id=previous, next_producer_id=following, producer_epoch=0,
        transaction_timeout_ms=1, transaction_status=0, transaction_partitions=None,
        transaction_last_update_timestamp_ms=0, transaction_start_timestamp_ms=-1,
    )  # fmt: skip
    record = transaction_record(name, fields, 1)
    return build_batch([(0, record.key, record.value, ())])


def test_a_new_store_of_a_broker_without_logs_begins_at_zero():
    assert Machine().settle(MemoryMetadataStore()) == 0


def test_ids_of_expired_producers_count():
    machine = Machine()
    for producer_id in (41, 5):
        machine.append("t", data(producer_id))
    machine.restart(now_ms=10 * EXPIRY_MS)
    assert not machine.logs.get("t", 0).producer_state.producers
    assert machine.logs.get("t", 0).producer_state.largest_id == 41
    assert machine.settle(MemoryMetadataStore()) == 42


def test_all_segments_are_searched_once():
    machine = Machine()
    for producer_id in (3, 77, 5, 6, 8):
        machine.append("t", data(producer_id))
    log = machine.logs.get("t", 0)
    assert len(log.segments) > 2
    log.producer_state.producers.clear()
    store = MemoryMetadataStore()
    assert machine.settle(store) == 78
    machine.append("t", data(500))
    log.producer_state.producers.clear()
    assert machine.settle(store) == 1078, "the next block of an up-to-date store"


@pytest.mark.parametrize("ids", set(itertools.permutations((90, -1, 3))))
def test_values_of_transactional_ids_are_searched(ids):
    machine = Machine()
    machine.append(TRANSACTIONS, value("a", *ids))
    machine.append(TRANSACTIONS, value("b", 50, -1, -1))
    assert machine.settle(MemoryMetadataStore()) == 91


def test_an_unreadable_batch_is_skipped(caplog):
    machine = Machine()
    batch = bytearray(value("a", 20, -1, -1))
    machine.append(TRANSACTIONS, bytes(batch))
    machine.append(TRANSACTIONS, value("b", 30, -1, -1))
    segment = machine.logs.get(TRANSACTIONS, 0).segments[0]
    segment.file.write_pieces(len(batch) - 1, [b"\xff"], 1)
    assert machine.settle(MemoryMetadataStore()) == 31
    assert "skipping a malformed batch in the search for producer ids" in caplog.text


def test_a_store_behind_the_producer_state_is_advanced():
    machine = Machine()
    store = MemoryMetadataStore()
    run_now(allocate_block(store, 1))
    machine.append("t", data(1000))
    machine.append(TRANSACTIONS, value("a", 1500, -1, -1))
    assert machine.settle(store) == 1501


def test_a_store_behind_the_record_in_the_log_directories_is_advanced(caplog):
    machine = Machine()
    store = MemoryMetadataStore()
    run_now(allocate_block(store, 1))
    machine.logs.record_producer_ids(1000, lambda error: None)
    machine.restart(broker_epoch=5)
    assert machine.settle(store, broker_epoch=6) == 1000
    assert "older" not in caplog.text
    machine.logs.record_producer_ids(7000, lambda error: None)
    machine.restart(broker_epoch=7)
    assert machine.settle(store, broker_epoch=8) == 7000
    assert "the metadata store may be older than the logs" in caplog.text


def test_a_new_store_begins_above_the_record_in_the_log_directories():
    machine = Machine()
    machine.logs.record_producer_ids(7000, lambda error: None)
    machine.restart()
    assert machine.settle(MemoryMetadataStore()) == 7000


def test_a_store_behind_the_last_clean_stop_is_advanced():
    machine = Machine()
    store = MemoryMetadataStore()
    run_now(allocate_block(store, 1))
    machine.append(TRANSACTIONS, value("a", 1500, -1, -1))
    machine.restart(broker_epoch=9)
    assert machine.settle(store, broker_epoch=10) == 1000
    machine.restart(broker_epoch=10)
    assert machine.settle(store, broker_epoch=10) == 2000
    machine.append(TRANSACTIONS, value("a", 5000, -1, -1))
    machine.restart(broker_epoch=11)
    assert machine.settle(store, broker_epoch=11) == 5001


def test_a_new_store_begins_at_the_clock_time_if_a_directory_is_offline():
    machine = Machine("/data/a", "/data/b")
    machine.logs.close(0)
    machine.fs.open("/data/b/replication-offset-checkpoint", create=True).write_pieces(0, [b"unreadable"], 10)
    machine.logs = machine.open(0)
    assert len(machine.logs.online_directories) == 1
    assert machine.settle(MemoryMetadataStore(), now_ms=1_800_000_000_000) == 1_800_000_000_000


def test_the_imported_next_id_counts():
    machine = Machine()
    machine.append("t", data(41))
    assert machine.settle(MemoryMetadataStore(), imported_next_id=3000) == 3000
