"""What holds of a running broker after each of its steps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odradek.server.fetching.purgatory import PartitionWatch

if TYPE_CHECKING:
    from odradek.server.broker import Broker


def left_waiting(broker: "Broker") -> Iterator[str]:
    """Says which requests wait although all clients are gone, and longer than any may."""
    for partition in broker.services.replicas:
        for watcher in (*partition.watchers, *partition.log_end_watchers):
            if isinstance(watcher, PartitionWatch):
                yield f"a request waits for {partition!r} and is never answered"


def violated(broker: "Broker") -> Iterator[str]:
    """Says what does not hold."""
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
