"""Check of leader-epoch-checkpoint against the batches, which pass by once, in order."""

from collections.abc import Sequence
from itertools import pairwise

from odradek.tools.logs.findings import Report, Severity

_REMEDY = (
    "followers and consumers may truncate or skip valid records; stop the broker and remove the file. Odradek then "
    "finds the epochs in the batches; Apache Kafka does so only in segments that it recovers"
)


class EpochCheck:
    """Check of one partition. Batches without an epoch (-1) are ignored.

    `log_start_offset`: the epochs below it were removed.
    `flushed_to`: the offset below which the checkpoint is complete. A running broker adds an epoch when it flushes the
    log, and a recovery finds the epochs of unflushed batches.
    """

    def __init__(
        self,
        path: str,
        entries: Sequence[tuple[int, int]],
        report: Report,
        *,
        log_start_offset: int,
        flushed_to: int,
    ) -> None:
        self._path = path
        self._entries = entries
        self._report = report
        self._log_start_offset = log_start_offset
        self._flushed_to = flushed_to
        self._index = -1
        self._latest = -1
        self._reported: tuple[int, int] | None = None
        for before, after in pairwise(entries):
            if after[0] <= before[0] or after[1] < before[1]:
                self._error(f"epoch {after[0]} starts at {after[1]}, after epoch {before[0]} at {before[1]}")

    def _error(self, problem: str) -> None:
        self._report.add(Severity.ERROR, "leader-epoch", self._path, problem, _REMEDY)

    def add(self, epoch: int, base_offset: int, log_path: str, position: int) -> None:
        """Compare the epoch of a batch with the entry for its offset."""
        entries = self._entries
        while self._index + 1 < len(entries) and entries[self._index + 1][1] <= base_offset:
            self._index += 1
        if epoch < 0:
            return
        if epoch < self._latest:
            self._report.add(
                Severity.ERROR,
                "leader-epoch",
                log_path,
                f"the batch at offset {base_offset} has leader epoch {epoch}, an earlier one {self._latest}",
                "copy the partition from another replica",
                position,
            )
        self._latest = max(epoch, self._latest)
        if self._index < 0 and entries and base_offset < self._log_start_offset and epoch <= entries[0][0]:
            return
        expected = entries[self._index][0] if self._index >= 0 else -1
        if epoch == expected or (epoch, expected) == self._reported:
            return
        self._reported = (epoch, expected)
        if not entries or (self._index == len(entries) - 1 and epoch > expected):
            if base_offset < self._flushed_to:
                self._error(f"epoch {epoch}, which starts at or before offset {base_offset}, is missing")
        else:
            where = f"epoch {expected}" if self._index >= 0 else "no epoch"
            self._error(f"the batch at offset {base_offset} has leader epoch {epoch}, the checkpoint has {where} there")

    def finish(self, end_offset: int) -> None:
        """Compare the last epoch with the end of the log."""
        if self._entries and self._entries[-1][1] > end_offset:
            epoch, start_offset = self._entries[-1]
            problem = f"epoch {epoch} starts at {start_offset}, but the log ends at {end_offset}"
            if end_offset < self._flushed_to:
                self._error(problem)
            else:
                remedy = "nothing; the next start removes it"
                self._report.add(Severity.WARNING, "leader-epoch", self._path, problem, remedy)
