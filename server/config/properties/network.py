"""Properties of listeners, connections and requests."""

from odradek.properties import INT32_MAX, PropertySet, UpdateMode, class_name, integer, long, string, string_list
from odradek.server.config.properties.reasons import NO_EARLY_START, NO_THREADS


class NetworkProperties(PropertySet):
    """Listeners, connections and requests."""

    listeners = string_list(
        "listeners",
        ("PLAINTEXT://:9092",),
        unique=True,
        may_be_empty=False,
        update_mode=UpdateMode.PER_BROKER,
        doc="Listeners, as NAME://host:port; an empty host is every interface, port 0 any free port. "
        "`odradek start` listens on PLAINTEXT://127.0.0.1:9092 if neither this nor advertised.listeners is set.",
    )
    advertised_listeners = string_list(
        "advertised.listeners",
        None,
        unique=True,
        may_be_empty=False,
        doc="Listeners that clients connect to, if they differ from listeners.",
    )
    listener_security_protocol_map = string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        update_mode=UpdateMode.PER_BROKER,
        doc="Security protocol of each listener name.",
    )
    inter_broker_listener_name = string(
        "inter.broker.listener.name",
        None,
        doc="Listener for connections between brokers.",
    )
    security_inter_broker_protocol = string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="Protocol between brokers if inter.broker.listener.name is not set.",
    )
    socket_send_buffer_bytes = integer(
        "socket.send.buffer.bytes",
        102_400,
        doc="SO_SNDBUF of connections; the operating system's default if not set or -1.",
    )
    socket_receive_buffer_bytes = integer(
        "socket.receive.buffer.bytes",
        102_400,
        doc="SO_RCVBUF of connections; the operating system's default if not set or -1.",
    )
    socket_request_max_bytes = integer(
        "socket.request.max.bytes",
        104_857_600,
        minimum=1,
        doc="Maximum size of a request; a larger one closes its connection.",
    )
    socket_listen_backlog_size = integer(
        "socket.listen.backlog.size",
        50,
        minimum=1,
        doc="Connections that the operating system queues before they are accepted.",
    )
    connections_max_idle_ms = long(
        "connections.max.idle.ms",
        600_000,
        doc="Idle time after which a connection is closed; -1 for never.",
    )
    reactor_slow_iteration_ms = long(
        "reactor.slow.iteration.ms",
        100,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Duration of an iteration of the event loop above which it is logged, because it blocks all requests. "
        "Apache Kafka has no such property.",
    )
    metrics_listener = string(
        "metrics.listener",
        "",
        doc="host:port of an HTTP server with /metrics for Prometheus, /healthz and /readyz; empty for none. It has no "
        "authentication: bind it to an address that only the monitoring can reach. Apache Kafka has no such property.",
    )
    metrics_max_partitions = integer(
        "metrics.max.partitions",
        20_000,
        minimum=0,
        doc="Maximum number of partitions, and of topics, that have metrics of their own; the sums include all. "
        "Apache Kafka has no such property.",
    )
    max_connections = integer(
        "max.connections",
        INT32_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum number of connections; further ones wait. A listener can have an additional limit: "
        "listener.name.<listener>.max.connections.",
    )
    max_connections_per_ip = integer(
        "max.connections.per.ip",
        INT32_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum number of connections from one address; further ones are closed immediately.",
    )
    max_connections_per_ip_overrides = string(
        "max.connections.per.ip.overrides",
        "",
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Exceptions to max.connections.per.ip, as host:count,host:count.",
    )
    max_connection_creation_rate = integer(
        "max.connection.creation.rate",
        INT32_MAX,
        minimum=0,
        update_mode=UpdateMode.CLUSTER_WIDE,
        doc="Maximum number of new connections per second; further ones wait. A listener can have an additional limit: "
        "listener.name.<listener>.max.connection.creation.rate.",
    )
    quota_window_num = integer(
        "quota.window.num",
        11,
        minimum=1,
        doc="Number of samples over which rates are measured for quotas and for max.connection.creation.rate.",
    )
    quota_window_size_seconds = integer(
        "quota.window.size.seconds",
        1,
        minimum=1,
        doc="Length of a sample, and the longest throttle time for a quota of request time or of connections.",
    )
    controller_quota_window_num = integer(
        "controller.quota.window.num",
        11,
        minimum=1,
        doc="Number of samples over which quotas of changes to topics permit a burst.",
    )
    controller_quota_window_size_seconds = integer(
        "controller.quota.window.size.seconds",
        1,
        minimum=1,
        doc="Length of a sample of quotas of changes to topics.",
    )
    client_quota_callback_class = class_name(
        "client.quota.callback.class",
        None,
        check=lambda name: not name,
        note="empty, because Java classes cannot be loaded",
        doc="Java class that determines quotas; quotas are always those of users and client ids.",
    )
    connection_failed_authentication_delay_ms = integer(
        "connection.failed.authentication.delay.ms",
        100,
        minimum=0,
        doc="Delay of the response to a failed authentication.",
    )
    request_timeout_ms = integer(
        "request.timeout.ms",
        30_000,
        doc="Timeout of requests that the broker sends, and of the replication of a "
        "transaction's state.",
    )
    fetch_max_bytes = integer(
        "fetch.max.bytes",
        57_671_680,
        minimum=1024,
        doc="Maximum bytes of records in a fetch response.",
    )
    max_incremental_fetch_session_cache_slots = integer(
        "max.incremental.fetch.session.cache.slots",
        1000,
        minimum=0,
        doc="Maximum number of incremental fetch sessions (KIP-227).",
    )
    max_request_partition_size_limit = integer(
        "max.request.partition.size.limit",
        2000,
        minimum=1,
        doc="Maximum number of partitions in a DescribeTopicPartitions response.",
    )
    queued_max_request_bytes = long(
        "queued.max.request.bytes",
        -1,
        no_effect=NO_THREADS,
        doc="Kafka's limit of queued requests; here a connection has one request in progress.",
    )
    queued_max_requests = integer(
        "queued.max.requests",
        500,
        minimum=1,
        no_effect=NO_THREADS,
        doc="Length of the queue between Kafka's threads.",
    )
    num_network_threads = integer(
        "num.network.threads",
        3,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_THREADS,
        doc="Number of Kafka's network threads; here one event loop does this work.",
    )
    num_io_threads = integer(
        "num.io.threads",
        8,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_THREADS,
        doc="Number of Kafka's request threads; here one event loop does this work.",
    )
    background_threads = integer(
        "background.threads",
        10,
        minimum=1,
        update_mode=UpdateMode.CLUSTER_WIDE,
        no_effect=NO_THREADS,
        doc="Number of Kafka's background threads.",
    )
    fetch_purgatory_purge_interval_requests = integer(
        "fetch.purgatory.purge.interval.requests",
        1000,
        no_effect=NO_THREADS,
        doc="Purge interval of Kafka's fetch purgatory.",
    )
    producer_purgatory_purge_interval_requests = integer(
        "producer.purgatory.purge.interval.requests",
        1000,
        no_effect=NO_THREADS,
        doc="Purge interval of Kafka's produce purgatory.",
    )
    delete_records_purgatory_purge_interval_requests = integer(
        "delete.records.purgatory.purge.interval.requests",
        1,
        no_effect=NO_THREADS,
        doc="Purge interval of Kafka's DeleteRecords purgatory.",
    )
    socket_connection_setup_timeout_ms = long(
        "socket.connection.setup.timeout.ms",
        10_000,
        doc="Time for a connection to another broker to be established; doubles with each failure.",
    )
    socket_connection_setup_timeout_max_ms = long(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        doc="Upper bound of socket.connection.setup.timeout.ms after repeated failures.",
    )
    early_start_listeners = string_list(
        "early.start.listeners",
        None,
        no_effect=NO_EARLY_START,
        doc="Kafka's listeners that open before its authorizer is ready.",
    )
