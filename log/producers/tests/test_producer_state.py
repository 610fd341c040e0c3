"""Producers: sequence numbers, epochs, transactions, expiry, and the bytes of snapshots."""

import struct

import pytest

from odradek.log.producers.snapshots import CorruptSnapshotError, decode_snapshot, encode_snapshot
from odradek.log.producers.state import CompletedTransaction, ProducerState
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.errors import ErrorCode, KafkaError

MAX = 2**31 - 1
GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def state() -> ProducerState:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    return ProducerState(fs, "/d", expiration_ms=1000)


def add(
    state: ProducerState,
    last_sequence: int,
    last_offset: int,
    *,
    count: int = 1,
    epoch: int = 0,
    producer_id: int = 7,
    timestamp: int = 50,
    transactional: bool = False,
) -> None:
    state.add_data(
        producer_id, epoch, last_sequence, last_offset - count + 1, last_offset, timestamp, transactional
    )
    state.end_offset = last_offset + 1


def check(
    state: ProducerState,
    first_sequence: int,
    *,
    epoch: int = 0,
    producer_id: int = 7,
    transactional: bool = False,
    client: bool = True,
) -> ErrorCode | None:
    """Return the error that a batch gets, or None."""
    try:
        state.check_data(producer_id, epoch, first_sequence, is_transactional=transactional, is_client=client)
    except KafkaError as error:
        return error.code
    return None


def mark(
    state: ProducerState,
    offset: int,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 1,
    producer_id: int = 7,
    timestamp: int = 50,
    abort: bool = False,
) -> CompletedTransaction | None:
    completed = state.add_marker(producer_id, epoch, coordinator_epoch, offset, timestamp, abort)
    if completed is not None:
        state.complete(completed)
    state.end_offset = offset + 1
    return completed


@pytest.mark.parametrize(("last", "following"), [(0, 1), (41, 42), (MAX - 1, MAX), (MAX, 0)])
def test_next_sequence(state: ProducerState, last, following):
    add(state, last, 100)
    assert check(state, following) is None
    for wrong in {last, (following + 1) & MAX, 9999}:
        assert check(state, wrong) == GAP
        assert check(state, wrong, client=False) is None, "replicas and coordinators are not checked"


def test_any_sequence_of_an_unknown_producer(state: ProducerState):
    assert check(state, 12345) is None


def test_epochs(state: ProducerState):
    add(state, 5, 100, epoch=3)
    assert check(state, 6, epoch=2) == OLD
    assert check(state, 6, epoch=2, client=False) == OLD
    assert check(state, 6, epoch=4) == GAP
    assert check(state, 0, epoch=4) is None
    mark(state, 101, epoch=4)
    assert check(state, 6, epoch=3) == OLD
    assert check(state, 1, epoch=4) == GAP
    assert check(state, 0, epoch=4) is None


def test_marker_of_the_same_epoch_keeps_the_sequence(state: ProducerState):
    add(state, 5, 100)
    mark(state, 101)
    assert check(state, 6) is None
    assert check(state, 0) == GAP


def test_duplicates_are_exact_and_of_the_last_ten(state: ProducerState):
    """Five to the former leader may wait for their repetition while five were written to the next one."""
    for number in range(11):
        add(state, number * 2 + 1, 100 + number * 2 + 1, count=2, timestamp=number)
    assert state.find_duplicate(7, 0, 0, 1) is None, "only ten batches are kept"
    found = state.find_duplicate(7, 0, 2, 3)
    assert (found.first_offset, found.last_offset, found.timestamp) == (102, 103, 1)
    for producer_id, epoch, first, last in [(8, 0, 2, 3), (7, 1, 2, 3), (7, 0, 3, 3), (7, 0, 2, 4), (7, 0, 2, 5)]:
        assert state.find_duplicate(producer_id, epoch, first, last) is None


def test_duplicate_across_the_wrap(state: ProducerState):
    add(state, 1, 102, count=3)
    assert state.find_duplicate(7, 0, MAX, 1).first_offset == 100
    assert state.find_duplicate(7, 0, -1, 1) is None


