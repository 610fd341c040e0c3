"""Check of a partition's directory: its segments, leader epochs and producers, and the files beside them."""

from odradek.log.segments.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
)
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import MalformedFileError
from odradek.log.storage.filesystem import TEMPORARY_SUFFIX, FileSystem
from odradek.tools.logs.directories import (
    DirectoryState,
    LogDirectoryFiles,
    PartitionFiles,
    base_offset,
    segment_offsets,
)
from odradek.tools.logs.epoch_checks import EpochCheck
from odradek.tools.logs.findings import Report, Severity
from odradek.tools.logs.partition_state import MAX_OFFSET, PartitionState, PartitionTotals, VerifyOptions
from odradek.tools.logs.segment_check import SegmentCheck


class PartitionCheck:
    """Check of one partition. Raises OSError."""

    def __init__(
        self,
        fs: FileSystem,
        partition: PartitionFiles,
        parent: LogDirectoryFiles,
        options: VerifyOptions,
        report: Report,
    ) -> None:
        self.names = fs.list_names(partition.path)
        self.bases = segment_offsets(self.names)
        limits = zip(self.bases, [*self.bases[1:], MAX_OFFSET][: len(self.bases)], strict=True)
        self.segments = [each for each in limits if partition.segment in (None, each[0])]
        start, end = (self.segments[0][0], self.segments[-1][1]) if self.segments else (0, MAX_OFFSET)
        offsets = (base_offset(name) for name in self.names if name.endswith(SNAPSHOT_SUFFIX))
        snapshots = sorted(offset for offset in offsets if 0 <= offset <= end)
        self.state = PartitionState(fs, partition, parent, options, report, start, snapshots)

    def run(self) -> PartitionTotals:
        """Read the partition once, and return its totals."""
        state = self.state
        if state.partition.segment is None:
            self._check_names()
            self._check_topic_id()
        state.epochs = self._read_epochs()
        if not self.segments:
            return state.totals
        for base, limit in self.segments:
            SegmentCheck(state, base, limit).run()
        state.totals.end_offset = state.next_offset
        state.producers.finish(state.next_offset)
        if state.epochs is not None and self.segments[-1][1] == MAX_OFFSET:
            state.epochs.finish(state.next_offset)
        return state.totals

    # Files

    def _check_names(self) -> None:
        is_used = self.state.parent.state is DirectoryState.IN_USE
        deleted = [name for name in self.names if name.endswith(DELETED_SUFFIX)]
        if deleted:
            count = "a deleted file is" if len(deleted) == 1 else f"{len(deleted)} deleted files are"
            self._note(deleted[0], f"{count} not removed yet", "nothing; the broker or its next start removes them")
        for name in self.names:
            if name.endswith(DELETED_SUFFIX):
                continue
            if name.endswith(TEMPORARY_SUFFIX):
                self._note(name, "the file is an incomplete write", "nothing; the next start removes it")
            elif name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
                severity = Severity.NOTE if is_used else Severity.WARNING
                what = "compaction was interrupted" if not is_used else "compaction is in progress"
                remedy = "nothing; the broker's next start completes or reverts the compaction of these segments"
                self.state.report.add(severity, "leftover", self.state.path(name), what, remedy)
            elif name.endswith(SEGMENT_SUFFIXES) and base_offset(name) not in self.bases:
                remedy = "nothing; the next start removes the file"
                problem = "the index has no .log file"
                self.state.report.add(Severity.WARNING, "leftover", self.state.path(name), problem, remedy)
            elif name.endswith(SNAPSHOT_SUFFIX) and self._is_stray_snapshot(base_offset(name)):
                self._note(name, "the snapshot is of no segment's base offset", "nothing; the next start removes it")
            elif name == checkpoints.REPLACED_REPLICA_FILE:
                problem = "the replica is about to be replaced by the one in another log directory"
                self._note(name, problem, "nothing; the next start completes the move")

    def _is_stray_snapshot(self, offset: int) -> bool:
        return offset not in self.bases and offset <= max(self.bases, default=-1)

    def _note(self, name: str, problem: str, remedy: str) -> None:
        self.state.report.add(Severity.NOTE, "leftover", self.state.path(name), problem, remedy)

    def _check_topic_id(self) -> None:
        try:
            topic_id = checkpoints.read_partition_metadata(self.state.fs, self.state.partition.path)
        except MalformedFileError as error:
            severity = Severity.ERROR if self.state.is_clean else Severity.WARNING
            remedy = "remove the file; the broker writes it again with the topic's id"
            self.state.report.add(severity, "topic-id", error.path, _problem(error), remedy)
            return
        if topic_id is None and self.bases:
            self.state.report.add(
                Severity.NOTE,
                "topic-id",
                self.state.path(checkpoints.PARTITION_METADATA_FILE),
                "the partition has no topic id",
                "nothing; brokers before Apache Kafka 2.8 write none, and the file is written when the id is known",
            )

    def _read_epochs(self) -> EpochCheck | None:
        path = self.state.path(checkpoints.LEADER_EPOCHS_FILE)
        try:
            entries = checkpoints.read_leader_epochs(self.state.fs, path)
        except MalformedFileError as error:
            severity = Severity.ERROR if self.state.is_clean else Severity.WARNING
            remedy = "nothing in Odradek, which reads the epochs from the batches; for Apache Kafka remove the file"
            self.state.report.add(severity, "leader-epoch", path, _problem(error), remedy)
            return None
        parent, key = self.state.parent, self.state.partition.key
        if self.state.is_clean:
            flushed_to, start = MAX_OFFSET, parent.log_start_offset(key) or 0
        else:
            # The checkpoint of log start offsets is written later than the epochs.
            flushed_to, start = parent.recovery_point(key) or 0, MAX_OFFSET
        return EpochCheck(path, entries, self.state.report, log_start_offset=start, flushed_to=flushed_to)


def _problem(error: MalformedFileError) -> str:
    return str(error).removeprefix(f"{error.path}: ")
