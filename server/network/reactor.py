"""Twisted's epoll reactor, with these differences.

- Reads and writes have no logging context of their own: in `EPollReactor` that takes five Python calls, which cost as
  much as decoding a small request.
- Responses made while the events of one poll are handled are sent together after the last event (`WriteCoalescer`),
  which costs the kernel a third less.
- Requests that cannot begin as they are read begin after the events (`RequestScheduler`). An iteration is bounded in
  time; then the sockets are polled again.
- Timers run on the monotonic clock, so that a step of the wall clock changes no timeout.
- Input is handled before timers that are late: after a pause (a long iteration, a stopped process), requests that
  clients sent in time are handled before their sessions expire.
- The time of each call and each event is measured, for the scheduler and for the `Watchdog`.

Everything else, including the handling of errors, is Twisted's.
"""

import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, cast

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor
from twisted.python import log

from odradek.server.network.scheduler import READ_S, RequestScheduler
from odradek.server.network.watchdog import NOTABLE_S, Watchdog
from odradek.server.network.writers.write_coalescer import WriteCoalescer
from odradek.server.work.clock import Reactor

_READABLE: Final = select.EPOLLIN

_MAX_EVENTS: Final = 16
"""Events of one poll. The next poll returns the remaining events first."""

_LATE_S: Final = 0.02
"""Input that has arrived is handled before a timer that is late by more than this."""

_CATCH_UP_S: Final = 1.0
"""Limit of the time for which input is handled before late timers; the delay of the timer is another limit."""


