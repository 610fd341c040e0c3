"""Findings of `log verify`: what is wrong, where, and what to do."""

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

MAX_REPORTED: Final = 10
"""Findings of one kind that are reported for one file; the others are counted."""


class Severity(Enum):
    """Severity of a finding. A note describes a normal state, such as a file that waits for its deletion."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(NamedTuple):
    """One finding.

    check: name of the check, one word or two with a hyphen
    path: the file or directory
    position: byte in the file; None if the finding is about the whole file
    """

    severity: Severity
    check: str
    path: str
    position: int | None
    problem: str
    remedy: str


class Report:
    """Passes findings on, the first ones of each kind and file only, and counts all of them."""

    def __init__(self, emit: Callable[[Finding], None]) -> None:
        self._emit = emit
        self._by_kind: Counter[tuple[str, str, Severity]] = Counter()
        self.counts: Counter[Severity] = Counter()

    def add(
        self, severity: Severity, check: str, path: str, problem: str, remedy: str, position: int | None = None
    ) -> None:
        self.pass_on(Finding(severity, check, path, position, problem, remedy))

    def pass_on(self, finding: Finding) -> None:
        """Add a finding."""
        self.counts[finding.severity] += 1
        kind = (finding.path, finding.check, finding.severity)
        self._by_kind[kind] += 1
        if self._by_kind[kind] <= MAX_REPORTED:
            self._emit(finding)

    def end_directory(self, directory: str) -> None:
        """Report how many findings below `directory` were omitted, and remove their counts."""
        for kind in [each for each in self._by_kind if each[0].startswith(directory)]:
            path, check, severity = kind
            omitted = self._by_kind.pop(kind) - MAX_REPORTED
            if omitted > 0:
                self._emit(Finding(severity, check, path, None, f"{omitted} more findings of this kind", ""))

    @property
    def is_clean(self) -> bool:
        """Return whether there are no errors and no warnings."""
        return not (self.counts[Severity.ERROR] or self.counts[Severity.WARNING])
