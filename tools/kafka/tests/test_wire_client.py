"""The blocking client of one broker, against servers that misbehave."""

import socket
import threading

import pytest

from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.connection.wire_client import Address, WireClient


@pytest.mark.timeout(30)
def test_a_server_that_sends_byte_by_byte_does_not_hold_a_command():
    server = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def answer():
        connection, _ = server.accept()
        with connection:
            connection.sendall((1000).to_bytes(4, "big"))
            while not is_over.wait(0.05):
                try:
                    connection.sendall(b"\0")
                except OSError:
                    return

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        with pytest.raises(NoResponseError, match=r"timed out|no response|does not answer"):
            WireClient(Address("127.0.0.1", server.getsockname()[1]), timeout_s=0.3)
    finally:
        is_over.set()
        thread.join()
        server.close()
