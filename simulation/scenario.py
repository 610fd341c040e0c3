"""The scenario of a seed: broker configuration, topics, network and faults."""

from random import Random
from typing import Final, NamedTuple

from odradek.simulation.machine.network import NetworkHabits

GROUP_PARTITIONS: Final = 2
TRANSACTION_PARTITIONS: Final = 2
RETENTION_MS: Final = 6 * 3_600_000
"""Longer than any run, shorter than the age of old records."""
_NEVER_MS: Final = 600_000
_RESTORE_SHARE: Final = 0.12
"""Share of seeds in which the metadata store is replaced by an older copy."""


class Topic(NamedTuple):
    """A topic to create; `configs` are its properties.

    An aged topic receives old records only. An unclean topic has unclean leader elections, and clients of its own.
    """

    name: str
    partitions: int
    configs: dict[str, str]
    flush_before_acks: bool
    is_compacted: bool = False
    has_append_time: bool = False
    is_aged: bool = False
    is_unclean: bool = False

    @property
    def keeps_all(self) -> bool:
        """Return whether retention deletes no records of any age."""
        return self.configs["retention.ms"] == "-1"


class FaultPlan(NamedTuple):
    """The faults of a run: `weights` by method name of `Faults`, `interval_s` is the mean interval."""

    weights: dict[str, int]
    interval_s: float


class Scenario(NamedTuple):
    """All properties of a run that are drawn before it begins.

    duration_s: duration of the clients' work and of the faults
    owned: topics that one client each creates and deletes
    slow_thread_s: maximum duration of work on a thread
    replication_factor: number of replicas of the topics
    """

    properties: dict[str, str]
    topics: tuple[Topic, ...]
    owned: tuple[Topic, ...]
    transaction_version: int
    habits: NetworkHabits
    faults: FaultPlan
    duration_s: float
    slow_thread_s: float
    replication_factor: int = 1

    @property
    def groups_expire(self) -> bool:
        """Return whether the broker expires offsets while clients are running."""
        return int(self.properties["offsets.retention.check.interval.ms"]) < _NEVER_MS


def draw(random: Random) -> Scenario:
    """Draw a scenario."""
    flush_before_acks = random.random() < 0.5
    faults = _faults(random)
    may_lose_store = "lose_store" in faults.weights
    properties = _properties(random, flush_before_acks)
    if may_lose_store:
        # With two logs of one partition it would be undefined which one is current.
        properties["log.dirs"] = "/data"
    drawn = Scenario(
        properties=properties,
        topics=_topics(random, flush_before_acks, may_lose_store=may_lose_store),
        owned=_owned(random, flush_before_acks, may_lose_store=may_lose_store),
        transaction_version=random.choice((0, 1, 2, 2)),
        habits=_habits(random),
        faults=faults,
        duration_s=random.uniform(2.0, 4.5),
        slow_thread_s=random.choice((0.3, 0.3, 3.0)),
    )
    if may_lose_store or not faults.weights or random.random() >= _RESTORE_SHARE:
        return drawn
    # An older store lacks topics that were created since, and has those that were deleted.
    weights = {**faults.weights, "restore_store": sum(faults.weights.values())}
    return drawn._replace(owned=(), faults=faults._replace(weights=weights))


