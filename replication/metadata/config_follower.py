"""Topic and broker configurations of a cluster member: loaded at start, and again when a notice points to a change.

In ZooKeeper mode any broker writes configurations, and a notice under /config/changes names the one that the
others have to read. A new topic has no notice: its configuration is read when the topic appears in the metadata cache.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from odradek.replication.metadata import znodes
from odradek.replication.metadata.change_notices import Post, make_config_notices
from odradek.replication.metadata.image import ClusterMetadata, Configs
from odradek.replication.metadata.loader import (
    NODES_PER_READ,
    catch_up,
    load_all_topic_configs,
    load_broker_configs,
    load_config_if_any,
    load_topic_configs,
)
from odradek.replication.metadata.store import MetadataStore, WatchEvent

logger = logging.getLogger(__name__)

_TOPIC_PREFIX: Final = "topics/"
_BROKER_PREFIX: Final = "brokers/"


class ConfigFollower:
    """Keeps the configurations in `cache` up to date with the store.

    The cache has a topic's configuration even before it has the topic: LeaderAndIsr may arrive before UpdateMetadata.
    """

    def __init__(self, store: MetadataStore, cache: ClusterMetadata, post: Post) -> None:
        self._store = store
        self._cache = cache
        self._post = post
        self._notices = make_config_notices(store, self._on_notices, logging.DEBUG)
        # The id of the topic that had a name before its configuration was read.
        self._read_for: dict[str, bytes] = {}

    async def start(self, topic_ids: Mapping[str, bytes]) -> None:
        """Load all configurations and watch the notices; call it again in a new session. Raises MetadataStoreError.

        `topic_ids` are the ids of topics that existed before the call. The configurations of other topics are read
        again by `load_topics`: they may belong to a topic whose deletion is not complete.
        """
        await self._notices.skip()
        # What `load_topics` has read before is read again: a later change may have one of the skipped notices.
        self._read_for = dict(topic_ids)
        topics = await load_all_topic_configs(self._store)
        brokers = await load_broker_configs(self._store)
        for name in {*self._cache.topic_configs, *topics}:
            # Otherwise `load_topics` has read it meanwhile.
            if self._read_for.get(name) == topic_ids.get(name):
                self._take_topic(name, topics.get(name, {}))
        for key in {*self._cache.broker_configs, *brokers}:
            self._take_broker(key, brokers.get(key, {}))
        self._cache.publish()

    async def load_topics(self, topics: Iterable[tuple[str, bytes]]) -> None:
        """Read the configurations of topics (name, id) that are new on this broker. Raises MetadataStoreError."""
        new = [(name, topic_id) for name, topic_id in topics if self._read_for.get(name) != topic_id]
        if new:
            # No notice follows if the read misses the configuration.
            await catch_up(self._store)
        for first in range(0, len(new), NODES_PER_READ):
            some = dict(new[first : first + NODES_PER_READ])
            # Applied before the response to any later read, which may have a later change.
            configs = await load_topic_configs(self._store, some)
            for name, topic_id in some.items():
                self._take_topic(name, configs.get(name, {}))
                self._read_for[name] = topic_id

    def put_topic(self, name: str, configs: Configs) -> None:
        """Publish a topic's configuration that this broker has written."""
        self._take_topic(name, configs)
        self._cache.publish()

    def put_broker(self, broker_id: int | None, configs: Configs) -> None:
        """Publish a broker's configuration that this broker has written."""
        self._take_broker(broker_id, configs)
        self._cache.publish()

    def drop_topic(self, name: str) -> None:
        """Drop the configuration of a deleted topic: a topic of that name created later may have another."""
        self._read_for.pop(name, None)

    def _on_notices(self, event: WatchEvent) -> None:
        self._post("configurations changed", self.follow)

    async def follow(self) -> None:
        """Read the configurations to which new notices point; call it again if it failed. Raises MetadataStoreError."""
        changed = await self._notices.read()
        try:
            for entity_path in changed:
                await self._follow_one(entity_path)
        finally:
            if changed:
                self._cache.publish()
        self._notices.finish()

    async def _follow_one(self, entity_path: str) -> None:
        if entity_path.startswith(_TOPIC_PREFIX):
            topic = znodes.topic_of_config(entity_path.removeprefix(_TOPIC_PREFIX))
            self._take_topic(topic, await load_config_if_any(self._store, f"/config/{entity_path}"))
        elif entity_path.startswith(_BROKER_PREFIX):
            broker = znodes.broker_of_config(entity_path.removeprefix(_BROKER_PREFIX))
            self._take_broker(broker, await load_config_if_any(self._store, f"/config/{entity_path}"))

    def _take_topic(self, name: str, configs: Configs) -> None:
        if configs != self._cache.topic_configs.get(name, {}):
            self._cache.put_topic_config(name, configs)

    def _take_broker(self, broker_id: int | None, configs: Configs) -> None:
        if configs != self._cache.broker_configs.get(broker_id, {}):
            self._cache.put_broker_config(broker_id, configs)
