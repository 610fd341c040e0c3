"""`log verify`: checks log directories, partitions and segments, and compares the parts of several log directories."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from odradek.log.segments.segment_files import LOG_SUFFIX, file_name
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MalformedFileError,
    MetaProperties,
)
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.log_directory import DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX
from odradek.tools.logs.directories import (
    METADATA_TOPIC,
    DirectoryState,
    LogDirectoryFiles,
    PartitionFiles,
    is_partition,
    list_partition_directories,
    parse_partition,
    parse_segment,
    segment_offsets,
)
from odradek.tools.logs.findings import Report, Severity
from odradek.tools.logs.partition_state import PartitionTotals, VerifyOptions
from odradek.tools.logs.verify_partition import verify_partition

_SUFFIX_NOTES = {
    DELETE_SUFFIX: ("the partition waits for its deletion, and is not checked", "nothing; the broker removes it"),
    STRAY_SUFFIX: (
        "the partition was not in the cluster's metadata when the broker started",
        "remove the directory if its records are not needed",
    ),
    FUTURE_SUFFIX: ("the partition is being moved to this log directory", "nothing; the broker continues the move"),
}


class NotALogError(Exception):
    """A path is no log directory, partition's directory or segment."""


class VerifyTotals(NamedTuple):
    """Numbers of checked partitions, batches, records and bytes."""

    partitions: int
    batches: int
    records: int
    size_bytes: int


class Selection(NamedTuple):
    """The partitions of one path. `parent` is the log directory; `is_whole`: all its partitions are selected."""

    parent: LogDirectoryFiles
    partitions: list[PartitionFiles]
    is_whole: bool


def select(fs: FileSystem, path: str, is_selected: Callable[[PartitionFiles], bool]) -> Selection:
    """Return the partitions in `path`: a log directory, a partition's directory, or the .log file of a segment.

    Raises NotALogError, OSError.
    """
    if not fs.exists(path):
        raise NotALogError(f"{path} does not exist")
    if not fs.is_directory(path):
        segment = parse_segment(path)
        if segment is None:
            raise NotALogError(f"{path} is no directory and no .log file of a segment")
        parent = segment.path.rpartition("/")[0] or "/"
        return Selection(LogDirectoryFiles(fs, parent), [segment] if is_selected(segment) else [], is_whole=False)
    partition = parse_partition(path)
    if partition is not None or is_partition(fs, path):
        parent = path.rpartition("/")[0] or "/"
        found = partition or PartitionFiles(path, path.rpartition("/")[2], 0)
        return Selection(LogDirectoryFiles(fs, parent), [found] if is_selected(found) else [], is_whole=False)
    parent_files = LogDirectoryFiles(fs, path)
    partitions = list(list_partition_directories(fs, path))
    if not partitions and parent_files.state is DirectoryState.UNKNOWN:
        raise NotALogError(f"{path} contains neither partitions nor the files of a log directory")
    selected = [each for each in partitions if is_selected(each)]
    return Selection(parent_files, selected, is_whole=len(selected) == len(partitions))


def count_bytes(fs: FileSystem, selections: Iterable[Selection]) -> int:
    """Return the size of all segments that a verification reads, for the progress."""
    total = 0
    for partition in (each for selection in selections for each in selection.partitions):
        if partition.suffix != DELETE_SUFFIX:
            total += _segment_bytes(fs, partition)
    return total


def _segment_bytes(fs: FileSystem, partition: PartitionFiles) -> int:
    """Return the size of a partition's segments; those that are deleted meanwhile are not counted."""
    total = 0
    with suppress(FileNotFoundError):
        for base in segment_offsets(fs.list_names(partition.path)):
            if partition.segment in (None, base):
                total += fs.size_bytes(f"{partition.path}/{file_name(base, LOG_SUFFIX)}")
    return total


