"""The web server: listens, and serves until it is interrupted."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import waitress
from waitress.channel import HTTPChannel

from odradek.tools.console.app import MAX_REQUEST_BYTES, make_app
from odradek.tools.console.cluster_pool import BusyError
from odradek.tools.console.console import Console, write_to_standard_error
from odradek.tools.console.lag_history import SAMPLE_S
from odradek.tools.console.pages.groups import sample_lag
from odradek.tools.console.records.schemas import Schemas, make_schema_decoder, read_schema_files
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.connection.profile import Connection, ProfileError, make_security
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity, WireClient

CONNECT_TIMEOUT_S: Final = 3.0
RESPONSE_TIMEOUT_S: Final = 15.0
RETRY_S: Final = 5.0
_THREADS: Final = 16
_MOST_CONNECTIONS: Final = 200


def make_console(
    connection: Connection, settings: ConsoleSettings, report: Callable[[str], None] = write_to_standard_error
) -> Console:
    """Return the console of a cluster.

    Raises ProfileError, and InvalidOptionError for the address of the schema registry or a schema file.
    """
    make_security(connection)

    def connect(address: Address, security: ClientSecurity) -> WireClient:
        return WireClient(address, security, CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S)

    def make_cluster() -> Cluster:
        return Cluster(connection, connect=connect, retry_s=RETRY_S)

    registry = None
    if connection.schema_registry_url is not None:
        registry = make_schema_decoder(connection.properties, time.monotonic)
    schemas = Schemas(registry, read_schema_files(settings.schema_files))
    return Console(make_cluster, connection.bootstrap_servers, settings, schemas=schemas, report=report)


def listen(address: Address) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=128)


def make_server(console: Console, listening: socket.socket) -> Any:
    """Return the server of waitress for a console."""
    # Waitress warns of each request that waits for a thread, which is usual while its threads start.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = waitress.create_server(
        make_app(console),
        sockets=[listening],
        threads=_THREADS,
        connection_limit=_MOST_CONNECTIONS,
        max_request_body_size=MAX_REQUEST_BYTES,
        channel_timeout=60,
        # The login reads X-Forwarded-Proto, which waitress would remove.
        clear_untrusted_proxy_headers=False,
        ident="odradek",
    )
    server.channel_class = _Channel
    return server


class _Channel(HTTPChannel):  # type: ignore[misc] # waitress has no types
    """A connection that serves one request at a time, and is closed if its client does not read.

    Waitress serves requests that follow without waiting for the response. If their client does not read, a thread waits
    for it without limit once some megabytes are unsent. The first response has `Connection: close`, so that the client
    sends the others again.
    """

    def writable(self) -> bool:
        """Waitress: return whether `handle_write` is called when the socket is writable."""
        if self.will_close:
            # Waitress closes an idle connection in `handle_write`. A socket that is full becomes writable by this.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        return bool(super().writable())

    def service(self) -> None:
        """Waitress: serve the first request, in a thread."""
        requests: list[Any] = self.requests
        with self.requests_lock:
            others = requests[1:]
            del requests[1:]
        if others:
            requests[0].headers["CONNECTION"] = "close"
        for request in others:
            request.close()
        super().service()


def serve(console: Console, listening: socket.socket, report: Callable[[str], None]) -> None:
    """Serve pages until the process is interrupted; report the address when requests are accepted."""
    server = make_server(console, listening)
    stop = threading.Event()
    threading.Thread(target=_sample_lag, args=(console, stop), name="lag", daemon=True).start()
    host, port = listening.getsockname()[:2]
    report(f"http://{Address(host, port)}/")
    try:
        server.run()
    finally:
        stop.set()
        server.close()


def _sample_lag(console: Console, stop: threading.Event) -> None:
    """Sample the lag of groups until `stop` is set. A cluster that does not answer leaves a gap.

    So does a file of certificates that is being replaced, which is a ProfileError.
    """
    while not stop.is_set():
        with suppress(BusyError, NoResponseError, RequestError, ProfileError):
            sample_lag(console)
        stop.wait(SAMPLE_S)
