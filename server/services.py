"""The parts of a running broker that handlers, connections and coordinators use.

Parts that are not needed at start are made, and their modules imported, at their first use.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from odradek.server.fetching.purgatory import CompletionQueue, LateCompletions
from odradek.server.work.waits import RetryQueue

if TYPE_CHECKING:
    import random

    from odradek.coordinator.transactions.producer_ids import ProducerIdManager
    from odradek.log.background.tasks import RunInThread
    from odradek.log.log_manager import LogManager
    from odradek.replication.controller.acl_changes import AclChanges
    from odradek.replication.controller.admin.auto_creation import AutoCreation
    from odradek.replication.controller.admin.config_description import ConfigDescriber
    from odradek.replication.controller.admin.configs import ConfigAdmin
    from odradek.replication.controller.admin.elections import ElectionAdmin
    from odradek.replication.controller.admin.features import Features
    from odradek.replication.controller.admin.metadata_wait import MetadataWait
    from odradek.replication.controller.admin.reassignments import ReassignmentAdmin
    from odradek.replication.controller.admin.topics import TopicAdmin
    from odradek.replication.controller.configs.member_changes import MemberConfigTarget
    from odradek.replication.controller.controller import Controller
    from odradek.replication.controller.token_changes import TokenChanges
    from odradek.replication.metadata.broker_configs import BrokerConfigs
    from odradek.replication.metadata.entity_configs import EntityConfigs
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.metadata.store import MetadataStore
    from odradek.replication.replicas.broker_control import BrokerControl
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.apis import Api
    from odradek.server.config import BrokerConfig
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.interfaces import MarkerWriter, TransactionVerification
    from odradek.server.coordinators.remote_verification import RemoteCoordinators
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.fetching.cold_reads import ColdReads
    from odradek.server.fetching.readers import Readers
    from odradek.server.fetching.session_cache import FetchSessionCache
    from odradek.server.handlers.api_versions import ApiVersionsServices
    from odradek.server.handlers.client_quotas import ClientQuotaServices
    from odradek.server.handlers.cluster.broker_control import BrokerControlServices
    from odradek.server.handlers.cluster.controller_requests import ControllerRequestServices
    from odradek.server.handlers.cluster.elections import ElectionServices
    from odradek.server.handlers.cluster.features import FeatureServices
    from odradek.server.handlers.cluster.quorum import QuorumServices
    from odradek.server.handlers.cluster.reassignments import ReassignmentServices
    from odradek.server.handlers.coordinators.find_coordinator import FindCoordinatorServices
    from odradek.server.handlers.coordinators.group_offsets import OffsetServices
    from odradek.server.handlers.coordinators.groups import GroupServices
    from odradek.server.handlers.coordinators.producers import ProducerServices
    from odradek.server.handlers.coordinators.transaction_markers import MarkerServices
    from odradek.server.handlers.coordinators.transaction_offsets import TransactionOffsetServices
    from odradek.server.handlers.coordinators.transactions import TransactionServices
    from odradek.server.handlers.records.delete_records import DeleteRecordsServices
    from odradek.server.handlers.records.fetch import FetchServices
    from odradek.server.handlers.records.list_offsets import ListOffsetsServices
    from odradek.server.handlers.records.produce import ProduceServices
    from odradek.server.handlers.security.acls import AclServices
    from odradek.server.handlers.security.delegation_tokens import DelegationTokenServices
    from odradek.server.handlers.security.sasl import SaslServices
    from odradek.server.handlers.security.scram_users import ScramUserServices
    from odradek.server.handlers.telemetry import TelemetryServices
    from odradek.server.handlers.topics.configs import ConfigServices
    from odradek.server.handlers.topics.log_dirs import LogDirServices
    from odradek.server.handlers.topics.metadata import MetadataServices
    from odradek.server.handlers.topics.topic_changes import TopicServices
    from odradek.server.handlers.topics.topic_partitions import TopicPartitionServices
    from odradek.server.image_cache import ImageCache
    from odradek.server.quotas.alterations import QuotaAdmin
    from odradek.server.quotas.switch import QuotaSwitch
    from odradek.server.request import EncodedBody
    from odradek.server.security.sasl.scram_users import ScramUsers
    from odradek.server.security.sasl.unknown_users import UnknownUsers
    from odradek.server.telemetry.client_telemetry import ClientTelemetry
    from odradek.server.telemetry.subscriptions import Subscriptions
    from odradek.server.work.clock import Clock, IterationEnd, Resolver
    from odradek.server.work.first_metadata import FirstMetadata
    from odradek.server.work.flusher import Flusher
    from odradek.server.work.record_work import RecordWork
    from odradek.server.work.slices import Slices


class ClusterParts(Protocol):
    """The parts of a cluster member that requests need (`membership.cluster`)."""

    @property
    def config_target(self) -> "MemberConfigTarget":
        """Writes changes of configurations to the store."""

    @property
    def control(self) -> "BrokerControl":
        """Applies requests of the controller. Raises KafkaError before the broker has joined."""

    @property
    def first_metadata(self) -> "FirstMetadata":
        """The wait of requests for the first metadata from a controller."""

    @property
    def metadata_wait(self) -> "MetadataWait":
        """Waits of topic requests for the metadata cache."""

    def make_auto_creation(self, configs: "BrokerConfigs") -> "AutoCreation":
        """Return the automatic creation of topics by this broker."""

    def make_markers(self, local: "MarkerWriter") -> "MarkerWriter":
        """Return a writer of markers to the partitions of all brokers."""

    def make_coordinators(self) -> "RemoteCoordinators":
        """Return the transaction coordinators on other brokers."""

    async def confirm_leadership(self, partition: "Partition") -> bool:
        """Return whether this broker leads a partition by the metadata store."""


class Services:
    """The parts of a running broker. Each handler module declares the parts that it uses as a Protocol.

    acls: the ACLs and their changes; None without authorization
    apis: the APIs that this broker serves, by key
    client_metrics_configs: the configurations of subscriptions of client metrics
    cluster: the membership in a cluster; None with an embedded store
    completions, follower_completions: retry woken operations of the purgatory; those of followers' fetches at the end
        of the reactor iteration
    config: the current configuration
    entity_configs: the configurations of users, client ids and IP addresses
    quotas: the quotas of clients, once there are any
    readers: the positions of readers; None without `metrics.listener`
    resolver: resolves host names
    store: the metadata store
    tokens: the delegation tokens and their changes; None without a secret for them
    unknown_users: credentials of SCRAM users that do not exist; None without a listener with SASL
    now_ms, monotonic_ms: the wall clock and the monotonic clock, see `environment`
    groups_in_use, transactions_in_use: the coordinators, set at their first use
    telemetry_in_use: the metrics of clients, set at their first use
    """

    def __init__(
        self,
        *,
        apis: "Mapping[int, Api]",
        client_metrics_configs: "EntityConfigs",
        cluster: "ClusterParts | None",
        cold_reads: "ColdReads",
        config: "BrokerConfig",
        configs: "BrokerConfigs",
        controller: "Controller",
        entity_configs: "EntityConfigs",
        features: "Features",
        fetch_sessions: "FetchSessionCache",
        flusher: "Flusher",
        iteration_end: "IterationEnd",
        logs: "LogManager",
        metadata: "ClusterMetadata",
        monotonic_ms: Callable[[], int],
        now_ms: Callable[[], int],
        produce_completions: RetryQueue,
        producer_ids: "ProducerIdManager",
        random_source: "random.Random",
        reactor: "Clock",
        record_work: "RecordWork",
        replicas: "ReplicaManager",
        run_in_thread: "RunInThread",
        slices: "Slices",
        store: "MetadataStore",
        quotas: "QuotaSwitch",
        resolver: "Resolver",
    ) -> None:
        self.apis = apis
        self.client_metrics_configs = client_metrics_configs
        self.cluster = cluster
        self.cold_reads = cold_reads
        self.config = config
        self.configs = configs
        self.controller = controller
        self.entity_configs = entity_configs
        self.features = features
        self.fetch_sessions = fetch_sessions
        self.flusher = flusher
        self.logs = logs
        self.metadata = metadata
        self.monotonic_ms = monotonic_ms
        self.now_ms = now_ms
        self.produce_completions = produce_completions
        self.producer_ids = producer_ids
        self.random_source = random_source
        self.reactor = reactor
        self.record_work = record_work
        self.replicas = replicas
        self.run_in_thread = run_in_thread
        self.slices = slices
        self.acls: AclChanges | None = None
        self.store = store
        self.quotas = quotas
        self.resolver = resolver
        self.tokens: TokenChanges | None = None
        self.unknown_users: UnknownUsers | None = None
        self.on_levels: Callable[[], None] = lambda: None
        self.completions: RetryQueue = CompletionQueue(slices)
        self.follower_completions: RetryQueue = LateCompletions(self.completions, iteration_end)
        self.readers: Readers | None = None
        self.groups_in_use: GroupCoordinatorRuntime | None = None
        self.transactions_in_use: TransactionCoordinatorRuntime | None = None
        self.telemetry_in_use: ClientTelemetry | None = None

    @property
    def broker_control(self) -> "BrokerControl":
        """Applies requests of the controller; only in a cluster."""
        assert self.cluster is not None
        return self.cluster.control

    @property
    def first_metadata(self) -> "FirstMetadata | None":
        """The wait for the first metadata; None when it is over, and with an embedded store."""
        first = None if self.cluster is None else self.cluster.first_metadata
        return first if first is not None and first.is_awaited else None

    @cached_property
    def topics(self) -> "TopicAdmin":
        """Creates and deletes topics, and adds partitions."""
        from odradek.replication.controller.admin.topics import TopicAdmin

        return TopicAdmin(
            self.controller,
            self.configs,
            self.random_source,
            self.replicas.applied,
            spare_descriptors=self.logs.fs.spare_descriptors,
            metadata_wait=None if self.cluster is None else self.cluster.metadata_wait,
        )

    @cached_property
    def auto_creation(self) -> "AutoCreation":
        """Creates topics that clients use without having created them."""
        return self.topics if self.cluster is None else self.cluster.make_auto_creation(self.configs)

    @cached_property
    def election_admin(self) -> "ElectionAdmin":
        """Elects leaders on request."""
        from odradek.replication.controller.admin.elections import ElectionAdmin

        return ElectionAdmin(self.controller, self.replicas.applied)

    @cached_property
    def reassignment_admin(self) -> "ReassignmentAdmin":
        """Reassigns partitions on request."""
        from odradek.replication.controller.admin.reassignments import ReassignmentAdmin

        return ReassignmentAdmin(self.controller, self.replicas.applied)

    @cached_property
    def config_admin(self) -> "ConfigAdmin":
        """Changes configurations."""
        from odradek.replication.controller.admin.configs import ConfigAdmin

        target = self.controller if self.cluster is None else self.cluster.config_target
        return ConfigAdmin(target, self.configs, self.subscriptions, self.on_levels)

    @cached_property
    def quota_admin(self) -> "QuotaAdmin":
        """Changes quotas."""
        from odradek.server.quotas.alterations import QuotaAdmin

        target = self.controller if self.cluster is None else self.cluster.config_target
        return QuotaAdmin(target.request, self.store, self.entity_configs, self.resolver, self.now_ms)

    @cached_property
    def config_describer(self) -> "ConfigDescriber":
        """Describes configurations."""
        from odradek.replication.controller.admin.config_description import ConfigDescriber

        return ConfigDescriber(self.config.node_id, self.metadata, self.configs, self.subscriptions)

    @property
    def wants_client_metrics(self) -> bool:
        """True if there is a subscription of client metrics."""
        return bool(self.client_metrics_configs.configs)

    @cached_property
    def subscriptions(self) -> "Subscriptions":
        """The subscriptions of client metrics."""
        from odradek.server.telemetry.subscriptions import Subscriptions

        return Subscriptions(self.store, self.client_metrics_configs, self.now_ms)

    @cached_property
    def telemetry(self) -> "ClientTelemetry":
        """The metrics that clients push."""
        import uuid

        from odradek.server.telemetry.client_telemetry import ClientTelemetry

        self.telemetry_in_use = telemetry = ClientTelemetry(
            self.subscriptions,
            max_bytes=self.config.telemetry_max_bytes,
            max_series=self.config.telemetry_max_series,
            monotonic_ms=self.monotonic_ms,
            random_uuid=lambda: uuid.UUID(int=self.random_source.getrandbits(128), version=4).bytes,
            record_work=self.record_work,
            slices=self.slices,
        )
        return telemetry

    def remove_idle_telemetry(self) -> None:
        """Begin to remove client instances and series that have expired."""
        if self.telemetry_in_use is not None:
            self.telemetry_in_use.remove_idle()

    @cached_property
    def scram_users(self) -> "ScramUsers":
        """Describes and changes the SCRAM credentials of users."""
        from odradek.server.security.sasl.scram_users import ScramUsers

        return ScramUsers(self.entity_configs, self.controller.store, self.now_ms)

    @cached_property
    def groups(self) -> "GroupCoordinatorRuntime":
        """The group coordinators."""
        import uuid

        from odradek.coordinator.groups.settings import GroupSettings
        from odradek.protocol.records import Codec
        from odradek.server.coordinators.groups import GroupCoordinatorRuntime
        from odradek.server.coordinators.runtime import confirm_none

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
        self.groups_in_use = groups = GroupCoordinatorRuntime(
            settings,
            reactor=self.reactor,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            random_uuid=lambda: str(uuid.UUID(int=self.random_source.getrandbits(128), version=4)),
            partition_count=lambda: self._count_partitions(GROUP_METADATA_TOPIC),
            load_buffer_bytes=config.offsets_load_buffer_size,
            slices=self.slices,
            run_in_thread=self.run_in_thread,
            codec=Codec(config.offsets_topic_compression_codec),
            confirm_leadership=confirm_none if self.cluster is None else self.cluster.confirm_leadership,
        )
        return groups

    @cached_property
    def metadata_bodies(self) -> "ImageCache[EncodedBody]":
        """Encoded responses to Metadata for all topics."""
        from odradek.server.image_cache import ImageCache

        return ImageCache(self.metadata, self.slices)

    @cached_property
    def markers(self) -> "MarkerWriter":
        """Writes COMMIT and ABORT markers to partitions."""
        from odradek.server.coordinators.marker_sender import MarkerSender

        local = MarkerSender(self)
        return local if self.cluster is None else self.cluster.make_markers(local)

    @cached_property
    def transactions(self) -> "TransactionCoordinatorRuntime":
        """The transaction coordinators."""
        from odradek.coordinator.transactions.settings import TransactionSettings
        from odradek.replication.controller.admin.features import TRANSACTION_VERSION
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
        self.transactions_in_use = transactions = TransactionCoordinatorRuntime(
            settings,
            reactor=self.reactor,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            take_producer_id=self.producer_ids.take,
            begin_producer_ids_at=self.producer_ids.begin_at,
            partition_count=lambda: self._count_partitions(TRANSACTION_STATE_TOPIC),
            load_buffer_bytes=config.transaction_state_log_load_buffer_size,
            slices=self.slices,
            run_in_thread=self.run_in_thread,
            markers=self.markers,
        )
        return transactions

    @cached_property
    def verifier(self) -> "TransactionVerification":
        """Verifies that transactions contain the partitions that they write to."""
        from odradek.server.coordinators.transaction_verification import TransactionVerifier

        return TransactionVerifier(self, None if self.cluster is None else self.cluster.make_coordinators())

    def _count_partitions(self, topic_name: str) -> int:
        topic = self.metadata.topics.get(topic_name)
        return 0 if topic is None else len(topic.partitions)


if TYPE_CHECKING:

    def check_handlers(
        services: Services,
    ) -> tuple[
        AclServices,
        ApiVersionsServices,
        BrokerControlServices,
        ClientQuotaServices,
        ConfigServices,
        ControllerRequestServices,
        DelegationTokenServices,
        DeleteRecordsServices,
        ElectionServices,
        FeatureServices,
        FetchServices,
        FindCoordinatorServices,
        GroupServices,
        ListOffsetsServices,
        LogDirServices,
        MarkerServices,
        MetadataServices,
        OffsetServices,
        ProduceServices,
        ProducerServices,
        QuorumServices,
        ReassignmentServices,
        SaslServices,
        ScramUserServices,
        TelemetryServices,
        TopicPartitionServices,
        TopicServices,
        TransactionOffsetServices,
        TransactionServices,
    ]:
        """Check, by mypy, that the services have the parts that each handler module uses."""
        one = services
        return (
            one, one, one, one, one, one, one, one, one, one, one, one, one, one,
            one, one, one, one, one, one, one, one, one, one, one, one, one, one, one,
        )  # fmt: skip