class PlainEPollReactor(EPollReactor):
    """Calls descriptors directly for their events, and flushes responses after the timers and after the events.

    polls: the number of iterations so far, each of which begins with a poll
    busy_s: the time of all iterations without that of their polls
    """

    seconds = staticmethod(time.monotonic)
    polls = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.write_coalescer = WriteCoalescer()
        self.watchdog = Watchdog()
        self.scheduler = RequestScheduler(self.seconds, self.write_coalescer, self.watchdog)
        self._woke_s: float | None = None
        self.busy_s = 0.0
        self._unhandled: list[tuple[int, int, object]] = []

    def runUntilCurrent(self) -> None:
        """Make the calls of threads, run the timers that are due, and send the responses.

        Responses are sent before the reactor computes how long it may sleep, because sending may schedule calls.
        """
        if self._newTimedCalls:
            self._insertNewDelayedCalls()
        if self._pendingTimedCalls:
            late_s = self.seconds() - self._pendingTimedCalls[0].time
            if late_s > _LATE_S:
                self._handle_input(min(late_s, _CATCH_UP_S))
        if self.threadCallQueue:
            self._run_handed_over()
        self._run_timers()
        if self._justStopped:
            self._justStopped = False
            self.fireSystemEvent("shutdown")
        if self.write_coalescer.waiting:
            self.write_coalescer.flush()

    def doPoll(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds (None: without limit) for events, and handle them."""
        self._poll_and_serve(-1 if timeout is None else timeout)

    doIteration = doPoll

    def _poll_and_serve(self, timeout: float) -> bool:
        """Handle events, begin waiting requests, and send the responses; return whether there was an event."""
        scheduler, watchdog, clock = self.scheduler, self.watchdog, self.seconds
        if self._woke_s is not None:
            busy_s = clock() - self._woke_s
            self.busy_s += busy_s
            if busy_s > watchdog.threshold_s:
                watchdog.report(busy_s)
            self._woke_s = None
        events = self._unhandled and self._take_unhandled()
        if not events:
            events = self._poll(0 if scheduler.waiting else timeout)
        self.polls += 1
        now_s = self._woke_s = clock()
        watchdog.begin_iteration(now_s)
        scheduler.begin_iteration(now_s)
        had_events = bool(events)
        while events:
            self._handle(events, now_s + READ_S)
            if len(events) < _MAX_EVENTS or clock() - now_s > READ_S:
                break
            events = self._poll(0)
        if scheduler.waiting:
            scheduler.serve()
        if self.write_coalescer.waiting:
            self.write_coalescer.flush()
        return had_events

    def _poll(self, timeout: float) -> list[tuple[int, int]]:
        return self._poller.poll(timeout, _MAX_EVENTS)  # type: ignore[no-any-return]

    def _take_unhandled(self) -> list[tuple[int, int]]:
        """Take the events that the last iteration did not handle, except those of descriptors closed since."""
        selectables = self._selectables
        unhandled, self._unhandled = self._unhandled, []
        return [(descriptor, event) for descriptor, event, owner in unhandled if selectables.get(descriptor) is owner]

    def _handle(self, events: list[tuple[int, int]], end_s: float) -> None:
        """Handle events until `end_s`; the remaining ones come first in the next iteration."""
        scheduler, clock = self.scheduler, self.seconds
        selectables = self._selectables
        remaining = iter(events)
        for descriptor, event in remaining:
            selectable = selectables.get(descriptor)
            if selectable is None:
                continue
            try:
                if event != _READABLE:
                    self._doReadOrWrite(selectable, descriptor, event)  # type: ignore[no-untyped-call]
                elif why := selectable.doRead():
                    self._disconnectSelectable(selectable, why, True)  # type: ignore[no-untyped-call]
            except BaseException as error:
                _log_failure()
                self._disconnect(selectable, error)
            ended_s = clock()
            if ended_s - scheduler.ended_s > NOTABLE_S:
                self.watchdog.record(ended_s - scheduler.ended_s, selectable)
            scheduler.ended_s = ended_s
            if ended_s > end_s:
                self._unhandled = [(descriptor, event, selectables.get(descriptor)) for descriptor, event in remaining]

    def _disconnect(self, selectable: object, error: BaseException) -> None:
        """Disconnect a socket that has failed. A failure to do so is logged."""
        try:
            self._disconnectSelectable(selectable, error, True)  # type: ignore[no-untyped-call]
        except BaseException:
            _log_failure()

    def _handle_input(self, max_s: float) -> None:
        """Handle the input that has arrived, and begin waiting requests, for at most `max_s` seconds."""
        end_s = self.seconds() + max_s
        while (self._poll_and_serve(0) or self.scheduler.waiting) and self.seconds() < end_s:
            pass

    # -- Twisted's `ReactorBase.runUntilCurrent`, with the time of each call measured ----------------------------------

    def _run_handed_over(self) -> None:
        """Make the calls that threads have passed to the reactor; later ones are for the next iteration."""
        queue = self.threadCallQueue
        calls = queue[: len(queue)]
        del queue[: len(calls)]
        for function, arguments, keywords in calls:
            self._call(function, arguments, keywords)
        if queue:
            self.wakeUp()

    def _run_timers(self) -> None:
        if self._newTimedCalls:
            self._insertNewDelayedCalls()
        pending = self._pendingTimedCalls
        now_s = self.seconds()
        while pending and pending[0].time <= now_s:
            call = heappop(pending)
            if call.cancelled:
                self._cancellations -= 1
            elif call.delayed_time > 0:
                call.activate_delay()
                heappush(pending, call)
            else:
                call.called = 1
                self._call(call.func, call.args, call.kw)
        if self._cancellations > 50 and self._cancellations > len(pending) >> 1:
            self._cancellations = 0
            pending[:] = [call for call in pending if not call.cancelled]
            heapify(pending)

    def _call(self, function: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> None:
        began_s = self.seconds()
        try:
            function(*arguments, **keywords)
        except BaseException:
            _log_failure()
        cost_s = self.seconds() - began_s
        if cost_s > NOTABLE_S:
            self.watchdog.record(cost_s, function)


def _log_failure() -> None:
    log.err()  # type: ignore[no-untyped-call]


def install() -> Reactor:
    """Install the reactor unless the process has one already; return the process's reactor."""
    if "twisted.internet.reactor" not in sys.modules:
        installReactor(PlainEPollReactor())  # type: ignore[no-untyped-call]
    from twisted.internet import reactor

    return cast(Reactor, reactor)


def find_watchdog(reactor: Reactor) -> Watchdog | None:
    """Return the watchdog of a reactor, if it has one."""
    return reactor.watchdog if isinstance(reactor, PlainEPollReactor) else None


class ReactorLoad(NamedTuple):
    """The time in which the reactor thread had work so far, and the connections whose next request waits."""

    busy_s: float
    waiting: int


def read_load(reactor: Reactor) -> ReactorLoad:
    """Return the load of a reactor; 0 for one that does not measure it."""
    if not isinstance(reactor, PlainEPollReactor):
        return ReactorLoad(0.0, 0)
    return ReactorLoad(reactor.busy_s, reactor.scheduler.waiting)


def find_poll_counter(reactor: Reactor) -> Callable[[], int] | None:
    """Return a function that returns how often a reactor has polled, if it counts that."""
    return (lambda: reactor.polls) if isinstance(reactor, PlainEPollReactor) else None
