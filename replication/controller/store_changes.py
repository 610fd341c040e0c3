"""Changes of the store by other brokers: a watch submits an event, which compares the nodes with the image.

Every broker watches the controller's node (`controller`) and the notices of changed configurations. The controller
watches registrations and topics, too. Each read sets its watch again. A store that no other session can change is not
watched.
"""

import logging
from collections.abc import Callable
from typing import Final

from odradek.replication.controller.context import ControllerContext
from odradek.replication.controller.events import EventKind, Work
from odradek.replication.controller.topic_changes import TopicChanges
from odradek.replication.controller.topic_deletion import TopicDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.metadata.loader import load_broker, load_config, load_topic, read_node
from odradek.replication.metadata.store import NoNodeError, StoreDamagedError, WatchEvent

logger = logging.getLogger(__name__)

Post = Callable[[EventKind, str, Work[None]], None]
_TOPIC_PREFIX: Final = "topics/"
_BROKER_PREFIX: Final = "brokers/"


class StoreChanges:
    """Sets watches, and brings the image up to date when they fire. `post` submits an event.

    Except for the watches' callbacks, methods are called within an event of the controller.
    """

    def __init__(
        self, context: ControllerContext, changes: TopicChanges, deletion: TopicDeletion, post: Post
    ) -> None:
        self._context = context
        self._changes = changes
        self._deletion = deletion
        self._post = post
        self._last_config_change = ""

    async def watch_all(self) -> None:
        """Set the watches that the role of this broker requires, before the image is loaded."""
        store = self._context.store
        if not store.is_shared:
            return
        notices = await store.get_children(znodes.CONFIG_CHANGES, self._on_configs)
        self._last_config_change = max(notices, default="")
        if self._context.is_active:
            await store.get_children(znodes.BROKER_IDS, self._on_brokers)
            await store.get_children(znodes.TOPICS, self._on_topics)

    def _on_brokers(self, event: WatchEvent) -> None:
        self._post(EventKind.BROKERS, "registrations changed", self._follow_brokers)

    def _on_topics(self, event: WatchEvent) -> None:
        self._post(EventKind.TOPICS, "topics changed", self._follow_topics)

    def _on_configs(self, event: WatchEvent) -> None:
        self._post(EventKind.CONFIGURATION, "configurations changed", self._follow_configs)

    async def _follow_brokers(self) -> None:
        """Elect leaders after brokers failed or started. A broker with a larger epoch than before did both."""
        if not self._context.is_active:
            return
        store, image = self._context.store, self._context.image
        registered: dict[int, BrokerMetadata] = {}
        for name in await store.get_children(znodes.BROKER_IDS, self._on_brokers):
            try:
                registered[int(name)] = await load_broker(store, name)
            except NoNodeError:
                logger.debug("a registration is gone again broker=%s", name)
        known = dict(image.brokers)
        started = [broker for broker_id, broker in registered.items() if known.get(broker_id) != broker]
        failed = [
            broker_id
            for broker_id, broker in known.items()
            if broker_id not in registered or registered[broker_id].epoch != broker.epoch
        ]
        if failed:
            logger.info("brokers failed ids=%s", failed)
            for broker_id in failed:
                image.remove_broker(broker_id)
            await self._changes.elect_leaders("brokers failed")
        if started:
            logger.info("brokers started or changed ids=%s", [broker.broker_id for broker in started])
            for broker in started:
                image.put_broker(broker)
            await self._changes.elect_leaders("brokers started")

    async def _follow_topics(self) -> None:
        """Add topics that other brokers created. A topic whose nodes others deleted stays: its logs are kept."""
        if not self._context.is_active:
            return
        store, image = self._context.store, self._context.image
        names = set(await store.get_children(znodes.TOPICS, self._on_topics))
        deleted = {*await store.get_children(znodes.DELETE_TOPICS), *self._deletion.unfinished}
        if missing := image.topics.keys() - names:
            logger.warning("topics are no longer in the metadata store and are kept: %s", ", ".join(sorted(missing)))
        created = 0
        for name in sorted(names - image.topics.keys() - deleted):
            try:
                topic = await load_topic(store, name)
                configs = await self._read_config(znodes.topic_config_path(name))
            except (NoNodeError, StoreDamagedError) as error:
                logger.error("a topic of the metadata store cannot be loaded topic=%s: %s", name, error)
                continue
            image.put_topic(await self._changes.begin_partitions(topic))
            image.put_topic_config(name, configs)
            created += 1
        if created:
            logger.info("added topics that others created count=%d", created)
            await self._changes.elect_leaders("topics were created")

    async def _follow_configs(self) -> None:
        """Read the configurations to which new notices point."""
        store, image = self._context.store, self._context.image
        notices = await store.get_children(znodes.CONFIG_CHANGES, self._on_configs)
        changed = set()
        for name in notices:
            if name > self._last_config_change:
                self._last_config_change = name
                path = f"{znodes.CONFIG_CHANGES}/{name}"
                try:
                    changed.add(await read_node(store, path, lambda node: znodes.decode_config_change(node.data)))
                except (NoNodeError, StoreDamagedError) as error:
                    logger.error("a notice of a changed configuration cannot be read: %s", error)
        revision = [await self._follow_config(entity_path) for entity_path in sorted(changed)]
        if any(revision):
            image.publish()

    async def _follow_config(self, entity_path: str) -> bool:
        """Read one configuration; return whether the image had a different one."""
        image = self._context.image
        configs = await self._read_config(f"/config/{entity_path}")
        if entity_path.startswith(_TOPIC_PREFIX):
            topic = znodes.topic_of_config(entity_path.removeprefix(_TOPIC_PREFIX))
            if topic in image.topics and configs != image.topic_configs.get(topic, {}):
                image.put_topic_config(topic, configs)
                return True
        elif entity_path.startswith(_BROKER_PREFIX):
            broker_id = znodes.broker_of_config(entity_path.removeprefix(_BROKER_PREFIX))
            if configs != image.broker_configs.get(broker_id, {}):
                image.put_broker_config(broker_id, configs)
                return True
        return False

    async def _read_config(self, path: str) -> dict[str, str]:
        try:
            return await load_config(self._context.store, path)
        except NoNodeError:
            return {}
