"""The metadata store in a ZooKeeper ensemble.

Connection loss: the session is DISCONNECTED, requests wait, and those in flight are sent again after the reconnection,
with the session CONNECTED. A write whose first attempt may have succeeded is checked (`outcomes`).

Expiry: listeners get EXPIRED, then every waiting request fails with SessionExpiredError, and nothing is sent until
`renew` has begun a new session with a new client.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from kazoo.exceptions import NoNodeError as KazooNoNodeError
from kazoo.exceptions import UnimplementedError
from twisted.internet.defer import Deferred

from odradek.log.background.histogram import Histogram
from odradek.replication.metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeStat,
    NoNodeError,
    Operation,
    OperationResult,
    SessionEvent,
    SessionExpiredError,
    SessionListener,
    SetData,
    StoreUnavailableError,
    TransactionError,
    Watcher,
    WatchEvent,
    WatchKind,
)
from odradek.replication.metadata.znode_store import check_path
from odradek.server.stores.zookeeper import outcomes, requests
from odradek.server.stores.zookeeper.calls import Call, CallQueue
from odradek.server.stores.zookeeper.client import Event, Send, SessionStates, ThreadedReactor, ZooKeeperClient
from odradek.server.stores.zookeeper.settings import ZooKeeperSettings
from odradek.server.stores.zookeeper.watches import MISSING, WatchTable

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
"""Limit for closing the session. Without a connection it ends by its timeout."""

_REPORT_WAIT_S: Final = 2.0
"""Wait for a connection after which the log has a line about it."""

KINDS: Final = {
    "CREATED": WatchKind.CREATED,
    "DELETED": WatchKind.DELETED,
    "CHANGED": WatchKind.CHANGED,
    "CHILD": WatchKind.CHILDREN,
}
"""Kinds of watch events, by kazoo's types."""


class MakeClient(Protocol):
    """Function that makes a client with a new session; the class ZooKeeperClient, replaced in tests."""

    def __call__(
        self, settings: ZooKeeperSettings, reactor: ThreadedReactor, states: SessionStates, /
    ) -> ZooKeeperClient: ...


