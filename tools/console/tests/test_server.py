"""The web server of the console."""

import socket
import threading
import time
from contextlib import ExitStack, contextmanager

from odradek.tools.console.server import listen, make_console, make_server
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.connection.profile import Connection
from odradek.tools.kafka.connection.wire_client import Address

LARGE = bytes(5_000_000)
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TIMEOUT_S = 60


def until(condition):
    """Wait until a condition holds."""
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_requests_that_wait_for_a_thread_are_no_warnings(caplog):
    console = make_console(Connection([Address("127.0.0.1", 1)], {}), ConsoleSettings())
    with listen(Address("127.0.0.1", 0)) as listening:
        server = make_server(console, listening)
        server.task_dispatcher.set_thread_count(0)
        server.task_dispatcher.add_task(None)
        server.task_dispatcher.queue.clear()
        server.task_dispatcher.shutdown()
        server.close()
    assert not [record for record in caplog.records if record.name == "waitress.queue"]


@contextmanager
def serve(**settings):
    """Serve a large response; yield the server and its address."""

    def respond(environ, start_response):
        start_response("200 OK", [("Content-Length", str(len(LARGE)))])
        return [LARGE]

    console = make_console(Connection([Address("127.0.0.1", 1)], {}), ConsoleSettings())
    with listen(Address("127.0.0.1", 0)) as listening:
        server = make_server(console, listening)
        server.application = respond
        for name, value in settings.items():
            setattr(server.adj, name, value)
        threading.Thread(target=server.run, daemon=True).start()
        try:
            yield server, listening.getsockname()
        finally:
            server.close()


@contextmanager
def open_silent(address, requests):
    """Open a connection that sends requests and does not read."""
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(address)
        silent.sendall(REQUEST * requests)
        yield


def test_clients_that_do_not_read_occupy_no_threads():
    with serve() as (server, address), ExitStack() as stack:
        for _ in range(server.adj.threads + 1):
            stack.enter_context(open_silent(address, 8))
        with socket.create_connection(address, timeout=TIMEOUT_S) as other:
            other.sendall(REQUEST * 2)
            received = b"".join(iter(lambda: other.recv(1 << 20), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert body == LARGE


def test_connections_of_clients_that_do_not_read_are_closed():
    with serve(channel_timeout=1, cleanup_interval=0) as (server, address), open_silent(address, 1):
        until(lambda: server.active_channels)
        until(lambda: not server.active_channels)
