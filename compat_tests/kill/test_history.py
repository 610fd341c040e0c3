"""Each rule of the kill tests: it reports a history that violates it, and no valid one."""

import pytest

from compat_tests.kill.history import CommittedOffsets, Entry, Fate, Ledger, Sightings, Stored, check_log

ACKNOWLEDGED, ABORTED, UNKNOWN = Fate.ACKNOWLEDGED, Fate.ABORTED, Fate.UNKNOWN


def ledger(*entries: Entry, once: bool = True) -> Ledger:
    return Ledger("w", once, list(entries))


def log(*partitions: list[tuple[int, int]]) -> dict[int, list[Stored]]:
    """Return partitions of (offset, number)."""
    return {p: [Stored(offset, b"w.%d" % number) for offset, number in rows] for p, rows in enumerate(partitions)}


def at(partition: int, offset: int) -> Entry:
    return Entry(ACKNOWLEDGED, partition, offset)


SOUND = [
    (ledger(at(0, 5), at(1, 0), Entry()), log([(5, 0)], [(0, 1), (3, 2)])),
    (ledger(at(0, 5), Entry()), log([(5, 0)])),
    (ledger(at(0, 1), at(0, 2), once=False), log([(0, 0), (1, 0), (2, 1), (3, 0)])),
    (ledger(Entry(ABORTED, transaction=0), Entry(ACKNOWLEDGED, 0, 9, transaction=1)), log([(9, 1)])),
    (ledger(Entry(transaction=0), Entry(transaction=0)), log([(9, 0)], [(4, 1)])),
    (ledger(Entry(transaction=0), Entry(transaction=0)), log([])),
]
BROKEN = {
    "is lost": (ledger(at(0, 5)), log([])),
    "more than once": (ledger(at(0, 5)), log([(5, 0), (6, 0)])),
    "is at": (ledger(at(0, 5)), log([(6, 0)])),
    "in partition 0 and is at": (ledger(at(0, 5)), log([], [(5, 0)])),
    "follows": (ledger(at(0, 6), at(0, 5)), log([(5, 1), (6, 0)])),
    "follows 1": (ledger(at(0, 6), at(0, 5), once=False), log([(5, 1), (6, 0)])),
    "was aborted and is visible": (ledger(Entry(ABORTED, transaction=0)), log([(1, 0)])),
    "is torn": (ledger(Entry(UNKNOWN, transaction=0), Entry(UNKNOWN, transaction=0)), log([(1, 0)])),
    "never sent": (ledger(), log([(1, 0)])),
    "was read after": (ledger(at(0, 3), at(0, 2)), log([(3, 0), (2, 1)])),
}


@pytest.mark.parametrize(("written", "stored"), SOUND)
def test_a_valid_log_has_no_complaints(written: Ledger, stored: dict[int, list[Stored]]) -> None:
    assert check_log([written], stored, committed_only=True) == []


@pytest.mark.parametrize("complaint", BROKEN)
def test_a_violation_is_reported(complaint: str) -> None:
    written, stored = BROKEN[complaint]
    assert any(complaint in found for found in check_log([written], stored, committed_only=True))


def test_aborted_and_torn_transactions_may_be_read_uncommitted() -> None:
    written = ledger(Entry(ABORTED, transaction=0), Entry(ABORTED, transaction=0))
    assert check_log([written], log([(1, 0)]), committed_only=False) == []


def test_an_unknown_writer_is_reported() -> None:
    assert check_log([], {0: [Stored(0, b"x.1")]}, committed_only=True) == ["x: never written"]


def test_one_offset_has_one_value() -> None:
    seen = Sightings()
    seen.add("a", 0, 7, b"w.1")
    seen.add("b", 0, 7, b"w.1")
    assert seen.complaints == []
    seen.add("b", 0, 7, b"w.2")
    assert len(seen.complaints) == 1


def test_values_read_are_compared_with_the_log() -> None:
    seen = Sightings()
    seen.add("a", 0, 0, b"w.0")
    assert seen.check(log([(0, 0)]), whole=True) == []
    assert seen.check(log([(0, 0), (1, 1)]), whole=False) == []
    assert seen.check(log([(0, 0), (1, 1)]), whole=True) == ["(0, 1) was skipped"]
    assert len(seen.check(log([(0, 3)]), whole=False)) == 1
    assert len(seen.check(log([]), whole=False)) == 1


def test_committed_offsets_do_not_go_back() -> None:
    committed = CommittedOffsets()
    committed.record_commit({0: 10})
    committed.check_fetch(committed.least(), {0: 10, 1: 4})
    committed.check_fetch(committed.least(), {0: 12, 1: 4})
    assert committed.complaints == []
    committed.check_fetch(committed.least(), {0: 11, 1: 4})
    assert len(committed.complaints) == 1
    committed.check_fetch(committed.least(), {0: 12})
    assert len(committed.complaints) == 2


def test_a_fetch_that_began_before_a_commit_may_miss_it() -> None:
    committed = CommittedOffsets()
    least = committed.least()
    committed.record_commit({0: 10})
    committed.check_fetch(least, {})
    assert committed.complaints == []
