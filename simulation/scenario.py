"""What a seed stands for: the broker's configuration, the topics, the network's habits and the faults to come."""

from random import Random
from typing import Final, NamedTuple

from odradek.simulation.network import NetworkHabits

GROUP_PARTITIONS: Final = 2
TRANSACTION_PARTITIONS: Final = 2


class Topic(NamedTuple):
    """A topic as it is created; `configs` are its properties."""

    name: str
    partitions: int
    configs: dict[str, str]
    flush_before_acks: bool
    is_compacted: bool = False
    has_append_time: bool = False


class FaultPlan(NamedTuple):
    """Which faults come, and how often: `weights` by the name of the method in `faults`, `interval_s` on average."""

    weights: dict[str, int]
    interval_s: float


class Scenario(NamedTuple):
    """All that is decided before a run begins. `duration_s`: how long clients work, and faults come."""

    properties: dict[str, str]
    topics: tuple[Topic, ...]
    transaction_version: int
    habits: NetworkHabits
    faults: FaultPlan
    duration_s: float


def draw(random: Random) -> Scenario:
    """A scenario of chance."""
    flush_before_acks = random.random() < 0.5
    scenario = Scenario(
        properties=_properties(random, flush_before_acks),
        topics=_topics(random, flush_before_acks),
        transaction_version=random.choice((0, 1, 2, 2)),
        habits=_habits(random),
        faults=_faults(random),
        duration_s=random.uniform(2.0, 5.0),
    )
    # What is drawn last leaves the rest of a seed's scenario as it was.
    return scenario._replace(habits=scenario.habits._replace(short_send_share=random.choice((0.0, 0.0, 0.02, 0.2))))


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
        "log.retention.ms": "-1",
        "log.index.interval.bytes": str(pick((1, 100, 4096))),
        "log.index.size.max.bytes": str(pick((64, 1024, 10_485_760))),
        "log.segment.delete.delay.ms": str(pick((0, 500, 60_000))),
        "log.initial.task.delay.ms": str(pick((100, 2_000))),
        "log.cleaner.backoff.ms": str(pick((200, 1_000, 15_000))),
        "log.cleaner.dedupe.buffer.size": "1048576",
        "log.flush.offset.checkpoint.interval.ms": str(pick((200, 2_000, 60_000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(pick((200, 60_000))),
        "replica.high.watermark.checkpoint.interval.ms": str(pick((200, 5_000))),
        "log.retention.check.interval.ms": str(pick((500, 300_000))),
    }
    if random.random() < 0.3:
        properties["log.flush.interval.messages"] = str(pick((1, 5, 50)))
    if random.random() < 0.3:
        properties["log.flush.interval.ms"] = str(pick((50, 1_000)))
    if random.random() < 0.2:
        properties["log.preallocate"] = "true"
    return properties


def _topics(random: Random, flush_before_acks: bool) -> tuple[Topic, ...]:
    topics = []
    for name in ("one", "two", "three"):
        configs = {"internal.segment.bytes": str(random.choice((700, 3_000, 20_000)))}
        flush = flush_before_acks
        if random.random() < 0.15:
            flush = not flush
            configs["flush.before.acks"] = str(flush).lower()
        has_append_time = random.random() < 0.15
        if has_append_time:
            configs["message.timestamp.type"] = "LogAppendTime"
        topics.append(Topic(name, random.choice((1, 1, 2)), configs, flush, has_append_time=has_append_time))
    compacted = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": str(random.choice((700, 2_000))),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": str(random.choice((100, 86_400_000))),
    }
    topics.append(Topic("compacted", 1, compacted, flush_before_acks, is_compacted=True))
    return tuple(topics)


def _habits(random: Random) -> NetworkHabits:
    return NetworkHabits(
        latency_s=random.choice((0.0003, 0.001, 0.01)),
        slow_share=random.choice((0.0, 0.02, 0.1)),
        slow_s=random.choice((0.05, 0.5)),
        small_piece_share=random.choice((0.0, 0.02, 0.2)),
        buffer_bytes=random.choice((1_000, 20_000, 65_536)),
    )


_FAULTS: Final[tuple[str, ...]] = (
    "kill", "kill_while_writing", "lose_power", "lose_power_while_writing", "stop", "break_connection",
    "break_all_connections", "fail_once", "fill_disk", "break_directory",
)  # fmt: skip


def _faults(random: Random) -> FaultPlan:
    """Some of the faults, each more or less often; a twentieth of all seeds has none."""
    if random.random() < 0.05:
        return FaultPlan({}, 1.0)
    chosen = random.sample(_FAULTS, random.randint(1, 6))
    weights = {name: random.randint(1, 5) for name in _FAULTS if name in chosen}
    return FaultPlan(weights, random.choice((0.5, 1.0, 2.5)))
