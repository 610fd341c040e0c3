"""The client of a simulated ZooKeeper session: what `server.stores.zookeeper` uses of kazoo, in simulated time.

The broker's own store runs on it, with its repetition of requests and its watches. As with kazoo, requests in flight
fail with ConnectionLoss when the connection is lost, before the store is informed, and watches are lost with it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo import exceptions
from kazoo.protocol import serialization

from odradek.replication.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStoreError,
    Node,
    NodeStat,
    Operation,
    SetData,
    TransactionError,
    WatchEvent,
)
from odradek.server.stores.zookeeper.client import KazooWatcher, Receiver, SessionStates
from odradek.server.stores.zookeeper.requests import EPHEMERAL, ERRORS, SEQUENTIAL
from odradek.server.stores.zookeeper.store import KINDS
from odradek.simulation.machine.zookeeper import NO_SESSION, Connection, Request, Result, ServerWatch, ZooKeeper

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor

_TYPES = {kind: name for name, kind in KINDS.items()}


class KazooStat(NamedTuple):
    """kazoo's ZnodeStat. `pzxid` is the last change of the list of children."""

    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeralOwner: int  # noqa: N815 - kazoo's name
    numChildren: int  # noqa: N815


class KazooEvent(NamedTuple):
    """A watch event of kazoo."""

    type: str
    path: str | None


class Pending:
    """The result of a request (kazoo's IAsyncResult)."""

    __slots__ = ("_receiver", "is_set")

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self.is_set = False

    def deliver_to(self, receiver: Receiver) -> None:
        """Call `receiver` with the result."""
        self._receiver = receiver

    def end(self, value: object, error: Exception | None) -> None:
        """Deliver a value or an error, once."""
        if not self.is_set:
            self.is_set = True
            if self._receiver is not None:
                self._receiver(value, error)


class SessionState(Enum):
    """State of a session in its client."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    OVER = "over"


class SimulatedKazoo:
    """A client with one session: connection, heartbeats, reconnection (`server.stores.zookeeper.client.Kazoo`).

    It gives up a connection over which nothing has come for two thirds of the session timeout.
    """

    def __init__(self, ensemble: ZooKeeper, reactor: "ProcessReactor", host: str, timeout_s: float) -> None:
        self.ensemble = ensemble
        self.reactor = reactor
        self.host = host
        self.session_id = NO_SESSION
        self.state = SessionState.CONNECTING
        self.on_state: Callable[[str], None] = lambda state: None
        self._timeout_s = timeout_s
        self._random = ensemble.new_random()
        self._connection: Connection | None = None
        self._pending: dict[Pending, None] = {}
        self._heard_s = 0.0
        self._attempt = 0

    # Connection

    def start(self) -> None:
        """Begin to connect."""
        self._begin_connecting()
        self.reactor.callLater(self._timeout_s / 6, self._beat)

    def _begin_connecting(self) -> None:
        if self.state is not SessionState.CONNECTING:
            return
        self._attempt += 1
        if self._connection is not None:
            self._connection.die()
        connection = self._connection = Connection(self.ensemble, self)
        session_id, timeout_s = self.session_id, self._timeout_s
        connection.to_server.send(lambda: self.ensemble.connect(connection, session_id, timeout_s))
        self.reactor.callLater(self._timeout_s / 3, self._retry, self._attempt)

    def _retry(self, attempt: int) -> None:
        """Connect again if an attempt had no result."""
        if attempt == self._attempt:
            self._begin_connecting()

    def connected(self, connection: Connection, session_id: int) -> None:
        """Called when the server has accepted a connection."""
        if connection is not self._connection or self.state is not SessionState.CONNECTING:
            connection.to_server.die()
            return
        self.state = SessionState.CONNECTED
        self.session_id = session_id
        self._heard_s = self.reactor.seconds()
        self.on_state("CONNECTED")

    def session_expired(self, connection: Connection) -> None:
        """Called when the server refuses a connection because the session has expired."""
        if connection is self._connection and self.state is SessionState.CONNECTING:
            self.state = SessionState.OVER
            self._connection = None
            self.on_state("LOST")

    def connection_lost(self, connection: Connection) -> None:
        """Called when a connection has ended."""
        if connection is not self._connection or self.state is SessionState.OVER:
            return
        self._connection = None
        self._attempt += 1
        self.reactor.callLater(self._random.uniform(0.02, 0.3), self._retry, self._attempt)
        if self.state is SessionState.CONNECTED:
            self.state = SessionState.CONNECTING
            self._fail_pending()
            self.on_state("SUSPENDED")

    def heard(self) -> None:
        """Called with the response to a heartbeat."""
        self._heard_s = self.reactor.seconds()

    def _beat(self) -> None:
        """Send a heartbeat, or give up a silent connection."""
        if self.state is SessionState.OVER:
            return
        self.reactor.callLater(self._timeout_s / 6, self._beat)
        connection = self._connection
        if self.state is not SessionState.CONNECTED or connection is None:
            return
        if self.reactor.seconds() - self._heard_s > self._timeout_s * 2 / 3:
            connection.to_client.die()
            self.connection_lost(connection)
            return
        session_id = self.session_id
        connection.to_server.send(lambda: self.ensemble.ping(connection, session_id))

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for one in pending:
            one.end(None, exceptions.ConnectionLoss())

    def end(self, done: Callable[[], None]) -> None:
        """Close the session; call `done` when the server has responded, or the connection is lost."""
        connection, session_id = self._connection, self.session_id
        is_connected = self.state is SessionState.CONNECTED
        self.state = SessionState.OVER
        self._fail_pending()
        if connection is None or not is_connected:
            self.reactor.callLater(0, done)
            return
        connection.to_server.send(
            lambda: self.ensemble.close(connection, session_id, lambda result: done())
        )

    # Requests (kazoo)

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return self.session_id, b""

    def add_listener(self, listener: Callable[[str], None], /) -> None:
        self.on_state = listener

    def start_async(self) -> object:
        self.start()
        return None

    def stop(self) -> None:
        """Kazoo's stop; see `end`."""

    def close(self) -> None:
        """Kazoo's close; see `end`."""

    def get_async(self, path: str, watch: KazooWatcher | None) -> Pending:
        def read(result: object) -> object:
            assert isinstance(result, Node)
            return result.data, _stat(result.stat)

        return self._send(lambda store: store.get(path, self._watcher(watch)), read)

    def get_many_async(self, paths: Sequence[str]) -> Pending:
        def read(result: object) -> object:
            assert isinstance(result, list)
            return [None if node is None else (node.data, _stat(node.stat)) for node in result]

        return self._send(lambda store: store.get_many(paths), read)

    def exists_async(self, path: str, watch: KazooWatcher | None) -> Pending:
        def read(result: object) -> object:
            return _stat(result) if isinstance(result, NodeStat) else None

        return self._send(lambda store: store.exists(path, self._watcher(watch)), read)

    def get_children_async(self, path: str, watch: KazooWatcher | None, include_data: bool) -> Pending:
        async def request(store: Any) -> object:
            names = await store.get_children(path, self._watcher(watch))
            return names, _stat(await store.exists(path))

        return self._send(request, lambda result: result)

    def transaction(self) -> "SimulatedTransaction":
        return SimulatedTransaction(self)

    def commit(self, operations: list[object]) -> Pending:
        """Execute a transaction; errors are in the list of its results."""
        converted = [_operation(one) for one in operations]

        async def request(store: Any) -> object:
            try:
                results = await store.transaction(converted)
            except TransactionError as error:
                return [
                    _error(error.cause) if index == error.index else exceptions.RolledBackError()
                    for index in range(len(converted))
                ]
            return [_stat(one) if isinstance(one, NodeStat) else True if one is None else one for one in results]

        return self._send(request, lambda result: result)

    def _watcher(self, watch: KazooWatcher | None) -> ServerWatch[KazooWatcher] | None:
        return None if watch is None else ServerWatch(self.ensemble, self.session_id, watch, _fire)

    def _send(self, request: Request, read: Callable[[object], object]) -> Pending:
        pending = Pending()
        connection, session_id = self._connection, self.session_id
        if self.state is not SessionState.CONNECTED or connection is None:
            self.reactor.callLater(0, pending.end, None, exceptions.ConnectionLoss())
            return pending
        self._pending[pending] = None

        def respond(result: Result) -> None:
            self._heard_s = self.reactor.seconds()
            if pending in self._pending:
                del self._pending[pending]
                try:
                    value = read(result())
                except MetadataStoreError as error:
                    pending.end(None, _error(error))
                else:
                    pending.end(value, None)

        connection.to_server.send(lambda: self.ensemble.execute(connection, session_id, request, respond))
        return pending


