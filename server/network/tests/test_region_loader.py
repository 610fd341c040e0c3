"""RegionLoader, through a SocketWriter: file regions that are on the disk only, in part or for some time."""

import gc
import socket
import weakref
from types import SimpleNamespace

import pytest

from odradek.log.storage.filesystem import FileRegion
from odradek.server.network.writers.region_loader import PART_BYTES
from odradek.server.network.writers.socket_writer import SocketWriter
from odradek.server.network.writers.write_coalescer import WriteCoalescer


class Disk:
    """A file and its page cache, the threads that read it, a transport, and a socket with limited room.

    events: calls of `is_cached`, `load`, `pread` and `send_file`, and sends of copies, with positions and sizes
    is_cold, cached_to: whether the file is on the disk only, from a position on, except what was loaded
    is_incomplete: pages in memory are still being read from the disk, except those that were loaded
    end: the size of the file
    reads: the work of threads
    """

    path = "/segment"

    def __init__(self):
        self.events = []
        self.end = 0
        self.reads = []
        self.is_cold = True
        self.cached_to = 0
        self.is_incomplete = False
        self.loaded = []
        self.is_aborted = False
        self.room_bytes = 1 << 30
        self.now_s = 0.0
        self.producer = None
        self.waits_for_room = False
        self.drained = []
        transport = SimpleNamespace(
            getHandle=lambda: SimpleNamespace(send=self._send),
            registerProducer=self._register,
            unregisterProducer=lambda: setattr(self, "producer", None),
            startWriting=lambda: setattr(self, "waits_for_room", True),
            abortConnection=lambda: setattr(self, "is_aborted", True),
        )
        self.writer = SocketWriter(transport, WriteCoalescer(), self, lambda: self.drained.append(True))

    def size_bytes(self):
        return self.end

    def monotonic(self):
        return self.now_s

    def is_cached(self, position, size_bytes):
        self.events.append(("check", position, size_bytes))
        return self._is_in_memory(position, size_bytes)

    def _is_in_memory(self, position, size_bytes):
        return not self.is_cold or position + size_bytes <= self.cached_to

    def load(self, position, size_bytes):
        self.events.append(("load", position, size_bytes))
        self.loaded.append(range(position, position + size_bytes))

    def send_file(self, connection, file, position, size_bytes):
        sent = min(size_bytes, self.room_bytes)
        if size_bytes and not sent:
            raise BlockingIOError
        self.room_bytes -= sent
        self.events.append(("send", position, sent))
        return sent

    def read_cached(self, position, size_bytes):
        is_loaded = any(position in part and position + size_bytes <= part.stop for part in self.loaded)
        is_readable = is_loaded or (self._is_in_memory(position, size_bytes) and not self.is_incomplete)
        return bytes([position % 256]) * size_bytes if is_readable else None

    def pread(self, position, size_bytes):
        self.events.append(("read", position, size_bytes))
        return bytes([position % 256]) * size_bytes

    def _send(self, data, flags=0):
        sent = min(len(data), self.room_bytes)
        if data and not sent:
            raise BlockingIOError
        self.room_bytes -= sent
        self.events.append(("copy", bytes(data[:sent]), bool(flags & socket.MSG_MORE)))
        return sent

    def run_read(self, work, done):
        self.reads.append((work, done))

    def end_read(self, error=None):
        work, done = self.reads.pop()
        work()
        done(error)

    def write_event(self, room_bytes=1 << 30):
        """Twisted's `doWrite` of a connection that waits for it."""
        assert self.waits_for_room
        self.waits_for_room = False
        self.room_bytes = room_bytes
        self.producer.resumeProducing()

    def _register(self, producer, is_streaming):
        self.producer = producer
        producer.resumeProducing()


@pytest.fixture
def disk():
    return Disk()


def region(disk, size_bytes):
    return FileRegion(disk, 100, size_bytes)


