"""Classification of the directories found at start: partitions to load, stray partitions, other directories.

A name such as `backup-20240101` has the form of a partition's name. A directory whose partition is not in the metadata
is a partition only if it contains a topic id or a segment and its number is plausible; any other is left unchanged.

Source: behaviour of Apache Kafka 4.3 in KRaft mode (a partition that is not in the metadata becomes stray).
"""

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import MalformedFileError
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.log_directory import PartitionDirectory, list_partitions

MAX_FOUND_PARTITIONS: Final = 10_000
"""Partition numbers from this one on are not plausible: one request may create that many partitions."""

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_SHOWN_NAMES = 10


class FoundLog(NamedTuple):
    """A partition's directory.

    latest_epoch: the last leader epoch in its log; -1 if it has none
    coordinator_epoch: the largest coordinator epoch of a transaction marker in it; -1 if it has no markers
    """

    topic: str
    partition: int
    topic_id: bytes | None
    latest_epoch: int
    coordinator_epoch: int = -1


class KnownPartitions(NamedTuple):
    """The partitions in the metadata, with which the directories found are compared.

    topic_id: returns a partition's topic id; ZERO_UUID if the metadata does not have the topic's id, so that the log is
        accepted with any; None if the partition is not in the metadata
    are_complete: other partitions are stray; otherwise they are served, for adoption
    is_topic_name: returns whether the name is valid for a topic
    """

    topic_id: Callable[[str, int], bytes | None] = lambda topic, partition: None
    are_complete: bool = False
    is_topic_name: Callable[[str], bool] = lambda name: True


class DirectoryKind(Enum):
    """Kind of a directory with the name of a partition."""

    PARTITION = "partition"
    """Its log is loaded."""
    STRAY = "stray"
    """It is renamed as stray."""
    OTHER = "other"
    """It is left unchanged."""


def classify_directory(fs: FileSystem, path: str, entry: PartitionDirectory, known: KnownPartitions) -> DirectoryKind:
    """Return the kind of the directory `path`, whose name is `entry` without a suffix. Raises OSError."""
    if known.topic_id(entry.topic, entry.partition) is not None:
        return DirectoryKind.PARTITION
    if not is_partition(fs, path, entry, known.is_topic_name):
        return DirectoryKind.OTHER
    return DirectoryKind.STRAY if known.are_complete else DirectoryKind.PARTITION


def is_partition(
    fs: FileSystem, path: str, entry: PartitionDirectory, is_topic_name: Callable[[str], bool]
) -> bool:
    """Return whether the directory `path` is a partition that is not in the metadata. Raises OSError."""
    if entry.partition >= MAX_FOUND_PARTITIONS or not is_topic_name(entry.topic):
        return False
    try:
        if checkpoints.read_partition_metadata(fs, path) is not None:
            return True
    except MalformedFileError:
        pass
    return any(_SEGMENT_NAME.fullmatch(name) for name in fs.list_names(path))


def find_partitions(fs: FileSystem, log_directory: str, is_topic_name: Callable[[str], bool]) -> list[str]:
    """Return the names of the partitions in a log directory; none if it does not exist. Raises OSError."""
    try:
        entries = list_partitions(fs, log_directory)
    except FileNotFoundError:
        return []
    return [
        entry.name
        for entry in entries
        if not entry.suffix and is_partition(fs, f"{log_directory}/{entry.name}", entry, is_topic_name)
    ]


def format_names(names: Iterable[str]) -> str:
    """Format a possibly long list of names for a log line: the first ones, and the number of the others."""
    listed = list(names)
    more = len(listed) - _SHOWN_NAMES
    return ", ".join(listed[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
