"""Plans of `odradek partition reassign plan`."""

from collections import Counter

import pytest

from odradek.tools.cli.reassignments import distribute
from odradek.tools.cli.session import CommandError


def partitions(count, replicas):
    return {("t", index): replicas for index in range(count)}


def test_leaders_and_replicas_are_spread_evenly():
    planned = distribute(partitions(12, [1, 2]), [1, 2, 3], dict.fromkeys([1, 2, 3]))
    assert Counter(replicas[0] for replicas in planned.values()) == {1: 4, 2: 4, 3: 4}
    assert Counter(each for replicas in planned.values() for each in replicas) == {1: 8, 2: 8, 3: 8}
    assert all(len(set(replicas)) == 2 for replicas in planned.values())


def test_replicas_are_on_different_racks():
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    planned = distribute(partitions(8, [1, 2]), [1, 2, 3, 4], racks)
    assert all({racks[each] for each in replicas} == {"a", "b"} for replicas in planned.values())
    assert Counter(each for replicas in planned.values() for each in replicas) == dict.fromkeys([1, 2, 3, 4], 4)


def test_replicas_stay_if_that_is_even():
    current = {("t", 0): [2], ("t", 1): [1]}
    assert distribute(current, [1, 2], {1: None, 2: None}) == current


def test_the_number_of_replicas_changes():
    planned = distribute(partitions(2, [1]), [1, 2, 3], dict.fromkeys([1, 2, 3]), 3)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in planned.values())
    with pytest.raises(CommandError, match="t-0 needs 4 replicas, and --brokers has 3"):
        distribute(partitions(2, [1]), [1, 2, 3], dict.fromkeys([1, 2, 3]), 4)