def test_a_large_region_is_loaded_and_sent_in_parts(disk):
    disk.writer.send([region(disk, 2 * PART_BYTES + 1)])
    for _ in range(3):
        assert disk.writer.is_loading
        assert not disk.waits_for_room, "the socket is writable: the reactor would call the writer without end"
        disk.end_read()
        disk.write_event()
    assert disk.drained == [True]
    parts = [(100, PART_BYTES), (100 + PART_BYTES, PART_BYTES), (100 + 2 * PART_BYTES, 1)]
    assert [event for event in disk.events if event[0] != "copy"] == [
        ("check", *parts[0]), *(("load", *part) for part in parts),
    ]  # fmt: skip
    assert count_copied(disk) == 2 * PART_BYTES + 1


def count_copied(disk):
    """Return the number of bytes that were sent from copies."""
    return sum(len(content) for what, content, *_ in disk.events if what == "copy")


@pytest.mark.parametrize("size_bytes", [1000, 100_000])
def test_a_failed_read_is_not_repeated_by_the_reactor_thread(disk, size_bytes):
    """A read of a damaged sector may take half a minute before it fails."""
    disk.writer.send([region(disk, size_bytes)])
    disk.end_read(OSError("the disk fails"))
    disk.events.clear()
    disk.write_event()
    assert disk.is_aborted
    assert disk.events == []


def test_the_reactor_thread_reads_if_no_thread_can(disk):
    disk.writer.send([region(disk, 1000)])
    disk.end_read(RuntimeError("can't start new thread"))
    disk.write_event()
    assert disk.drained == [True]


def test_a_part_is_checked_again_if_a_slow_client_left_it_for_long(disk):
    disk.is_cold = False
    disk.room_bytes = 30_000
    disk.writer.send([region(disk, 100_000)])
    disk.now_s = 0.5
    disk.write_event(room_bytes=30_000)
    disk.now_s, disk.is_cold = 60.0, True
    disk.write_event()
    assert disk.writer.is_loading
    disk.end_read()
    disk.write_event()
    assert disk.drained == [True]
    assert disk.events == [
        ("check", 100, 100_000), ("send", 100, 30_000), ("send", 30_100, 30_000),
        ("check", 60_100, 40_000), ("load", 60_100, 40_000), ("copy", bytes([60_100 % 256]) * 40_000, False),
    ]  # fmt: skip


@pytest.mark.parametrize("is_cold", [False, True])
def test_an_empty_region_does_not_count_as_one_that_is_loaded(disk, is_cold):
    """The log returns none. The client would get no response, and wait."""
    disk.is_cold = is_cold
    disk.writer.send([b"head", region(disk, 0), b"tail"])
    assert disk.writer.is_idle or disk.is_aborted


def test_small_regions_are_copied_with_the_bytes_around_them(disk):
    """A response may have thousands of them."""
    disk.is_cold = False
    disk.writer.send([b"head", FileRegion(disk, 1, 3), b"between", FileRegion(disk, 2, 8192), FileRegion(disk, 3, 2)])
    assert disk.events == [
        ("copy", b"head", True), ("copy", b"\1\1\1", True), ("copy", b"between", True),
        ("copy", b"\2" * 8192, True), ("copy", b"\3\3", False),
    ]  # fmt: skip
    assert disk.writer.is_idle


def test_a_small_region_continues_where_the_socket_was_full(disk):
    disk.is_cold, disk.room_bytes = False, 2
    disk.writer.send([FileRegion(disk, 1, 5), b"tail"])
    assert disk.writer.unsent_bytes == 3 + 4
    disk.write_event(room_bytes=1)
    disk.write_event()
    assert disk.drained == [True]
    assert [content for _, content, _ in disk.events] == [b"\1\1", b"\3", b"\4\4", b"tail"]


def test_a_small_region_on_the_disk_is_loaded(disk):
    disk.writer.send([FileRegion(disk, 1, 5)])
    assert disk.writer.is_loading
    disk.end_read()
    disk.write_event()
    assert disk.drained == [True]
    assert disk.events == [("load", 1, 5), ("copy", b"\1" * 5, False)]


def test_a_writer_with_a_failed_read_is_freed_without_the_garbage_collector(disk):
    disk.writer.send([region(disk, 1000)])
    work, done = disk.reads.pop()
    try:
        work()
        raise OSError("the disk fails")
    except OSError as error:
        done(error)
    freed = weakref.ref(disk.writer)
    disk.writer.close()
    gc.collect()
    gc.disable()
    try:
        disk.writer = disk.producer = work = done = None
        assert freed() is None
    finally:
        gc.enable()


