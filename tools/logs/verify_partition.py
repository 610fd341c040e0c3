"""Verification of a partition, which is repeated if a running broker replaces segments meanwhile."""

from typing import Final

from odradek.log.segments.segment_files import SEGMENT_SUFFIXES, file_name
from odradek.log.storage.filesystem import FileSystem
from odradek.tools.logs.directories import (
    DirectoryState,
    LogDirectoryFiles,
    PartitionFiles,
    base_offset,
    segment_offsets,
)
from odradek.tools.logs.findings import Finding, Report, Severity
from odradek.tools.logs.partition_check import PartitionCheck
from odradek.tools.logs.partition_state import COPY, PartitionTotals, VerifyOptions

_MAX_ATTEMPTS: Final = 3


def verify_partition(
    fs: FileSystem, partition: PartitionFiles, parent: LogDirectoryFiles, options: VerifyOptions, report: Report
) -> PartitionTotals | None:
    """Check a partition. Return its totals; None if it could not be read to its end.

    A running broker may replace or delete segments during the check. Findings in these are not reported; the check is
    repeated instead.
    """
    if parent.state is not DirectoryState.IN_USE:
        return _check_once(fs, partition, parent, options, report)
    totals = None
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        before = _stat_segments(fs, partition.path)
        found: list[Finding] = []
        try:
            totals = _check_once(fs, partition, parent, options, Report(found.append))
        except FileNotFoundError as error:
            if not fs.is_directory(partition.path):
                return None
            found.append(_changed(error.filename or partition.path))
        after = _stat_segments(fs, partition.path)
        reliable = [each for each in found if not _is_outdated(each, before, after)]
        if len(reliable) == len(found) or attempt == _MAX_ATTEMPTS:
            break
    for finding in reliable:
        report.pass_on(finding)
    if len(reliable) < len(found):
        report.pass_on(_changed(partition.path))
    return totals


def _check_once(
    fs: FileSystem, partition: PartitionFiles, parent: LogDirectoryFiles, options: VerifyOptions, report: Report
) -> PartitionTotals | None:
    """Check a partition. Raises FileNotFoundError, because a running broker may delete files."""
    try:
        return PartitionCheck(fs, partition, parent, options, report).run()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and parent.state is DirectoryState.IN_USE:
            raise
        remedy = f"correct the permissions; if the disk has failed, {COPY}"
        path = error.filename if isinstance(error.filename, str) else partition.path
        report.add(Severity.ERROR, "read", path, f"reading failed: {error.strerror}", remedy)
        return None


def _changed(path: str) -> Finding:
    problem, remedy = "the broker replaced or deleted files during the check", "run the verification again"
    return Finding(Severity.NOTE, "changed", path, None, problem, remedy)


def _stat_segments(fs: FileSystem, directory: str) -> dict[int, tuple[int, ...]]:
    """Return size and modification time of the files of each segment by base offset, without the last one."""
    try:
        bases = segment_offsets(fs.list_names(directory))
    except FileNotFoundError:
        return {}
    found: dict[int, tuple[int, ...]] = {}
    for base in bases[:-1]:
        values: list[int] = []
        for suffix in SEGMENT_SUFFIXES:
            path = f"{directory}/{file_name(base, suffix)}"
            try:
                values += [fs.size_bytes(path), fs.modified_ms(path)]
            except FileNotFoundError:
                values.append(-1)
        found[base] = tuple(values)
    return found


def _is_outdated(finding: Finding, before: dict[int, tuple[int, ...]], after: dict[int, tuple[int, ...]]) -> bool:
    """Return whether a finding is about a segment whose files were replaced or deleted during the check."""
    if finding.check == "changed":
        return True
    base = base_offset(finding.path.rpartition("/")[2])
    if base < 0 or finding.severity is Severity.NOTE:
        return False
    return before.get(base) != after.get(base)
