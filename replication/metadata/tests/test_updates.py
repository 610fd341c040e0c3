"""Updates bring a broker's metadata cache to the state of the controller's image."""

from random import Random

import pytest

from odradek.replication.metadata.image import ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.updates import LocalPublisher, update_from
from odradek.replication.tests.support import broker


def change_something(image, random):
    name, number = random.choice("abcd"), random.randrange(3)
    topic_id = bytes([ord(name), random.randrange(3)]) + bytes(14)
    match random.randrange(8):
        case 0 | 1:
            partitions = tuple(PartitionMetadata(1, random.randrange(9), (1,), (1,)) for _ in range(number + 1))
            image.put_topic(TopicMetadata(name, topic_id, partitions))
        case 2:
            image.remove_topic(name)
        case 3:
            if name in image.topics:
                image.put_topic_config(name, {"retention.ms": str(number)} if number else {})
        case 4:
            image.put_broker_config(number or None, {"x": str(random.randrange(9))} if random.randrange(2) else {})
        case 5:
            image.put_broker(broker(number, 9000 + random.randrange(50)))
        case 6:
            image.remove_broker(number)
        case 7:
            image.put_controller(number, random.randrange(9))


@pytest.mark.parametrize("seed", range(30))
def test_a_cache_follows_the_image(seed):
    random, image, cache = Random(seed), ClusterMetadata(), ClusterMetadata()
    publisher = LocalPublisher(cache)
    image.listeners.append(lambda delta: publisher.publish(update_from(image, delta)))
    listened = []
    cache.listeners.append(lambda delta: listened.append(sorted(delta.topics)))
    for publication in range(1, 40):
        for _ in range(random.randrange(5)):
            change_something(image, random)
        image.publish()
        assert cache.contents() == image.contents()
        assert len(listened) == cache.version == publication


def test_a_cache_is_not_changed_before_the_publication():
    image, cache = ClusterMetadata(), ClusterMetadata()
    publisher = LocalPublisher(cache)
    image.listeners.append(lambda delta: publisher.publish(update_from(image, delta)))
    image.put_topic(TopicMetadata("t", bytes(range(16)), (PartitionMetadata(1, 0, (1,), (1,)),)))
    assert cache.topics == {}
    image.publish()
    assert list(cache.topics) == ["t"]
