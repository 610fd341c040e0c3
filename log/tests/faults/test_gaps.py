"""Recoveries keep the records behind a gap that compaction left, whatever cleanup.policy is by then."""

import errno

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import ExhaustedError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import DIRECTORIES, TOPIC_ID, append, opened, refuse_new_files, served

CONFIG = {"internal.segment.bytes": "300"}
IDS = {"t": TOPIC_ID}
END = 12


def start(fs: MemoryFileSystem, ids: dict[str, bytes] | None = None, policy: str = "delete") -> LogManager:
    return opened(fs, DIRECTORIES, {**CONFIG, "cleanup.policy": policy}, ids=ids)


def kill(fs: MemoryFileSystem) -> None:
    """End the process: the locks of its directories are released."""
    fs._held.clear()


def create_log(manager: LogManager) -> PartitionLog:
    """Create the log with records up to the offset END, in several segments."""
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    for number in range(END):
        append(log, b"v%d" % number)
    return log


def log_with_a_gap(fs: MemoryFileSystem) -> PartitionLog:
    """Create a log whose second segment compaction has removed, with a configuration that is lost."""
    log = create_log(start(fs))
    log.flush(0)
    remove_second_segment(fs, log)
    kill(fs)
    return log


def remove_second_segment(fs: MemoryFileSystem, log: PartitionLog) -> None:
    assert len(log.segments) > 2
    for name in fs.list_names(log.directory):
        if name.startswith(f"{log.segments[1].base_offset:020d}"):
            fs.remove(f"{log.directory}/{name}")


@pytest.mark.parametrize("file_name", ["cleaner-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_without_room_for_the_checkpoints_of_an_adopted_log_its_directory_is_offline(file_name: str) -> None:
    fs = MemoryFileSystem()
    log = log_with_a_gap(fs)
    end = refuse_new_files(fs, errno.ENOSPC, lambda path: file_name in path)
    manager = start(fs)
    assert log.log_directory not in manager.online_directories
    assert "free disk space and start again" in str(manager.directories[log.log_directory].failure)
    end()
    kill(fs)
    assert served(start(fs)).log_end_offset == END
    kill(fs)
    assert served(start(fs, IDS)).log_end_offset == END


def test_without_descriptors_for_the_checkpoints_of_an_adopted_log_the_start_fails() -> None:
    fs = MemoryFileSystem()
    log_with_a_gap(fs)
    end = refuse_new_files(fs, errno.EMFILE, lambda path: "cleaner-offset-checkpoint" in path)
    with pytest.raises(ExhaustedError):
        start(fs)
    end()
    kill(fs)
    assert served(start(fs)).log_end_offset == END
    kill(fs)
    assert served(start(fs, IDS)).log_end_offset == END


def other_than(directory: str) -> str:
    return next(path for path in DIRECTORIES if path != directory)


def move(fs: MemoryFileSystem, log: PartitionLog) -> None:
    """Move the partition into the other log directory, as an operator does while the broker is down."""
    fs.rename(log.directory, f"{other_than(log.log_directory)}/t-0")


def adopted(fs: MemoryFileSystem) -> LogManager:
    """A manager that has adopted a log with a gap; its topic is in the store from the next start on."""
    log_with_a_gap(fs)
    return start(fs)


def test_a_log_that_is_moved_after_a_clean_stop_keeps_its_gaps() -> None:
    fs = MemoryFileSystem()
    manager = adopted(fs)
    log = served(manager)
    manager.close(0)
    move(fs, log)
    moved = served(start(fs, IDS))
    assert (moved.log_directory, moved.log_end_offset) == (other_than(log.log_directory), END)
    append(moved, b"new")
    kill(fs)
    assert served(start(fs, IDS)).log_end_offset == END + 1


def test_a_log_that_is_moved_after_a_kill_keeps_its_gaps() -> None:
    fs = MemoryFileSystem()
    log = served(adopted(fs))
    kill(fs)
    move(fs, log)
    for _ in range(3):
        assert served(start(fs, IDS)).log_end_offset == END
        kill(fs)


def test_a_log_that_is_moved_into_a_new_log_directory_keeps_its_gaps() -> None:
    fs = MemoryFileSystem()
    log = served(adopted(fs))
    kill(fs)
    fs.make_directory("/data/new")
    fs.rename(log.directory, "/data/new/t-0")
    for _ in range(3):
        assert served(opened(fs, ["/data/new"], CONFIG, ids=IDS)).log_end_offset == END
        kill(fs)


@pytest.mark.parametrize("content", [None, b"malformed"], ids=["unfinished compaction", "damaged checkpoint"])
def test_gaps_below_a_recovery_point_that_is_lowered_are_kept(content: bytes | None) -> None:
    fs = MemoryFileSystem()
    manager = start(fs)
    log = create_log(manager)
    manager.close(0)
    remove_second_segment(fs, log)
    if content is not None:
        fs.open(f"{log.log_directory}/cleaner-offset-checkpoint", create=True).write_pieces(0, [content], len(content))
    start(fs, IDS)
    kill(fs)
    fs.remove(f"{log.directory}/{0:020d}.index")  # its rebuilt index is not durable at once, and lowers the point
    for _ in range(3):
        assert served(start(fs, IDS)).log_end_offset == END
        kill(fs)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_lost_end_of_a_new_log_is_no_gap_although_a_deleted_log_had_its_name(policy: str) -> None:
    fs = MemoryFileSystem()
    manager = start(fs, policy=policy)
    old = manager.create_log("t", 0, TOPIC_ID, 0)
    append(old, *[b"old"] * END)
    old.flush(0)
    manager.checkpoints.write_now(manager.directories[old.log_directory], "recovery-point-offset-checkpoint")
    manager.delete_log("t", 0)
    manager.table.log_counts[old.log_directory] += 1
    log = create_log(manager)
    assert log.log_directory != old.log_directory
    log.flush(0)
    lost = log.segments[1].base_offset
    remove_second_segment(fs, log)
    kill(fs)
    assert served(start(fs, IDS, policy)).log_end_offset == lost
