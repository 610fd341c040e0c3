"""The operating system's file system and the one in memory, and simulated crashes, torn writes and failures."""

import errno
import os
import sys
from random import Random
from threading import Thread

import pytest

from odradek.log.storage import file_lock, filesystem, syncfs
from odradek.log.storage.file_lock import LockedError
from odradek.log.storage.filesystem import (
    ColdReadError,
    File,
    FileSystem,
    OsFileSystem,
    remove_if_exists,
    write_atomically,
)
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash


@pytest.fixture(params=["os", "memory"])
def place(request, tmp_path):
    """A file system and an empty directory in it."""
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    return fs, "/d"


def put(fs: FileSystem, path: str, data: bytes) -> File:
    file = fs.open(path, create=True)
    file.write_pieces(0, [data], len(data))
    return file


def test_files(place):
    fs, directory = place
    path = f"{directory}/a"
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    file = fs.open(path, create=True)
    file.write_pieces(0, [b"abc", bytearray(b"def"), memoryview(b"gh")], 8)
    file.write_pieces(10, [b"xy"], 2)
    assert fs.read_bytes(path) == b"abcdefgh\0\0xy"
    assert (file.pread(6, 4), file.pread(10, 99), file.pread(50, 5)) == (b"gh\0\0", b"xy", b"")
    file.truncate(3)
    file.truncate(6)
    assert fs.read_bytes(path) == b"abc\0\0\0"
    assert file.size_bytes() == fs.size_bytes(path) == 6
    file.sync()
    fs.set_modified_ms(path, 1_700_000_000_123)
    assert fs.modified_ms(path) == 1_700_000_000_123
    file.close()


def test_names(place):
    fs, directory = place
    put(fs, f"{directory}/b", b"b")
    kept = put(fs, f"{directory}/a", b"a")
    fs.rename(f"{directory}/b", f"{directory}/a")
    assert fs.list_names(directory) == ["a"]
    assert kept.pread(0, 9) == b"a", "an open file outlives its name"
    fs.make_directory(f"{directory}/x/y")
    put(fs, f"{directory}/x/y/f", b"f")
    fs.rename(f"{directory}/x", f"{directory}/z")
    assert fs.read_bytes(f"{directory}/z/y/f") == b"f"
    assert fs.is_directory(f"{directory}/z/y") and not fs.exists(f"{directory}/x")
    fs.remove_tree(f"{directory}/z")
    assert fs.list_names(directory) == ["a"]
    assert remove_if_exists(fs, f"{directory}/a")
    assert not remove_if_exists(fs, f"{directory}/a")
    for operation in (fs.remove, fs.size_bytes, fs.read_bytes, fs.list_names, fs.modified_ms, fs.remove_tree):
        with pytest.raises(FileNotFoundError):
            operation(f"{directory}/gone")
    fs.sync_path(f"{directory}/gone")
    fs.sync_directory(directory)
    total, free = fs.space_bytes(directory)
    assert 0 < free <= total


def test_lock(place):
    fs, directory = place
    lock = fs.lock(f"{directory}/.lock")
    with pytest.raises(LockedError):
        fs.lock(f"{directory}/.lock")
    lock.release()
    lock.release()
    fs.lock(f"{directory}/.lock").release()


def test_write_atomically(place):
    fs, directory = place
    for data in (b"first, longer", b"second"):
        write_atomically(fs, f"{directory}/a", data)
        assert fs.read_bytes(f"{directory}/a") == data
    assert fs.list_names(directory) == ["a"]


@pytest.mark.parametrize("limit", [1, 2, 5, 7])
def test_short_writes_and_reads_are_continued(tmp_path, monkeypatch, limit):
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, position: pwrite(fd, b"".join(pieces)[:limit], position))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:limit], position))
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, limit), position))
    file = OsFileSystem().open(f"{tmp_path}/a", create=True)
    file.write_pieces(2, [b"abc", b"", bytearray(b"de"), memoryview(b"fgh")], 8)
    assert file.pread(0, 10) == b"\0\0abcdefgh"
    assert file.pread(4, 100) == b"cdefgh"


def test_reads_that_do_not_wait_for_the_disk(place):
    fs, directory = place
    file = put(fs, f"{directory}/a", bytes(range(256)) * 1024)
    file.load(0, 256 * 1024)
    assert file.is_cached(0, 256 * 1024)
    assert file.read_cached(5, 300) == (bytes(range(256)) * 2)[5:305]
    assert file.read_cached(256 * 1024 - 3, 3) == bytes([253, 254, 255])
    assert file.read_cached(256 * 1024 - 3, 4) is None
    assert file.pread_cached(5, 300) == (bytes(range(256)) * 2)[5:305]
    assert file.pread_cached(256 * 1024 - 3, 9) == bytes([253, 254, 255])
    assert file.is_cached(7, 0)
    assert file.is_cached(256 * 1024 - 3, 100_000), "the end of the file is no wait"
    assert file.is_cached(1 << 20, 100_000)


