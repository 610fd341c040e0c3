"""kazoo's client, with results, watch events and session states in the reactor thread, in their order.

kazoo delivers results and watch events by two threads, so that their order is lost. This handler has no threads of its
own: kazoo's connection thread passes everything to the reactor with `callFromThread`, which keeps the order in which
the server sent it. Requests therefore end in the reactor thread, and no callback runs in another one.
"""

import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, cast

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState

from odradek.server.stores.zookeeper.multi_read import MultiRead
from odradek.server.stores.zookeeper.secure_connection import (
    AuthenticatingConnection,
    connect_with_tls,
    describe_error,
)
from odradek.server.stores.zookeeper.settings import Credentials, ZooKeeperSettings

logger = logging.getLogger(__name__)

# kazoo logs each attempt to connect; the store logs one line when the connection is lost and one when it is back.
_kazoo_logger = logging.getLogger("kazoo.client")
_kazoo_logger.setLevel(logging.ERROR)

_RETRY_DELAY_S: Final = 0.1
_RETRY_MAX_DELAY_S: Final = 1.0


class DelayedCall(Protocol):
    """A call that the reactor makes later."""

    def cancel(self) -> None: ...

    def active(self) -> bool: ...


class ThreadedReactor(Protocol):
    """The methods of Twisted's reactor that the store uses."""

    def callFromThread(self, function: Callable[..., object], /, *arguments: object) -> object:
        """Call `function` in the reactor thread, after earlier calls. May be called in any thread."""

    def callLater(self, delay_s: float, function: Callable[..., object], /, *arguments: object) -> DelayedCall:
        """Call `function` after `delay_s` seconds."""


Receiver = Callable[[object, Exception | None], None]
"""Function that is called with the result of a request, or with its error."""


class PendingResult:
    """The result of one request; kazoo sets it in its connection thread. A receiver must be added at once."""

    __slots__ = ("_is_set", "_reactor", "_receiver")

    def __init__(self, reactor: ThreadedReactor) -> None:
        self._reactor = reactor
        self._receiver: Receiver | None = None
        self._is_set = False

    def deliver_to(self, receiver: Receiver) -> None:
        """Call `receiver` in the reactor thread, not before this method returns."""
        self._receiver = receiver

    def set(self, value: object = None) -> None:
        """Deliver a result."""
        self._set(value, None)

    def set_exception(self, exception: Exception) -> None:
        """Deliver an error."""
        self._set(None, exception)

    def _set(self, value: object, error: Exception | None) -> None:
        # kazoo reports a closed connection twice.
        if not self._is_set:
            self._is_set = True
            self._reactor.callFromThread(self._deliver, value, error)

    def _deliver(self, value: object, error: Exception | None) -> None:
        if self._receiver is not None:
            self._receiver(value, error)


class Event(Protocol):
    """A watch event of kazoo. `path` is None if the connection was lost."""

    type: str
    path: str | None


KazooWatcher = Callable[[Event], None]


class Watch(Protocol):
    """A watcher of kazoo that is to be called, and its argument."""

    func: KazooWatcher
    args: tuple[Event]


