"""Invariants of a running broker, checked after each step."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odradek.server.fetching.purgatory import PartitionWatch

if TYPE_CHECKING:
    from odradek.server.broker import Broker


def left_waiting(broker: "Broker") -> Iterator[str]:
    """Report requests that still wait although all clients are gone and every timeout has passed."""
    for partition in broker.services.replicas:
        for watcher in (*partition.watchers, *partition.log_end_watchers):
            if isinstance(watcher, PartitionWatch):
                yield f"a request that waits for {partition!r} is never completed"


def violated(broker: "Broker") -> Iterator[str]:
    """Report violated invariants."""
    for partition in broker.services.replicas:
        log = partition.log
        if log is None:
            continue
        start, stable, high, end = (
            log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset,
        )  # fmt: skip
        if not start <= stable <= high <= end:
            yield (
                f"{partition!r}: log start {start} <= last stable offset {stable} <= high watermark {high} "
                f"<= log end {end} does not hold"
            )
