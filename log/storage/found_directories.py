"""Judgement of the directories found at start: which are partitions, and the treatment of each.

A name such as `backup-20240101` has a partition's form. A directory that is no partition of the cluster's counts
as one only if it holds a topic id or a segment and its number is plausible; any other is left alone.

Source: behaviour of Apache Kafka 4.3 in KRaft mode (a partition that the metadata does not have becomes stray).
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
"""A partition that the cluster does not have is numbered below this: as many as one request may create."""

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_SHOWN_NAMES = 10


class FoundLog(NamedTuple):
    """A partition's directory.

    latest_epoch: the last leader epoch in its log, -1 if it has none
    coordinator_epoch: the largest epoch of a transaction coordinator that wrote a marker to it, -1 if none is known
    """

    topic: str
    partition: int
    topic_id: bytes | None
    latest_epoch: int
    coordinator_epoch: int = -1


class KnownPartitions(NamedTuple):
    """The cluster's partitions, by which the directories found are judged.

    topic_id: the topic id of a partition that the cluster has, None for any other
    are_complete: other partitions do not exist; else they are served as they are found, for adoption
    is_topic_name: whether a topic may have the name
    """

    topic_id: Callable[[str, int], bytes | None] = lambda topic, partition: None
    are_complete: bool = False
    is_topic_name: Callable[[str], bool] = lambda name: True


class Verdict(Enum):
    """The treatment of a directory with the name of a partition."""

    SERVE = "load its log"
    SET_ASIDE = "rename it as stray"
    LEAVE = "leave it as it is"


def judge(fs: FileSystem, path: str, entry: PartitionDirectory, known: KnownPartitions) -> Verdict:
    """Return the verdict on the directory `path`, which has the name `entry` without a suffix. Raises OSError."""
    if known.topic_id(entry.topic, entry.partition) is not None:
        return Verdict.SERVE
    if not is_partition(fs, path, entry, known.is_topic_name):
        return Verdict.LEAVE
    return Verdict.SET_ASIDE if known.are_complete else Verdict.SERVE


def is_partition(
    fs: FileSystem, path: str, entry: PartitionDirectory, is_topic_name: Callable[[str], bool]
) -> bool:
    """Return whether the directory `path` is a partition, though none of the cluster's. Raises OSError."""
    if entry.partition >= MAX_FOUND_PARTITIONS or not is_topic_name(entry.topic):
        return False
    try:
        if checkpoints.read_partition_metadata(fs, path) is not None:
            return True
    except MalformedFileError:
        pass
    return any(_SEGMENT_NAME.fullmatch(name) for name in fs.list_names(path))


def find_partitions(fs: FileSystem, log_directory: str, is_topic_name: Callable[[str], bool]) -> list[str]:
    """Names of the partitions in a log directory, which may be absent. Raises OSError."""
    try:
        entries = list_partitions(fs, log_directory)
    except FileNotFoundError:
        return []
    return [
        entry.name
        for entry in entries
        if not entry.suffix and is_partition(fs, f"{log_directory}/{entry.name}", entry, is_topic_name)
    ]


def shown(names: Iterable[str]) -> str:
    """The first names of a list that may be long, for a log line."""
    listed = list(names)
    more = len(listed) - _SHOWN_NAMES
    return ", ".join(listed[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
