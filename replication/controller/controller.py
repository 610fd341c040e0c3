"""The controller: one event loop for its election, and for every change of topics, partitions and configurations.

An event writes its change to the store, in one transaction that also checks that this broker is still the controller.
Then it changes the controller's own image and publishes the change. Brokers apply these updates in order to the
metadata image from which they answer requests. `topic_admin` and `configs.admin` validate requests.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs.changes import ConfigChanges
from odradek.replication.controller.context import ControllerContext, ControllerRole
from odradek.replication.controller.epoch_floor import FoundEpochs, LeastEpoch
from odradek.replication.controller.events import EventKind, EventLoop, Executor, ImmediateExecutor, T, Work
from odradek.replication.controller.registration import Registration
from odradek.replication.controller.store_changes import StoreChanges
from odradek.replication.controller.topic_changes import NewTopic, TopicChanges, split_into_batches
from odradek.replication.controller.topic_deletion import TopicDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, TopicMetadata
from odradek.replication.metadata.loader import load_controller, read_image, read_node
from odradek.replication.metadata.reload import reload_image
from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NodeExistsError,
    NodeStat,
    Operation,
    OperationResult,
    SessionEvent,
    SetData,
    TransactionError,
    WatchEvent,
)
from odradek.replication.metadata.updates import MetadataPublisher

logger = logging.getLogger(__name__)


class Controller:
    """The controller of one broker, active or on standby. Its public coroutines submit events and return their result.

    context: role, epoch and image
    changes, configs, deletion: the changes that events make
    """

    def __init__(
        self, store: MetadataStore, publisher: MetadataPublisher, broker_id: int, now_ms: Callable[[], int]
    ) -> None:
        self._events = EventLoop(ImmediateExecutor())
        self.context = ControllerContext(store, publisher, broker_id, now_ms, self._events.executor.pause)
        self.deletion = TopicDeletion(self.context, self._retry_deletions)
        self.changes = TopicChanges(self.context, self.deletion)
        self.configs = ConfigChanges(self.context)
        self._store_changes = StoreChanges(self.context, self.changes, self.deletion, self._events.post)
        self._registration = Registration(store, now_ms)
        self._broker: BrokerMetadata | None = None
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
    def broker_id(self) -> int:
        """The id of this broker."""
        return self.context.broker_id

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

    async def pause(self) -> None:
        """Let other work run if the time slice of this reactor iteration is used up."""
        await self.context.pause()

    def check_active(self) -> None:
        """Raise KafkaError NOT_CONTROLLER unless this broker is the controller."""
        self.context.check_active()

    async def request(self, description: str, work: Work[T]) -> T:
        """Process a part of an admin request as an event. `work` must not submit events itself."""
        return await self._events.submit(EventKind.ADMIN_REQUEST, description, work)

    # Start and end

    async def start(
        self,
        registration: BrokerMetadata,
        *,
        new_leader_epochs: bool = False,
        found_epochs: FoundEpochs | None = None,
    ) -> None:
        """Register the broker, take part in the election of the controller, and load the image.

        If this broker becomes the controller it elects leaders for partitions without a live one. `new_leader_epochs`
        begins a new leader epoch for every partition that this broker leads. It is required after an unclean stop:
        later records must not be mistaken for lost records at the same offsets. Epochs are not below `found_epochs`,
        those of the log directories: a store that was restored from a backup lacks the last ones. Topics whose deletion
        was begun are not in the image of brokers; call `finish_deletions` once replicas follow the image. Raises
        StartError.
        """

        async def work() -> None:
            self._broker = registration
            await self._registration.register(registration)
            await self._elect()
            await self._store_changes.watch_all()
            await read_image(self.store, self.image)
            if self.is_active:
                fenced = self.broker_id if new_leader_epochs else None
                least_epoch = self._least_epoch(found_epochs or FoundEpochs())
                await self.changes.elect_leaders("the controller starts", fenced=fenced, least_epoch=least_epoch)
            else:
                self.image.publish()

        await self._events.submit(EventKind.SESSION, "start", work)

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
            await self.store.renew()
            await self._registration.register(self._broker)
            await self._elect()
            await self._load_again("a new session began")

        await self._events.submit(EventKind.SESSION, "rejoin", work)
        await self.finish_deletions()

    async def _load_again(self, why: str) -> None:
        """Bring watches and image up to date, and act as the controller if this broker was elected."""
        await self._store_changes.watch_all()
        await reload_image(self.store, self.image, self.pause)
        if self.is_active:
            await self.changes.elect_leaders(why)

    def _on_controller(self, event: WatchEvent) -> None:
        self._events.post(EventKind.CONTROLLER, "controller changed", self._follow_controller)

    async def _follow_controller(self) -> None:
        """Follow another controller, or become the controller if there is none."""
        stat = await self._watched_controller()
        if stat is None or stat.ephemeral_owner != self.store.session_id:
            self.context.resign("the controller's node is gone or belongs to another broker")
        if await self._take_role(stat):
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

        If the outcome of a claim was unknown, this session may own the node without having the role.
        """
        if stat is None:
            return await self._claim()
        if self.context.role is not ControllerRole.STANDBY or stat.ephemeral_owner != self.store.session_id:
            return False
        epoch, version = await read_node(
            self.store, znodes.CONTROLLER_EPOCH, lambda node: (int(node.data or b"0"), node.stat.version)
        )
        self.context.begin_epoch(epoch, version)
        return True

    async def _claim(self) -> bool:
        """Become the controller in a new epoch; return False if another broker was faster or this broker is stopped."""
        if self.context.role is ControllerRole.STOPPED:
            return False
        epoch, version = await read_node(
            self.store, znodes.CONTROLLER_EPOCH, lambda node: (int(node.data or b"0") + 1, node.stat.version)
        )
        claim = znodes.encode_controller(self.broker_id, self.context.now_ms())
        try:
            results = await self.store.transaction(
                [
                    Create(znodes.CONTROLLER, claim, ephemeral=True),
                    SetData(znodes.CONTROLLER_EPOCH, b"%d" % epoch, version),
                ]
            )
        except TransactionError as error:
            if isinstance(error.cause, NodeExistsError | BadVersionError):
                return False
            raise
        stat = results[1]
        assert stat is not None
        assert not isinstance(stat, str)
        self.context.begin_epoch(epoch, stat.version)
        return True

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
            self._events.drop(KafkaError(ErrorCode.NOT_CONTROLLER, "the session with the metadata store expired"))
            self.context.resign("the session with the metadata store expired")

    async def reload(self) -> None:
        """Bring the image up to date: the outcome of a change was unknown, and the store can be read again."""

        async def work() -> None:
            await self._follow_controller()
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
        """Record that this broker's replicas of these partitions (topic, index) lost their log directory (KIP-112)."""
        await self._events.submit(EventKind.REPLICAS, "take offline", lambda: self.changes.take_offline(failed))

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
            await self._events.submit(EventKind.DELETION, "resume deletions", self.deletion.resume)
            await self._finish(self.deletion.unfinished)

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
