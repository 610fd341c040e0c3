"""Rates of new connections of IP addresses (KIP-612)."""

import logging
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from odradek.properties import INT32_MAX
from odradek.replication.metadata.image import Configs
from odradek.server.quotas.entities import DEFAULT, parse_path
from odradek.server.quotas.keys import CONNECTION_CREATION_RATE
from odradek.server.quotas.meters import Meters, RateMeter
from odradek.server.quotas.rates import Window

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from odradek.server.work.clock import Resolver

logger = logging.getLogger(__name__)

_ANY_USER: Final = ""


class IpRates:
    """The limits of IP addresses, and the rates of those that connect."""

    def __init__(self, window: Window, monotonic_ms: Callable[[], int], resolver: "Resolver") -> None:
        self._window = window
        self._monotonic_ms = monotonic_ms
        self._resolver = resolver
        # The limits of addresses are resolved like those of client ids: an own limit, or the default.
        self._meters = Meters(RateMeter, window, monotonic_ms)
        self._addresses: dict[str, str] = {}
        """The addresses of entities that are host names."""
        self._attempts: dict[str, int] = {}
        """By host name, the number of changes of its quota."""

    def update(self, changed: Mapping[str, Configs]) -> None:
        """Apply changed configurations of IP addresses, by path. A host name applies when it is resolved."""
        for path, configs in changed.items():
            entity = parse_path(path)
            if entity is None or entity.ip is None:
                continue
            bound = _parse_rate(path, configs)
            if entity.ip == DEFAULT:
                self._put(DEFAULT, bound)
                continue
            try:
                self._put(str(ip_address(entity.ip)), bound)
            except ValueError:
                self._put_host(entity.ip, bound)

    def throttle(self, host: str) -> float:
        """Count a new connection; return the seconds after which it is to be closed, or 0 to accept it.

        A connection that is closed does not count. The time is at most one sample.
        """
        meter = self._meters.find(_ANY_USER, host)
        if meter is None or meter.bound >= INT32_MAX:
            return 0.0
        time_ms = self._monotonic_ms()
        throttle_ms = min(meter.record(1, time_ms), self._window.sample_ms)
        if throttle_ms > 0:
            meter.add(-1, time_ms)
        return throttle_ms / 1000

    def remove_idle(self) -> None:
        """Remove the rates of addresses that have not connected for an hour."""
        self._meters.remove_idle()

    def _put(self, address: str, bound: float | None) -> None:
        self._meters.limits.put(None, address, bound)

    def _put_host(self, host: str, bound: float | None) -> None:
        self._attempts[host] = attempt = self._attempts.get(host, 0) + 1
        if bound is None:
            self._move(host, None, None)
            return

        def resolved(address: str) -> None:
            # The quota may have changed meanwhile.
            if self._attempts[host] == attempt:
                self._move(host, address, bound)

        def failed(failure: "Failure") -> None:
            logger.warning(
                "quota has no effect for a host that cannot be resolved; set it for an address host=%s error=%s",
                host,
                failure.getErrorMessage(),
            )

        self._resolver.resolve(host).addCallbacks(resolved, failed)

    def _move(self, host: str, address: str | None, bound: float | None) -> None:
        """Set the limit of a host name at its current address in place of that at the earlier one, if there is any."""
        before = self._addresses.pop(host, None)
        if before is not None:
            self._put(before, None)
        if address is not None:
            self._addresses[host] = address
            self._put(address, bound)


def _parse_rate(path: str, configs: Configs) -> float | None:
    text = configs.get(CONNECTION_CREATION_RATE)
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    logger.warning("quota is not valid and has no effect; set it again entity=%s value=%r", path, text)
    return None
