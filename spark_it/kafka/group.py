"""The interface of requests to Kafka by `status`, `reset` and a run; `cluster` implements it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.interfaces.kafka_types import Offsets, Partitions, TopicPartition


class ClusterError(Exception):
    """A request that failed; `str()` has the request and the reason."""


class MissingTopicsError(ClusterError):
    """Topics that a pipeline names and that do not exist."""

    def __init__(self, topics: Sequence[str]) -> None:
        is_one = len(topics) == 1
        which = f"topic {topics[0]} does" if is_one else f"topics {', '.join(topics)} do"
        super().__init__(f"{which} not exist; create {'it' if is_one else 'them'}")
        self.topics = tuple(topics)


class Group(Protocol):
    """Topics, their offsets and the offsets that groups have committed. Every method raises ClusterError."""

    def partitions(self, source: TopicSource) -> list[TopicPartition]:
        """The partitions of a source's topics, in order. Raises MissingTopicsError for those that are named."""

    def broker_count(self) -> int:
        """The brokers that are there."""

    def create_topic(self, topic: str, replication_factor: int) -> None:
        """Creates a topic of one partition; nothing happens if it is there by now. -1 is the brokers' own factor."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """What tells topics from others of their names, before them or elsewhere; nothing of a topic without."""

    def earliest(self, partitions: Partitions) -> Offsets:
        """The first offset of each partition."""

    def latest(self, partitions: Partitions) -> Offsets:
        """The end of each partition, open transactions included."""

    def stable_ends(self, partitions: Partitions) -> Offsets:
        """The end of each partition, before the first open transaction."""

    def at_time(self, partitions: Partitions, timestamp_ms: int) -> Offsets:
        """The offset of the first record at a time or later; the end where there is none."""

    def committed(self, group: str, partitions: Partitions) -> Offsets:
        """The offsets that a group has committed; nothing for a partition without."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commits offsets for a group that has no members, each with the same metadata."""

    def offsets_retention_ms(self) -> int | None:
        """The shortest time for which a broker keeps the offsets of groups; None if not every broker reports it."""
