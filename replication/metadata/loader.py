"""Loading of the metadata image from the store."""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

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
from odradek.replication.metadata.store import Check, MetadataStore, Node, NoNodeError, StoreDamagedError, Watcher
from odradek.replication.pauses import Pause, in_slices, no_pause

logger = logging.getLogger(__name__)

T = TypeVar("T")

NODES_PER_READ: Final = 100
"""So many reads are in flight together, at most. An embedded store reads so many nodes in about 1 ms."""

_PARTITIONS_PER_PAUSE: Final = 500

StateWrites = dict[tuple[str, int], int]
"""By topic and partition, the transaction that wrote the partition's state last (ZooKeeper's mzxid)."""


async def load_image(
    store: MetadataStore, image: ClusterMetadata, pause: Pause = no_pause, writes: StateWrites | None = None
) -> None:
    """Load the content of the store into `image`, and publish it once. Parameters and errors as for `read_image`."""
    await read_image(store, image, pause, writes)
    image.publish()


async def read_image(
    store: MetadataStore,
    image: ClusterMetadata,
    pause: Pause = no_pause,
    writes: StateWrites | None = None,
    watch: Watcher | None = None,
) -> None:
    """Put the content of the store into `image`, which must be empty. Raises StoreDamagedError.

    `pause` is awaited between nodes, so that other work can run. Other brokers may remove nodes meanwhile. `writes`
    receives the transactions of the partitions' states. `watch` watches the assignments of topics.
    """
    image.cluster_id = await read_node(store, znodes.CLUSTER_ID, lambda node: znodes.decode_cluster_id(node.data))
    image.put_controller(*await load_controller(store))
    for broker in await load_brokers(store, await get_children_if_any(store, znodes.BROKER_IDS)):
        image.put_broker(broker)
    for topic in await load_topics(store, await get_children_if_any(store, znodes.TOPICS), pause, watch, writes):
        image.put_topic(topic)
    await _read_configs(store, image, image.topics, pause)


async def _read_configs(
    store: MetadataStore, image: ClusterMetadata, topics: Container[str], pause: Pause
) -> None:
    for name, configs in (await load_all_topic_configs(store, pause)).items():
        if name in topics and configs:
            image.put_topic_config(name, configs)
    for broker_id, configs in (await load_broker_configs(store)).items():
        if configs:
            image.put_broker_config(broker_id, configs)


async def read_assignments(store: MetadataStore, image: ClusterMetadata) -> dict[str, list[int]]:
    """Put topics and configurations into `image`, which must be empty; partitions have replicas, but no other state.

    Return by name the partitions that have a state of those topics whose assignment another tool has damaged. The image
    has the configurations of these topics, too: retention applies to their logs.
    """
    names = await get_children_if_any(store, znodes.TOPICS)
    assignments = await _load_assignments(store, names)
    for name, topic in assignments.items():
        partitions = tuple(
            PartitionMetadata(NO_LEADER, -1, topic.replicas[index], ()) for index in range(len(topic.replicas))
        )
        image.put_topic(TopicMetadata(name, topic.topic_id or ZERO_UUID, partitions))
    damaged = {}
    for name in [name for name in names if name not in assignments]:
        # Others are deleted meanwhile.
        if await store.exists(znodes.topic_path(name)) is not None:
            children = await get_children_if_any(store, znodes.partitions_path(name))
            damaged[name] = [int(child) for child in children if child.isdecimal()]
    await _read_configs(store, image, {*assignments, *damaged}, no_pause)
    return damaged


async def is_deleted(store: MetadataStore, topic: str, index: int) -> bool:
    """Return whether the store has no such partition, or its deletion has begun. Raises MetadataStoreError.

    The nodes of a deleted topic remain until each broker that has a replica is live. The deletion of a topic that is
    being reassigned has not begun.
    """
    if not await _is_deleted_here(store, topic, index):
        return False
    await catch_up(store)
    return await _is_deleted_here(store, topic, index)


async def _is_deleted_here(store: MetadataStore, topic: str, index: int) -> bool:
    """Implement `is_deleted` at the ZooKeeper server of this session, which may be behind."""
    assignment = await _find_assignment(store, topic)
    if assignment is None or index not in assignment.replicas:
        return True
    is_reassigned = bool(assignment.adding or assignment.removing)
    return not is_reassigned and await store.exists(znodes.deletion_path(topic)) is not None


