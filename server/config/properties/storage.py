"""Properties of data directories, segments, retention, compaction, and the defaults of topics."""

import sys

from odradek.log.config import GZIP_LEVEL_NOTE, is_gzip_level
from odradek.properties import INT64_MAX, PropertySet, UpdateMode, boolean, double, integer, long, string, string_list
from odradek.server.config.properties.reasons import NO_CORDONING, NO_KRAFT, NO_REMOTE_STORAGE


class StorageProperties(PropertySet):
    """Data directories, segments, retention, compaction, and the defaults of topics."""

    log_dir = string_list(
        "log.dir",
        ("/tmp/kafka-logs",),
        unique=True,
        may_be_empty=False,
        doc="Data directories, used if log.dirs is not set.",
    )
    log_dirs = string_list(
        "log.dirs",
        None,
        unique=True,
        may_be_empty=False,
        doc="Data directories, separated by commas. `odradek start` uses ./data if neither this nor log.dir is "
        "set.",
    )
    log_dirs_adopt = boolean(
        "log.dirs.adopt",
        False,
        doc="Start even if log.dirs has partitions but no metadata store, and create a store for "
        "the found topics (docs/data-directories.md). No effect once there is a store. Apache Kafka has no such "
        "property.",
    )
    metadata_log_dir = string(
        "metadata.log.dir",
        None,
        doc="Directory of Apache Kafka's metadata log, which log.dirs.adopt reads; by default log.dirs.",
    )
    cordoned_log_dirs = string_list(
        "cordoned.log.dirs",
        (),
        update_mode=UpdateMode.PER_BROKER,
        no_effect=NO_CORDONING,
        doc="Directories without new partitions.",
    )
    num_recovery_threads_per_data_dir = integer(
        "num.recovery.threads.per.data.dir",
        2,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Number of logs per directory that are loaded concurrently at start.",
    )
    log_segment_bytes = integer(
        "log.segment.bytes",
        1_073_741_824,
        minimum=1048576,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Size at which a segment is rolled.",
    )
    log_segment_delete_delay_ms = long(
        "log.segment.delete.delay.ms",
        60_000,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Time for which the files of a deleted segment stay on disk.",
    )
    log_roll_ms = long(
        "log.roll.ms",
        None,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Age at which a segment is rolled; by default log.roll.hours.",
    )
    log_roll_hours = integer(
        "log.roll.hours",
        168,
        minimum=1,
        doc="Age in hours at which a segment is rolled.",
    )
    log_roll_jitter_ms = long(
        "log.roll.jitter.ms",
        None,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum random time subtracted from the age; by default log.roll.jitter.hours.",
    )
    log_roll_jitter_hours = integer(
        "log.roll.jitter.hours",
        0,
        minimum=0,
        doc="Maximum random time subtracted from the age, in hours.",
    )
    log_retention_ms = long(
        "log.retention.ms",
        None,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Age above which segments are deleted, -1 for no limit; by default log.retention.minutes.",
    )
    log_retention_minutes = integer(
        "log.retention.minutes",
        None,
        doc="Age in minutes above which segments are deleted; by default log.retention.hours.",
    )
    log_retention_hours = integer(
        "log.retention.hours",
        168,
        doc="Age in hours above which segments are deleted.",
    )
    log_retention_bytes = long(
        "log.retention.bytes",
        -1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Size of a partition above which old segments are deleted; negative for no limit.",
    )
    log_retention_check_interval_ms = long(
        "log.retention.check.interval.ms",
        300_000,
        minimum=1,
        doc="Interval of the retention check.",
    )
    log_cleanup_policy = string_list(
        "log.cleanup.policy",
        ("delete",),
        choices=("compact", "delete"),
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Cleanup policy: delete, compact or both.",
    )
    log_index_size_max_bytes = integer(
        "log.index.size.max.bytes",
        10_485_760,
        minimum=4,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum size of an index file.",
    )
    log_index_interval_bytes = integer(
        "log.index.interval.bytes",
        4096,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Bytes of records between two entries of the offset index.",
    )
    flush_before_acks = boolean(
        "flush.before.acks",
        False,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Sync records to the leader's disk before they are acknowledged (acks=1 and all) and can be read; topics "
        "can override it. Apache Kafka has no such property.",
    )
    log_flush_interval_messages = long(
        "log.flush.interval.messages",
        INT64_MAX,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Number of records after which a log is synced to disk.",
    )
    log_flush_interval_ms = long(
        "log.flush.interval.ms",
        None,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Time after which a log is synced to disk; by default log.flush.scheduler.interval.ms.",
    )
    log_flush_scheduler_interval_ms = long(
        "log.flush.scheduler.interval.ms",
        INT64_MAX,
        doc="Interval of the check for logs to sync to disk.",
    )
    log_flush_offset_checkpoint_interval_ms = integer(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        minimum=0,
        doc="Interval of the recovery point checkpoint.",
    )
    log_flush_start_offset_checkpoint_interval_ms = integer(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        minimum=0,
        doc="Interval of the log start offset checkpoint.",
    )
    log_preallocate = boolean(
        "log.preallocate",
        False,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Preallocate the file of an active segment, with a hole behind its batches.",
    )
    log_message_timestamp_type = string(
        "log.message.timestamp.type",
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Timestamp of records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    log_message_timestamp_before_max_ms = long(
        "log.message.timestamp.before.max.ms",
        INT64_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum time by which a record's CreateTime may be behind the broker's clock.",
    )
    log_message_timestamp_after_max_ms = long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum time by which a record's CreateTime may be ahead of the broker's clock.",
    )
    message_max_bytes = integer(
        "message.max.bytes",
        1_048_588,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum size of a record batch.",
    )
    compression_type = string(
        "compression.type",
        "producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Codec of stored batches; producer keeps the producer's codec.",
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        check=is_gzip_level,
        note=GZIP_LEVEL_NOTE,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Compression level of the broker for gzip.",
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        minimum=1,
        maximum=17,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Compression level of the broker for lz4.",
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        minimum=-131072,
        maximum=22,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Compression level of the broker for zstd.",
    )
    log_cleaner_enable = boolean(
        "log.cleaner.enable",
        True,
        doc="Enable compaction.",
    )
    log_cleaner_threads = integer(
        "log.cleaner.threads",
        1,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Number of logs that are compacted concurrently.",
    )
    log_cleaner_backoff_ms = long(
        "log.cleaner.backoff.ms",
        15_000,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Interval of the check for logs to compact, if there was none; values below 100 act as 100.",
    )
    log_cleaner_min_cleanable_ratio = double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        minimum=0,
        maximum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Minimum uncompacted share of a log before it is compacted again.",
    )
    log_cleaner_min_compaction_lag_ms = long(
        "log.cleaner.min.compaction.lag.ms",
        0,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Minimum time for which a record stays uncompacted.",
    )
    log_cleaner_max_compaction_lag_ms = long(
        "log.cleaner.max.compaction.lag.ms",
        INT64_MAX,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum time for which a record stays uncompacted.",
    )
    log_cleaner_delete_retention_ms = long(
        "log.cleaner.delete.retention.ms",
        86_400_000,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Time for which compaction keeps tombstones.",
    )
    log_cleaner_dedupe_buffer_size = long(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Memory for the keys of all compactions together.",
    )
    log_cleaner_io_buffer_size = integer(
        "log.cleaner.io.buffer.size",
        524_288,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Twice the size of a compaction's read, for all compactions together.",
    )
    log_cleaner_io_buffer_load_factor = double(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum share of log.cleaner.dedupe.buffer.size for keys.",
    )
    log_cleaner_io_max_bytes_per_second = double(
        "log.cleaner.io.max.bytes.per.second",
        sys.float_info.max,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum bytes per second that compaction reads and writes.",
    )
    log_dir_failure_timeout_ms = long(
        "log.dir.failure.timeout.ms",
        30_000,
        minimum=1,
        no_effect=NO_KRAFT,
        doc="Kafka's timeout for reporting a failed directory to the controller.",
    )
    log_local_retention_bytes = long(
        "log.local.retention.bytes",
        -2,
        minimum=-2,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_REMOTE_STORAGE,
        doc="Bytes kept locally with remote storage.",
    )
    log_local_retention_ms = long(
        "log.local.retention.ms",
        -2,
        minimum=-2,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_REMOTE_STORAGE,
        doc="Time kept locally with remote storage.",
    )
    log_initial_task_delay_ms = long(
        "log.initial.task.delay.ms",
        30_000,
        minimum=0,
        internal=True,
        doc="Delay after start before retention and checkpoints begin; for tests.",
    )
    producer_id_expiration_ms = integer(
        "producer.id.expiration.ms",
        86_400_000,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Idle time after which an idempotent producer's state is dropped.",
    )
    producer_id_expiration_check_interval_ms = integer(
        "producer.id.expiration.check.interval.ms",
        600_000,
        minimum=1,
        internal=True,
        doc="Interval of the check for idle producers.",
    )
