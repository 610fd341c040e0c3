"""A cluster of one on a memory store and a memory file system, for the tests of this package."""

import random
from collections import deque

from odradek.log.log_manager import LogManager
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.properties import (
    PropertyError,
    PropertySet,
    UpdateMode,
    boolean,
    integer,
    long,
    password,
    string,
    string_list,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin.config_description import ConfigDescriber
from odradek.replication.controller.admin.configs import ConfigAdmin
from odradek.replication.controller.admin.topics import TopicAdmin
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.registration import Registration, prepare_store
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, Endpoint
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.metadata.updates import LocalPublisher
from odradek.replication.replicas.replica_manager import ReplicaManager

CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE


class SomeBrokerConfig(PropertySet):
    """A few broker properties with Kafka's names, kinds and update modes."""

    num_partitions = integer("num.partitions", 1, minimum=1, doc="Partitions of a new topic.")
    default_replication_factor = integer("default.replication.factor", 1, doc="Replicas of a new topic.")
    delete_topic_enable = boolean("delete.topic.enable", True, doc="Whether topics can be deleted.")
    log_retention_ms = long("log.retention.ms", None, update_mode=CLUSTER_WIDE, doc="Age in ms.")
    log_retention_minutes = integer("log.retention.minutes", None, doc="Age in minutes.")
    log_retention_hours = integer("log.retention.hours", 168, doc="Age in hours.")
    log_segment_bytes = integer(
        "log.segment.bytes", 1 << 30, minimum=1 << 20, update_mode=CLUSTER_WIDE, doc="Segment size."
    )
    log_cleanup_policy = string_list(
        "log.cleanup.policy", ("delete",), choices=("compact", "delete"), update_mode=CLUSTER_WIDE, doc="Policy."
    )
    message_max_bytes = integer("message.max.bytes", 1048588, minimum=0, update_mode=CLUSTER_WIDE, doc="Largest.")
    min_insync_replicas = integer("min.insync.replicas", 1, minimum=1, update_mode=CLUSTER_WIDE, doc="In sync.")
    listeners = string("listeners", "PLAINTEXT://:9092", update_mode=UpdateMode.PER_BROKER, doc="Listeners.")
    ssl_key_password = password("ssl.key.password", update_mode=UpdateMode.PER_BROKER, doc="A secret.")
    metric_reporters = string_list("metric.reporters", (), update_mode=CLUSTER_WIDE, doc="Reporters.")
    leader_replication_throttled_rate = long(
        "leader.replication.throttled.rate", (1 << 63) - 1, update_mode=CLUSTER_WIDE, internal=True, doc="Rate."
    )
    follower_replication_throttled_rate = long(
        "follower.replication.throttled.rate", (1 << 63) - 1, update_mode=CLUSTER_WIDE, internal=True, doc="Rate."
    )
    replication_quota_window_num = integer("replication.quota.window.num", 11, doc="Samples.")
    replication_quota_window_size_seconds = integer("replication.quota.window.size.seconds", 1, doc="Length.")
    replica_alter_log_dirs_io_max_bytes_per_second = long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        (1 << 63) - 1,
        update_mode=CLUSTER_WIDE,
        internal=True,
        doc="Rate.",
    )
    alter_log_dirs_replication_quota_window_num = integer(
        "alter.log.dirs.replication.quota.window.num", 11, doc="Samples."
    )
    alter_log_dirs_replication_quota_window_size_seconds = integer(
        "alter.log.dirs.replication.quota.window.size.seconds", 1, doc="Length."
    )
    auto_leader_rebalance_enable = boolean("auto.leader.rebalance.enable", True, doc="Rebalance.")
    leader_imbalance_check_interval_seconds = long("leader.imbalance.check.interval.seconds", 300, doc="Interval.")
    leader_imbalance_per_broker_percentage = integer("leader.imbalance.per.broker.percentage", 10, doc="Limit.")
    offsets_topic_replication_factor = integer("offsets.topic.replication.factor", 3, doc="Replicas.")
    offsets_topic_num_partitions = integer("offsets.topic.num.partitions", 50, doc="Partitions.")


class ClientMetricsProperties(PropertySet):
    """Some properties of a subscription of client metrics."""

    interval_ms = integer("interval.ms", 5, minimum=2, doc="Interval.")
    metrics = string_list("metrics", (), doc="Metrics.")


