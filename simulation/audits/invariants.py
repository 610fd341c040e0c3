"""Invariants of a running broker, checked after each step, after each start, or at the end."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from odradek.server.fetching.purgatory import PartitionWatch

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition
    from odradek.server.broker import Broker


def find_waiting_requests(broker: "Broker") -> Iterator[str]:
    """Report requests that still wait although all clients are gone and every timeout has passed.

    Followers' fetches always wait for the log end.
    """
    for partition in broker.services.replicas:
        has_followers = len(partition.replicas) > 1
        for watcher in (*partition.watchers, *(() if has_followers else partition.log_end_watchers)):
            if isinstance(watcher, PartitionWatch):
                yield f"a request that waits for {partition!r} is never completed"


def find_violations(broker: "Broker") -> Iterator[str]:
    """Report violated invariants."""
    for partition in broker.services.replicas:
        yield from find_violations_of(partition)


def find_violations_of(partition: "Partition") -> Iterator[str]:
    """Report violated invariants of one replica."""
    log = partition.log
    if log is None:
        return
    state = log.state
    start, stable, high, end = (
        state.log_start_offset, state.last_stable_offset, state.high_watermark, state.log_end_offset,
    )  # fmt: skip
    if partition.is_leader and partition.leader_epoch < state.leader_epochs.latest_epoch:
        yield f"{partition!r}: the log has leader epoch {log.latest_epoch}"
    if not start <= stable <= high <= end:
        yield (
            f"{partition!r}: log start {start} <= last stable offset {stable} <= high watermark {high} "
            f"<= log end {end} does not hold"
        )


def find_coordinators_behind_markers(broker: "Broker") -> Iterator[str]:
    """Report coordinators that start in a lower epoch than a marker has: partitions would refuse their markers.

    The epochs of coordinators differ later, when a log directory fails; see `find_fenced_coordinators`.
    """
    services = broker.services
    led = services.replicas.list_led(TRANSACTION_STATE_TOPIC)
    for log in services.logs.all_logs():
        marked = log.producer_state.producers.coordinator_epoch
        for partition in led:
            if partition.leader_epoch < marked:
                yield f"{partition!r}: {log.directory} has a marker of coordinator epoch {marked}"


def find_fenced_coordinators(broker: "Broker") -> Iterator[str]:
    """Report coordinators with a lower epoch than the marker that a partition has of one of their producers."""
    coordinators = broker.services.transactions_in_use
    epochs = {
        transaction.producer_id: shard.coordinator_epoch
        for shard in (() if coordinators is None else coordinators.shards())
        for transaction in shard._state.transactions.values()
    }
    for log in broker.services.logs.all_logs():
        producers = log.producer_state.producers
        for producer_id in producers:
            entry = producers.get(producer_id)
            epoch = epochs.get(producer_id)
            if entry is not None and epoch is not None and epoch < entry.coordinator_epoch:
                yield (
                    f"{log.directory} has a marker of coordinator epoch {entry.coordinator_epoch} for producer "
                    f"{producer_id}, whose coordinator has epoch {epoch}"
                )
