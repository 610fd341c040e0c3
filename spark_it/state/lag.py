"""Lag of a pipeline by partition. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple

from odradek.spark_it.interfaces.kafka_types import TopicPartition


class PartitionLag(NamedTuple):
    """One partition. `committed` is the group's offset, None if it has none; `checkpoint` is the offset in Spark's
    checkpoint.
    """

    topic: str
    partition: int
    committed: int | None
    checkpoint: int | None
    beginning: int
    end: int

    @property
    def position(self) -> int:
        """The pipeline's offset: that of its group, else of its checkpoint, else the beginning."""
        known = self.committed if self.committed is not None else self.checkpoint
        return self.beginning if known is None else known

    @property
    def lag(self) -> int:
        """The number of records after the position, as Kafka's tools count it."""
        return max(0, self.end - self.position)

    @property
    def is_lost(self) -> bool:
        """True if records were deleted before the pipeline read them."""
        return self.position < self.beginning


def lags(
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    checkpoint: Mapping[TopicPartition, int],
) -> list[PartitionLag]:
    """Return the lag of each partition that has an end, in order."""
    return [
        PartitionLag(*at, committed.get(at), checkpoint.get(at), beginnings.get(at, 0), end)
        for at, end in sorted(ends.items())
    ]
