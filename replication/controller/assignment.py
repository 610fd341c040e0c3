"""Assignment of replicas to brokers (Kafka's round robin, not rack-aware)."""

from collections.abc import Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode, KafkaError


class RandomSource(Protocol):
    """The part of `random.Random` that is used here."""

    def randrange(self, stop: int, /) -> int: ...

    def getrandbits(self, bits: int, /) -> int: ...

    def shuffle(self, items: list[object], /) -> None: ...


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, the preferred leader first.

    Leaders are assigned round robin from the broker at `start`. The followers of a partition are `shift` brokers after
    its leader, one more in each round, so that the partitions of one leader do not all have the same followers. For
    added partitions `first_partition` is the number of existing ones. Raises KafkaError INVALID_REPLICATION_FACTOR.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, but {count} are registered",
        )
    if replication_factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be positive")
    indexes = range(first_partition, first_partition + partitions)
    if replication_factor == 1:
        alone = [(broker,) for broker in brokers]
        return [alone[(index + start) % count] for index in indexes]
    assigned = []
    for partition in indexes:
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        replicas = [brokers[first]]
        for further in range(replication_factor - 1):
            distance = 1 + (shift + further) % (count - 1)
            replicas.append(brokers[(first + distance) % count])
        assigned.append(tuple(replicas))
    return assigned
