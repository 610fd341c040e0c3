"""The scenario of a seed with several brokers."""

from random import Random
from typing import Final

from odradek.simulation import scenario
from odradek.simulation.scenario import FaultPlan, Scenario, Topic

REPLICATION_FACTOR: Final = 3
MIN_IN_SYNC: Final = 2
DAY_MS: Final = 86_400_000
_TWO_DIRECTORIES_SHARE: Final = 0.5
_UNCLEAN_SHARE: Final = 0.4
_COMMON_END_SHARE: Final = 0.15
_POWER_SHARE: Final = 0.2
"""Share of seeds in which all machines may lose power at the same time."""
_SLOW_ZOOKEEPER: Final = (0.35, 0.55)
"""Range of the draw with which ZooKeeper may be slow: in a fifth of the seeds, but not in those of the safeguards."""
_SLOW_MOVES: Final = 50_000
"""Bytes per second that moves between log directories copy, if they are throttled."""

_FAULTS: Final[tuple[str, ...]] = (
    "kill", "stop", "pause", "cut_brokers", "cut_one_way", "isolate", "cut_from_zookeeper", "cut_from_clients",
    "break_connections",
)  # fmt: skip
_RARER_FAULTS: Final[tuple[str, ...]] = (
    "lose_power", "kill_while_writing", "fail_disk", "fill_disk", "expire_session", "break_zookeeper_connections",
    "stop_zookeeper", "set_clock", "slow_network", "fail_controller",
)  # fmt: skip


def draw(random: Random) -> Scenario:
    """Draw a scenario: that of a single broker, with the properties, topics and faults of a cluster."""
    base = scenario.draw(random)
    properties = {**base.properties, **_properties(random)}
    topics = tuple(_replicated(topic) for topic in base.topics if not topic.is_aged)
    drawn = base._replace(
        properties=properties,
        topics=topics,
        owned=tuple(_owned_by_client(topic) for topic in base.owned),
        faults=_draw_faults(random),
        duration_s=random.uniform(4.0, 15.0),
        slow_thread_s=random.choice((0.1, 0.3)),
        replication_factor=REPLICATION_FACTOR,
    )
    if random.random() < _TWO_DIRECTORIES_SHARE:
        drawn = _with_two_directories(drawn, random)
    if random.random() < _UNCLEAN_SHARE:
        drawn = _with_unclean_topic(drawn, random)
    if random.random() < _COMMON_END_SHARE:
        drawn = _with_common_ends(drawn, random)
    # Later draws than all others, so that they change no other property of a seed.
    if random.random() >= 1 - _POWER_SHARE:
        drawn = _with_common_power_losses(drawn, random)
    least, most = _SLOW_ZOOKEEPER
    return _with_fault(drawn, "slow_zookeeper", random) if least <= random.random() < most else drawn


def _with_fault(drawn: Scenario, name: str, random: Random) -> Scenario:
    """Return the scenario with another fault, unless it has none."""
    weights = dict(drawn.faults.weights)
    if weights:
        weights[name] = random.randint(1, 5)
    return drawn._replace(faults=drawn.faults._replace(weights=weights))


def _with_common_ends(drawn: Scenario, random: Random) -> Scenario:
    """Return the scenario with the fault that ends all brokers at the same time."""
    weights = dict(drawn.faults.weights)
    if weights:
        weights["end_all"] = random.randint(1, 3)
    return drawn._replace(faults=drawn.faults._replace(weights=weights))


def _with_common_power_losses(drawn: Scenario, random: Random) -> Scenario:
    """Return the scenario with power losses of all machines, and with flush.before.acks for all topics.

    Without it these losses may lose every record that was not synced, on all replicas.
    """
    weights = dict(drawn.faults.weights)
    if not weights:
        return drawn
    weights["lose_all_power"] = random.randint(1, 5)
    return drawn._replace(
        properties={**drawn.properties, "flush.before.acks": "true"},
        topics=tuple(_flushed(topic) for topic in drawn.topics),
        owned=tuple(_flushed(topic) for topic in drawn.owned),
        faults=drawn.faults._replace(weights=weights),
    )


def _flushed(topic: Topic) -> Topic:
    """Return a topic with the broker's flush.before.acks, which is true."""
    configs = {name: value for name, value in topic.configs.items() if name != "flush.before.acks"}
    return topic._replace(configs=configs, flush_before_acks=True)


