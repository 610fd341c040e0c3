"""The web server: listens, and serves until it is interrupted."""

import socket
from collections.abc import Callable
from typing import Any, Final

import waitress

from odradek.tools.console.app import MAX_REQUEST_BYTES, make_app
from odradek.tools.console.console import Console
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.profile import Connection
from odradek.tools.kafka.wire_client import Address, ClientSecurity, WireClient

CONNECT_TIMEOUT_S: Final = 3.0
RESPONSE_TIMEOUT_S: Final = 15.0
RETRY_S: Final = 5.0
_THREADS: Final = 12
_MOST_CONNECTIONS: Final = 200


def make_console(connection: Connection, settings: ConsoleSettings) -> Console:
    """Return the console of a cluster."""

    def connect(address: Address, security: ClientSecurity) -> WireClient:
        return WireClient(address, security, CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S)

    def make_cluster() -> Cluster:
        return Cluster(connection, connect=connect, retry_s=RETRY_S)

    return Console(make_cluster, connection.bootstrap_servers, settings)


def listen(address: Address) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=128)


def make_server(console: Console, listening: socket.socket) -> Any:
    """Return the server of waitress for a console."""
    return waitress.create_server(
        make_app(console),
        sockets=[listening],
        threads=_THREADS,
        connection_limit=_MOST_CONNECTIONS,
        max_request_body_size=MAX_REQUEST_BYTES,
        channel_timeout=60,
        ident="odradek",
    )


def serve(console: Console, listening: socket.socket, report: Callable[[str], None]) -> None:
    """Serve pages until the process is interrupted; report the address when requests are accepted."""
    server = make_server(console, listening)
    host, port = listening.getsockname()[:2]
    report(f"http://{Address(host, port)}/")
    try:
        server.run()
    finally:
        server.close()
