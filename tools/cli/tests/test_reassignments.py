"""Plans of `odradek partition reassign plan`."""

import json
from collections import Counter

import pytest

from odradek.tools.cli.cluster.reassignments import check_replicas, distribute, merge_throttled, read_plan
from odradek.tools.cli.session import CommandError
from odradek.tools.kafka.cluster import RequestError


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


LIVE = [1, 2, 3]


@pytest.mark.parametrize(
    ("replicas", "problem"),
    [([], "there are no replicas"), ([1, 1], "contain a broker twice"), ([1, 9], "there is no live broker 9")],
)
def test_replicas_are_checked_before_throttles_are_set(replicas, problem):
    with pytest.raises(RequestError, match=f"t-0: INVALID_REPLICA_ASSIGNMENT: .*{problem}"):
        check_replicas({("t", 0): replicas}, {("t", 0): [1, 2]}, LIVE)


def test_a_replica_may_stay_on_a_broker_that_is_not_live():
    check_replicas({("t", 0): [3, 4]}, {("t", 0): [4, 1]}, LIVE)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"topic": "t", "partition": 0, "replicas": "12"}], "lacks topic, partition or replicas"),
        ([{"topic": "t", "partition": 1.5, "replicas": [1]}], "lacks topic, partition or replicas"),
        ([{"topic": "t", "partition": 1e999, "replicas": [1]}], "lacks topic, partition or replicas"),
        ([{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}], "moves no replicas between"),
        ([{"topic": "t", "partition": 0, "replicas": [each]} for each in (1, 2)], "has t-0 twice"),
    ],
)
def test_an_invalid_plan_is_refused(tmp_path, entries, problem):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    with pytest.raises(CommandError, match=problem):
        read_plan(file)


def test_log_directories_that_brokers_choose_are_permitted(tmp_path):
    file = tmp_path / "plan.json"
    entry = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["any"]}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    assert read_plan(file) == {("t", 0): [1]}


def test_replicas_of_earlier_reassignments_stay_throttled():
    assert merge_throttled("", ["0:1"]) == "0:1"
    assert merge_throttled("0:1,0:2", ["1:1", "0:2"]) == "0:1,0:2,1:1"
    assert merge_throttled("*", ["1:1"]) == "*"
