"""What handlers work with: the parts of a running broker, wired by `broker`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import Deferred

from odradek.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from odradek.coordinator.producer_ids import ProducerIdManager
    from odradek.log.log_manager import LogManager
    from odradek.replication.broker_configs import BrokerConfigs
    from odradek.replication.cluster_metadata import ClusterMetadata
    from odradek.replication.config_admin import ConfigAdmin
    from odradek.replication.config_description import ConfigDescriber
    from odradek.replication.controller import Controller
    from odradek.replication.replica_manager import ReplicaManager
    from odradek.replication.topic_admin import TopicAdmin
    from odradek.server.config import BrokerConfig
    from odradek.server.coordinator_runtime import GroupCoordinatorRuntime
    from odradek.server.fetch_sessions import FetchSessionCache
    from odradek.server.flusher import Flusher


class LeaderNode(NamedTuple):
    """The leader of a partition, with its endpoint on the listener that was asked for."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


class Services:
    """Plain references; a handler takes what it needs. `config` is the configuration now in force."""

    __slots__ = (
        "config",
        "config_admin",
        "config_describer",
        "configs",
        "controller",
        "fetch_sessions",
        "flusher",
        "groups",
        "logs",
        "metadata",
        "now_ms",
        "producer_ids",
        "reactor",
        "replicas",
        "topics",
    )

    def __init__(self, config: "BrokerConfig", reactor: Any, now_ms: Callable[[], int]) -> None:
        self.config = config
        self.reactor = reactor
        self.now_ms = now_ms
        self.configs: BrokerConfigs
        self.config_admin: ConfigAdmin
        self.config_describer: ConfigDescriber
        self.controller: Controller
        self.fetch_sessions: FetchSessionCache
        self.flusher: Flusher
        self.groups: GroupCoordinatorRuntime
        self.logs: LogManager
        self.metadata: ClusterMetadata
        self.producer_ids: ProducerIdManager
        self.replicas: ReplicaManager
        self.topics: TopicAdmin

    def current_leader(self, topic: str, topic_id: bytes, index: int, listener: str) -> LeaderNode | None:
        """Who leads a partition, given by name or by id, as far as is known (KIP-951)."""
        if topic_id != ZERO_UUID:
            found = self.metadata.topics_by_id.get(topic_id)
            topic = "" if found is None else found.name
        partition = self.metadata.partition(topic, index)
        if partition is None:
            return None
        broker = self.metadata.brokers.get(partition.leader)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is None or endpoint is None:
            return None
        return LeaderNode(broker.broker_id, partition.leader_epoch, endpoint.host, endpoint.port, broker.rack)

    def create_internal_topic(self, name: str) -> "Deferred[Any]":
        """Create a topic the broker needs for itself; one that is there, or cannot be made now, is no error here."""
        return Deferred.fromCoroutine(self.topics.auto_create([name]))