class ReactorHandler:
    """A kazoo handler (`kazoo.interfaces.IHandler`) for the reactor thread.

    `last_error` is the reason of the last failed attempt to connect. After `refuse_connections` no attempt succeeds.
    """

    name = "odradek"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)
    running = True

    def __init__(
        self,
        reactor: ThreadedReactor,
        connect_timeout_s: float,
        tls_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._reactor = reactor
        self._tls_context = tls_context
        self._connect_timeout_s = connect_timeout_s
        self._refuses = False
        self.last_error = ""
        base = SequentialThreadingHandler()
        self.create_socket_pair = base.create_socket_pair
        self.event_object = base.event_object
        self.lock_object = base.lock_object
        self.rlock_object = base.rlock_object
        self.spawn = base.spawn
        self._create_connection = base.create_connection

    def start(self) -> None:
        """Start no thread."""

    def stop(self) -> None:
        """Stop no thread."""

    def refuse_connections(self) -> None:
        """Make further attempts to connect fail: the session has ended, and kazoo would begin another one."""
        self._refuses = True

    def create_connection(self, address: tuple[str, int], hostname: str, **options: object) -> object:
        """Connect to one server. kazoo's own timeout is the session timeout, in which other servers must be tried."""
        if self._refuses:
            raise self.timeout_exception("the session has ended")
        try:
            if self._tls_context is not None:
                return connect_with_tls(address, hostname, self._connect_timeout_s, self._tls_context())
            return self._create_connection(address, hostname, **{**options, "timeout": self._connect_timeout_s})
        except (OSError, KazooTimeoutError) as error:
            text = describe_error(error) if isinstance(error, OSError) else str(error)
            self.last_error = text or type(error).__name__
            raise

    def select(
        self, readers: Sequence[socket.socket], writers: Sequence[socket.socket], _: object, timeout_s: float | None
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        """Wait for sockets. kazoo's own function makes and closes an epoll object, at half the cost of a request."""
        # Bytes that are already decrypted do not make a socket readable.
        pending = [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]
        if pending:
            timeout_s = 0
        poll = select.poll()
        sockets = {}
        for one in readers:
            sockets[one.fileno()] = one
            poll.register(one, select.POLLIN)
        for one in writers:
            sockets[one.fileno()] = one
            poll.register(one, select.POLLOUT)
        ready = [sockets[descriptor] for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]
        readable = [one for one in readers if one in ready or one in pending]
        return readable, [one for one in ready if one in writers], []

    def async_result(self) -> PendingResult:
        """Return a result for a new request."""
        return PendingResult(self._reactor)

    def dispatch_callback(self, callback: Watch) -> None:
        """Deliver a watch event, after earlier results.

        At a connection loss kazoo calls all watchers with an event without a path. They are not called then: the
        listeners of the session get DISCONNECTED.
        """
        [event] = callback.args
        if event.path is not None:
            self._reactor.callFromThread(callback.func, event)


class KazooTransaction(Protocol):
    """A transaction of kazoo. Requests are added to `operations`."""

    operations: list[object]

    def commit_async(self) -> PendingResult: ...


class Kazoo(Protocol):
    """The methods of KazooClient that the store uses."""

    @property
    def client_id(self) -> tuple[int, bytes] | None: ...

    def start_async(self) -> object: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def add_listener(self, listener: Callable[[str], None], /) -> None: ...

    def get_async(self, path: str, watch: KazooWatcher | None) -> PendingResult: ...

    def get_many_async(self, paths: Sequence[str]) -> PendingResult: ...

    def exists_async(self, path: str, watch: KazooWatcher | None) -> PendingResult: ...

    def get_children_async(self, path: str, watch: KazooWatcher | None, include_data: bool) -> PendingResult: ...

    def transaction(self) -> KazooTransaction: ...


class MultiReadingClient(KazooClient):  # type: ignore[misc] # kazoo has no types
    """KazooClient with a request for many nodes."""

    def authenticate(
        self, credentials: Credentials, on_authenticated: Callable[[], None], on_refused: Callable[[str], None]
    ) -> None:
        """Authenticate each connection. Call it before the first one."""
        self._connection = AuthenticatingConnection(
            credentials, on_authenticated, on_refused, self, self._conn_retry.copy(), logger=self.logger
        )

    def get_many_async(self, paths: Sequence[str]) -> PendingResult:
        """Read nodes."""
        result: PendingResult = self.handler.async_result()
        self._call(MultiRead(paths), result)
        return result


class SessionStates(Protocol):
    """Receiver of a client's states, in the reactor thread."""

    def on_connected(self, client: "ZooKeeperClient", session_id: int, /) -> None: ...

    def on_disconnected(self, client: "ZooKeeperClient", /) -> None: ...

    def on_lost(self, client: "ZooKeeperClient", /) -> None: ...


class ZooKeeperClient:
    """A client with one session, which kazoo resumes after a connection loss. An expired session is never replaced.

    refusal: the reason why ZooKeeper and the client do not authenticate each other, which ends the session; else empty
    """

    def __init__(self, settings: ZooKeeperSettings, reactor: ThreadedReactor, states: SessionStates) -> None:
        self._reactor = reactor
        self._states = states
        self.refusal = ""
        connect_timeout_s = settings.session_timeout_ms / 1000 / settings.host_count
        self._handler = ReactorHandler(reactor, connect_timeout_s, settings.tls_context)
        client = MultiReadingClient(
            hosts=settings.hosts,
            timeout=settings.session_timeout_ms / 1000,
            handler=self._handler,
            connection_retry={"max_tries": -1, "delay": _RETRY_DELAY_S, "max_delay": _RETRY_MAX_DELAY_S},
            logger=_kazoo_logger,
        )
        self._has_sasl = settings.credentials is not None
        if settings.credentials is not None:
            client.authenticate(settings.credentials, self._on_connection, self._on_refusal)
        self.kazoo = cast(Kazoo, client)

    @property
    def last_error(self) -> str:
        """The reason of the last failed attempt to connect."""
        return self._handler.last_error or "no server of it answers"

    def start(self) -> None:
        """Begin to connect."""
        self.kazoo.add_listener(self._on_state)
        self.kazoo.start_async()

    def _on_state(self, state: str) -> None:
        """Pass a state to the reactor thread; kazoo calls this in its connection thread."""
        if state == KazooState.CONNECTED:
            # With SASL the connection is not authenticated yet.
            if not self._has_sasl:
                self._on_connection()
        elif state == KazooState.SUSPENDED:
            self._reactor.callFromThread(self._states.on_disconnected, self)
        else:
            # In this thread, before kazoo connects again: no request of the old session may reach a new one.
            self._handler.refuse_connections()
            self._reactor.callFromThread(self._states.on_lost, self)

    def _on_connection(self) -> None:
        """Pass the session to the reactor thread; called in kazoo's connection thread."""
        identity = self.kazoo.client_id
        assert identity is not None
        self._reactor.callFromThread(self._states.on_connected, self, identity[0])

    def _on_refusal(self, why: str) -> None:
        # Before the state that follows.
        self._reactor.callFromThread(setattr, self, "refusal", why)

    def stop(self, done: Callable[[], None]) -> None:
        """End the session and the connection in another thread, then call `done` in the reactor thread."""

        def work() -> None:
            # Without an answer the session ends by its timeout.
            with suppress(KazooException, OSError):
                self.kazoo.stop()
            # kazoo raises this class while its connection thread still waits for a server; the thread is a daemon.
            with suppress(Exception):
                self.kazoo.close()
            # A reactor that has ended has closed the pipe that wakes it.
            with suppress(OSError):
                self._reactor.callFromThread(done)

        threading.Thread(target=work, name="zookeeper-close", daemon=True).start()


Send = Callable[[Kazoo], PendingResult]
"""Function that sends a request."""