async def count_partitions(store: MetadataStore, topic: str) -> int:
    """Return the number of a topic's partitions, 0 if there is no such topic. Raises MetadataStoreError."""
    await catch_up(store)
    assignment = await _find_assignment(store, topic)
    return 0 if assignment is None else len(assignment.replicas)


async def list_topics(store: MetadataStore) -> Collection[str]:
    """Return the names of all topics, including those whose deletion is not complete. Raises MetadataStoreError."""
    await catch_up(store)
    return set(await get_children_if_any(store, znodes.TOPICS))


async def catch_up(store: MetadataStore) -> None:
    """Make later reads include all changes that were made before this call.

    The ZooKeeper server of this session may be behind the others, but not behind the session's own transactions.
    """
    await store.transaction([Check(znodes.TOPICS)])


async def _find_assignment(store: MetadataStore, topic: str) -> znodes.TopicAssignment | None:
    try:
        return await read_node(store, znodes.topic_path(topic), lambda node: znodes.decode_topic(node.data))
    except NoNodeError:
        return None


async def load_topic(
    store: MetadataStore, name: str, pause: Pause = no_pause, watch: Watcher | None = None
) -> TopicMetadata:
    """Load a topic, and watch its assignment. A partition without a state node has no leader.

    Raises NoNodeError, StoreDamagedError.
    """
    assignment = await read_node(store, znodes.topic_path(name), _decode_assignment, watch)
    [topic] = await _load_states(store, {name: assignment}, pause)
    return topic


async def load_topics(
    store: MetadataStore,
    names: Sequence[str],
    pause: Pause = no_pause,
    watch: Watcher | None = None,
    writes: StateWrites | None = None,
) -> list[TopicMetadata]:
    """Load those of the topics that exist, as `load_topic`. `writes` as for `read_image`. Raises StoreDamagedError."""
    topics = []
    for first in range(0, len(names), NODES_PER_READ):
        some = names[first : first + NODES_PER_READ]
        topics += await _load_states(store, await _load_assignments(store, some, pause, watch), pause, writes)
    return topics


async def _load_assignments(
    store: MetadataStore, names: Iterable[str], pause: Pause = no_pause, watch: Watcher | None = None
) -> dict[str, znodes.TopicAssignment]:
    names_of_paths = {znodes.topic_path(name): name for name in names}
    found = await read_nodes(store, dict.fromkeys(names_of_paths, _decode_assignment), pause, watch)
    return {names_of_paths[path]: assignment for path, assignment in found.items()}


async def _load_states(
    store: MetadataStore,
    assignments: Mapping[str, znodes.TopicAssignment],
    pause: Pause,
    writes: StateWrites | None = None,
) -> list[TopicMetadata]:
    decoders: dict[str, Callable[[Node], tuple[PartitionMetadata, int]]] = {}
    for name, topic in assignments.items():
        async for index in in_slices(range(len(topic.replicas)), _PARTITIONS_PER_PAUSE, pause):
            decoders[znodes.state_path(name, index)] = partial(_decode_state, topic, index)
    states = await read_nodes(store, decoders, pause)
    topics = []
    for name, topic in assignments.items():
        partitions = []
        async for index in in_slices(range(len(topic.replicas)), _PARTITIONS_PER_PAUSE, pause):
            state = states.get(znodes.state_path(name, index))
            if state is None:
                partitions.append(PartitionMetadata(NO_LEADER, 0, topic.replicas[index], ()))
                continue
            partition, written = state
            partitions.append(partition)
            if writes is not None:
                writes[name, index] = written
        topics.append(TopicMetadata(name, topic.topic_id or ZERO_UUID, tuple(partitions)))
    return topics


async def get_children_if_any(store: MetadataStore, path: str) -> list[str]:
    """Return the names of a node's children; none if the node does not exist."""
    try:
        return await store.get_children(path)
    except NoNodeError:
        return []


def _decode_assignment(node: Node) -> znodes.TopicAssignment:
    topic = znodes.decode_topic(node.data)
    if topic.replicas.keys() != set(range(len(topic.replicas))):
        raise ValueError("partitions are not numbered from 0 without a gap")
    return topic


def _decode_state(topic: znodes.TopicAssignment, index: int, node: Node) -> tuple[PartitionMetadata, int]:
    return znodes.decode_state(node.data, node.stat.version, topic, index), node.stat.modified_id


