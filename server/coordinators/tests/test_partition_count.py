"""The number of partitions of an adopted internal topic, from the ids in its partitions."""

import pytest

from odradek.coordinator.partitioning import partition_for
from odradek.log.storage.found_directories import MAX_FOUND_PARTITIONS
from odradek.server.coordinators.partition_count import find_fitting_count

NAMES = [f"group-{number}" for number in range(100)]


def placed(count, up_to):
    """Ids with their partitions in a topic of `count` partitions, of the partitions below `up_to`."""
    ids = [(name, partition_for(name, count)) for name in NAMES]
    return [one for one in ids if one[1] < up_to]


@pytest.mark.parametrize(
    ("count", "found", "configured", "expected"),
    [
        pytest.param(8, 8, 8, 8, id="all directories exist"),
        pytest.param(8, 5, 8, 8, id="the last directories are missing"),
        pytest.param(8, 8, 50, 8, id="another count was configured"),
        pytest.param(50, 47, 8, 50, id="missing directories and another configured count"),
        pytest.param(100, 100, 50, 100, id="more than configured"),
    ],
)
def test_the_count_fits_all_ids(count, found, configured, expected):
    assert find_fitting_count(found, configured, placed(count, found)) == expected


def test_without_ids_the_count_is_the_configured_one_or_that_found():
    assert find_fitting_count(5, 8, []) == 8
    assert find_fitting_count(5, 3, []) == 5


def test_if_no_count_fits_all_ids_the_best_one_is_used():
    """A topic that grew has older ids in other partitions."""
    ids = [*placed(16, 16), ("group-1", 3), ("group-2", 4)]
    assert find_fitting_count(16, 50, ids) == 16
    assert find_fitting_count(MAX_FOUND_PARTITIONS, 50, ids) == MAX_FOUND_PARTITIONS
