"""TLS and SASL of a connection to ZooKeeper.

kazoo makes its own TLS context, which takes files only, and needs another library for SASL. Here the context is the one
of the properties `zookeeper.ssl.*`, so that keys are in memory only.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, ConnectionDropped
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL

from odradek.server.stores.zookeeper.digest_md5 import DigestError, DigestMd5
from odradek.server.stores.zookeeper.settings import Credentials

REFUSED: Final = (
    "ZooKeeper refuses the user name or the password; check zookeeper.sasl.jaas.config and the server's JAAS file"
)


def connect_with_tls(
    address: tuple[str, int], server_name: str, timeout_s: float, context: ssl.SSLContext
) -> ssl.SSLSocket:
    """Connect to a server, and shake hands within `timeout_s`. Raises OSError."""
    plain = socket.create_connection(address, timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=server_name)
    except BaseException:
        plain.close()
        raise


def describe_error(error: OSError) -> str:
    """Return the reason why a connection failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS handshake failed: certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"the TLS handshake failed: {error.reason.lower().replace('_', ' ')}"
    return error.strerror or str(error)


class AuthenticatingConnection(ConnectionHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo's connection, which authenticates before other requests.

    Its thread calls `on_authenticated`, or `on_refused` with the reason. The server closes the connection of a client
    that it refuses.
    """

    def __init__(
        self,
        credentials: Credentials,
        on_authenticated: Callable[[], None],
        on_refused: Callable[[str], None],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **{**options, "sasl_options": {}})
        self._credentials = credentials
        self._on_authenticated = on_authenticated
        self._on_refused = on_refused

    def _authenticate_with_sasl(self, host: str, timeout_s: float) -> None:
        """kazoo: the session is established, and no request has been sent."""
        try:
            self._exchange(timeout_s)
        except (ConnectionDropped, AuthFailedError) as error:
            self._on_refused(REFUSED)
            raise AuthFailedError("SASL") from error
        except DigestError as error:
            self._on_refused(f"ZooKeeper cannot be authenticated: {error}")
            raise AuthFailedError("SASL") from error
        self._on_authenticated()

    def _exchange(self, timeout_s: float) -> None:
        exchange = DigestMd5(*self._credentials)
        token: bytes | None = b""
        xid = 0
        while token is not None:
            xid += 1
            self._submit(SASL(token), timeout_s, xid)
            header, content, offset = self._read_header(timeout_s)
            if header.err:
                raise EXCEPTIONS[header.err]()
            challenge, _ = SASL.deserialize(content, offset)
            token = exchange.respond(challenge or b"")
