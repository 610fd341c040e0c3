"""A simulated ZooKeeper ensemble that the brokers of a cluster share; `zookeeper_session` has their sessions.

The ensemble acts as one server with a durable tree. Requests and responses take simulated time, in their order, over a
connection that cuts, crashes and faults can break. A session expires when the server has not heard from its client for
the session timeout. Watch events and responses share one queue: a client receives the event of a change before it can
read the change. The watches of a session end with its connection; its client sets them again.

If a connection breaks, the outcome of the requests in flight is unknown.

Source: ZooKeeper Programmer's Guide, "ZooKeeper Sessions" and "Consistency Guarantees".
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore
from odradek.replication.metadata.store import WatchEvent, run_now

if TYPE_CHECKING:
    from odradek.simulation.machine.clock import SimulatedClock
    from odradek.simulation.machine.network import Network
    from odradek.simulation.machine.zookeeper_session import SimulatedKazoo

Message = Callable[[], None]
Request = Callable[[MemoryMetadataStore], Coroutine[Any, Any, Any]]
Result = Callable[[], object]

ZOOKEEPER_HOST: Final = "zookeeper"
_LATENCY_S: Final = 0.002
NO_SESSION: Final = 0


class Channel:
    """One direction of a connection with ZooKeeper: delivers messages in order, with delay.

    While ZooKeeper is slow, messages that wait at the same time arrive together: it syncs their transactions together.
    """

    def __init__(self, ensemble: "ZooKeeper", source: str, target: str, run: Callable[[Message], None]) -> None:
        self._ensemble = ensemble
        self._route = source, target
        self._run = run
        self._messages: deque[Message] = deque()
        self._due = 0
        self._call: Any = None
        self._is_dead = False

    def send(self, message: Message) -> None:
        """Send a message, which is lost if the connection has ended."""
        if not self._is_dead:
            self._messages.append(message)
            self._schedule()

    def die(self) -> None:
        """Stop all deliveries."""
        self._is_dead = True
        self._messages.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def healed(self) -> None:
        """Called when a cut that stopped this channel is healed."""
        self._schedule()

    def _schedule(self) -> None:
        if self._call is None and self._messages and not self._is_dead:
            self._due = len(self._messages) if self._ensemble.lag_s else 1
            self._call = self._ensemble.clock.callLater(self._ensemble.delay_s(), self._deliver)

    def _deliver(self) -> None:
        self._call = None
        if self._ensemble.network.stops(self._route, self):
            return
        due = [self._messages.popleft() for _ in range(self._due)]
        self._schedule()
        for message in due:
            if not self._is_dead:
                self._run(message)


class Connection:
    """A connection of a session: two channels. Each end is notified of its end by the other one, or by a timeout."""

    def __init__(self, ensemble: "ZooKeeper", session: "SimulatedKazoo") -> None:
        run = session.reactor.run
        self.session = session
        self.to_server = Channel(ensemble, session.host, ZOOKEEPER_HOST, lambda message: message())
        self.to_client = Channel(ensemble, ZOOKEEPER_HOST, session.host, run)

    def die(self) -> None:
        """End the connection without a notice."""
        self.to_server.die()
        self.to_client.die()

    def break_off(self) -> None:
        """Break the connection: messages in transit are lost, and the client is notified."""
        self.die()
        self.to_client = Channel(
            self.session.ensemble, ZOOKEEPER_HOST, self.session.host, self.session.reactor.run
        )
        self.to_client.send(lambda: self.session.connection_lost(self))


Watch = TypeVar("Watch")


@dataclass(slots=True, frozen=True)
class ServerWatch(Generic[Watch]):
    """A watch in the server; `fire` calls `watch` in the client.

    Two watches of a session with the same function are equal, so that it is called once.
    """

    ensemble: "ZooKeeper"
    session_id: int
    watch: Watch
    fire: Callable[[Watch, WatchEvent], None]

    def __call__(self, event: WatchEvent) -> None:
        self.ensemble.fired(self.session_id, lambda: self.fire(self.watch, event))


class ServerSession:
    """A session in the server.

    heard_s: time of the last message from its client
    """

    def __init__(self, store: MemoryMetadataStore, timeout_s: float) -> None:
        self.store = store
        self.timeout_s = timeout_s
        self.heard_s = 0.0
        self.connection: Connection | None = None


class ZooKeeper:
    """The ensemble.

    is_down: no connection is accepted; sessions do not expire meanwhile
    sessions: by id
    on_change: called after each request that changes the tree
    on_write: called then with the host of the client
    writer: the session of the last request that changed the tree
    lag_s: additional delay of each message, at most; 0 if ZooKeeper is not slow
    """

    def __init__(
        self,
        clock: "SimulatedClock",
        network: "Network",
        random: Random,
        now_ms: Callable[[], int],
        trace: Callable[[str], None],
    ) -> None:
        self.clock = clock
        self.network = network
        self.tree = MemoryMetadataServer(now_ms)
        self.is_down = False
        self.sessions: dict[int, ServerSession] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.on_write: Callable[[str], None] = lambda host: None
        self.writer = NO_SESSION
        self.slow_share = 0.02
        self.slow_s = 0.1
        self.lag_s = 0.0
        self._random = random
        self._trace = trace

    @property
    def last_transaction(self) -> int:
        """Return the number of the last transaction that changed the tree."""
        return self.tree._table._last_transaction_id

    def new_random(self) -> Random:
        """Return a separate source of random numbers."""
        return Random(self._random.getrandbits(64))

    def delay_s(self) -> float:
        """Draw the delay of the next message."""
        if self.lag_s:
            return _LATENCY_S + self._random.uniform(0.5, 1.0) * self.lag_s
        if self._random.random() < self.slow_share:
            return self._random.uniform(_LATENCY_S, self.slow_s)
        return _LATENCY_S * (0.2 + self._random.random())

    # Faults

    def stop(self) -> None:
        """Stop all servers. The sessions survive."""
        self.is_down = True
        for session in self.sessions.values():
            self._disconnect(session)

    def start(self) -> None:
        """Start the servers again; each session gets its whole timeout to reconnect."""
        self.is_down = False
        for session in self.sessions.values():
            session.heard_s = self.clock.seconds()

    def break_connections(self, host: str) -> None:
        """Break the connections of a host; requests that the server has executed may have no response."""
        for session in self.sessions.values():
            if session.connection is not None and session.connection.session.host == host:
                self._disconnect(session)

    def expire(self, host: str) -> None:
        """Expire the sessions of a host at once."""
        for session_id, session in list(self.sessions.items()):
            if session.connection is not None and session.connection.session.host == host:
                self._expire(session_id)

    # Requests of clients

    def connect(self, connection: Connection, session_id: int, timeout_s: float) -> None:
        """Accept a connection, for a new session (id 0) or a present one."""
        client = connection.session
        if self.is_down:
            connection.break_off()
            return
        session = self.sessions.get(session_id)
        if session is None and session_id != NO_SESSION:
            connection.to_client.send(lambda: client.session_expired(connection))
            return
        if session is None:
            store = self.tree.connect()
            session_id = store.session_id
            session = self.sessions[session_id] = ServerSession(store, timeout_s)
            self.clock.callLater(timeout_s, self._check_expiry, session_id)
        elif session.connection is not None and session.connection is not connection:
            session.connection.die()
        self.tree.parts[1].drop_session(session_id)
        session.connection = connection
        session.heard_s = self.clock.seconds()
        accepted = session_id
        connection.to_client.send(lambda: client.connected(connection, accepted))

    def ping(self, connection: Connection, session_id: int) -> None:
        """Receive a heartbeat and respond."""
        if self._hear(connection, session_id) is not None:
            connection.to_client.send(connection.session.heard)

    def execute(
        self, connection: Connection, session_id: int, request: Request, respond: Callable[[Result], None]
    ) -> None:
        """Execute a request, and send the events of its watches and then its response."""
        session = self._hear(connection, session_id)
        if session is None:
            return
        before = self.last_transaction
        try:
            value = run_now(request(session.store))
        except Exception as error:
            failure = error

            def result() -> object:
                raise failure

        else:

            def result() -> object:
                return value

        if self.last_transaction != before:
            self.writer = session_id
            self.on_change()
            self.on_write(connection.session.host)
        connection.to_client.send(lambda: respond(result))

    def close(self, connection: Connection, session_id: int, respond: Callable[[Result], None]) -> None:
        """End a session at its client's request."""
        session = self._hear(connection, session_id)
        if session is not None:
            del self.sessions[session_id]
            session.store.end_session()
            connection.to_client.send(lambda: respond(lambda: None))

    def _hear(self, connection: Connection, session_id: int) -> ServerSession | None:
        """Return the session of a connection, None if it has ended or has another connection."""
        session = self.sessions.get(session_id)
        if self.is_down or session is None or session.connection is not connection:
            return None
        session.heard_s = self.clock.seconds()
        return session

    def fired(self, session_id: int, deliver: Message) -> None:
        """Send the event of a watch to the session that has set it."""
        session = self.sessions.get(session_id)
        if session is not None and session.connection is not None:
            session.connection.to_client.send(deliver)

    # Expiry

    def _check_expiry(self, session_id: int) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        left_s = session.heard_s + session.timeout_s - self.clock.seconds()
        if self.is_down:
            left_s = session.timeout_s
        if left_s > 0:
            self.clock.callLater(left_s, self._check_expiry, session_id)
        else:
            self._expire(session_id)

    def _expire(self, session_id: int) -> None:
        session = self.sessions.pop(session_id)
        self._trace(f"zookeeper: session {session_id} expires")
        session.store.end_session()
        connection = session.connection
        if connection is not None:
            connection.to_server.die()
            connection.break_off()

    def _disconnect(self, session: ServerSession) -> None:
        connection, session.connection = session.connection, None
        if connection is not None:
            connection.break_off()
