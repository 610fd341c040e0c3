"""Lag of a pipeline by partition. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple

from odradek.spark_it.interfaces.kafka_types import TopicPartition


class PartitionLag(NamedTuple):
    """The lag of one partition. `committed` is the group's offset, `checkpoint` that of Spark's checkpoint; None if
    there is none.
    """

    topic: str
    partition: int
    committed: int | None
    checkpoint: int | None
    beginning: int
    end: int

    @property
    def position(self) -> int:
        """The pipeline's offset: the group's, else the checkpoint's, else the beginning."""
        offset = self.committed if self.committed is not None else self.checkpoint
        return self.beginning if offset is None else offset

    @property
    def lag(self) -> int:
        """The number of offsets between position and end, as Kafka's tools count it."""
        return max(0, self.end - self.position)

    @property
    def is_lost(self) -> bool:
        """True if records were deleted before the pipeline read them."""
        return self.position < self.beginning


def compute_lags(
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
