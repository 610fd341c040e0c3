"""Types of partitions, offsets and headers, without a Kafka client."""

from collections.abc import Iterable

TopicPartition = tuple[str, int]
Partitions = Iterable[TopicPartition]
Offsets = dict[TopicPartition, int]
Header = tuple[str, bytes | None]
