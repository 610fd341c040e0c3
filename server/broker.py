"""A broker: creates its parts, starts them in order and stops them in reverse order.

Start: bind the listeners, open the metadata store, lock the log directories and load the logs, register, and take part
in the election of the controller; then accept clients. Stop: move leaderships to other brokers, close connections,
flush the logs and record the clean stop, and close the metadata store.
"""

import gc
import logging
import math
import signal
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek import __version__
from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.management.loading import DuplicateLogError
from odradek.log.management.log_directories import AllLogDirsFailed
from odradek.log.management.settings import LogManagerSettings
from odradek.log.partition_log import PartitionLog
from odradek.log.storage import descriptors
from odradek.log.storage.file_lock import LockedError
from odradek.log.storage.filesystem import ExhaustedError
from odradek.log.storage.log_directory import META_VERSION, InconsistentMetaError
from odradek.properties import PropertySet
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Endpoint, MetadataDelta
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError, SessionEvent
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from odradek.replication.replicas.replica_manager import ReplicaManager
from odradek.replication.replicas.throttle import DirectoryMoveThrottle
from odradek.server.apis import served_apis
from odradek.server.config import BrokerConfig, Listener
from odradek.server.dispatch import Dispatch
from odradek.server.environment import Environment
from odradek.server.event_log.request_log import RequestLog
from odradek.server.fetching.cold_reads import ColdReads
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.fetching.session_cache import FetchSessionCache
from odradek.server.listeners import BrokerListeners, ListenError
from odradek.server.membership.embedded import EmbeddedMembership
from odradek.server.network.reactor import find_poll_counter, find_watchdog
from odradek.server.network.reactor import install as install_reactor
from odradek.server.network.request_measurement import RequestMeasurement
from odradek.server.preloading import preload, preload_at_once
from odradek.server.quotas.switch import QuotaSwitch
from odradek.server.security.password_encoder import PasswordEncoder
from odradek.server.services import Services
from odradek.server.stages import Stages
from odradek.server.work.clock import DelayedCall
from odradek.server.work.delayed_tasks import DelayedTasks
from odradek.server.work.flusher import Flusher
from odradek.server.work.metadata_pacing import ReactorPacing
from odradek.server.work.record_work import RecordWork
from odradek.server.work.slices import Slices

if TYPE_CHECKING:
    from odradek.server.membership.cluster import ClusterMembership
    from odradek.server.metrics.broker_metrics import BrokerMetrics

logger = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
_CATCH_UP_RETRY_S: Final = 1
_OFFLINE_REPORT_S: Final = 0.1
_PRELOAD_AFTER_S: Final = 1
"""Delay of preloading, which takes 0.2 s of CPU time and 5 MB: a broker that is stopped sooner needs none."""
_STORE_FAILURES = (MetadataStoreError, StartError)
_LOG_FAILURES = (LockedError, InconsistentMetaError, DuplicateLogError, AllLogDirsFailed, ExhaustedError)


class BrokerStartError(Exception):
    """The broker cannot start. The message is one line."""


