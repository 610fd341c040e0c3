import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.assignment import assign_replicas


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
