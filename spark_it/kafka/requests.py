"""The interface of requests to Kafka by commands of pipelines; `cluster` implements it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.interfaces.kafka_types import Offsets, Partitions, TopicPartition


class ClusterError(Exception):
    """A request failed; `str()` has the request and the reason."""


class MissingTopicsError(ClusterError):
    """Topics of a pipeline do not exist."""

    def __init__(self, topics: Sequence[str]) -> None:
        is_one = len(topics) == 1
        which = f"topic {topics[0]} does" if is_one else f"topics {', '.join(topics)} do"
        super().__init__(f"{which} not exist; create {'it' if is_one else 'them'}")
        self.topics = tuple(topics)


class ClusterRequests(Protocol):
    """Topics, their offsets and the offsets that groups have committed. Every method raises ClusterError."""

    def list_partitions(self, source: TopicSource) -> list[TopicPartition]:
        """Return the partitions of a source's topics, sorted. Raises MissingTopicsError if a topic of `topics` is
        missing."""

    def count_brokers(self) -> int:
        """Return the number of live brokers."""

    def create_topic(self, topic: str, replication_factor: int) -> None:
        """Create a topic with one partition, unless it exists. Replication factor -1 is the brokers' default."""

    def fetch_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topic id of each topic that has one; it distinguishes topics of the same name."""

    def fetch_earliest(self, partitions: Partitions) -> Offsets:
        """Return the log start offset of each partition."""

    def fetch_latest(self, partitions: Partitions) -> Offsets:
        """Return the high watermark of each partition."""

    def fetch_stable_ends(self, partitions: Partitions) -> Offsets:
        """Return the last stable offset of each partition."""

    def fetch_offsets_at(self, partitions: Partitions, timestamp_ms: int) -> Offsets:
        """Return the offset of the first record at a time or later; the high watermark if there is none."""

    def fetch_committed(self, group: str, partitions: Partitions) -> Offsets:
        """Return the committed offsets of a group; partitions without one are omitted."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets of a group without members, each with the same metadata."""

    def fetch_offsets_retention_ms(self) -> int | None:
        """Return the smallest offsets.retention.minutes of all brokers; None if not every broker reports it."""
