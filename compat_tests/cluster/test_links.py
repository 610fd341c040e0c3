"""Links that are cut pass nothing until they are restored."""

import socket
from pathlib import Path

import pytest

from compat_tests import processes
from compat_tests.cluster.links import Links
from compat_tests.cluster.proxies import HOST, OTHERS

TIMEOUT_S = 30
SILENCE_S = 0.1
"""Wait for data that must not arrive."""


@pytest.fixture
def server():
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(TIMEOUT_S)
        yield server


@pytest.fixture
def links():
    own_program = Path("/proc/self/cmdline").read_text().split("\0")[0]
    with Links({"client": own_program}) as links:
        yield links


def accept(server):
    accepted, _ = server.accept()
    accepted.settimeout(TIMEOUT_S)
    return accepted


def is_silent(connection):
    connection.settimeout(SILENCE_S)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)


def test_a_connection_passes_data_and_its_end_when_its_link_is_restored(server, links):
    port = links.add("server", server.getsockname()[1])
    with socket.create_connection((HOST, port), TIMEOUT_S) as client, accept(server) as accepted:
        client.sendall(b"a")
        assert accepted.recv(1) == b"a"
        links.cut({("client", "server")})
        client.sendall(b"b")
        client.shutdown(socket.SHUT_WR)
        accepted.sendall(b"c")
        assert is_silent(accepted) and is_silent(client)
        links.restore({("client", "server")})
        assert client.recv(1) == b"c"
        assert accepted.recv(1) == b"b"
        assert accepted.recv(1) == b""


def test_a_new_connection_waits_for_its_link(server, links):
    port = links.add("server", server.getsockname()[1])
    links.cut({("client", "server")})
    with socket.create_connection((HOST, port), TIMEOUT_S) as client:
        client.sendall(b"a")
        server.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            server.accept()
        server.settimeout(TIMEOUT_S)
        links.restore({("client", "server")})
        with accept(server) as accepted:
            assert accepted.recv(1) == b"a"


def test_other_links_of_a_server_are_not_cut(server, links):
    port = links.add("server", server.getsockname()[1])
    links.cut({(OTHERS, "server"), ("client", "other")})
    with socket.create_connection((HOST, port), TIMEOUT_S) as client, accept(server) as accepted:
        client.sendall(b"a")
        assert accepted.recv(1) == b"a"


def test_a_connection_to_a_server_that_is_down_ends(links):
    down = processes.lasting_port()
    with socket.create_connection((HOST, links.add("server", down)), TIMEOUT_S) as client:
        assert client.recv(1) == b""
