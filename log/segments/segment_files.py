"""Files of a segment: their names, and their removal."""

from typing import Final, NamedTuple

from odradek.log.storage.filesystem import FileSystem, remove_if_exists

MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
"""Largest offset of a record relative to the base offset of its segment."""

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class DeletedSegment(NamedTuple):
    """A segment that was removed from the log. `names` are its files, which are renamed and will be removed later."""

    base_offset: int
    size_bytes: int
    names: tuple[str, ...]


class CorruptSegmentError(OSError):
    """There is no complete batch at a position of a segment where one is required."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def remove_segment_files(fs: FileSystem, directory: str, base_offset: int, suffix: str = "") -> None:
    """Remove those files of a segment that exist."""
    for kind in SEGMENT_SUFFIXES:
        remove_if_exists(fs, f"{directory}/{file_name(base_offset, kind)}{suffix}")
