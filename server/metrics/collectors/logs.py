"""Metrics of the log directories, of flushes and of compaction."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from odradek.log.compaction.cleanable import first_dirty_offset
from odradek.server.metrics.declaration import Collected, Family, gauge, histogram, histogram_families, labels

if TYPE_CHECKING:
    from odradek.log.log_manager import LogManager
    from odradek.log.partition_log import PartitionLog

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

UNCLEANABLE_BYTES: Final = gauge(
    "kafka.log:type=LogCleanerManager,name=uncleanable-bytes", "Bytes of these logs that are not compacted."
)
CLEAN_TIME: Final = gauge(
    "kafka.log:type=LogCleaner,name=max-clean-time-secs",
    "Longest duration of the last compactions, of which there are as many as log.cleaner.threads.",
)
RECOPIED: Final = gauge(
    "kafka.log:type=LogCleaner,name=cleaner-recopy-percent",
    "Percentage of their bytes that they have written again.",
)
OVERDUE: Final = gauge(
    "kafka.log:type=LogCleaner,name=max-compaction-delay-secs",
    "Longest time for which a log was overdue by max.compaction.lag.ms at the last check.",
)

METRICS: Final = (
    OFFLINE_COUNT,
    OFFLINE,
    *FLUSHES,
    MAX_DIRTY,
    SINCE_RUN,
    UNCLEANABLE,
    UNCLEANABLE_BYTES,
    CLEAN_TIME,
    RECOPIED,
    OVERDUE,
)


def collect_logs(logs: "LogManager") -> Collected:
    """Return the metrics of logs."""
    failed = {path: directory.failure is not None for path, directory in logs.log_dirs.by_path.items()}
    yield Family(OFFLINE_COUNT, [("", sum(failed.values()))])
    yield Family(OFFLINE, [(labels(logDirectory=path), int(has_failed)) for path, has_failed in failed.items()])
    yield from histogram_families(FLUSHES, logs.flush_task.times)
    cleaner = logs.cleaner
    yield Family(MAX_DIRTY, [("", int(cleaner.max_dirty_ratio * 100))])
    yield Family(SINCE_RUN, [("", cleaner.since_sweep_ms)])
    uncleanable, uncleanable_bytes = Counter(dict.fromkeys(failed, 0)), Counter(dict.fromkeys(failed, 0))
    for topic, partition in list(cleaner.uncleanable):
        log = logs.table.get(topic, partition)
        if log is not None:
            uncleanable[log.log_directory] += 1
            uncleanable_bytes[log.log_directory] += _count_dirty_bytes(log, cleaner.offsets.get((topic, partition)))
            yield None
    yield Family(UNCLEANABLE, [(labels(logDirectory=path), count) for path, count in uncleanable.items()])
    yield Family(UNCLEANABLE_BYTES, [(labels(logDirectory=path), count) for path, count in uncleanable_bytes.items()])
    ended = list(cleaner.ended)
    before, after = sum(one.bytes_before for one in ended), sum(one.bytes_after for one in ended)
    yield Family(CLEAN_TIME, [("", round(max((one.duration_s for one in ended), default=0.0), 3))])
    yield Family(RECOPIED, [("", round(100 * after / before, 3) if before else 0)])
    yield Family(OVERDUE, [("", cleaner.max_overdue_ms // 1000)])


def _count_dirty_bytes(log: "PartitionLog", checkpoint: int | None) -> int:
    """Return the size of the segments from the first dirty offset on, without the active one."""
    first_dirty = first_dirty_offset(log, checkpoint)
    return sum(segment.size_bytes for segment in log.segments[:-1] if segment.base_offset >= first_dirty)
