"""Assignment of replicas to brokers: Kafka's round robin, and its variant that distributes replicas over racks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata.image import BrokerMetadata


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
    racks: Mapping[int, str] | None = None,
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, the preferred leader first.

    Leaders are assigned round robin from the broker at `start`. The followers of a partition are `shift` brokers after
    its leader, one more in each round, so that the partitions of one leader do not all have the same followers. For
    added partitions `first_partition` is the number of existing ones. With `racks`, which then has the rack of each
    broker, a rack gets a second replica of a partition only when all racks have one; `start` is then a position in
    `alternate_racks(racks)`. Raises KafkaError INVALID_REPLICATION_FACTOR.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, but {count} "
            f"{'is' if count == 1 else 'are'} registered",
        )
    if replication_factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be positive")
    if racks is not None:
        brokers = alternate_racks(racks)
    indexes = range(first_partition, first_partition + partitions)
    if replication_factor == 1:
        alone = [(broker,) for broker in brokers]
        return [alone[(index + start) % count] for index in indexes]
    assigned = []
    for partition in indexes:
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        if racks is None:
            followers = _choose_followers(brokers, first, shift, replication_factor - 1)
        else:
            followers = _choose_followers_by_rack(brokers, first, shift, replication_factor - 1, racks)
        assigned.append((brokers[first], *followers))
    return assigned


def _choose_followers(brokers: Sequence[int], first: int, shift: int, wanted: int) -> list[int]:
    return [brokers[_follow(first, shift + further, len(brokers))] for further in range(wanted)]


def _choose_followers_by_rack(
    brokers: Sequence[int], first: int, shift: int, wanted: int, racks: Mapping[int, str]
) -> list[int]:
    """Return the first suitable brokers in the order of the round robin."""
    rack_count = len(set(racks.values()))
    used_racks, used_brokers = {racks[brokers[first]]}, {brokers[first]}
    followers: list[int] = []
    distance = shift * rack_count
    while len(followers) < wanted:
        broker = brokers[_follow(first, distance, len(brokers))]
        distance += 1
        if broker not in used_brokers and (racks[broker] not in used_racks or len(used_racks) == rack_count):
            followers.append(broker)
            used_brokers.add(broker)
            used_racks.add(racks[broker])
    return followers


def _follow(first: int, distance: int, count: int) -> int:
    """Return the position `distance` + 1 after `first`, without `first` itself."""
    return (first + 1 + distance % (count - 1)) % count


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers, one of each rack in turn, racks in the order of their names and brokers of their ids."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for broker in chain.from_iterable(rounds) if broker is not None]


def find_racks(brokers: Iterable[BrokerMetadata]) -> dict[int, str] | None:
    """Return the rack of each broker, None if no broker has one.

    Raises KafkaError UNKNOWN_SERVER_ERROR, as Kafka, if some brokers have a rack and others have none.
    """
    every = list(brokers)
    racks = {broker.broker_id: broker.rack for broker in every if broker.rack is not None}
    if not racks:
        return None
    if len(racks) < len(every):
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Not all brokers have rack information for replica rack aware assignment.",
        )
    return racks


def check_replicas(replicas: Sequence[int], is_registered: Callable[[int], bool], factor: int | None = None) -> None:
    """Check a manual assignment of a partition, which with `factor` must have that number of replicas.

    Raises KafkaError INVALID_REPLICA_ASSIGNMENT: of several errors, the one that Kafka reports.
    """
    if not replicas:
        raise invalid_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker in sorted(replicas):
        if not is_registered(broker):
            raise invalid_assignment(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker == previous:
            raise invalid_assignment(f"The manual partition assignment includes the broker {broker} more than once.")
        previous = broker
    if factor is not None and len(replicas) != factor:
        raise invalid_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )


def invalid_assignment(message: str) -> KafkaError:
    """Return a KafkaError INVALID_REPLICA_ASSIGNMENT."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
