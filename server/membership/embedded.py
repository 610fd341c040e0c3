"""A broker that is alone in its cluster, with an embedded metadata store in one of its log directories.

Updates of its controller are applied to its metadata cache directly, and its replicas follow the cache. Its first start
may adopt the topics that the log directories contain.
"""

from collections.abc import Iterable, Sequence

from twisted.internet.defer import Deferred

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.log.log_manager import LogManager
from odradek.log.storage.found_directories import KnownPartitions, format_names
from odradek.replication.controller.admin.features import Features
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.events import EventLoop
from odradek.replication.controller.registration import StartError, prepare_store
from odradek.replication.controller.states.epoch_floor import FoundEpochs
from odradek.replication.controller.topics.ids import random_topic_id
from odradek.replication.metadata import znodes
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata
from odradek.replication.metadata.loader import read_image
from odradek.replication.metadata.store import MetadataStore
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, is_topic_name
from odradek.replication.metadata.updates import LocalPublisher
from odradek.replication.replicas.adoption import Adoption
from odradek.server.config import BrokerConfig
from odradek.server.coordinators.producer_id_blocks import ProducerIdBlocks
from odradek.server.coordinators.producer_id_floor import settle_producer_ids
from odradek.server.environment import Environment
from odradek.server.membership.clients import ClientMetadata
from odradek.server.membership.interface import OpenedStore, StoredTopics
from odradek.server.security.password_encoder import PasswordEncoder
from odradek.server.services import Services
from odradek.server.store_location import FoundMetadata, find_kraft_metadata, open_store, read_metas
from odradek.server.work.delayed_tasks import DelayedTasks
from odradek.server.work.metadata_pacing import ReactorPacing


async def lay_out_store(
    environment: Environment, directories: Sequence[str], store: MetadataStore, *, begins_adoption: bool = False
) -> str:
    """Create the nodes that the store lacks, and return the cluster's id.

    begins_adoption: an empty store also gets the mark of an adoption in progress. Raises StartError if log directories
    belong to another cluster.
    """
    ids = (meta.cluster_id for _, meta in read_metas(environment.fs, directories))
    known = next(filter(None, ids), "")
    cluster_id = known or znodes.uuid_text(random_topic_id(environment.random_source))
    return await prepare_store(store, cluster_id, is_new=not known, begins_adoption=begins_adoption)


