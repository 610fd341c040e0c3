import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.states.assignment import (
    alternate_racks,
    assign_replicas,
    check_replicas,
    find_racks,
)
from odradek.replication.tests.support import broker


def test_kafkas_own_example():
    assigned = assign_replicas(range(5), 10, 3, start=0, shift=0)
    assert assigned[0] == (0, 1, 2)
    assert assigned[4] == (4, 0, 1)
    assert assigned[5] == (0, 2, 3)
    assert assigned[9] == (4, 1, 2)


def test_added_partitions_go_on_where_the_old_ones_ended():
    assert assign_replicas([1, 2, 3], 3, 1, start=1, shift=1, first_partition=2) == [(1,), (2,), (3,)]


def test_one_broker_holds_everything():
    assert assign_replicas([7], 3, 1, start=0, shift=0) == [(7,), (7,), (7,)]


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_impossible_factors(factor):
    with pytest.raises(KafkaError) as error:
        assign_replicas([1, 2, 3], 1, factor, start=0, shift=0)
    assert error.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@given(st.integers(1, 9), st.integers(1, 60), st.data())
def test_replicas_differ_and_leaders_are_even(count, partitions, data):
    factor = data.draw(st.integers(1, count))
    start, shift = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
    assigned = assign_replicas(range(count), partitions, factor, start=start, shift=shift)
    assert all(len(set(replicas)) == factor for replicas in assigned)
    leaders = [replicas[0] for replicas in assigned]
    assert max(leaders.count(b) for b in range(count)) - min(leaders.count(b) for b in range(count)) <= 1


RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def assign_by_rack(racks, partitions, factor, **options):
    options = {"start": 0, "shift": 0, **options}
    return assign_replicas(sorted(racks), partitions, factor, racks=racks, **options)


def test_kafkas_example_with_racks():
    assert alternate_racks(RACKS) == [0, 3, 1, 5, 4, 2]
    assert assign_by_rack(RACKS, 7, 3) == [
        (0, 3, 1),
        (3, 1, 5),
        (1, 5, 4),
        (5, 4, 2),
        (4, 2, 0),
        (2, 0, 3),
        (0, 4, 2),
    ]


def test_racks_of_different_size():
    assert alternate_racks({1: "b", 2: "a", 3: "a", 4: "a"}) == [2, 1, 3, 4]
    assert assign_by_rack({1: "b", 2: "a", 3: "a", 4: "a"}, 4, 2) == [(2, 1), (1, 3), (3, 1), (4, 1)]


def test_one_replica_of_racked_brokers():
    assert assign_by_rack(RACKS, 3, 1, start=4) == [(4,), (2,), (0,)]


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=9), st.integers(1, 40), st.data())
def test_each_rack_gets_a_replica_before_any_gets_two(names, partitions, data):
    racks = dict(enumerate(names))
    factor = data.draw(st.integers(1, len(racks)))
    start, shift = data.draw(st.integers(0, len(racks) - 1)), data.draw(st.integers(0, len(racks) - 1))
    for replicas in assign_by_rack(racks, partitions, factor, start=start, shift=shift):
        assert len(set(replicas)) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(names)))


def racked(broker_id, rack):
    return broker(broker_id)._replace(rack=rack)


def test_racks_of_all_brokers_or_of_none():
    assert find_racks([racked(1, None), racked(2, None)]) is None
    assert find_racks([racked(1, "a"), racked(2, "b")]) == {1: "a", 2: "b"}
    with pytest.raises(KafkaError, match="Not all brokers have rack information") as error:
        find_racks([racked(1, "a"), racked(2, None)])
    assert error.value.code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("replicas", "factor", "message"),
    [
        ((), None, "includes an empty replica list"),
        ((1, 9), None, "includes broker 9, but no such broker is registered"),
        ((-1,), None, "includes broker -1, but no such broker is registered"),
        ((2, 1, 2), None, "includes the broker 2 more than once"),
        ((9, 9), None, "includes broker 9, but"),
        ((1, 2), 3, "a partition with 2 replica"),
    ],
)
def test_invalid_manual_assignments(replicas, factor, message):
    with pytest.raises(KafkaError, match=message) as error:
        check_replicas(replicas, (1, 2, 3).__contains__, factor)
    assert error.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