class Broker:
    """One broker. Call `start` before or while the reactor runs, and `stop` while it runs.

    guards: the modules that authorize requests; empty without an authorizer
    has_failed: set if the start failed, or when the broker stops the reactor because no log directory is online
    watchdog: the reactor's watchdog, enabled while the broker runs; None in simulated time

    `environment` provides everything outside the broker: reactor, clock, randomness, files.
    """

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self.config = config
        self.has_failed = False
        self._environment = environment
        self._reactor = environment.reactor
        self._now_ms = environment.now_ms
        self._random = environment.random_source
        self._slices = Slices(self._reactor, environment.monotonic, environment.slice_s, environment.count_polls)
        self._image = ClusterMetadata()
        # The parts that `start` creates, in order of creation.
        self._store: MetadataStore | None = None
        self._logs: LogManager | None = None
        self._replicas: ReplicaManager | None = None
        self._services: Services | None = None
        self._fs = environment.fs
        self.listeners = BrokerListeners(
            config, environment, lambda: self._services, lambda: self._dispatch, self._preload
        )
        self._background: DelayedCall | None = None
        self.watchdog = environment.watchdog
        self._delayed_tasks = DelayedTasks(self._reactor)
        self._topic_configs: BrokerConfigs | None = None
        self._stages: Stages = ()
        self.guards: list[str] = []
        self._is_running = False
        self._is_stopping = False
        # Events between the registration and the end of the start.
        self._missed_session_event: SessionEvent | None = None
        self._has_missed_failure = False
        self._is_report_due = False
        self._leaving: Deferred[None] | None = None
        self._membership = self._make_membership()
        self._metrics: BrokerMetrics | None = None

    def _make_membership(self) -> "EmbeddedMembership | ClusterMembership":
        environment = self._environment
        pacing = ReactorPacing(
            self._reactor,
            self._slices,
            environment.monotonic,
            environment.run_in_thread,
            environment.slice_s,
            environment.count_polls,
        )
        tasks = self._delayed_tasks
        if not self.config.zookeeper_connect:
            return EmbeddedMembership(self.config, environment, self.directories, self._image, pacing, tasks)
        # Imported here because it loads the modules of a cluster, which a single broker does not need.
        from odradek.server.membership.cluster import ClusterMembership

        return ClusterMembership(self.config, environment, self.directories, self._image, pacing, tasks, self._slices)

    @property
    def services(self) -> Services:
        """The parts of a started broker. Raises RuntimeError before the logs are loaded."""
        if self._services is None:
            raise RuntimeError("the broker has not been started")
        return self._services

    @cached_property
    def _dispatch(self) -> Dispatch:
        metrics = self._metrics
        return Dispatch(
            self.services,
            self.services.apis,
            self._stages,
            self.services.quotas,
            None if metrics is None else metrics.times,
            None if metrics is None else metrics.errors,
        )

    @cached_property
    def _request_measurement(self) -> RequestMeasurement:
        return RequestMeasurement(
            RequestLog(self._environment.monotonic_ms, self._delayed_tasks.run_later),
            self._dispatch,
            self._reactor,
            lambda: (transport.connection for transport in self.listeners.connections.list_open()),
        )

    @cached_property
    def _passwords(self) -> PasswordEncoder:
        return PasswordEncoder(self.config.password_encoder_settings)

    @property
    def directories(self) -> list[str]:
        """The absolute paths of the log directories."""
        return [self._environment.absolute_path(directory) for directory in self.config.data_dirs]

    async def start(self) -> tuple[Listener, ...]:
        """Start the broker; return the advertised listeners. Raises `BrokerStartError`, with nothing left open."""
        try:
            advertised = self.listeners.bind()
            if self.config.metrics_endpoint is not None:
                self._metrics = self._open_metrics(self.config.metrics_endpoint)
            if self.config.node_id < 0:
                await self._settle_id()
            services = await self._open(advertised)
            # From here on the failure of the last log directory stops the reactor.
            services.logs.raise_if_none_is_online()
        except BaseException as error:
            is_short = self._fs.spare_descriptors() < 1
            await self.stop()
            if isinstance(error, ListenError):
                raise BrokerStartError(str(error)) from error
            if isinstance(error, (*_STORE_FAILURES, *_LOG_FAILURES, OSError)):
                hint = _describe_descriptor_limit() if is_short else ""
                raise BrokerStartError(f"{error}{hint}") from error
            raise
        services.on_levels = self._request_measurement.update
        self._request_measurement.set_threshold(services.config.request_slow_log_ms)
        self.listeners.start()
        self._is_running = True
        if self._metrics is not None:
            self._metrics.begin(services)
        # Not in this iteration, a part of which was the start.
        self._reactor.callLater(0, self._set_watchdog_threshold)
        self._run_background()
        self._handle_missed_events()
        if self.config.password_encoder_old_secret:
            Deferred.fromCoroutine(self._encrypt_passwords_again())
        return advertised

    def _open_metrics(self, endpoint: Listener) -> "BrokerMetrics":
        # Imported here because it takes 0.15 s and 8 MB.
        from odradek.server.metrics.broker_metrics import BrokerMetrics

        return BrokerMetrics(
            endpoint,
            self.config,
            self._environment,
            self.listeners,
            self._slices,
            lambda code: self._dispatch.is_served(code),
        )

    async def _encrypt_passwords_again(self) -> None:
        try:
            await self.services.config_admin.encrypt_again()
        except KafkaError as error:
            logger.error("the stored passwords are encrypted with password.encoder.old.secret: %s", error.message)

    def _handle_missed_events(self) -> None:
        """Handle the end of the session, and the failure of a log directory, after the broker had registered."""
        if self._missed_session_event is not None:
            self._on_store_session(self._missed_session_event)
        if self._has_missed_failure:
            self._take_replicas_offline()

    async def _settle_id(self) -> None:
        """Take the id from meta.properties, or generate one in ZooKeeper, before the parts that need it are made."""
        from odradek.server.broker_ids import settle_broker_id

        self.config = await settle_broker_id(self._environment, self.config)
        # The parts that were made without an id are listeners of the previous image.
        self._image = ClusterMetadata()
        self._membership = self._make_membership()

    async def stop(self) -> None:
        """Stop the broker; record a clean stop if `start` had succeeded, otherwise keep the record of the last stop."""
        has_started = self._is_running
        self._is_stopping = True
        if self._metrics is not None:
            self._metrics.begin_stop()
        if has_started:
            await self._leave()
        self._is_running = False
        if has_started:
            self._request_measurement.set_threshold(-1)
        if self.watchdog is not None:
            self.watchdog.threshold_s = math.inf
        self.listeners.stop()
        if self._metrics is not None:
            self._metrics.stop()
        self._membership.stop()
        self._slices.stop()
        if self._background is not None and self._background.active():
            self._background.cancel()
        self._delayed_tasks.stop()
        if self._services is not None:
            for coordinators in (self._services.transactions_in_use, self._services.groups_in_use):
                if coordinators is not None:
                    coordinators.stop()
        if self._replicas is not None:
            self._replicas.stop()
        if self._logs is not None:
            # A second call after a failed start must not write to log directories that are unlocked.
            logs, self._logs = self._logs, None
            logs.close(self._environment.monotonic_ms(), self._membership.broker_epoch, has_started=has_started)
        if self._store is not None:
            store, self._store = self._store, None
            try:
                await store.close()
            except MetadataStoreError as error:
                logger.warning("metadata store was not closed; the next start recovers it error=%s", error)

    async def _leave(self) -> None:
        """Move leaderships to other brokers. An error must not prevent a clean stop."""
        self._leaving = Deferred.fromCoroutine(self._membership.leave())
        try:
            await self._leaving
        except CancelledError:
            return
        except Exception:
            logger.exception("the controlled shutdown failed; leaders are elected after the stop; please report it")

    def stop_leaving(self) -> None:
        """Continue the stop without the rest of the controlled shutdown."""
        if self._leaving is not None:
            self._leaving.cancel()

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _open(self, advertised: tuple[Listener, ...]) -> Services:
        """Create the parts between the store and the handlers; return when the broker has joined its cluster."""
        membership, image = self._membership, self._image
        store, controller, image.cluster_id = await membership.open()
        self._store = store
        # After the controller's own listener, which drops its events and resigns when the session expires.
        store.add_session_listener(self._on_store_session)
        logs = await self._load_logs()
        services = self._services = await self._make_services(store, controller, logs)
        services.replicas.listeners.append(self._on_replicas)
        services.replicas.on_offline = self._on_late_failure
        image.listeners.append(self._on_metadata)
        self._set_authorizer(services)
        services.tokens = membership.clients.tokens
        services.unknown_users = membership.clients.unknown_users
        await membership.join(services, self._make_registration(advertised))
        return services

    def _set_authorizer(self, services: Services) -> None:
        """Make the authorizer, if one is configured, before the membership loads its ACLs."""
        acls = services.acls = self._membership.clients.acls
        if acls is None:
            return
        # Imported here because most brokers have no authorizer.
        from odradek.server.authorization.stage import AuthorizationStage, list_guard_modules
        from odradek.server.security.authorization.acl_authorizer import make_authorizer

        authorizer = make_authorizer(
            self.config, acls.cache, self._environment.monotonic_ms, self._delayed_tasks.run_later
        )
        self._stages = (AuthorizationStage(authorizer),)
        self.guards = list_guard_modules(services.apis.values())

    async def _make_services(self, store: MetadataStore, controller: Controller, logs: LogManager) -> Services:
        config, environment, image = self.config, self._environment, self._image
        membership = self._membership
        configs = self._topic_configs = BrokerConfigs(config.node_id, config, image, self._passwords)
        configs.listeners.append(self._on_config)
        produce_completions = CompletionQueue(self._slices)
        flusher = Flusher(logs, self._reactor, produce_completions)
        quotas = QuotaSwitch(
            config,
            self._reactor,
            environment.monotonic_ms,
            environment.monotonic,
            self._slices,
            self.listeners.quotas.limit_addresses,
        )
        membership.clients.entity_configs.listeners.append(quotas.update)
        self._replicas = ReplicaManager(
            config.node_id,
            membership.assignments,
            configs,
            logs,
            self._now_ms,
            flusher.request,
            image,
            membership.replication,
        )
        return Services(
            apis=served_apis(in_cluster=membership.in_cluster),
            cluster=membership.cluster,
            cold_reads=ColdReads(environment.run_read),
            config=config,
            configs=configs,
            controller=controller,
            entity_configs=membership.clients.entity_configs,
            client_metrics_configs=membership.clients.client_metrics,
            features=await membership.make_features(),
            fetch_sessions=FetchSessionCache(
                config.max_incremental_fetch_session_cache_slots, lambda: self._random.randrange(1, 1 << 31)
            ),
            flusher=flusher,
            iteration_end=self._reactor.write_coalescer,
            logs=logs,
            metadata=image,
            monotonic_ms=environment.monotonic_ms,
            now_ms=self._now_ms,
            produce_completions=produce_completions,
            producer_ids=membership.make_producer_ids(logs),
            random_source=self._random,
            reactor=self._reactor,
            record_work=RecordWork(self._slices, environment.run_in_thread),
            replicas=self._replicas,
            run_in_thread=environment.run_in_thread,
            slices=self._slices,
            store=store,
            quotas=quotas,
            resolver=self._reactor,
        )

    async def _load_logs(self) -> LogManager:
        """Load the logs with the ids and properties that their topics have in the metadata."""
        stored = await self._membership.load_topics()
        self._topic_configs = BrokerConfigs(self.config.node_id, self.config, stored.image, self._passwords)
        stored.image.publish()
        logs = LogManager(
            self._fs,
            self.directories,
            self._topic_configs.topic_defaults,
            self._find_topic_config,
            self.config.node_id,
            random_bytes=self._random.randbytes,
            cluster_id=self._image.cluster_id,
            meta_version=0 if self._membership.in_cluster else META_VERSION,
            may_lack_logs=self._membership.in_cluster,
            settings=LogManagerSettings.of(self.config),
            run_in_thread=self._environment.run_in_thread,
            run_all=self._environment.run_all,
            choose_jitter_ms=lambda max_ms: self._random.randrange(max_ms + 1),
            on_directory_failure=self._on_directory_failure,
            on_log_replaced=self._on_log_replaced,
            move_throttle=DirectoryMoveThrottle(self._current_config, self._environment.monotonic_ms),
            monotonic=self._environment.monotonic,
            sleep=self._environment.sleep,
            start_compaction_worker=self._environment.start_compaction_worker,
            run_compaction=self._environment.run_compaction,
        )

        logs.open(self._now_ms(), stored.known)
        self._logs = logs
        return logs

    def _current_config(self) -> PropertySet:
        return self.config if self._topic_configs is None else self._topic_configs.current

    def _find_topic_config(self, topic: str) -> LogConfig | None:
        return None if self._topic_configs is None else self._topic_configs.topic(topic)

    def _make_registration(self, advertised: tuple[Listener, ...]) -> BrokerMetadata:
        endpoints = tuple(Endpoint(one.name, one.protocol, one.host, one.port) for one in advertised)
        return BrokerMetadata(self.config.node_id, endpoints, self.config.broker_rack)

    # -- events while the broker runs ------------------------------------------------------------------------------

    def _on_metadata(self, delta: MetadataDelta) -> None:
        services = self.services
        deleted = [(topic.name, topic.topic_id) for topic in delta.deleted_topics]
        if deleted and services.groups_in_use is not None:
            services.groups_in_use.topics_deleted(deleted)
        if services.transactions_in_use is not None:
            services.transactions_in_use.metadata_changed(delta)

    def _on_replicas(self, topic: str) -> None:
        """Start and stop the coordinator shards of an internal topic after its replicas have changed their roles."""
        services = self.services
        if topic == GROUP_METADATA_TOPIC:
            services.groups.lead_only(services.replicas.list_led(topic))
        elif topic == TRANSACTION_STATE_TOPIC:
            services.transactions.lead_only(services.replicas.list_led(topic))

    def _set_watchdog_threshold(self) -> None:
        if self.watchdog is not None and self._is_running:
            self.watchdog.threshold_s = self.services.config.reactor_slow_iteration_ms / 1000

    def _on_config(self, old: PropertySet, new: PropertySet) -> None:
        assert isinstance(new, BrokerConfig)
        self.services.config = new
        self.listeners.update(new)
        self._membership.update_config(new)
        if self._is_running:
            self._set_watchdog_threshold()
            self._request_measurement.set_threshold(new.request_slow_log_ms)
        self.services.logs.update_settings(LogManagerSettings.of(new))
        # The replicas apply the new properties of their topics in steps, because there may be many topics.
        self.services.logs.default_config = self.services.configs.topic_defaults

    def _on_directory_failure(self, path: str, partitions: list[tuple[str, int]]) -> None:
        if self._replicas is not None:
            self._replicas.directory_failed(path)
        self._has_missed_failure = not self._is_running
        if self._logs is None or not self._is_running or self.has_failed:
            return
        if self._logs.online_directories:
            # In the next iteration, because the failure may have been discovered within an append.
            self._reactor.callLater(0, self._take_replicas_offline)
        else:
            logger.error("no log directory is online; stopping; check the disks and start again")
            self.has_failed = True
            if not self._is_stopping:
                self._reactor.stop()

    def _on_log_replaced(self, log: PartitionLog) -> None:
        if self._replicas is not None:
            self._replicas.log_replaced(log)

    def _on_late_failure(self) -> None:
        """Report a replica that went offline when its log was created late, together with those that follow soon."""
        if not self._is_report_due:
            self._is_report_due = True
            self._reactor.callLater(_OFFLINE_REPORT_S, self._take_replicas_offline)

    def _take_replicas_offline(self) -> None:
        self._is_report_due = False
        if self._is_running:
            Deferred.fromCoroutine(self._membership.take_offline(self.services.replicas.offline))

    def _preload(self) -> None:
        def stopped(failure: Failure) -> Failure | None:
            return None if isinstance(failure.value, SchedulerStopped) else failure

        self._slices.run(preload(self.services.apis, self.guards)).addErrback(stopped)

    def _on_store_session(self, event: SessionEvent) -> None:
        """Bring the metadata up to date after a lost connection, and begin a new session after an expired one."""
        if event is SessionEvent.DISCONNECTED:
            return
        if self._is_running:
            Deferred.fromCoroutine(self._catch_up(event))
        elif self._missed_session_event is not SessionEvent.EXPIRED:
            self._missed_session_event = event

    async def _catch_up(self, event: SessionEvent) -> None:
        """Read the metadata again: a change that failed with an error may have been made."""
        try:
            if event is SessionEvent.EXPIRED:
                await self._membership.rejoin()
            else:
                await self._membership.reload()
        except (MetadataStoreError, KafkaError, StartError) as error:
            logger.error("the metadata image is not up to date; retrying in %s s error=%s", _CATCH_UP_RETRY_S, error)
            self._reactor.callLater(_CATCH_UP_RETRY_S, self._on_store_session, event)
        except Exception:
            # Without a registration the broker would not be a member of its cluster until its next start.
            logger.exception("the metadata image is not up to date; retrying; please report it")
            self._reactor.callLater(_CATCH_UP_RETRY_S, self._on_store_session, event)

    def _run_background(self) -> None:
        try:
            self.services.quotas.remove_idle()
            self.services.remove_idle_telemetry()
            delay_ms = self.services.logs.run_due(self._now_ms())
        except Exception:
            logger.exception("background work failed and will be retried; please report it")
            delay_ms = 1000
        delay_s = min(max(delay_ms, 1) / 1000, 60.0)
        self._background = self._reactor.callLater(delay_s, self._run_background)


