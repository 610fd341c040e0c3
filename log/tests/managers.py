"""Log managers for tests, on the in-memory file system, and operations on them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.management.settings import LogManagerSettings
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.found_directories import KnownPartitions
from odradek.log.storage.log_directory import parse_directory_name
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.protocol.records import build_batch

ONE_THREAD = LogManagerSettings(num_recovery_threads_per_data_dir=1)
TOPIC_ID = bytes(range(16))
NEW_ID = bytes(range(16, 32))
DIRECTORIES = ("/data/a", "/data/b")


def make_manager(
    fs: FileSystem,
    directories: Sequence[str] = DIRECTORIES,
    config: dict[str, str] | None = None,
    **options: Any,
) -> LogManager:
    topic_config = LogConfig(config or {})
    options = {"settings": ONE_THREAD, "random_bytes": Random(1).randbytes, **options}
    return LogManager(fs, directories, topic_config, lambda topic: None, 1, **options)


def set_monotonic(manager: LogManager, now_ms: int) -> None:
    """Set the manager's monotonic clock to `now_ms`."""
    manager._monotonic = manager.cleaner._monotonic = manager.schedule._monotonic = lambda: now_ms / 1000


def known(ids: dict[str, bytes], partition_count: int = 100, *, are_complete: bool = False) -> KnownPartitions:
    """The partitions of the topics in `ids`, each with `partition_count` partitions."""
    return KnownPartitions(
        lambda topic, partition: ids.get(topic) if partition < partition_count else None, are_complete
    )


def opened(
    fs: FileSystem, *arguments: Any, now_ms: int = 0, ids: dict[str, bytes] | None = None, **options: Any
) -> LogManager:
    manager = make_manager(fs, *arguments, **{"monotonic": lambda: now_ms / 1000, **options})
    manager.open(now_ms, known(ids or {}))
    return manager


def served(manager: LogManager, topic: str = "t", partition: int = 0) -> PartitionLog:
    """Return a log that the manager has."""
    log = manager.get(topic, partition)
    assert log is not None
    return log


def damage(fs: MemoryFileSystem, path: str) -> None:
    """Overwrite the first byte of a file, so that no start can read the file."""
    fs.open(path).write_pieces(0, [b"9"], 1)


def refuse_new_files(fs: MemoryFileSystem, error: int, is_refused: Callable[[str], bool]) -> Callable[[], None]:
    """Let the creation of the files fail whose path `is_refused`. Return a function that ends this."""
    original = fs.before

    def before(operation: str, path: str, half_done: Callable[[], None] | None = None) -> None:
        if operation == "create" and is_refused(path):
            fs._raise(error, path, half_done)
        original(operation, path, half_done)

    def end() -> None:
        fs.before = original

    fs.before = before
    return end


def folders(fs: MemoryFileSystem, path: str) -> list[str]:
    """Return the names of the partitions' directories, without the random part: `t-0`, `t-0-stray`."""
    found = [parse_directory_name(name) for name in fs.list_names(path)]
    return [f"{one.topic}-{one.partition}{one.suffix}" for one in found if one is not None]


def truncate(manager: LogManager, offset: int, now_ms: int, topic: str = "t", partition: int = 0) -> None:
    """Truncate a log at once, durably."""
    for _ in manager.truncate_in_steps(topic, partition, offset, now_ms):
        pass
    served(manager, topic, partition).complete_truncation()


def append(log: PartitionLog, *values: bytes, now_ms: int = 0) -> None:
    for value in values:
        log.append_as_leader(memoryview(build_batch([(now_ms, b"k", value, ())])), leader_epoch=0, now_ms=now_ms)
    log.update_high_watermark(log.log_end_offset)


def run_until(manager: LogManager, start_ms: int, end_ms: int) -> int:
    """Run the tasks that are due from `start_ms` to `end_ms` of both clocks. Return the time of the next one."""
    now_ms = start_ms
    while now_ms <= end_ms:
        now_ms = run_due(manager, now_ms)
    return now_ms


def run_due(manager: LogManager, now_ms: int) -> int:
    """Run the tasks that are due at `now_ms` of both clocks. Return the time of the next one."""
    set_monotonic(manager, now_ms)
    return now_ms + manager.run_due(now_ms)


def crash_at_each_change(run: Callable[[MemoryFileSystem], None]) -> Iterator[tuple[int, MemoryFileSystem]]:
    """Run something with a crash at each of its changes in turn; yield the change, and what the crash has left."""
    probe = MemoryFileSystem()
    run(probe)
    for change in range(1, probe.operations + 1):
        fs = MemoryFileSystem()
        fs.crash_at(change)
        with suppress(SimulatedCrash):
            run(fs)
        fs.crash(Random(change))
        yield change, fs
