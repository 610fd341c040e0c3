"""How far a pipeline is behind. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple

from odradek.spark_it.interfaces.kafka_types import TopicPartition


class PartitionLag(NamedTuple):
    """One partition. `committed` is the group's offset, None if it has none; `checkpoint` what Spark's says."""

    topic: str
    partition: int
    committed: int | None
    checkpoint: int | None
    beginning: int
    end: int

    @property
    def position(self) -> int:
        """Where the pipeline is: by its group, else by its checkpoint, else at the beginning."""
        known = self.committed if self.committed is not None else self.checkpoint
        return self.beginning if known is None else known

    @property
    def lag(self) -> int:
        """Records that are there and not yet taken, as Kafka's tools count them."""
        return max(0, self.end - self.position)

    @property
    def is_lost(self) -> bool:
        """Whether records were deleted before the pipeline took them."""
        return self.position < self.beginning


def lags(
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    checkpoint: Mapping[TopicPartition, int],
) -> list[PartitionLag]:
    """The lag of each partition that has an end, in order."""
    return [
        PartitionLag(*at, committed.get(at), checkpoint.get(at), beginnings.get(at, 0), end)
        for at, end in sorted(ends.items())
    ]
