"""States of replicas, and the removal of replicas from the ISR.

Kafka's controller keeps a state machine of replicas. Here each state follows from what the controller has anyway, so
there is no table:

- Online: the broker is live and the replica is not in `PartitionMetadata.offline`; Offline otherwise
- New, NonExistent: the assignment has a replica that the last published assignment did not have, or the reverse;
  `propagation.epoch_propagation` compares publications, and sends LeaderAndIsr with isNew
- DeletionStarted, DeletionIneligible: `topics.replica_deletion` has the replicas of deleted topics that remain, whether
  or not a request is under way; it drops those that are deleted (DeletionSuccessful)
"""

from collections.abc import Container
from typing import Final

from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata

MIN_RETURNED: Final = 2
"""Number of members of an ISR that need not wait for the others after the end of all brokers."""


def is_online(replica: int, partition: PartitionMetadata, brokers: Container[int]) -> bool:
    """Return whether a replica's broker is live and its log directory works."""
    return replica in brokers and replica not in partition.offline


def without_offline(partition: PartitionMetadata, replicas: Container[int]) -> PartitionMetadata:
    """Return the partition without these replicas among the offline ones."""
    if not any(replica in replicas for replica in partition.offline):
        return partition
    return partition._replace(offline=tuple([one for one in partition.offline if one not in replicas]))


def remove_from_isr(
    partition: PartitionMetadata, removed: Container[int], controller_epoch: int
) -> PartitionMetadata:
    """Return the partition without these replicas in its ISR, in a new leader epoch; without a leader if it led.

    An ISR of which every member is removed stays: any of them may be elected later. Kafka removes one replica after the
    other and retains the last.
    """
    return begin_epoch_if_changed(partition, remove_restarted(partition, removed), controller_epoch)


def remove_restarted(partition: PartitionMetadata, restarted: Container[int]) -> PartitionMetadata:
    """Return the partition as `remove_from_isr`, but in the same leader epoch: further changes follow.

    Logs of brokers that have restarted may lack records that the other members have, whether these are live or dead.
    """
    isr = tuple([replica for replica in partition.isr if replica not in restarted]) or partition.isr
    leader = NO_LEADER if partition.leader in restarted else partition.leader
    if isr == partition.isr and leader == partition.leader:
        return partition
    return partition._replace(leader=leader, isr=isr)


def keep_only_returned(
    partition: PartitionMetadata, returned: Container[int], brokers: Container[int]
) -> PartitionMetadata:
    """Return the partition with only the live brokers in `returned` in its ISR, if there are several and no others.

    Each of them may lack its last records, but hardly all of them the same ones: they do not wait for a dead member.
    """
    live = [one for one in partition.isr if is_online(one, partition, brokers)]
    if len(live) < MIN_RETURNED or len(live) == len(partition.isr) or any(one not in returned for one in live):
        return partition
    return partition._replace(leader=NO_LEADER, isr=tuple(live))


def begin_epoch_if_changed(
    old: PartitionMetadata, new: PartitionMetadata, controller_epoch: int
) -> PartitionMetadata:
    """Return the new state of a partition in a later leader epoch than the old one, or the old one if it is equal."""
    if new == old:
        return old
    if new.leader_epoch > old.leader_epoch:
        return new
    return new._replace(leader_epoch=old.leader_epoch + 1, controller_epoch=controller_epoch)


def remove_dead_from_isr(
    partition: PartitionMetadata, brokers: Container[int], controller_epoch: int
) -> PartitionMetadata:
    """Return the partition without dead replicas in its ISR (`remove_from_isr`)."""
    dead = [replica for replica in partition.isr if not is_online(replica, partition, brokers)]
    if partition.leader != NO_LEADER and not is_online(partition.leader, partition, brokers):
        dead.append(partition.leader)
    return remove_from_isr(partition, dead, controller_epoch) if dead else partition