def test_first_unstable_offset(state: ProducerState):
    add(state, 0, 10, transactional=True)
    add(state, 0, 11, producer_id=8, transactional=True)
    assert state.first_unstable_offset == 10
    assert check(state, 1) == ErrorCode.INVALID_TXN_STATE
    assert check(state, 1, transactional=True) is None
    completed = state.add_marker(7, 0, 1, 12, 50, True)
    assert completed is not None
    assert (completed.first_offset, completed.last_offset, completed.is_aborted) == (10, 12, True)
    assert state.last_stable_offset_after(completed) == 11
    state.complete(completed)
    assert state.first_unstable_offset == 10, "until the marker is replicated"
    state.high_watermark_advanced(12)
    assert state.first_unstable_offset == 10
    state.high_watermark_advanced(13)
    assert state.first_unstable_offset == 11
    assert mark(state, 13) is None, "nothing to end"
    mark(state, 14, producer_id=8)
    state.log_start_advanced(15)
    assert state.first_unstable_offset == -1


def test_markers_of_old_coordinators_and_producers(state: ProducerState):
    add(state, 0, 10, epoch=3, transactional=True)

    def code(epoch, coordinator_epoch, version):
        try:
            state.check_marker(7, epoch, coordinator_epoch, version)
        except KafkaError as error:
            return error.code
        return None

    assert code(2, 1, 0) == OLD
    assert code(3, 1, 0) is None
    assert code(3, 1, 2) == OLD, "since transactions version 2 a marker has a new epoch"
    assert code(4, 1, 2) is None
    mark(state, 11, epoch=4, coordinator_epoch=5)
    assert code(4, 5, 2) is None, "the same marker once more"
    assert code(4, 4, 2) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_expiry_by_the_time_of_the_batches(state: ProducerState):
    add(state, 0, 10, timestamp=5000)
    add(state, 0, 11, producer_id=8, timestamp=5001)
    add(state, 0, 12, producer_id=9, timestamp=0, transactional=True)
    state.remove_expired(5999, end=10, count=10)
    assert set(state.producers) == {7, 8, 9}
    state.remove_expired(6000, end=10, count=10)
    assert set(state.producers) == {8, 9}, "an open transaction keeps its producer"


def test_snapshot_bytes(state: ProducerState):
    add(state, 4, 105, count=3, epoch=2, timestamp=1_700_000_000_000)
    add(state, 9, 106, producer_id=1 << 40, transactional=True, timestamp=77)
    mark(state, 107, producer_id=9, epoch=5, coordinator_epoch=6, timestamp=88)
    assert state.take_snapshot(sync=True) == 108
    data = state._fs.read_bytes("/d/00000000000000000108.snapshot")
    entries = (
        struct.pack(">qhiqiqiq", 7, 2, 4, 105, 2, 1_700_000_000_000, -1, -1)
        + struct.pack(">qhiqiqiq", 1 << 40, 0, 9, 106, 0, 77, -1, 106)
        + struct.pack(">qhiqiqiq", 9, 5, -1, -1, 0, 88, 6, -1)
    )
    assert len(entries) == 3 * 46
    rest = struct.pack(">i", 3) + entries
    assert data == struct.pack(">hI", 1, crc32c(rest)) + rest
    assert encode_snapshot(bytes(decode_snapshot(data))) == data


def test_a_snapshot_restores_the_state(state: ProducerState):
    add(state, 1, 9)
    add(state, 4, 10)
    add(state, 0, 11, producer_id=8, transactional=True)
    state.take_snapshot(sync=True)
    again = ProducerState(state._fs, "/d", expiration_ms=1000)
    again.truncate_and_reload(0, 12, 60)
    assert again.end_offset == again.last_snapshot_offset == 12
    assert (check(again, 5), check(again, 4)) == (None, GAP)
    assert again.find_duplicate(7, 0, 4, 4).last_offset == 10
    assert again.find_duplicate(7, 0, 1, 1) is None, "only the last batch is kept"
    assert again.first_unstable_offset == 11
    again = ProducerState(state._fs, "/d", expiration_ms=1000)
    again.truncate_and_reload(0, 12, 1050)
    assert set(again.producers) == {8}, "the producer without a transaction has expired"


