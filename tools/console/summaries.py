"""Data of the pages about brokers and topics."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.tools.kafka.cluster import Cluster, RequestError, check
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.topics.log_dirs import LogDir, fetch_log_dirs

NO_LEADER: Final = -1


class Broker(NamedTuple):
    """A broker with the number of the partitions that it leads and of its replicas.

    address: None if only its replicas are known, because it is not live
    """

    id: int
    address: str | None
    rack: str | None
    is_controller: bool
    is_fenced: bool
    leaders: int
    replicas: int


class Topic(NamedTuple):
    """A topic; `replication_factor` is that of its first partition."""

    name: str
    partitions: int
    replication_factor: int
    under_replicated: int
    offline: int
    is_internal: bool


class ClusterSummary(NamedTuple):
    """Brokers and topics, from one response."""

    cluster_id: str | None
    controller: int | None
    brokers: list[Broker]
    topics: list[Topic]

    @property
    def live(self) -> int:
        """Return the number of live brokers."""
        return sum(broker.address is not None and not broker.is_fenced for broker in self.brokers)

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return sum(topic.partitions for topic in self.topics)

    @property
    def under_replicated(self) -> int:
        """Return the number of partitions with a replica that is not in sync."""
        return sum(topic.under_replicated for topic in self.topics)

    @property
    def offline(self) -> int:
        """Return the number of partitions without a leader."""
        return sum(topic.offline for topic in self.topics)


class Disks(NamedTuple):
    """Log directories of the brokers that report them, and the errors of the others."""

    log_dirs: list[LogDir]
    errors: dict[int, str]

    @property
    def problems(self) -> list[str]:
        """Return the errors as texts."""
        return [f"log directories of broker {broker}: {error}" for broker, error in self.errors.items()]

    def sum_sizes(self) -> Mapping[str, int]:
        """Return the size of all replicas of each topic."""
        sizes: Counter[str] = Counter()
        for log_dir in self.log_dirs:
            for replica in log_dir.replicas:
                sizes[replica.topic] += replica.size_bytes
        return sizes


def is_under_replicated(partition: MetadataResponsePartition) -> bool:
    """Return whether a replica of a partition is not in sync."""
    return len(partition.isr_nodes) < len(partition.replica_nodes)


def fetch_summary(cluster: Cluster) -> ClusterSummary:
    """Read brokers and topics."""
    metadata = cluster.fetch_metadata()
    all_partitions = [partition for topic in metadata.topics for partition in topic.partitions]
    leaders = Counter([partition.leader_id for partition in all_partitions])
    replicas = Counter([replica for partition in all_partitions for replica in partition.replica_nodes])
    controller, fenced = metadata.controller_id, set()
    addresses: dict[int, tuple[str | None, str | None]] = dict.fromkeys(replicas, (None, None))
    addresses |= {node.node_id: (f"{node.host}:{node.port}", node.rack) for node in metadata.brokers}
    if cluster.any_broker().serves(DescribeClusterRequest):
        described = cluster.ask(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
        check(described.error_code, described.error_message)
        controller = described.controller_id
        for one in described.brokers:
            addresses[one.broker_id] = (f"{one.host}:{one.port}", one.rack)
            if one.is_fenced:
                fenced.add(one.broker_id)
    brokers = [
        Broker(node, address, rack, node == controller, node in fenced, leaders[node], replicas[node])
        for node, (address, rack) in sorted(addresses.items())
    ]
    topics = sorted(_summarize(topic) for topic in metadata.topics if topic.name is not None)
    return ClusterSummary(metadata.cluster_id, controller if controller >= 0 else None, brokers, topics)


def _summarize(topic: MetadataResponseTopic) -> Topic:
    under_replicated = offline = 0
    for partition in topic.partitions:
        under_replicated += is_under_replicated(partition)
        offline += partition.leader_id == NO_LEADER
    return Topic(
        topic.name or "",
        len(topic.partitions),
        len(topic.partitions[0].replica_nodes) if topic.partitions else 0,
        under_replicated,
        offline,
        topic.is_internal,
    )


def fetch_disks(cluster: Cluster, partitions: dict[str, list[int]] | None = None) -> Disks:
    """Read the log directories of all brokers, with the replicas of some partitions or of all."""
    log_dirs: list[LogDir] = []
    errors: dict[int, str] = {}
    for broker in cluster.node_ids():
        try:
            log_dirs += fetch_log_dirs(cluster, [broker], partitions)
        except (RequestError, NoResponseError) as error:
            errors[broker] = str(error)
    return Disks(log_dirs, errors)


def is_missing(topic: MetadataResponseTopic) -> bool:
    """Return whether a topic in a response does not exist."""
    return topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
