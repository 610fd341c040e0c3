"""The metadata image: the brokers, topics and configurations of the cluster.

Its values (brokers, topics, configurations) are immutable and are replaced as a whole. The `put` and `remove` methods
change the image, and `publish` informs its listeners. `version` is incremented by each publication, `revision` by each
change.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple

from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.topic_names import is_internal

NO_LEADER = -1
NO_CONTROLLER = -1
NO_BROKER_EPOCH = -1
"""In requests of brokers that do not have, or do not send, an epoch."""

RECOVERED: Final = 0
RECOVERING: Final = 1
"""The recovery state of a leader that was elected from outside the ISR, until it has confirmed its ISR (KIP-704)."""

Configs = Mapping[str, str]

SECURITY_PROTOCOL_IDS: Mapping[str, int] = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Kafka's numbers of security protocols, by name."""


class Endpoint(NamedTuple):
    """An address of a broker: listener name, security protocol, host and port."""

    listener: str
    security_protocol: str
    host: str
    port: int


class BrokerMetadata(NamedTuple):
    """A registered broker. `epoch` numbers its registration: a restarted broker has a larger one."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the broker's endpoint for a listener; None if there is none."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


class PartitionMetadata(NamedTuple):
    """A partition's replicas and leader.

    `leader_epoch` is incremented by each election, `partition_epoch` by each change of leader or ISR.
    `controller_epoch` is the epoch of the controller that made the last change. `offline` are the replicas whose log
    directory has failed (KIP-112); they are not in the store, because each broker determines them at its start.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    controller_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = RECOVERED
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class TopicMetadata(NamedTuple):
    """A topic: name, id and its partitions by number."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionMetadata, ...]

    @property
    def is_internal(self) -> bool:
        return is_internal(self.name)

    @property
    def is_reassigned(self) -> bool:
        """True while replicas of a partition are being added or removed."""
        return any(partition.adding or partition.removing for partition in self.partitions)


class MetadataDelta:
    """The changes of a publication: names of changed topics and configurations, and the deleted topics."""

    __slots__ = ("broker_configs", "brokers", "deleted_topics", "topic_configs", "topics")

    def __init__(self) -> None:
        self.brokers: set[int] = set()
        self.topics: dict[str, None] = {}
        self.deleted_topics: list[TopicMetadata] = []
        self.topic_configs: set[str] = set()
        self.broker_configs = False


MetadataListener = Callable[[MetadataDelta], None]


class ClusterMetadata:
    """The image. Its dictionaries may be read directly; only its methods may change it.

    cluster_id, controller_id, controller_epoch: as registered; controller_id is -1 if there is no controller
    brokers: live brokers by id
    topics, topics_by_id: TopicMetadata by name and by id
    topic_configs: explicit configuration by topic, only of topics that have one
    broker_configs: dynamic configuration by broker id; None stands for the cluster-wide default
    listeners: called with the delta at each publication, in order
    revision: incremented by each change of the controller, the brokers or the topics, before its publication
    """

    __slots__ = (
        "_delta", "broker_configs", "brokers", "cluster_id", "controller_epoch", "controller_id", "listeners",
        "revision", "topic_configs", "topics", "topics_by_id", "version",
    )  # fmt: skip

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self.controller_id = NO_CONTROLLER
        self.controller_epoch = 0
        self.version = 0
        self.revision = 0
        self.brokers: dict[int, BrokerMetadata] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.topics_by_id: dict[bytes, TopicMetadata] = {}
        self.topic_configs: dict[str, Configs] = {}
        self.broker_configs: dict[int | None, Configs] = {}
        self.listeners: list[MetadataListener] = []
        self._delta = MetadataDelta()

    def put_controller(self, broker_id: int, epoch: int) -> None:
        """Set the controller and its epoch."""
        self.controller_id = broker_id
        self.revision += 1
        self.controller_epoch = epoch

    def put_broker(self, broker: BrokerMetadata) -> None:
        """Add a live broker or replace its metadata."""
        self.brokers[broker.broker_id] = broker
        self.revision += 1
        self._delta.brokers.add(broker.broker_id)

    def remove_broker(self, broker_id: int) -> None:
        """Remove a broker that is no longer registered."""
        if self.brokers.pop(broker_id, None) is not None:
            self._delta.brokers.add(broker_id)
            self.revision += 1

    def put_topic(self, topic: TopicMetadata) -> None:
        """Add or replace a topic. A topic with the same name and another id is removed first."""
        previous = self.topics.get(topic.name)
        if previous is not None and previous.topic_id != topic.topic_id:
            self.remove_topic(topic.name)
        self.topics[topic.name] = topic
        if topic.topic_id != ZERO_UUID:
            self.topics_by_id[topic.topic_id] = topic
        self._delta.topics[topic.name] = None
        self.revision += 1

    def remove_topic(self, name: str) -> None:
        """Remove a deleted topic and its configuration."""
        topic = self.topics.get(name)
        if topic is not None:
            self.forget_topic(name)
            self._delta.deleted_topics.append(topic)

    def forget_topic(self, name: str) -> None:
        """Remove a topic and its configuration, without a deletion in the next publication: it cannot be read."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        self.topics_by_id.pop(topic.topic_id, None)
        self.topic_configs.pop(name, None)
        self._delta.topics.pop(name, None)
        self._delta.topic_configs.discard(name)
        self.revision += 1

    def put_topic_config(self, name: str, configs: Configs) -> None:
        """Replace a topic's explicit configuration."""
        self._put(self.topic_configs, name, configs)
        self._delta.topic_configs.add(name)

    def put_broker_config(self, broker_id: int | None, configs: Configs) -> None:
        """Replace a broker's dynamic configuration, with None the cluster-wide default."""
        self._put(self.broker_configs, broker_id, configs)
        self._delta.broker_configs = True

    @staticmethod
    def _put(table: dict[Any, Configs], key: Any, configs: Configs) -> None:
        if configs:
            table[key] = dict(configs)
        else:
            table.pop(key, None)

    def publish(self) -> None:
        """Begin a new version with the changes since the last one, and call the listeners."""
        delta, self._delta = self._delta, MetadataDelta()
        self.version += 1
        for listener in list(self.listeners):
            listener(delta)

    def partition(self, topic: str, index: int) -> PartitionMetadata | None:
        """Return a partition's metadata, None if there is no such partition."""
        metadata = self.topics.get(topic)
        if metadata is None or not 0 <= index < len(metadata.partitions):
            return None
        return metadata.partitions[index]

    def contents(self) -> dict[str, Any]:
        """Return the content of the image, to compare images."""
        return {
            "cluster_id": self.cluster_id,
            "controller": (self.controller_id, self.controller_epoch),
            "brokers": dict(self.brokers),
            "topics": dict(self.topics),
            "topics_by_id": dict(self.topics_by_id),
            "topic_configs": {name: dict(configs) for name, configs in self.topic_configs.items()},
            "broker_configs": {key: dict(configs) for key, configs in self.broker_configs.items()},
        }


def offline_replicas(partition: PartitionMetadata, brokers: Container[int]) -> list[int]:
    """Return the replicas whose broker is not among the live ones, or whose log directory failed."""
    offline = partition.offline
    return [replica for replica in partition.replicas if replica not in brokers or replica in offline]
