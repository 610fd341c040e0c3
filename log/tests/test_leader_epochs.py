"""Leader epochs: assignment, end offsets and truncation (KIP-101, KIP-279)."""

import pytest

from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.tests.support import append, memory_fs, open_log, truncate

SOME = [(1, 0), (3, 10), (7, 25)]


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (9, 30, [*SOME, (9, 30)]),
        (7, 25, SOME),
        (7, 99, SOME),
        (7, 24, [(1, 0), (3, 10), (7, 24)]),
        (9, 25, [(1, 0), (3, 10), (9, 25)]),
        (9, 10, [(1, 0), (9, 10)]),
        (3, 40, [(1, 0), (3, 40)]),
        (2, 5, [(1, 0), (2, 5)]),
        (0, 0, [(0, 0)]),
        (-1, 50, SOME),
        (9, -1, SOME),
    ],
)
def test_assign(epoch, start, expected):
    epochs = LeaderEpochs(SOME)
    assert not epochs.dirty
    assert epochs.assign(epoch, start) == (expected != SOME)
    assert epochs.entries == expected
    assert epochs.dirty == (expected != SOME)
    assert epochs.latest_epoch == expected[-1][0]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 25)), (5, (3, 25)), (7, (7, 40)), (8, (-1, -1))],
)
def test_end_offset(epoch, expected):
    assert LeaderEpochs(SOME).end_offset_for(epoch, 40) == expected


def test_epoch_of_an_offset():
    epochs = LeaderEpochs([(3, 10), (7, 25)])
    assert [epochs.epoch_for(offset) for offset in (9, 10, 24, 25, 99)] == [-1, 3, 3, 7, 7]
    assert epochs.earliest() == (3, 10)


def test_no_epochs():
    epochs = LeaderEpochs()
    assert (epochs.latest_epoch, epochs.earliest(), epochs.epoch_for(5)) == (-1, None, -1)
    assert epochs.end_offset_for(0, 9) == (-1, -1)
    epochs.truncate_from_end(0)
    epochs.truncate_from_start(5)
    epochs.clear()
    assert not epochs.dirty


@pytest.mark.parametrize(
    ("end", "expected"), [(0, []), (10, SOME[:1]), (11, SOME[:2]), (25, SOME[:2]), (26, SOME), (99, SOME)]
)
def test_truncate_from_end(end, expected):
    epochs = LeaderEpochs(SOME)
    epochs.truncate_from_end(end)
    assert epochs.entries == expected
    assert epochs.dirty == (expected != SOME)


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, SOME), (4, [(1, 4), *SOME[1:]]), (10, SOME[1:]), (12, [(3, 12), (7, 25)]), (25, SOME[2:]), (99, [(7, 99)])],
)
def test_truncate_from_start(start, expected):
    epochs = LeaderEpochs(SOME)
    epochs.truncate_from_start(start)
    assert epochs.entries == expected
    assert epochs.dirty == (expected != SOME)


def test_a_log_keeps_its_epochs_in_a_checkpoint():
    log = open_log()
    append(log, [b"a"] * 3, leader_epoch=2)
    append(log, [b"b"], leader_epoch=2)
    append(log, [b"c"], leader_epoch=5)
    path = f"{log.directory}/leader-epoch-checkpoint"
    assert log.fs.read_bytes(path) == b"0\n2\n2 0\n5 4\n"
    assert (log.offset_for_leader_epoch(3), log.epoch_for_offset(3)) == ((2, 4), 2)
    log.delete_records_before(2)
    assert log.fs.read_bytes(path) == b"0\n2\n2 2\n5 4\n"
    truncate(log, 4, 0)
    assert log.fs.read_bytes(path) == b"0\n1\n2 2\n"
    log.assign_epoch(8, log.log_end_offset)
    assert log.offset_for_leader_epoch(2) == (2, 4)


@pytest.mark.parametrize("next_epochs", [(5, 5), (5, 6), (6, 6), (5, 9), (8, 8)])
def test_an_epoch_that_a_power_loss_restores_contains_no_batches_of_earlier_epochs(next_epochs):
    """Followers of a leader with such a history would truncate their logs and fetch the same batches for ever."""
    log = open_log()
    append(log, leader_epoch=5)
    log.elect(7)
    log.flush(0)
    truncate(log, 1)
    for epoch in next_epochs:
        append(log, leader_epoch=epoch)
    entries = log.leader_epochs.entries
    # The system has written the batches, but not the new name of the checkpoint.
    log.active_segment.file.sync()
    fs = memory_fs(log)
    fs.crash(lose_names=True)
    for _ in range(2):
        log = open_log(fs, is_clean=False, recovery_point=1)
        assert (log.log_end_offset, log.leader_epochs.entries) == (3, entries)
