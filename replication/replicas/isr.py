"""In-sync replicas of a partition on its leader: the committed ISR, and at most one pending change (KIP-497).

A change is pending from its proposal until the controller confirms or rejects it, or until metadata of a later
partition epoch arrives. An added replica counts at once: the high watermark then waits for one replica more, which is
safe whether or not the controller makes the change. A removed replica counts until its removal is confirmed.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class IsrPhase(Enum):
    """State of the ISR."""

    COMMITTED = "committed"
    PENDING_EXPAND = "pending expand"
    PENDING_SHRINK = "pending shrink"


class IsrEvent(Enum):
    """Cause of a change of the state; its value is for the log."""

    EXPAND = "a follower is in sync"
    SHRINK = "followers are out of sync"
    CONFIRM = "the controller made the change"
    REVERT = "the controller rejected the change"
    REPLACE = "new metadata"


_TRANSITIONS: Final[Mapping[tuple[IsrPhase, IsrEvent], IsrPhase]] = {
    (IsrPhase.COMMITTED, IsrEvent.EXPAND): IsrPhase.PENDING_EXPAND,
    (IsrPhase.COMMITTED, IsrEvent.SHRINK): IsrPhase.PENDING_SHRINK,
    (IsrPhase.COMMITTED, IsrEvent.REPLACE): IsrPhase.COMMITTED,
    (IsrPhase.PENDING_EXPAND, IsrEvent.CONFIRM): IsrPhase.COMMITTED,
    (IsrPhase.PENDING_EXPAND, IsrEvent.REVERT): IsrPhase.COMMITTED,
    (IsrPhase.PENDING_EXPAND, IsrEvent.REPLACE): IsrPhase.COMMITTED,
    (IsrPhase.PENDING_SHRINK, IsrEvent.CONFIRM): IsrPhase.COMMITTED,
    (IsrPhase.PENDING_SHRINK, IsrEvent.REVERT): IsrPhase.COMMITTED,
    (IsrPhase.PENDING_SHRINK, IsrEvent.REPLACE): IsrPhase.COMMITTED,
}


class IsrChange(NamedTuple):
    """A proposed ISR, and the epochs in which the leader proposes it.

    broker_epochs: of the members of `isr`, in their order, as of their last fetches; -1 if unknown
    """

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: tuple[int, ...]


class IsrState(NamedTuple):
    """The ISR of a partition; `pending` is None in the phase COMMITTED only."""

    committed: tuple[int, ...]
    phase: IsrPhase = IsrPhase.COMMITTED
    pending: IsrChange | None = None

    @property
    def maximal(self) -> tuple[int, ...]:
        """The replicas that the high watermark waits for."""
        if self.phase is IsrPhase.PENDING_EXPAND and self.pending is not None:
            return self.pending.isr
        return self.committed

    def __str__(self) -> str:
        if self.pending is None:
            return _format(self.committed)
        return f"{_format(self.committed)} ({self.phase.value} to {_format(self.pending.isr)})"

    def propose(self, event: IsrEvent, change: IsrChange) -> "IsrState":
        """Return the state in which `change` is pending, after EXPAND or SHRINK."""
        return IsrState(self.committed, _TRANSITIONS[self.phase, event], change)

    def end_change(self, event: IsrEvent, committed: tuple[int, ...]) -> "IsrState":
        """Return the state in which `committed` is the ISR and no change is pending, after any other event."""
        return IsrState(committed, _TRANSITIONS[self.phase, event])


def _format(replicas: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, replicas))}]"
