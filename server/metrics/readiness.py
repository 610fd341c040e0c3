"""Readiness: whether the broker serves all partitions that it is to lead."""

from typing import TYPE_CHECKING

from odradek.replication.metadata.image import NO_LEADER

if TYPE_CHECKING:
    from odradek.replication.replicas.replica_manager import ReplicaManager


def find_unready(replicas: "ReplicaManager", broker_id: int) -> list[str]:
    """Return the partitions whose log is offline and that no other broker leads."""
    return [
        f"{partition.topic}-{partition.index}"
        for partition in list(replicas.partitions.values())
        if partition.log is None and partition.leader in (broker_id, NO_LEADER)
    ]
