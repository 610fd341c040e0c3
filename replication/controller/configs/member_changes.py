"""Changes of configurations by any broker of a cluster.

In ZooKeeper mode the broker that gets the request writes the configuration and a notice, as in Kafka 3.9, whether or
not it is the controller. Two changes at the same time are not merged: the last one wins.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.configs.nodes import config_operations
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.controller.races import retry_races
from odradek.replication.metadata import znodes
from odradek.replication.metadata.config_follower import ConfigFollower
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError

T = TypeVar("T")


class MemberConfigChanges:
    """Writes configurations to the store, and puts them into this broker's metadata cache. Raises KafkaError."""

    def __init__(
        self, store: MetadataStore, cache: ClusterMetadata, follower: ConfigFollower, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._cache = cache
        self._follower = follower
        self._now_ms = now_ms

    async def put_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Write a topic's explicit configuration. Raises KafkaError also if the topic does not exist."""
        if topic not in self._cache.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        await self._put(znodes.topic_config_path(topic), configs)
        self._follower.put_topic(topic, configs)

    async def put_broker_config(self, broker_id: int | None, configs: Mapping[str, str]) -> None:
        """Write a broker's dynamic configuration; with None the cluster-wide default."""
        await self._put(znodes.broker_config_path(broker_id), configs)
        self._follower.put_broker(broker_id, configs)

    async def _put(self, path: str, configs: Mapping[str, str]) -> None:
        async def write() -> None:
            await self._store.transaction(await config_operations(self._store, path, configs, self._now_ms()))

        try:
            await retry_races(write)
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error


class MemberConfigTarget:
    """The changes of configurations on one broker of a cluster, one after another (`admin.ConfigTarget`)."""

    def __init__(self, broker_id: int, image: ClusterMetadata, configs: MemberConfigChanges, events: EventLoop) -> None:
        self.broker_id = broker_id
        self.image = image
        self.configs = configs
        self._events = events

    def check_active(self) -> None:
        """Do nothing: any broker changes configurations."""

    async def pause(self) -> None:
        """Let other work run if the time slice of this reactor iteration is used up."""
        await self._events.executor.pause()

    async def request(self, description: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a part of an admin request after those before it."""
        return await self._events.submit(EventKind.CONFIGURATION, description, work)
