"""Encryption and decryption of one connection, without I/O: bytes of the network in and out.

Python's `ssl` module is faster for small requests than pyOpenSSL, which calls OpenSSL through cffi: decryption of a
request and encryption of its response take 4 us instead of 11, and large ones the same time.
"""

import ssl
from contextlib import suppress
from typing import Final

_READ_BYTES: Final = 65_536

_CHUNK_BYTES: Final = 32_768
"""Bytes that OpenSSL gets at once. Its buffers keep their largest size while the connection exists."""

_MAX_OVERHEAD_FACTOR: Final = 8
_MAX_OVERHEAD_BYTES: Final = 65_536
"""Bytes that may arrive beyond `_MAX_OVERHEAD_FACTOR` bytes for each byte of plaintext. A record of four bytes has a
factor of seven. Key updates and records of one byte take 5 us each; a peer that sends only those is refused."""


class TlsError(Exception):
    """The peer has sent bytes that are not TLS, or the handshake has failed; `str()` has the reason."""


class TlsLayer:
    """The TLS state of a connection.

    is_established: the handshake is complete
    has_ended: the peer has sent close_notify; no more plaintext follows
    """

    __slots__ = ("_encrypted", "_incoming", "_outgoing", "_overhead_bytes", "_tls", "has_ended", "is_established")

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None, is_server: bool = True) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=server_name)
        self._encrypted: list[bytes] = []
        self._overhead_bytes = 0
        self.is_established = self.has_ended = False

    @property
    def peer_certificate(self) -> bytes | None:
        """The verified certificate of the peer in DER, once `is_established`; None if it has none."""
        return self._tls.getpeercert(binary_form=True)

    def receive(self, data: bytes) -> bytes:
        """Process bytes of the network; return the plaintext. `take_output` returns the bytes to send then.

        Bytes after the peer's close_notify are dropped. Raises TlsError; then `take_output` may return an alert.
        """
        pieces: list[bytes] = []
        try:
            if len(data) <= _CHUNK_BYTES:
                self._receive_chunk(data, pieces)
            else:
                view = memoryview(data)
                for at in range(0, len(data), _CHUNK_BYTES):
                    self._receive_chunk(view[at : at + _CHUNK_BYTES], pieces)
        except (ssl.SSLError, ssl.CertificateError, ValueError) as error:
            raise TlsError(_describe(error)) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _receive_chunk(self, chunk: bytes | memoryview, pieces: list[bytes]) -> None:
        """Process bytes of the network; append the plaintext to `pieces`."""
        if self.has_ended:
            return
        self._incoming.write(chunk)
        if not self.is_established and not self._shake_hands():
            return
        overhead_bytes = self._overhead_bytes + len(chunk) - _MAX_OVERHEAD_FACTOR * self._read(pieces)
        self._overhead_bytes = max(0, overhead_bytes)
        if overhead_bytes > _MAX_OVERHEAD_BYTES:
            raise TlsError("the records have almost no data")

    def begin(self) -> None:
        """Begin the handshake as the client. `take_output` returns the bytes to send."""
        self._shake_hands()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_established = True
        return True

    def _read(self, pieces: list[bytes]) -> int:
        """Append the plaintext of all complete records to `pieces`; return its size."""
        read, size_bytes = self._tls.read, 0
        try:
            while piece := read(_READ_BYTES):
                pieces.append(piece)
                size_bytes += len(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return size_bytes

    def encrypt(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt plaintext. Call it only while `is_established`. `take_output` returns the result.

        Raises TlsError.
        """
        try:
            if len(data) <= _CHUNK_BYTES:
                self._tls.write(data)
                return
            view = memoryview(data)
            for at in range(0, len(data), _CHUNK_BYTES):
                self._tls.write(view[at : at + _CHUNK_BYTES])
                self._encrypted.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise TlsError(_describe(error)) from error

    def end(self) -> None:
        """Encrypt close_notify, so that the peer can distinguish the end from an attack."""
        # The usual exception is SSLWantReadError: the peer's own close_notify is not awaited.
        with suppress(ssl.SSLError, OSError, ValueError):
            self._tls.unwrap()

    def take_output(self) -> bytes:
        """Take the bytes that must be sent."""
        last = self._outgoing.read() if self._outgoing.pending else b""
        if not self._encrypted:
            return last
        encrypted, self._encrypted = self._encrypted, []
        encrypted.append(last)
        return b"".join(encrypted)


def _describe(error: Exception) -> str:
    """Return OpenSSL's reason, such as "certificate verify failed: unable to get local issuer certificate"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error)
