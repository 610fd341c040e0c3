"""Metrics of the records that pass through this broker, in total and by topic."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from odradek.replication.replicas.topic_traffic import TopicTraffic, Traffic
from odradek.server.metrics.declaration import Collected, Family, Sample, labels, meter

_MBEAN: Final = "kafka.server:type=BrokerTopicMetrics"

_BY_TOPIC: Final = (
    (meter(f"{_MBEAN},name=MessagesInPerSec", "Records that producers appended."), "messages_in"),
    (meter(f"{_MBEAN},name=BytesInPerSec", "Bytes of batches that producers appended."), "bytes_in"),
    (meter(f"{_MBEAN},name=BytesOutPerSec", "Bytes of records sent to consumers."), "bytes_out"),
    (meter(f"{_MBEAN},name=BytesRejectedPerSec", "Bytes of batches larger than the limits."), "bytes_rejected"),
    (meter(f"{_MBEAN},name=TotalProduceRequestsPerSec", "Batches of Produce requests."), "produce_requests"),
    (
        meter(f"{_MBEAN},name=FailedProduceRequestsPerSec", "Batches that were refused as invalid."),
        "failed_produce_requests",
    ),
    (
        meter(f"{_MBEAN},name=TotalFetchRequestsPerSec", "Reads of partitions by Fetch, except those at the log end."),
        "fetch_requests",
    ),
    (meter(f"{_MBEAN},name=FailedFetchRequestsPerSec", "Reads of partitions that failed."), "failed_fetch_requests"),
    (
        meter(f"{_MBEAN},name=InvalidMessageCrcRecordsPerSec", "Batches that were refused as corrupt."),
        "invalid_crc_records",
    ),
    (
        meter(f"{_MBEAN},name=ProduceMessageConversionsPerSec", "Records that the broker compressed again."),
        "produce_conversions",
    ),
)

CONVERTED_FETCHES: Final = meter(
    f"{_MBEAN},name=FetchMessageConversionsPerSec", "0: records are sent as they are stored, as by Kafka since 4.0."
)
EXPIRED_FETCHES: Final = meter(
    "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec",
    "Fetches that waited for all of their time, by fetcherType consumer or follower.",
)

_IN_TOTAL: Final = (
    (meter(f"{_MBEAN},name=ReplicationBytesInPerSec", "Bytes fetched from leaders."), "replication_bytes_in"),
    (meter(f"{_MBEAN},name=ReplicationBytesOutPerSec", "Bytes sent to followers."), "replication_bytes_out"),
    (
        meter(f"{_MBEAN},name=ReassignmentBytesInPerSec", "The part of them for replicas that are being added."),
        "reassignment_bytes_in",
    ),
    (
        meter(f"{_MBEAN},name=ReassignmentBytesOutPerSec", "The part of them for replicas that are being added."),
        "reassignment_bytes_out",
    ),
    (
        meter(f"{_MBEAN},name=InvalidMagicNumberRecordsPerSec", "Batches that were refused for their old format."),
        "invalid_magic_records",
    ),
    (
        meter(
            f"{_MBEAN},name=InvalidOffsetOrSequenceRecordsPerSec",
            "Batches that were refused for an impossible offset, number of records or sequence number.",
        ),
        "invalid_offset_records",
    ),
    (
        meter(f"{_MBEAN},name=NoKeyCompactedTopicRecordsPerSec", "Records without a key for a compacted topic."),
        "no_key_records",
    ),
)

METRICS: Final = (*(metric for metric, _ in (*_BY_TOPIC, *_IN_TOTAL)), CONVERTED_FETCHES, EXPIRED_FETCHES)

_TOPICS_PER_STEP: Final = 200


def collect_traffic(traffic: Traffic, max_topics: int) -> Collected:
    """Return the counters of this broker, and those of up to `max_topics` topics."""
    topics = list(islice(traffic.by_topic.items(), max_topics))
    total = yield from traffic.total_in_steps()
    names: list[str] = []
    for topic, _ in topics:
        names.append(labels(topic=topic))
        if len(names) % _TOPICS_PER_STEP == 0:
            yield None
    of_topics = [counters for _, counters in topics]
    for metric, attribute in _BY_TOPIC:
        yield Family(metric, _samples(attribute, total, names, of_topics))
    for metric, attribute in _IN_TOTAL:
        yield Family(metric, [("", getattr(total, attribute))])
    yield Family(CONVERTED_FETCHES, [("", 0)])
    expired = {"consumer": traffic.expired_fetches, "follower": traffic.expired_follower_fetches}
    yield Family(EXPIRED_FETCHES, [(labels(fetcherType=name), count) for name, count in expired.items()])


def _samples(attribute: str, total: TopicTraffic, names: list[str], topics: list[TopicTraffic]) -> Iterator[Sample]:
    yield "", getattr(total, attribute)
    for name, counters in zip(names, topics, strict=True):
        yield name, getattr(counters, attribute)
