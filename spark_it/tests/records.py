"""What is in a topic, read by a client that is not Spark."""

from collections import defaultdict

from confluent_kafka import Consumer, TopicPartition

READ_TIMEOUT_S = 30


def read(bootstrap_servers, topic, *, isolation_level="read_committed"):
    """All records there are now, by partition; with read_committed only those of committed transactions."""
    configuration = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(configuration)
    try:
        partitions = list(consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, open_ = defaultdict(list), set(partitions)
        while open_:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"partitions {open_} do not end"
            if message.error() is None:
                found[message.partition()].append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                open_.discard(message.partition())
        return dict(found)
    finally:
        consumer.close()


def messages(bootstrap_servers, topic, **options):
    """The same, of all partitions."""
    return [message for some in read(bootstrap_servers, topic, **options).values() for message in some]


def values(bootstrap_servers, topic, **options):
    """Values in order."""
    return sorted(message.value() for message in messages(bootstrap_servers, topic, **options))
