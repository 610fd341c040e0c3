"""The controller: one event loop for its election, and for every change of topics, partitions and configurations.

An event writes its change to the store, in one transaction that also checks that this broker is still the controller.
Then it changes the controller's own image and publishes the change. Brokers apply these updates in order to the
metadata image from which they answer requests. The modules of `admin` validate requests.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from odradek.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from odradek.replication.controller.configs.changes import ConfigChanges
from odradek.replication.controller.context import ControllerContext, ControllerRole, as_kafka_error
from odradek.replication.controller.events import EventKind, EventLoop, EventTimes, Executor, ImmediateExecutor, T, Work
from odradek.replication.controller.partitions.alter_partition import AlterPartitionProcessor
from odradek.replication.controller.partitions.controlled_shutdown import ControlledShutdownProcessor
from odradek.replication.controller.partitions.elections import Elections
from odradek.replication.controller.partitions.operator_requests import OperatorRequests
from odradek.replication.controller.partitions.reassignment import Reassignments
from odradek.replication.controller.propagation.propagation import Propagation, ReplicasOfBroker
from odradek.replication.controller.registration import Registration
from odradek.replication.controller.repetition import Repetition
from odradek.replication.controller.restarts import continue_epochs
from odradek.replication.controller.states.assignment import RandomSource
from odradek.replication.controller.states.epoch_floor import FoundEpochs, LeastEpoch
from odradek.replication.controller.store_changes import StoreChanges
from odradek.replication.controller.topics.changes import NewTopic, TopicChanges, split_into_batches
from odradek.replication.controller.topics.deletion import TopicDeletion
from odradek.replication.controller.topics.ids import random_topic_id
from odradek.replication.controller.topics.replica_deletion import ReplicaDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, TopicMetadata
from odradek.replication.metadata.loader import StateWrites, load_controller, read_image, read_node
from odradek.replication.metadata.producer_id_blocks import allocate_block
from odradek.replication.metadata.reload import reload_image, update_configs
from odradek.replication.metadata.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    Operation,
    OperationResult,
    SessionEvent,
    SessionExpiredError,
    SetData,
    TransactionError,
    WatchEvent,
)
from odradek.replication.metadata.updates import MetadataPublisher
from odradek.replication.metadata.znodes import Restart

logger = logging.getLogger(__name__)

ABSTENTION_MS: Final = 1_000
"""Time without claims after a broker could not take over as the controller."""

REMOVAL_INTERVAL_MS: Final = 10_000
"""Least time between two removals of a controller's node by one broker, because its address refused connections.

