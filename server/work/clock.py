"""Types of the reactor. Twisted's interfaces have no types, so these protocols declare the methods that are used."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory, Factory

from odradek.server.work.listening_port import ListeningPort

if TYPE_CHECKING:
    from twisted.python.threadpool import ThreadPool


class DelayedCall(Protocol):
    """A call that the reactor makes later."""

    def cancel(self) -> None:
        """Cancel the call."""

    def active(self) -> bool:
        """Return whether the call is still to be made."""

    def getTime(self) -> float:
        """Return the time of the call, on the clock of `Clock.seconds`."""

    def reset(self, seconds: float, /) -> None:
        """Make the call `seconds` from now instead."""


class Connector(Protocol):
    """An attempt to connect, and the connection after it."""

    def disconnect(self) -> object:
        """Stop connecting, or close the connection."""


class Clock(Protocol):
    """The time, and timers."""

    def seconds(self) -> float:
        """Return the monotonic time."""

    def callLater(
        self, delay_s: float, function: Callable[..., object], /, *arguments: object
    ) -> DelayedCall:
        """Call `function` after `delay_s` seconds."""


class Flushable(Protocol):
    """Something that waits for the end of the reactor iteration."""

    def flush(self) -> None:
        """Do what has waited."""

    def abort(self) -> None:
        """Drop what has waited, because `flush` failed."""


class IterationEnd(Protocol):
    """Calls `flush` of objects at the end of the reactor iteration."""

    def add(self, waiting: Flushable, /) -> None:
        """Flush `waiting` at the end of the iteration, or earlier if many wait."""


class Resolver(Protocol):
    """Resolves host names, in a thread."""

    def resolve(self, host: str, /) -> Deferred[str]:
        """Return the IPv4 address of a host."""


class Reactor(Clock, Resolver, Protocol):
    """Twisted's reactor, with Odradek's `write_coalescer`."""

    write_coalescer: IterationEnd

    def addSystemEventTrigger(
        self, phase: str, event_type: str, function: Callable[[], object], /
    ) -> object:
        """Call `function` at start-up or shutdown."""

    def callWhenRunning(self, function: Callable[[], object], /) -> object:
        """Call `function` once the reactor runs."""

    def getThreadPool(self) -> "ThreadPool":
        """Return the reactor's own thread pool."""

    def listenTCP(
        self, port: int, factory: Factory, /, backlog: int, interface: str
    ) -> ListeningPort:
        """Bind a port. Raises CannotListenError."""

    def connectTCP(self, host: str, port: int, factory: ClientFactory, /) -> Connector:
        """Begin to connect."""

    @property
    def running(self) -> bool:
        """True while the reactor runs."""

    def run(self) -> None:
        """Run until `stop`."""

    def stop(self) -> None:
        """Stop the reactor."""


def call_in_pool(reactor: Reactor, pool: "ThreadPool", work: Callable[[], None]) -> Deferred[None]:
    """Call `work` in a thread of a pool, and return a Deferred that fires in the reactor's thread."""
    # Imported here, because a start without threads does not need it.
    from twisted.internet.interfaces import IReactorFromThreads
    from twisted.internet.threads import deferToThreadPool

    return deferToThreadPool(cast(IReactorFromThreads, reactor), pool, work)