class SimulatedTransaction:
    """A transaction of kazoo."""

    def __init__(self, client: SimulatedKazoo) -> None:
        self.operations: list[object] = []
        self._client = client

    def commit_async(self) -> Pending:
        return self._client.commit(self.operations)


class SimulatedZooKeeperClient:
    """Replacement of `server.stores.zookeeper.client.ZooKeeperClient`."""

    last_error = "the simulated ensemble does not answer"
    refusal = ""

    def __init__(self, kazoo: SimulatedKazoo, states: SessionStates) -> None:
        self.kazoo = kazoo
        self._states = states

    def start(self) -> None:
        """Begin to connect."""
        self.kazoo.add_listener(self._on_state)
        self.kazoo.start()

    def _on_state(self, state: str) -> None:
        client: Any = self
        if state == "CONNECTED":
            self._states.on_connected(client, self.kazoo.session_id)
        elif state == "SUSPENDED":
            self._states.on_disconnected(client)
        else:
            self._states.on_lost(client)

    def stop(self, done: Callable[[], None]) -> None:
        """End the session and the connection, then call `done`."""
        self.kazoo.end(done)


def _fire(watch: Callable[[Any], object], event: WatchEvent) -> None:
    watch(KazooEvent(_TYPES[event.kind], event.path))


def _stat(stat: NodeStat | None) -> KazooStat | None:
    if stat is None:
        return None
    # The tree does not record the last change of the children; this number differs after each change as well.
    children_changed = stat.created_id * 1_000_000 + stat.child_version
    return KazooStat(
        stat.created_id,
        stat.modified_id,
        children_changed,
        stat.created_ms,
        stat.modified_ms,
        stat.version,
        stat.child_version,
        stat.ephemeral_owner,
        stat.child_count,
    )


def _error(error: MetadataStoreError) -> Exception:
    kind: type[Exception] = exceptions.SystemZookeeperError
    for theirs, ours in ERRORS:
        if isinstance(error, ours):
            kind = theirs
    return kind()


def _operation(request: Any) -> Operation:
    """Return the operation of a request in a transaction."""
    if isinstance(request, serialization.Create):
        return Create(request.path, request.data, bool(request.flags & EPHEMERAL), bool(request.flags & SEQUENTIAL))
    if isinstance(request, serialization.SetData):
        return SetData(request.path, request.data, request.version)
    if isinstance(request, serialization.Delete):
        return Delete(request.path, request.version)
    return Check(request.path, request.version)
