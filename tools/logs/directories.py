"""The parts of a log directory: its partitions, its checkpoints, and its state (in use, stopped cleanly, or not)."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from odradek.log.segments.segment_files import LOG_SUFFIX
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MalformedFileError,
)
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.log_directory import ALL_CHECKPOINTS, parse_directory_name
from odradek.log.storage.read_only import is_locked

METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_COMPACTED: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_METADATA_DIRECTORY: Final = "__cluster_metadata-0"
_LOG_NAME: Final = re.compile(r"\d{20}\.log")
_FILE_NAME: Final = re.compile(r"(\d{20})(?:-\d{10})?\.")


class DirectoryState(Enum):
    """State of a log directory.

    IN_USE: a broker has its lock
    CLEAN: the last broker stopped cleanly
    UNCLEAN: the last broker did not stop cleanly; its next start recovers the logs
    UNKNOWN: the partition is not in a log directory, for instance because it was copied
    """

    IN_USE = "in use by a broker"
    CLEAN = "cleanly stopped"
    UNCLEAN = "not cleanly stopped"
    UNKNOWN = "unknown"


class PartitionFiles(NamedTuple):
    """A partition's directory. `suffix` is empty, or "-delete", "-stray" or "-future".

    segment: base offset of the only segment to read; None for all
    """

    path: str
    topic: str
    partition: int
    suffix: str = ""
    segment: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition


class LogDirectoryFiles:
    """A log directory, or the parent of a partition: its state and its checkpoints by the names of their files.

    `malformed`: the checkpoints that cannot be read.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self.state = read_state(fs, path)
        self.checkpoints: dict[str, dict[tuple[str, int], int]] = {}
        self.malformed: list[MalformedFileError] = []
        for name in ALL_CHECKPOINTS:
            try:
                self.checkpoints[name] = checkpoints.read_offsets(fs, f"{path}/{name}")
            except MalformedFileError as error:
                self.checkpoints[name] = {}
                self.malformed.append(error)

    def recovery_point(self, key: tuple[str, int]) -> int | None:
        return self.checkpoints[RECOVERY_POINTS_FILE].get(key)

    def high_watermark(self, key: tuple[str, int]) -> int | None:
        return self.checkpoints[HIGH_WATERMARKS_FILE].get(key)

    def log_start_offset(self, key: tuple[str, int]) -> int | None:
        return self.checkpoints[LOG_START_OFFSETS_FILE].get(key)

    def cleaned_to(self, key: tuple[str, int]) -> int:
        """Return the offset up to which the partition was compacted; 0 if it was not."""
        return self.checkpoints[CLEANER_OFFSETS_FILE].get(key, 0)


def read_state(fs: FileSystem, path: str) -> DirectoryState:
    """Return the state of a log directory. Raises OSError."""
    if not is_log_directory(fs, path):
        return DirectoryState.UNKNOWN
    if is_locked(f"{path}/{checkpoints.LOCK_FILE}"):
        return DirectoryState.IN_USE
    is_clean = checkpoints.read_clean_shutdown(fs, path) is not None
    return DirectoryState.CLEAN if is_clean else DirectoryState.UNCLEAN


def is_log_directory(fs: FileSystem, path: str) -> bool:
    """Return whether a directory has a file that only log directories have."""
    names = (checkpoints.META_PROPERTIES_FILE, RECOVERY_POINTS_FILE, HIGH_WATERMARKS_FILE)
    return any(fs.exists(f"{path}/{name}") for name in names)


def parse_partition(path: str) -> PartitionFiles | None:
    """Return the partition whose directory is `path`; None if the name is not that of a partition."""
    name = path.rpartition("/")[2]
    if name == _METADATA_DIRECTORY:
        return PartitionFiles(path, METADATA_TOPIC, 0)
    parsed = parse_directory_name(name)
    return None if parsed is None else PartitionFiles(path, parsed.topic, parsed.partition, parsed.suffix)


def is_partition(fs: FileSystem, path: str) -> bool:
    """Return whether a directory contains segments. Raises OSError."""
    return any(_LOG_NAME.fullmatch(name) for name in fs.list_names(path))


def parse_segment(path: str) -> PartitionFiles | None:
    """Return the partition of a .log file, with this segment only; None for another file."""
    directory, _, name = path.rpartition("/")
    if not _LOG_NAME.fullmatch(name):
        return None
    partition = parse_partition(directory) or PartitionFiles(directory, directory.rpartition("/")[2], 0)
    return partition._replace(segment=base_offset(name))


def list_partition_directories(fs: FileSystem, path: str) -> Iterator[PartitionFiles]:
    """Yield the partitions in a log directory, by topic and number. Raises OSError."""
    found = []
    for name in fs.list_names(path):
        parsed = parse_partition(f"{path}/{name}")
        if parsed is not None and fs.is_directory(parsed.path):
            found.append(parsed)
    yield from sorted(found, key=lambda each: (each.topic, each.partition, each.path))


def base_offset(name: str) -> int:
    """Return the offset in the name of a segment's file or a snapshot; -1 for any other name."""
    match = _FILE_NAME.match(name)
    return int(match[1]) if match else -1


def segment_offsets(names: list[str]) -> list[int]:
    """Return the base offsets of the segments among the names of a partition's files, ascending."""
    return sorted(int(name.removesuffix(LOG_SUFFIX)) for name in names if _LOG_NAME.fullmatch(name))
