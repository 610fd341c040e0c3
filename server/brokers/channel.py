"""Channels to other brokers: a queue of requests, one in flight, over one connection.

A channel connects at its next request, after a pause (backoff) if the previous connection was lost or could not be
established. A request whose connection is lost, or whose response does not come in time, fails; it is never repeated
here, because the other broker may have processed it. If no connection can be established, all requests of the queue
fail, because each would only wait for the same result.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped

from odradek import __version__
from odradek.protocol.errors import read_error_code
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.schema import Message
from odradek.protocol.types import DecodeError
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.remote import BrokerChannel, BrokerUnavailableError
from odradek.server.brokers.connection import BrokerConnection, Connect, ConnectionAttempt, VersionRange
from odradek.server.brokers.request_codec import decode_response, encode_request
from odradek.server.security.sasl.mechanism import Authenticate, SaslError
from odradek.server.work.clock import Clock
from odradek.server.work.reused_timer import ReusedTimer
from odradek.server.work.slices import Slices
from odradek.server.work.waits import Wait

logger = logging.getLogger(__name__)

Response = TypeVar("Response", bound=Message)

MAX_FRAME_BYTES: Final = 104_857_600
"""Maximum size of a response without records."""

FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 1.0
"""The defaults of `reconnect.backoff.ms` and `reconnect.backoff.max.ms` of Kafka's clients."""

_API_VERSIONS: Final = 3
"""Version of ApiVersions, which all brokers since Apache Kafka 2.4 have."""


REAUTHENTICATE_AT: Final = 0.85
"""Part of a session's lifetime after which this broker authenticates itself again, before its next request."""


class SetupTimeout(NamedTuple):
    """Time for a connection to be established: doubles with each failure, up to a maximum (KIP-601)."""

    first_ms: int = 10_000
    max_ms: int = 30_000

    def after_failures(self, count: int) -> float:
        """Return the time in seconds for the next attempt after `count` failures."""
        return max(1, min(self.first_ms * (1 << min(count, 16)), self.max_ms)) / 1000


DEFAULT_SETUP_TIMEOUT: Final = SetupTimeout()


class QueuedRequest:
    """A request without a response.

    version: to send, or None for the latest version of both brokers
    outcome: fires with the response, or fails
    """

    __slots__ = ("outcome", "request", "response_type", "version")

    def __init__(
        self,
        request: Message,
        response_type: type[Message],
        version: int | None,
        describe: Callable[[], str],
    ) -> None:
        self.request = request
        self.response_type = response_type
        self.version = version
        self.outcome: Deferred[Message] = Wait(describe)


