"""Update of a metadata image from the store, after a change with an unknown outcome."""

from collections.abc import Container

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.loader import (
    StateWrites,
    load_all_topic_configs,
    load_broker_configs,
    load_controller,
    read_image,
    read_node,
)
from odradek.replication.metadata.store import MetadataStore, Watcher
from odradek.replication.pauses import Pause, no_pause


async def reload_image(store: MetadataStore, image: ClusterMetadata, pause: Pause = no_pause) -> None:
    """Update the image from the store, and publish the differences. Parameters and errors as for `update_image`."""
    await update_image(store, image, pause)
    image.publish()


async def update_configs(store: MetadataStore, image: ClusterMetadata, pause: Pause = no_pause) -> None:
    """Update the image's controller and configurations, those of all topics, from the store, and publish them.

    A standby of a cluster needs no more: its brokers and topics come from the controller. Raises MetadataStoreError.
    """
    image.cluster_id = await read_node(store, znodes.CLUSTER_ID, lambda node: znodes.decode_cluster_id(node.data))
    image.put_controller(*await load_controller(store))
    topics = await load_all_topic_configs(store, pause)
    for name in image.topic_configs.keys() - topics.keys():
        image.put_topic_config(name, {})
    for name, configs in topics.items():
        image.put_topic_config(name, configs)
    for broker_id, configs in (await load_broker_configs(store)).items():
        image.put_broker_config(broker_id, configs)
    image.publish()


async def update_image(
    store: MetadataStore,
    image: ClusterMetadata,
    pause: Pause = no_pause,
    *,
    retain_offline: bool = True,
    retain_reassigned: bool = False,
    retain_marked: bool = False,
    writes: StateWrites | None = None,
    watch: Watcher | None = None,
) -> None:
    """Update the image's controller, brokers, topics and configurations from the store.

    Offline replicas are not in the store; without `retain_offline` there are none afterwards. A topic that is marked
    for deletion is not in the image, although its nodes still exist, unless `retain_marked` is set, or it is being
    reassigned and `retain_reassigned` is set. `pause` is awaited between topics, so that other work can run. `writes`
    and `watch` as in `read_image`. Raises MetadataStoreError without a change of the image.
    """
    stored = ClusterMetadata()
    await read_image(store, stored, pause, writes, watch)
    deleted = set() if retain_marked else set(await store.get_children(znodes.DELETE_TOPICS))
    if missing := image.topics.keys() - stored.topics.keys() - deleted:
        # The nodes of those that exist cannot be decoded. They are not deleted.
        for name in missing.intersection(await store.get_children(znodes.TOPICS)):
            image.forget_topic(name)
    image.cluster_id = stored.cluster_id
    if (stored.controller_id, stored.controller_epoch) != (image.controller_id, image.controller_epoch):
        image.put_controller(stored.controller_id, stored.controller_epoch)
    for broker_id in image.brokers.keys() - stored.brokers.keys():
        image.remove_broker(broker_id)
    for broker in stored.brokers.values():
        if image.brokers.get(broker.broker_id) != broker:
            image.put_broker(broker)
    if retain_reassigned:
        deleted -= {name for name in deleted & stored.topics.keys() if stored.topics[name].is_reassigned}
    await _update_topics(image, stored, deleted, pause, retain_offline=retain_offline)
    for key in stored.broker_configs.keys() | image.broker_configs.keys():
        settings = stored.broker_configs.get(key, {})
        if settings != image.broker_configs.get(key, {}):
            image.put_broker_config(key, settings)


async def _update_topics(
    image: ClusterMetadata, stored: ClusterMetadata, deleted: Container[str], pause: Pause, *, retain_offline: bool
) -> None:
    """Update the image's topics, without the deleted ones, and their configurations."""
    for name in [name for name in image.topics if name not in stored.topics or name in deleted]:
        image.remove_topic(name)
    for name, topic in stored.topics.items():
        await pause()
        if name in deleted:
            continue
        current = image.topics.get(name)
        merged = topic
        if retain_offline and current is not None and current.topic_id == topic.topic_id:
            merged = _merge_offline(current, topic)
        if merged != current:
            image.put_topic(merged)
        configs = stored.topic_configs.get(name, {})
        if configs != image.topic_configs.get(name, {}):
            image.put_topic_config(name, configs)
    for name in image.topic_configs.keys() - image.topics.keys():
        # A standby of a cluster follows configurations and not topics.
        image.put_topic_config(name, {})


def _merge_offline(current: TopicMetadata, stored: TopicMetadata) -> TopicMetadata:
    previous = current.partitions
    partitions = (
        _with_offline(previous[index], partition) if index < len(previous) else partition
        for index, partition in enumerate(stored.partitions)
    )
    return stored._replace(partitions=tuple(partitions))


def _with_offline(current: PartitionMetadata, stored: PartitionMetadata) -> PartitionMetadata:
    if current.partition_epoch == stored.partition_epoch:
        return current
    leader = NO_LEADER if stored.leader in current.offline else stored.leader
    return stored._replace(leader=leader, offline=current.offline)
