"""Log managers for tests, on the in-memory file system, and what is done to them."""

from collections.abc import Sequence
from random import Random
from typing import Any

from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.management.settings import LogManagerSettings
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.found_directories import KnownPartitions
from odradek.log.storage.log_directory import parse_directory_name
from odradek.log.storage.memory_filesystem import MemoryFileSystem
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
    """Let the manager's monotonic clock stand at `now_ms`."""
    manager._monotonic = manager.cleaner._monotonic = manager.schedule._monotonic = lambda: now_ms / 1000


def known(ids: dict[str, bytes], partition_count: int = 100, *, are_complete: bool = False) -> KnownPartitions:
    """The partitions of topics, by the topics' ids."""
    return KnownPartitions(
        lambda topic, partition: ids.get(topic) if partition < partition_count else None, are_complete
    )


def opened(
    fs: FileSystem, *arguments: Any, now_ms: int = 0, ids: dict[str, bytes] | None = None, **options: Any
) -> LogManager:
    manager = make_manager(fs, *arguments, **{"monotonic": lambda: now_ms / 1000, **options})
    manager.open(now_ms, known(ids or {}))
    return manager


def damage(fs: MemoryFileSystem, path: str) -> None:
    """A file that no start can make sense of."""
    fs.open(path).write_pieces(0, [b"9"], 1)


def folders(fs: MemoryFileSystem, path: str) -> list[str]:
    """The partitions' folders, those that were renamed as `t-0-stray`."""
    found = [parse_directory_name(name) for name in fs.list_names(path)]
    return [f"{one.topic}-{one.partition}{one.suffix}" for one in found if one is not None]


def append(log: PartitionLog, *values: bytes, now_ms: int = 0) -> None:
    for value in values:
        log.append_as_leader(memoryview(build_batch([(now_ms, b"k", value, ())])), leader_epoch=0, now_ms=now_ms)
    log.update_high_watermark(log.log_end_offset)


def run_until(manager: LogManager, start_ms: int, end_ms: int) -> int:
    """Run what is due from `start_ms` to `end_ms` of both clocks; the time of what is due next."""
    now_ms = start_ms
    while now_ms <= end_ms:
        now_ms = run_due(manager, now_ms)
    return now_ms


def run_due(manager: LogManager, now_ms: int) -> int:
    """Run what is due at `now_ms` of both clocks; the time of what is due next."""
    set_monotonic(manager, now_ms)
    return now_ms + manager.run_due(now_ms)
