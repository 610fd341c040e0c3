"""Limits of connections: in total, per listener, per address, per second, and by file descriptors.

As in Apache Kafka (KIP-402, KIP-612): at `max.connections`, or above `max.connection.creation.rate`, a listener stops
accepting for a while, and clients that connect wait in the operating system's queue; above `max.connections.per.ip` a
connection is closed at once, and above the quota of its address it is closed after its throttle time. The broker's own
limits do not apply to the inter-broker listener if there are others.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.python.failure import Failure

from odradek.properties import INT32_MAX
from odradek.server.work.clock import DelayedCall, Reactor
from odradek.server.work.listening_port import ListeningPort

if TYPE_CHECKING:
    from odradek.server.config import BrokerConfig
    from odradek.server.quotas.ip_rates import IpRates

logger = logging.getLogger(__name__)

MAX_ACCEPTS: Final = 16
"""Connections that a listener accepts in one reactor iteration; each takes some 0.1 ms."""

_MIN_CONNECTIONS: Final = 8
"""Connections that are accepted even if there are no spare descriptors, so that topics can be deleted."""

_RETRY_S: Final = 1.0
"""Pause before a listener that waits for a descriptor checks again, because closed files free descriptors too."""

_WARNING_INTERVAL_S: Final = 60.0

_AT_ONCE_S: Final = 0.001
_IPV4_IN_IPV6: Final = "::ffff:"
UNLIMITED: Final = INT32_MAX


class CreationRate:
    """Rate of new connections over the last samples, and the pause that a quota requires, computed as in Kafka.

    The rate is measured over at least all samples but one, so that an initial burst of that length is accepted.
    """

    def __init__(self, sample_count: int, sample_s: int) -> None:
        self.quota = UNLIMITED
        self._sample_count = sample_count
        self._sample_s = sample_s
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def is_limited(self) -> bool:
        """Return whether there is a quota."""
        return self.quota < UNLIMITED

    def record(self, now_s: float) -> float:
        """Count a connection; return the seconds for which no other is to be accepted, at most one sample."""
        if not self.is_limited:
            return 0.0
        samples, sample_s = self._samples, self._sample_s
        while samples and samples[0][0] <= now_s - self._sample_count * sample_s:
            samples.popleft()
        if samples and now_s < samples[-1][0] + sample_s:
            samples[-1] = (samples[-1][0], samples[-1][1] + 1)
        else:
            samples.append((now_s, 1))
        window_s = max(now_s - samples[0][0], (self._sample_count - 1) * sample_s, sample_s)
        excess = sum(count for _, count in samples) - self.quota * window_s
        if excess <= 0:
            return 0.0
        return min(float(sample_s), excess / self.quota) if self.quota else float(sample_s)


class ConnectionQuotas:
    """Counts and limits of a broker's connections. `clock` is the reactor.

    protected: the listener to which the broker's limits do not apply, if there are others
    spare_descriptors: returns the number of file descriptors that can be opened
    margin: returns the number of descriptors that connections leave to the logs
    close_least_active: called with a count and a listener, to close that many connections of other listeners
    on_scarcity: called once, when descriptors become scarce
    """

    def __init__(
        self,
        config: "BrokerConfig",
        clock: Reactor,
        *,
        protected: str,
        spare_descriptors: Callable[[], int],
        margin: Callable[[], int],
        close_least_active: Callable[[int, str], None],
        on_scarcity: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        self._config = config
        self._protected = protected
        self._spare_descriptors = spare_descriptors
        self._margin = margin
        self._close_least_active = close_least_active
        self._on_scarcity = on_scarcity
        self._is_scarce = False
        self._total = 0
        self._by_host: Counter[str] = Counter()
        self._acceptors: list[Acceptor] = []
        self._overrides: dict[str, int] = {}
        self._rate = self._make_rate()
        self._ip_rates: IpRates | None = None
        self._next_warning_s = float("-inf")
        self._apply_overrides()
        self._rate.quota = config.max_connection_creation_rate

    def listen(self, listener: str, port: ListeningPort) -> "Acceptor":
        """Limit the connections of a listener's port, which is read from `Acceptor.start` on."""
        acceptor = Acceptor(self, listener, port, self._make_rate())
        acceptor.update(self._config)
        self._acceptors.append(acceptor)
        return acceptor

    def limit_addresses(self, rates: "IpRates") -> None:
        """Limit the rates of new connections of addresses from now on."""
        self._ip_rates = rates

    def throttle(self, host: str) -> float:
        """Return the seconds after which a connection is to be closed, because its address has exceeded its rate.

        0 if it may be admitted. As in Kafka the limit applies on all listeners.
        """
        if self._ip_rates is None:
            return 0.0
        delay_s = self._ip_rates.throttle(unmap_ipv4(host))
        if delay_s > 0 and self._spare_descriptors() <= self._margin():
            # It must not occupy a descriptor that others need.
            return _AT_ONCE_S
        return delay_s

    def update(self, config: "BrokerConfig") -> None:
        """Apply changed properties, and close connections above max.connections."""
        before, self._config = self._config, config
        self._rate.quota = config.max_connection_creation_rate
        if config.connections_of_hosts != before.connections_of_hosts:
            self._apply_overrides()
        for acceptor in self._acceptors:
            acceptor.update(config)
        self._close_excess()
        for acceptor in self._acceptors:
            acceptor.resume()

    def count_slots(self, acceptor: "Acceptor") -> int:
        """Return the number of connections that a listener may accept now; none if the result is not positive."""
        slots = acceptor.max_count - acceptor.count
        if not self._is_protected(acceptor):
            slots = min(slots, self._config.max_connections - self._total)
        if slots <= 0:
            return 0
        margin = self._margin()
        descriptors = self._spare_descriptors() - margin
        if descriptors <= margin and not self._is_scarce:
            self._is_scarce = True
            self._on_scarcity()
        descriptors = max(descriptors, _MIN_CONNECTIONS - self._total)
        if descriptors <= 0:
            self._warn_of_shortage()
        return min(slots, descriptors)

    def limits_rate(self, acceptor: "Acceptor") -> bool:
        """Return whether the rate of new connections is limited."""
        return acceptor.rate.is_limited or (self._rate.is_limited and not self._is_protected(acceptor))

    def admit(self, acceptor: "Acceptor", host: str) -> bool:
        """Count an accepted connection; return False if its address has too many."""
        now_s = self.clock.seconds()
        delay_s = acceptor.rate.record(now_s)
        if not self._is_protected(acceptor):
            delay_s = max(delay_s, self._rate.record(now_s))
        if delay_s > 0:
            acceptor.pause(delay_s)
        host = unmap_ipv4(host)
        most = self._overrides.get(host, self._config.max_connections_per_ip)
        if self._by_host[host] >= most:
            logger.info("rejected a connection: its address has max.connections.per.ip client=%s most=%d", host, most)
            return False
        self._by_host[host] += 1
        self._total += 1
        acceptor.count += 1
        self._close_excess()
        return True

    def release(self, acceptor: "Acceptor", host: str) -> None:
        """Subtract a closed connection from the counts, and resume the listeners that waited for it."""
        host = unmap_ipv4(host)
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._total -= 1
        acceptor.count -= 1
        for each in self._acceptors:
            each.resume()

    def _make_rate(self) -> CreationRate:
        return CreationRate(self._config.quota_window_num, self._config.quota_window_size_seconds)

    def _is_protected(self, acceptor: "Acceptor") -> bool:
        return acceptor.listener == self._protected and len(self._acceptors) > 1

    def _close_excess(self) -> None:
        excess = self._total - self._config.max_connections
        if excess > 0:
            self._close_least_active(excess, self._protected if len(self._acceptors) > 1 else "")

    def _warn_of_shortage(self) -> None:
        now_s = self.clock.seconds()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_INTERVAL_S
            logger.warning(
                "file descriptors run short: new connections wait until others are closed; raise the limit of open "
                "files (ulimit -n) connections=%d",
                self._total,
            )

    def _apply_overrides(self) -> None:
        """Apply max.connections.per.ip.overrides. Those of host names apply when a thread has resolved the names."""
        given = self._config.connections_of_hosts
        self._overrides = overrides = {unmap_ipv4(host): most for host, most in given.items()}
        for host, most in given.items():
            if _is_address(host):
                continue

            def resolved(address: str, most: int = most) -> None:
                overrides[address] = most

            def failed(failure: Failure, host: str = host) -> None:
                logger.warning(
                    "max.connections.per.ip.overrides has no effect for a host that cannot be resolved; correct it "
                    "host=%s error=%s",
                    host,
                    failure.getErrorMessage(),
                )

            self.clock.resolve(host).addCallbacks(resolved, failed)


