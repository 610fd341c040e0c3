"""A blocking client for one broker, of Odradek or Apache Kafka, for the command line's tools.

with WireClient(Address("127.0.0.1", 9092)) as client:
    response = client.send(MetadataRequest(topics=None), MetadataResponse)
"""

import socket
import struct
import time
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.schema import Message
from odradek.protocol.types import DecodeError
from odradek.tools.kafka.connection.connection_errors import (
    SASL,
    InvalidRequestError,
    StepError,
    UnsupportedRequestError,
    explain_failed_connect,
    explain_failed_request,
    explain_failed_tls,
)

if TYPE_CHECKING:
    import ssl

    from odradek.tools.kafka.connection.client_login import ClientLogin

CONNECT_TIMEOUT_S: Final = 5.0
RESPONSE_TIMEOUT_S: Final = 70.0
"""Longer than the timeout of the requests that change a cluster."""

_MAX_FRAME_BYTES: Final = 1 << 28
_CLIENT_ID: Final = b"odradek-cli"
_NO_TAGS: Final = b"\0"

Response = TypeVar("Response", bound=Message)


class ClientSecurity(NamedTuple):
    """TLS and SASL of a client's connections; None for those that its security protocol lacks."""

    tls_context: "ssl.SSLContext | None" = None
    sasl: "ClientLogin | None" = None


class Address(NamedTuple):
    """A broker's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """Parse `host:port,...`. Raises ValueError, with one line."""
    addresses = []
    for part in filter(None, map(str.strip, text.split(","))):
        host, colon, port = part.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65_536
        if not colon or not is_port or not _is_host(host):
            raise ValueError(f"{part} is not host:port")
        addresses.append(Address(host, int(port)))
    if not addresses:
        raise ValueError("no host:port")
    return addresses


def _is_host(text: str) -> bool:
    try:
        text.encode("idna")
    except UnicodeError:
        # A part of the name is empty or too long. Python raises this error instead of OSError when it connects.
        return False
    return bool(text)


_PLAINTEXT: Final = ClientSecurity()


class WireClient:
    """One connection. Each request is sent in the newest version that both sides have."""

    def __init__(
        self,
        address: Address,
        security: ClientSecurity = _PLAINTEXT,
        timeout_s: float = CONNECT_TIMEOUT_S,
        response_timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._correlation_id = 0
        self._has_tls = security.tls_context is not None
        self._has_sasl = security.sasl is not None
        self._timeout_s = timeout_s
        self._socket = self._connect(security, timeout_s)
        try:
            served = self._exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
            if security.sasl is not None:
                self._authenticate(security.sasl)
            self._timeout_s = response_timeout_s
        except BaseException:
            self.close()
            raise
        self._served = {api.api_key: (api.min_version, api.max_version) for api in served.api_keys}

    def _connect(self, security: ClientSecurity, timeout_s: float) -> socket.socket:
        """Return a connection. Raises NoResponseError."""
        try:
            connection = socket.create_connection(self.address, timeout_s)
        except (OSError, ValueError) as error:
            raise explain_failed_connect(str(self.address), error) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security.tls_context is None:
            return connection
        try:
            return security.tls_context.wrap_socket(connection, server_hostname=self.address.host)
        except (OSError, ValueError) as error:
            connection.close()
            raise explain_failed_tls(str(self.address), error) from error

    def serves(self, request_type: type[Message]) -> bool:
        """True if the broker serves a version of a request that this client can send."""
        lowest, highest = self._served.get(request_type.api_key, (0, -1))
        return min(highest, request_type.last_version) >= max(lowest, request_type.first_version)

    def require_version(self, request_type: type[Message], version: int, purpose: str) -> None:
        """Raise UnsupportedRequestError unless a request is sent in `version` or a newer one, which `purpose` needs.

        An older version omits fields silently.
        """
        if min(self._served.get(request_type.api_key, (0, -1))[1], request_type.last_version) < version:
            name = request_type.__name__.removesuffix("Request")
            raise UnsupportedRequestError(f"{self.address} does not serve {name} v{version}, which {purpose} needs")

    def send(self, request: Message, response_type: type[Response], last_version: int | None = None) -> Response:
        """Send a request, in a version up to `last_version`, and return its response. Raises NoResponseError."""
        lowest, highest = self._served.get(request.api_key, (0, -1))
        version = min(highest, request.last_version, *(() if last_version is None else (last_version,)))
        if version < max(lowest, request.first_version):
            name = type(request).__name__.removesuffix("Request")
            if highest < 0:
                raise UnsupportedRequestError(f"{self.address} does not serve {name}")
            raise UnsupportedRequestError(f"{self.address} serves no version of {name} that this client can send")
        return self._exchange(request, version, response_type)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _authenticate(self, login: "ClientLogin") -> None:
        """Prove the identity of this client. Raises NoResponseError."""
        from odradek.server.security.sasl.mechanism import SaslError

        async def ask(request: Message, response_type: type[Response], version: int) -> Response:
            return self._exchange(request, version, response_type)

        try:
            _run(login.authenticate(ask, self.address.host))
        except SaslError as error:
            reason = f"the broker does not authenticate {login.identity}: {error}"
            hint = "check sasl.mechanism and sasl.jaas.config"
            if ErrorCode.ILLEGAL_SASL_STATE.name in str(error):
                hint = f"the listener has no SASL: try security.protocol={'SSL' if self._has_tls else 'PLAINTEXT'}"
            raise StepError(str(self.address), SASL, reason, hint) from error

    def _exchange(self, request: Message, version: int, response_type: type[Response]) -> Response:
        self._correlation_id += 1
        is_flexible = request.is_flexible(version)
        head = struct.pack(">hhih", request.api_key, version, self._correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
        try:
            content = head + (_NO_TAGS if is_flexible else b"") + codec.encode(request, version)
        except struct.error as error:
            raise InvalidRequestError(f"a number is out of range: {error}") from None
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{error.object!a} is not UTF-8") from None
        try:
            end_s = time.monotonic() + self._timeout_s
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(struct.pack(">i", len(content)) + content)
            (size,) = struct.unpack(">i", self._receive(4, end_s))
            if not 4 <= size <= _MAX_FRAME_BYTES:
                raise DecodeError(f"a response of {size} bytes")
            frame = self._receive(size, end_s)
            (correlation_id,) = struct.unpack_from(">i", frame)
            if correlation_id != self._correlation_id:
                raise DecodeError(f"correlation id {correlation_id} instead of {self._correlation_id}")
            body = 4 + response_is_flexible(request.api_key, is_flexible)
            return codec.decode(response_type, version, frame, body)
        except (OSError, DecodeError) as error:
            address, number = str(self.address), self._correlation_id
            raise explain_failed_request(
                address, error, number, has_tls=self._has_tls, has_sasl=self._has_sasl
            ) from error

    def _receive(self, count: int, end_s: float) -> bytes:
        """Receive bytes until a time. The timeout of a socket applies to each part alone, however small it is."""
        data = bytearray()
        while len(data) < count:
            rest_s = end_s - time.monotonic()
            if rest_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(rest_s)
            received = self._socket.recv(min(count - len(data), 1 << 20))
            if not received:
                raise ConnectionError("the broker closed the connection")
            data += received
        return bytes(data)


def _run(coroutine: Awaitable[object]) -> None:
    """Run a coroutine that never waits."""
    try:
        next(coroutine.__await__())
    except StopIteration:
        return
    raise AssertionError("the coroutine waits")
