"""Unclean leader elections of a run: elections of a replica outside the ISR, which may lose acknowledged records."""

from __future__ import annotations

from dataclasses import dataclass

from odradek.simulation.history import Moment, Partition


@dataclass(slots=True, eq=False)
class UncleanElection:
    """An unclean election.

    kept_end: end of the committed records that the new leader has; None until a leader of this or a later epoch leads
    settled: the time from which no broker can lead the partition in an earlier epoch; None if one still can
    truncated: the time from which no broker has the lost records; None if one still has them, or is down
    """

    partition: Partition
    leader_epoch: int
    elected: Moment
    kept_end: int | None = None
    settled: Moment | None = None
    truncated: Moment | None = None

    def may_lose_write(self, offset: int, invoked: Moment) -> bool:
        """Return whether a record may be lost that a request, sent at `invoked`, wrote at `offset`.

        A leader that has been replaced without its notice still writes records.
        """
        return not _is_later(invoked, self.settled) and self._keeps_not(offset)

    def may_lose_read(self, offset: int, invoked: Moment) -> bool:
        """Return whether a record may be lost that a request, sent at `invoked`, read at `offset`.

        A follower returns the lost records below its high watermark until it has truncated its log (KIP-392).
        """
        return not _is_later(invoked, self.truncated) and self._keeps_not(offset)

    def _keeps_not(self, offset: int) -> bool:
        return self.kept_end is None or offset >= self.kept_end


def _is_later(invoked: Moment, since: Moment | None) -> bool:
    return since is not None and since.order < invoked.order
