"""The web server of the console."""

import socket
import threading
from contextlib import ExitStack

from odradek.tools.console.server import listen, make_console, make_server
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.profile import Connection
from odradek.tools.kafka.wire_client import Address

LARGE = bytes(5_000_000)
TIMEOUT_S = 10


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


def test_clients_that_do_not_read_occupy_no_threads():
    def respond(environ, start_response):
        start_response("200 OK", [("Content-Length", str(len(LARGE)))])
        return [LARGE]

    console = make_console(Connection([Address("127.0.0.1", 1)], {}), ConsoleSettings())
    with listen(Address("127.0.0.1", 0)) as listening, ExitStack() as stack:
        server = make_server(console, listening)
        server.application = respond
        threading.Thread(target=server.run, daemon=True).start()
        address = listening.getsockname()
        for _ in range(server.adj.threads + 1):
            silent = stack.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(address)
            silent.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8)
        with stack.enter_context(socket.create_connection(address, timeout=TIMEOUT_S)) as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
            received = b"".join(iter(lambda: other.recv(1 << 20), b""))
        server.close()
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert body == LARGE
