"""DropBehind: what a follower appends long after it was written does not stay in the page cache."""

import os
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.log.storage.filesystem import OsFileSystem
from odradek.log.storage.page_cache import lacks_pages
from odradek.protocol.messages.fetch import FetchRequestFetchPartition
from odradek.replication.following.drop_behind import KEPT_BYTES, PART_BYTES, DropBehind
from odradek.replication.following.fetched_partition import FetchedPartition

MB = 1 << 20
PART = PART_BYTES // MB
FAR = 1 << 40


class SegmentFile:
    """A file whose parts are recorded, in MB, when they are dropped."""

    def __init__(self, path, dropped):
        self.path = path
        self._dropped = dropped

    def drop_cached(self, position, size_bytes):
        self._dropped.append((self.path, position / MB, size_bytes / MB))


class Follower:
    """A log that grows by records of 1 MB, the parts that were dropped, in MB, and the threads that drop them."""

    def __init__(self):
        self.dropped = []
        self.works = []
        self.drop_behind = DropBehind(lambda work, done: self.works.append((work, done)))
        self.roll("/0")

    def roll(self, path, size_bytes=0):
        """Begin a segment, or one that was truncated."""
        self.segment: Any = SimpleNamespace(file=SegmentFile(path, self.dropped), size_bytes=size_bytes)

    def append(self, count, missing_bytes=FAR, *, record_bytes=MB):
        for _ in range(count):
            self.segment.size_bytes += record_bytes
            self.drop_behind.note_append(self.segment, record_bytes, 1, missing_bytes // MB)

    def run(self, error=None):
        """Run the threads until nothing is left; return the parts that were dropped."""
        before = len(self.dropped)
        while self.works:
            work, done = self.works.pop(0)
            work()
            done(error)
        return self.dropped[before:]


@pytest.fixture
def follower():
    return Follower()


def parts(path, *numbers):
    return [(path, number * PART, PART) for number in numbers]


def test_each_part_is_dropped_again_with_the_next_three(follower):
    for number in range(6):
        follower.append(PART)
        assert follower.run() == parts("/0", *range(max(0, number - 3), number + 1))


def test_what_a_follower_appends_close_to_the_leader_is_kept(follower):
    follower.append(100, KEPT_BYTES - MB)
    assert not follower.works
    follower.append(PART, KEPT_BYTES)
    assert follower.run() == [("/0", 100, PART)]
    follower.append(PART - 1, KEPT_BYTES)
    follower.append(1, 0)
    follower.append(PART, KEPT_BYTES)
    assert follower.run() == [("/0", 100 + 2 * PART, PART)], "neither the kept part nor the one dropped before"


def test_a_partition_waits_for_its_thread(follower):
    """All that a call drops is dropped again: the first time may only have begun to write it."""
    follower.append(8 * PART)
    assert len(follower.works) == 1
    assert follower.run() == parts("/0", 0, 0, *range(1, 8))
    follower.append(PART)
    assert follower.run() == parts("/0", *range(1, 9))


@pytest.mark.parametrize("error", [OSError("the file was deleted"), RuntimeError("can't start new thread")])
def test_the_next_part_is_dropped_after_an_error(follower, error, caplog):
    follower.append(PART)
    follower.run(error)
    assert bool(caplog.records) == isinstance(error, RuntimeError)
    follower.append(PART)
    assert follower.run() == parts("/0", 0, 1)


def test_the_rest_of_a_segment_is_dropped_when_the_next_one_begins(follower):
    for number in range(3):
        follower.roll(f"/{number}")
        follower.append(PART - 1)
    assert follower.run() == [("/0", 0, PART - 1), ("/0", 0, PART - 1), ("/1", 0, PART - 1)]


def test_a_truncated_segment_is_dropped_from_its_new_end(follower):
    follower.append(PART)
    follower.run()
    follower.segment.size_bytes = 2 * MB
    follower.append(PART)
    assert follower.run() == [*parts("/0", 0), ("/0", 2, PART)]


def test_the_page_of_the_next_append_is_kept(follower):
    follower.append(1, record_bytes=PART_BYTES + 70_000)
    assert follower.run() == [("/0", 0, PART + 65_536 / MB)]
    follower.append(PART)
    assert follower.run()[-1] == ("/0", PART + 65_536 / MB, PART)


def test_small_records_among_large_ones_do_not_count_as_much(follower):
    """The bytes that are missing are estimated from all that was appended."""
    for _ in range(100):
        follower.drop_behind.note_append(follower.segment, 100, 100, FAR)
    follower.segment.size_bytes += PART_BYTES
    follower.drop_behind.note_append(follower.segment, PART_BYTES, 1, 64)
    assert not follower.works


def test_no_file_is_kept_open_after_the_log_has_started_over_at_the_leaders_end(follower):
    followed = SimpleNamespace(topic_id=b"", index=0, leader=1, leader_epoch=0, log=None)
    replica: Any = SimpleNamespace(partition=followed)
    partition = FetchedPartition(replica, follower.drop_behind)
    partition.row = FetchRequestFetchPartition(fetch_offset=0)
    log: Any = SimpleNamespace(active_segment=follower.segment, log_end_offset=1)
    follower.segment.size_bytes = MB
    partition.update_lag(log, 1000, MB)
    file = weakref.ref(follower.segment.file)
    follower.roll("/1000")
    log.active_segment, log.log_end_offset = follower.segment, 1000
    partition.update_lag(log, 1000, 0)
    assert file() is None


def test_nothing_is_dropped_after_a_stop(follower):
    """The broker's stop waits for threads, and another fetcher may follow the partition."""
    follower.append(2 * PART)
    follower.drop_behind.stop()
    assert follower.run() == []


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_the_operating_system_removes_what_is_written(tmp_path):
    fs = OsFileSystem()
    control, file = (fs.open(f"{tmp_path}/{name}", create=True) for name in ("control", "file"))
    for each in (control, file):
        each.write_pieces(0, [bytes(PART_BYTES)], PART_BYTES)
        each.sync()
    os.posix_fadvise(control.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if lacks_pages(file.fd, 0, PART_BYTES) or not lacks_pages(control.fd, 0, PART_BYTES):
        pytest.skip("the file system does not keep files in the page cache only")
    file.drop_cached(0, PART_BYTES)
    assert lacks_pages(file.fd, 0, PART_BYTES)
    assert file.pread(0, PART_BYTES) == bytes(PART_BYTES)
