"""Changes of the store by other brokers: a watch submits an event, which compares the nodes with the image.

Every broker watches the controller's node (`controller`) and the notices of changed configurations. The controller
watches registrations and topics, too; in a cluster also the assignment of each topic, marks of deleted topics, and the
notices of failed log directories and of ISRs that brokers of an old version changed. Each read sets its watch again. A
store that no other session can change is not watched.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar

from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.context import ControllerContext
from odradek.replication.controller.events import EventKind, Work
from odradek.replication.controller.restarts import RestartMarks
from odradek.replication.controller.topics.changes import TopicChanges
from odradek.replication.controller.topics.deletion import TopicDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.change_notices import make_config_notices
from odradek.replication.metadata.image import BrokerMetadata, TopicMetadata
from odradek.replication.metadata.loader import (
    StateWrites,
    load_brokers,
    load_config_if_any,
    load_topic,
    load_topics,
    read_node,
    read_versions,
)
from odradek.replication.metadata.reload import update_image
from odradek.replication.metadata.store import (
    Delete,
    Node,
    NoNodeError,
    SetData,
    StoreDamagedError,
    TransactionError,
    WatchEvent,
    WatchKind,
)
from odradek.replication.metadata.znodes import Restart

logger = logging.getLogger(__name__)

T = TypeVar("T")
Post = Callable[[EventKind, str, Work[None]], None]
_TOPIC_PREFIX: Final = "topics/"
_BROKER_PREFIX: Final = "brokers/"


class StoreChanges:
    """Sets watches, and brings the image up to date when they fire. `post` submits an event.

    Except for the watches' callbacks, methods are called within an event of the controller.

    find_reassigned: called with the name of a topic that can be read again, whose reassignments go on
    """

    def __init__(
        self,
        context: ControllerContext,
        changes: TopicChanges,
        deletion: TopicDeletion,
        post: Post,
        make_topic_id: Callable[[str], bytes],
        publish_again: Callable[[], None],
    ) -> None:
        self.find_reassigned: Callable[[str], None] = lambda name: None
        self._make_topic_id = make_topic_id
        self._publish_again = publish_again
        self._context = context
        self._changes = changes
        self._deletion = deletion
        self._post = post
        self._config_notices = make_config_notices(context.store, self._on_configs, logging.ERROR)
        self._watched_topics: set[str] = set()
        self._restarts = RestartMarks(context)
        # The image has a change of the registrations or replicas, and leaders are not elected yet.
        self._is_election_due = False
        # Brokers that have registered since the last election after a change of the registrations.
        self._started: set[int] = set()
        # Brokers that have failed since the last election after a change of the registrations that succeeded.
        self._unfollowed: set[int] = set()

    async def watch_all(self) -> None:
        """Set the watches that the role of this broker requires, before the image is loaded."""
        store = self._context.store
        if not store.is_shared:
            return
        await self._config_notices.skip()
        if self._context.is_active:
            await store.get_children(znodes.BROKER_IDS, self._on_brokers)
            await store.get_children(znodes.TOPICS, self._on_topics)
            if self._context.in_cluster:
                await self._watch_as_controller()

    async def _watch_as_controller(self) -> None:
        """Set the further watches of the controller of a cluster, and drop notices from before its election."""
        store = self._context.store
        for path, watch in ((znodes.LOG_DIR_EVENTS, self._on_log_dirs), (znodes.ISR_CHANGES, self._on_isrs)):
            await store.ensure_path(path)
            await self._drop_notices(path, await store.get_children(path, watch))
        await store.get_children(znodes.DELETE_TOPICS, self._on_deletions)
        for name in await store.get_children(znodes.BROKER_IDS):
            await store.exists(f"{znodes.BROKER_IDS}/{name}", self._on_brokers)
        self._watched_topics.clear()

    async def load_image(self, writes: StateWrites) -> None:
        """Load the image as a new controller of a cluster, and watch the assignments of its topics.

        `writes` receives the transactions of the partitions' states.
        """
        context = self._context
        self._unfollowed.clear()
        await self._restarts.read_for_takeover()
        await update_image(
            context.store,
            context.image,
            context.pause,
            retain_offline=False,
            # The deletion of such a topic waits for the end of its reassignment, which needs leaders.
            retain_reassigned=True,
            # Their marks are about to be refused.
            retain_marked=not self._deletion.is_enabled(),
            writes=writes,
            watch=self._on_topic,
        )
        self._watched_topics.update(context.image.topics)
        await self._load_registrations()

    async def _load_registrations(self) -> None:
        """Bring the registrations of the image, and what their marks state, up to date as a new controller.

        After the expiry of all sessions brokers register while the image is loaded: marks that were read before would
        not have them.
        """
        context, image = self._context, self._context.image
        registered = await self._read_registrations()
        for broker_id in image.brokers.keys() - registered.keys():
            image.remove_broker(broker_id)
        for broker_id, broker in registered.items():
            if image.brokers.get(broker_id) != broker:
                image.put_broker(broker)
        context.restarted.update(self._restarts.find_unfollowed(Restart.LOST, Restart.LOSSY))
        context.lost.update(self._restarts.find_unfollowed(Restart.LOST))
        for broker in registered.values():
            self._set_first_epoch(broker)

    def _set_first_epoch(self, broker: BrokerMetadata) -> None:
        first_epoch = self._restarts.find_first_epoch(broker)
        if first_epoch is None:
            self._context.first_epochs.pop(broker.broker_id, None)
        else:
            self._context.first_epochs[broker.broker_id] = first_epoch

    async def _watch_topics(self, names: Collection[str]) -> None:
        """Watch the assignments of topics that are not watched yet, and follow those that have changed before."""
        self._watched_topics.intersection_update(names)
        new = [name for name in names if name not in self._watched_topics]
        paths = {znodes.topic_path(name): name for name in new}
        versions = await read_versions(self._context.store, paths, self._context.pause, self._on_topic)
        for path, version in versions.items():
            name = paths[path]
            self._watched_topics.add(name)
            if version > 0 and name in self._context.image.topics:
                self._follow_topic_later(name)

    async def _drop_notices(self, path: str, names: Sequence[str]) -> None:
        await self._context.delete_nodes([Delete(f"{path}/{name}") for name in names])

    async def _read_notices(self, path: str, names: Sequence[str], decode: Callable[[Node], T]) -> list[T]:
        """Return the notices that can be read."""
        notices = []
        for name in names:
            try:
                notices.append(await read_node(self._context.store, f"{path}/{name}", decode))
            except (NoNodeError, StoreDamagedError) as error:
                logger.error("a notice cannot be read path=%s/%s: %s", path, name, error)
        return notices

    def _on_brokers(self, event: WatchEvent) -> None:
        self._post(EventKind.BROKERS, "registrations changed", self.follow_brokers)

    def _on_topics(self, event: WatchEvent) -> None:
        self._post(EventKind.TOPICS, "topics changed", self._follow_topics)

    def _on_configs(self, event: WatchEvent) -> None:
        self._post(EventKind.CONFIGURATION, "configurations changed", self.follow_configs)

    def _on_topic(self, event: WatchEvent) -> None:
        name = event.path.removeprefix(f"{znodes.TOPICS}/")
        if event.kind is WatchKind.CHANGED:
            self._follow_topic_later(name)
        else:
            self._watched_topics.discard(name)

    def _follow_topic_later(self, name: str) -> None:
        self._post(EventKind.TOPICS, "the assignment of a topic changed", partial(self._follow_topic, name))

    def _on_deletions(self, event: WatchEvent) -> None:
        self._post(EventKind.DELETION, "topics were marked for deletion", self._follow_deletions)

    def _on_log_dirs(self, event: WatchEvent) -> None:
        self._post(EventKind.REPLICAS, "log directories failed", self._follow_log_dirs)

    def _on_isrs(self, event: WatchEvent) -> None:
        self._post(EventKind.REPLICAS, "brokers of an old version changed ISRs", self._follow_isrs)

    async def end_takeover(self) -> None:
        """Delete the marks of restarts: the new controller has elected leaders with regard to them."""
        self._is_election_due = False
        self._started.clear()
        await self._restarts.delete()

    async def follow_all(self) -> None:
        """Follow all watched nodes, and elect leaders.

        An event that failed may have changed the image already, and its watch does not fire again.
        """
        self._is_election_due = True
        await self.follow_brokers()
        self._watched_topics.clear()
        await self._follow_topics()
        await self._follow_deletions()
        await self._follow_log_dirs()
        await self._follow_isrs()

    async def follow_brokers(self) -> None:
        """Elect leaders after brokers failed or started. A broker with a larger epoch than before did both."""
        if not self._context.is_active:
            return
        image = self._context.image
        registered = await self._read_registrations()
        known = dict(image.brokers)
        started = [broker for broker_id, broker in registered.items() if known.get(broker_id) != broker]
        failed = [
            broker_id
            for broker_id, broker in known.items()
            if broker_id not in registered or registered[broker_id].epoch != broker.epoch
        ]
        if failed:
            logger.info("brokers failed ids=%s", failed)
            self._is_election_due = True
            self._unfollowed.update(failed)
            lossy = self._restarts.find(Restart.LOST, Restart.LOSSY)
            again = {one for one in failed if one in registered and not self._restarts.has_continued(registered[one])}
            self._context.restarted.update(lossy & set(failed))
            # They may lack records, or will when they return, of topics that cannot be read now.
            failed_or_again = again.union(one for one in failed if one not in registered)
            self._context.failed_in_term.update(failed_or_again)
            for broker_id in failed:
                image.remove_broker(broker_id)
            self._context.shutting_down.difference_update(failed)
            await self._changes.forget_offline(failed)
        if started:
            logger.info("brokers started or changed ids=%s", [broker.broker_id for broker in started])
            self._is_election_due = True
            lost = self._restarts.find(Restart.LOST)
            for broker in started:
                image.put_broker(broker)
                self._started.add(broker.broker_id)
                self._set_first_epoch(broker)
                if broker.broker_id in self._unfollowed and not self._restarts.has_continued(broker):
                    self._context.restarted.add(broker.broker_id)
                if broker.broker_id in lost:
                    # Other members of the ISR are preferred to it, also if they have not returned.
                    self._context.restarted.add(broker.broker_id)
                    self._context.lost.add(broker.broker_id)
        if self._is_election_due:
            await self._changes.elect_leaders("brokers failed" if failed else "brokers started")
            self._is_election_due = False
            self._unfollowed.clear()
        if self._deletion.replicas is not None:
            await self._deletion.replicas.resume_on(sorted(self._started))
        self._started.clear()
        await self._restarts.delete()

    async def _read_registrations(self) -> dict[int, BrokerMetadata]:
        """Read the marks of restarts, and the registrations to which they apply, by broker id."""
        store = self._context.store
        # Only brokers of a cluster change the data of their registration.
        watch = self._on_brokers if self._context.in_cluster else None
        await self._restarts.read()
        while True:
            names = await store.get_children(znodes.BROKER_IDS, self._on_brokers)
            registered = {broker.broker_id: broker for broker in await load_brokers(store, names, watch)}
            # A broker may have registered since its mark was looked for.
            if registered.items() <= self._context.image.brokers.items() or not await self._restarts.read():
                return registered

    async def _follow_topics(self) -> None:
        """Add topics that other brokers created. A topic whose nodes others deleted stays: its logs are kept."""
        if not self._context.is_active:
            return
        store, image = self._context.store, self._context.image
        stored = set(await store.get_children(znodes.TOPICS, self._on_topics))
        if self._context.in_cluster:
            await self._watch_topics(stored)
        deleted = {*await store.get_children(znodes.DELETE_TOPICS), *self._deletion.unfinished}
        if missing := image.topics.keys() - stored:
            logger.warning("topics are no longer in the metadata store and are kept: %s", ", ".join(sorted(missing)))
        names = sorted(stored - image.topics.keys() - deleted)
        created = []
        writes: StateWrites = {}
        topics = await load_topics(store, names, self._context.pause, writes=writes)
        found = []
        for topic in topics:
            configs = await load_config_if_any(store, znodes.topic_config_path(topic.name))
            try:
                found.append((await self._with_id(topic), configs))
            except TransactionError as error:
                logger.error("a topic that another broker created was removed topic=%s: %s", topic.name, error)
        # From here to `_remove_failed` nothing may fail: the repeated event does not load topics of the image again.
        for topic, configs in found:
            image.put_topic(topic)
            image.put_topic_config(topic.name, configs)
            created.append(topic.name)
        corrected = [topic.name for topic, _ in found if any(partition.isr for partition in topic.partitions)]
        if corrected:
            # Their nodes could not be read before. Their replicas are not new, as they would be in a publication of
            # changes: a broker that lost the log of one must not create an empty one.
            self._context.begin_publications()
            self._publish_again()
        if created:
            logger.info("added topics that others created count=%d", len(created))
            await self._remove_failed(corrected, writes)
            for name in corrected:
                await self._context.pause()
                self.find_reassigned(name)
            await self._changes.elect_leaders("topics were created", topics=created)

    async def _remove_failed(self, names: Sequence[str], writes: StateWrites) -> None:
        """Follow the failures and restarts of brokers for topics that could not be read when these happened.

        If that fails, the image does not have the topics, and the repeated event loads them again.
        """
        if not names:
            return
        try:
            await self._changes.remove_failed("a topic can be read again", writes, names)
        except Exception:
            for name in names:
                self._context.image.forget_topic(name)
            raise

    async def _with_id(self, topic: TopicMetadata) -> TopicMetadata:
        """Return a topic with an id, which a broker before Kafka 2.8 did not give it, or such a tool removed."""
        if not self._context.in_cluster or topic.topic_id != ZERO_UUID:
            return topic
        topic = topic._replace(topic_id=self._make_topic_id(topic.name))
        path = znodes.topic_path(topic.name)
        await self._context.write([SetData(path, await self._context.encode_topic(topic))])
        return topic

    async def complete_topics(self) -> None:
        """Give ids to the topics of the image that have none."""
        for topic in [topic for topic in self._context.image.topics.values() if topic.topic_id == ZERO_UUID]:
            # It is replaced by another topic, which has no configuration.
            configs = self._context.image.topic_configs.get(topic.name, {})
            self._context.image.put_topic(await self._with_id(topic))
            self._context.image.put_topic_config(topic.name, configs)

    async def _follow_topic(self, name: str) -> None:
        """Begin partitions that others added to a topic, and restore its id if they removed it."""
        context, image = self._context, self._context.image
        if not context.is_active:
            return
        current = image.topics.get(name)
        if current is None:
            # Its node could not be read before. The watch of it has fired, and is set again.
            self._watched_topics.discard(name)
            await self._follow_topics()
            return
        stat = await context.store.exists(znodes.topic_path(name))
        try:
            stored = await load_topic(context.store, name, context.pause, self._on_topic)
        except (NoNodeError, StoreDamagedError) as error:
            logger.error("a topic of the metadata store cannot be loaded topic=%s: %s", name, error)
            return
        has_id = stored.topic_id != ZERO_UUID
        count = len(current.partitions)
        if stored.topic_id in (current.topic_id, ZERO_UUID) and len(stored.partitions) > count:
            logger.info("others added partitions topic=%s partitions=%d", name, len(stored.partitions))
            current = current._replace(partitions=current.partitions + stored.partitions[count:])
            image.put_topic(current)
        if not has_id and stat is not None:
            await self._restore_id(current, stat.version)
        if len(current.partitions) > count:
            await self._changes.elect_leaders("partitions were added", topics=[name])

    async def _restore_id(self, topic: TopicMetadata, version: int) -> None:
        """Write a topic's node, which a tool from before Kafka 2.8 has written without the topic's id (KAFKA-14190).

        The next controller would give it another id, with which brokers begin with empty logs.
        """
        logger.warning("a tool removed the id of a topic, and it is restored topic=%s", topic.name)
        data = await self._context.encode_topic(topic)
        try:
            await self._context.write([SetData(znodes.topic_path(topic.name), data, version)])
        except TransactionError as error:
            # It was written again, perhaps before the watch was set.
            logger.info("the node of a topic has changed topic=%s: %s", topic.name, error)
            self._follow_topic_later(topic.name)

    async def _follow_deletions(self) -> None:
        """Delete topics that others marked."""
        if not self._context.is_active:
            return
        names = await self._context.store.get_children(znodes.DELETE_TOPICS, self._on_deletions)
        if await self._deletion.refuse_marks():
            # A new controller does not load a topic that was marked meanwhile.
            await self._follow_topics()
            return
        await self._deletion.follow_marks(names)
        await self._deletion.finish(self._deletion.unfinished)

    async def _follow_log_dirs(self) -> None:
        """Send LeaderAndIsr to brokers of which a log directory failed: their responses have the offline replicas."""
        if not self._context.is_active or self._context.propagation is None:
            return
        path = znodes.LOG_DIR_EVENTS
        names = await self._context.store.get_children(path, self._on_log_dirs)
        brokers = await self._read_notices(path, names, lambda node: znodes.decode_log_dir_event(node.data))
        for broker_id in sorted(set(brokers)):
            logger.warning("a log directory failed broker=%d", broker_id)
            self._context.propagation.resend_roles(broker_id)
        await self._drop_notices(path, names)

    async def _follow_isrs(self) -> None:
        """Publish ISRs that brokers with an inter-broker protocol before 2.7 wrote themselves."""
        if not self._context.is_active:
            return
        path = znodes.ISR_CHANGES
        names = await self._context.store.get_children(path, self._on_isrs)
        notices = await self._read_notices(path, names, lambda node: znodes.decode_isr_change(node.data))
        partitions = [partition for notice in notices for partition in notice]
        if partitions:
            await self._changes.read_again(dict.fromkeys(topic for topic, _ in partitions))
            self._context.image.publish()
        await self._drop_notices(path, names)

    async def follow_configs(self) -> None:
        """Read the configurations to which new notices point. The notices remain new until that has succeeded."""
        changed, is_changed = await self._config_notices.read(), False
        try:
            for entity_path in changed:
                is_changed |= await self._follow_config(entity_path)
        finally:
            if is_changed:
                self._context.image.publish()
        self._config_notices.finish()

    async def _follow_config(self, entity_path: str) -> bool:
        """Read one configuration; return whether the image had a different one."""
        image = self._context.image
        configs = await load_config_if_any(self._context.store, f"/config/{entity_path}")
        if entity_path.startswith(_TOPIC_PREFIX):
            topic = znodes.topic_of_config(entity_path.removeprefix(_TOPIC_PREFIX))
            # In a cluster the image of a standby does not follow topics.
            if self._context.in_cluster or (
                topic in image.topics and configs != image.topic_configs.get(topic, {})
            ):
                image.put_topic_config(topic, configs)
                return True
        elif entity_path.startswith(_BROKER_PREFIX):
            broker_id = znodes.broker_of_config(entity_path.removeprefix(_BROKER_PREFIX))
            if configs != image.broker_configs.get(broker_id, {}):
                image.put_broker_config(broker_id, configs)
                return True
        return False