def _properties(random: Random, flush_before_acks: bool) -> dict[str, str]:
    pick = random.choice
    properties = {
        "log.dirs": "/data1,/data2" if random.random() < 0.35 else "/data",
        "flush.before.acks": str(flush_before_acks).lower(),
        "num.partitions": "1",
        "offsets.topic.num.partitions": str(GROUP_PARTITIONS),
        "offsets.topic.segment.bytes": str(pick((1_048_576, 104_857_600))),
        "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
        "transaction.state.log.segment.bytes": str(pick((1_048_576, 104_857_600))),
        "group.min.session.timeout.ms": "100",
        "group.initial.rebalance.delay.ms": str(pick((0, 50, 500))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(pick((100, 1_000))),
        "log.retention.ms": str(pick((-1, RETENTION_MS))),
        "log.index.interval.bytes": str(pick((1, 100, 4096))),
        "log.index.size.max.bytes": str(pick((64, 1024, 10_485_760))),
        "log.segment.delete.delay.ms": str(pick((0, 500, 60_000))),
        "log.initial.task.delay.ms": str(pick((100, 2_000))),
        "log.cleaner.backoff.ms": str(pick((200, 1_000, 15_000))),
        "log.cleaner.dedupe.buffer.size": "1048576",
        "log.flush.offset.checkpoint.interval.ms": str(pick((200, 2_000, 60_000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(pick((200, 60_000))),
        "replica.high.watermark.checkpoint.interval.ms": str(pick((200, 5_000))),
        "offsets.retention.check.interval.ms": str(pick((500, 2_000, _NEVER_MS, _NEVER_MS))),
        "log.retention.check.interval.ms": str(pick((500, 300_000))),
    }
    if random.random() < 0.3:
        properties["log.flush.interval.messages"] = str(pick((1, 5, 50)))
    if random.random() < 0.3:
        properties["log.flush.interval.ms"] = str(pick((50, 1_000)))
    if random.random() < 0.2:
        properties["log.preallocate"] = "true"
    return properties


def _topics(random: Random, flush_before_acks: bool, *, may_lose_store: bool) -> tuple[Topic, ...]:
    """Draw the topics. If the metadata store may be lost, omit guarantees that depend on topic configuration."""
    topics = []
    retention_share = random.choice((0.0, 0.5))
    for name in ("one", "two", "three"):
        configs = {"internal.segment.bytes": str(random.choice((700, 3_000, 20_000))), "retention.ms": "-1"}
        if random.random() < retention_share:
            configs["retention.ms"] = str(RETENTION_MS)
        flush = flush_before_acks
        if random.random() < 0.15 and not may_lose_store:
            flush = not flush
            configs["flush.before.acks"] = str(flush).lower()
        has_append_time = random.random() < 0.15 and not may_lose_store
        if has_append_time:
            configs["message.timestamp.type"] = "LogAppendTime"
        topics.append(Topic(name, random.choice((1, 1, 2)), configs, flush, has_append_time=has_append_time))
    compacted = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": str(random.choice((700, 2_000))),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(random.choice((100, 86_400_000))),
        "retention.ms": "-1",
    }
    topics.append(Topic("compacted", 1, compacted, flush_before_acks, is_compacted=True))
    if random.random() < (0.7 if may_lose_store else 0.3):
        retention_ms = -1 if may_lose_store else random.choice((-1, RETENTION_MS, RETENTION_MS))
        aged = {"internal.segment.bytes": str(random.choice((700, 3_000))), "retention.ms": str(retention_ms)}
        topics.append(Topic("aged", 1, aged, flush_before_acks, is_aged=True))
    return tuple(topics)


def _owned(random: Random, flush_before_acks: bool, *, may_lose_store: bool) -> tuple[Topic, ...]:
    """Draw topics that keep acknowledged records even on power loss, unless their configuration may be lost."""
    topics = []
    for name in ("mine", "yours")[: random.choice((0, 0, 1, 1, 2))]:
        configs = {"internal.segment.bytes": str(random.choice((700, 3_000))), "flush.before.acks": "true"}
        topics.append(Topic(name, 1, configs, flush_before_acks or not may_lose_store))
    return tuple(topics)


def _habits(random: Random) -> NetworkHabits:
    return NetworkHabits(
        latency_s=random.choice((0.0003, 0.001, 0.01)),
        slow_share=random.choice((0.0, 0.02, 0.1)),
        slow_s=random.choice((0.05, 0.5)),
        small_piece_share=random.choice((0.0, 0.02, 0.2)),
        buffer_bytes=random.choice((1_000, 20_000, 65_536)),
        short_send_share=random.choice((0.0, 0.01, 0.1)),
    )


_FAULTS: Final[tuple[str, ...]] = (
    "kill", "kill_while_writing", "lose_power", "lose_power_while_writing", "stop", "break_connection",
    "break_all_connections", "fail_once", "fill_disk", "break_directory", "run_out_of_files",
)  # fmt: skip


_RARER_FAULTS: Final[tuple[str, ...]] = (
    "fail_store", "fail_store_after_commit", "reorder_directories", "put_directory_first", "add_foreign_directory",
    "lose_store", "fail_sync",
)  # fmt: skip


def _faults(random: Random) -> FaultPlan:
    """Draw faults with their weights; a twentieth of all seeds has none."""
    if random.random() < 0.05:
        return FaultPlan({}, 1.0)
    chosen = random.sample(_FAULTS, random.randint(1, 6))
    chosen += [name for name in _RARER_FAULTS if random.random() < 0.12]
    if "lose_store" in chosen and "put_directory_first" in chosen:
        chosen.remove("put_directory_first")
    weights = {name: random.randint(1, 5) for name in (*_FAULTS, *_RARER_FAULTS) if name in chosen}
    return FaultPlan(weights, random.choice((0.5, 1.0, 2.5)))
