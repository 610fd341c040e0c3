"""What is in a topic, read by a client that is not Spark."""

from collections import defaultdict

from confluent_kafka import Consumer, TopicPartition

READ_TIMEOUT_S = 30


def read(bootstrap_servers, topic, *, isolation_level="read_committed"):
    """All records there are now, by partition; with read_committed only those of committed transactions.

    A broker commits before every partition shows it, so what is open is waited for. None may stay open.
    """
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
        open_ = _ends(configuration, topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in open_])
        found = defaultdict(list)
        while open_:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"partitions do not end, or a transaction does not: {open_}"
            partition = message.partition()
            if message.error() is None:
                found[partition].append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                if message.offset() >= open_.get(partition, 0):
                    open_.pop(partition, None)
        return dict(found)
    finally:
        consumer.close()


def _ends(configuration, topic):
    """Where each partition ends, whatever is open there."""
    consumer = Consumer({**configuration, "isolation.level": "read_uncommitted"})
    try:
        partitions = consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), READ_TIMEOUT_S)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def messages(bootstrap_servers, topic, **options):
    """The same, of all partitions."""
    return [message for some in read(bootstrap_servers, topic, **options).values() for message in some]


def values(bootstrap_servers, topic, **options):
    """Values in order."""
    return sorted(message.value() for message in messages(bootstrap_servers, topic, **options))
