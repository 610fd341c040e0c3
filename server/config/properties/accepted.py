"""Properties of Kafka's server.properties that are accepted without effect."""

from odradek.properties import PropertySet, UpdateMode, boolean, class_name, integer, long, string, string_list
from odradek.server.config.properties.reasons import (
    JAVA_CLASS,
    NO_JMX,
    NO_KRAFT,
    ONE_PROTOCOL,
    OPENSSL,
)

PRINCIPAL_BUILDER = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


class AcceptedProperties(PropertySet):
    """Properties accepted without effect."""

    inter_broker_protocol_version = string(
        "inter.broker.protocol.version",
        "3.9-IV0",
        no_effect=ONE_PROTOCOL,
        doc="Version of the requests between brokers.",
    )
    zookeeper_metadata_migration_enable = boolean(
        "zookeeper.metadata.migration.enable",
        False,
        no_effect=NO_KRAFT,
        doc="Migrate the metadata from ZooKeeper to a KRaft quorum.",
    )
    broker_heartbeat_interval_ms = integer(
        "broker.heartbeat.interval.ms",
        2000,
        no_effect=NO_KRAFT,
        doc="Time between a KRaft broker's heartbeats.",
    )
    broker_session_timeout_ms = integer(
        "broker.session.timeout.ms",
        9000,
        no_effect=NO_KRAFT,
        doc="Time after which a KRaft broker without heartbeats is fenced.",
    )
    controller_listener_names = string_list(
        "controller.listener.names",
        (),
        no_effect=NO_KRAFT,
        doc="Listeners of KRaft controllers; they are not opened.",
    )
    controller_quorum_append_linger_ms = integer(
        "controller.quorum.append.linger.ms",
        25,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="Time for which a KRaft leader batches writes.",
    )
    controller_quorum_auto_join_enable = boolean(
        "controller.quorum.auto.join.enable",
        False,
        no_effect=NO_KRAFT,
        doc="Add a KRaft controller to the voters automatically.",
    )
    controller_quorum_bootstrap_servers = string_list(
        "controller.quorum.bootstrap.servers",
        (),
        no_effect=NO_KRAFT,
        doc="Addresses of KRaft controllers.",
    )
    controller_quorum_election_backoff_max_ms = integer(
        "controller.quorum.election.backoff.max.ms",
        1000,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="KRaft's maximum pause between elections.",
    )
    controller_quorum_election_timeout_ms = integer(
        "controller.quorum.election.timeout.ms",
        1000,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="KRaft's election timeout.",
    )
    controller_quorum_fetch_timeout_ms = integer(
        "controller.quorum.fetch.timeout.ms",
        2000,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="KRaft's timeout of fetches from the leader.",
    )
    controller_quorum_request_timeout_ms = integer(
        "controller.quorum.request.timeout.ms",
        2000,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="KRaft's timeout of requests.",
    )
    controller_quorum_retry_backoff_ms = integer(
        "controller.quorum.retry.backoff.ms",
        20,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="KRaft's pause between requests.",
    )
    controller_quorum_voters = string_list(
        "controller.quorum.voters",
        (),
        no_effect=NO_KRAFT,
        doc="Members of the KRaft quorum.",
    )
    initial_broker_registration_timeout_ms = integer(
        "initial.broker.registration.timeout.ms",
        60_000,
        no_effect=NO_KRAFT,
        doc="Time for a KRaft broker to register.",
    )
    metadata_log_max_record_bytes_between_snapshots = long(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        minimum=1,
        no_effect=NO_KRAFT,
        doc="Bytes after which KRaft writes a snapshot.",
    )
    metadata_log_max_snapshot_interval_ms = long(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="Time after which KRaft writes a snapshot.",
    )
    metadata_log_segment_bytes = integer(
        "metadata.log.segment.bytes",
        1_073_741_824,
        minimum=8388608,
        no_effect=NO_KRAFT,
        doc="Segment size of KRaft's metadata log.",
    )
    metadata_log_segment_ms = long(
        "metadata.log.segment.ms",
        604_800_000,
        no_effect=NO_KRAFT,
        doc="Segment age of KRaft's metadata log.",
    )
    metadata_max_idle_interval_ms = integer(
        "metadata.max.idle.interval.ms",
        500,
        minimum=0,
        no_effect=NO_KRAFT,
        doc="Time between no-op records of KRaft's controller.",
    )
    metadata_max_retention_bytes = long(
        "metadata.max.retention.bytes",
        104_857_600,
        no_effect=NO_KRAFT,
        doc="Size up to which KRaft keeps old metadata.",
    )
    metadata_max_retention_ms = long(
        "metadata.max.retention.ms",
        604_800_000,
        no_effect=NO_KRAFT,
        doc="Age up to which KRaft keeps old metadata.",
    )
    metric_reporters = string_list(
        "metric.reporters",
        ("org.apache.kafka.common.metrics.JmxReporter",),
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_JMX,
        doc="Java classes that receive Kafka's metrics.",
    )
    metrics_num_samples = integer(
        "metrics.num.samples",
        2,
        minimum=1,
        no_effect=NO_JMX,
        doc="Samples per metric of Kafka.",
    )
    metrics_recording_level = string(
        "metrics.recording.level",
        "INFO",
        no_effect=NO_JMX,
        doc="Level of the metrics that Kafka records.",
    )
    metrics_sample_window_ms = long(
        "metrics.sample.window.ms",
        30_000,
        minimum=1,
        no_effect=NO_JMX,
        doc="Length of a sample of Kafka's metrics.",
    )
    principal_builder_class = class_name(
        "principal.builder.class",
        PRINCIPAL_BUILDER,
        check=lambda name: name == PRINCIPAL_BUILDER,
        note=f"{PRINCIPAL_BUILDER}, because Java classes cannot be loaded; set ssl.principal.mapping.rules instead",
        update_mode=UpdateMode.PER_BROKER,
        doc="Java class that derives the principal of a connection; only Kafka's own is accepted.",
    )
    process_roles = string_list(
        "process.roles",
        (),
        choices=("broker", "controller"),
        no_effect=NO_KRAFT,
        doc="Roles of a KRaft process; every broker can be the controller.",
    )
    security_providers = string(
        "security.providers",
        None,
        no_effect=JAVA_CLASS,
        doc="Java classes of security algorithms.",
    )
    ssl_keymanager_algorithm = string(
        "ssl.keymanager.algorithm",
        "SunX509",
        no_effect=OPENSSL,
        doc="Java's algorithm that selects a key.",
    )
    ssl_protocol = string(
        "ssl.protocol",
        "TLSv1.3",
        no_effect=OPENSSL,
        doc="Java's implementation of TLS; ssl.enabled.protocols selects the versions.",
    )
    ssl_provider = string(
        "ssl.provider",
        None,
        no_effect=OPENSSL,
        doc="Java's provider of TLS.",
    )
    ssl_secure_random_implementation = string(
        "ssl.secure.random.implementation",
        None,
        no_effect=OPENSSL,
        doc="Java's source of random numbers.",
    )
    ssl_trustmanager_algorithm = string(
        "ssl.trustmanager.algorithm",
        "PKIX",
        no_effect=OPENSSL,
        doc="Java's algorithm that verifies a certificate.",
    )
