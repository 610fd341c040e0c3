"""Requests about records, offsets in logs, and metadata."""

from typing import Any, Final

from compat_tests.authorization.brokers import NOT_READY, batch
from compat_tests.authorization.case import HIDDEN, TOPICS, Case, Values, by_id, named, new_topics

NOT_CREATED: Final = NOT_READY | {3, 5}
"""Apache Kafka creates a topic after the response to the first request."""

_FETCHED: Final = {"partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}


def _produce(rows: list[Values], transactional_id: str | None = None, acks: int = -1) -> Values:
    return {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 10_000, "topic_data": rows}


def _records(*, transactional: bool = False) -> Values:
    return {"partition_data": [{"index": 0, "records": batch(transactional=transactional)}]}


def _fetch(rows: list[Values], **more: Any) -> Values:
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1, "topics": rows, **more}


def named_data(*, transactional: bool = False) -> list[Values]:
    """Return a batch for each topic."""
    return named(**_records(transactional=transactional))


RECORD_CASES: Final = (
    Case("Produce", (9, 12), lambda broker, number: _produce(named_data())),
    Case("Produce", (13,), lambda broker, number: _produce(by_id(broker, **_records()))),
    Case("Produce", (9,), lambda broker, number: _produce(named_data()[:1]), label="one topic"),
    Case("Produce", (9,), lambda broker, number: _produce(named_data()[:1], acks=0), is_answered=False, label="acks=0"),
    Case(
        "Produce",
        (9,),
        lambda broker, number: _produce([named_data()[0], named_data()[2]], acks=0),
        is_answered=False,
        label="acks=0, hidden topic",
    ),
    Case(
        "Produce",
        (9, 12),
        lambda broker, number: _produce(named_data(transactional=True), "transaction"),
        label="transaction",
    ),
    Case("Produce", (9,), lambda broker, number: _produce(named_data(), "hidden-transaction"), label="only an id"),
    Case(
        "Produce",
        (9,),
        lambda broker, number: _produce(named_data(transactional=True), "hidden-transaction"),
        label="hidden transaction",
    ),
    Case("Produce", (9,), lambda broker, number: _produce(named_data(transactional=True)), label="no transactional id"),
    Case("Fetch", (4, 12), lambda broker, number: _fetch([{"topic": name, **_FETCHED} for name in TOPICS])),
    Case("Fetch", (13, 18), lambda broker, number: _fetch(by_id(broker, **_FETCHED))),
    Case(
        "Fetch",
        (12,),
        lambda broker, number: _fetch([{"topic": n, **_FETCHED} for n in TOPICS], session_epoch=0),
        label="session",
    ),
    Case(
        "Fetch",
        (12,),
        lambda broker, number: _fetch([{"topic": n, **_FETCHED} for n in TOPICS], replica_id=7),
        label="follower",
    ),
    Case(
        "Fetch",
        (18,),
        lambda broker, number: _fetch(by_id(broker, **_FETCHED), replica_state={"replica_id": 7, "replica_epoch": -1}),
        label="follower",
    ),
    Case(
        "ListOffsets",
        (1, 11),
        lambda broker, number: {
            "replica_id": -1,
            "topics": named(
                partitions=[{"partition_index": 0, "timestamp": -1}, {"partition_index": 9, "timestamp": -1}]
            ),
        },
    ),
    Case("Metadata", (4, 9), lambda broker, number: {"topics": named(), "allow_auto_topic_creation": False}),
    Case(
        "Metadata",
        (12, 13),
        lambda broker, number: {
            "topics": [{"name": None, **row} for row in by_id(broker)],
            "include_topic_authorized_operations": True,
            "allow_auto_topic_creation": False,
        },
    ),
    Case(
        "Metadata",
        (8, 10, 12),
        lambda broker, number: {
            "topics": named(),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
    ),
    Case(
        "Metadata",
        (9, 12),
        lambda broker, number: {
            "topics": None,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        label="all topics",
    ),
    Case("Metadata", (0,), lambda broker, number: {"topics": []}, label="all topics"),
    Case(
        "Metadata",
        (3, 9),
        lambda broker, number: {
            "topics": [{"name": name} for name in (f"new-{number}", f"hidden-new-{number}", "b a d", HIDDEN)]
        },
        topics=lambda number: (*new_topics(number), "b a d"),
        label="creation",
        retried=NOT_CREATED,
    ),
    Case(
        "DeleteRecords",
        (0, 2),
        lambda broker, number: {
            "topics": named(partitions=[{"partition_index": 0, "offset": 0}, {"partition_index": 9, "offset": 0}]),
            "timeout_ms": 10_000,
        },
    ),
    Case(
        "OffsetForLeaderEpoch",
        (2, 4),
        lambda broker, number: {
            "replica_id": -1,
            "topics": [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]} for name in TOPICS],
        },
    ),
    Case(
        "DescribeProducers",
        (0,),
        lambda broker, number: {
            "topics": [*named(partition_indexes=[0, 9]), {"name": "b a d", "partition_indexes": [0]}]
        },
    ),
    Case("DescribeTopicPartitions", (0,), lambda broker, number: {"topics": named(), "response_partition_limit": 2000}),
    Case(
        "DescribeTopicPartitions",
        (0,),
        lambda broker, number: {"topics": named(), "response_partition_limit": 1},
        label="page",
    ),
    Case(
        "DescribeTopicPartitions",
        (0,),
        lambda broker, number: {
            "topics": named(),
            "response_partition_limit": 9,
            "cursor": {"topic_name": HIDDEN, "partition_index": 0},
        },
        label="cursor",
    ),
    Case(
        "DescribeTopicPartitions",
        (0,),
        lambda broker, number: {"topics": [], "response_partition_limit": 2000},
        label="all topics",
    ),
)