async def read_versions(
    store: MetadataStore, paths: Iterable[str], pause: Pause = no_pause, watch: Watcher | None = None
) -> dict[str, int]:
    """Return by path the versions of those of the nodes that exist; the parameters are those of `read_nodes`."""
    return await read_nodes(store, dict.fromkeys(paths, lambda node: node.stat.version), pause, watch)


async def read_nodes(
    store: MetadataStore,
    decoders: Mapping[str, Callable[[Node], T]],
    pause: Pause = no_pause,
    watch: Watcher | None = None,
) -> dict[str, T]:
    """Return by path those of the nodes that exist, each decoded by its decoder.

    `pause` is awaited between nodes. `watch` watches each node. A node that cannot be decoded is ignored and logged if
    the store is shared: other tools write there, and without the other nodes no broker could be the controller. The
    damage of an embedded store raises StoreDamagedError.
    """
    every, decoded = list(decoders), {}
    for first in range(0, len(every), NODES_PER_READ):
        paths = every[first : first + NODES_PER_READ]
        nodes = await store.get_many(paths, watch)
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                await pause()
                try:
                    decoded[path] = decode_node(store, path, decoders[path], node)
                except StoreDamagedError as error:
                    _ignore(store, error)
    return decoded


async def read_node(
    store: MetadataStore, path: str, decode: Callable[[Node], T], watch: Watcher | None = None
) -> T:
    """Return a node, decoded by `decode`. Raises NoNodeError, StoreDamagedError."""
    return decode_node(store, path, decode, await store.get(path, watch))


def decode_node(store: MetadataStore, path: str, decode: Callable[[Node], T], node: Node) -> T:
    """Decode a node. Raises StoreDamagedError."""
    try:
        return decode(node)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise store.damaged(f"its node {path} cannot be decoded: {error!r}") from error


def _ignore(store: MetadataStore, error: StoreDamagedError) -> None:
    if not store.is_shared:
        raise error
    logger.error("a node is ignored until it is corrected or deleted: %s", error)


async def load_brokers(
    store: MetadataStore, names: Iterable[str], watch: Watcher | None = None
) -> list[BrokerMetadata]:
    """Return those of the brokers that are registered, and watch their registrations. Raises StoreDamagedError."""
    decoders = {f"{znodes.BROKER_IDS}/{name}": partial(_decode_broker, name) for name in names}
    return list((await read_nodes(store, decoders, watch=watch)).values())


def _decode_broker(name: str, node: Node) -> BrokerMetadata:
    return znodes.decode_broker(int(name), node.data, node.stat.created_id)


async def load_all_topic_configs(store: MetadataStore, pause: Pause = no_pause) -> dict[str, dict[str, str]]:
    """Return the explicit configurations of all topics. Raises StoreDamagedError."""
    names = await get_children_if_any(store, znodes.TOPIC_CONFIGS)
    return await load_topic_configs(store, map(znodes.topic_of_config, names), pause)


async def load_topic_configs(
    store: MetadataStore, topics: Iterable[str], pause: Pause = no_pause
) -> dict[str, dict[str, str]]:
    """Return the explicit configurations of those of the topics that have a node. Raises StoreDamagedError."""
    paths = [znodes.topic_config_path(name) for name in topics]
    found = await read_nodes(store, dict.fromkeys(paths, _decode_config), pause)
    return {znodes.topic_of_config(path.rpartition("/")[2]): configs for path, configs in found.items()}


async def load_broker_configs(store: MetadataStore) -> dict[int | None, dict[str, str]]:
    """Return the dynamic configurations of brokers; None stands for the default. Raises StoreDamagedError."""
    names = await get_children_if_any(store, znodes.BROKER_CONFIGS)
    decoders = {f"{znodes.BROKER_CONFIGS}/{name}": partial(_decode_broker_config, name) for name in names}
    return dict((await read_nodes(store, decoders)).values())


def _decode_broker_config(name: str, node: Node) -> tuple[int | None, dict[str, str]]:
    return znodes.broker_of_config(name), _decode_config(node)


def _decode_config(node: Node) -> dict[str, str]:
    return znodes.decode_config(node.data)


async def load_config_if_any(store: MetadataStore, path: str) -> dict[str, str]:
    """Return the configuration in a node, an empty one without the node. Damage is handled as by `read_nodes`."""
    return (await read_nodes(store, {path: _decode_config})).get(path, {})


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
