"""Offsets that compaction removed are kept by later recoveries, whatever cleanup.policy is by then."""

import errno
from collections.abc import Callable

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import ExhaustedError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import DIRECTORIES, TOPIC_ID, append, opened

CONFIG = {"internal.segment.bytes": "300"}
IDS = {"t": TOPIC_ID}
END = 12


def start(fs: MemoryFileSystem, ids: dict[str, bytes] | None = None) -> LogManager:
    return opened(fs, DIRECTORIES, CONFIG, ids=ids)


def served(manager: LogManager) -> PartitionLog:
    log = manager.get("t", 0)
    assert log is not None
    return log


def kill(fs: MemoryFileSystem) -> None:
    """End the process: the locks of its directories are released."""
    fs._held.clear()


def log_with_a_hole(fs: MemoryFileSystem) -> PartitionLog:
    """Make a log of which compaction, by a configuration that is lost, has emptied the second segment."""
    manager = start(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    for number in range(END):
        append(log, b"v%d" % number)
    log.flush(0)
    remove_second_segment(fs, log)
    kill(fs)
    return log


def remove_second_segment(fs: MemoryFileSystem, log: PartitionLog) -> None:
    assert len(log.segments) > 2
    for name in fs.list_names(log.directory):
        if name.startswith(f"{log.segments[1].base_offset:020d}"):
            fs.remove(f"{log.directory}/{name}")


def refuse(fs: MemoryFileSystem, error: int, file_name: str) -> Callable[[], None]:
    """Refuse new files of this name; return what ends that."""
    original = fs.before

    def before(operation: str, path: str, half: Callable[[], None] | None = None) -> None:
        if operation == "create" and file_name in path:
            fs._raise(error, path, half)
        original(operation, path, half)

    def end() -> None:
        fs.before = original  # type: ignore[method-assign]

    fs.before = before  # type: ignore[method-assign]
    return end


@pytest.mark.parametrize("file_name", ["cleaner-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_without_room_for_the_checkpoints_of_an_adopted_log_its_directory_is_offline(file_name: str) -> None:
    fs = MemoryFileSystem()
    log = log_with_a_hole(fs)
    end = refuse(fs, errno.ENOSPC, file_name)
    manager = start(fs)
    assert log.log_directory not in manager.online_directories
    assert "free some and start again" in str(manager.directories[log.log_directory].failure)
    end()
    kill(fs)
    assert served(start(fs)).log_end_offset == END
    kill(fs)
    assert served(start(fs, IDS)).log_end_offset == END


def test_without_descriptors_for_the_checkpoints_of_an_adopted_log_the_start_fails() -> None:
    fs = MemoryFileSystem()
    log_with_a_hole(fs)
    end = refuse(fs, errno.EMFILE, "cleaner-offset-checkpoint")
    with pytest.raises(ExhaustedError):
        start(fs)
    end()
    kill(fs)
    assert served(start(fs)).log_end_offset == END
    kill(fs)
    assert served(start(fs, IDS)).log_end_offset == END