def end_reads(disk, error=None):
    """End all reads of threads; return the parts that were read."""
    loads = []
    while disk.reads:
        work, done = disk.reads.pop(0)
        work()
        done(error)
        loads.append(disk.events[-1])
    return loads


def read_from_disk(disk, position, size_bytes=1000):
    """Load a region and what is read ahead of it, and send the region."""
    disk.writer.send([FileRegion(disk, position, size_bytes)])
    end_reads(disk)
    disk.write_event()


def test_the_next_part_of_the_file_is_read_while_the_client_receives_one(disk):
    disk.end = 3500
    disk.writer.send([FileRegion(disk, 0, 1000)])
    assert end_reads(disk) == [("load", 0, 1000), ("load", 1000, 1000)]
    disk.cached_to = 2000
    disk.write_event()
    for position, ahead in ((1000, [("load", 2000, 1000)]), (2000, [("load", 3000, 1000)]), (3000, [])):
        disk.writer.send([FileRegion(disk, position, 500 if position == 3000 else 1000)])
        assert disk.writer.is_idle
        assert end_reads(disk) == ahead
        disk.cached_to += 1000


def test_regions_in_memory_cause_no_reads(disk):
    disk.end, disk.is_cold = 10_000, False
    for position in range(0, 5000, 1000):
        disk.writer.send([FileRegion(disk, position, 1000)])
    assert not disk.reads
    assert disk.writer.is_idle


def test_parts_in_memory_are_not_read_ahead(disk):
    disk.end = 10_000
    read_from_disk(disk, 0)
    disk.cached_to = 5000
    for position, ahead in ((1000, []), (2000, []), (3000, []), (4000, [("load", 5000, 1000)])):
        disk.writer.send([FileRegion(disk, position, 1000)])
        assert end_reads(disk) == ahead


def test_few_reads_ahead_are_in_progress(disk):
    """While the disk is slow, a client may leap from one part in memory to another, without a wait."""
    disk.end = 1_000_000
    read_from_disk(disk, 0)
    disk._is_in_memory = lambda position, size_bytes: position % 2000 == 0
    for position in range(2000, 200_000, 2000):
        disk.writer.send([FileRegion(disk, position, 1000)])
    assert len(disk.reads) == 16
    end_reads(disk)
    disk.writer.send([FileRegion(disk, 500_000, 1000)])
    assert end_reads(disk) == [("load", 501_000, 1000)]


def test_a_client_that_leaps_or_goes_back_is_not_read_ahead_of_its_last_position(disk):
    disk.end = 100_000
    read_from_disk(disk, 50_000)
    disk.cached_to = 81_000
    disk.writer.send([FileRegion(disk, 0, 1000)])
    assert end_reads(disk) == []
    disk.writer.send([FileRegion(disk, 80_000, 1000)])
    assert end_reads(disk) == [("load", 81_000, 1000)]


def test_a_failed_read_ahead_is_left_to_the_read_of_that_part(disk):
    disk.end = 10_000
    disk.writer.send([FileRegion(disk, 0, 1000)])
    _, ahead = disk.reads
    disk.reads.remove(ahead)
    disk.end_read()
    ahead[1](OSError("the disk fails"))
    disk.write_event()
    assert not disk.is_aborted
    disk.writer.send([FileRegion(disk, 1000, 1000)])
    disk.reads.reverse()
    disk.end_read(OSError("the disk fails"))
    disk.write_event()
    assert disk.is_aborted


def test_a_closed_connection_reads_nothing_ahead(disk):
    disk.end = 10_000
    disk.writer.send([FileRegion(disk, 0, 1000)])
    disk.writer.close()
    disk.events.clear()
    for work, done in disk.reads:
        work()
        done(None)
    assert disk.events == []


def test_the_files_that_are_read_ahead_are_few(disk):
    disk.end = 10_000
    loader = disk.writer._loader
    for number in range(40):
        disk.path, disk.loaded = f"/segment-{number}", []
        read_from_disk(disk, 0)
    assert len(loader._ahead) == 16


