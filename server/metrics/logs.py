"""Metrics of the log directories, of flushes and of compaction."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from odradek.log.background.histogram import quantiles
from odradek.server.metrics.declaration import QUANTILES, Collected, Family, gauge, histogram, labels

if TYPE_CHECKING:
    from odradek.log.log_manager import LogManager

OFFLINE_COUNT: Final = gauge("kafka.log:type=LogManager,name=OfflineLogDirectoryCount", "Failed log directories.")
OFFLINE: Final = gauge("kafka.log:type=LogManager,name=LogDirectoryOffline", "1 if the log directory has failed.")
FLUSHES: Final = histogram("kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs", "Time of a flush, in ms.")
MAX_DIRTY: Final = gauge(
    "kafka.log:type=LogCleanerManager,name=max-dirty-percent",
    "Largest percentage of not compacted bytes of the logs that were due at the last check.",
)
SINCE_RUN: Final = gauge(
    "kafka.log:type=LogCleanerManager,name=time-since-last-run-ms", "Time since the logs were checked for compaction."
)
UNCLEANABLE: Final = gauge(
    "kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count", "Logs that cannot be compacted, by directory."
)

METRICS: Final = (OFFLINE_COUNT, OFFLINE, *FLUSHES, MAX_DIRTY, SINCE_RUN, UNCLEANABLE)


def collect_logs(logs: "LogManager") -> Collected:
    """Return the metrics of logs."""
    failed = {path: directory.failure is not None for path, directory in logs.log_dirs.by_path.items()}
    yield Family(OFFLINE_COUNT, [("", sum(failed.values()))])
    yield Family(OFFLINE, [(labels(logDirectory=path), int(has_failed)) for path, has_failed in failed.items()])
    times = logs.flush_task.times
    found = quantiles(times.recent_buckets(), [fraction for fraction, _ in QUANTILES])
    yield Family(
        FLUSHES.quantiles,
        [(labels(quantile=label), round(one * 1000, 3)) for (_, label), one in zip(QUANTILES, found, strict=True)],
    )
    yield Family(FLUSHES.observations, [("", times.count)])
    cleaner = logs.cleaner
    yield Family(MAX_DIRTY, [("", int(cleaner.max_dirty_ratio * 100))])
    yield Family(SINCE_RUN, [("", cleaner.since_sweep_ms)])
    uncleanable = Counter(dict.fromkeys(failed, 0))
    for topic, partition in list(cleaner.uncleanable):
        log = logs.table.get(topic, partition)
        if log is not None:
            uncleanable[log.log_directory] += 1
    yield Family(UNCLEANABLE, [(labels(logDirectory=path), count) for path, count in uncleanable.items()])
