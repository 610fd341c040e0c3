"""Positions of readers, with a controlled clock."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.server.fetching import readers as module
from odradek.server.fetching.readers import EXPIRY_MS, MAX_ID_LENGTH, Readers


class Partition:
    """A led partition with 100 records."""

    def __init__(self, index):
        self.topic, self.index, self.is_leader = "t", index, True
        self.log = SimpleNamespace(high_watermark=100)


class Case:
    """The readers of a broker that leads four partitions."""

    def __init__(self):
        self.now_ms = 1_000_000
        self.readers = Readers(lambda: 5_000_000_000, lambda: self.now_ms)
        self.partitions = [Partition(index) for index in range(4)]

    def fetch(self, client_id, **offsets):
        """Fetch from partitions, by `p` and their index."""
        targets: Any = [
            SimpleNamespace(partition=self.partitions[int(name[1:])], requested=SimpleNamespace(fetch_offset=offset))
            for name, offset in offsets.items()
        ]
        self.readers.record(client_id, targets)

    def positions(self):
        found = [one for some in self.readers.list_positions(2) for one in some]
        return {(one.client_id, one.partition.index): (one.offset, one.lag) for one in found}


@pytest.fixture
def case():
    return Case()


def test_the_last_fetch_of_each_client_and_partition_counts(case):
    case.fetch("a", p0=10, p1=20)
    case.fetch("a", p0=90)
    case.fetch("b", p0=100)
    assert case.positions() == {("a", 0): (90, 10), ("a", 1): (20, 80), ("b", 0): (100, 0)}


def test_a_fetch_of_all_records_moves_the_position_to_their_end(case):
    case.fetch("a", p0=10, p1=20)
    case.readers.record_ends("a", [(case.partitions[0], 100), (case.partitions[2], 100)])
    case.readers.record_ends("b", [(case.partitions[1], 100)])
    assert case.positions() == {("a", 0): (100, 0), ("a", 1): (20, 80)}
    case.fetch("a", p0=50)
    assert case.positions() == {("a", 0): (50, 50), ("a", 1): (20, 80)}


def test_the_time_of_a_fetch_is_shown_by_the_wall_clock(case):
    case.fetch("a", p0=1)
    case.now_ms += 700
    ((one,),) = case.readers.list_positions()
    assert one.fetched_ms == 5_000_000_000 - 700


def test_a_position_beyond_the_high_watermark_has_no_lag(case):
    case.fetch("a", p0=101)
    assert case.positions() == {("a", 0): (101, 0)}


def test_a_reader_that_stopped_is_kept_for_a_day(case):
    case.fetch("a", p0=10)
    case.now_ms += EXPIRY_MS
    case.fetch("a", p1=10)
    assert set(case.positions()) == {("a", 0), ("a", 1)}
    case.now_ms += 1
    assert set(case.positions()) == {("a", 1)}


def test_partitions_with_another_leader_are_removed(case):
    case.fetch("a", p0=10)
    case.partitions[0].is_leader = False
    assert case.positions() == {}
    case.partitions[0].is_leader = True
    assert case.positions() == {}


def test_clients_that_fetched_last_are_kept(case, monkeypatch):
    monkeypatch.setattr(module, "MAX_CLIENTS", 2)
    for client_id in ("a", "b", "a", "c"):
        case.fetch(client_id, p0=1)
    assert set(case.positions()) == {("a", 0), ("c", 0)}


def test_the_number_of_positions_is_bounded(case, monkeypatch):
    monkeypatch.setattr(module, "MAX_POSITIONS", 5)
    case.fetch("a", p0=1, p1=1, p2=1, p3=1)
    case.fetch("b", p0=1, p1=1)
    assert set(case.positions()) == {("b", 0), ("b", 1)}
    for _ in range(3):
        case.fetch("b", p0=1, p1=1)
    case.fetch("c", p0=1, p1=1, p2=1)
    assert len(case.positions()) == 5


def test_long_client_ids_are_cut_off(case):
    case.fetch("n" * 30_000, p0=10)
    case.fetch("n" * 20_000, p0=20)
    assert case.positions() == {("n" * MAX_ID_LENGTH, 0): (20, 80)}
