"""The log of a broker process, for programs that start brokers and read their output."""

import logging
import re

ID_IN_USE = "is in use by another broker"
"""Part of the error of a broker that cannot start because its previous session has not expired."""

_STARTED = re.compile(rb'odradek started(?: address=|", "address": ")([^\s"]+)')
_METRICS = re.compile(rb'metrics(?: address=|", "address": ")(http://[^\s"/]+)/metrics')
_LIVE_BROKERS = re.compile(rb'(?:^\S+ INFO \S+ live brokers ids=|"message": "live brokers", "ids": ")([\d,]*)')
_LEVEL = re.compile(rb'(?:\S+|\{"time": "\S+", "level":) "?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b')


class BrokerLog:
    """Selects lines by their level, and finds those of the start and of the live brokers. `log.format` is text or json.

    The lines that exist only because the process has a lower level are hidden. Lines below both levels are not: an
    operator has changed the level of their logger while the broker runs.

    process_level: for the broker's `--log-level`; at most info, because the start is logged with that level
    addresses: `host:port` of each listener; empty before the broker has started
    metrics_url: that of the HTTP server of `metrics.listener`; empty without one
    live_brokers: ids of the live brokers in the metadata of a member of a cluster; empty before it has any
    """

    def __init__(self, level: str) -> None:
        numbers = logging.getLevelNamesMapping()
        # An unknown level is passed on: the broker's error names the possible ones.
        number = numbers.get(level.upper(), logging.INFO)
        self.process_level = level if number <= logging.INFO else "info"
        self.addresses: tuple[str, ...] = ()
        self.metrics_url = ""
        self.live_brokers: frozenset[int] = frozenset()
        self._hidden = frozenset(name.encode() for name, other in numbers.items() if logging.INFO <= other < number)
        self._is_selected = True

    def selects(self, line: bytes) -> bool:
        """Read the next line; return whether it is selected. Lines of a traceback have the level of the line before."""
        if match := _LEVEL.match(line):
            self._is_selected = match[1] not in self._hidden
        if not self.addresses and (match := _METRICS.search(line)):
            self.metrics_url = match[1].decode()
        if match := _LIVE_BROKERS.search(line):
            self.live_brokers = frozenset(map(int, filter(None, match[1].split(b","))))
        if not self.addresses and (match := _STARTED.search(line)):
            self.addresses = tuple(match[1].decode("utf-8", "replace").split(","))
        return self._is_selected
