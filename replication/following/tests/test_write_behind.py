"""WriteBehind: what a follower appends long after it was written does not stay in memory."""

import os
from types import SimpleNamespace

import pytest

from odradek.log.storage.filesystem import OsFileSystem
from odradek.log.storage.page_cache import lacks_pages
from odradek.replication.following.write_behind import KEPT_BYTES, PART_BYTES, WriteBehind

MB = 1 << 20
FAR = 1 << 40


class Disk:
    """A segment that grows by 1 MB, the parts that were removed from memory, and a thread."""

    def __init__(self):
        self.parts = []
        self.reads = []
        self.write_behind = WriteBehind(lambda work, done: self.reads.append((work, done)))
        self.start("/0")

    def start(self, path, size_bytes=0):
        """Begin a segment."""
        drop_cached = lambda *part: self.parts.append((path, *part))  # noqa: E731
        self.segment = SimpleNamespace(
            file=SimpleNamespace(path=path, drop_cached=drop_cached), size_bytes=size_bytes
        )

    def append(self, count, missing_bytes=FAR):
        for _ in range(count):
            self.segment.size_bytes += MB
            self.write_behind.note_append(self.segment, MB, missing_bytes)

    def run(self, error=None):
        for work, done in self.reads:
            work()
            done(error)
        self.reads.clear()


@pytest.fixture
def disk():
    return Disk()


def test_each_part_is_removed_again_with_the_next_ones(disk):
    for _ in range(5 * PART_BYTES // MB):
        disk.append(1)
        disk.run()
    assert disk.parts == [("/0", max(0, n - 3) * PART_BYTES, min(n + 1, 4) * PART_BYTES) for n in range(5)]


def test_a_follower_that_is_close_to_the_leader_keeps_all_in_memory(disk):
    disk.append(100, KEPT_BYTES - 1)
    assert not disk.reads
    disk.append(8, KEPT_BYTES)
    disk.run()
    assert disk.parts == [("/0", 100 * MB - 3 * PART_BYTES, 4 * PART_BYTES)]


def test_what_was_kept_is_not_removed_later(disk):
    disk.append(4)
    disk.append(1, KEPT_BYTES - 1)
    disk.append(7)
    assert not disk.reads


def test_one_part_of_a_partition_is_written_at_a_time(disk):
    disk.append(100)
    assert len(disk.reads) == 1
    disk.run(OSError("the file was deleted"))
    disk.append(1)
    disk.run()
    assert disk.parts[1] == ("/0", 0, 101 * MB)


@pytest.mark.parametrize(("path", "size_bytes"), [("/1", 0), ("/0", 2 * MB)])
def test_another_segment_or_a_truncated_one_begins_anew(disk, path, size_bytes):
    disk.append(8)
    disk.run()
    disk.start(path, size_bytes)
    disk.append(7)
    assert not disk.reads
    disk.append(1)
    disk.run()
    assert disk.parts[1:] == [(path, 0, size_bytes + 8 * MB)]


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_the_operating_system_removes_what_is_written(tmp_path):
    fs = OsFileSystem()
    control, file = (fs.open(f"{tmp_path}/{name}", create=True) for name in ("control", "file"))
    for each in (control, file):
        each.write_pieces(0, [bytes(PART_BYTES)], PART_BYTES)
        each.sync()
    os.posix_fadvise(control.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if lacks_pages(file.fd, 0, MB) or not lacks_pages(control.fd, 0, MB):
        pytest.skip("the file system does not keep files in the page cache only")
    file.drop_cached(0, PART_BYTES)
    assert lacks_pages(file.fd, 0, PART_BYTES)
    assert file.pread(0, PART_BYTES) == bytes(PART_BYTES)
