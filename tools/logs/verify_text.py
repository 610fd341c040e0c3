"""Findings and the summary of a verification, as text or JSON."""

import json

from odradek.tools.logs.findings import Finding, Report, Severity
from odradek.tools.logs.text import escape
from odradek.tools.logs.verify import VerifyTotals


def format_finding(finding: Finding, *, is_json: bool) -> str:
    """Format a finding: a line with its place and problem, and a line with the remedy."""
    if is_json:
        row = {"type": "finding", **finding._asdict(), "severity": finding.severity.value}
        return json.dumps(row, ensure_ascii=False)
    place = finding.path if finding.position is None else f"{finding.path}, byte {finding.position}"
    lines = [f"{finding.severity.value} ({finding.check}): {place}", f"    {finding.problem}"]
    if finding.remedy:
        lines.append(f"    -> {finding.remedy}")
    return "\n".join(map(escape, lines))


def format_summary(totals: VerifyTotals, report: Report, *, is_json: bool) -> str:
    """Format what was checked, and the number of findings of each severity."""
    counts = {f"{severity.value}s": report.counts[severity] for severity in Severity}
    if is_json:
        return json.dumps({"type": "summary", **totals._asdict(), **counts})
    checked = [
        _count(totals.partitions, "partition"), _count(totals.batches, "batch", "batches"),
        _count(totals.records, "record"), _count(totals.size_bytes, "byte"),
    ]  # fmt: skip
    found = [_count(report.counts[severity], severity.value) for severity in Severity]
    return f"{', '.join(checked)} checked: {', '.join(found)}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
