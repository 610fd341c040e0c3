"""Loading of the metadata image from the store."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import (
    NO_CONTROLLER,
    NO_LEADER,
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.metadata.store import MetadataStore, Node, NoNodeError, Watcher

logger = logging.getLogger(__name__)

T = TypeVar("T")
Pause = Callable[[], Awaitable[None]]


StateWrites = dict[tuple[str, int], int]
"""By topic and partition, the transaction that wrote the partition's state last (ZooKeeper's mzxid)."""


async def no_pause() -> None:
    """Return at once."""


async def load_image(
    store: MetadataStore, image: ClusterMetadata, pause: Pause = no_pause, writes: StateWrites | None = None
) -> None:
    """Load the content of the store into `image`, and publish it once. Parameters and errors as for `read_image`."""
    await read_image(store, image, pause, writes)
    image.publish()


async def read_image(
    store: MetadataStore, image: ClusterMetadata, pause: Pause = no_pause, writes: StateWrites | None = None
) -> None:
    """Put the content of the store into `image`, which must be empty. Raises StoreDamagedError.

    `pause` is awaited between nodes, so that other work can run. Other brokers may remove nodes meanwhile. `writes`
    receives the transactions of the partitions' states.
    """
    image.cluster_id = await read_node(store, znodes.CLUSTER_ID, lambda node: znodes.decode_cluster_id(node.data))
    image.put_controller(*await load_controller(store))
    for name in await _children(store, znodes.BROKER_IDS):
        with suppress(NoNodeError):
            image.put_broker(await load_broker(store, name))
    for name in await _children(store, znodes.TOPICS):
        with suppress(NoNodeError):
            image.put_topic(await load_topic(store, name, pause, writes=writes))
    await _read_configs(store, image, pause)


async def _read_configs(store: MetadataStore, image: ClusterMetadata, pause: Pause) -> None:
    for name in await _children(store, znodes.TOPIC_CONFIGS):
        await pause()
        topic = znodes.topic_of_config(name)
        configs = await load_config_if_any(store, f"{znodes.TOPIC_CONFIGS}/{name}")
        if topic in image.topics and configs:
            image.put_topic_config(topic, configs)
    for name in await _children(store, znodes.BROKER_CONFIGS):
        configs = await load_config_if_any(store, f"{znodes.BROKER_CONFIGS}/{name}")
        if configs:
            image.put_broker_config(znodes.broker_of_config(name), configs)


async def read_assignments(store: MetadataStore, image: ClusterMetadata) -> None:
    """Put topics and configurations into `image`, which must be empty; partitions have replicas, but no other state."""
    for name in await _children(store, znodes.TOPICS):
        topic = await read_node(store, znodes.topic_path(name), lambda node: znodes.decode_topic(node.data))
        partitions = tuple(
            PartitionMetadata(NO_LEADER, -1, topic.replicas.get(index, ()), ())
            for index in range(max(topic.replicas, default=-1) + 1)
        )
        image.put_topic(TopicMetadata(name, topic.topic_id or ZERO_UUID, partitions))
    await _read_configs(store, image, no_pause)


async def is_deleted(store: MetadataStore, topic: str, index: int) -> bool:
    """Return whether the store has no such partition. Raises MetadataStoreError."""
    return index not in await _read_replicas(store, topic)


async def count_partitions(store: MetadataStore, topic: str) -> int:
    """Return the number of a topic's partitions, 0 if there is no such topic. Raises MetadataStoreError."""
    return len(await _read_replicas(store, topic))


async def _read_replicas(store: MetadataStore, topic: str) -> dict[int, tuple[int, ...]]:
    try:
        return await read_node(store, znodes.topic_path(topic), lambda node: znodes.decode_topic(node.data).replicas)
    except NoNodeError:
        return {}


async def load_topic(
    store: MetadataStore,
    name: str,
    pause: Pause = no_pause,
    watch: Watcher | None = None,
    writes: StateWrites | None = None,
) -> TopicMetadata:
    """Load a topic, and watch its assignment. A partition without a state node has no leader.

    Raises NoNodeError, StoreDamagedError.
    """
    topic = await read_node(store, znodes.topic_path(name), lambda node: znodes.decode_topic(node.data), watch)
    partitions = []
    for index in range(len(topic.replicas)):
        await pause()
        try:
            decode = partial(_decode_state, topic, index)
            state, written = await read_node(store, znodes.state_path(name, index), decode)
            if writes is not None:
                writes[name, index] = written
        except NoNodeError:
            state = PartitionMetadata(NO_LEADER, 0, topic.replicas[index], ())
        partitions.append(state)
    return TopicMetadata(name, topic.topic_id or ZERO_UUID, tuple(partitions))


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.get_children(path)
    except NoNodeError:
        return []


def _decode_state(topic: znodes.TopicAssignment, index: int, node: Node) -> tuple[PartitionMetadata, int]:
    return znodes.decode_state(node.data, node.stat.version, topic, index), node.stat.modified_id


async def read_node(
    store: MetadataStore, path: str, decode: Callable[[Node], T], watch: Watcher | None = None
) -> T:
    """Return a node, decoded by `decode`. Raises NoNodeError, StoreDamagedError."""
    node = await store.get(path, watch)
    try:
        return decode(node)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise store.damaged(f"its node {path} cannot be decoded: {error!r}") from error


async def load_broker(store: MetadataStore, name: str, watch: Watcher | None = None) -> BrokerMetadata:
    """Return a registered broker. Raises NoNodeError, StoreDamagedError."""
    return await read_node(
        store,
        f"{znodes.BROKER_IDS}/{name}",
        lambda node: znodes.decode_broker(int(name), node.data, node.stat.created_id),
        watch,
    )


async def load_config(store: MetadataStore, path: str) -> dict[str, str]:
    """Return the configuration in a node. Raises NoNodeError, StoreDamagedError."""
    return await read_node(store, path, lambda node: znodes.decode_config(node.data))


async def load_config_if_any(store: MetadataStore, path: str) -> dict[str, str]:
    """Return the configuration in a node, an empty one without the node. Raises StoreDamagedError."""
    try:
        return await load_config(store, path)
    except NoNodeError:
        return {}


async def load_controller(store: MetadataStore) -> tuple[int, int]:
    """Return the controller's broker id, NO_CONTROLLER without one, and its epoch. Raises StoreDamagedError."""
    return await _controller(store), await _controller_epoch(store)


async def _controller(store: MetadataStore) -> int:
    try:
        return await read_node(store, znodes.CONTROLLER, lambda node: znodes.decode_controller(node.data))
    except NoNodeError:
        return NO_CONTROLLER


async def _controller_epoch(store: MetadataStore) -> int:
    try:
        return await read_node(store, znodes.CONTROLLER_EPOCH, lambda node: int(node.data or b"0"))
    except NoNodeError:
        return 0
