"""State of a partition's verification, which the checks of its segments share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from odradek.log.storage.checkpoints import CLEANER_OFFSETS_FILE
from odradek.log.storage.filesystem import FileSystem
from odradek.tools.logs.directories import INTERNAL_COMPACTED, DirectoryState, LogDirectoryFiles, PartitionFiles
from odradek.tools.logs.epoch_checks import EpochCheck
from odradek.tools.logs.findings import Report
from odradek.tools.logs.producer_checks import ProducerReplay

MAX_OFFSET: Final = 1 << 62
COPY: Final = "copy the partition from another replica, or restore it from a backup"
"""Advice for findings that mean lost records."""


@dataclass
class PartitionTotals:
    """Contents of a partition: the offsets from its first segment's base on, and the number of batches and bytes."""

    start_offset: int = 0
    end_offset: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification.

    check_records: check the records in the batches, for which compressed batches are decompressed
    on_progress: called with the number of bytes read since the last call
    """

    check_records: bool = True
    on_progress: Callable[[int], None] = lambda size_bytes: None


class PartitionState:
    """State of one partition's verification.

    start_offset: base offset of the first segment
    next_offset: the offset after the last batch
    is_clean: the broker closed the log
    cleaned_to: the offset up to which the log was compacted; `was_compacted`: the checkpoint has an entry
    shows_compaction: offsets are missing inside of segments
    epochs: None if the checkpoint cannot be read
    """

    def __init__(
        self,
        fs: FileSystem,
        partition: PartitionFiles,
        parent: LogDirectoryFiles,
        options: VerifyOptions,
        report: Report,
        start_offset: int,
        snapshots: list[int],
    ) -> None:
        self.fs = fs
        self.partition = partition
        self.parent = parent
        self.options = options
        self.report = report
        self.totals = PartitionTotals(start_offset, start_offset)
        self.start_offset = self.next_offset = start_offset
        # A directory with a suffix was renamed while its log was open.
        self.is_clean = parent.state is DirectoryState.CLEAN and not partition.suffix
        self.cleaned_to = parent.cleaned_to(partition.key)
        self.was_compacted = partition.key in parent.checkpoints[CLEANER_OFFSETS_FILE]
        self.shows_compaction = False
        self.producers = ProducerReplay(fs, partition.path, snapshots, start_offset, report)
        self.epochs: EpochCheck | None = None

    def path(self, name: str) -> str:
        """Return the path of a file in the partition's directory."""
        return f"{self.partition.path}/{name}"

    def allows_gap(self, end_offset: int) -> bool:
        """Return whether compaction may have removed the offsets below `end_offset`."""
        return end_offset <= self.cleaned_to or self.partition.topic in INTERNAL_COMPACTED
