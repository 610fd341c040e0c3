import pytest

from odradek.tools.kafka.topics.record_production import choose_partition, hash_murmur2


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
