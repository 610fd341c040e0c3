"""Records of a topic, read without Spark."""

from collections import defaultdict
from functools import partial

from confluent_kafka import Consumer, TopicPartition

from compat_tests.clients.common import repeat
from spark_it.tests.data import is_without_leader

READ_TIMEOUT_S = 60


def read(bootstrap_servers, topic, *, isolation_level="read_committed", security=None):
    """All records that are now in the topic, by partition; with read_committed only those of committed transactions.

    A commit is acknowledged before every partition has its marker, so this waits until no transaction is open.
    `security` has further properties of the consumer.
    """
    configuration = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest",
        **(security or {}),
    }
    consumer = Consumer(configuration)
    try:
        open_ = _ends(configuration, topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in open_])
        found = defaultdict(list)
        while open_:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"partitions are not read to their end, or have an open transaction: {open_}"
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
    """The log end offset of each partition, also if a transaction is open or the leader has just been killed."""

    def find_end(partition):
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), READ_TIMEOUT_S)[1]

    consumer = Consumer({**configuration, "isolation.level": "read_uncommitted"})
    try:
        partitions = consumer.list_topics(topic, READ_TIMEOUT_S).topics[topic].partitions
        return {
            partition: repeat(partial(find_end, partition), is_without_leader, READ_TIMEOUT_S)
            for partition in partitions
        }
    finally:
        consumer.close()


def messages(bootstrap_servers, topic, **options):
    """The records that `read` returns, in one list."""
    return [message for some in read(bootstrap_servers, topic, **options).values() for message in some]


def values(bootstrap_servers, topic, **options):
    """The values of these records, sorted."""
    return sorted(message.value() for message in messages(bootstrap_servers, topic, **options))
