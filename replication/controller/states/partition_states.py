"""States of partitions, and the election of their leaders.

Elections follow assignment order and keep the order of the ISR.
"""

import logging
from collections.abc import Container, Mapping, Sequence
from enum import Enum
from typing import Final

from odradek.replication.metadata.image import NO_LEADER, RECOVERING, PartitionMetadata

logger = logging.getLogger(__name__)


class PartitionState(Enum):
    """State of a partition: it has a leader, it has none, or it is new and never had one."""

    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"


PARTITION_STATE_CHANGES: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.NEW: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.ONLINE: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE}),
}


def determine_state(partition: PartitionMetadata) -> PartitionState:
    """Return the state of a partition that exists."""
    if partition.leader != NO_LEADER:
        return PartitionState.ONLINE
    return PartitionState.OFFLINE if partition.isr else PartitionState.NEW


def change_state(
    old: PartitionMetadata, new: PartitionMetadata, topic: str, index: int, why: str
) -> PartitionMetadata:
    """Check and log the change of a partition's state, before it is written; return the new one."""
    before, after = determine_state(old), determine_state(new)
    if after not in PARTITION_STATE_CHANGES[before]:
        raise AssertionError(f"partition {topic}-{index} cannot change from {before.value} to {after.value}: {why}")
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "partition state topic=%s partition=%d old=%s new=%s leader=%d leader_epoch=%d isr=%s reason=%s",
            topic,
            index,
            before.value,
            after.value,
            new.leader,
            new.leader_epoch,
            new.isr,
            why,
        )
    if is_unclean_election(old, new):
        logger.warning(
            "unclean leader election: records that the new leader does not have are lost topic=%s partition=%d "
            "leader=%d leader_epoch=%d old_isr=%s reason=%s",
            topic,
            index,
            new.leader,
            new.leader_epoch,
            old.isr,
            why,
        )
    return new


def is_unclean_election(old: PartitionMetadata, new: PartitionMetadata) -> bool:
    """Return whether a leader was elected from outside the ISR.

    The sole member of the ISR of such a leader may lead again in a later epoch, before it has confirmed the ISR.
    """
    if new.leader == NO_LEADER or new.leader_recovery_state != RECOVERING:
        return False
    return old.leader_recovery_state != RECOVERING or new.leader not in old.isr


def new_partition(
    replicas: tuple[int, ...], live: Container[int], controller_epoch: int, leader_epoch: int = 0
) -> PartitionMetadata:
    """Return a partition's first state: its live replicas are in sync and the first of them leads.

    Without a live replica the partition is offline.
    """
    isr = tuple(replica for replica in replicas if replica in live)
    return PartitionMetadata(isr[0] if isr else NO_LEADER, leader_epoch, replicas, isr, controller_epoch)


def list_online_replicas(partition: PartitionMetadata, brokers: Container[int]) -> list[int]:
    """Return the replicas on live brokers whose log directory has not failed, in the order of the assignment."""
    offline = partition.offline
    return [replica for replica in partition.replicas if replica in brokers and replica not in offline]


def elect_leader(
    partition: PartitionMetadata,
    brokers: Container[int],
    controller_epoch: int,
    *,
    fenced: int | None = None,
    least_epoch: int = 0,
    allows_unclean: bool = False,
) -> PartitionMetadata:
    """Return the partition with a live leader from its ISR, or without a leader if no member of the ISR is live.

    A live leader stays, unless it is the `fenced` broker or its epoch is below `least_epoch`. In these cases a new
    leader epoch begins even if the same broker is elected again. With `allows_unclean`, a live replica outside the ISR
    leads if no member of the ISR is live. It becomes the whole ISR, and records may be lost.
    """
    leader, offline, epoch = partition.leader, partition.offline, partition.leader_epoch
    if leader in brokers and leader not in offline and leader != fenced and epoch >= least_epoch:
        return partition
    live = list_online_replicas(partition, brokers)
    isr = partition.isr or partition.replicas
    live_isr = tuple(replica for replica in isr if replica in live)
    leader = next((replica for replica in live if replica in live_isr), NO_LEADER)
    recovery_state = partition.leader_recovery_state
    if leader == NO_LEADER and allows_unclean and live:
        leader = live[0]
        live_isr = (leader,)
        recovery_state = RECOVERING
    if leader == NO_LEADER and partition.leader == NO_LEADER:
        return partition
    return partition._replace(
        leader=leader,
        leader_epoch=max(epoch + 1, least_epoch),
        isr=live_isr or isr,
        controller_epoch=controller_epoch,
        leader_recovery_state=recovery_state,
    )


def elect_preferred_leader(
    partition: PartitionMetadata, brokers: Container[int], controller_epoch: int
) -> PartitionMetadata | None:
    """Return the partition with the first replica of its assignment as leader; None if it is not live and in sync."""
    return _elect_first(partition, partition.replicas[:1], brokers, controller_epoch)


def elect_target_leader(
    partition: PartitionMetadata, targets: Sequence[int], brokers: Container[int], controller_epoch: int
) -> PartitionMetadata | None:
    """Return the partition with the first replica of a reassignment's target that is live and in sync as leader.

    Returns None if there is none.
    """
    return _elect_first(partition, targets, brokers, controller_epoch)


def elect_leader_for_shutdown(
    partition: PartitionMetadata, brokers: Container[int], shutting_down: Container[int], controller_epoch: int
) -> PartitionMetadata | None:
    """Return the partition with a leader, and an ISR, without the brokers that shut down.

    Returns None if no other member of the ISR is live. `brokers` may contain those that shut down.
    """
    remaining = [replica for replica in partition.replicas if replica not in shutting_down]
    elected = _elect_first(partition, remaining, brokers, controller_epoch)
    if elected is None:
        return None
    return elected._replace(isr=tuple(replica for replica in partition.isr if replica not in shutting_down))


def _elect_first(
    partition: PartitionMetadata, candidates: Sequence[int], brokers: Container[int], controller_epoch: int
) -> PartitionMetadata | None:
    online = list_online_replicas(partition, brokers)
    for candidate in candidates:
        if candidate in online and candidate in partition.isr:
            return begin_leader_epoch(partition, candidate, controller_epoch)
    return None


def begin_leader_epoch(partition: PartitionMetadata, leader: int, controller_epoch: int) -> PartitionMetadata:
    """Return the partition in a new leader epoch, with the same ISR."""
    return partition._replace(
        leader=leader, leader_epoch=partition.leader_epoch + 1, controller_epoch=controller_epoch
    )
