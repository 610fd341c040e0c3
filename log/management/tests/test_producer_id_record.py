"""The record of reserved producer ids in the log directories, on the in-memory file system."""

import errno

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.storage import checkpoints
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import DIRECTORIES, opened, refuse_new_files
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import KafkaError


def record(manager: LogManager, *ends: int) -> list[Exception | None]:
    results: list[Exception | None] = []
    for end in ends:
        manager.record_producer_ids(end, results.append)
    return results


def recorded(fs: MemoryFileSystem) -> list[int]:
    return [checkpoints.read_next_producer_id(fs, path) for path in DIRECTORIES]


def test_the_record_is_in_all_directories_and_survives_a_power_loss() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    assert manager.found_producer_id_end() == 0
    assert record(manager, 1000, 2000, 2000) == [None] * 3
    assert recorded(fs) == [2000, 2000]
    fs.crash()
    assert opened(fs).found_producer_id_end() == 2000


def test_the_record_never_decreases_and_writes_are_shared() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    results = record(manager, 1000, 4000, 3000, 2000)
    assert results == []
    threads.run(1)
    assert (results, recorded(fs)) == ([None], [1000, 1000])
    assert len(threads.waiting) == 1
    threads.run()
    assert (results, recorded(fs)) == ([None] * 4, [4000, 4000])


def test_the_largest_record_of_the_directories_counts() -> None:
    fs = MemoryFileSystem()
    record(opened(fs, ["/data/b"]), 3000)
    fs.crash()
    record(opened(fs, ["/data/a"]), 1000)
    fs.crash()
    assert opened(fs).found_producer_id_end() == 3000


def test_one_directory_with_free_space_is_enough() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    refuse_new_files(fs, errno.ENOSPC, lambda path: path.startswith("/data/a/"))
    assert record(manager, 1000) == [None]
    assert recorded(fs) == [0, 1000]
    assert manager.online_directories == ["/data/a", "/data/b"]


def test_without_space_in_any_directory_nothing_is_recorded_and_the_next_call_retries() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    fs.is_full = True
    (error,) = record(manager, 1000)
    assert isinstance(error, KafkaError)
    assert manager.online_directories == ["/data/a", "/data/b"]
    fs.is_full = False
    assert record(manager, 1000) == [None]
    assert recorded(fs) == [1000, 1000]


def test_a_directory_that_fails_goes_offline() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    refuse_new_files(fs, errno.EIO, lambda path: path.startswith("/data/a/"))
    assert record(manager, 1000) == [None]
    assert manager.online_directories == ["/data/b"]
    refuse_new_files(fs, errno.EIO, lambda path: path.startswith("/data/b/"))
    for result in record(manager, 2000, 3000):
        assert isinstance(result, KafkaError)


@pytest.mark.parametrize("content", [b"", b"0\n", b"1\n1000\n", b"0\nmany\n", b"0\n\xff\n"])
def test_a_malformed_record_takes_the_directory_offline(content: bytes) -> None:
    fs = MemoryFileSystem()
    record(opened(fs), 1000)
    fs.crash()
    path = f"/data/a/{checkpoints.PRODUCER_IDS_FILE}"
    file = fs.open(path)
    file.truncate(0)
    file.write_pieces(0, [content], len(content))
    manager = opened(fs)
    assert manager.online_directories == ["/data/b"]
    assert checkpoints.PRODUCER_IDS_FILE in str(manager.directories["/data/a"].failure)
