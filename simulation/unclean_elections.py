"""Unclean leader elections of a run: elections of a replica outside the ISR, which may lose acknowledged records."""

from __future__ import annotations

from dataclasses import dataclass

from odradek.simulation.history import Moment, Partition


@dataclass(slots=True, eq=False)
class UncleanElection:
    """An unclean election.

    kept_end: end of the committed records that the new leader has; None until a leader of this or a later epoch leads
    settled: the time from which no broker leads the partition in an earlier epoch; None if there still is one
    """

    partition: Partition
    leader_epoch: int
    elected: Moment
    kept_end: int | None = None
    settled: Moment | None = None

    def may_lose(self, offset: int, invoked: Moment) -> bool:
        """Return whether a record may be lost that was at `offset` for a request sent at `invoked`.

        A leader that has been replaced without its notice may still write records and return them.
        """
        is_before = self.settled is None or invoked.order < self.settled.order
        return is_before and (self.kept_end is None or offset >= self.kept_end)
