"""Safeguards that runs with several brokers show."""

from typing import Any, Final

from odradek.replication.controller.context import ControllerContext
from odradek.replication.replicas.isr import IsrState
from odradek.replication.replicas.leader_state import LeaderState
from odradek.replication.replicas.partition import READ_UNCOMMITTED, Partition
from odradek.simulation.checks.checker import ViolationKind
from odradek.simulation.safeguards.definition import Replacement, Safeguard, nothing, replaced_by

_BROKERS: Final = 3


def _enough_in_sync(old: Any) -> Any:
    """Treat every ISR as large enough."""
    return property(lambda self: False, lambda self, value: None)


def _read_to_the_end(old: Any) -> Any:
    """Return records above the high watermark to consumers."""

    def read(self: Partition, *arguments: Any, isolation_level: int | None = READ_UNCOMMITTED, **options: Any) -> Any:
        level = None if isolation_level == READ_UNCOMMITTED else isolation_level
        return old(self, *arguments, isolation_level=level, **options)

    return read


def _may_join_behind(old: Any) -> Any:
    """Add a live follower to the ISR before it has caught up."""

    def may_join(self: LeaderState, replica: int, high_watermark: int, epoch_start_offset: int) -> bool:
        return bool(old(self, replica, -1, 0))

    return may_join


def _shrinks_at_once(old: Any) -> Any:
    """Stop waiting for a removed replica before its removal is confirmed."""

    def maximal(self: IsrState) -> tuple[int, ...]:
        return self.committed if self.pending is None else self.pending.isr

    return property(maximal)


_K: Final = ViolationKind


def _cluster(
    name: str,
    what: str,
    replacements: tuple[Replacement, ...],
    finds: tuple[ViolationKind | str, ...],
    seed: int,
    *,
    looks_inside: bool = False,
) -> Safeguard:
    return Safeguard(name, what, replacements, finds, seed, None, _BROKERS, looks_inside)


CLUSTER_SAFEGUARDS: Final = (
    _cluster(
        "replica-acks",
        "The high watermark waits for all replicas in sync.",
        ((LeaderState, "limit_high_watermark", replaced_by(lambda self, offset: offset)),),
        (_K.LOST_WRITE, _K.TWO_VALUES),
        11,
    ),
    _cluster(
        "divergence",
        "A follower removes the records that are not in the log of the next leader.",
        ((Partition, "diverging_epoch", replaced_by(nothing)),),
        (_K.LOST_WRITE, _K.TWO_VALUES, "does not recover", "committed is"),
        16,
        looks_inside=True,
    ),
    _cluster(
        "high-watermark",
        "Consumers read below the high watermark.",
        ((Partition, "read", _read_to_the_end),),
        (_K.BEYOND_BOUND, _K.TWO_VALUES, _K.LOST_WRITE),
        10,
    ),
    _cluster(
        "min-in-sync",
        "The high watermark does not move while fewer replicas are in sync than min.insync.replicas.",
        ((Partition, "_has_few_in_sync", _enough_in_sync),),
        ("min.insync.replicas",),
        10,
        looks_inside=True,
    ),
    _cluster(
        "confirmed-shrink",
        "The high watermark waits for a replica until its removal from the ISR is confirmed.",
        ((IsrState, "maximal", _shrinks_at_once),),
        ("maximal ISR",),
        17,
        looks_inside=True,
    ),
    _cluster(
        "caught-up-followers",
        "A follower joins the ISR when it has all records below the high watermark.",
        ((LeaderState, "may_join", _may_join_behind),),
        ("in the ISR ends at",),
        10,
        looks_inside=True,
    ),
    _cluster(
        "clean-elections",
        "A leader is elected from the ISR unless unclean elections are enabled.",
        ((ControllerContext, "allows_unclean_election", replaced_by(lambda self, topic: True)),),
        ("an unclean election",),
        11,
        looks_inside=True,
    ),
)
