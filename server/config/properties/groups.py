"""Properties of consumer groups and committed offsets."""

from odradek.properties import INT32_MAX, PropertySet, UpdateMode, integer, long, short, string, string_list
from odradek.server.config.properties.reasons import NO_CONSUMER_GROUPS, NO_THREADS


class GroupProperties(PropertySet):
    """Consumer groups and committed offsets."""

    group_min_session_timeout_ms = integer(
        "group.min.session.timeout.ms",
        6000,
        doc="Minimum session timeout of a member of a classic group.",
    )
    group_max_session_timeout_ms = integer(
        "group.max.session.timeout.ms",
        1_800_000,
        doc="Maximum session timeout of a member of a classic group.",
    )
    group_initial_rebalance_delay_ms = integer(
        "group.initial.rebalance.delay.ms",
        3000,
        doc="Time for which a new group waits for more members before its first rebalance.",
    )
    group_max_size = integer(
        "group.max.size",
        INT32_MAX,
        minimum=1,
        doc="Maximum number of members of a classic group.",
    )
    group_coordinator_rebalance_protocols = string_list(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "streams"),
        choices=("consumer", "classic", "share", "streams"),
        no_effect=NO_CONSUMER_GROUPS,
        doc="Supported group protocols.",
    )
    group_coordinator_append_linger_ms = integer(
        "group.coordinator.append.linger.ms",
        -1,
        minimum=-1,
        no_effect=NO_THREADS,
        doc="Time for which Kafka's coordinator batches writes.",
    )
    group_coordinator_threads = integer(
        "group.coordinator.threads",
        4,
        minimum=1,
        no_effect=NO_THREADS,
        doc="Number of Kafka's coordinator threads.",
    )
    group_coordinator_background_threads = integer(
        "group.coordinator.background.threads",
        2,
        minimum=1,
        no_effect=NO_THREADS,
        doc="Number of Kafka's coordinator background threads.",
    )
    group_coordinator_cached_buffer_max_bytes = integer(
        "group.coordinator.cached.buffer.max.bytes",
        1_048_588,
        minimum=524288,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_THREADS,
        doc="Maximum size of the buffer that Kafka's coordinator reuses.",
    )
    group_consumer_session_timeout_ms = integer(
        "group.consumer.session.timeout.ms",
        45_000,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Session timeout of members of consumer groups (KIP-848).",
    )
    group_consumer_min_session_timeout_ms = integer(
        "group.consumer.min.session.timeout.ms",
        45_000,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Minimum session timeout of a consumer group.",
    )
    group_consumer_max_session_timeout_ms = integer(
        "group.consumer.max.session.timeout.ms",
        60_000,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Maximum session timeout of a consumer group.",
    )
    group_consumer_heartbeat_interval_ms = integer(
        "group.consumer.heartbeat.interval.ms",
        5000,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Heartbeat interval of members of consumer groups.",
    )
    group_consumer_min_heartbeat_interval_ms = integer(
        "group.consumer.min.heartbeat.interval.ms",
        5000,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Minimum heartbeat interval of a consumer group.",
    )
    group_consumer_max_heartbeat_interval_ms = integer(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Maximum heartbeat interval of a consumer group.",
    )
    group_consumer_assignment_interval_ms = integer(
        "group.consumer.assignment.interval.ms",
        1000,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Minimum interval between assignments of a consumer group.",
    )
    group_consumer_min_assignment_interval_ms = integer(
        "group.consumer.min.assignment.interval.ms",
        0,
        minimum=0,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Lower bound of a group's assignment interval.",
    )
    group_consumer_max_assignment_interval_ms = integer(
        "group.consumer.max.assignment.interval.ms",
        15_000,
        minimum=0,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Upper bound of a group's assignment interval.",
    )
    group_consumer_max_size = integer(
        "group.consumer.max.size",
        INT32_MAX,
        minimum=1,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Maximum number of members of a consumer group.",
    )
    group_consumer_assignors = string_list(
        "group.consumer.assignors",
        ("uniform", "range"),
        no_effect=NO_CONSUMER_GROUPS,
        doc="Server-side assignors; the first is the default.",
    )
    group_consumer_migration_policy = string(
        "group.consumer.migration.policy",
        "bidirectional",
        choices=("disabled", "downgrade", "upgrade", "bidirectional"),
        ignore_case=True,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Allowed migrations of live groups between the classic and the consumer protocol.",
    )
    group_consumer_regex_refresh_interval_ms = integer(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        minimum=10000,
        internal=True,
        no_effect=NO_CONSUMER_GROUPS,
        doc="Interval at which subscribed patterns are matched again; for tests.",
    )
    offset_metadata_max_bytes = integer(
        "offset.metadata.max.bytes",
        4096,
        doc="Maximum size of the metadata of a committed offset.",
    )
    offsets_commit_timeout_ms = integer(
        "offsets.commit.timeout.ms",
        5000,
        minimum=1,
        doc="Timeout for the replication of a commit or another write of the group coordinator; after it, the request "
        "fails with a retriable error.",
    )
    offsets_load_buffer_size = integer(
        "offsets.load.buffer.size",
        5_242_880,
        minimum=1,
        doc="Bytes per read while groups are loaded; at most 1 MiB.",
    )
    offsets_retention_minutes = integer(
        "offsets.retention.minutes",
        10_080,
        minimum=1,
        doc="Minutes for which the offsets of an empty group are kept.",
    )
    offsets_retention_check_interval_ms = long(
        "offsets.retention.check.interval.ms",
        600_000,
        minimum=1,
        doc="Interval of the check for expired offsets.",
    )
    offsets_topic_num_partitions = integer(
        "offsets.topic.num.partitions",
        50,
        minimum=1,
        doc="Number of partitions of __consumer_offsets; fixed once the topic exists.",
    )
    offsets_topic_replication_factor = short(
        "offsets.topic.replication.factor",
        3,
        minimum=1,
        doc="Replication factor of __consumer_offsets; the default is limited by the number of brokers.",
    )
    offsets_topic_segment_bytes = integer(
        "offsets.topic.segment.bytes",
        104_857_600,
        minimum=1,
        doc="Segment size of __consumer_offsets.",
    )
    offsets_topic_compression_codec = integer(
        "offsets.topic.compression.codec",
        0,
        minimum=0,
        maximum=4,
        doc="Codec of writes to __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