class Acceptor:
    """One listener's port, which is read only while connections may be accepted.

    max_count: the largest number of connections of the listener
    count: its number of connections
    """

    def __init__(self, quotas: ConnectionQuotas, listener: str, port: ListeningPort, rate: CreationRate) -> None:
        self.listener = listener
        self.max_count = UNLIMITED
        self.count = 0
        self.rate = rate
        self._quotas = quotas
        self._port = port
        self._is_started = False
        self._is_reading = False
        self._paused_until_s = float("-inf")
        self._call: DelayedCall | None = None
        if hasattr(port, "doRead"):
            # Twisted would accept more than a hundred connections at once; `accept` sets the number each time.
            self._accept: Callable[[], None] = port.doRead
            port.doRead = self.accept

    def update(self, config: "BrokerConfig") -> None:
        """Apply changed properties."""
        limits = config.listener_properties
        self.max_count = limits.get((self.listener, "max.connections"), UNLIMITED)
        self.rate.quota = limits.get((self.listener, "max.connection.creation.rate"), UNLIMITED)

    def start(self) -> None:
        """Start accepting clients."""
        self._is_started = True
        self.resume()

    def stop(self) -> None:
        """Stop accepting clients."""
        self._is_started = False
        self._wait(None)

    def admit(self, host: str) -> Callable[[], None] | None:
        """Count a connection; return a function to call when it is lost. None if it is to be closed."""
        return partial(self._quotas.release, self, host) if self._quotas.admit(self, host) else None

    def throttle(self, host: str) -> float:
        """Return the seconds after which a new connection is to be closed; 0 if it may be admitted."""
        return self._quotas.throttle(host)

    def accept(self) -> None:
        """Accept as many connections as the limits allow. Replaces the port's `doRead`."""
        slots = self._quotas.count_slots(self)
        if slots <= 0:
            self._wait(_RETRY_S)
            return
        # One by one if the rate is limited, because a pause may follow each.
        self._port.numberAccepts = 1 if self._quotas.limits_rate(self) else min(slots, MAX_ACCEPTS)
        self._accept()

    def pause(self, seconds: float) -> None:
        """Accept no clients for this time."""
        self._paused_until_s = self._quotas.clock.seconds() + seconds
        self._wait(seconds)

    def resume(self) -> None:
        """Accept clients again, unless a pause or a limit prevents it."""
        if self._is_reading or not self._is_started:
            return
        if self._quotas.clock.seconds() >= self._paused_until_s and self._quotas.count_slots(self) > 0:
            self._cancel_call()
            self._is_reading = True
            self._port.startReading()
        elif self._call is None:
            self._wait(_RETRY_S)

    def _wait(self, seconds: float | None) -> None:
        """Stop reading for `seconds`, or until a connection is closed; None: until `start`."""
        self._cancel_call()
        if self._is_reading:
            self._is_reading = False
            self._port.stopReading()
        if seconds is not None:
            self._call = self._quotas.clock.callLater(seconds, self._retry)

    def _retry(self) -> None:
        self._call = None
        self.resume()

    def _cancel_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


def unmap_ipv4(host: str) -> str:
    """Return the IPv4 address of an IPv4-mapped IPv6 address; any other address unchanged."""
    return host[len(_IPV4_IN_IPV6) :] if host.startswith(_IPV4_IN_IPV6) and "." in host else host


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
