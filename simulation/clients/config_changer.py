"""An administrator that changes the configuration of topics and brokers of a cluster under load.

It makes changes only that keep all guarantees: min.insync.replicas is 2 or 3, records are kept for ever, and compacted
topics stay compacted. It also throttles replication (KIP-73), until the end of the faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients import topic_admin
from odradek.simulation.clients.link import Link, Versions
from odradek.simulation.history import History

Address = tuple[str, int]
Values = Mapping[str, Sequence[str | None]]

_TOPIC_VALUES: Final[Values] = {
    "min.insync.replicas": ("2", "3"),
    "compression.type": (None, "producer", "uncompressed", "gzip", "lz4", "zstd"),
    "flush.messages": (None, "1", "5"),
    "segment.ms": (None, "500", "3000"),
    "index.interval.bytes": (None, "1", "500"),
    "segment.index.bytes": (None, "64", "1024"),
    "preallocate": ("true", "false"),
    "file.delete.delay.ms": (None, "0", "500"),
}
_FLUSHES: Final[Values] = {"flush.before.acks": ("true", "false")}
_COMPACTION_VALUES: Final[Values] = {
    "cleanup.policy": ("compact", "compact,delete"),
    "min.cleanable.dirty.ratio": ("0.01", "0.5"),
    "min.compaction.lag.ms": (None, "0", "500"),
    "max.compaction.lag.ms": (None, "1000"),
}
_BROKER_VALUES: Final[Values] = {
    "min.insync.replicas": (None, "2", "3"),
    "num.replica.fetchers": (None, "1", "2"),
    "log.cleaner.threads": (None, "1", "2"),
    "log.cleaner.backoff.ms": (None, "200", "5000"),
    "log.cleaner.io.max.bytes.per.second": (None, "10000"),
    "log.flush.interval.messages": (None, "1", "50"),
    "log.index.interval.bytes": (None, "1", "4096"),
    "log.roll.ms": (None, "500", "3000"),
    "log.segment.delete.delay.ms": (None, "0", "60000"),
    "compression.type": (None, "producer", "gzip"),
    "replica.alter.log.dirs.io.max.bytes.per.second": (None, "20000"),
}
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_BYTES_PER_SECOND: Final = ("500", "5000", "100000")
_EXPECTED: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_ALL_BROKERS: Final = ""


class ConfigChanger:
    """Works until the world ends; then it removes all throttles.

    topics, compacted: the topics without and with compaction that it configures
    addresses: of the brokers, by id; a request about one broker must go to that broker
    may_flush_late: flush.before.acks may be disabled, because not all machines lose unsynced data at the same time
    """

    def __init__(
        self,
        world: World,
        history: History,
        random: Random,
        topics: Sequence[str],
        compacted: Sequence[str],
        addresses: Mapping[str, Address],
        *,
        may_flush_late: bool,
    ) -> None:
        self.name = "config-changer"
        self._world = world
        self._history = history
        self._random = random
        self._topics = [*topics, *compacted]
        self._compacted = compacted
        self._addresses = addresses
        self._brokers = [_ALL_BROKERS, _ALL_BROKERS, *addresses]
        self._topic_values = {**_TOPIC_VALUES, **(_FLUSHES if may_flush_late else {})}
        self._versions = Versions(random, topic_admin.VERSIONS)
        self._link = Link(world, history, self.name, random, self._versions)
        self._pause_s = random.choice((0.05, 0.2, 1.0))
        self._throttled: dict[tuple[int, str], None] = {}
        self._actions = [
            self._change_topic, self._change_topic, self._change_topic, self._change_broker, self._change_broker,
            self._throttle, self._throttle, self._end_throttle,
        ]  # fmt: skip

    async def run(self) -> None:
        """Change configurations until the world ends, then remove all throttles."""
        while not self._world.is_ending:
            await self._link.nap(self._random.expovariate(1 / self._pause_s))
            try:
                await self._random.choice(self._actions)()
            except ConnectionLost:
                continue
        while self._throttled:
            with suppress(ConnectionLost):
                await self._end_throttle()
            await self._link.back_off(1)
        self._link.close()

    async def _change_topic(self) -> None:
        topic = self._random.choice(self._topics)
        values = {**self._topic_values, **(_COMPACTION_VALUES if topic in self._compacted else {})}
        await self._alter(topic_admin.TOPIC_RESOURCE, topic, self._draw(values))

    async def _change_broker(self) -> None:
        await self._alter(topic_admin.BROKER_RESOURCE, self._random.choice(self._brokers), self._draw(_BROKER_VALUES))

    def _draw(self, values: Values) -> dict[str, str | None]:
        """Draw values of one to three properties."""
        names = self._random.sample(list(values), self._random.randint(1, 3))
        return {name: self._random.choice(values[name]) for name in names}

    async def _throttle(self) -> None:
        """Throttle the replicas of a topic, or change the rate of a broker or of all brokers."""
        if self._random.random() < 0.5:
            resource, names, value = (topic_admin.TOPIC_RESOURCE, self._random.choice(self._topics)), _THROTTLED, "*"
        else:
            resource, names = (topic_admin.BROKER_RESOURCE, self._random.choice(self._brokers)), _RATES
            value = self._random.choice(_BYTES_PER_SECOND)
        # Without a response it may take effect.
        self._throttled[resource] = None
        await self._alter(*resource, dict.fromkeys(names, value))

    async def _end_throttle(self) -> None:
        if not self._throttled:
            return
        resource = self._random.choice(list(self._throttled))
        names = _THROTTLED if resource[0] == topic_admin.TOPIC_RESOURCE else _RATES
        code = await self._alter(*resource, dict.fromkeys(names))
        if code in _EXPECTED:
            del self._throttled[resource]

    async def _alter(self, resource_type: int, name: str, configs: Mapping[str, str | None]) -> ErrorCode:
        if resource_type == topic_admin.BROKER_RESOURCE and name != _ALL_BROKERS:
            connection = await self._world.connect(self._addresses[name])
            request = topic_admin.alteration(resource_type, name, configs)
            answer = await connection.request(request, self._versions.of(request), client_id=self.name)
            connection.close()
            code = ErrorCode(answer.responses[0].error_code)
        else:
            code = await topic_admin.alter_configs(self._link, resource_type, name, configs)
        kind = "topic" if resource_type == topic_admin.TOPIC_RESOURCE else "broker"
        text = f"configure {kind} {name!r} with {configs}: {code.name}"
        if code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            self._history.note_odd(self.name, text)
        else:
            self._history.note(self.name, text)
        return code
