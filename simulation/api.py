"""The interface of the simulated world for simulated clients.

A client is an object with a `name` and `async def run(self) -> None`, which the world starts with
`Deferred.fromCoroutine`. It awaits only Deferreds of this interface and takes all random numbers from `world.random`,
so that a seed determines the run. Once `world.is_ending` is true there are no more faults: a client completes its
current operation and returns.
"""

from random import Random
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from odradek.protocol.schema import Message


class ConnectionLost(Exception):  # noqa: N818 - Twisted's name
    """The connection broke or could not be established. Requests in flight may or may not have been processed."""


class Clock(Protocol):
    """Simulated time."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - Twisted's
        """Schedule a call in `delay` seconds; the result has `cancel()` and `active()`."""
        ...

    def seconds(self) -> float:
        """Return the seconds since the start of the simulation."""
        ...


class ClientConnection(Protocol):
    """The client's end of a connection to a broker: the real codecs and framing over the simulated network."""

    @property
    def is_lost(self) -> bool:
        """True if the connection is lost or closed."""
        ...

    def request(self, message: Message, version: int, *, client_id: str) -> "Deferred[Any]":
        """Send a request; return a Deferred of its response, or of ConnectionLost. Requests can be pipelined."""
        ...

    def send_without_answer(self, message: Message, version: int, *, client_id: str) -> None:
        """Send a request that gets no response (Produce with acks=0)."""
        ...

    def stop_reading(self) -> None:
        """Stop reading responses; they stay in the network."""
        ...

    def read_again(self) -> None:
        """Resume reading, including responses that have arrived in the meantime."""
        ...

    def close(self) -> None:
        """Close the connection; requests in flight fail with ConnectionLost."""
        ...


class World(Protocol):
    """The parts of the world that clients use. They must not use Python's own clocks, random numbers or `id()`."""

    clock: Clock
    random: Random
    is_ending: bool

    def now_ms(self) -> int:
        """The wall clock of all clients, in ms since 1970. The broker's wall clock may differ."""
        ...

    def sleep(self, seconds: float) -> "Deferred[None]":
        """Return a Deferred that fires after `seconds` of simulated time."""
        ...

    def start(self, coroutine: Any, name: str) -> "Deferred[Any]":
        """Run a coroutine concurrently; an uncaught exception in it fails the run."""
        ...

    def trace(self, text: str) -> None:
        """Add a line to the trace, with the time."""
        ...

    def connect(self, address: tuple[str, int] | None = None) -> "Deferred[ClientConnection]":
        """Connect to the broker at `address`, by default to the only one or the cluster. Fails with ConnectionLost."""
        ...


class Client(Protocol):
    """A simulated client, started by the world."""

    name: str

    async def run(self) -> None:
        """Work until the world ends."""
        ...
