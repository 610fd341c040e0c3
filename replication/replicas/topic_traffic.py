"""Counters of the records that pass through the partitions of a topic, for metrics.

The partitions of a topic on this broker share a `TopicTraffic`. The hot paths add to its fields, which is all that they
pay for metrics.
"""

from collections.abc import Generator
from itertools import islice
from typing import Final

_TOPICS_PER_STEP: Final = 100
"""Topics that are added in one step, which takes some 0.2 ms."""


class TopicTraffic:
    """Counters of one topic's partitions on this broker. All fields only grow.

    bytes_in, messages_in: appended as the leader; batches are counted as they are stored
    bytes_out: sent to consumers; replication_bytes_out: sent to followers
    replication_bytes_in: appended as a follower
    produce_requests, failed_produce_requests: batches that were to be appended, and those that had an error which is
        neither a limit of the topic nor due to the client's metadata
    fetch_requests, failed_fetch_requests: reads of a partition beyond its end, and those with such an error
    produce_conversions: records of batches that were written anew, because their codec is not that of the topic
    bytes_rejected: of batches that are larger than max.message.bytes or a segment
    invalid_crc_records: batches with a wrong checksum
    invalid_magic_records: batches of an earlier format
    invalid_offset_records: batches with an impossible offset, number of records or sequence number
    no_key_records: records without a key in a batch for a compacted topic
    expired_produces: batches that were not replicated within the timeout of their request
    reassignment_bytes_in, reassignment_bytes_out: the part of the replication to replicas that are being added
    isr_expands, isr_shrinks, failed_isr_updates: changes of the ISR that the controller has made or refused
    """

    __slots__ = (
        "bytes_in", "bytes_out", "bytes_rejected", "expired_produces", "failed_fetch_requests", "failed_isr_updates",
        "failed_produce_requests", "fetch_requests", "invalid_crc_records", "invalid_magic_records",
        "invalid_offset_records", "isr_expands", "isr_shrinks", "messages_in", "no_key_records", "partitions",
        "produce_conversions", "produce_requests", "reassignment_bytes_in", "reassignment_bytes_out",
        "replication_bytes_in", "replication_bytes_out",
    )  # fmt: skip

    def __init__(self) -> None:
        self.partitions = 0
        self.bytes_in = self.messages_in = self.bytes_out = self.bytes_rejected = 0
        self.produce_requests = self.failed_produce_requests = self.produce_conversions = 0
        self.fetch_requests = self.failed_fetch_requests = 0
        self.replication_bytes_in = self.replication_bytes_out = 0
        self.reassignment_bytes_in = self.reassignment_bytes_out = 0
        self.invalid_crc_records = self.invalid_magic_records = self.invalid_offset_records = self.no_key_records = 0
        self.expired_produces = 0
        self.isr_expands = self.isr_shrinks = self.failed_isr_updates = 0

    def add(self, other: "TopicTraffic") -> None:
        """Add the counters of another topic."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTERS: Final = tuple(name for name in TopicTraffic.__slots__ if name != "partitions")


class Traffic:
    """The counters of all topics with a partition on this broker.

    by_topic: counters since the topic's first partition was created here, or the broker was started
    expired_fetches, expired_follower_fetches: fetches of consumers and followers that waited for all of their time
    """

    def __init__(self) -> None:
        self.expired_fetches = self.expired_follower_fetches = 0
        self.by_topic: dict[str, TopicTraffic] = {}
        self._ended = TopicTraffic()

    def begin(self, topic: str) -> TopicTraffic:
        """Return the counters for another partition of a topic."""
        traffic = self.by_topic.get(topic)
        if traffic is None:
            traffic = self.by_topic[topic] = TopicTraffic()
        traffic.partitions += 1
        return traffic

    def end(self, topic: str) -> None:
        """Remove a partition of a topic. The counters of a topic without partitions remain in `total` only."""
        traffic = self.by_topic[topic]
        traffic.partitions -= 1
        if not traffic.partitions:
            del self.by_topic[topic]
            self._ended.add(traffic)

    def total_in_steps(self) -> Generator[None, None, TopicTraffic]:
        """Return the sum of all topics, also of those that were deleted.

        Topics that are created between two steps are not in it, and those that are deleted are in it once.
        """
        topics = iter(list(self.by_topic.values()))
        total = TopicTraffic()
        total.add(self._ended)
        while some := list(islice(topics, _TOPICS_PER_STEP)):
            for traffic in some:
                total.add(traffic)
            yield
        return total
