"""Topic properties. Source: documentation of Apache Kafka 4.3, "Topic-Level Configs"."""

from odradek.properties import (
    INT64_MAX,
    PropertyError,
    PropertySet,
    Synonym,
    boolean,
    double,
    integer,
    long,
    string,
    string_list,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MINUTE_MS = 60_000

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("compact", "delete")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

NO_REMOTE_STORAGE = "there is no remote storage"
CLUSTER_ONLY = "the broker is not in a cluster"
"""Reasons why properties are accepted without effect; CLUSTER_ONLY applies to a single broker only."""

GZIP_LEVEL_NOTE = "between 1 and 9, or -1"
THROTTLED_REPLICAS_NOTE = "* or a list of partition:broker pairs"


def is_gzip_level(level: int) -> bool:
    """Return whether a compression level is valid for gzip; -1 is gzip's default."""
    return level == -1 or 1 <= level <= 9


def is_throttled_replicas(entries: tuple[str, ...]) -> bool:
    """Return whether a list names replicas as `partition:broker`, or all of them as `*`."""
    if "".join(entries) == "*":
        return True
    for entry in entries:
        partition, colon, broker = entry.partition(":")
        if entry and not (colon and _is_id(partition) and _is_id(broker)):
            return False
    return True


def _is_id(text: str) -> bool:
    """Return whether a text is a number of up to ten digits, as that of a partition or of a broker."""
    return text.isascii() and text.isdigit() and len(text) <= 10


class LogConfig(PropertySet):
    """Configuration of a topic's logs.

    `values` are the topic's own properties, `base` the broker's defaults for topics.

    Derived attributes:
        segment_limit_bytes: size at which a segment is rolled: `internal.segment.bytes` or `segment.bytes`
        max_segment_ms: age at which a segment is rolled; for compacted topics at most `max.compaction.lag.ms`
        preallocated_bytes: preallocated size of the file of an active segment, 0 for none
        compacts, deletes: cleanup policies; a topic with neither keeps all data
    """

    segment_limit_bytes: int
    max_segment_ms: int
    preallocated_bytes: int
    compacts: bool
    deletes: bool

    cleanup_policy = string_list(
        "cleanup.policy",
        ("delete",),
        choices=CLEANUP_POLICIES,
        synonyms=["log.cleanup.policy"],
        doc="Cleanup policy: delete old segments, compact to the last value of each key, or both.",
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        check=is_gzip_level,
        note=GZIP_LEVEL_NOTE,
        synonyms=["compression.gzip.level"],
        doc="Compression level of the broker if compression.type is gzip.",
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        minimum=1,
        maximum=17,
        synonyms=["compression.lz4.level"],
        doc="Compression level of the broker if compression.type is lz4.",
    )
    compression_type = string(
        "compression.type",
        "producer",
        choices=COMPRESSION_TYPES,
        synonyms=["compression.type"],
        doc="Codec of stored batches; producer keeps the producer's codec.",
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        minimum=-131072,
        maximum=22,
        synonyms=["compression.zstd.level"],
        doc="Compression level of the broker if compression.type is zstd.",
    )
    delete_retention_ms = long(
        "delete.retention.ms",
        DAY_MS,
        minimum=0,
        synonyms=["log.cleaner.delete.retention.ms"],
        doc="Time for which compaction keeps tombstones, so that consumers that started earlier still read them.",
    )
    file_delete_delay_ms = long(
        "file.delete.delay.ms",
        60_000,
        minimum=0,
        synonyms=["log.segment.delete.delay.ms"],
        doc="Time for which the files of a deleted segment stay on disk.",
    )
    flush_before_acks = boolean(
        "flush.before.acks",
        False,
        synonyms=["flush.before.acks"],
        doc="Sync records to disk before they are acknowledged (acks=1 and all) and can be read. "
        "Apache Kafka has no such property.",
    )
    flush_messages = long(
        "flush.messages",
        INT64_MAX,
        minimum=1,
        synonyms=["log.flush.interval.messages"],
        doc="Number of records after which the log is synced to disk.",
    )
    flush_ms = long(
        "flush.ms",
        INT64_MAX,
        minimum=0,
        synonyms=["log.flush.interval.ms", "log.flush.scheduler.interval.ms"],
        doc="Time after which the log is synced to disk.",
    )
    follower_replication_throttled_replicas = string_list(
        "follower.replication.throttled.replicas",
        (),
        check=is_throttled_replicas,
        note=THROTTLED_REPLICAS_NOTE,
        no_effect=CLUSTER_ONLY,
        doc="Followers whose fetches are throttled.",
    )
    index_interval_bytes = integer(
        "index.interval.bytes",
        4096,
        minimum=0,
        synonyms=["log.index.interval.bytes"],
        doc="Bytes of records between two entries of the offset index; values above 65536 act as 65536.",
    )
    internal_segment_bytes = integer(
        "internal.segment.bytes",
        None,
        internal=True,
        doc="Overrides segment.bytes without its lower bound; for tests.",
    )
    leader_replication_throttled_replicas = string_list(
        "leader.replication.throttled.replicas",
        (),
        check=is_throttled_replicas,
        note=THROTTLED_REPLICAS_NOTE,
        no_effect=CLUSTER_ONLY,
        doc="Leaders whose responses to followers are throttled.",
    )
    local_retention_bytes = long(
        "local.retention.bytes",
        -2,
        minimum=-2,
        no_effect=NO_REMOTE_STORAGE,
        synonyms=["log.local.retention.bytes"],
        doc="Bytes kept locally if segments are also in remote storage; -2 means retention.bytes.",
    )
    local_retention_ms = long(
        "local.retention.ms",
        -2,
        minimum=-2,
        no_effect=NO_REMOTE_STORAGE,
        synonyms=["log.local.retention.ms"],
        doc="Time for which segments that are also in remote storage stay local; -2 means retention.ms.",
    )
    max_compaction_lag_ms = long(
        "max.compaction.lag.ms",
        INT64_MAX,
        minimum=1,
        synonyms=["log.cleaner.max.compaction.lag.ms"],
        doc="Maximum time for which a record stays uncompacted.",
    )
    max_message_bytes = integer(
        "max.message.bytes",
        1_048_588,
        minimum=0,
        synonyms=["message.max.bytes"],
        doc="Maximum size of a record batch, as sent by the producer and as stored.",
    )
    message_timestamp_after_max_ms = long(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        minimum=0,
        synonyms=["log.message.timestamp.after.max.ms"],
        doc="Maximum time by which a record's CreateTime may be ahead of the broker's clock.",
    )
    message_timestamp_before_max_ms = long(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        minimum=0,
        synonyms=["log.message.timestamp.before.max.ms"],
        doc="Maximum time by which a record's CreateTime may be behind the broker's clock.",
    )
    message_timestamp_type = string(
        "message.timestamp.type",
        "CreateTime",
        choices=TIMESTAMP_TYPES,
        synonyms=["log.message.timestamp.type"],
        doc="Timestamp of records: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    min_cleanable_dirty_ratio = double(
        "min.cleanable.dirty.ratio",
        0.5,
        minimum=0,
        maximum=1,
        synonyms=["log.cleaner.min.cleanable.ratio"],
        doc="Minimum uncompacted share of a log before it is compacted again.",
    )
    min_compaction_lag_ms = long(
        "min.compaction.lag.ms",
        0,
        minimum=0,
        synonyms=["log.cleaner.min.compaction.lag.ms"],
        doc="Minimum time for which a record stays uncompacted.",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        minimum=1,
        synonyms=["min.insync.replicas"],
        doc="Minimum number of in-sync replicas for a write with acks=all.",
    )
    preallocate = boolean(
        "preallocate",
        False,
        synonyms=["log.preallocate"],
        doc="Preallocate the file of an active segment to segment.bytes, with a hole behind its batches. This "
        "makes syncs cheaper and takes no disk space; a rolled segment is truncated to its batches.",
    )
    remote_log_copy_disable = boolean(
        "remote.log.copy.disable",
        False,
        no_effect=NO_REMOTE_STORAGE,
        doc="Makes a topic's remote storage read-only.",
    )
    remote_log_delete_on_disable = boolean(
        "remote.log.delete.on.disable",
        False,
        no_effect=NO_REMOTE_STORAGE,
        doc="Delete the data in remote storage when remote storage is disabled.",
    )
    remote_storage_enable = boolean(
        "remote.storage.enable",
        False,
        no_effect=NO_REMOTE_STORAGE,
        doc="Keeps old segments in remote storage, which this broker does not have.",
    )
    retention_bytes = long(
        "retention.bytes",
        -1,
        synonyms=["log.retention.bytes"],
        doc="Size of a partition above which old segments are deleted; negative for no limit.",
    )
    retention_ms = long(
        "retention.ms",
        7 * DAY_MS,
        minimum=-1,
        synonyms=[
            "log.retention.ms",
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ],
        doc="Age above which segments are deleted; -1 for no limit.",
    )
    segment_bytes = integer(
        "segment.bytes",
        1 << 30,
        minimum=1 << 20,
        synonyms=["log.segment.bytes"],
        doc="Size at which a segment is rolled.",
    )
    segment_index_bytes = integer(
        "segment.index.bytes",
        10 << 20,
        minimum=4,
        synonyms=["log.index.size.max.bytes"],
        doc="Maximum size of an index file; a segment with a full index is rolled.",
    )
    segment_jitter_ms = long(
        "segment.jitter.ms",
        0,
        minimum=0,
        synonyms=["log.roll.jitter.ms", Synonym("log.roll.jitter.hours", HOUR_MS)],
        doc="Maximum random time subtracted from segment.ms, so that segments are not all rolled at once.",
    )
    segment_ms = long(
        "segment.ms",
        7 * DAY_MS,
        minimum=1,
        synonyms=["log.roll.ms", Synonym("log.roll.hours", HOUR_MS)],
        doc="Age at which a segment is rolled even if it is not full.",
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        synonyms=["unclean.leader.election.enable"],
        no_effect=CLUSTER_ONLY,
        doc="Allow a replica that is not in sync to become leader, which can lose records.",
    )

    def derive(self) -> None:
        policies = self.cleanup_policy
        self.compacts = "compact" in policies
        self.deletes = "delete" in policies
        override = self.internal_segment_bytes
        self.segment_limit_bytes = self.segment_bytes if override is None else override
        self.preallocated_bytes = self.segment_limit_bytes if self.preallocate else 0
        lag_ms = self.max_compaction_lag_ms
        self.max_segment_ms = min(lag_ms, self.segment_ms) if self.compacts else self.segment_ms

    def validate(self) -> None:
        if self.remote_storage_enable:
            raise PropertyError("remote.storage.enable", "true", "this broker has no remote storage")
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise PropertyError(
                "min.compaction.lag.ms",
                str(self.min_compaction_lag_ms),
                f"must be at most max.compaction.lag.ms ({self.max_compaction_lag_ms})",
            )