@pytest.fixture
def cold_file(tmp_path, monkeypatch):
    """A file of 1 MB that is in memory below and from some positions, and the positions that a read waited for."""
    preadv, waits = os.preadv, []
    file = OsFileSystem().open(f"{tmp_path}/a", create=True)
    file.write_pieces(0, [bytes(1 << 20)], 1 << 20)

    def read(fd, buffers, position, flags=0):
        if position + len(buffers[0]) > 300_000 and position < 750_000:
            if flags:
                raise BlockingIOError(errno.EAGAIN, "on the disk")
            waits.append(position)
        return preadv(fd, buffers, position)

    monkeypatch.setattr(filesystem, "_NO_WAIT", 8)
    monkeypatch.setattr(os, "preadv", read)
    file = OsFileSystem().open(f"{tmp_path}/a")
    return file, waits


def test_a_part_on_the_disk_is_found_by_samples_and_loaded(cold_file):
    file, waits = cold_file
    assert file.is_cached(0, 300_000) and file.is_cached(750_000, 250_000)
    assert not file.is_cached(0, 300_001)
    assert not file.is_cached(749_999, 10)
    assert not file.is_cached(200_000, 800_000), "both ends are in memory"
    assert file.read_cached(290_000, 10_001) is None
    with pytest.raises(ColdReadError) as raised:
        file.pread_cached(290_000, 10_001)
    assert (raised.value.file, raised.value.position, raised.value.size_bytes) == (file, 290_000, 10_001)
    assert file.pread_cached(290_000, 10_000) == bytes(10_000)
    assert file.pread_cached((1 << 20) - 5, 10) == bytes(5), "the end of the file is no wait"
    assert not waits
    file.load(290_000, 400_000)
    assert waits[0] == 290_000
    assert max(waits) < 690_000


def test_a_file_system_that_does_not_report_waits_has_all_files_in_memory(tmp_path, monkeypatch):
    preadv, flags_seen = os.preadv, []

    def read(fd, buffers, position, flags=0):
        flags_seen.append(flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "tmpfs")
        return preadv(fd, buffers, position)

    monkeypatch.setattr(filesystem, "_NO_WAIT", 8)
    monkeypatch.setattr(os, "preadv", read)
    file = put(OsFileSystem(), f"{tmp_path}/a", b"abcd")
    assert file.read_cached(0, 4) == b"abcd"
    assert file.read_cached(0, 4) == b"abcd"
    assert file.is_cached(0, 4)
    assert flags_seen == [8]


def test_a_file_system_without_pages_in_the_page_cache_has_all_files_in_memory(tmp_path, monkeypatch):
    """The files of overlayfs and ZFS are elsewhere, so a load would not change what is found."""
    preadv = os.preadv

    def read(fd, buffers, position, flags=0):
        if flags:
            raise OSError(errno.EOPNOTSUPP, "overlayfs")
        return preadv(fd, buffers, position)

    monkeypatch.setattr(filesystem, "_NO_WAIT", 8)
    monkeypatch.setattr(filesystem, "lacks_pages", lambda fd, position, size_bytes: True)
    monkeypatch.setattr(os, "preadv", read)
    assert put(OsFileSystem(), f"{tmp_path}/a", b"abcd").is_cached(0, 4)


def test_a_part_whose_pages_are_missing_is_not_sampled(cold_file, monkeypatch):
    """A sample of a missing page would begin to read it, in the reactor thread."""
    file, waits = cold_file
    monkeypatch.setattr(filesystem, "lacks_pages", lambda fd, position, size_bytes: True)
    assert not file.is_cached(0, 1000), "samples would find the part"
    assert not waits


def test_an_error_of_a_read_that_does_not_wait_is_that_of_the_next_read(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(filesystem, "_NO_WAIT", 8)
    file = put(OsFileSystem(), f"{tmp_path}/a", b"abcd")
    monkeypatch.setattr(os, "preadv", fail)
    assert file.is_cached(0, 4)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match="the disk fails"):
        file.read_cached(0, 4)


def test_reads_do_not_change_the_access_time(tmp_path):
    file = put(OsFileSystem(), f"{tmp_path}/a", b"abcd")
    os.utime(f"{tmp_path}/a", ns=(1, 1))
    assert file.pread(0, 4) == b"abcd"
    assert os.stat(f"{tmp_path}/a").st_atime_ns == 1


def test_a_file_of_another_user_is_opened(tmp_path, monkeypatch):
    system_open = os.open

    def open_as_other(path, flags, mode=0o777):
        if flags & os.O_NOATIME:
            raise PermissionError(errno.EPERM, "not the owner")
        return system_open(path, flags, mode)

    put(OsFileSystem(), f"{tmp_path}/a", b"abcd")
    monkeypatch.setattr(filesystem, "_NO_ACCESS_TIME", os.O_NOATIME)
    monkeypatch.setattr(os, "open", open_as_other)
    assert OsFileSystem().open(f"{tmp_path}/a").pread(0, 4) == b"abcd"


