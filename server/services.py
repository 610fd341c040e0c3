"""What handlers work with: the parts of a running broker, wired by `broker`.

The parts that a broker can start without are made, and their modules imported, when they are first asked for.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    import random

    from twisted.internet.defer import Deferred

    from odradek.coordinator.transactions.producer_ids import ProducerIdManager
    from odradek.log.background.tasks import RunInThread
    from odradek.log.log_manager import LogManager
    from odradek.replication.controller.config_admin import ConfigAdmin
    from odradek.replication.controller.config_description import ConfigDescriber
    from odradek.replication.controller.controller import Controller
    from odradek.replication.controller.features import Features
    from odradek.replication.controller.topic_admin import TopicAdmin
    from odradek.replication.metadata.broker_configs import BrokerConfigs
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.config import BrokerConfig
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.marker_sender import MarkerSender
    from odradek.server.coordinators.transaction_verification import TransactionVerifier
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.fetching.fetch_sessions import FetchSessionCache
    from odradek.server.fetching.purgatory import CompletionQueue
    from odradek.server.image_cache import ImageCache
    from odradek.server.request import EncodedBody
    from odradek.server.work.flusher import Flusher
    from odradek.server.work.record_work import RecordWork
    from odradek.server.work.slices import Slices


class LeaderNode(NamedTuple):
    """The leader of a partition, with its endpoint on the listener that was asked for."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


class Services:
    """Plain references; a handler takes what it needs. `config` is the configuration now in force.

    `now_ms` is the wall clock: timestamps of records and retention. `monotonic_ms` is for whatever measures how long
    something takes or waits. See `environment`.
    """

    def __init__(
        self,
        config: "BrokerConfig",
        reactor: Any,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        random_source: "random.Random",
        slices: "Slices",
        run_in_thread: "RunInThread",
    ) -> None:
        self.config = config
        self.reactor = reactor
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self.random_source = random_source
        self.slices = slices
        self.run_in_thread = run_in_thread
        self.configs: BrokerConfigs
        self.controller: Controller
        self.features: Features
        self.fetch_sessions: FetchSessionCache
        self.flusher: Flusher
        self.logs: LogManager
        self.metadata: ClusterMetadata
        self.producer_ids: ProducerIdManager
        self.record_work: RecordWork
        self.replicas: ReplicaManager

    @cached_property
    def completions(self) -> "CompletionQueue":
        """Retries requests that wait in the purgatory."""
        from odradek.server.fetching.purgatory import CompletionQueue

        return CompletionQueue(self.slices)

    @cached_property
    def topics(self) -> "TopicAdmin":
        """Creates, grows and deletes topics."""
        from odradek.replication.controller.topic_admin import TopicAdmin

        return TopicAdmin(
            self.controller,
            self.configs,
            self.random_source,
            self.replicas.applied,
            spare_descriptors=self.logs.fs.spare_descriptors,
        )

    @cached_property
    def config_admin(self) -> "ConfigAdmin":
        """Changes configurations."""
        from odradek.replication.controller.config_admin import ConfigAdmin

        return ConfigAdmin(self.controller, self.configs)

    @cached_property
    def config_describer(self) -> "ConfigDescriber":
        """Describes configurations."""
        from odradek.replication.controller.config_description import ConfigDescriber

        return ConfigDescriber(self.config.node_id, self.metadata, self.configs)

    @cached_property
    def groups(self) -> "GroupCoordinatorRuntime":
        """The group coordinators."""
        import uuid

        from odradek.coordinator.groups.settings import GroupSettings
        from odradek.protocol.records import Codec
        from odradek.server.coordinators.groups import GroupCoordinatorRuntime

        config = self.config
        settings = GroupSettings(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_group_size=config.group_max_size,
            offset_metadata_max_length=config.offset_metadata_max_bytes,
            commit_timeout_ms=config.offsets_commit_timeout_ms,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )
        return GroupCoordinatorRuntime(
            settings,
            reactor=self.reactor,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            random_uuid=lambda: str(uuid.UUID(int=self.random_source.getrandbits(128), version=4)),
            partition_count=lambda: self._partition_count(GROUP_METADATA_TOPIC),
            load_buffer_bytes=config.offsets_load_buffer_size,
            slices=self.slices,
            run_in_thread=self.run_in_thread,
            codec=Codec(config.offsets_topic_compression_codec),
        )

    @cached_property
    def metadata_bodies(self) -> "ImageCache[EncodedBody]":
        """Encoded responses to Metadata for all topics."""
        from odradek.server.image_cache import ImageCache

        return ImageCache(self.metadata, self.slices)

    @property
    def groups_in_use(self) -> "GroupCoordinatorRuntime | None":
        """The group coordinators, if anybody has asked for them yet."""
        return self.__dict__.get("groups")

    @cached_property
    def markers(self) -> "MarkerSender":
        """Writes the outcome of transactions to partitions."""
        from odradek.server.coordinators.marker_sender import MarkerSender

        return MarkerSender(self)

    @cached_property
    def transactions(self) -> "TransactionCoordinatorRuntime":
        """The transaction coordinators."""
        from odradek.coordinator.transactions.settings import TransactionSettings
        from odradek.replication.controller.features import TRANSACTION_VERSION
        from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime

        config, features = self.config, self.features
        settings = TransactionSettings(
            transaction_version=features.level(TRANSACTION_VERSION),
            max_timeout_ms=config.transaction_max_timeout_ms,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            abort_timed_out_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            remove_expired_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            is_two_phase_commit_enabled=config.transaction_two_phase_commit_enable,
            write_timeout_ms=config.request_timeout_ms,
        )

        def follow_feature() -> None:
            settings.transaction_version = features.level(TRANSACTION_VERSION)

        features.listeners.append(follow_feature)
        return TransactionCoordinatorRuntime(
            settings,
            reactor=self.reactor,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            take_producer_id=self.producer_ids.take,
            begin_producer_ids_at=self.producer_ids.begin_at,
            partition_count=lambda: self._partition_count(TRANSACTION_STATE_TOPIC),
            load_buffer_bytes=config.transaction_state_log_load_buffer_size,
            slices=self.slices,
            run_in_thread=self.run_in_thread,
            markers=self.markers,
        )

    @cached_property
    def verifier(self) -> "TransactionVerifier":
        """Asks whether transactions know what is written in them."""
        from odradek.server.coordinators.transaction_verification import TransactionVerifier

        return TransactionVerifier(self)

    @property
    def transactions_in_use(self) -> "TransactionCoordinatorRuntime | None":
        """The transaction coordinators, if anybody has asked for them yet."""
        return self.__dict__.get("transactions")

    def _partition_count(self, topic_name: str) -> int:
        topic = self.metadata.topics.get(topic_name)
        return 0 if topic is None else len(topic.partitions)

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
        return carry_through(self.topics.auto_create([name]))