class ZooKeeperStore(MetadataStore):
    """One session with ZooKeeper after another. Call `connect` first.

    All methods, listeners and watchers are called in the reactor thread.

    connects, disconnects, expirations: of connections and of sessions
    """

    is_shared = True

    def __init__(
        self, settings: ZooKeeperSettings, reactor: ThreadedReactor, make_client: MakeClient = ZooKeeperClient
    ) -> None:
        self.session_id = 0
        self.connects = self.disconnects = self.expirations = 0
        self._settings = settings
        self._chroot = ""
        self._reactor = reactor
        self._make_client = make_client
        self._client: ZooKeeperClient | None = None
        self._opening: Deferred[None] | None = None
        self._calls = CallQueue(settings.max_in_flight)
        self._watches = WatchTable()
        self._listeners: list[SessionListener] = []
        self._is_over = True
        self._is_closed = False
        self._is_connected = False
        # Servers before ZooKeeper 3.6 read nodes one by one.
        self._has_multi_read = True

    @property
    def request_times(self) -> Histogram | None:
        """The times of requests; None unless `measure_requests` was called."""
        return self._calls.times

    def measure_requests(self, clock: Callable[[], float]) -> Histogram:
        """Begin to measure the times of requests."""
        return self._calls.measure(clock)

    # -- session ---------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Begin the first session, and create the chroot if it does not exist. Raises StoreUnavailableError."""
        await self._open_session()
        if self._settings.chroot:
            await self.ensure_path(self._settings.chroot)
            self._chroot = self._settings.chroot
        logger.info("connected to ZooKeeper zookeeper.connect=%s session=%#x", self._settings.connect, self.session_id)

    async def renew(self) -> None:
        if self._is_closed:
            raise SessionExpiredError("the metadata store is closed")
        if self._is_over:
            await self._open_session()
            logger.info("began a new ZooKeeper session session=%#x", self.session_id)

    async def _open_session(self) -> None:
        """Begin a session with a new client. Raises StoreUnavailableError after the connection timeout."""
        settings = self._settings
        opening: Deferred[None] = Deferred()
        self._opening = opening
        client = self._client = self._make_client(settings, self._reactor, self)
        report = self._reactor.callLater(_REPORT_WAIT_S, self._report_wait, client)
        timeout = self._reactor.callLater(settings.connection_timeout_ms / 1000, self._give_up, client)
        client.start()
        try:
            await opening
        except BaseException:
            if self._client is client:
                self._client = None
            client.stop(_do_nothing)
            raise
        finally:
            for call in (report, timeout):
                if call.active():
                    call.cancel()

    def _report_wait(self, client: ZooKeeperClient) -> None:
        logger.warning(
            "waiting for ZooKeeper zookeeper.connect=%s timeout_ms=%d reason=%s",
            self._settings.connect,
            self._settings.connection_timeout_ms,
            client.last_error or "no response",
        )

    def _give_up(self, client: ZooKeeperClient) -> None:
        settings = self._settings
        self._end_opening(
            client,
            StoreUnavailableError(
                f"cannot connect to ZooKeeper within {settings.connection_timeout_ms} ms "
                f"(zookeeper.connect={settings.connect}): {client.last_error}; start ZooKeeper, or correct "
                "zookeeper.connect"
            ),
        )

    def _end_opening(self, client: ZooKeeperClient, error: Exception | None) -> bool:
        """End the wait for a new session; return False if the client is not waited for."""
        opening = self._opening
        if opening is None or client is not self._client:
            return False
        self._opening = None
        if error is None:
            opening.callback(None)
        else:
            opening.errback(error)
        return True

    def on_connected(self, client: ZooKeeperClient, session_id: int) -> None:
        """Continue on a new connection. The client calls this, with the session's id."""
        if client is not self._client:
            return
        self._is_connected = True
        self.connects += 1
        if self._opening is not None:
            self.session_id = session_id
            self._is_over = False
            self._calls.resume(client, iter(()))
            self._end_opening(client, None)
            return
        logger.warning("ZooKeeper is reachable again session=%#x", session_id)
        # Before other requests, so that no read returns a change before its watch event.
        self._calls.resume(client, self._make_renewals())
        self._notify(SessionEvent.CONNECTED)

    def on_disconnected(self, client: ZooKeeperClient) -> None:
        """Wait for the next connection. The client calls this, after the results of the lost one."""
        if client is not self._client or self._is_over or not self._is_connected:
            return
        self._is_connected = False
        self.disconnects += 1
        logger.warning(
            "ZooKeeper is unreachable; data traffic continues with the last known leaders, changes wait "
            "zookeeper.connect=%s",
            self._settings.connect,
        )
        self._calls.pause()
        self._notify(SessionEvent.DISCONNECTED)

    def on_lost(self, client: ZooKeeperClient) -> None:
        """End the expired session. The client calls this."""
        why = client.refusal or "the new ZooKeeper session ended at once"
        if self._end_opening(client, StoreUnavailableError(why)):
            return
        if client is not self._client or self._is_over:
            return
        logger.warning("the ZooKeeper session has expired, and a new one begins session=%#x", self.session_id)
        self.expirations += 1
        self._client = None
        calls = self._end_session()
        client.stop(_do_nothing)
        # Listeners first: the controller resigns before one of its changes ends with an error.
        self._notify(SessionEvent.EXPIRED)
        self._fail(calls, f"session {self.session_id:#x} has expired")

    def _end_session(self) -> list[Call]:
        """Mark the session as ended; return the calls that the caller has to end."""
        self._is_over = True
        self._is_connected = False
        self._watches.clear()
        return self._calls.take_all()

    @staticmethod
    def _fail(calls: Sequence[Call], why: str) -> None:
        for call in calls:
            call.fail(SessionExpiredError(why))

    def add_session_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def _notify(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            listener(event)

    async def close(self) -> None:
        """End the session. Without a connection its ephemeral nodes are deleted when it expires."""
        if self._is_closed:
            return
        self._is_closed = True
        client = self._client
        if client is not None:
            self._end_opening(client, SessionExpiredError("the metadata store is closed"))
        self._client = None
        self._fail(self._end_session(), "the metadata store is closed")
        if client is None:
            return
        closed: Deferred[None] = Deferred()
        timeout = self._reactor.callLater(CLOSE_TIMEOUT_S, _fire, closed)
        client.stop(partial(_fire, closed))
        await closed
        if timeout.active():
            timeout.cancel()

    # -- reads -----------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        node = _read_node(await self._get(path, watch), path)
        if node is None:
            raise NoNodeError(path)
        return node

    async def get_many(self, paths: Sequence[str], watch: Watcher | None = None) -> list[Node | None]:
        if paths and watch is None and self._has_multi_read:
            call = await self._multi_read(paths)
            if not isinstance(call.error, UnimplementedError):
                if call.error is not None:
                    raise requests.translate_error(call.error, ", ".join(paths))
                return requests.read_nodes(call.value, paths)
            self._has_multi_read = False
        reads = [self._get(path, watch) for path in paths]
        calls = [await read for read in reads]
        return [_read_node(call, path) for call, path in zip(calls, paths, strict=True)]

    def _multi_read(self, paths: Sequence[str]) -> Deferred[Call]:
        for path in paths:
            check_path(path)
        return self._run(requests.get_many([self._full_path(path) for path in paths]), is_read=True)

    def _get(self, path: str, watch: Watcher | None) -> Deferred[Call]:
        reading = self._read(requests.get, path, watch)
        return reading if watch is None else reading.addCallback(self._watch_data, path, watch)

    def _watch_data(self, call: Call, path: str, watch: Watcher) -> Call:
        """Record the watch of a node when the node arrives: the event of its next change may follow at once."""
        if call.error is None:
            self._watches.on_data(path, watch, requests.read_node(call.value).stat.modified_id)
        return call

    async def exists(self, path: str, watch: Watcher | None = None) -> NodeStat | None:
        call = await self._read(requests.exists, path, watch)
        if call.error is not None:
            raise requests.translate_error(call.error, path)
        stat = None if call.value is None else requests.read_stat(call.value)
        if watch is not None:
            self._watches.on_data(path, watch, MISSING if stat is None else stat.modified_id)
        return stat

    async def get_children(self, path: str, watch: Watcher | None = None) -> list[str]:
        call = await self._read(requests.get_children, path, watch)
        if call.error is not None:
            raise requests.translate_error(call.error, path)
        names, changed_id = requests.read_children(call.value)
        if watch is not None:
            self._watches.on_children(path, watch, changed_id)
        return names

    def _read(
        self, request: Callable[[str, Callable[[Event], None] | None], Send], path: str, watch: Watcher | None
    ) -> Deferred[Call]:
        check_path(path)
        return self._run(request(self._full_path(path), None if watch is None else self._on_watch), is_read=True)

    def _run(self, send: Send, *, is_read: bool) -> Deferred[Call]:
        """Send a request in its turn. Raises SessionExpiredError; other errors are in the finished call."""
        self._check_session()
        return self._calls.run(send, is_read=is_read)

    def _check_session(self) -> None:
        if self._is_over:
            raise SessionExpiredError(f"session {self.session_id:#x} has ended")

    def _full_path(self, path: str) -> str:
        """Return the path of a node in ZooKeeper, with the chroot."""
        return (self._chroot if path == "/" else self._chroot + path) or "/"

    def _short_path(self, path: str) -> str:
        return path.removeprefix(self._chroot) or "/"

    # -- watches ---------------------------------------------------------------------------------------------------

    def _on_watch(self, event: Event) -> None:
        if event.path is not None and event.type in KINDS:
            self._watches.fire(WatchEvent(KINDS[event.type], self._short_path(event.path)))

    def _make_renewals(self) -> Iterator[Call]:
        """Iterate over reads that set all watches on a new connection."""
        for path in list(self._watches.data):
            if path in self._watches.data:
                send = requests.exists(self._full_path(path), self._on_watch)
                yield Call(send, partial(self._check_data, path), is_read=True, is_renewal=True)
        for path in list(self._watches.children):
            if path in self._watches.children:
                send = requests.get_children(self._full_path(path), self._on_watch)
                yield Call(send, partial(self._check_children, path), is_read=True, is_renewal=True)

    def _check_data(self, path: str, call: Call) -> None:
        if call.error is None:
            changed_id = MISSING if call.value is None else requests.read_stat(call.value).modified_id
            self._watches.check_data(path, changed_id)

    def _check_children(self, path: str, call: Call) -> None:
        if call.error is None:
            self._watches.check_children(path, requests.read_children(call.value)[1])
        elif isinstance(call.error, KazooNoNodeError):
            self._watches.check_children(path, MISSING)

    # -- writes ----------------------------------------------------------------------------------------------------

    async def create(
        self, path: str, data: bytes | None = None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        result = await self._do(Create(path, data, ephemeral, sequential))
        assert isinstance(result, str)
        return result

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> NodeStat:
        result = await self._do(SetData(path, data, version))
        assert isinstance(result, NodeStat)
        return result

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._do(Delete(path, version))

    async def _do(self, operation: Operation) -> OperationResult:
        try:
            return (await self.transaction((operation,)))[0]
        except TransactionError as error:
            raise error.cause from None

    async def transaction(self, operations: Sequence[Operation]) -> list[OperationResult]:
        for operation in operations:
            check_path(operation.path)
        if not operations:
            self._check_session()
            return []
        full = self._with_full_paths(operations)
        call = await self._run(
            requests.transaction(full, self._chroot, has_acls=self._settings.has_acls), is_read=False
        )
        if call.error is not None:
            raise requests.translate_error(call.error, operations[0].path)
        try:
            return requests.read_results(full, call.value, self._chroot)
        except TransactionError:
            if call.was_interrupted:
                nodes = await self._read_nodes(outcomes.changed_paths(operations))
                if nodes and outcomes.has_succeeded(operations, nodes, self.session_id):
                    return outcomes.make_results(operations, nodes)
            raise

    def check_size(self, operations: Sequence[Operation], room_bytes: int = 0) -> None:
        requests.check_size(self._with_full_paths(operations), room_bytes)

    def _with_full_paths(self, operations: Sequence[Operation]) -> list[Operation]:
        return [operation._replace(path=self._full_path(operation.path)) for operation in operations]

    async def _read_nodes(self, paths: Sequence[str]) -> dict[str, Node | None]:
        nodes: dict[str, Node | None] = {}
        for path in paths:
            try:
                nodes[path] = await self.get(path)
            except NoNodeError:
                nodes[path] = None
        return nodes


def _read_node(call: Call, path: str) -> Node | None:
    """Return the node that was read, None if it does not exist. Raises MetadataStoreError."""
    if isinstance(call.error, KazooNoNodeError):
        return None
    if call.error is not None:
        raise requests.translate_error(call.error, path)
    return requests.read_node(call.value)


def _fire(deferred: Deferred[None]) -> None:
    if not deferred.called:
        deferred.callback(None)


def _do_nothing() -> None:
    """Ignore the end of a client that is no longer used."""
