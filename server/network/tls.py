"""Connections with TLS.

`TlsTransport` is between Twisted's TCP transport and a `KafkaTransport`: it decrypts what arrives. `TlsWriter` encrypts
responses for a `SocketWriter`. A response of file regions is read and encrypted in parts, each when the socket has
accepted the one before it, so that it is never in memory as a whole.
"""

import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from odradek.log.storage.filesystem import FileRegion
from odradek.server.measurements.authentications import AuthenticationCounts
from odradek.server.network.connection_transport import Piece, TcpTransport, count_bytes
from odradek.server.network.transport import READ_BYTES, KafkaTransport, KafkaTransportFactory
from odradek.server.network.writers.region_loader import FileSender, RegionLoader
from odradek.server.network.writers.socket_writer import ITERATION_LIMIT_BYTES, MIN_PIECE_BYTES, SocketWriter
from odradek.server.security.principal import Principal
from odradek.server.security.tls.layer import TlsError, TlsLayer
from odradek.server.security.tls.principal_mapping import NoPrincipalError

if TYPE_CHECKING:
    from odradek.server.measurements.socket_counts import SocketCounts

logger = logging.getLogger(__name__)

FindPrincipal = Callable[[bytes | None], Principal]
"""Returns the principal of a client with a certificate, in DER, or without one. Raises NoPrincipalError."""

_PART_BYTES: Final = 65_536
"""Plaintext bytes that are encrypted at once, which takes 25 us.

From 128 KiB on the C library would map and unmap memory for each part."""


class TlsWriter:
    """Encrypts pieces, bytes and file regions, in order, and sends them through a `SocketWriter`.

    As there, small responses wait for the end of the reactor iteration.

    files: reads the file regions
    counts: of the listener; None if they are not used
    """

    def __init__(
        self,
        layer: TlsLayer,
        make_writer: Callable[[Callable[[], None]], SocketWriter],
        files: FileSender,
        on_drained: Callable[[], None],
        counts: "SocketCounts | None" = None,
    ) -> None:
        self._counts = counts
        self._layer = layer
        self._socket = make_writer(self._socket_drained)
        self._on_drained = on_drained
        self._queue: deque[Piece] = deque()
        self._region_read_bytes = 0
        self._loader = RegionLoader(files, self._continue)
        self._has_ended = False

    @property
    def has_progressed(self) -> bool:
        """True if the socket has accepted bytes since this was reset."""
        return self._socket.has_progressed

    @has_progressed.setter
    def has_progressed(self, value: bool) -> None:
        self._socket.has_progressed = value

    @property
    def is_idle(self) -> bool:
        """True if the socket has accepted all bytes, except those that wait for the end of the iteration."""
        return not self._queue and self._socket.is_idle

    @property
    def is_loading(self) -> bool:
        """True while a part of a file region is read from the disk."""
        return self._loader.is_loading

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not accepted."""
        return self._socket.unsent_bytes - self._region_read_bytes + count_bytes(self._queue)

    def send_output(self) -> None:
        """Send what the layer has to send besides responses: parts of the handshake, alerts, keys."""
        output = self._layer.take_output()
        if output:
            self._socket.send([output])

    def send_one(self, data: bytearray) -> None:
        """Send a response of one piece at the end of the iteration."""
        if self._has_ended:
            return
        if self._counts is not None:
            self._counts.responses += 1
        if self._queue:
            self._queue.append(data)
            return
        try:
            self._layer.encrypt(data)
        except TlsError as error:
            self._fail(error)
            return
        if self._counts is not None:
            self._counts.sent_bytes += len(data)
        self._socket.send_one(bytearray(self._layer.take_output()))

    def send(self, pieces: list[Piece]) -> None:
        """Send a response of several pieces."""
        if self._has_ended:
            return
        if self._counts is not None:
            self._counts.responses += 1
        self._queue.extend(pieces)
        self._send_queue()

    def flush(self) -> None:
        """Send the responses that wait for the end of the iteration."""
        self._socket.flush()

    def end(self) -> None:
        """Send close_notify after all responses before; later ones are dropped. Without effect unless idle."""
        if self._layer.is_established and self.is_idle:
            self._has_ended = True
            self._layer.end()
            output = self._layer.take_output()
            if output:
                self._socket.send_one(bytearray(output))

    def abort(self) -> None:
        """Drop unsent bytes, and close the connection at once."""
        self._queue.clear()
        self._loader.close()
        self._socket.abort()

    def close(self) -> None:
        """Drop unsent bytes: the connection is closed, or about to be closed."""
        self._queue.clear()
        self._loader.close()
        self._socket.close()

    def _continue(self) -> None:
        """Continue at the next write event, because a part of a file region is loaded."""
        self._socket.wait_for_room()

    def _socket_drained(self) -> None:
        self._send_queue()
        if self.is_idle:
            self._on_drained()

    def _send_queue(self) -> None:
        """Encrypt and send parts until the queue is empty, or the socket, the disk or the limit prevents it."""
        budget_bytes = ITERATION_LIMIT_BYTES
        try:
            while self._queue and self._socket.is_idle:
                if budget_bytes <= 0:
                    self._socket.wait_for_room()
                    return
                counted_bytes = self._encrypt_part()
                if not counted_bytes:
                    return
                budget_bytes -= counted_bytes
                self._socket.send([self._layer.take_output()])
        except (OSError, TlsError) as error:
            self._fail(error)

    def _encrypt_part(self) -> int:
        """Encrypt the next part of the queue; return its size, 0 if it is being loaded. Raises OSError, TlsError.

        As in `SocketWriter`, a small piece counts as a larger one.
        """
        queue, part_bytes = self._queue, 0
        pieces: list[bytes | bytearray | memoryview] = []
        while queue and part_bytes < _PART_BYTES:
            piece = queue[0]
            wanted = _PART_BYTES - part_bytes
            if isinstance(piece, (bytes, bytearray, memoryview)):
                data: bytes | bytearray | memoryview = memoryview(piece)[:wanted]
                rest = memoryview(piece)[wanted:]
                if rest:
                    queue[0] = rest
                else:
                    queue.popleft()
            else:
                records = self._read_region(piece, wanted)  # type: ignore[arg-type] # of a log
                if records is None:
                    break
                data = records
            pieces.append(data)
            part_bytes += len(data)
        if part_bytes:
            # Each call makes a TLS record, which costs more than the copy of small pieces.
            self._layer.encrypt(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._counts is not None:
            self._counts.sent_bytes += part_bytes
        return max(part_bytes, len(pieces) * MIN_PIECE_BYTES)

    def _read_region(self, region: FileRegion, wanted: int) -> bytes | bytearray | None:
        """Read up to `wanted` bytes of the region at the head of the queue; return None if they are being loaded."""
        already = self._region_read_bytes
        data = self._loader.read(region, already, min(wanted, region.size_bytes - already))
        if data is None:
            return None
        self._region_read_bytes += len(data)
        if self._region_read_bytes == region.size_bytes:
            self._region_read_bytes = 0
            self._loader.end_region()
            self._queue.popleft()
        return data

    def _fail(self, error: Exception) -> None:
        logger.debug("write failed error=%s", error)
        self.abort()


@implementer(IHalfCloseableProtocol)
class TlsTransport(TwistedProtocol):
    """Decrypts what arrives on one connection for a `KafkaTransport`.

    find_principal: determines the client's principal at the end of the handshake; None if the client proves it by SASL
    """

    def __init__(
        self,
        plain: KafkaTransport,
        layer: TlsLayer,
        find_principal: FindPrincipal | None = None,
        counts: AuthenticationCounts | None = None,
    ) -> None:
        self._counts = counts or AuthenticationCounts()
        self._plain = plain
        self._layer = layer
        self._find_principal = find_principal

    def connectionMade(self) -> None:
        self._plain.makeConnection(self.transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        layer, plain = self._layer, self._plain
        writer = plain.writer
        assert isinstance(writer, TlsWriter)
        try:
            plaintext = layer.receive(data)
        except TlsError as error:
            writer.send_output()
            what = "TLS failed"
            if not layer.is_established:
                what = "the TLS handshake failed"
                self._counts.failed += 1
            plain.refuse(f"{what}: {error}")
            return
        writer.send_output()
        if self._find_principal is not None and layer.is_established and not self._authenticate():
            return
        if plaintext:
            plain.dataReceived(plaintext)
        if layer.has_ended:
            plain.readConnectionLost()

    def _authenticate(self) -> bool:
        """Set the principal of the client, before its first request; return False if it has none."""
        assert self._find_principal is not None
        try:
            self._plain.connection.context.principal = self._find_principal(self._layer.peer_certificate)
        except NoPrincipalError as error:
            self._counts.failed += 1
            self._plain.refuse(f"authentication failed: {error}")
            return False
        self._find_principal = None
        self._counts.successful += 1
        return True

    def readConnectionLost(self) -> None:
        """Twisted: the client has closed its side."""
        self._plain.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """Twisted: never called, because the broker never closes only its own side."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._plain.connectionLost(reason)


