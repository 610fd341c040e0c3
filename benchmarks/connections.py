"""Connections of the loads: plaintext or TLS, with or without SASL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import ssl
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from benchmarks import wire

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
TIMEOUT_S = 10.0

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors of a non-blocking connection that has nothing to receive, or no room to send."""


class Security(NamedTuple):
    """The way in which a load connects.

    ca: file of the trusted authority, empty for plaintext
    mechanism: empty without SASL
    """

    ca: str = ""
    mechanism: str = ""
    user: str = ""
    password: str = ""


NO_SECURITY = Security()


@lru_cache(maxsize=4)
def _tls_context(ca: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    return context


def connect(host: str, port: int, security: Security = NO_SECURITY) -> socket.socket:
    """Return a blocking connection that is ready for requests. Raises OSError and WireError."""
    connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security.ca:
            connection = _tls_context(security.ca).wrap_socket(connection)
        if security.mechanism:
            _authenticate(connection, security)
        elif security.ca:
            # The session tickets of TLS 1.3 precede the first response.
            exchange(connection, wire.frame(wire.API_VERSIONS, 0, b""))
    except BaseException:
        connection.close()
        raise
    return connection


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """Return the complete response to a frame, its size field included."""
    connection.sendall(request)
    size = _receive(connection, 4)
    return size + _receive(connection, int.from_bytes(size, "big"))


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise wire.WireError("the broker closed the connection")
        received += chunk
    return bytes(received)


# -- SASL --------------------------------------------------------------------------------------------------------------


def _authenticate(connection: socket.socket, security: Security) -> None:
    name = security.mechanism.encode()
    answer = exchange(connection, wire.frame(SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name))
    if answer[8:10] != b"\0\0":
        raise wire.WireError(f"{security.mechanism} is not enabled")

    def send(token: bytes) -> bytes:
        body = struct.pack(">i", len(token)) + token
        answer = exchange(connection, wire.frame(SASL_AUTHENTICATE, 0, body))
        if answer[8:10] != b"\0\0":
            raise wire.WireError(f"authentication failed: error {int.from_bytes(answer[8:10], 'big')}")
        message_bytes = max(0, int.from_bytes(answer[10:12], "big", signed=True))
        return answer[12 + message_bytes + 4 :]

    if security.mechanism == "PLAIN":
        send(f"\0{security.user}\0{security.password}".encode())
    else:
        _authenticate_with_scram(send, security)


def _authenticate_with_scram(send: Callable[[bytes], bytes], security: Security) -> None:
    """Authenticate with SCRAM (RFC 5802), and verify the broker's signature."""
    algorithm = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[security.mechanism]
    first = f"n={security.user},r={base64.b64encode(os.urandom(18)).decode()}"
    challenge = send(f"n,,{first}".encode()).decode()
    parts = dict(part.split("=", 1) for part in challenge.split(","))
    salted = _salted(algorithm, security.password, parts["s"], int(parts["i"]))
    final = f"c=biws,r={parts['r']}"
    signed = f"{first},{challenge},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), signed, algorithm)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    answer = send(f"{final},p={base64.b64encode(proof).decode()}".encode()).decode()
    server_key = hmac.digest(salted, b"Server Key", algorithm)
    if answer != f"v={base64.b64encode(hmac.digest(server_key, signed, algorithm)).decode()}":
        raise wire.WireError("the broker's signature is wrong")


@lru_cache(maxsize=4)
def _salted(algorithm: str, password: str, salt: str, iterations: int) -> bytes:
    """Return the salted password. It is cached, as clients do, so that the load is the broker's work."""
    return hashlib.pbkdf2_hmac(algorithm, password.encode(), base64.b64decode(salt), iterations)
