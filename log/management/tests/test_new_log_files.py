"""Files of new logs that a thread makes before the logs are created."""

import errno
from collections.abc import Callable

import pytest

from odradek.log.background.tasks import Done
from odradek.log.log_manager import LogManager
from odradek.log.management.tests.test_topic_id_sync import kill
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import ShortageError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import (
    DIRECTORIES,
    NEW_ID,
    TOPIC_ID,
    append,
    crash_at_each_change,
    folders,
    opened,
    refuse_new_files,
    served,
)
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode, KafkaError

COUNT = 12
NAMES = [f"t-{index}" for index in range(COUNT)]


def make_files(manager: LogManager, threads: Threads, count: int = COUNT) -> bool:
    """Make the files of partitions; return whether a thread did."""
    done: list[bool] = []
    is_begun = manager.make_files("t", range(count), TOPIC_ID, lambda: done.append(True))
    threads.run()
    assert len(done) == is_begun
    return is_begun


def create(manager: LogManager, count: int = COUNT) -> None:
    for partition in range(count):
        manager.create_log("t", partition, TOPIC_ID, 0, is_new=True)


def all_folders(fs: MemoryFileSystem) -> list[str]:
    return sorted(name for path in DIRECTORIES for name in folders(fs, path) if not name.endswith("-delete"))


def test_the_thread_pauses_between_logs() -> None:
    """It competed with the reactor threads for the processors."""
    threads = Threads()
    pauses: list[float] = []
    manager = opened(MemoryFileSystem(), run_in_thread=threads, sleep=pauses.append)
    assert make_files(manager, threads)
    assert len(pauses) == COUNT
    assert min(pauses) > 0


def test_a_log_is_created_without_a_new_file() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    assert make_files(manager, threads)
    assert manager.all_logs() == []
    refuse_new_files(fs, errno.EIO, lambda path: True)
    create(manager)
    manager.discard_files()
    assert all_folders(fs) == sorted(NAMES)
    assert list(manager.table.log_counts.values()) == [COUNT / 2, COUNT / 2]
    assert {manager.topic_id("t", partition) for partition in range(COUNT)} == {TOPIC_ID}


def test_the_logs_are_found_after_a_crash_of_the_broker() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    create(manager, 3)
    append(served(manager), b"one")
    kill(manager)
    again = opened(fs, ids={"t": TOPIC_ID})
    assert [served(again, partition=index).log_end_offset for index in range(COUNT)] == [1] + [0] * (COUNT - 1)


def test_files_of_later_logs_are_spread_over_the_directories() -> None:
    threads = Threads()
    manager = opened(MemoryFileSystem(), run_in_thread=threads)
    for count in (9, 18, 27, 36):
        make_files(manager, threads, count)
    create(manager, 36)
    assert list(manager.table.log_counts.values()) == [18, 18]


def test_few_logs_are_created_without_a_thread() -> None:
    threads = Threads()
    assert not make_files(opened(MemoryFileSystem(), run_in_thread=threads), threads, 7)


def test_files_of_logs_that_exist_are_not_made() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    create(manager, COUNT - 7)
    assert not make_files(manager, threads)
    assert make_files(manager, threads, COUNT + 1)
    assert not make_files(manager, threads, COUNT + 1), "all are made"


def test_files_of_logs_that_are_not_created_are_removed() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    create(manager, 5)
    manager.discard_files()
    assert all_folders(fs) == NAMES[:5]
    manager.run_due(0)
    threads.run()
    assert sorted(name for path in DIRECTORIES for name in folders(fs, path)) == NAMES[:5]
    create(manager)
    assert all_folders(fs) == sorted(NAMES)


