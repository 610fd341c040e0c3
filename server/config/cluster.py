"""The broker in its cluster: identity, topic creation, replication."""

from odradek.properties import PropertySet, UpdateMode, boolean, class_name, integer, long, string
from odradek.server.config.reasons import JAVA_CLASS, ONE_BROKER


class ClusterProperties(PropertySet):
    """The broker in its cluster: identity, topic creation, replication."""

    node_id = integer(
        "node.id",
        1,
        minimum=0,
        doc="This broker's number in its cluster.",
    )
    broker_id = integer(
        "broker.id",
        -1,
        doc="Older name of node.id; -1 is not set.",
    )
    broker_rack = string(
        "broker.rack",
        None,
        doc="Rack of this broker, for rack-aware assignment and fetching.",
    )
    authorizer_class_name = string(
        "authorizer.class.name",
        "",
        doc="Java class that decides who may do what; this version has no authorizer, so it must be empty.",
    )
    num_partitions = integer(
        "num.partitions",
        1,
        minimum=1,
        doc="Partitions of a topic created without a number.",
    )
    default_replication_factor = integer(
        "default.replication.factor",
        1,
        doc="Replicas of a topic created without a number.",
    )
    auto_create_topics_enable = boolean(
        "auto.create.topics.enable",
        True,
        doc="Whether a topic is created when a client first asks for it.",
    )
    delete_topic_enable = boolean(
        "delete.topic.enable",
        True,
        doc="Whether topics may be deleted.",
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Replicas that must be in sync for a write with acks=all.",
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=ONE_BROKER,
        doc="Whether a replica that is not in sync may become leader.",
    )
    unclean_leader_election_interval_ms = long(
        "unclean.leader.election.interval.ms",
        300_000,
        minimum=1,
        internal=True,
        no_effect=ONE_BROKER,
        doc="Time between two looks for partitions that need an unclean election.",
    )
    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        no_effect=ONE_BROKER,
        doc="Whether leadership goes back to preferred replicas by itself.",
    )
    leader_imbalance_check_interval_seconds = long(
        "leader.imbalance.check.interval.seconds",
        300,
        minimum=1,
        no_effect=ONE_BROKER,
        doc="Time between two looks for partitions led by another than their preferred replica.",
    )
    controlled_shutdown_enable = boolean(
        "controlled.shutdown.enable",
        True,
        no_effect=ONE_BROKER,
        doc="Whether leadership is handed over before a stop.",
    )
    controller_socket_timeout_ms = integer(
        "controller.socket.timeout.ms",
        30_000,
        no_effect=ONE_BROKER,
        doc="Longest wait for a broker's answer to the controller.",
    )
    num_replica_fetchers = integer(
        "num.replica.fetchers",
        1,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=ONE_BROKER,
        doc="Connections on which a broker fetches from each leader.",
    )
    replica_fetch_max_bytes = integer(
        "replica.fetch.max.bytes",
        1_048_576,
        minimum=0,
        no_effect=ONE_BROKER,
        doc="Bytes a follower asks for of each partition.",
    )
    replica_fetch_min_bytes = integer(
        "replica.fetch.min.bytes",
        1,
        no_effect=ONE_BROKER,
        doc="Bytes for which a leader holds back its answer to a follower.",
    )
    replica_fetch_response_max_bytes = integer(
        "replica.fetch.response.max.bytes",
        10_485_760,
        minimum=0,
        no_effect=ONE_BROKER,
        doc="Bytes a follower asks for in all.",
    )
    replica_fetch_wait_max_ms = integer(
        "replica.fetch.wait.max.ms",
        500,
        no_effect=ONE_BROKER,
        doc="How long a leader may hold back its answer to a follower.",
    )
    replica_fetch_backoff_ms = integer(
        "replica.fetch.backoff.ms",
        1000,
        minimum=0,
        no_effect=ONE_BROKER,
        doc="Pause after a failed fetch of a partition.",
    )
    replica_high_watermark_checkpoint_interval_ms = long(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        doc="Time between two writes of the high watermarks.",
    )
    replica_lag_time_max_ms = long(
        "replica.lag.time.max.ms",
        30_000,
        no_effect=ONE_BROKER,
        doc="Time without catching up after which a follower leaves the in-sync set.",
    )
    replica_socket_timeout_ms = integer(
        "replica.socket.timeout.ms",
        30_000,
        no_effect=ONE_BROKER,
        doc="Longest wait for a leader's answer.",
    )
    replica_socket_receive_buffer_bytes = integer(
        "replica.socket.receive.buffer.bytes",
        65_536,
        no_effect=ONE_BROKER,
        doc="SO_RCVBUF of connections to leaders.",
    )
    replica_selector_class = string(
        "replica.selector.class",
        None,
        no_effect=ONE_BROKER,
        doc="Java class that picks the replica a consumer reads from.",
    )
    num_replica_alter_log_dirs_threads = integer(
        "num.replica.alter.log.dirs.threads",
        None,
        no_effect=ONE_BROKER,
        doc="Kafka's threads that move replicas between directories.",
    )
    create_topic_policy_class_name = class_name(
        "create.topic.policy.class.name",
        None,
        no_effect=JAVA_CLASS,
        doc="Java class that judges new topics.",
    )
    alter_config_policy_class_name = class_name(
        "alter.config.policy.class.name",
        None,
        no_effect=JAVA_CLASS,
        doc="Java class that judges changed configurations.",
    )
