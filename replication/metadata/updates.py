"""Metadata updates that the controller publishes to the brokers (UpdateMetadata in a cluster)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Configs, MetadataDelta, TopicMetadata


class MetadataUpdate(NamedTuple):
    """The difference between two publications of the controller. A deletion precedes a new topic with the same name.

    brokers: new or changed brokers; removed_brokers: ids of brokers that are no longer registered
    topics: new or changed topics; deleted_topics: the deleted topics
    topic_configs: changed explicit configurations, empty if the configuration was removed
    broker_configs: all dynamic broker configurations; None if none has changed
    """

    controller_id: int
    controller_epoch: int
    brokers: Sequence[BrokerMetadata] = ()
    removed_brokers: Sequence[int] = ()
    topics: Sequence[TopicMetadata] = ()
    deleted_topics: Sequence[TopicMetadata] = ()
    topic_configs: Mapping[str, Configs] = {}
    broker_configs: Mapping[int | None, Configs] | None = None


class MetadataPublisher(Protocol):
    """Delivers the controller's updates to each broker, in the order of publication."""

    def publish(self, update: MetadataUpdate) -> None:
        """Deliver an update."""


class LocalPublisher:
    """Applies updates to the metadata cache of the broker on which the controller runs."""

    __slots__ = ("_cache",)

    def __init__(self, cache: ClusterMetadata) -> None:
        self._cache = cache

    def publish(self, update: MetadataUpdate) -> None:
        """Apply an update to the cache."""
        apply_update(self._cache, update)


def update_from(image: ClusterMetadata, delta: MetadataDelta) -> MetadataUpdate:
    """Return the update with the changes in `delta`, which led to the state of `image`."""
    return MetadataUpdate(
        image.controller_id,
        image.controller_epoch,
        [image.brokers[broker_id] for broker_id in delta.brokers if broker_id in image.brokers],
        [broker_id for broker_id in delta.brokers if broker_id not in image.brokers],
        [image.topics[name] for name in delta.topics],
        delta.deleted_topics,
        {name: image.topic_configs.get(name, {}) for name in delta.topic_configs},
        dict(image.broker_configs) if delta.broker_configs else None,
    )


def full_update(image: ClusterMetadata, delta: MetadataDelta) -> MetadataUpdate:
    """Return the update with all brokers and topics of `image`, and the other changes in `delta`.

    A topic that another controller deleted and created again is not among the deleted topics: brokers may have the new
    topic already, and would remove it from their caches, with its committed offsets.
    """
    return update_from(image, delta)._replace(
        brokers=list(image.brokers.values()),
        removed_brokers=(),
        topics=list(image.topics.values()),
        deleted_topics=[topic for topic in delta.deleted_topics if topic.name not in image.topics],
    )


def apply_update(cache: ClusterMetadata, update: MetadataUpdate) -> None:
    """Apply an update to a broker's metadata cache, and inform its listeners."""
    if (cache.controller_id, cache.controller_epoch) != (update.controller_id, update.controller_epoch):
        cache.put_controller(update.controller_id, update.controller_epoch)
    for broker in update.brokers:
        cache.put_broker(broker)
    for broker_id in update.removed_brokers:
        cache.remove_broker(broker_id)
    for topic in update.deleted_topics:
        cached = cache.topics.get(topic.name)
        if cached is not None and cached.topic_id == topic.topic_id:
            cache.remove_topic(topic.name)
    for topic in update.topics:
        cache.put_topic(topic)
    for name, configs in update.topic_configs.items():
        cache.put_topic_config(name, configs)
    if update.broker_configs is not None:
        for key in [key for key in cache.broker_configs if key not in update.broker_configs]:
            cache.put_broker_config(key, {})
        for key, configs in update.broker_configs.items():
            cache.put_broker_config(key, configs)
    cache.publish()
