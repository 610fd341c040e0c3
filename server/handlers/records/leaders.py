"""The current leaders of partitions, for responses with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951)."""

from typing import TYPE_CHECKING, NamedTuple

from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.image import NO_LEADER

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.replica_manager import ReplicaManager


class LeaderNode(NamedTuple):
    """The leader of a partition, with its endpoint on the listener of the request."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def find_leader(
    replicas: "ReplicaManager", metadata: "ClusterMetadata", topic: str, topic_id: bytes, index: int, listener: str
) -> LeaderNode | None:
    """Return the leader of a partition, given by topic name or id; None if it has none with this listener.

    The leaders of a broker's own replicas change before the metadata image changes. A stopped replica has none.
    """
    if topic_id != ZERO_UUID:
        replica = replicas.partitions_by_id.get((topic_id, index))
        found = metadata.topics_by_id.get(topic_id)
        topic = "" if found is None else found.name
    else:
        replica = replicas.partitions.get((topic, index))
    partition = metadata.partition(topic, index) if replica is None or replica.leader == NO_LEADER else replica
    if partition is None:
        return None
    broker = metadata.brokers.get(partition.leader)
    endpoint = None if broker is None else broker.endpoint(listener)
    if broker is None or endpoint is None:
        return None
    return LeaderNode(broker.broker_id, partition.leader_epoch, endpoint.host, endpoint.port, broker.rack)
