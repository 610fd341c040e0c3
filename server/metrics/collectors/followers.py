"""Metrics of the partitions that this broker fetches from their leaders."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from odradek.server.metrics.declaration import Collected, Family, gauge, labels

if TYPE_CHECKING:
    from odradek.replication.replicas.replica_manager import FetchProgress

_MANAGER: Final = "kafka.server:type=ReplicaFetcherManager"

MAX_LAG: Final = gauge(f"{_MANAGER},name=MaxLag", "Largest number of offsets that a partition lacks.")
FAILED: Final = gauge(f"{_MANAGER},name=FailedPartitionsCount", "Partitions that wait for another leader epoch.")
LAG: Final = gauge("kafka.server:type=FetcherLagMetrics,name=ConsumerLag", "Offsets that a partition lacks.")

METRICS: Final = (MAX_LAG, FAILED, LAG)

_PARTITIONS_PER_STEP: Final = 200
_CLIENT: Final = labels(clientId="Replica")


def collect_followers(fetched: "Sequence[FetchProgress]", max_partitions: int) -> Collected:
    """Return the metrics of all fetched partitions, and the lag of up to `max_partitions`."""
    lags: list[tuple[str, int]] = []
    max_lag = failed = 0
    for number, one in enumerate(fetched):
        if number % _PARTITIONS_PER_STEP == 0:
            yield None
        max_lag = max(max_lag, one.lag or 0)
        failed += one.is_parked
    for one in islice(fetched, max_partitions):
        client_id = f"ReplicaFetcherThread-0-{one.leader}"
        lags.append((labels(clientId=client_id, topic=one.topic, partition=one.index), one.lag or 0))
        if len(lags) % _PARTITIONS_PER_STEP == 0:
            yield None
    yield Family(MAX_LAG, [(_CLIENT, max_lag)])
    yield Family(FAILED, [(_CLIENT, failed)])
    yield Family(LAG, lags)