@pytest.mark.parametrize("file_name", ["00000000000000000000.log", checkpoints.PARTITION_METADATA_FILE + ".tmp"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_an_incomplete_directory_is_removed_and_created_again_later(file_name: str, error: int) -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    end = refuse_new_files(fs, error, lambda path: path.endswith(f"t-4/{file_name}"))
    make_files(manager, threads)
    assert all_folders(fs) == NAMES[:4]
    end()
    create(manager)
    assert all_folders(fs) == sorted(NAMES)
    assert all(directory.failure is None for directory in manager.directories.values())


def test_a_directory_that_belongs_to_no_log_becomes_a_stray() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    for path in DIRECTORIES:
        fs.make_directory(f"{path}/t-4")
    make_files(manager, threads)
    create(manager)
    assert all_folders(fs) == sorted([*NAMES, "t-4", "t-4-stray"])


def test_a_later_preference_moves_a_log_that_is_not_created_yet() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    for path in DIRECTORIES:
        manager.prefer_directory("t", 3, path)
        manager.prefer_directory("t", 4, path)
    create(manager)
    assert {served(manager, partition=index).log_directory for index in (3, 4)} == {DIRECTORIES[-1]}
    assert all_folders(fs) == sorted(NAMES)


def test_an_earlier_preference_is_followed() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    for index in range(COUNT):
        manager.prefer_directory("t", index, DIRECTORIES[1])
    make_files(manager, threads)
    assert folders(fs, DIRECTORIES[0]) == []
    create(manager)
    assert sorted(folders(fs, DIRECTORIES[1])) == sorted(NAMES)


def test_logs_in_a_directory_that_fails_before_their_creation_are_offline() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    lost = folders(fs, DIRECTORIES[0])
    manager.fail_directory(DIRECTORIES[0], OSError("lost"))
    for index in range(COUNT):
        if f"t-{index}" in lost:
            for _ in range(2):
                with pytest.raises(KafkaError) as caught:
                    manager.create_log("t", index, TOPIC_ID, 0, is_new=True)
                assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        else:
            manager.create_log("t", index, TOPIC_ID, 0, is_new=True)
    assert not make_files(manager, threads, 2 * COUNT), "the log may be in the offline directory"
    manager.discard_files()
    kill(manager)
    again = opened(fs, ids={"t": TOPIC_ID})
    assert len(again.all_logs()) == COUNT


def test_a_directory_that_fails_before_its_files_are_discarded_keeps_their_logs_offline() -> None:
    """If its log were created elsewhere, the next start would find two."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    fs.spare = 0
    with pytest.raises(ShortageError):
        manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
    fs.heal()
    manager.fail_directory(DIRECTORIES[0], OSError("lost"))
    manager.discard_files()
    with pytest.raises(KafkaError, match="offline"):
        manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
    kill(manager)
    assert served(opened(fs, ids={"t": TOPIC_ID})).log_directory == DIRECTORIES[0]


def test_files_that_cannot_be_removed_for_a_shortage_are_used_later() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    fs.fail("rename", error=errno.ENOMEM, path_contains="t-0")
    manager.discard_files()
    assert all_folders(fs) == ["t-0"]
    for partition in range(20, 30):
        manager.prefer_directory("t", partition, DIRECTORIES[0])
        manager.create_log("t", partition, TOPIC_ID, 0, is_new=True)
    assert manager.create_log("t", 0, TOPIC_ID, 0, is_new=True).log_directory == DIRECTORIES[0]
    kill(manager)
    assert len(opened(fs, ids={"t": TOPIC_ID}).all_logs()) == 11


def test_a_later_preference_waits_until_the_files_can_be_removed() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    manager.prefer_directory("t", 0, DIRECTORIES[1])
    fs.fail("rename", error=errno.ENOMEM, path_contains="t-0")
    with pytest.raises(ShortageError):
        manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
    assert manager.create_log("t", 0, TOPIC_ID, 0, is_new=True).log_directory == DIRECTORIES[1]
    kill(manager)
    assert served(opened(fs, ids={"t": TOPIC_ID})).log_directory == DIRECTORIES[1]


def test_the_files_of_another_topic_id_are_not_taken_for_those_of_the_topic() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    make_files(manager, threads)
    log = manager.create_log("t", 0, NEW_ID, 0, is_new=True)
    assert checkpoints.read_partition_metadata(fs, log.directory) == NEW_ID


def test_no_files_are_made_after_the_stop() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, run_in_thread=threads)
    manager.make_files("t", range(COUNT), TOPIC_ID, lambda: None)
    manager.close(0)
    threads.run()
    assert all_folders(fs) == []


def test_an_incomplete_directory_is_not_removed_after_the_stop() -> None:
    """Another broker may have opened it as a log."""
    fs, ends = MemoryFileSystem(), list[Done]()

    def run_in_thread(work: Callable[[], None], done: Done) -> None:
        work()
        ends.append(done)

    manager = opened(fs, run_in_thread=run_in_thread)
    end = refuse_new_files(fs, errno.ENOSPC, lambda path: "t-4/partition.metadata" in path)
    manager.make_files("t", range(COUNT), TOPIC_ID, lambda: None)
    end()
    manager.close(0)
    again = opened(fs, ids={"t": TOPIC_ID})
    append(again.create_log("t", 4, TOPIC_ID, 0), b"one")
    for done in ends:
        done(None)
    assert fs.exists(served(again, partition=4).directory)


@pytest.mark.slow
def test_a_crash_at_any_change_leaves_directories_that_a_start_can_use() -> None:
    def run(fs: MemoryFileSystem) -> None:
        threads = Threads()
        manager = opened(fs, run_in_thread=threads)
        make_files(manager, threads)
        create(manager, 6)
        manager.discard_files()
        threads.run()

    for change, fs in crash_at_each_change(run):
        manager = opened(fs, ids={"t": TOPIC_ID})
        create(manager)
        for partition in range(COUNT):
            append(served(manager, partition=partition), b"one")
        manager.close(0)
        assert len(opened(fs, ids={"t": TOPIC_ID}).all_logs()) == COUNT, change
