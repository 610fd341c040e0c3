"""Committed batches: a replica that differs from the others below its high watermark is reported."""

from types import SimpleNamespace

import pytest

from odradek.log.tests.support import append, config, open_log, truncate
from odradek.simulation.cluster.branches import Branch
from odradek.simulation.cluster.committed import CommittedBatches

PARTITION = Branch(b"id", 0)


def log_of(*values, epochs=None, **properties):
    log = open_log(cfg=config(**properties))
    for number, value in enumerate(values):
        append(log, [value] * 3, leader_epoch=0 if epochs is None else epochs[number])
    return log


@pytest.fixture
def committed():
    committed = CommittedBatches()
    leader = log_of(b"a", b"b" * 200, b"c" * 500, b"d")
    committed.commit(PARTITION, leader.high_watermark)
    assert list(committed.compare("broker-1", PARTITION, leader, leader.high_watermark)) == []
    assert committed.end(PARTITION) == 12
    return committed


def compare(committed, log, end=12):
    return list(committed.compare("broker-2", PARTITION, log, end))


def test_an_equal_replica_is_compared_in_parts(committed):
    log = log_of(b"a", b"b" * 200, b"c" * 500, b"d")
    assert [compare(committed, log, end) for end in (3, 9, 9, 12)] == [[]] * 4


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (log_of(b"a", b"b" * 200, b"c" * 500, b"e"), "the batch at 9 is"),
        (log_of(b"a", b"b" * 200, b"c" * 500, b"d", epochs=(0, 0, 0, 1)), "the batch at 9 is"),
        (log_of(b"a", b"b" * 200), None),
    ],
)
def test_different_batches_are_reported(committed, log, text):
    found = compare(committed, log)
    assert len(found) == (text is not None)
    assert all(what.startswith(text) for what in found)


def test_a_missing_batch_is_reported(committed):
    log = log_of(b"a", b"b" * 200, b"c" * 500, b"d")
    without_first = SimpleNamespace(
        config=log.config, segments=log.segments[1:], log_start_offset=0, log_end_offset=12
    )
    assert compare(committed, without_first) == ["the batch at 0 is missing"]


def test_a_truncation_below_committed_batches_is_reported(committed):
    log = log_of(b"a", b"b" * 200, b"c" * 500, b"d")
    assert compare(committed, log, 9) == []
    truncate(log, 9)
    assert compare(committed, log, 9) == []
    truncate(log, 3)
    assert compare(committed, log, 3) == ["truncated to 3, below the committed offset 9"]


def test_compacted_logs_are_not_compared(committed):
    assert compare(committed, log_of(b"x", cleanup_policy="compact")) == []