def _report_preloading(error: Exception | None) -> None:
    if error is not None:
        logger.error("preloading failed; clients are served nevertheless; please report it", exc_info=error)


def run(config: BrokerConfig, started_s: float) -> int:
    """Run a broker until SIGTERM or SIGINT; return the exit code. `started_s` is the monotonic start of the process."""
    reactor = install_reactor()
    _redirect_twisted_log()
    environment = Environment(reactor, watchdog=find_watchdog(reactor), count_polls=find_poll_counter(reactor))
    broker = Broker(config, environment)

    def started(advertised: tuple[Listener, ...]) -> None:
        # The objects created so far live until the end: garbage collections that skip them delay requests less.
        gc.collect()
        gc.freeze()
        # The middle generation is collected after 5,000 new objects, which takes some 1.5 ms; after 50,000 it would
        # take 25 ms. The oldest is collected after 20 million.
        gc.set_threshold(2_500, 1, 4_000)
        preload_served = partial(preload_at_once, broker.services.apis, broker.guards)
        reactor.callLater(_PRELOAD_AFTER_S, environment.run_in_thread, preload_served, _report_preloading)
        logger.info(
            "odradek started address=%s data=%s version=%s start_ms=%d",
            ",".join(listener.address for listener in advertised),
            ",".join(broker.directories),
            __version__,
            (time.monotonic() - started_s) * 1000,
        )

    def failed(failure: Failure) -> None:
        if isinstance(failure.value, BrokerStartError):
            logger.error("cannot start: %s", failure.value)
        else:
            logger.error("cannot start; please report it", exc_info=failure.value)
        broker.has_failed = True
        if reactor.running:
            reactor.stop()

    def begin() -> None:
        Deferred.fromCoroutine(broker.start()).addCallbacks(started, failed)

    def stop() -> Deferred[None]:
        # Twisted's handlers would stop the reactor again, which raises an error.
        handle_signals(partial(cast(Any, reactor).callFromThread, broker.stop_leaving))
        return Deferred.fromCoroutine(broker.stop())

    reactor.addSystemEventTrigger("before", "shutdown", stop)
    reactor.callWhenRunning(begin)
    reactor.run()
    logger.info("odradek stopped")
    # The interpreter collects garbage at exit, which takes a second for 10,000 partitions; supervisors wait for ten.
    gc.freeze()
    return EXIT_FAILED if broker.has_failed else 0


def handle_signals(action: Callable[[], object]) -> None:
    """Call `action` at each further SIGTERM or SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: action())


def _describe_descriptor_limit() -> str:
    return (
        f"; the process may open {descriptors.limit()} files and each segment of each partition needs one: raise the "
        "limit (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker)"
    )


def _redirect_twisted_log() -> None:
    """Send Twisted's own log, from warnings on, to the standard library's logging."""
    from twisted.logger import LogEvent, LogLevel, STDLibLogObserver, globalLogBeginner

    observer = STDLibLogObserver("twisted")

    def from_warnings_on(event: LogEvent) -> None:
        if event.get("log_level", LogLevel.info) >= LogLevel.warn:
            observer(event)

    # zope.interface has no types: a function of an event is an ILogObserver.
    globalLogBeginner.beginLoggingTo([from_warnings_on], redirectStandardIO=False)  # type: ignore[list-item]