def verify(fs: FileSystem, selections: Sequence[Selection], options: VerifyOptions, report: Report) -> VerifyTotals:
    """Check partitions, and the log directories of which all partitions are selected. Raises OSError."""
    partitions = batches = records = size_bytes = 0
    for selection in selections:
        _check_malformed(selection, report)
        if selection.is_whole:
            _check_log_directory(fs, selection.parent, report)
        ends: dict[tuple[str, int], PartitionTotals] = {}
        for partition in selection.partitions:
            if partition.suffix:
                problem, remedy = _SUFFIX_NOTES[partition.suffix]
                report.add(Severity.NOTE, "directory", partition.path, problem, remedy)
            if partition.suffix == DELETE_SUFFIX:
                continue
            totals = verify_partition(fs, partition, selection.parent, options, report)
            report.end_directory(f"{partition.path}/")
            if totals is None:
                continue
            partitions += 1
            batches, records = batches + totals.batches, records + totals.records
            size_bytes += totals.size_bytes
            if not partition.suffix and partition.segment is None:
                ends[partition.key] = totals
                _check_offsets(selection.parent, partition, totals, report)
        if selection.is_whole:
            _check_entries(selection, set(ends), report)
    _compare_directories(fs, selections, report)
    return VerifyTotals(partitions, batches, records, size_bytes)


def _check_malformed(selection: Selection, report: Report) -> None:
    for error in selection.parent.malformed:
        is_ignored = error.path.endswith(CLEANER_OFFSETS_FILE)
        remedy = (
            "nothing; compaction starts over"
            if is_ignored
            else "the broker takes the log directory offline: stop the broker and remove the file. Without recovery "
            "points all logs are recovered, without log start offsets deleted records may reappear"
        )
        problem = str(error).removeprefix(f"{error.path}: ")
        report.add(Severity.WARNING if is_ignored else Severity.ERROR, "checkpoint", error.path, problem, remedy)


def _check_log_directory(fs: FileSystem, parent: LogDirectoryFiles, report: Report) -> None:
    if parent.state is DirectoryState.UNCLEAN:
        problem = "the last broker did not stop cleanly"
        remedy = "nothing; the next start recovers the logs from their recovery points on"
        report.add(Severity.NOTE, "state", parent.path, problem, remedy)
    try:
        if checkpoints.read_meta_properties(fs, parent.path) is None:
            problem = f"{checkpoints.META_PROPERTIES_FILE} is missing"
            remedy = "nothing in Odradek, which writes it; Apache Kafka 4 does not start without it"
            report.add(Severity.WARNING, "meta", parent.path, problem, remedy)
    except MalformedFileError as error:
        problem = str(error).removeprefix(f"{error.path}: ")
        report.add(Severity.ERROR, "meta", error.path, problem, "correct the file; brokers do not start otherwise")


def _check_offsets(
    parent: LogDirectoryFiles, partition: PartitionFiles, totals: PartitionTotals, report: Report
) -> None:
    """Compare the offsets of a partition in the checkpoints with the end of its log."""
    is_clean = parent.state is DirectoryState.CLEAN
    end = totals.end_offset
    point = parent.recovery_point(partition.key)
    if point is not None and point > end:
        remedy = "flushed records are missing: copy the partition from another replica, or restore it from a backup"
        _report_offset(parent, partition, RECOVERY_POINTS_FILE, point, end, Severity.ERROR, remedy, report)
    mark = parent.high_watermark(partition.key)
    if mark is not None and mark > end:
        severity = Severity.ERROR if is_clean else Severity.WARNING
        remedy = "records that consumers may have read are missing; another replica may have them"
        _report_offset(parent, partition, HIGH_WATERMARKS_FILE, mark, end, severity, remedy, report)
    start = parent.log_start_offset(partition.key)
    if start is not None and start > end:
        severity = Severity.ERROR if is_clean else Severity.WARNING
        remedy = (
            "Odradek does not load this log after a clean stop, Apache Kafka empties it: correct the entry, or remove "
            "it to keep the whole log"
        )
        _report_offset(parent, partition, LOG_START_OFFSETS_FILE, start, end, severity, remedy, report)
    cleaned = parent.cleaned_to(partition.key)
    if cleaned > end:
        remedy = "nothing; compaction starts over"
        _report_offset(parent, partition, CLEANER_OFFSETS_FILE, cleaned, end, Severity.WARNING, remedy, report)


def _report_offset(
    parent: LogDirectoryFiles,
    partition: PartitionFiles,
    name: str,
    offset: int,
    end: int,
    severity: Severity,
    remedy: str,
    report: Report,
) -> None:
    problem = f"{partition.topic}-{partition.partition} has offset {offset}, but its log ends at {end}"
    report.add(severity, "checkpoint", f"{parent.path}/{name}", problem, remedy)


