"""A broker of a cluster that ZooKeeper coordinates.

Its metadata cache and the roles of its replicas come from the controller, which may be this broker; the controller's
requests to its own broker are function calls. Configurations come from the store. If the session with ZooKeeper
expires, the broker keeps its last roles, and registers again.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.log.log_manager import LogManager
from odradek.log.management.log_table import LogTable
from odradek.log.storage.found_directories import KnownPartitions
from odradek.properties import PropertySet
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from odradek.protocol.messages.alter_partition import AlterPartitionRequest
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from odradek.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from odradek.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from odradek.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from odradek.protocol.schema import Message
from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.admin.auto_creation import ClusterAutoCreation
from odradek.replication.controller.admin.features import Features
from odradek.replication.controller.admin.metadata_wait import MetadataWait
from odradek.replication.controller.configs.member_changes import MemberConfigChanges, MemberConfigTarget
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.controller.leader_rebalance import LeaderRebalance
from odradek.replication.controller.propagation.propagation import Propagation
from odradek.replication.controller.repetition import Repetition
from odradek.replication.following.fetcher_manager import ReplicaFetcherManager
from odradek.replication.following.settings import FetcherParts, FetcherSettings
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.config_follower import ConfigFollower
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, MetadataDelta
from odradek.replication.metadata.loader import (
    count_partitions,
    is_deleted,
    list_topics,
    read_assignments,
    read_node,
)
from odradek.replication.metadata.store import Check, MetadataStore, MetadataStoreError, WatchEvent
from odradek.replication.metadata.topic_names import is_topic_name
from odradek.replication.metadata.znodes import Restart, decode_topic, state_path, topic_path
from odradek.replication.replicas.broker_control import BrokerControl
from odradek.replication.replicas.isr_changes import IsrChangeQueue, shrink_isrs
from odradek.replication.replicas.leader_state import Replication
from odradek.replication.replicas.partition import Partition
from odradek.replication.replicas.replica_manager import ReplicaManager
from odradek.replication.replicas.throttle import FOLLOWER, LEADER, ReplicationThrottle
from odradek.server.brokers.channel import SetupTimeout, TcpBrokerChannels
from odradek.server.brokers.channel_pool import ChannelPool
from odradek.server.brokers.connection import Connect
from odradek.server.brokers.controller_client import ControllerClient, LocalHandlers
from odradek.server.brokers.peer_watch import PeerWatch
from odradek.server.config import BrokerConfig
from odradek.server.config.properties.sasl import SASL_PROTOCOLS
from odradek.server.coordinators.interfaces import MarkerWriter
from odradek.server.coordinators.producer_id_blocks import RemoteProducerIds
from odradek.server.coordinators.remote_markers import ClusterMarkerSender, find_response_timeout_ms
from odradek.server.coordinators.remote_verification import RemoteCoordinators
from odradek.server.environment import Environment
from odradek.server.membership.clients import ClientMetadata
from odradek.server.membership.controlled_shutdown import ControlledShutdown
from odradek.server.membership.embedded import lay_out_store
from odradek.server.membership.interface import OpenedStore, StoredTopics
from odradek.server.membership.live_brokers import LiveBrokersLog
from odradek.server.security.tls.settings import TLS_PROTOCOLS
from odradek.server.services import Services
from odradek.server.store_location import open_zookeeper_store
from odradek.server.work.clock import DelayedCall
from odradek.server.work.delayed_tasks import DelayedTasks
from odradek.server.work.first_metadata import FirstMetadata
from odradek.server.work.metadata_pacing import ReactorPacing
from odradek.server.work.slices import Slices

if TYPE_CHECKING:
    from odradek.server.security.sasl.current_login import CurrentLogin
    from odradek.server.security.tls.reloaded_context import ReloadedContext

logger = logging.getLogger(__name__)

NOTICE_RETRY_MS: Final = 5_000


class ClusterMembership:
    """Membership of one broker of several. `metadata` is its metadata cache."""

    in_cluster = True

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        directories: Sequence[str],
        metadata: ClusterMetadata,
        pacing: ReactorPacing,
        delayed_tasks: DelayedTasks,
        slices: Slices,
    ) -> None:
        self.assignments = ClusterMetadata()
        self._config = config
        self._environment = environment
        self._directories = list(directories)
        self._metadata = metadata
        self._pacing = pacing
        self._delayed_tasks = delayed_tasks
        self._slices = slices
        self._events = EventLoop(pacing)
        self.metadata_wait = MetadataWait(metadata, pacing, self._delay)
        self.first_metadata = FirstMetadata(metadata, environment.reactor, pacing)
        self._tls_context: ReloadedContext | None = None
        self._login = self._make_login()
        self._channels = self._make_channels()
        self._control: BrokerControl | None = None
        self._replicas: ReplicaManager | None = None
        self._opened: OpenedStore | None = None
        self._configs: ConfigFollower | None = None
        self._config_target: MemberConfigTarget | None = None
        self._clients: ClientMetadata | None = None
        self._isr_check: DelayedCall | None = None
        self._fetchers: ReplicaFetcherManager | None = None
        self._features = Features()
        # Ids of the topics in the store at the start, and their assignments until this broker joins.
        self._stored_ids: dict[str, bytes] = {}
        self._stored = ClusterMetadata()
        # The partitions of topics whose assignment could not be read at the start.
        self._damaged_topics: dict[str, list[int]] = {}
        self.controller_requests = self._make_controller_client()
        self._controlled_shutdown = ControlledShutdown(
            config, metadata, self.controller_requests, lambda: self.broker_epoch, environment.reactor, self._delay
        )
        # Separate connections, as in Kafka: the response to markers waits for their replication.
        self._marker_channels = self._make_channel_pool(find_response_timeout_ms(config.request_timeout_ms))
        # Not longer, because producers wait for the response, and for no longer than this in most clients.
        self._verification_channels = self._make_channel_pool(config.request_timeout_ms)
        self._peers = PeerWatch(
            config.inter_broker_name,
            self._on_refused,
            connect=environment.reactor.connectTCP,
            clock=environment.reactor,
        )
        self._watched_epoch = -1
        self._isr_changes = IsrChangeQueue(
            config.node_id, lambda: self.broker_epoch, self.controller_requests, self._delay, pacing.start
        )
        self.replication = Replication(
            metadata,
            self._isr_changes,
            environment.monotonic_ms,
            config.replica_lag_time_max_ms,
            fetch_wait_max_ms=config.replica_fetch_wait_max_ms,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
        )

    def _make_channels(self) -> TcpBrokerChannels:
        config, reactor = self._config, self._environment.reactor
        return TcpBrokerChannels(
            config.inter_broker_name,
            connect=self._make_connect(),
            clock=reactor,
            slices=self._slices,
            # The first batch of a response may be larger than the follower's limit.
            max_records_bytes=max(config.replica_fetch_response_max_bytes, config.socket_request_max_bytes),
            setup_timeout=SetupTimeout(
                config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms
            ),
            security_protocol=config.inter_broker_protocol,
            authenticate=None if self._login is None else self._login.authenticate,
        )

    def _make_login(self) -> "CurrentLogin | None":
        """Return the login of this broker at others; None if their listener has no SASL."""
        config, environment = self._config, self._environment
        if config.inter_broker_protocol not in SASL_PROTOCOLS:
            return None
        from odradek.server.security.sasl.current_login import CurrentLogin
        from odradek.server.security.sasl.inter_broker import InterBrokerParts

        parts = InterBrokerParts(
            environment.random_source,
            environment.now_ms,
            environment.monotonic,
            environment.reactor.callLater,
            environment.run_in_thread,
            environment.run_request,
        )
        return CurrentLogin(config, parts)

    def _make_connect(self) -> Connect:
        """Return the function that connects to other brokers, with TLS if their listener has it."""
        config, connect = self._config, self._environment.reactor.connectTCP
        if config.inter_broker_protocol not in TLS_PROTOCOLS:
            return connect
        from odradek.server.brokers.tls import connect_with_tls
        from odradek.server.security.tls.contexts import make_client_context
        from odradek.server.security.tls.reloaded_context import ReloadedContext

        settings = config.tls_settings(config.inter_broker_name)
        self._tls_context = ReloadedContext(settings, make_client_context, self._environment.monotonic)
        return connect_with_tls(connect, self._tls_context)

    def update_config(self, config: BrokerConfig) -> None:
        """Use changed properties of TLS and SASL for new connections to other brokers."""
        if self._tls_context is not None:
            self._tls_context.update(config.tls_settings(self._config.inter_broker_name))
        if self._login is not None:
            self._login.update(config)

    def _make_controller_client(self) -> ControllerClient:
        node_id = self._config.node_id
        return ControllerClient(
            node_id,
            self._metadata,
            self._channels,
            self._local_requests(),
            client_id=str(node_id),
            timeout_ms=self._config.request_timeout_ms,
        )

    def _make_channel_pool(self, timeout_ms: int) -> ChannelPool:
        client_id = str(self._config.node_id)
        return ChannelPool(self._metadata, self._channels, client_id=client_id, timeout_ms=timeout_ms)

    def _local_requests(self) -> LocalHandlers:
        """Return the functions of this broker's controller, by class of the request."""

        async def alter_partition(request: Message) -> Message:
            assert isinstance(request, AlterPartitionRequest)
            return await self._controller.alter_partition(request)

        async def controlled_shutdown(request: Message) -> Message:
            assert isinstance(request, ControlledShutdownRequest)
            return await self._controller.controlled_shutdown(request)

        async def allocate_producer_ids(request: Message) -> Message:
            assert isinstance(request, AllocateProducerIdsRequest)
            return await self._controller.allocate_producer_ids(request)

        return {
            AlterPartitionRequest: alter_partition,
            ControlledShutdownRequest: controlled_shutdown,
            AllocateProducerIdsRequest: allocate_producer_ids,
        }

    @property
    def cluster(self) -> "ClusterMembership":
        """The parts that requests need: this object."""
        return self

    @property
    def _store(self) -> MetadataStore:
        assert self._opened is not None
        return self._opened.store

    @property
    def _controller(self) -> Controller:
        assert self._opened is not None
        return self._opened.controller

    def _delay(self, delay_ms: int) -> Awaitable[None]:
        over: Deferred[None] = Deferred()
        self._environment.reactor.callLater(delay_ms / 1000, over.callback, None)
        return over

    # -- start ---------------------------------------------------------------------------------------------------------

    async def open(self) -> OpenedStore:
        """Connect to ZooKeeper, and create the nodes of the cluster that are missing.

        Raises StartError, MetadataStoreError.
        """
        config, environment = self._config, self._environment
        store = await open_zookeeper_store(environment, config)
        if self._login is not None:
            self._login.start()
        try:
            cluster_id = await lay_out_store(environment, self._directories, store)
            propagation = Propagation(
                config.node_id,
                self._metadata,
                self,
                self._channels,
                self._delay,
                inter_broker_listener=config.inter_broker_name,
                timeout_ms=config.controller_socket_timeout_ms,
            )
            random = environment.random_source
            controller = Controller(
                store,
                propagation,
                config.node_id,
                environment.now_ms,
                environment.monotonic_ms,
                propagation,
                random,
            )
            controller.run_on(self._pacing)
            controller.reassignments.stop_replicas = propagation.delete_replicas
            controller.context.is_unclean_default = config.unclean_leader_election_enable
            controller.deletion.run_later = self._delayed_tasks.run_later
        except BaseException:
            await store.close()
            raise
        store.add_session_listener(self._controlled_shutdown.on_session)
        store.add_session_listener(lambda event: self.replication.on_session(event, self.broker_epoch))
        self._opened = OpenedStore(store, controller, cluster_id)
        self._configs = ConfigFollower(store, self._metadata, self._post)
        self._clients = ClientMetadata(config, environment, store, self._events)
        self._events.on_failure = Repetition(
            self._delayed_tasks.run_later,
            lambda: self._post("read changed configurations again", self._follow_again),
            environment.monotonic_ms,
        ).schedule
        changes = MemberConfigChanges(store, self._metadata, self._configs, environment.now_ms)
        self._config_target = MemberConfigTarget(config.node_id, self._metadata, changes, self._events)
        return self._opened

    async def _follow_again(self) -> None:
        """Read changed configurations and the features again, and watch them, after an event that failed."""
        assert self._configs is not None
        await self._configs.follow()
        await self.clients.follow()
        await self._load_features()

    def _post(self, description: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._events.post(EventKind.CONFIGURATION, description, work)

    async def _start_configs(self, topic_ids: Mapping[str, bytes]) -> None:
        """Load all configurations. Notices of changes that arrive meanwhile are processed afterwards."""
        assert self._configs is not None
        await self._events.submit(
            EventKind.CONFIGURATION, "load configurations", partial(self._configs.start, topic_ids)
        )
        await self.clients.load()

    async def load_topics(self) -> StoredTopics:
        """Load the assignments in the store; logs of partitions that are not assigned to this broker are stray.

        The logs of a topic whose assignment cannot be read are opened. They get a role when it is corrected.
        """
        stored, me = self._stored, self._config.node_id
        damaged = self._damaged_topics = await read_assignments(self._store, stored)
        self._stored_ids = {topic.name: topic.topic_id for topic in stored.topics.values()}

        def topic_id(topic: str, index: int) -> bytes | None:
            if topic in damaged:
                return ZERO_UUID if index in damaged[topic] else None
            partition = stored.partition(topic, index)
            if partition is None or me not in partition.replicas:
                return None
            return stored.topics[topic].topic_id

        return StoredTopics(stored, KnownPartitions(topic_id, True, is_topic_name))

    async def make_features(self) -> Features:
        """Load the finalized features, and watch them."""
        await self._load_features()
        return self._features

    async def _load_features(self) -> None:
        """Load the features; a new cluster has none finalized, as one of Kafka 3.9."""
        await self._features.load(self._store, {}, self._on_features)

    def _on_features(self, event: WatchEvent) -> None:
        self._post("features changed", self._load_features)

    def make_producer_ids(self, logs: LogManager) -> ProducerIdManager:
        """Return the allocation of producer ids by the controller."""
        blocks = RemoteProducerIds(
            self.controller_requests, self._config.node_id, lambda: self.broker_epoch, self._environment.reactor
        )
        return ProducerIdManager(blocks.allocate, Deferred.fromCoroutine, blocks.ready)

    async def join(self, services: Services, registration: BrokerMetadata) -> None:
        """Register the broker, and take part in the election of the controller, which then assigns the roles.

        Raises StartError, MetadataStoreError, KafkaError.
        """
        assert self._configs is not None
        replicas = self._replicas = services.replicas
        replicas.run_steps = self._pacing.run_to_stop
        replicas.make_waiter = self._pacing.waiter
        replicas.fetchers = self._fetchers = self._make_fetchers(services)
        services.configs.listeners.append(self._on_config)
        self._controller.deletion.is_enabled = lambda: bool(services.configs.current.value("delete.topic.enable"))
        self.replication.throttle = ReplicationThrottle(
            LEADER, self._config.node_id, services.configs, self._environment.monotonic_ms
        )
        self._controller.find_topic_id = partial(self._find_topic_id, services.logs.table)
        await self._start_configs(self._stored_ids)
        self._control = BrokerControl(
            self._config.node_id,
            self._metadata,
            self.assignments,
            replicas,
            self._configs,
            EventLoop(self._pacing),
            lambda: self.broker_epoch,
            partial(count_partitions, self._store),
            partial(list_topics, self._store),
            self._delayed_tasks.run_later,
            self._environment.monotonic_ms,
            self.replication.on_controller_request,
        )
        for image in (self._controller.image, self._metadata):
            image.listeners.append(self._watch_peers)
        LiveBrokersLog(self._metadata).follow()
        self.first_metadata.expect(has_topics=bool(self._stored_ids))
        restart = self._examine_logs(services.logs, replicas)
        await self._controller.start(registration, restart=restart)
        await self._controller.finish_deletions()
        self._check_isrs()
        self.clients.delete_expired_tokens(self._delayed_tasks, lambda: self._controller.is_active)
        self._pacing.start(LeaderRebalance(self._controller, services.configs, self._delay).run())

    def _examine_logs(self, logs: LogManager, replicas: ReplicaManager) -> Restart:
        """Return what the logs may lack, and let `replicas` have those that were lost with a disk."""
        stored, self._stored = self._stored, ClusterMetadata()
        damaged, self._damaged_topics = self._damaged_topics, {}
        if not logs.log_dirs.may_lack_logs:
            return Restart.LOSSY
        me, known = self._config.node_id, logs.table
        missing = [
            (topic.name, index)
            for topic in stored.topics.values()
            for index, partition in enumerate(topic.partitions)
            if me in partition.replicas and not known.has((topic.name, index))
        ]
        # Of which of these this broker has replicas is unknown.
        doubtful = [(topic, index) for topic in damaged for index in damaged[topic] if not known.has((topic, index))]
        lost = logs.log_dirs.find_lost_logs(missing + doubtful)
        replicas.lost_logs = {(topic, index): self._stored_ids.get(topic, ZERO_UUID) for topic, index in lost}
        return Restart.LOST if lost and missing else Restart.LOSSY

    def _find_topic_id(self, table: LogTable, name: str) -> bytes | None:
        """Return the id that a topic has had: by the metadata of this broker, otherwise by one of its logs."""
        topic = self._metadata.topics.get(name)
        if topic is not None and topic.topic_id != ZERO_UUID:
            return topic.topic_id
        return next((topic_id for (owner, _), topic_id in table.topic_ids.items() if owner == name), None)

    def _watch_peers(self, _: MetadataDelta) -> None:
        """Watch the processes of all brokers as the controller, otherwise that of the controller."""
        me, image = self._config.node_id, self._controller.image
        if image.controller_epoch != self._watched_epoch:
            # The controller may be another process of the same broker, whose refusals are to be reported as well.
            self._watched_epoch = image.controller_epoch
            self._peers.close()
        if self._controller.is_active:
            brokers = image.brokers
        else:
            controller = self._metadata.brokers.get(image.controller_id)
            brokers = {} if controller is None else {controller.broker_id: controller}
        self._peers.watch(broker for broker_id, broker in brokers.items() if broker_id != me)

    def _on_refused(self, broker: BrokerMetadata) -> None:
        if self._controller.is_active:
            self._controller.on_broker_refused(broker)
        else:
            self._controller.on_controller_refused(broker.broker_id)

    def _on_config(self, old: PropertySet, new: PropertySet) -> None:
        if self._fetchers is not None:
            self._fetchers.resize(int(new.value("num.replica.fetchers")))

    def _make_fetchers(self, services: Services) -> ReplicaFetcherManager:
        config = self._config
        settings = FetcherSettings(
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_max_bytes,
            config.replica_fetch_response_max_bytes,
            config.replica_fetch_backoff_ms,
            config.replica_socket_timeout_ms,
        )
        parts = FetcherParts(
            config.node_id,
            lambda: self.broker_epoch,
            self._metadata.brokers.get,
            self._channels,
            self._pacing,
            self._delay,
            self._environment.monotonic_ms,
            settings,
            ReplicationThrottle(FOLLOWER, config.node_id, services.configs, self._environment.monotonic_ms),
            self._environment.run_drop_behind,
        )
        return ReplicaFetcherManager(parts, services.logs, self._environment.now_ms, config.num_replica_fetchers)

    def _check_isrs(self) -> None:
        """Remove followers that are behind from ISRs, twice in replica.lag.time.max.ms."""

        def check() -> None:
            self._isr_check = self._environment.reactor.callLater(interval_s, check)
            if self._replicas is not None:
                self._pacing.run_to_stop(shrink_isrs(self._replicas))

        interval_s = self._config.replica_lag_time_max_ms / 2000
        self._isr_check = self._environment.reactor.callLater(interval_s, check)

    # -- requests of the controller, when it is this broker ------------------------------------------------------------

    @property
    def config_target(self) -> MemberConfigTarget:
        """Writes changes of configurations to the store."""
        assert self._config_target is not None
        return self._config_target

    @property
    def clients(self) -> ClientMetadata:
        """The metadata about clients."""
        assert self._clients is not None
        return self._clients

    @property
    def control(self) -> BrokerControl:
        """Applies requests of the controller. Raises KafkaError before the broker has joined."""
        if self._control is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker is starting")
        return self._control

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Take the assigned roles."""
        return await self.control.leader_and_isr(request)

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Update the metadata cache."""
        return await self.control.update_metadata(request)

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop or delete replicas."""
        return await self.control.stop_replica(request)

    def make_auto_creation(self, configs: BrokerConfigs) -> ClusterAutoCreation:
        """Return the automatic creation of topics by this broker."""
        return ClusterAutoCreation(
            self._store, self._metadata, configs, self._environment.random_source, self._pacing.pause
        )

    # -- parts of coordinators -----------------------------------------------------------------------------------------

    def make_markers(self, local: MarkerWriter) -> MarkerWriter:
        """Return a writer of markers to the partitions of all brokers; `local` writes to those of this one."""
        return ClusterMarkerSender(
            local,
            broker_id=self._config.node_id,
            metadata=self._metadata,
            channels=self._marker_channels,
            clock=self._environment.reactor,
            slices=self._slices,
            is_deleted=partial(is_deleted, self._store),
        )

    def make_coordinators(self) -> RemoteCoordinators:
        """Return the transaction coordinators on other brokers."""
        return RemoteCoordinators(self._verification_channels, self._environment.reactor)

    async def confirm_leadership(self, partition: Partition) -> bool:
        """Return whether ZooKeeper still has the state by which this broker leads a partition.

        By a transaction, which changes nothing: a server of the ensemble may return an old node to a read. The state of
        another topic of this name may have the same version, so that the topic's id is read afterwards.
        """
        if not partition.is_leader:
            return False
        topic, topic_id = partition.topic, partition.topic_id
        try:
            await self._store.transaction([Check(state_path(topic, partition.index), partition.partition_epoch)])
            stored_id = await read_node(self._store, topic_path(topic), lambda node: decode_topic(node.data).topic_id)
        except MetadataStoreError as error:
            logger.debug("the leadership is not confirmed partition=%r error=%s", partition, error)
            return False
        return stored_id in (None, topic_id)

    # -- changes while the broker runs ---------------------------------------------------------------------------------

    async def take_offline(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Notify the controller, which asks this broker for its offline replicas."""
        try:
            await self._controller.take_offline(partitions)
        except MetadataStoreError as error:
            logger.error(
                "cannot notify the controller of offline replicas; retrying partitions=%d retry_ms=%d error=%s",
                len(partitions),
                NOTICE_RETRY_MS,
                error,
            )
            self._delayed_tasks.run_later(NOTICE_RETRY_MS, lambda: self.take_offline(partitions))

    async def rejoin(self) -> None:
        """Begin a new session, register again, and load configurations and features again."""
        assert self._configs is not None
        await self._controller.rejoin()
        await self._start_configs({topic.name: topic.topic_id for topic in self._metadata.topics.values()})
        await self._load_features()

    async def reload(self) -> None:
        """Do nothing: the store repeats operations that a lost connection interrupted, and its watches remain."""

    # -- stop ----------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Make the controller move leaderships to other brokers, and begin to follow no further leader."""
        if self._fetchers is not None and self._config.controlled_shutdown_enable:
            self._fetchers.finish()
        await self._controlled_shutdown.run()

    def stop(self) -> None:
        """Stop all work with ZooKeeper and with other brokers."""
        if self._isr_check is not None and self._isr_check.active():
            self._isr_check.cancel()
        if self._fetchers is not None:
            self._fetchers.close()
        self.first_metadata.stop()
        self._isr_changes.stop()
        self._peers.close()
        if self._login is not None:
            self._login.stop()
        self.controller_requests.close()
        self._marker_channels.close()
        self._verification_channels.close()
        self._events.stop()
        if self._opened is not None:
            self._opened.controller.stop()

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before."""
        return -1 if self._opened is None else self._opened.controller.broker_epoch
