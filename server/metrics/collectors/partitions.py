"""Metrics of the replicas on this broker: each partition's log and replicas, and their numbers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.metrics.declaration import Collected, Family, Metric, Sample, gauge, meter

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager

_LOG: Final = "kafka.log:type=Log"
_PARTITION: Final = "kafka.cluster:type=Partition"
_MANAGER: Final = "kafka.server:type=ReplicaManager"

# The order of the values in `_Row.values`.
_OF_LOG: Final = (
    gauge(f"{_LOG},name=LogEndOffset", "Offset of the next record, by partition."),
    gauge(f"{_LOG},name=LogStartOffset", "Offset of the first record, by partition."),
    gauge(f"{_LOG},name=NumLogSegments", "Number of segments, by partition."),
    gauge(f"{_LOG},name=Size", "Size of the log in bytes, by partition."),
)
_OF_PARTITION: Final = (
    gauge(f"{_PARTITION},name=UnderReplicated", "1 if this broker leads and a replica is not in sync, by partition."),
    gauge(f"{_PARTITION},name=UnderMinIsr", "1 if this broker leads with too few replicas in sync, by partition."),
    gauge(f"{_PARTITION},name=AtMinIsr", "1 if this broker leads with just enough replicas in sync."),
    gauge(f"{_PARTITION},name=InSyncReplicasCount", "Replicas in sync if this broker leads, else 0, by partition."),
    gauge(f"{_PARTITION},name=ReplicasCount", "Replicas if this broker leads, else 0, by partition."),
    gauge(f"{_PARTITION},name=LastStableOffsetLag", "Offsets from the last stable offset to the high watermark."),
)

LEADERS: Final = gauge(f"{_MANAGER},name=LeaderCount", "Partitions that this broker leads.")
PARTITIONS: Final = gauge(f"{_MANAGER},name=PartitionCount", "Replicas on this broker.")
OFFLINE: Final = gauge(f"{_MANAGER},name=OfflineReplicaCount", "Replicas here whose log directory has failed.")
UNDER_REPLICATED: Final = gauge(f"{_MANAGER},name=UnderReplicatedPartitions", "Led here with a replica not in sync.")
UNDER_MIN_ISR: Final = gauge(f"{_MANAGER},name=UnderMinIsrPartitionCount", "Led here with too few replicas in sync.")
AT_MIN_ISR: Final = gauge(f"{_MANAGER},name=AtMinIsrPartitionCount", "Led here with just enough replicas in sync.")
REASSIGNING: Final = gauge(f"{_MANAGER},name=ReassigningPartitions", "Led here and being reassigned.")
LATE_TRANSACTIONS: Final = gauge(
    f"{_MANAGER},name=PartitionsWithLateTransactionsCount",
    "Led here with a transaction whose producer has written nothing for transaction.max.timeout.ms and five minutes.",
)
PRODUCER_IDS: Final = gauge(f"{_MANAGER},name=ProducerIdCount", "Idempotent producers in the logs on this broker.")
ISR_SHRINKS: Final = meter(f"{_MANAGER},name=IsrShrinksPerSec", "Removals from sets of replicas in sync.")
ISR_EXPANDS: Final = meter(f"{_MANAGER},name=IsrExpandsPerSec", "Additions to sets of replicas in sync.")
FAILED_ISR_UPDATES: Final = meter(f"{_MANAGER},name=FailedIsrUpdatesPerSec", "Changes that the controller refused.")

EXPIRED_PRODUCES: Final = meter(
    "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec",
    "Batches that were not replicated in time, also by partition where there are some.",
)

METRICS: Final = (
    *_OF_LOG,
    *_OF_PARTITION,
    LEADERS,
    PARTITIONS,
    OFFLINE,
    UNDER_REPLICATED,
    UNDER_MIN_ISR,
    AT_MIN_ISR,
    REASSIGNING,
    LATE_TRANSACTIONS,
    PRODUCER_IDS,
    ISR_SHRINKS,
    ISR_EXPANDS,
    FAILED_ISR_UPDATES,
    EXPIRED_PRODUCES,
)

LATE_MS: Final = 300_000
"""Time after transaction.max.timeout.ms after which a transaction is late, as in Kafka."""

_PARTITIONS_PER_STEP: Final = 64
"""Partitions whose state is read in one step, which takes some 0.3 ms."""


_SEGMENTS_PER_PARTITION: Final = 64
"""Segments whose sizes take as long to add as the rest of a partition."""


class _Row(NamedTuple):
    """The values of one partition, in the order of `_OF_LOG` and `_OF_PARTITION`."""

    labels: str
    of_log: tuple[int, ...]
    of_partition: tuple[int, ...]


class _Totals:
    """The sums over all replicas."""

    def __init__(self) -> None:
        self.leaders = self.offline = self.reassigning = self.producer_ids = self.late = 0
        self.under_replicated = self.under_min_isr = self.at_min_isr = 0


def collect_partitions(
    replicas: "ReplicaManager", metadata: "ClusterMetadata", max_partitions: int, late_since_ms: int
) -> Collected:
    """Return the metrics of replicas, and those of up to `max_partitions` partitions.

    late_since_ms: a transaction is late if its producer has written nothing since this time
    """
    rows: list[_Row] = []
    expired: list[Sample] = []
    totals = _Totals()
    partitions = list(replicas.partitions.values())
    work = 0
    for number, partition in enumerate(partitions):
        log = partition.log
        work += 1 if log is None else 1 + len(log.segments) // _SEGMENTS_PER_PARTITION
        if work >= _PARTITIONS_PER_STEP:
            work = 0
            yield None
        row = _read(partition, metadata, totals)
        if partition.is_leader and log is not None and log.state.producer_state.first_unstable_offset >= 0:
            totals.late += yield from log.state.producer_state.producers.find_late_transaction(late_since_ms)
        if number < max_partitions:
            rows.append(row)
            if partition.expired_produces:
                expired.append((row.labels, partition.expired_produces))
    yield from _total_families(len(partitions), totals)
    traffic = yield from replicas.traffic.total_in_steps()
    yield Family(ISR_SHRINKS, [("", traffic.isr_shrinks)])
    yield Family(ISR_EXPANDS, [("", traffic.isr_expands)])
    yield Family(FAILED_ISR_UPDATES, [("", traffic.failed_isr_updates)])
    yield Family(EXPIRED_PRODUCES, [("", traffic.expired_produces), *expired])
    for position, metric in enumerate(_OF_LOG):
        yield Family(metric, ((row.labels, row.of_log[position]) for row in rows if row.of_log))
    for position, metric in enumerate(_OF_PARTITION):
        yield Family(metric, ((row.labels, row.of_partition[position]) for row in rows))


def _read(partition: "Partition", metadata: "ClusterMetadata", totals: _Totals) -> _Row:
    """Return the values of a partition, and add them to the totals."""
    of_log: tuple[int, ...] = ()
    of_partition: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    log = partition.log
    if log is None:
        totals.offline += 1
    else:
        state = log.state
        of_log = state.log_end_offset, state.log_start_offset, len(log.segments), log.size_bytes
        totals.producer_ids += len(state.producer_state.producers)
        if partition.is_leader:
            of_partition = _read_led(partition, totals)
            known = metadata.partition(partition.topic, partition.index)
            totals.reassigning += known is not None and bool(known.adding or known.removing)
    return _Row(f'{{topic="{partition.topic}",partition="{partition.index}"}}', of_log, of_partition)


def _read_led(partition: "Partition", totals: _Totals) -> tuple[int, ...]:
    log = partition.log
    assert log is not None
    in_sync, count, least = len(partition.isr), len(partition.replicas), partition.min_isr
    is_under_replicated, is_under_min, is_at_min = in_sync < count, in_sync < least, in_sync == least
    totals.leaders += 1
    totals.under_replicated += is_under_replicated
    totals.under_min_isr += is_under_min
    totals.at_min_isr += is_at_min
    lag = log.state.high_watermark - log.state.last_stable_offset
    return int(is_under_replicated), int(is_under_min), int(is_at_min), in_sync, count, lag


def _total_families(count: int, totals: _Totals) -> Iterator[Family]:
    values: tuple[tuple[Metric, int], ...] = (
        (LEADERS, totals.leaders),
        (PARTITIONS, count),
        (OFFLINE, totals.offline),
        (UNDER_REPLICATED, totals.under_replicated),
        (UNDER_MIN_ISR, totals.under_min_isr),
        (AT_MIN_ISR, totals.at_min_isr),
        (REASSIGNING, totals.reassigning),
        (LATE_TRANSACTIONS, totals.late),
        (PRODUCER_IDS, totals.producer_ids),
    )
    for metric, value in values:
        sample: Sample = ("", value)
        yield Family(metric, [sample])
