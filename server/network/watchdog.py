"""Watchdog: logs reactor iterations that take too long with their longest work, and counts them.

All clients wait while the reactor thread is busy. An iteration begins when the poll returns and ends before the next
poll. Its wall time is measured; the CPU time distinguishes work of the broker from a thread that was not scheduled, or
waited for a disk or for the interpreter's lock.
"""

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.task import Cooperator

from odradek.server.apis import APIS

if TYPE_CHECKING:
    from odradek.server.network.connection import Connection
    from odradek.server.request import RequestContext

logger = logging.getLogger(__name__)

NOTABLE_S: Final = 0.001
"""Work that takes less is never reported."""

_SAMPLE_S: Final = 0.02
"""Shortest time between two reads of the CPU clock, each of which is a system call."""


class Watchdog:
    """Watches the iterations of one reactor.

    threshold_s: longer iterations are reported; infinite until it is set
    slow_iterations: the number of iterations above the threshold
    busy_iterations: those of them that may have used the CPU for longer than the threshold: not those in which the
        machine was busy with other processes
    longest_s: time of the longest work in this iteration
    """

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self.threshold_s = math.inf
        self.slow_iterations = 0
        self.busy_iterations = 0
        self.longest_s = 0.0
        self._longest: Callable[[], str] = str
        self._cpu_clock = cpu_clock
        self._sampled_s = -math.inf
        self._sampled_cpu_s = 0.0

    def begin_iteration(self, now_s: float) -> None:
        """Discard the work of the last iteration."""
        self.longest_s = 0.0
        if now_s - self._sampled_s > _SAMPLE_S:
            self._sampled_s = now_s
            self._sampled_cpu_s = self._cpu_clock()

    def record(self, cost_s: float, work: object) -> None:
        """Record the time of `work`, a function or the owner of a socket."""
        if cost_s > self.longest_s:
            self.longest_s = cost_s
            self._longest = partial(_describe, work)

    def record_request(self, cost_s: float, connection: "Connection", api_key: int) -> None:
        """Record the time of a request, including the work that it caused at once."""
        if cost_s > self.longest_s:
            self.longest_s = cost_s
            self._longest = partial(_describe_request, connection.context, api_key)

    def report(self, wall_s: float) -> None:
        """Count and log an iteration that took longer than the threshold."""
        cpu_s = min(self._cpu_clock() - self._sampled_cpu_s, wall_s)
        self.slow_iterations += 1
        self.busy_iterations += cpu_s > self.threshold_s
        logger.warning(
            "reactor iteration was slow, and delayed all requests wall_ms=%.0f cpu_ms=%.0f longest_ms=%.0f "
            "longest=%r count=%d",
            wall_s * 1000,
            cpu_s * 1000,
            self.longest_s * 1000,
            self._longest() if self.longest_s else "",
            self.slow_iterations,
        )


def _describe(work: object) -> str:
    while isinstance(work, partial):
        work = work.func
    owner = getattr(work, "__self__", None)
    if isinstance(owner, Cooperator):
        # Slices are described by their tasks that have not ended.
        names = sorted({_name_innermost(task._iterator) for task in owner._tasks})
        return f"slices of {', '.join(names) or 'ended work'}"
    name = getattr(work, "__qualname__", None) or type(getattr(work, "protocol", work)).__qualname__
    return f"{getattr(work, '__module__', '')}.{name}"


def _name_innermost(work: object) -> str:
    while (inner := getattr(work, "gi_yieldfrom", None)) is not None:
        work = inner
    return getattr(work, "__qualname__", type(work).__qualname__)


def _describe_request(context: "RequestContext", api_key: int) -> str:
    api = APIS.get(api_key)
    name = f"API {api_key}" if api is None else api.name
    return f"{name} client={context.client_host} client_id={context.client_id}"