def _check_entries(selection: Selection, found: set[tuple[str, int]], report: Report) -> None:
    """Report entries of partitions that have no directory."""
    if selection.parent.state is DirectoryState.IN_USE:
        # The topic may have been deleted after the checkpoint was written.
        return
    present = found | {partition.key for partition in selection.partitions}
    for name in (RECOVERY_POINTS_FILE, HIGH_WATERMARKS_FILE, LOG_START_OFFSETS_FILE):
        missing = sorted(key for key in selection.parent.checkpoints[name] if key not in present)
        for topic, partition in missing:
            report.add(
                Severity.NOTE,
                "checkpoint",
                f"{selection.parent.path}/{name}",
                f"the entry of {topic}-{partition} has no partition",
                "nothing if the topic was deleted or the partition moved; otherwise its directory is missing",
            )


# Comparison


def _compare_directories(fs: FileSystem, selections: Sequence[Selection], report: Report) -> None:
    """Compare identities of log directories, topic ids, and find partitions that are in two directories."""
    if not _have_one_owner(fs, selections, report):
        return
    places: dict[tuple[str, int], str] = {}
    topic_ids: dict[str, tuple[bytes, str]] = {}
    for partition in (each for selection in selections for each in selection.partitions):
        if partition.suffix or partition.topic == METADATA_TOPIC:
            continue
        _compare_topic_id(fs, partition, topic_ids, report)
        if fs.exists(f"{partition.path}/{checkpoints.REPLACED_REPLICA_FILE}"):
            # The next start replaces it by the other one.
            continue
        other = places.setdefault(partition.key, partition.path)
        if other != partition.path:
            remedy = "the broker may not start: keep the one with the higher end offset, and move the other one away"
            problem = f"the partition is in {other}, too"
            report.add(Severity.ERROR, "duplicate", partition.path, problem, remedy)


def _compare_topic_id(
    fs: FileSystem, partition: PartitionFiles, known: dict[str, tuple[bytes, str]], report: Report
) -> None:
    """Compare the topic id of a partition with that of an earlier partition of its topic."""
    try:
        topic_id = checkpoints.read_partition_metadata(fs, partition.path)
    except (MalformedFileError, OSError):
        # It was reported with the partition.
        return
    if topic_id is None:
        return
    other_id, other = known.setdefault(partition.topic, (topic_id, partition.path))
    if other_id != topic_id:
        report.add(
            Severity.ERROR,
            "topic-id",
            f"{partition.path}/{checkpoints.PARTITION_METADATA_FILE}",
            f"the topic id is {checkpoints.encode_uuid(topic_id)}, that in {other} {checkpoints.encode_uuid(other_id)}",
            "one of the directories belongs to a deleted topic of this name: find out which, and move it away",
        )


def _have_one_owner(fs: FileSystem, selections: Sequence[Selection], report: Report) -> bool:
    """Compare meta.properties of the log directories; return whether all can belong to one broker."""
    known: dict[str, MetaProperties] = {}
    is_one = True
    for parent in {each.parent.path: each.parent for each in selections if each.is_whole}.values():
        try:
            meta = checkpoints.read_meta_properties(fs, parent.path)
        except MalformedFileError:
            continue
        if meta is None:
            continue
        path = f"{parent.path}/{checkpoints.META_PROPERTIES_FILE}"
        for other_path, other in list(known.items())[:1]:
            for what, mine, its in (
                ("cluster id", meta.cluster_id, other.cluster_id),
                ("node id", meta.node_id, other.node_id),
            ):
                if mine != its:
                    is_one = False
                    problem = f"the {what} is {mine}, that of {other_path} {its}; their partitions are not compared"
                    remedy = "verify the directories of each broker separately, or correct log.dirs if they are of one"
                    report.add(Severity.WARNING, "meta", path, problem, remedy)
        for other_path, other in known.items():
            if meta.directory_id is not None and meta.directory_id == other.directory_id:
                remedy = "one is a copy of the other: remove the copy, or only its directory.id"
                report.add(Severity.ERROR, "meta", path, f"the directory id is that of {other_path}", remedy)
        known[parent.path] = meta
    return is_one
