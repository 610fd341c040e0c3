"""Building the metadata image from the store, as a starting broker and a new controller do."""

import logging

from odradek.protocol.types import ZERO_UUID
from odradek.replication import znodes
from odradek.replication.cluster_metadata import (
    NO_CONTROLLER,
    NO_LEADER,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.metadata_store import MetadataStore, NoNodeError

logger = logging.getLogger(__name__)


async def load_image(store: MetadataStore, image: ClusterMetadata) -> None:
    """Puts everything the store says into `image`, and publishes it once. The image must be empty."""
    image.cluster_id = znodes.decode_cluster_id(await _data(store, znodes.CLUSTER_ID))
    image.put_controller(await _controller(store), await _controller_epoch(store))
    for name in await _children(store, znodes.BROKER_IDS):
        node = await store.get(f"{znodes.BROKER_IDS}/{name}")
        image.put_broker(znodes.decode_broker(int(name), node.data, node.stat.created_id))
    for name in await _children(store, znodes.TOPICS):
        image.put_topic(await load_topic(store, name))
    for name in await _children(store, znodes.TOPIC_CONFIGS):
        topic = znodes.topic_of_config(name)
        configs = znodes.decode_config(await _data(store, f"{znodes.TOPIC_CONFIGS}/{name}"))
        if topic in image.topics and configs:
            image.put_topic_config(topic, configs)
    for name in await _children(store, znodes.BROKER_CONFIGS):
        configs = znodes.decode_config(await _data(store, f"{znodes.BROKER_CONFIGS}/{name}"))
        if configs:
            image.put_broker_config(znodes.broker_of_config(name), configs)
    image.publish()


async def load_topic(store: MetadataStore, name: str) -> TopicMetadata:
    """A topic as the store has it; a partition that has no state yet has no leader. Raises NoNodeError."""
    topic = znodes.decode_topic((await store.get(znodes.topic_path(name))).data)
    partitions = []
    for index in range(len(topic.replicas)):
        try:
            node = await store.get(znodes.state_path(name, index))
            state = znodes.decode_state(node.data, node.stat.version, topic, index)
        except NoNodeError:
            state = PartitionMetadata(NO_LEADER, 0, topic.replicas[index], ())
        partitions.append(state)
    return TopicMetadata(name, topic.topic_id or ZERO_UUID, tuple(partitions))


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.get_children(path)
    except NoNodeError:
        return []


async def _data(store: MetadataStore, path: str) -> bytes | None:
    return (await store.get(path)).data


async def _controller(store: MetadataStore) -> int:
    try:
        return znodes.decode_controller(await _data(store, znodes.CONTROLLER))
    except NoNodeError:
        return NO_CONTROLLER


async def _controller_epoch(store: MetadataStore) -> int:
    try:
        return int(await _data(store, znodes.CONTROLLER_EPOCH) or b"0")
    except NoNodeError:
        return 0