COPIED_BYTES = 65_536


def read_first_part(disk):
    """Load and send the first part of the file; from then on all is in memory."""
    read_from_disk(disk, 0, PART_BYTES)
    disk.is_cold = False
    disk.loaded.clear()
    disk.events.clear()


@pytest.mark.parametrize("files", [1, 50])
def test_sendfile_does_not_wait_for_pages_that_the_kernel_is_reading(disk, files):
    """They are in the page cache, but not complete: the kernel reads more than it was asked for."""
    disk.end = 10 * PART_BYTES
    for number in range(files):
        disk.is_cold, disk.path = True, f"/{number}"
        read_first_part(disk)
    disk.is_incomplete = True
    disk.path = "/0"
    disk.writer.send([FileRegion(disk, PART_BYTES, PART_BYTES)])
    assert disk.writer.is_loading
    assert ("load", PART_BYTES, PART_BYTES) in end_reads(disk)
    disk.write_event()
    assert disk.writer.is_idle
    assert count_copied(disk) == PART_BYTES
    assert not any(what in ("send", "read") for what, *_ in disk.events)


def test_sendfile_is_used_again_when_nothing_was_on_the_disk_for_a_while(disk):
    """A consumer stays in a file for long, and never reads to its end if the last records are not committed."""
    disk.end = 1 << 30
    read_first_part(disk)
    disk.now_s = 4.0
    disk.writer.send([FileRegion(disk, PART_BYTES, PART_BYTES)])
    assert count_copied(disk) == PART_BYTES
    disk.now_s = 6.0
    disk.events.clear()
    second = (2 * PART_BYTES, PART_BYTES)
    disk.writer.send([FileRegion(disk, *second)])
    assert [event for event in disk.events if event[1] == 2 * PART_BYTES] == [("check", *second), ("send", *second)]


def test_sendfile_is_not_used_after_a_read_that_took_long(disk):
    disk.end = 10 * PART_BYTES
    disk.writer.send([FileRegion(disk, 0, 2 * PART_BYTES)])
    disk.reads.pop()
    disk.now_s = 60.0
    disk.end_read()
    disk.is_cold, disk.is_incomplete = False, True
    disk.write_event()
    assert disk.writer.is_loading
    assert count_copied(disk) == PART_BYTES
    disk.end_read()
    disk.now_s = 120.0
    disk.write_event()
    assert count_copied(disk) == 2 * PART_BYTES
    assert not any(what == "send" for what, *_ in disk.events)


def test_a_copy_continues_where_the_socket_was_full(disk):
    disk.end = 10 * PART_BYTES
    disk.room_bytes = 1000
    disk.writer.send([FileRegion(disk, 0, PART_BYTES)])
    end_reads(disk)
    reads = []
    read_cached = disk.read_cached

    def count_reads(*part):
        reads.append(part)
        return read_cached(*part)

    disk.read_cached = count_reads
    disk.write_event(room_bytes=1000)
    assert reads == [(0, COPIED_BYTES)], "nothing is read for a socket that is full"
    disk.write_event()
    sizes = [len(content) for what, content, *_ in disk.events if what == "copy"]
    assert sizes == [1000, *[COPIED_BYTES] * 15, COPIED_BYTES - 1000]
    assert disk.writer.is_idle


def test_what_was_checked_but_not_loaded_is_not_read_by_the_reactor_thread(disk):
    disk.is_cold, disk.is_incomplete = False, True
    disk.room_bytes = 95_000
    disk.writer.send([FileRegion(disk, 0, 100_000)])
    assert disk.writer.is_loading
    end_reads(disk)
    disk.write_event()
    assert disk.writer.is_idle
    assert not any(what == "read" for what, *_ in disk.events)


def test_the_reactor_thread_reads_little_of_what_was_evicted_after_the_load(disk):
    disk.writer.send([FileRegion(disk, 0, 3 * COPIED_BYTES)])
    for number in range(3):
        end_reads(disk)
        disk.loaded.clear()
        disk.write_event()
        assert disk.events[-2] == ("read", number * COPIED_BYTES, COPIED_BYTES)
    assert disk.writer.is_idle
