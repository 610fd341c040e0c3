"""The steps of a broker's start and stop that depend on its membership: alone, or in a cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from odradek.log.storage.found_directories import KnownPartitions
from odradek.replication.controller.controller import Controller
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata
from odradek.replication.metadata.store import MetadataStore
from odradek.server.membership.clients import ClientMetadata

if TYPE_CHECKING:
    from odradek.coordinator.transactions.producer_ids import ProducerIdManager
    from odradek.log.log_manager import LogManager
    from odradek.replication.controller.admin.features import Features
    from odradek.replication.replicas.leader_state import Replication
    from odradek.server.config import BrokerConfig
    from odradek.server.services import ClusterParts, Services


class OpenedStore(NamedTuple):
    """The metadata store, the controller of this broker, and the cluster's id."""

    store: MetadataStore
    controller: Controller
    cluster_id: str


class StoredTopics(NamedTuple):
    """The partitions and configurations in the metadata, before this broker has joined its cluster.

    image: not published yet; topics with their replicas, and all configurations. Leaders only with an embedded store
    known: the partitions of this broker, with which the log directories are compared
    """

    image: ClusterMetadata
    known: KnownPartitions


class Membership(Protocol):
    """Membership of one broker.

    A start calls `open`, `load_topics`, `make_features`, `make_producer_ids` and `join`, in this order. While the
    broker runs, `take_offline`, `rejoin` and `reload` are called as events require. A stop calls `leave`, unless the
    start has failed, and then `stop`.
    """

    in_cluster: bool
    """True with ZooKeeper: the broker serves the APIs between brokers, even while it is the only one."""

    assignments: ClusterMetadata
    """The image that the replicas of this broker follow."""

    replication: "Replication | None"
    """The parts that leaders of partitions with several replicas need."""

    @property
    def clients(self) -> ClientMetadata:
        """The metadata about clients, after `open`; complete after `join`."""

    @property
    def cluster(self) -> "ClusterParts | None":
        """The parts of a cluster member that requests need; None for a broker that is alone."""

    async def open(self) -> OpenedStore:
        """Open the metadata store. Raises StartError, MetadataStoreError."""

    async def load_topics(self) -> StoredTopics:
        """Load the topics with which the log directories are compared. Raises MetadataStoreError, StartError."""

    async def make_features(self) -> "Features":
        """Load the finalized features. Raises MetadataStoreError."""

    def make_producer_ids(self, logs: "LogManager") -> "ProducerIdManager":
        """Return the allocation of producer ids."""

    async def join(self, services: "Services", registration: BrokerMetadata) -> None:
        """Register the broker, and take part in the election of the controller.

        With an embedded store this broker becomes the controller, and its replicas have their roles on return. In a
        cluster the controller assigns the roles later (LeaderAndIsr). Raises StartError, MetadataStoreError,
        KafkaError.
        """

    async def take_offline(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Report that this broker's replicas of these partitions lost their log directory."""

    async def rejoin(self) -> None:
        """Begin a new session after the last one expired, and register again.

        Raises MetadataStoreError, KafkaError, StartError.
        """

    async def reload(self) -> None:
        """Bring the metadata up to date after a reconnection to the store: a change whose outcome was unknown may have
        been made. Raises as `rejoin`.
        """

    def update_config(self, config: "BrokerConfig") -> None:
        """Apply a dynamic change of this broker's configuration to its connections to other brokers."""

    async def leave(self) -> None:
        """Move leaderships to other brokers before a stop, while clients are still served."""

    def stop(self) -> None:
        """Stop all work with the store and with other brokers."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before."""