Brokers whose connections to each other are rejected by the network would otherwise replace each other continually.
"""


class Controller:
    """The controller of one broker, active or on standby. Its public coroutines submit events and return their result.

    context: role, epoch and image
    changes, configs, deletion, elections, reassignments: the changes that events make
    publisher, propagation: in a cluster the same object; with an embedded store there is no propagation
    random: source of ids for topics without one, in a cluster
    find_topic_id: returns the id of such a topic in this broker's metadata or logs, None if there is none
    """

    def __init__(
        self,
        store: MetadataStore,
        publisher: MetadataPublisher,
        broker_id: int,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        propagation: Propagation | None = None,
        random: RandomSource | None = None,
    ) -> None:
        self._events = EventLoop(ImmediateExecutor())
        self._monotonic_ms = monotonic_ms
        self.context = ControllerContext(
            store, publisher, broker_id, now_ms, self._events.executor.pause, propagation
        )
        self.context.on_resigned = self._on_resigned
        if propagation is not None:
            propagation.listener = self
        replica_deletion = None
        if propagation is not None:
            replica_deletion = ReplicaDeletion(propagation, self._on_replicas_deleted, self.pause)
        self.deletion = TopicDeletion(self.context, self._retry_deletions, replica_deletion)
        self.changes = TopicChanges(self.context, self.deletion)
        self.configs = ConfigChanges(self.context)
        self._alter_partition = AlterPartitionProcessor(self.context, self.changes)
        self._controlled_shutdown = ControlledShutdownProcessor(self.context, self.changes)
        self._random = random
        self.find_topic_id: Callable[[str], bytes | None] = lambda name: None
        self._store_changes = StoreChanges(
            self.context,
            self.changes,
            self.deletion,
            self._events.post,
            self._make_topic_id,
            self.on_publication_failed,
        )
        self.elections = Elections(self.context, self.changes, self._events.post)
        self.reassignments = Reassignments(self.context, self.changes, self._events.post)
        self._operator_requests = OperatorRequests(
            self.context, self.reassignments, self.elections, self._events.post
        )
        self.reassignments.on_finished.append(self._resume_deletions)
        self._event_repetition = self._make_repetition("repeat what a failed event has left undone", self._catch_up)
        self._publication_repetition = self._make_repetition("publish everything again", self._publish_again)
        self.reassignments.on_failure = self._events.on_failure = self._repeat_events
        if propagation is not None:
            self.reassignments.follow_brokers = self._store_changes.follow_brokers
            self._store_changes.find_reassigned = self.reassignments.find_pending
        self._registration = Registration(store, now_ms)
        self._broker: BrokerMetadata | None = None
        self._restart = Restart.LOSSY
        self._ended_sessions = 0
        self._abstains = False
        # False for REMOVAL_INTERVAL_MS after this broker removed the node of a controller that refused connections.
        self._may_remove = True
        store.add_session_listener(self._on_session)

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self.context.store

    @property
    def image(self) -> ClusterMetadata:
        """The controller's own image, on which its decisions are based."""
        return self.context.image

    @property
    def event_times(self) -> EventTimes | None:
        """The times of events; None unless `measure_events` was called."""
        return self._events.times

    def measure_events(self, clock: Callable[[], float]) -> EventTimes:
        """Begin to measure the times of events."""
        times = self._events.times = EventTimes(clock)
        return times

    @property
    def broker_id(self) -> int:
        """The id of this broker."""
        return self.context.broker_id

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before the first."""
        return self._registration.epoch

    @property
    def is_active(self) -> bool:
        """True while this broker is the controller."""
        return self.context.is_active

    @property
    def epoch(self) -> int:
        """The last epoch in which this broker was the controller."""
        return self.context.epoch

    def run_on(self, executor: Executor) -> None:
        """Process further events on `executor`, between the requests of clients."""
        self._events.executor = executor
        self.context.pause = executor.pause
        if self.context.propagation is not None:
            self.context.propagation.executor = executor

    async def pause(self) -> None:
        """Let other work run if the time slice of this reactor iteration is used up."""
        await self.context.pause()

    def check_active(self) -> None:
        """Raise KafkaError NOT_CONTROLLER unless this broker is the controller."""
        self.context.check_active()

    async def request(self, description: str, work: Work[T]) -> T:
        """Process a part of an admin request as an event. `work` must not submit events itself.

        Raises KafkaError REQUEST_TIMED_OUT if the session ends, and otherwise what `work` raises.
        """
        try:
            return await self._events.submit(EventKind.ADMIN_REQUEST, description, work)
        except SessionExpiredError as error:
            raise as_kafka_error(error) from error

    # Start and end

    async def start(
        self,
        registration: BrokerMetadata,
        *,
        restart: Restart = Restart.LOSSY,
        new_leader_epochs: bool = False,
        found_epochs: FoundEpochs | None = None,
    ) -> None:
        """Register the broker, take part in the election of the controller, and load the image.

        A standby of a cluster loads only configurations. If this broker becomes the controller it elects leaders for
        partitions without a live one. With an embedded store the image still has topics whose deletion was begun; call
        `finish_deletions` once replicas follow the image. Raises StartError, MetadataStoreError, KafkaError.

        `restart` applies to a broker of a cluster, the other parameters to one with an embedded store.
        `new_leader_epochs` begins a new leader epoch for every partition that this broker leads. It is required after
        an unclean stop: later records must not be mistaken for lost records at the same offsets. Epochs are not below
        `found_epochs`, those of the log directories: a store that was restored from a backup lacks the last ones.
        """

        async def work() -> None:
            self._broker, self._restart = registration, restart
            await self._registration.register(registration, restart)
            if self.context.in_cluster:
                await self._start_in_cluster()
                return
            await self._elect()
            await self._store_changes.watch_all()
            await read_image(self.store, self.image)
            if self.is_active:
                fenced = self.broker_id if new_leader_epochs else None
                least_epoch = self._least_epoch(found_epochs or FoundEpochs())
                await self.changes.elect_leaders("the controller starts", fenced=fenced, least_epoch=least_epoch)
                await self.reassignments.resume()
                await self._operator_requests.execute()
            else:
                self.image.publish()

        await self._events.submit(EventKind.SESSION, "start", work)

    async def _start_in_cluster(self) -> None:
        """Take part in the election of the controller, and load the configurations, as a broker that has registered.

        The broker starts nevertheless if its session expires: call `rejoin` then, as after every other expiry.
        """
        try:
            await self._elect()
            if self.is_active:
                try:
                    await self._take_over("the controller starts")
                    return
                except KafkaError as error:
                    if not self._is_end_of_term(error):
                        raise
                    # Another broker became the controller meanwhile. This one starts nevertheless.
            await self._store_changes.watch_all()
            await update_configs(self.store, self.image, self.pause)
        except SessionExpiredError as error:
            if not self._is_end_of_term(error):
                raise
            logger.warning("the session with the metadata store expired while the broker started")

    def _is_end_of_term(self, error: Exception) -> bool:
        """Return whether an error means that this broker is not the controller any more, and goes on as a broker.

        The session of a broker that stops ends as well; its start must fail then.
        """
        if isinstance(error, SessionExpiredError):
            return self.context.role is not ControllerRole.STOPPED
        return isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER

    def _least_epoch(self, found: FoundEpochs) -> LeastEpoch:
        """Return the least leader epochs of all partitions. If the store is behind the log directories, log it."""
        image = self.image
        is_behind = found.is_ahead_of(image, image.brokers[self.broker_id].epoch)
        if is_behind and image.topics:
            logger.warning(
                "the metadata store is older than the logs; all partitions begin leader epochs above those in the logs "
                "topics=%d",
                len(image.topics),
            )
        return found.least_epoch(image, self.context.now_ms(), store_is_behind=is_behind)

    async def rejoin(self) -> None:
        """Begin a new session after the last one expired: register again and take part in the election.

        Raises MetadataStoreError, KafkaError, StartError; call it again then.
        """

        async def work() -> None:
            assert self._broker is not None
            # An earlier call may have begun this session, and what its caller did next has failed.
            has_taken_over = self.is_active
            await self.store.renew()
            await self._registration.register(self._broker, self._restart)
            await self._elect()
            if self.context.in_cluster and self.is_active:
                if not has_taken_over:
                    await self._take_over("a new session began")
            else:
                await self._load_again("a new session began")

        await self._events.submit(EventKind.SESSION, "rejoin", work)
        await self.finish_deletions()

    async def _load_again(self, why: str) -> None:
        """Bring watches and image up to date, and act as the controller if this broker was elected."""
        await self._store_changes.watch_all()
        if self.context.in_cluster and not self.is_active:
            await update_configs(self.store, self.image, self.pause)
            return
        await reload_image(self.store, self.image, self.pause)
        if self.is_active:
            await self.changes.elect_leaders(why)
            await self.reassignments.resume()
            await self._operator_requests.execute()

    async def _take_over(self, why: str) -> None:
        """Begin to act as the controller of a cluster.

        If that fails, resign, and take part in no election for a while, so that another broker is elected.
        As in Kafka, dead replicas are removed from ISRs, and dead leaders from their partitions, before leaders are
        elected.
        """
        try:
            await self._store_changes.watch_all()
            await self.deletion.refuse_marks()
            writes: StateWrites = {}
            self.context.offline_brokers.clear()
            await self._store_changes.load_image(writes)
            await self._store_changes.complete_topics()
            await self.changes.remove_failed(why, writes)
            await self.changes.elect_leaders(why)
            await self._store_changes.end_takeover()
            await self.deletion.restart()
            await self.reassignments.resume()
            await self._operator_requests.execute()
        except SessionExpiredError:
            raise
        except Exception as error:
            # The caller logs the error, or ends the start with it.
            logger.warning("this broker cannot take over as the controller and resigns error=%s", error)
            self._abstains = True
            self.deletion.run_later(ABSTENTION_MS, self._stop_abstaining)
            try:
                if self.is_active:
                    await self.context.write([Delete(znodes.CONTROLLER)])
            finally:
                self.context.resign("it could not take over")
            raise

    async def _stop_abstaining(self) -> None:
        self._abstains = False
        # Posted, so that it is repeated if it fails: there may be no controller, whose node would change.
        self._events.post(EventKind.CONTROLLER, "take part in elections again", self._follow_controller)

    # Repetition of failed events and publications

    def _make_repetition(self, description: str, work: Work[None]) -> Repetition:
        return Repetition(
            # The server sets it later.
            lambda delay_ms, task: self.deletion.run_later(delay_ms, task),
            lambda: self._events.post(EventKind.CONTROLLER, description, work),
            self._monotonic_ms,
        )

    def _repeat_events(self) -> None:
        """Schedule the repetition of what a failed event has left undone, in a cluster."""
        if self.context.in_cluster:
            self._event_repetition.schedule()

    async def _catch_up(self) -> None:
        """Follow everything in the store again."""
        await self._follow_controller()
        if self.is_active:
            await self._store_changes.follow_all()
            await self.reassignments.repeat()
            await self._operator_requests.execute()
        await self._store_changes.follow_configs()
        if not self._event_repetition.is_scheduled:
            self._event_repetition.succeed()

    async def _publish_again(self) -> None:
        """Publish everything again, and repeat the requests that this drops."""
        if self.is_active:
            self.context.publish_all()
            await self.deletion.resume_replicas()
            await self.reassignments.repeat()

    # Responses of brokers

    def on_publication_failed(self) -> None:
        """Publish everything again later: some broker may lack a role, metadata, or the request to delete a replica.

        Elections that fail meanwhile are repeated earlier.
        """
        self._publication_repetition.schedule()

    def on_controller_moved(self) -> None:
        """Read the controller's node again: a broker has received a request of a later controller."""
        self._events.post(EventKind.CONTROLLER, "a broker has a later controller", self._follow_controller)

    def on_replicas_failed(self, broker_id: int, broker_epoch: int, replicas: ReplicasOfBroker) -> None:
        """Take the replicas of a broker offline whose log directory failed."""

        async def work() -> None:
            # Another member of an ISR may have restarted without its last records.
            await self._store_changes.follow_brokers()
            if self._is_registered(broker_id, broker_epoch):
                await self.changes.take_offline_on(broker_id, self._name_replicas(replicas))

        self.context.offline_brokers.add(broker_id)
        self._events.post(EventKind.REPLICAS, "replicas of a broker failed", work)

    def on_replicas_online(self, broker_id: int, broker_epoch: int, replicas: ReplicasOfBroker) -> None:
        """Count those replicas of a broker as online again that were offline."""

        async def work() -> None:
            if self._is_registered(broker_id, broker_epoch):
                await self.changes.take_online_on(broker_id, self._name_replicas(replicas))

        if broker_id in self.context.offline_brokers:
            self._events.post(EventKind.REPLICAS, "replicas of a broker are online", work)

    def _is_registered(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether this is the controller and a broker has this epoch: the next one is another process."""
        broker = self.image.brokers.get(broker_id)
        return self.is_active and broker is not None and broker.epoch == broker_epoch

    def _name_replicas(self, replicas: ReplicasOfBroker) -> list[tuple[str, int]]:
        topics = self.image.topics_by_id
        return [(topics[topic_id].name, index) for topic_id, index in replicas if topic_id in topics]

    # Brokers whose processes have ended

    def on_broker_refused(self, broker: BrokerMetadata) -> None:
        """Move the leaderships of a broker whose address refuses connections. Its session expires later."""

        async def work() -> None:
            await self._store_changes.follow_brokers()
            if self._is_registered(broker.broker_id, broker.epoch):
                logger.warning("a broker refuses connections; others take its leaderships broker=%d", broker.broker_id)
                await self._controlled_shutdown.evacuate(broker.broker_id, "the broker refuses connections")

        self._events.post(EventKind.BROKERS, "a broker refuses connections", work)

    def on_controller_refused(self, broker_id: int) -> None:
        """Let the brokers elect another controller than one whose address refuses connections.

        Its session expires later. Without its node it is no longer the controller, even if it is alive. The event may
        wait for the store, and the broker may have restarted and become the controller in a later epoch until then.
        """
        refused = broker_id, self.image.controller_epoch

        async def work() -> None:
            if self.is_active:
                return
            if not self._may_remove:
                logger.warning("the controller refuses connections; its session must expire broker=%d", broker_id)
                return
            version = await read_node(self.store, znodes.CONTROLLER_EPOCH, lambda node: node.stat.version)
            if await load_controller(self.store) != refused:
                return
            logger.warning("the controller refuses connections; another is elected broker=%d", broker_id)
            if await self._remove_controller(version):
                self._may_remove = False
                self.deletion.run_later(REMOVAL_INTERVAL_MS, self._allow_removal)

        self._events.post(EventKind.CONTROLLER, "the controller refuses connections", work)

    async def _allow_removal(self) -> None:
        self._may_remove = True

    # Requests of brokers

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change ISRs on behalf of their leader. Errors are in the response."""
        try:
            return await self._events.submit(
                EventKind.REPLICAS, "alter partition", lambda: self._alter_partition.process(request)
            )
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code)

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Move the leaderships of a broker that is about to stop. Errors are in the response."""

        async def work() -> ControlledShutdownResponse:
            await self._store_changes.follow_brokers()
            return await self._controlled_shutdown.process(request)

        try:
            return await self._events.submit(EventKind.BROKERS, "controlled shutdown", work)
        except KafkaError as error:
            return ControlledShutdownResponse(error_code=error.code)
        except MetadataStoreError as error:
            logger.error("registrations cannot be followed: %s", error)
            return ControlledShutdownResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        """Reserve a block of producer ids for a broker. Errors are in the response."""
        try:
            block = await self._events.submit(
                EventKind.ADMIN_REQUEST, "allocate producer ids", lambda: self._allocate_producer_ids(request)
            )
        except KafkaError as error:
            return AllocateProducerIdsResponse(error_code=error.code)
        except MetadataStoreError as error:
            logger.error("cannot reserve a block of producer ids broker=%d: %s", request.broker_id, error)
            return AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))

    async def _allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> range:
        self.check_active()
        broker = self.image.brokers.get(request.broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
        if request.broker_epoch != broker.epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {request.broker_id} has registered again")
        return await allocate_block(self.store, request.broker_id)

    def _on_replicas_deleted(self, topic: str) -> None:
        async def work() -> None:
            if self.is_active:
                await self.deletion.finish([topic])

        self._events.post(EventKind.DELETION, "remove a deleted topic", work)

    def _make_topic_id(self, name: str) -> bytes:
        """Return the id that a topic has had, otherwise a new one."""
        known = self.find_topic_id(name)
        if known is not None and known not in self.image.topics_by_id:
            return known
        if self._random is None:
            raise AssertionError("a topic without an id needs a source of random ids")
        while True:
            topic_id = random_topic_id(self._random)
            if topic_id not in self.image.topics_by_id:
                return topic_id

    # Election

    def _on_controller(self, event: WatchEvent) -> None:
        self._events.post(EventKind.CONTROLLER, "controller changed", self._follow_controller)

    async def _follow_controller(self) -> None:
        """Follow another controller, or become the controller if there is none."""
        stat = await self._watched_controller()
        if stat is None or stat.ephemeral_owner != self.store.session_id:
            self.context.resign("the controller's node is gone or belongs to another broker")
        if await self._take_role(stat):
            if self.context.in_cluster:
                await self._take_over("the controller changed")
            else:
                await self._load_again("the controller changed")
                await self.deletion.resume()
            await self.deletion.finish(self.deletion.unfinished)
            return
        controller = await load_controller(self.store)
        if controller != (self.image.controller_id, self.image.controller_epoch):
            self.image.put_controller(*controller)
            self.image.publish()

    async def _watched_controller(self) -> NodeStat | None:
        return await self.store.exists(znodes.CONTROLLER, self._on_controller if self.store.is_shared else None)

    async def _elect(self) -> None:
        """Become the controller unless there is one, and watch its node."""
        await self._take_role(await self._watched_controller())

    async def _take_role(self, stat: NodeStat | None) -> bool:
        """Become the controller if its node is missing or belongs to this session; return False if nothing changed.

        If the outcome of a claim was unknown, this session may own the node without having the role. The epoch is that
        of the claim only if both nodes were written in one transaction; otherwise this session gives up the node, as it
        does if it resigned in this epoch: the cause of the resignation would recur.
        """
        if stat is None:
            return await self._claim()
        if self.context.role is not ControllerRole.STANDBY or stat.ephemeral_owner != self.store.session_id:
            return False
        sessions = self._ended_sessions
        epoch, version, written = await read_node(
            self.store,
            znodes.CONTROLLER_EPOCH,
            lambda node: (int(node.data or b"0"), node.stat.version, node.stat.modified_id),
        )
        if written == stat.created_id and epoch != self.context.epoch:
            return self._begin_epoch(epoch, version, sessions)
        logger.warning("this broker owns the node of a controller that it is not, and removes it; another is elected")
        await self._remove_controller(version)
        return False

    async def _remove_controller(self, version: int) -> bool:
        """Remove the controller's node; return False if it is gone.

        An election since the controller epoch with this version was read has changed the version: the node is that of
        another broker, and stays.
        """
        try:
            await self.store.transaction([Check(znodes.CONTROLLER_EPOCH, version), Delete(znodes.CONTROLLER)])
        except TransactionError as error:
            if isinstance(error.cause, BadVersionError | NoNodeError):
                return False
            raise
        return True

    def _on_resigned(self) -> None:
        """Read the controller's node again: while this session owns it, no other broker can become the controller."""
        if self.context.in_cluster:
            self._events.post(EventKind.CONTROLLER, "this broker resigned", self._follow_controller)

    def _begin_epoch(self, epoch: int, version: int, sessions: int) -> bool:
        """Become the controller, unless the session of the claim has ended or this broker was stopped."""
        if sessions != self._ended_sessions or self.context.role is not ControllerRole.STANDBY:
            return False
        self.context.begin_epoch(epoch, version)
        return True

    async def _claim(self) -> bool:
        """Become the controller in a new epoch; return False if another broker was faster or this broker is stopped."""
        if self.context.role is not ControllerRole.STANDBY or self._abstains:
            return False
        sessions = self._ended_sessions
        while True:
            epoch, version = await read_node(
                self.store, znodes.CONTROLLER_EPOCH, lambda node: (int(node.data or b"0") + 1, node.stat.version)
            )
            claim: list[Operation] = [
                Create(
                    znodes.CONTROLLER,
                    znodes.encode_controller(self.broker_id, self.context.now_ms()),
                    ephemeral=True,
                ),
                SetData(znodes.CONTROLLER_EPOCH, b"%d" % epoch, version),
            ]
            try:
                results = await self.store.transaction([*claim, *await continue_epochs(self.store, epoch)])
            except TransactionError as error:
                is_of_marks = error.index >= len(claim)
                if is_of_marks and isinstance(error.cause, BadVersionError | NoNodeError):
                    # The parent of the marks of restarts has changed since it was read; no broker is the controller.
                    continue
                if not is_of_marks and isinstance(error.cause, NodeExistsError | BadVersionError):
                    return False
                raise
            break
        stat = results[1]
        assert stat is not None
        assert not isinstance(stat, str)
        return self._begin_epoch(epoch, stat.version, sessions)

    def stop(self) -> None:
        """Resign and process no further event: the store is about to be closed."""
        self._events.stop()
        self.context.stop()

    async def close(self) -> None:
        """Resign and remove the registration, so that the cluster does not wait until the session expires."""
        self.stop()
        mine: list[Operation] = []
        try:
            for path in (znodes.CONTROLLER, znodes.broker_path(self.broker_id)):
                stat = await self.store.exists(path)
                if stat is not None and stat.ephemeral_owner == self.store.session_id:
                    mine.append(Delete(path))
            await self.store.transaction(mine)
        except MetadataStoreError as error:
            logger.warning("could not remove the registration broker=%d: %s", self.broker_id, error)

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._ended_sessions += 1
            self._events.drop(KafkaError(ErrorCode.NOT_CONTROLLER, "the session with the metadata store expired"))
            self.context.resign("the session with the metadata store expired")

    async def reload(self) -> None:
        """Bring the image up to date: the outcome of a change was unknown, and the store can be read again."""

        async def work() -> None:
            await self._follow_controller()
            # In a cluster an interrupted operation is repeated, and the controller retains its watches.
            if not self.context.in_cluster or not self.is_active:
                await self._load_again("the store can be read again")

        await self._events.submit(EventKind.SESSION, "reload", work)
        await self.finish_deletions()

    # Topics and partitions

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, KafkaError]:
        """Create topics; return the errors of those that were not created."""
        errors: dict[str, KafkaError] = {}
        for batch in split_into_batches(topics, lambda new: len(new.topic.partitions)):
            errors |= await self.request("create topics", partial(self.changes.create, batch))
        return errors

    async def add_partitions(self, grown: TopicMetadata, old_count: int) -> None:
        """Write and publish a topic that has more partitions than before. Raises KafkaError."""
        await self.request("add partitions", lambda: self.changes.add_partitions(grown, old_count))

    async def put_partitions(self, topics: Sequence[TopicMetadata]) -> None:
        """Write and publish new leaders and ISRs. Raises KafkaError, MetadataStoreError."""
        await self._events.submit(EventKind.REPLICAS, "put partitions", lambda: self.changes.put_partitions(topics))

    async def take_offline(self, failed: Sequence[tuple[str, int]]) -> None:
        """Record that this broker's replicas of these partitions (topic, index) lost their log directory (KIP-112).

        In a cluster this writes a notice. The controller sends LeaderAndIsr for all replicas of this broker, whose
        response has those that are offline. Raises MetadataStoreError in a cluster.
        """
        if self.context.in_cluster:
            if failed:
                event = znodes.encode_log_dir_event(self.broker_id)
                await self.store.ensure_path(znodes.LOG_DIR_EVENTS)
                await self.store.create(f"{znodes.LOG_DIR_EVENTS}/log_dir_event_", event, sequential=True)
            return
        await self._events.submit(EventKind.REPLICAS, "take offline", lambda: self.changes.take_offline(failed))

    async def rebalance_leaders(self, max_imbalance_percent: int) -> None:
        """Return leadership to preferred replicas, see `Elections.rebalance`. Raises KafkaError, MetadataStoreError."""
        await self._events.submit(
            EventKind.REPLICAS, "rebalance leaders", lambda: self.elections.rebalance(max_imbalance_percent)
        )

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Delete topics; return the errors of those that remain."""
        ids = {name: self.image.topics[name].topic_id for name in names if name in self.image.topics}
        errors: dict[str, KafkaError] = {}
        for batch in self.deletion.batches(names):
            errors |= await self.request("delete topics", partial(self.deletion.delete, batch, ids))
        try:
            await self._finish([name for name in names if name not in errors])
        except KafkaError as error:
            # The marks are in the store: the topics are deleted, and the next controller removes the rest.
            logger.info("the removal of deleted topics is left to the next controller: %s", error)
        return errors

    async def finish_deletions(self) -> None:
        """Finish deletions of topics that were interrupted by a stop of the controller."""
        if self.is_active:
            try:
                await self._events.submit(EventKind.DELETION, "resume deletions", self.deletion.resume)
                await self._finish(self.deletion.unfinished)
            except (KafkaError, SessionExpiredError) as error:
                if not self._is_end_of_term(error):
                    raise
                # The next controller finds the marks. A broker can start, or begin a new session, nevertheless.

    def _resume_deletions(self) -> None:
        """Continue deletions that waited for a reassignment."""
        if self.deletion.has_blocked:
            self._events.post(EventKind.DELETION, "resume blocked deletions", self.deletion.resume_unblocked)

    async def _retry_deletions(self) -> None:
        await self._finish(self.deletion.unfinished)

    async def _finish(self, names: Sequence[str]) -> None:
        """Remove deleted topics from the store, each in its own event, so that other events can run in between."""
        for name in names:
            if not await self._events.submit(
                EventKind.DELETION, "remove a deleted topic", partial(self.deletion.finish, [name])
            ):
                break

    # Configurations

    async def put_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Write and publish a topic's explicit configuration. Raises KafkaError."""
        await self.request("put topic configuration", lambda: self.configs.put_topic_config(topic, configs))

    async def put_broker_config(self, broker_id: int | None, configs: Mapping[str, str]) -> None:
        """Write and publish a broker's dynamic configuration; with None the cluster-wide default. Raises KafkaError."""
        await self.request("put broker configuration", lambda: self.configs.put_broker_config(broker_id, configs))

    async def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Write a change that does not concern the image. Raises as `ControllerContext.write`."""
        return await self.request("write", lambda: self.context.write(operations))
