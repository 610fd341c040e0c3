"""Throttles of replication (KIP-73): a rate limit on the records of chosen replicas.

Leader and follower have a throttle each. A throttled replica that is not in sync gets or requests nothing while the
limit is exceeded; only the records of throttled replicas count. Moves between log directories have one for all of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from odradek.log.config import LogConfig
from odradek.properties import INT64_MAX, PropertySet
from odradek.replication.metadata.broker_configs import BrokerConfigs

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
_ALL: Final = "*"


class RateMeter:
    """The mean rate of the last `window_count` windows of `window_ms`, measured as Kafka's SimpleRate.

    monotonic_ms: the clock
    """

    def __init__(self, monotonic_ms: Callable[[], int], window_count: int, window_ms: int) -> None:
        self._monotonic_ms = monotonic_ms
        self._window_ms = window_ms
        self._duration_ms = window_count * window_ms
        self._samples: deque[list[int]] = deque()
        """Start and sum of each window that has a value."""
        self._sum = 0

    def record(self, amount: int) -> None:
        """Add an amount to the current window."""
        monotonic_ms = self._monotonic_ms()
        self._sum += amount
        if self._samples and monotonic_ms - self._samples[-1][0] < self._window_ms:
            self._samples[-1][1] += amount
        else:
            self._samples.append([monotonic_ms, amount])

    def measure(self) -> float:
        """Return the amount per second. During the first window the rest of that window counts too."""
        monotonic_ms = self._monotonic_ms()
        samples = self._samples
        while samples and monotonic_ms - samples[0][0] >= self._duration_ms:
            self._sum -= samples.popleft()[1]
        if not samples:
            return 0.0
        return self._sum * 1000 / max(monotonic_ms - samples[0][0], self._window_ms)


class DirectoryMoveThrottle:
    """The throttle of moves between log directories (KIP-113).

    The limit is the dynamic broker property `replica.alter.log.dirs.io.max.bytes.per.second`. `current` returns the
    effective properties; the log directories are opened before the dynamic ones are known.
    """

    def __init__(self, current: Callable[[], PropertySet], monotonic_ms: Callable[[], int]) -> None:
        self._current = current
        count = int(current().value("alter.log.dirs.replication.quota.window.num"))
        seconds = int(current().value("alter.log.dirs.replication.quota.window.size.seconds"))
        self._meter = RateMeter(monotonic_ms, count, seconds * 1000)

    def record(self, size_bytes: int) -> None:
        """Count copied records."""
        if self._limit() < INT64_MAX:
            self._meter.record(size_bytes)

    def is_exceeded(self) -> bool:
        """Return whether the rate exceeds the limit."""
        limit = self._limit()
        return limit < INT64_MAX and self._meter.measure() > limit

    def _limit(self) -> int:
        return int(self._current().value("replica.alter.log.dirs.io.max.bytes.per.second"))


class Throttle(Protocol):
    """The throttle of the leaders, or of the followers, of a broker."""

    def is_exceeded(self, topic: str, index: int) -> bool:
        """Return whether a partition is throttled and the rate exceeds the limit."""

    def record(self, topic: str, index: int, size_bytes: int) -> None:
        """Count records that were sent to a follower, or fetched from a leader, if the partition is throttled."""


class ReplicationThrottle:
    """The throttle of this broker's leaders, or of its followers (`Throttle`).

    The limit is the dynamic broker property `<role>.replication.throttled.rate`. The topic property
    `<role>.replication.throttled.replicas` has the throttled replicas.
    """

    def __init__(
        self, role: str, broker_id: int, configs: BrokerConfigs, monotonic_ms: Callable[[], int]
    ) -> None:
        self._broker_id = broker_id
        self._configs = configs
        self._rate_property = f"{role}.replication.throttled.rate"
        self._replicas_property = f"{role}.replication.throttled.replicas"
        count = int(configs.static.value("replication.quota.window.num"))
        seconds = int(configs.static.value("replication.quota.window.size.seconds"))
        self._meter = RateMeter(monotonic_ms, count, seconds * 1000)
        self._parsed: dict[str, tuple[LogConfig, frozenset[int] | None]] = {}
        self._known_limit: tuple[PropertySet, int] | None = None

    def is_throttled(self, topic: str, index: int) -> bool:
        """Return whether this broker's replica of the partition is throttled."""
        config = self._configs.topic(topic)
        parsed = self._parsed.get(topic)
        if parsed is None or parsed[0] is not config:
            parsed = self._parsed[topic] = (config, self._parse(config.value(self._replicas_property)))
        partitions = parsed[1]
        return partitions is None or index in partitions

    def _parse(self, entries: tuple[str, ...]) -> frozenset[int] | None:
        """Return the throttled partitions of a topic, None for all of them."""
        if "".join(entries) == _ALL:
            return None
        pairs = (entry.partition(":") for entry in entries if entry)
        return frozenset(int(index) for index, _, broker in pairs if int(broker) == self._broker_id)

    def record(self, topic: str, index: int, size_bytes: int) -> None:
        """Count records that were sent or received, if the replica is throttled."""
        if self._limit() < INT64_MAX and self.is_throttled(topic, index):
            self._meter.record(size_bytes)

    def is_exceeded(self, topic: str, index: int) -> bool:
        """Return whether this broker's replica of the partition is throttled and the rate exceeds the limit."""
        limit = self._limit()
        return limit < INT64_MAX and self.is_throttled(topic, index) and self._meter.measure() > limit

    def _limit(self) -> int:
        current, known = self._configs.current, self._known_limit
        if known is None or known[0] is not current:
            # Each response to a follower asks for the limit, which seldom changes.
            known = self._known_limit = current, int(current.value(self._rate_property))
        return known[1]
