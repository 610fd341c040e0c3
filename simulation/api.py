"""What simulated clients see of the world they live in.

A client is an object with a `name` and `async def run(self) -> None`, which the world starts with
`Deferred.fromCoroutine`. It awaits nothing but what it gets from here, and takes all its chance from `world.random`,
so that one seed gives one run. When `world.is_ending` turns true the faults are over: a client finishes what it has
begun and returns.
"""

from random import Random
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from odradek.protocol.schema import Message


class ConnectionLost(Exception):  # noqa: N818 - what happened, as Twisted names it
    """The connection broke, or could not be made. Whether a request was carried out is not known."""


class Clock(Protocol):
    """Simulated time."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - Twisted's
        """Call it `delay` seconds from now; the result has `cancel()` and `active()`."""
        ...

    def seconds(self) -> float:
        """Seconds since the world began."""
        ...


class ClientConnection(Protocol):
    """A client's side of a connection to the broker: real codecs and framing over the simulated network."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        ...

    def request(self, message: Message, version: int, *, client_id: str) -> "Deferred[Any]":
        """Send a request; its response. Errs with ConnectionLost. Several may be under way; answers come in order."""
        ...

    def send_without_answer(self, message: Message, version: int, *, client_id: str) -> None:
        """Send a request that gets no response (Produce with acks=0)."""
        ...

    def stop_reading(self) -> None:
        """Leave responses in the network from now on."""
        ...

    def read_again(self) -> None:
        """Take what has come meanwhile, and what comes."""
        ...

    def close(self) -> None:
        """Close it; requests under way err with ConnectionLost."""
        ...


class World(Protocol):
    """What a client may touch. Nothing else of the process it runs in: no clock, chance or identity of Python's own."""

    clock: Clock
    random: Random
    is_ending: bool

    def now_ms(self) -> int:
        """The wall clock that all clients share, ms since 1970. That of the broker may be wrong."""
        ...

    def sleep(self, seconds: float) -> "Deferred[None]":
        """Fires after so many seconds of simulated time."""
        ...

    def start(self, coroutine: Any, name: str) -> "Deferred[Any]":
        """Run a coroutine beside the one that calls; an exception out of it is a failure of the run."""
        ...

    def trace(self, text: str) -> None:
        """Note a line in the trace, with the time."""
        ...

    def connect(self, address: tuple[str, int] | None = None) -> "Deferred[ClientConnection]":
        """Connect to the broker at `address`, or to the first one. Errs with ConnectionLost."""
        ...