class TlsTransportFactory(Factory):
    """Makes a `TlsTransport` for each connection accepted on a listener.

    context: returns the TLS context of new connections
    find_principal: see TlsTransport
    counts: of the handshakes, on a listener where they authenticate the client
    socket_counts: of the listener; None if they are not used
    """

    noisy = False

    def __init__(
        self,
        plain: KafkaTransportFactory,
        context: Callable[[], ssl.SSLContext],
        files: FileSender,
        find_principal: FindPrincipal | None = None,
        counts: AuthenticationCounts | None = None,
        socket_counts: "SocketCounts | None" = None,
    ) -> None:
        self._counts = counts or AuthenticationCounts()
        self._socket_counts = socket_counts
        self._plain = plain
        self._find_principal = find_principal
        self._context = context
        self._files = files

    def buildProtocol(self, addr: IAddress | None) -> TwistedProtocol | None:
        held = self._plain.hold(addr)
        if held is not None:
            return held
        layer = TlsLayer(self._context())

        def make_writer(transport: TcpTransport, on_drained: Callable[[], None]) -> TlsWriter:
            def make_socket_writer(on_socket_drained: Callable[[], None]) -> SocketWriter:
                return SocketWriter(transport, transport.reactor.write_coalescer, self._files, on_socket_drained)

            return TlsWriter(layer, make_socket_writer, self._files, on_drained, self._socket_counts)

        plain = self._plain.build(addr, make_writer)
        if plain is None:
            return None
        # A larger read may have so many small records that their decryption holds the reactor for 0.1 s.
        plain.large_read_bytes = READ_BYTES
        return TlsTransport(plain, layer, self._find_principal, self._counts)
