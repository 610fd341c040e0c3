"""Connections of the simulated network: two pipes each, and the client's end.

A pipe delivers bytes in order, with delays, in pieces of any size. Faults act on pipes.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.machine.broker_sockets import BrokerTransport
    from odradek.simulation.machine.network import Network

Address = tuple[str, int]
Route = tuple[str, str]
"""Source and target host."""


class Pipe:
    """One direction of a connection: delivers bytes in order, with delay, in pieces of any size, then the end."""

    def __init__(
        self, network: "Network", route: Route, deliver: Callable[[bytes], None], ended: Callable[[bool], None]
    ) -> None:
        self._network = network
        self._route = route
        self._deliver_bytes = deliver
        self._ended = ended
        self._buffer = bytearray()
        self._call: Any = None
        self._is_closing = False
        self._is_broken = False
        self._is_held = False
        self.is_dead = False
        self.on_room: Callable[[], None] = lambda: None

    @property
    def room_bytes(self) -> int:
        """Return how many bytes may be written now."""
        if self.is_dead:
            return 1 << 30
        return max(0, self._network.habits.buffer_bytes - len(self._buffer))

    def write(self, data: bytes) -> None:
        """Write bytes; they are dropped if the connection has ended."""
        if self.is_dead or self._is_closing:
            return
        self._buffer += data
        self._schedule()

    def close(self) -> None:
        """Deliver the end after the bytes in transit."""
        self._is_closing = True
        self._schedule()

    def break_off(self, random: Random) -> None:
        """Break the connection: the bytes in transit arrive up to a random byte."""
        del self._buffer[random.randint(0, len(self._buffer)) :]
        self._is_closing = self._is_broken = True
        self._is_held = False
        self._schedule()

    def die(self) -> None:
        """Stop all deliveries, including the end."""
        self.is_dead = True
        self._buffer.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def hold(self) -> None:
        """Pause: the receiver does not read."""
        self._is_held = True

    def release(self) -> None:
        """Resume: the receiver reads again."""
        self._is_held = False
        self._schedule()

    def healed(self) -> None:
        """Called when a cut that stopped this pipe is healed."""
        self._schedule()

    def _schedule(self) -> None:
        if self._call is None and not self.is_dead and not self._is_held and (self._buffer or self._is_closing):
            self._call = self._network.clock.callLater(self._network.delay_s(), self._deliver)

    def _deliver(self) -> None:
        self._call = None
        if self._is_held or self._network.stops(self._route, self):
            return
        if not self._buffer:
            self.is_dead = True
            self._ended(self._is_broken)
            return
        size = self._network.piece_bytes(len(self._buffer))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._schedule()
        self._network.note_bytes(data)
        self._deliver_bytes(data)
        self.on_room()


class NetworkConnection:
    """A connection: two pipes, and faults that affect both.

    route: host that connected, and host of the broker that accepted
    reactor, client_reactor: the broker that accepted, and the one that connected, None if that was a client
    was_cut: true if a cut has affected the connection
    """

    def __init__(
        self,
        network: "Network",
        reactor: "ProcessReactor",
        route: Route,
        client_reactor: "ProcessReactor | None" = None,
    ) -> None:
        self.network = network
        self.reactor = reactor
        self.route = route
        self.client_reactor = client_reactor
        self.was_cut = False
        self.to_broker: Pipe
        self.to_client: Pipe
        self.broker_end: BrokerTransport | None = None

    def break_off(self, random: Random) -> None:
        """Break the connection: both ends are notified with delay, or one of them never is."""
        self.network.forget(self)
        silent = random.random()
        for pipe, is_silent in ((self.to_broker, silent < 0.15), (self.to_client, silent > 0.85)):
            if is_silent:
                pipe.die()
            else:
                pipe.break_off(random)


class ByteStream:
    """The client's end of a connection: `write` sends, `on_data` receives, `on_lost` is called once at the end."""

    def __init__(self, link: NetworkConnection) -> None:
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[], None] = lambda: None
        self.is_lost = False
        self._link = link

    @property
    def is_intact(self) -> bool:
        """Return whether no fault has affected the connection: all sent bytes arrive, in both directions."""
        return self._link in self._link.network.links and not self._link.was_cut

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._link.to_broker.write(data)

    def stop_reading(self) -> None:
        """Stop reading, so that the broker's socket fills up."""
        self._link.to_client.hold()

    def read_again(self) -> None:
        """Resume reading."""
        self._link.to_client.release()

    def close(self) -> None:
        """Close this end."""
        if not self.is_lost:
            self.is_lost = True
            self._link.network.forget(self._link)
            self._link.to_client.die()
            self._link.to_broker.close()

    def received(self, data: bytes) -> None:
        """Called with bytes from the broker."""
        if not self.is_lost:
            self.on_data(data)

    def ended(self, is_broken: bool) -> None:
        """Called at the end of the broker's bytes."""
        if not self.is_lost:
            self.close()
            self.on_lost()
