"""Comparison of the logs of a partition's replicas: below the lower of two high watermarks they are equal."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from odradek.replication.metadata.image import NO_LEADER
from odradek.simulation.history import Partition, name_of

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog
    from odradek.simulation.machine.broker_process import BrokerProcess
    from odradek.simulation.world import World


class Batch(NamedTuple):
    """A batch in a log."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    content: bytes


def logs_by_partition(brokers: Iterable["BrokerProcess"]) -> dict[Partition, dict[str, "PartitionLog"]]:
    """Return the logs of all partitions by the names of the brokers that run."""
    found: dict[Partition, dict[str, PartitionLog]] = {}
    for process in brokers:
        if process.broker is None or not process.is_up:
            continue
        for replica in process.broker.services.replicas:
            if replica.log is not None:
                found.setdefault((replica.topic, replica.index), {})[process.name] = replica.log
    return found


def are_replicated(world: "World") -> bool:
    """Return whether consumers can read all records in the logs of all brokers.

    A broker keeps the log of a replica that was removed while it was not registered. No follower copies its last
    records.
    """
    return all(
        replica.log is None
        or replica.log.failure is not None
        or replica.log.high_watermark >= replica.log.log_end_offset
        for process in world.brokers
        if process.broker is not None and process.is_up
        for replica in process.broker.services.replicas
        if replica.leader != NO_LEADER
    )


def find_differences(brokers: Iterable["BrokerProcess"]) -> Iterator[str]:
    """Report partitions whose replicas differ below the lower high watermark, unless they are compacted."""
    for partition, logs in logs_by_partition(brokers).items():
        if any(log.config.compacts for log in logs.values()):
            continue
        names = list(logs)
        for name in names[1:]:
            what = _compare(logs[names[0]], logs[name])
            if what is not None:
                yield f"{name_of(partition)} of {names[0]} and {name}: {what}"


def _compare(one: "PartitionLog", other: "PartitionLog") -> str | None:
    start = max(one.log_start_offset, other.log_start_offset)
    end = min(one.high_watermark, other.high_watermark)
    ours, theirs = ({batch.base_offset: batch for batch in _batches(log, start, end)} for log in (one, other))
    for offset in sorted(ours.keys() | theirs.keys()):
        mine, yours = ours.get(offset), theirs.get(offset)
        if mine == yours:
            continue
        if mine is None or yours is None:
            return f"only one has a batch at {offset}, below {end}"
        if mine.leader_epoch != yours.leader_epoch:
            return f"the batch at {offset} has leader epochs {mine.leader_epoch} and {yours.leader_epoch}"
        return f"the batches at {offset}, to {mine.last_offset} and {yours.last_offset}, differ"
    return None


def _batches(log: "PartitionLog", start: int, end: int) -> Iterator[Batch]:
    """Iterate over the batches that are completely within a range of offsets."""
    for segment in log.segments:
        for position, header in segment.headers():
            if header.base_offset >= start and header.last_offset < end:
                content = segment.file.pread(position, header.size_bytes)
                yield Batch(header.base_offset, header.last_offset, header.partition_leader_epoch, content)