def test_a_write_without_progress_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, position: 1)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
    file = OsFileSystem().open(f"{tmp_path}/a", create=True)
    with pytest.raises(OSError, match="no progress"):
        file.write_pieces(0, [b"abc"], 3)


def test_a_file_closes_with_its_last_reference(tmp_path):
    file = put(OsFileSystem(), f"{tmp_path}/a", b"a")
    fd = file.fd
    del file
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


@pytest.fixture
def memory() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    return fs


def test_a_crash_loses_unsynced_changes(memory: MemoryFileSystem):
    file = put(memory, "/d/a", b"safe")
    file.sync()
    file.write_pieces(2, [b"LOST"], 4)
    file.truncate(5)
    memory.lock("/d/.lock")
    memory.crash()
    assert memory.read_bytes("/d/a") == b"safe"
    memory.lock("/d/.lock")


def test_names_survive_a_crash_without_lose_names(memory: MemoryFileSystem):
    put(memory, "/d/old", b"old").sync()
    memory.sync_directory("/d")
    put(memory, "/d/new", b"new").sync()
    memory.rename("/d/old", "/d/other")
    memory.crash()
    assert memory.list_names("/d") == ["new", "other"]
    memory.remove("/d/new")
    memory.crash(lose_names=True)
    assert memory.list_names("/d") == ["new", "other"]


def test_crash_tears(memory: MemoryFileSystem):
    """With a Random, any part of the unsynced changes may survive, and synced bytes always do."""
    found = set()
    for seed in range(200):
        fs = MemoryFileSystem()
        fs.make_directory("/d")
        file = put(fs, "/d/a", b"safe")
        file.sync()
        file.write_pieces(4, [b"12"], 2)
        file.write_pieces(6, [b"34"], 2)
        fs.crash(Random(seed))
        found.add(fs.read_bytes("/d/a"))
    assert all(data.startswith(b"safe") for data in found)
    assert {b"safe", b"safe12", b"safe1234", b"safe1", b"safe\0\x0034"} <= found


def test_failure_on_command(memory: MemoryFileSystem):
    memory.fail("write", after=2, error=errno.ENOSPC, path_contains="a")
    put(memory, "/d/b", b"b")
    put(memory, "/d/a", b"1234")
    with pytest.raises(OSError, match="No space") as raised:
        put(memory, "/d/a", b"abcd")
    assert raised.value.errno == errno.ENOSPC
    assert memory.read_bytes("/d/a") == b"ab34", "half of it is written"
    put(memory, "/d/a", b"wxyz")
    memory.fail("sync")
    memory.heal()
    memory.sync_path("/d/a")
    for operation, act in [
        ("create", lambda: put(memory, "/d/c", b"")),
        ("rename", lambda: memory.rename("/d/a", "/d/c")),
        ("remove", lambda: memory.remove("/d/a")),
        ("truncate", lambda: memory.open("/d/a").truncate(0)),
        ("sync", lambda: memory.sync_path("/d/a")),
        ("sync_directory", lambda: memory.sync_directory("/d")),
    ]:
        memory.fail(operation)
        with pytest.raises(OSError, match="Input/output"):
            act()
    assert memory.list_names("/d") == ["a", "b"]
    assert memory.read_bytes("/d/a") == b"wxyz"


def test_crash_on_command(memory: MemoryFileSystem):
    memory.crash_at(3)
    put(memory, "/d/a", b"1234")
    with pytest.raises(SimulatedCrash):
        put(memory, "/d/a", b"abcd")
    with pytest.raises(SimulatedCrash):
        memory.remove("/d/a")
    memory.crash()
    assert memory.read_bytes("/d/a") == b""
    put(memory, "/d/a", b"again")


def test_a_failed_sync_of_the_file_system_counts_for_all_threads(tmp_path, monkeypatch):
    """The system reports a failed write once, so a sync by another thread in the meantime returns success."""
    outcomes = {}

    def ask(name):
        outcomes[name] = lock.sync_file_system()

    def sync(fd):
        if second.ident is not None:
            return True
        second.start()
        second.join(0.1)
        return False

    monkeypatch.setattr(file_lock, "sync_file_system_of", sync)
    lock = OsFileSystem().lock(str(tmp_path / ".lock"))
    second = Thread(target=ask, args=("second",))
    ask("first")
    second.join()
    lock.release()
    assert outcomes == {"first": False, "second": False}


@pytest.mark.skipif(sys.platform != "linux", reason="uses system calls of Linux")
def test_a_sync_counts_only_on_file_systems_that_report_failures(monkeypatch):
    synced = []

    def sync(fd):
        synced.append(fd)
        return 0

    monkeypatch.setattr(syncfs, "_syncfs", lambda: sync)
    fd = os.open("/proc/self/status", os.O_RDONLY)
    try:
        assert syncfs.file_system_type(fd) == 0x9FA0
        assert not syncfs.sync_file_system_of(fd)
        monkeypatch.setattr(syncfs, "file_system_type", lambda fd: 0xEF53)
        assert syncfs.sync_file_system_of(fd)
    finally:
        os.close(fd)
    assert synced == [fd]