class EmbeddedMembership:
    """Membership of the only broker. `metadata` is its metadata cache."""

    in_cluster = False
    replication = None
    cluster = None

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        directories: Sequence[str],
        metadata: ClusterMetadata,
        pacing: ReactorPacing,
        delayed_tasks: DelayedTasks,
    ) -> None:
        self.assignments = metadata
        self._config = config
        self._environment = environment
        self._directories = list(directories)
        self._pacing = pacing
        self._delayed_tasks = delayed_tasks
        self._adoption: Adoption | None = None
        self._kraft: FoundMetadata | None = None
        self._opened: OpenedStore | None = None
        self._clients: ClientMetadata | None = None
        self._client_events = EventLoop(pacing)
        self._features = Features()

    @property
    def clients(self) -> ClientMetadata:
        """The metadata about clients."""
        assert self._clients is not None
        return self._clients

    @property
    def _store(self) -> MetadataStore:
        assert self._opened is not None
        return self._opened.store

    @property
    def _controller(self) -> Controller:
        assert self._opened is not None
        return self._opened.controller

    async def open(self) -> OpenedStore:
        """Open the store, or create it. Raises StartError, MetadataStoreError."""
        config, environment = self._config, self._environment
        store, is_adopting = await open_store(environment, self._directories, adopts=config.log_dirs_adopt)
        try:
            cluster_id = await lay_out_store(environment, self._directories, store, begins_adoption=is_adopting)
            publisher = LocalPublisher(self.assignments)
            controller = Controller(store, publisher, config.node_id, environment.now_ms, environment.monotonic_ms)
            controller.deletion.run_later = self._delayed_tasks.run_later
            if is_adopting:
                self._kraft = self._find_kraft_metadata()
                kraft = None if self._kraft is None else self._kraft.metadata
                self._adoption = Adoption(controller, kraft, config.explicit)
        except BaseException:
            await store.close()
            raise
        self._opened = OpenedStore(store, controller, cluster_id)
        self._clients = ClientMetadata(config, environment, store, self._client_events)
        return self._opened

    def _find_kraft_metadata(self) -> FoundMetadata | None:
        directories = list(self._directories)
        if self._config.metadata_log_dir is not None:
            directories.append(self._environment.absolute_path(self._config.metadata_log_dir))
        found = find_kraft_metadata(self._environment.fs, list(dict.fromkeys(directories)))
        if found is not None:
            self._encrypt_passwords(found.metadata.broker_configs)
        return found

    def _encrypt_passwords(self, broker_configs: dict[int | None, dict[str, str]]) -> None:
        """Encrypt the passwords of this broker, which are not encrypted in Apache Kafka's metadata."""
        config = self._config
        own = BrokerConfigs(
            config.node_id, config, ClusterMetadata(), PasswordEncoder(config.password_encoder_settings)
        )
        for broker_id in broker_configs.keys() & {None, config.node_id}:
            broker_configs[broker_id] = own.adopt(broker_configs[broker_id])

    async def load_topics(self) -> StoredTopics:
        """Load the topics in the store, and in the metadata to be adopted."""
        stored, adoption = ClusterMetadata(), self._adoption
        await read_image(self._store, stored)
        if adoption is not None:
            adoption.add_kraft_metadata(stored)

        def topic_id(topic: str, partition: int) -> bytes | None:
            if stored.partition(topic, partition) is None:
                return None
            if adoption is not None and not adoption.has_partition(topic, partition):
                return None
            return stored.topics[topic].topic_id

        are_complete = adoption is None or adoption.kraft is not None
        return StoredTopics(stored, KnownPartitions(topic_id, are_complete, is_topic_name))

    async def make_features(self) -> Features:
        """Load the finalized features."""
        await self._features.load(self._store)
        return self._features

    def make_producer_ids(self, logs: LogManager) -> ProducerIdManager:
        """Return the allocation of producer ids in the store, also recorded in the log directories."""
        blocks = ProducerIdBlocks(self._store, self._config.node_id, logs, self._environment.reactor)
        return ProducerIdManager(blocks.allocate, Deferred.fromCoroutine, blocks.ready)

    async def join(self, services: Services, registration: BrokerMetadata) -> None:
        """Become the controller, elect leaders, and adopt topics.

        No await suspends before the store is paced, at the end.
        """
        logs, controller = services.logs, self._controller
        was_clean = all(directory.was_clean for directory in logs.directories.values())
        previous_epoch = max(directory.previous_broker_epoch for directory in logs.directories.values())
        await controller.start(
            registration,
            new_leader_epochs=not was_clean,
            found_epochs=FoundEpochs(logs.found_logs(), previous_epoch),
        )
        if self._adoption is not None:
            await self._adopt(services, self._adoption)
        services.producer_ids.begin_at(
            await settle_producer_ids(
                self._store,
                logs,
                self._config.node_id,
                self.broker_epoch,
                self._environment.now_ms(),
                self._environment.run_all,
                imported_next_id=0 if self._kraft is None else self._kraft.metadata.next_producer_id,
            )
        )
        if self._adoption is not None:
            if self._kraft is not None:
                await self._adopt_metadata_of_clients(self._kraft)
                self._mark_adopted(self._kraft, logs.directories)
            await self._adoption.finish()
        await controller.finish_deletions()
        await controller.take_offline(services.replicas.offline)
        # From now on metadata changes are applied in slices, between the requests of clients.
        services.replicas.run_steps = self._pacing.run_to_stop
        services.replicas.make_waiter = self._pacing.waiter
        controller.run_on(self._pacing)
        self._store.pace(self._pacing)
        await self.clients.load()
        self.clients.delete_expired_tokens(self._delayed_tasks, lambda: True)

    def _mark_adopted(self, kraft: FoundMetadata, directories: Iterable[str]) -> None:
        """Record durably that Apache Kafka's metadata is adopted. Blocks; raises OSError.

        If the power failed before the adoption is finished, it would be repeated without that metadata. Partitions that
        are not in it must have been renamed durably as stray: they would be adopted.
        """
        from odradek.replication.metadata.kraft_metadata import mark_adopted

        fs = self._environment.fs
        for directory in directories:
            fs.sync_directory(directory)
        mark_adopted(fs, kraft.log_directory, kraft.metadata.end_offset)

    async def _adopt_metadata_of_clients(self, kraft: FoundMetadata) -> None:
        from odradek.server.membership.security_adoption import adopt_security

        await adopt_security(self._store, kraft.metadata.security, self._config, self._environment.now_ms)
        if kraft.metadata.client_metrics:
            from odradek.server.telemetry.subscriptions import adopt_subscriptions

            await adopt_subscriptions(self._store, kraft.metadata.client_metrics, self._environment.now_ms)

    async def _adopt(self, services: Services, adoption: Adoption) -> None:
        """Add the topics found in the log directories to the store.

        Raises StartError if a log directory failed, because it may contain more topics, or if a partition cannot be
        read, because its topic id and epochs are unknown.
        """
        failed = [directory for directory in services.logs.directories.values() if directory.failure is not None]
        for directory in failed:
            raise StartError(f"topics are adopted only if every log directory can be read: {directory.failure}")
        if refused := services.logs.refused_paths():
            raise StartError(
                f"topics are adopted only if every partition can be read: {format_names(refused)}; repair it, or move "
                "it out of log.dirs"
            )
        found = services.logs.found_logs()
        await adoption.adopt(
            found,
            lambda: random_topic_id(self._environment.random_source),
            lambda topic: services.topics.default_configs(topic),
            lambda topic, found: self._count_partitions(services.logs, topic, found),
        )
        for log in found:
            if services.metadata.partition(log.topic, log.partition) is None:
                services.logs.mark_stray(log.topic, log.partition)

    def _count_partitions(self, logs: LogManager, topic: str, found: int) -> int:
        """Return the number of partitions of an adopted topic, given the number that was found."""
        if topic == GROUP_METADATA_TOPIC:
            configured = self._config.offsets_topic_num_partitions
        elif topic == TRANSACTION_STATE_TOPIC:
            configured = self._config.transaction_state_log_num_partitions
        else:
            return found
        # Imported here because only an adoption needs this module and the coordinators' records that it imports.
        from odradek.server.coordinators.partition_count import count_partitions

        return count_partitions(topic, found, configured, [log for log in logs.all_logs() if log.topic == topic])

    async def take_offline(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Write and publish that these partitions lost their log directory."""
        await self._controller.take_offline(partitions)

    async def rejoin(self) -> None:
        """Begin a new session. The session of an embedded store expires only in tests."""
        await self._controller.rejoin()
        await self._features.load(self._store)
        await self.clients.load()

    async def reload(self) -> None:
        """Load everything again."""
        await self._controller.reload()
        await self._features.load(self._store)
        await self.clients.load()

    def update_config(self, config: BrokerConfig) -> None:
        """Do nothing: there is no connection to another broker."""

    async def leave(self) -> None:
        """Do nothing: there is no other broker."""

    def stop(self) -> None:
        """Stop the controller and the changes of metadata about clients."""
        self._client_events.stop()
        if self._opened is not None:
            self._opened.controller.stop()

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration in the image; -1 before."""
        me = self.assignments.brokers.get(self._config.node_id)
        return -1 if me is None else me.epoch