class MemoryClientMetrics:
    """Subscriptions of client metrics without a store."""

    declared = ClientMetricsProperties.declared()

    def __init__(self):
        self.configs = {}

    def list_names(self):
        return sorted(self.configs)

    def find(self, name):
        return self.configs.get(name, {})

    def check(self, name, configs):
        try:
            ClientMetricsProperties(configs)
        except PropertyError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    async def put(self, name, configs):
        self.configs[name] = configs
        if not configs:
            del self.configs[name]


class Cluster:
    """Metadata and replicas of one broker, wired as in the server; `others` are brokers that are only registered."""

    def __init__(self, *, server=None, broker_id=1, static=None, others=(), logs=None, seed=5):
        self.server = server or MemoryMetadataServer(lambda: self.now_ms)
        self.now_ms = 1000
        self.store = self.server.connect()
        self.image = ClusterMetadata()
        self.configs = BrokerConfigs(broker_id, SomeBrokerConfig(static or {}), self.image)
        self.logs = logs or memory_logs(self.configs)
        self.logs.topic_config = self.configs.topic
        self.replicas = ReplicaManager(broker_id, self.image, self.configs, self.logs, lambda: self.now_ms)
        self.logs.log_dirs.on_failure = self.replicas.directory_failed
        self.controller = Controller(self.store, LocalPublisher(self.image), broker_id, lambda: self.now_ms, lambda: 0)
        self.topics = TopicAdmin(self.controller, self.configs, random.Random(seed), self.replicas.applied)
        self.client_metrics = MemoryClientMetrics()
        self.config_admin = ConfigAdmin(self.controller, self.configs, self.client_metrics)
        self.describer = ConfigDescriber(broker_id, self.image, self.configs, self.client_metrics)
        self.cluster_id = self.image.cluster_id = run_now(prepare_store(self.store, "a-cluster"))
        for other in others:
            run_now(Registration(self.server.connect(), lambda: 0).register(broker(other)))
        run_now(self.controller.start(broker(broker_id)))
        run_now(self.controller.finish_deletions())


def memory_logs(configs, directories=("/data",), fs=None):
    ids = random.Random(11)
    logs = LogManager(
        fs or MemoryFileSystem(), directories, configs.topic_defaults, configs.topic, 1, random_bytes=ids.randbytes
    )
    logs.open(0)
    return logs


def log_keys(cluster):
    return sorted((log.topic, log.partition) for log in cluster.logs.all_logs())


def broker(broker_id, port=None):
    return BrokerMetadata(broker_id, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", port or 9000 + broker_id),))


class Step:
    """An awaitable that ends a step of a coroutine that `SteppedExecutor` runs."""

    def __await__(self):
        yield self


class _Waiter:
    def __init__(self, executor):
        self.executor, self.is_over, self.task = executor, False, None

    def __await__(self):
        if not self.is_over:
            yield self

    def callback(self, result):
        self.is_over = True
        if self.task is not None:
            self.executor.ready.append(self.task)


class _Task:
    def __init__(self, coroutine):
        self.coroutine, self.is_over, self.result, self.error = coroutine, False, None, None

    def outcome(self):
        assert self.is_over
        if self.error is not None:
            raise self.error
        return self.result


class SteppedExecutor:
    """Runs coroutines of the controller and of requests in turns, up to the next `Step`, when `finish` is called."""

    def __init__(self):
        self.ready = deque()

    def start(self, work):
        """Begin to run a coroutine."""
        task = _Task(work)
        self._resume(task)
        return task

    def waiter(self):
        return _Waiter(self)

    async def pause(self):
        pass

    async def step(self):
        await Step()

    def finish(self):
        """Run all coroutines to their ends."""
        while self.ready:
            self._resume(self.ready.popleft())

    def _resume(self, task):
        try:
            awaited = task.coroutine.send(None)
        except StopIteration as stop:
            task.is_over, task.result = True, stop.value
        except Exception as error:
            task.is_over, task.error = True, error
        else:
            if isinstance(awaited, Step):
                self.ready.append(task)
            else:
                awaited.task = task


def lose_next_response(store):
    """Make the next transaction of a store lose its response: it is executed, and sent again after the reconnection.

    It has a sequential node, so that the store of ZooKeeper cannot detect that the first attempt has succeeded.
    """
    execute = store.transaction

    async def transaction(operations):
        store.transaction = execute
        await execute(operations)
        return await execute(operations)

    store.transaction = transaction
