"""Safeguards that runs with several brokers show."""

from collections.abc import Callable
from typing import Any, Final

from odradek.replication.controller.admin.topics import TopicAdmin
from odradek.replication.controller.context import ControllerContext
from odradek.replication.controller.partitions.alter_partition import AlterPartitionProcessor
from odradek.replication.controller.propagation.requests import ControlRequest
from odradek.replication.metadata import producer_id_blocks
from odradek.replication.metadata.store import Check
from odradek.replication.metadata.znodes import CONTROLLER_EPOCH
from odradek.replication.replicas import partition
from odradek.replication.replicas.broker_control import BrokerControl
from odradek.replication.replicas.follower_replica import FollowerReplica
from odradek.replication.replicas.isr import IsrState
from odradek.replication.replicas.leader_state import Follower, LeaderState
from odradek.replication.replicas.partition import READ_UNCOMMITTED, Partition
from odradek.simulation.checks.checker import ViolationKind
from odradek.simulation.safeguards.definition import Replacement, Safeguard, nothing, replaced_by
from odradek.simulation.scenario import Scenario

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


def _follow_any_controller(old: Any) -> Any:
    """Accept requests of earlier controllers."""

    def refuse(self: BrokerControl, request: ControlRequest) -> Any:
        self._controller_epoch = min(self._controller_epoch, request.controller_epoch)
        return old(self, request)

    return refuse


def _exists(old: Any) -> Any:
    """Check that there is an epoch of a controller."""
    return property(lambda self: Check(CONTROLLER_EPOCH))


def _newer_epochs_only(old: Any) -> Any:
    """Refuse only requests in a later leader epoch."""

    def raise_epoch_error(self: Partition, epoch: int) -> None:
        if epoch > self.leader_epoch:
            old(self, epoch)

    return raise_epoch_error


def _record_any_epoch(old: Any) -> Any:
    """Record the broker epoch of a fetch without a check."""

    def check_broker_epoch(self: LeaderState, replica: int, follower: Follower, broker_epoch: int) -> None:
        follower.broker_epoch = broker_epoch

    return check_broker_epoch


def _list_at_once(old: Any) -> Any:
    """Return the high watermark as the end before it has reached the start of the leader epoch."""

    def find_offset(*arguments: Any, is_lagging: bool) -> Any:
        return old(*arguments, is_lagging=False)

    return find_offset


def _sync_truncations_only(old: Any) -> Any:
    """Sync a follower's log before a fetch only after a truncation."""

    def requires_sync(self: FollowerReplica, leader_epoch: int) -> bool:
        return self.log(leader_epoch).has_unsynced_truncation

    return requires_sync


def _loses_all_power(drawn: Scenario) -> bool:
    """Return whether all machines may lose power at the same time."""
    return "lose_all_power" in drawn.faults.weights


def _use_ids_again(old: Any) -> Any:
    """Return the id of a deleted topic, if there is one."""
    used: dict[bytes, None] = {}

    def new_topic_id(self: TopicAdmin) -> Any:
        present = self._image.topics_by_id
        used.update(dict.fromkeys(present))
        return next((topic_id for topic_id in used if topic_id not in present), None) or old(self)

    return new_topic_id


_K: Final = ViolationKind


def _cluster(
    name: str,
    what: str,
    replacements: tuple[Replacement, ...],
    finds: tuple[ViolationKind | str, ...],
    seed: int,
    *,
    permits: Callable[[Scenario], bool] | None = None,
    looks_inside: bool = False,
) -> Safeguard:
    return Safeguard(name, what, replacements, finds, seed, permits, _BROKERS, looks_inside)


CLUSTER_SAFEGUARDS: Final = (
    _cluster(
        "replica-acks",
        "The high watermark waits for all replicas in sync.",
        ((LeaderState, "limit_high_watermark", replaced_by(lambda self, offset: offset)),),
        (_K.LOST_WRITE, _K.TWO_VALUES),
        11,
    ),
    _cluster(
        "replica-syncs",
        "With flush.before.acks a follower syncs its log before the leader counts the records as replicated.",
        ((FollowerReplica, "requires_sync", _sync_truncations_only),),
        (_K.LOST_WRITE, _K.LOST_TRANSACTION, _K.OFFSET_BACK, _K.TWO_VALUES),
        7,
        permits=_loses_all_power,
    ),
    _cluster(
        "divergence",
        "A follower removes the records that are not in the log of the next leader.",
        ((Partition, "diverging_epoch", replaced_by(nothing)),),
        (_K.LOST_WRITE, _K.TWO_VALUES, "does not recover", "committed is"),
        18,
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
    _cluster(
        "controller-epochs",
        "A broker refuses requests of an earlier controller.",
        ((BrokerControl, "_refuse", _follow_any_controller),),
        ("follows the controller of epoch",),
        91,
        looks_inside=True,
    ),
    _cluster(
        "controller-writes",
        "Only the controller writes topics and partitions: each of its transactions checks the controller epoch.",
        (
            (ControllerContext, "check_active", replaced_by(nothing)),
            (ControllerContext, "_fence", _exists),
        ),
        ("written in session", "written by the controller"),
        33,
        looks_inside=True,
    ),
    _cluster(
        "leader-epochs",
        "A leader refuses fetches in an earlier leader epoch.",
        ((Partition, "_raise_epoch_error", _newer_epochs_only),),
        ("joins the ISR, and follows",),
        11,
        looks_inside=True,
    ),
    _cluster(
        "broker-epochs",
        "A replica joins the ISR in its present registration.",
        (
            (LeaderState, "check_broker_epoch", _record_any_epoch),
            (AlterPartitionProcessor, "_has_old_epoch", replaced_by(lambda self, requested: False)),
        ),
        ("joined the ISR in its registration", "in the ISR ends at"),
        6119,
        looks_inside=True,
    ),
    _cluster(
        "new-leaders-end",
        "A new leader lists no end until its high watermark has reached the start of its epoch.",
        ((partition, "find_offset", _list_at_once),),
        (_K.END_FELL,),
        6136,
    ),
    _cluster(
        "producer-id-blocks",
        "A block of producer ids begins after the last one.",
        ((producer_id_blocks, "_end", replaced_by(lambda data: 0)),),
        (_K.SHARED_ID,),
        11,
    ),
    _cluster(
        "new-topic-ids",
        "A topic that is created again gets a new id.",
        ((TopicAdmin, "_new_topic_id", _use_ids_again),),
        (_K.REUSED_ID,),
        12,
    ),
)
