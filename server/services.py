"""What handlers work with: the parts of a running broker, wired by `broker`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.replication.cluster_metadata import ClusterMetadata
    from odradek.replication.controller import Controller
    from odradek.replication.replica_manager import ReplicaManager
    from odradek.server.config import BrokerConfig
    from odradek.server.coordinator_runtime import GroupCoordinatorRuntime
    from odradek.server.fetch_sessions import FetchSessionCache
    from odradek.server.producer_ids import ProducerIdManager


class Services:
    """Plain references; a handler takes what it needs."""

    __slots__ = (
        "config",
        "controller",
        "fetch_sessions",
        "groups",
        "metadata",
        "now_ms",
        "producer_ids",
        "reactor",
        "replicas",
    )

    def __init__(self, config: "BrokerConfig", reactor: Any, now_ms: Callable[[], int]) -> None:
        self.config = config
        self.reactor = reactor
        self.now_ms = now_ms
        self.metadata: ClusterMetadata
        self.controller: Controller
        self.replicas: ReplicaManager
        self.groups: GroupCoordinatorRuntime
        self.producer_ids: ProducerIdManager
        self.fetch_sessions: FetchSessionCache