def _with_two_directories(drawn: Scenario, random: Random) -> Scenario:
    """Return the scenario for brokers with two log directories, of which one may fail."""
    properties = {**drawn.properties, "log.dirs": "/data1,/data2"}
    if random.random() < 0.3:
        properties["replica.alter.log.dirs.io.max.bytes.per.second"] = str(_SLOW_MOVES)
    weights = dict(drawn.faults.weights)
    if weights and random.random() < 0.5:
        weights["fail_directory"] = random.randint(1, 5)
    return drawn._replace(properties=properties, faults=drawn.faults._replace(weights=weights))


def _with_unclean_topic(drawn: Scenario, random: Random) -> Scenario:
    """Return the scenario with a topic that prefers availability, and with the fault that leads to such elections."""
    configs = {
        "internal.segment.bytes": str(random.choice((700, 3_000, 20_000))),
        "retention.ms": "-1",
        "min.insync.replicas": str(MIN_IN_SYNC),
        "unclean.leader.election.enable": random.choice(("true", "true", "false")),
    }
    topic = Topic("unclean", random.choice((1, 2)), configs, flush_before_acks=False, is_unclean=True)
    weights = dict(drawn.faults.weights)
    if weights and random.random() < 0.8:
        weights["leave_one_behind"] = random.randint(1, 5)
    session_ms = str(random.choice((500, 1_500)))
    sessions = {"zookeeper.session.timeout.ms": session_ms, "zookeeper.connection.timeout.ms": session_ms}
    return drawn._replace(
        properties={**drawn.properties, **sessions},
        topics=(*drawn.topics, topic),
        faults=drawn.faults._replace(weights=weights),
    )


def _owned_by_client(topic: Topic) -> Topic:
    return topic._replace(configs={**topic.configs, "min.insync.replicas": str(MIN_IN_SYNC)})


def _replicated(topic: Topic) -> Topic:
    """Return a topic that keeps everything and needs two replicas in sync.

    As in Kafka, a replica of a compacted topic that is away for longer than delete.retention.ms misses tombstones and
    the markers of aborted transactions.
    """
    configs = {**topic.configs, "min.insync.replicas": str(MIN_IN_SYNC), "retention.ms": "-1"}
    if topic.is_compacted:
        configs["delete.retention.ms"] = str(DAY_MS)
    return topic._replace(configs=configs)


def _properties(random: Random) -> dict[str, str]:
    pick = random.choice
    session_ms = pick((500, 1_500, 4_000))
    return {
        "log.dirs": "/data",
        "log.retention.ms": "-1",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "offsets.retention.check.interval.ms": "600000",
        "zookeeper.session.timeout.ms": str(session_ms),
        "zookeeper.connection.timeout.ms": str(session_ms),
        "default.replication.factor": str(REPLICATION_FACTOR),
        "min.insync.replicas": str(MIN_IN_SYNC),
        "offsets.topic.replication.factor": str(REPLICATION_FACTOR),
        "transaction.state.log.replication.factor": str(REPLICATION_FACTOR),
        "transaction.state.log.min.isr": str(MIN_IN_SYNC),
        "unclean.leader.election.enable": "false",
        "replica.lag.time.max.ms": str(pick((1_000, 3_000, 10_000))),
        "replica.fetch.wait.max.ms": str(pick((50, 500))),
        "replica.fetch.backoff.ms": str(pick((50, 500))),
        "replica.fetch.max.bytes": str(pick((1_000, 1_048_576))),
        "num.replica.fetchers": str(pick((1, 1, 2))),
        "controller.socket.timeout.ms": str(pick((1_000, 3_000))),
        "request.timeout.ms": str(pick((1_000, 3_000))),
        "leader.imbalance.check.interval.seconds": str(pick((1, 300))),
        "broker.id.generation.enable": "false",
    }


def _draw_faults(random: Random) -> FaultPlan:
    """Draw faults with their weights; a tenth of all seeds has none."""
    if random.random() < 0.1:
        return FaultPlan({}, 1.0)
    chosen = random.sample(_FAULTS, random.randint(1, 5))
    chosen += [name for name in _RARER_FAULTS if random.random() < 0.25]
    weights = {name: random.randint(1, 5) for name in (*_FAULTS, *_RARER_FAULTS) if name in chosen}
    return FaultPlan(weights, random.choice((0.5, 1.0, 2.5)))
