"""Connections to other brokers with TLS, between Twisted's TCP transport and a `BrokerConnection`."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.connection import Connect, TcpTransport
from odradek.server.security.tls.layer import TlsError, TlsLayer
from odradek.server.work.clock import Connector


def connect_with_tls(connect: Connect, context: Callable[[], ssl.SSLContext]) -> Connect:
    """Return a function that connects like `connect`, with TLS: the protocol begins after the handshake.

    It raises BrokerUnavailableError for a host that no certificate can name.
    """

    def connect_tls(host: str, port: int, factory: ClientFactory, /) -> Connector:
        try:
            layer = TlsLayer(context(), server_name=host, is_server=False)
        except ValueError as error:
            raise BrokerUnavailableError(f"cannot verify a certificate of host {host!r}: {error}") from error
        return connect(host, port, _TlsClientFactory(factory, layer))

    return connect_tls


class _TlsClientFactory(ClientFactory):
    """Makes the TLS protocol of one connection. Failures before the end of the handshake go to the inner factory."""

    noisy = False

    def __init__(self, inner: ClientFactory, layer: TlsLayer) -> None:
        self._inner = inner
        self._layer = layer

    def startedConnecting(self, connector: IConnector) -> None:
        self._connector = connector

    def buildProtocol(self, addr: IAddress | None) -> "_TlsClient | None":
        inner = self._inner.buildProtocol(addr)
        return None if inner is None else _TlsClient(cast(TwistedProtocol, inner), self._layer, self._fail)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        self._inner.clientConnectionFailed(connector, reason)

    def _fail(self, why: str) -> None:
        self.clientConnectionFailed(self._connector, Failure(TlsError(why)))  # type: ignore[no-untyped-call]


class _TlsClient(TwistedProtocol):
    """The client's side of one connection. It begins `inner` when the handshake is complete."""

    transport: TcpTransport  # type: ignore[assignment] # Twisted's ITransport has no types

    def __init__(self, inner: TwistedProtocol, layer: TlsLayer, fail: Callable[[str], None]) -> None:
        self._inner = inner
        self._layer = layer
        self._fail = fail
        self._has_begun = self._has_failed = False

    def connectionMade(self) -> None:
        self._encrypted = _EncryptedTransport(self.transport, self._layer)
        self._layer.begin()
        self._encrypted.send_output()

    def dataReceived(self, data: bytes) -> None:
        layer = self._layer
        try:
            plaintext = layer.receive(data)
        except TlsError as error:
            self._encrypted.send_output()
            self._end(str(error))
            return
        self._encrypted.send_output()
        if layer.is_established and not self._has_begun:
            self._has_begun = True
            self._inner.makeConnection(self._encrypted)  # type: ignore[no-untyped-call]
        if plaintext:
            self._inner.dataReceived(plaintext)
        if layer.has_ended:
            self._end("the other broker has ended the connection")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._has_begun:
            self._inner.connectionLost(reason)
        elif not self._has_failed:
            self._has_failed = True
            self._fail(f"the connection was lost in the TLS handshake: {reason.getErrorMessage()}")

    def _end(self, why: str) -> None:
        """Close the connection. `inner` gets the reason, which Twisted's `connectionLost` does not have."""
        if self._has_begun:
            self._inner.connectionLost(Failure(TlsError(f"TLS: {why}")))  # type: ignore[no-untyped-call]
        elif not self._has_failed:
            self._has_failed = True
            self._fail(f"the TLS handshake failed: {why}")
        self.transport.abortConnection()


class _EncryptedTransport:
    """The transport of a `BrokerConnection`, which encrypts what it writes."""

    def __init__(self, tcp: TcpTransport, layer: TlsLayer) -> None:
        self._tcp = tcp
        self._layer = layer
        self._socket = tcp.getHandle()
        # False after the socket has not accepted all bytes: from then on the order is that of Twisted's buffer.
        self._is_direct = True

    @property
    def bufferSize(self) -> int:
        return self._tcp.bufferSize

    @bufferSize.setter
    def bufferSize(self, size_bytes: int) -> None:
        self._tcp.bufferSize = size_bytes

    def getHandle(self) -> "_EncryptedTransport":
        return self

    def send(self, data: bytes) -> int:
        """Encrypt and send all of `data`; return its size."""
        self.write(data)
        return len(data)

    def write(self, data: bytes) -> None:
        try:
            self._layer.encrypt(data)
        except TlsError:
            self._tcp.abortConnection()
            return
        self.send_output()

    def send_output(self) -> None:
        """Send what the layer has to send."""
        output, sent_bytes = self._layer.take_output(), 0
        if not output:
            return
        if self._is_direct:
            with suppress(OSError):
                sent_bytes = self._socket.send(output)
        if sent_bytes < len(output):
            self._is_direct = False
            self._tcp.write(output[sent_bytes:])

    def setTcpNoDelay(self, enabled: bool) -> None:
        self._tcp.setTcpNoDelay(enabled)

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self._tcp.setTcpKeepAlive(enabled)

    def abortConnection(self) -> None:
        self._tcp.abortConnection()
