"""Properties of the broker in its cluster: identity, topic creation, replication."""

from typing import Final

from odradek.properties import INT64_MAX, PropertySet, UpdateMode, boolean, class_name, integer, long, string
from odradek.server.config.properties.reasons import (
    CLUSTER_ONLY,
    JAVA_CLASS,
    NO_KRAFT,
    NO_THREADS,
    OPERATING_SYSTEM_CHOOSES,
)

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ClusterProperties(PropertySet):
    """Broker and cluster: identity, topic creation, replication."""

    node_id = integer(
        "node.id",
        1,
        minimum=0,
        doc="Id of this broker in its cluster.",
    )
    broker_id = integer(
        "broker.id",
        -1,
        doc="Former name of node.id; -1 means not set.",
    )
    broker_rack = string(
        "broker.rack",
        None,
        doc="Rack of this broker, for rack-aware assignment and fetching.",
    )
    num_partitions = integer(
        "num.partitions",
        1,
        minimum=1,
        doc="Number of partitions of a topic that is created without one.",
    )
    default_replication_factor = integer(
        "default.replication.factor",
        1,
        doc="Replication factor of a topic that is created without one.",
    )
    auto_create_topics_enable = boolean(
        "auto.create.topics.enable",
        True,
        doc="Create a topic when a client requests its metadata for the first time.",
    )
    delete_topic_enable = boolean(
        "delete.topic.enable",
        True,
        doc="Allow deletion of topics.",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Minimum number of in-sync replicas for a write with acks=all.",
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=CLUSTER_ONLY,
        doc="Allow a replica that is not in sync to become leader.",
    )
    unclean_leader_election_interval_ms = long(
        "unclean.leader.election.interval.ms",
        300_000,
        minimum=1,
        internal=True,
        no_effect=NO_KRAFT,
        doc="Interval of the check for partitions that need an unclean election.",
    )
    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        no_effect=CLUSTER_ONLY,
        doc="Return leadership to preferred replicas automatically.",
    )
    leader_imbalance_check_interval_seconds = long(
        "leader.imbalance.check.interval.seconds",
        300,
        minimum=1,
        no_effect=CLUSTER_ONLY,
        doc="Interval of the check for partitions that are not led by their preferred replica.",
    )
    leader_imbalance_per_broker_percentage = integer(
        "leader.imbalance.per.broker.percentage",
        10,
        no_effect=CLUSTER_ONLY,
        doc="Percentage of a broker's preferred leaderships that others may have before they are returned.",
    )
    leader_replication_throttled_rate = long(
        "leader.replication.throttled.rate",
        INT64_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        internal=True,
        doc="Maximum bytes per second that leaders send to throttled followers.",
    )
    follower_replication_throttled_rate = long(
        "follower.replication.throttled.rate",
        INT64_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        internal=True,
        doc="Maximum bytes per second that throttled followers fetch.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second = long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        INT64_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        internal=True,
        doc="Maximum bytes per second that moves of replicas between log directories copy.",
    )
    alter_log_dirs_replication_quota_window_num = integer(
        "alter.log.dirs.replication.quota.window.num",
        11,
        minimum=1,
        doc="Number of samples over which the rate of moves between log directories is measured.",
    )
    alter_log_dirs_replication_quota_window_size_seconds = integer(
        "alter.log.dirs.replication.quota.window.size.seconds",
        1,
        minimum=1,
        doc="Length of a sample of the rate of moves between log directories.",
    )
    replication_quota_window_num = integer(
        "replication.quota.window.num",
        11,
        minimum=1,
        no_effect=CLUSTER_ONLY,
        doc="Number of samples over which the rate of throttled replication is measured.",
    )
    replication_quota_window_size_seconds = integer(
        "replication.quota.window.size.seconds",
        1,
        minimum=1,
        no_effect=CLUSTER_ONLY,
        doc="Length of a sample of the rate of throttled replication.",
    )
    controlled_shutdown_enable = boolean(
        "controlled.shutdown.enable",
        True,
        no_effect=CLUSTER_ONLY,
        doc="Transfer leadership before a shutdown.",
    )
    controlled_shutdown_max_retries = integer(
        "controlled.shutdown.max.retries",
        3,
        minimum=1,
        no_effect=CLUSTER_ONLY,
        doc="Number of attempts to transfer leadership before a shutdown.",
    )
    controlled_shutdown_retry_backoff_ms = long(
        "controlled.shutdown.retry.backoff.ms",
        5000,
        minimum=0,
        no_effect=CLUSTER_ONLY,
        doc="Time between attempts to transfer leadership before a shutdown.",
    )
    controller_socket_timeout_ms = integer(
        "controller.socket.timeout.ms",
        30_000,
        no_effect=CLUSTER_ONLY,
        doc="Timeout of the controller's requests to brokers.",
    )
    num_replica_fetchers = integer(
        "num.replica.fetchers",
        1,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=CLUSTER_ONLY,
        doc="Number of connections on which a broker fetches from each leader.",
    )
    replica_fetch_max_bytes = integer(
        "replica.fetch.max.bytes",
        1_048_576,
        minimum=0,
        no_effect=CLUSTER_ONLY,
        doc="Maximum bytes that a follower fetches per partition.",
    )
    replica_fetch_min_bytes = integer(
        "replica.fetch.min.bytes",
        1,
        no_effect=CLUSTER_ONLY,
        doc="Minimum bytes in a leader's fetch response to a follower.",
    )
    replica_fetch_response_max_bytes = integer(
        "replica.fetch.response.max.bytes",
        10_485_760,
        minimum=0,
        no_effect=CLUSTER_ONLY,
        doc="Maximum bytes that a follower fetches per request.",
    )
    replica_fetch_wait_max_ms = integer(
        "replica.fetch.wait.max.ms",
        500,
        no_effect=CLUSTER_ONLY,
        doc="Maximum time for which a leader delays its fetch response to a follower.",
    )
    replica_fetch_backoff_ms = integer(
        "replica.fetch.backoff.ms",
        1000,
        minimum=0,
        no_effect=CLUSTER_ONLY,
        doc="Pause after a failed fetch of a partition.",
    )
    replica_high_watermark_checkpoint_interval_ms = long(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        doc="Interval of the high watermark checkpoint.",
    )
    replica_lag_time_max_ms = long(
        "replica.lag.time.max.ms",
        30_000,
        no_effect=CLUSTER_ONLY,
        doc="Time without catching up after which a follower leaves the ISR.",
    )
    replica_socket_timeout_ms = integer(
        "replica.socket.timeout.ms",
        30_000,
        no_effect=CLUSTER_ONLY,
        doc="Timeout of requests to a leader.",
    )
    replica_socket_receive_buffer_bytes = integer(
        "replica.socket.receive.buffer.bytes",
        65_536,
        no_effect=OPERATING_SYSTEM_CHOOSES,
        doc="SO_RCVBUF of connections to leaders.",
    )
    replica_selector_class = string(
        "replica.selector.class",
        None,
        choices=(RACK_AWARE_SELECTOR,),
        doc="Java class that selects the replica for a consumer (KIP-392).",
    )
    num_replica_alter_log_dirs_threads = integer(
        "num.replica.alter.log.dirs.threads",
        None,
        no_effect=NO_THREADS,
        doc="Kafka's threads that move replicas between directories.",
    )
    create_topic_policy_class_name = class_name(
        "create.topic.policy.class.name",
        None,
        no_effect=JAVA_CLASS,
        doc="Java class that validates new topics.",
    )
    alter_config_policy_class_name = class_name(
        "alter.config.policy.class.name",
        None,
        no_effect=JAVA_CLASS,
        doc="Java class that validates changed configurations.",
    )
