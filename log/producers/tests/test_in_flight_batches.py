"""A start, and a truncation, keep the last batches of each producer, which the producer may send again."""

import pytest

from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.producers import in_flight_batches
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import NOW_MS, append, config, idempotent, open_log, truncate
from odradek.protocol.errors import ErrorCode, KafkaError

LARGE = config(internal_segment_bytes=100_000, index_interval_bytes=100)
SMALL = config(internal_segment_bytes=400, index_interval_bytes=100)


def restart(
    log: PartitionLog, fs: MemoryFileSystem, cfg: LogConfig, *, is_clean: bool, now_ms: int = NOW_MS
) -> PartitionLog:
    if is_clean:
        log.close(NOW_MS)
    return open_log(fs, cfg, is_clean=is_clean, now_ms=now_ms)


def batch_ends(log: PartitionLog, producer_id: int = 7) -> list[int]:
    return [mark.last_offset for mark in log.producer_state.producers[producer_id].batches]


@pytest.mark.parametrize("removed", range(1, 10))
def test_batches_in_flight_before_a_truncation_are_duplicates_after_it(removed):
    """The newest snapshot, which has one batch of each producer, is of the end of the log."""
    log = open_log(MemoryFileSystem(), LARGE)
    end = 14 - removed
    for number in range(14):
        if number == end:
            log.roll(NOW_MS)
        append(log, idempotent(number))
    truncate(log, end)
    assert log.producer_state.has_snapshot(end)
    for sequence in range(4, end):
        assert append(log, idempotent(sequence)).first_offset == sequence
    assert log.log_end_offset == end
    with pytest.raises(KafkaError) as error:
        append(log, idempotent(3))
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, idempotent(end)).first_offset == end


def test_a_truncation_keeps_no_batches_of_another_epoch():
    log = open_log(MemoryFileSystem(), LARGE)
    for sequence in range(2):
        append(log, idempotent(sequence))
    log.roll(NOW_MS)
    append(log, idempotent(0, epoch=1))
    truncate(log, 2)
    assert batch_ends(log) == [1]
    append(log, idempotent(0, epoch=1))
    append(log, idempotent(1, epoch=1))
    truncate(log, 3)
    assert batch_ends(log) == [2]


def open_log_with_distant_batches(fs: MemoryFileSystem) -> PartitionLog:
    """Open a log in which eleven batches of an idempotent producer precede 49 others."""
    log = open_log(fs, LARGE)
    for number in range(60):
        append(log, idempotent(number) if number < 11 else [b"plain"])
    return log


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("cfg", [LARGE, SMALL])
def test_all_batches_that_may_be_in_flight_are_duplicates_after_a_start(cfg, is_clean):
    fs = MemoryFileSystem()
    log = open_log(fs, cfg)
    written = {}
    for number in range(14):
        written[number * 2] = append(log, idempotent(number * 2, 2)).first_offset
        append(log, idempotent(number, producer_id=8))
        append(log, [b"plain"])
    end = log.log_end_offset
    log = restart(log, fs, cfg, is_clean=is_clean)
    for sequence in range(8, 28, 2):
        assert append(log, idempotent(sequence, 2)).first_offset == written[sequence]
    assert log.log_end_offset == end
    with pytest.raises(KafkaError) as error:
        append(log, idempotent(6, 2))
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, idempotent(28, 2)).first_offset == end


@pytest.mark.parametrize("is_clean", [True, False])
def test_batches_of_an_earlier_epoch_are_not_restored(is_clean):
    fs = MemoryFileSystem()
    log = open_log(fs, LARGE)
    for sequence in range(4):
        append(log, idempotent(sequence))
    for sequence in range(2):
        append(log, idempotent(sequence, epoch=1))
    log = restart(log, fs, LARGE, is_clean=is_clean)
    assert batch_ends(log) == [4, 5]


def test_the_search_extends_further_from_the_end_for_distant_batches(monkeypatch):
    monkeypatch.setattr(in_flight_batches, "_FIRST_WINDOW_BYTES", 300)
    fs = MemoryFileSystem()
    log = open_log_with_distant_batches(fs)
    log = restart(log, fs, LARGE, is_clean=True)
    assert batch_ends(log) == list(range(1, 11))


def test_batches_that_are_too_distant_or_too_old_are_not_restored(monkeypatch):
    monkeypatch.setattr(in_flight_batches, "_FIRST_WINDOW_BYTES", 300)
    monkeypatch.setattr(in_flight_batches, "_MAX_HEADERS", 3)
    fs = MemoryFileSystem()
    log = open_log_with_distant_batches(fs)
    log = restart(log, fs, LARGE, is_clean=True)
    assert batch_ends(log) == [10]
    monkeypatch.undo()
    later = NOW_MS + in_flight_batches.REPEATED_WITHIN_MS + 1
    log = restart(log, fs, LARGE, is_clean=True, now_ms=later)
    assert batch_ends(log) == [10]
