"""Twisted's epoll reactor, with three differences.

`EPollReactor` runs each read and write in a logging context of its own: five Python calls that nothing here uses and
that cost as much as decoding a small request. Responses made while the events of one poll are handled leave together
after the last of them (`Turn`): sending in one go costs the kernel a third less. Timers run on the monotonic clock, so
that a step of the wall clock neither delays nor hastens a response. Everything else, errors included, is Twisted's.
"""

import select
import sys
import time
from typing import Any, Final

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor
from twisted.python import log

from odradek.server.turn import Turn

_READABLE: Final = select.EPOLLIN


class PlainEPollReactor(EPollReactor):
    """Hands events straight to the descriptors, and flushes responses after the timers and after the events."""

    seconds = staticmethod(time.monotonic)

    def __init__(self) -> None:
        construct: Any = super().__init__
        construct()
        self.turn = Turn()

    def runUntilCurrent(self) -> None:
        """Run the timers that are due, and what threads have handed over; then send the responses made.

        Before the reactor computes how long it may sleep: sending may schedule calls.
        """
        super().runUntilCurrent()
        self.turn.flush()

    def doPoll(self, timeout: float) -> None:
        """Wait up to `timeout` seconds (None: without limit) for events, and handle them."""
        reactor: Any = self
        if timeout is None:
            timeout = -1
        selectables = reactor._selectables
        try:
            events = reactor._poller.poll(timeout, len(selectables))
        except InterruptedError:
            return
        for descriptor, event in events:
            selectable = selectables.get(descriptor)
            if selectable is None:
                continue
            if event != _READABLE:
                reactor._doReadOrWrite(selectable, descriptor, event)
                continue
            try:
                why = selectable.doRead()
            except BaseException:
                why = sys.exc_info()[1]
                report: Any = log.err
                report()
            if why:
                reactor._disconnectSelectable(selectable, why, True)
        self.turn.flush()

    doIteration = doPoll


def install() -> Any:
    """Make it the process's reactor, unless there is one already; the reactor."""
    if "twisted.internet.reactor" not in sys.modules:
        reactor_type: Any = PlainEPollReactor
        install_as_default: Any = installReactor
        install_as_default(reactor_type())
    from twisted.internet import reactor

    return reactor
