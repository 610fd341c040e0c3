from types import SimpleNamespace
from typing import Any

import pytest

from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.topics.record_production import choose_partition, hash_murmur2, produce_record


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_kafkas_own_test(data, expected):
    assert hash_murmur2(data) == expected & 0xFFFFFFFF


def test_partitions_of_keys():
    assert choose_partition(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert choose_partition(b"", 1) == 0


@pytest.mark.parametrize(
    ("partition", "error"), [(7, "topic t has no partition 7, only 0 to 1"), (1, "t-1 has no leader")]
)
def test_a_partition_that_cannot_be_written(partition, error):
    partitions = [SimpleNamespace(partition_index=index, leader_id=leader) for index, leader in enumerate((3, -1))]
    cluster: Any = SimpleNamespace(fetch_topics=lambda names: [SimpleNamespace(name="t", partitions=partitions)])
    with pytest.raises(RequestError, match=error):
        produce_record(cluster, "t", partition, None, b"v", (), 0)