class TcpBrokerChannel:
    """Requests to one address (`replication.remote.BrokerChannel`).

    A request that is cancelled in the queue is not sent. One that is cancelled later may be sent; its response is
    dropped.

    name: of the broker, for messages
    authenticate: authenticates this broker with SASL; None without SASL
    connect: the reactor's `connectTCP`
    clock: the reactor
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_ms: int,
        connect: Connect,
        clock: Clock,
        slices: Slices,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        setup_timeout: SetupTimeout = DEFAULT_SETUP_TIMEOUT,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._name = name
        self._authenticate = authenticate
        self._host = host
        self._port = port
        self._client_id = client_id.encode()
        self._timeout_s = timeout_ms / 1000
        self._connect_tcp = connect
        self._clock = clock
        self._slices = slices
        self._max_frame_bytes = max_frame_bytes
        self._setup_timeout = setup_timeout
        self._queue: deque[QueuedRequest] = deque()
        self._is_running = False
        self._closed_why = ""
        # Why the last authentication failed.
        self._refusal = ""
        self._connection: BrokerConnection | None = None
        self._attempt: ConnectionAttempt | None = None
        self._pause: Deferred[None] | None = None
        self._response_timer = ReusedTimer(clock)
        self._failures = 0
        self._connect_from_s = 0.0
        self._correlation_id = 0

    async def send(self, request: Message, response_type: type[Response], version: int | None = None) -> Response:
        """Send a request and return its response (`BrokerChannel.send`)."""
        if self._closed_why:
            raise BrokerUnavailableError(self._closed_why)
        queued = QueuedRequest(
            request, response_type, version, lambda: f"{self._name}, response to {type(request).__name__}"
        )
        self._queue.append(queued)
        if not self._is_running:
            self._is_running = True
            Deferred.fromCoroutine(self._serve_queue())
        response = await queued.outcome
        if not isinstance(response, response_type):
            raise TypeError(f"{type(response).__name__} is not a {response_type.__name__}")
        return response

    def close(self) -> None:
        """Close the connection. Requests without a response fail with BrokerUnavailableError."""
        if self._closed_why:
            return
        self._closed_why = why = f"channel to {self._name} is closed"
        if self._connection is not None:
            self._connection.close(why)
        if self._attempt is not None:
            self._attempt.give_up(why)
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.callback(None)
        # Normally the loop has ended the queue; it has not while it encodes or decodes in slices.
        self._fail_queue(why)
        self._response_timer.release()

    async def _serve_queue(self) -> None:
        """Send the requests of the queue, one after the other."""
        while self._queue:
            queued = self._queue.popleft()
            if queued.outcome.called:
                continue
            try:
                connection = self._connection or await self._open_connection()
            except Exception as error:
                queued.outcome.errback(error)
                self._fail_queue(str(error))
                continue
            try:
                response = await self._exchange(connection, queued)
            except SchedulerStopped:
                queued.outcome.errback(BrokerUnavailableError("this broker is stopping"))
            except Exception as error:
                queued.outcome.errback(error)
            else:
                queued.outcome.callback(response)
        self._is_running = False

    def _fail_queue(self, why: str) -> None:
        """Fail the requests that are in the queue now."""
        failed, self._queue = self._queue, deque()
        for queued in failed:
            if not queued.outcome.called:
                queued.outcome.errback(BrokerUnavailableError(why))

    async def _open_connection(self) -> BrokerConnection:
        pause_s = self._connect_from_s - self._clock.seconds()
        if pause_s > 0 and not self._closed_why:
            self._pause = Deferred()
            timer = self._clock.callLater(pause_s, self._end_pause)
            await self._pause
            if timer.active():
                timer.cancel()
        if self._closed_why:
            raise BrokerUnavailableError(self._closed_why)
        attempt = self._attempt = ConnectionAttempt(self._name, self._max_frame_bytes, self._on_lost)
        timeout_s = min(self._timeout_s, self._setup_timeout.after_failures(self._failures))
        timer = self._clock.callLater(
            timeout_s, attempt.give_up, f"no connection to {self._name} within {timeout_s:g} s"
        )
        try:
            attempt.begin(self._connect_tcp, self._host, self._port)
            connection = self._connection = await attempt.outcome
            if self._authenticate is not None:
                connection.authenticate_s = -math.inf
        except BrokerUnavailableError:
            self._back_off()
            raise
        finally:
            self._attempt = None
            if timer.active():
                timer.cancel()
        return connection

    def _end_pause(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.callback(None)

    def _on_lost(self, connection: BrokerConnection) -> None:
        if connection is self._connection:
            self._connection = None
            self._back_off()

    def _back_off(self) -> None:
        """Delay the next connection; the delay doubles with each one that ends without a response."""
        pause_s = min(FIRST_BACKOFF_S * (1 << min(self._failures, 16)), MAX_BACKOFF_S)
        self._failures += 1
        self._connect_from_s = self._clock.seconds() + pause_s

    async def _exchange(self, connection: BrokerConnection, queued: QueuedRequest) -> Message:
        if self._clock.seconds() >= connection.authenticate_s:
            await self._authenticate_connection(connection)
        version = queued.version
        if version is None:
            version = await self._negotiate(connection, queued.request)
        return await self._ask(connection, queued.request, queued.response_type, version)

    async def _authenticate_connection(self, connection: BrokerConnection) -> None:
        """Authenticate this broker, for the first time or again. Raises BrokerUnavailableError."""
        assert self._authenticate is not None
        began_s = self._clock.seconds()

        async def ask(request: Message, response_type: type[Response], version: int) -> Response:
            return await self._ask(connection, request, response_type, version)

        try:
            lifetime_ms = await self._authenticate(ask, self._host)
        except SaslError as error:
            why = f"authentication by {self._name} failed: {error}"
            # Once until the reason changes, because each attempt to connect would repeat it.
            logger.log(logging.DEBUG if why == self._refusal else logging.WARNING, "%s; retrying", why)
            self._refusal = why
            connection.close(why)
            raise BrokerUnavailableError(why) from error
        self._refusal = ""
        connection.authenticate_s = began_s + lifetime_ms / 1000 * REAUTHENTICATE_AT if lifetime_ms else math.inf

    async def _negotiate(self, connection: BrokerConnection, request: Message) -> int:
        """Return the latest version of a request that both brokers have."""
        if connection.versions is None:
            asked = ApiVersionsRequest(client_software_name="odradek", client_software_version=__version__)
            answer = await self._ask(connection, asked, ApiVersionsResponse, _API_VERSIONS)
            if answer.error_code:
                why = f"{self._name} answers ApiVersions with {read_error_code(answer.error_code).name}"
                connection.refuse(why)
                raise BrokerUnavailableError(why)
            connection.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        versions: VersionRange | None = connection.versions.get(request.api_key)
        if versions is not None:
            version = min(request.last_version, versions[1])
            if version >= max(request.first_version, versions[0]):
                return version
        raise BrokerUnavailableError(f"{self._name} serves no common version of {type(request).__name__}")

    async def _ask(
        self, connection: BrokerConnection, request: Message, response_type: type[Response], version: int
    ) -> Response:
        self._correlation_id = correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        encoded = await encode_request(request, version, correlation_id, self._client_id, self._slices)
        if self._closed_why:
            raise BrokerUnavailableError(self._closed_why)
        self._response_timer.start(self._timeout_s, self._end_unanswered, connection, request)
        try:
            frame = await connection.exchange(encoded, correlation_id)
        finally:
            self._response_timer.stop()
        try:
            response = await decode_response(frame, response_type, version, self._slices)
        except DecodeError as error:
            connection.refuse(f"malformed response: {error}")
            raise BrokerUnavailableError(f"{self._name} sent a malformed response: {error}") from error
        if connection.authenticate_s > -math.inf:
            self._failures = 0
        return response

    def _end_unanswered(self, connection: BrokerConnection, request: Message) -> None:
        connection.close(f"no response from {self._name} to {type(request).__name__} within {self._timeout_s:g} s")


class UnreachableBroker:
    """A channel to a broker without a usable endpoint. Its requests raise BrokerUnavailableError."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def send(self, request: Message, response_type: type[Response], version: int | None = None) -> Response:
        """Raise BrokerUnavailableError."""
        raise BrokerUnavailableError(self._why)

    def close(self) -> None:
        """Do nothing."""