def test_no_snapshot_without_a_change(state: ProducerState):
    assert state.take_snapshot(sync=True) is None
    add(state, 0, 10)
    assert state.take_snapshot(sync=True) == 11
    fs = state._fs
    assert isinstance(fs, MemoryFileSystem)
    operations = fs.operations
    assert state.take_snapshot(sync=True) is None
    assert fs.operations == operations


DAMAGE = {
    "empty": lambda data: b"",
    "cut in the head": lambda data: data[:9],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "version": lambda data: b"\0\2" + data[2:],
    "flipped bit": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "count": lambda data: data[:2] + struct.pack(">I", crc32c(b"\0\0\0\2" + data[10:])) + b"\0\0\0\2" + data[10:],
    "negative count": lambda data: data[:2] + struct.pack(">I", crc32c(b"\xff" * 4)) + b"\xff" * 4,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_snapshot_is_removed_and_the_previous_one_is_loaded(state: ProducerState, damage):
    fs = state._fs
    add(state, 0, 10)
    state.take_snapshot(sync=True)
    add(state, 1, 20)
    state.take_snapshot(sync=True)
    path = state.snapshot_path(21)
    data = DAMAGE[damage](fs.read_bytes(path))
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(data)
    file = fs.open(path)
    file.truncate(0)
    file.write_pieces(0, [data], len(data))
    again = ProducerState(fs, "/d", expiration_ms=1000)
    again.truncate_and_reload(0, 30, 60)
    assert again.end_offset == 11, "the log is replayed from here"
    assert again.producers[7].last_sequence == 0
    assert fs.list_names("/d") == ["00000000000000000011.snapshot"]


def test_snapshots_outside_of_the_log_are_removed(state: ProducerState):
    for offset in (5, 10, 15, 20):
        add(state, offset, offset - 1)
        state.take_snapshot(sync=True)
    state.truncate_and_reload(5, 17, 60)
    assert state._fs.list_names("/d") == ["00000000000000000010.snapshot", "00000000000000000015.snapshot"]
    assert (state.end_offset, state.producers[7].last_sequence) == (15, 15)


def test_stray_snapshots(state: ProducerState):
    for offset in (5, 10, 15, 20, 25):
        add(state, offset, offset - 1)
        state.take_snapshot(sync=True)
    state.remove_stray_snapshots([0, 10, 15])
    assert [int(name[:20]) for name in state._fs.list_names("/d")] == [10, 15, 25], "and the newest one"
    state.remove_stray_snapshots([0, 10, 25])
    assert [int(name[:20]) for name in state._fs.list_names("/d")] == [10, 25]
    assert state.forget_snapshot(10) == "00000000000000000010.snapshot"
    assert state.forget_snapshot(10) is None
    state.truncate_fully(3)
    assert [int(name[:20]) for name in state._fs.list_names("/d")] == [10], "it is removed with its deleted segment"
    assert state.is_empty and state.end_offset == 3


def test_the_first_of_many_open_transactions_is_found_whatever_the_order_of_their_ends(state: ProducerState):
    starts = list(range(100, 150))
    for producer_id, start in enumerate(starts):
        add(state, 0, start, producer_id=producer_id, transactional=True)
    order = [*range(25, 50), *range(10), *range(24, 9, -1)]
    for number, producer_id in enumerate(order):
        marker_offset = 200 + number
        completed = state.add_marker(producer_id, 0, 1, marker_offset, 50, True)
        assert completed is not None
        others = [start for start in starts if start != starts[producer_id] and start >= 0]
        assert state.last_stable_offset_after(completed) == min(others, default=marker_offset + 1)
        starts[producer_id] = -1
        state.complete(completed)
        state.high_watermark_advanced(marker_offset + 1)
        assert state.first_unstable_offset == min((start for start in starts if start >= 0), default=-1)
        assert len(state._ongoing_starts) <= 50
