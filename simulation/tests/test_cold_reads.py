"""Files that are on the simulated disk only."""

from random import Random

from odradek.simulation.machine.disk import SimulatedDisk


def test_a_file_on_the_disk_only_stays_there_until_it_is_loaded():
    """The broker tries a read more than once before it leaves it to a thread, which would never get one otherwise."""
    disk = SimulatedDisk(lambda: 0, Random(1), lambda: None)
    disk.make_directory("/data")
    file = disk.open("/data/file", create=True)
    file.write_pieces(0, [b"abcd"], 4)
    reads = 1
    while file.read_cached(0, 4) is not None:
        reads += 1
        assert reads < 10
    assert not file.is_cached(0, 4)
    assert file.read_cached(0, 4) is None
    file.load(0, 4)
    assert file.read_cached(0, 4) == b"abcd"