class TcpBrokerChannels:
    """Opens channels to the listener `listener_name` of other brokers (`replication.remote.BrokerChannels`).

    max_records_bytes: maximum size of the records in one response
    security_protocol: of the listener, the same on all brokers; `connect` connects with it
    authenticate: see `TcpBrokerChannel`
    """

    def __init__(
        self,
        listener_name: str,
        *,
        connect: Connect,
        clock: Clock,
        slices: Slices,
        max_records_bytes: int = 0,
        setup_timeout: SetupTimeout = DEFAULT_SETUP_TIMEOUT,
        security_protocol: str = "PLAINTEXT",
        authenticate: Authenticate | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._listener_name = listener_name
        self._security_protocol = security_protocol
        self._connect = connect
        self._clock = clock
        self._slices = slices
        self._max_frame_bytes = MAX_FRAME_BYTES + max_records_bytes
        self._setup_timeout = setup_timeout

    def open(self, broker: BrokerMetadata, *, client_id: str, timeout_ms: int) -> BrokerChannel:
        """Return a new channel. Its requests raise BrokerUnavailableError if the broker has no usable endpoint."""
        endpoint = broker.endpoint(self._listener_name)
        if endpoint is None:
            return UnreachableBroker(f"broker {broker.broker_id} has no listener {self._listener_name}")
        if endpoint.security_protocol != self._security_protocol:
            return UnreachableBroker(
                f"broker {broker.broker_id}: listener {endpoint.listener} has security protocol "
                f"{endpoint.security_protocol}, but {self._security_protocol} on this broker"
            )
        return TcpBrokerChannel(
            f"broker {broker.broker_id} at {endpoint.host}:{endpoint.port}",
            endpoint.host,
            endpoint.port,
            client_id=client_id,
            timeout_ms=timeout_ms,
            connect=self._connect,
            clock=self._clock,
            slices=self._slices,
            max_frame_bytes=self._max_frame_bytes,
            setup_timeout=self._setup_timeout,
            authenticate=self._authenticate,
        )
