"""The failed step of a connection, and what to try."""

import socket
import ssl
import threading
from contextlib import closing
from datetime import UTC, datetime

import pytest

from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsResponse,
)
from odradek.server.security.tls.certificates import write_test_certificates
from odradek.tools.kafka.connection.connection_errors import (
    API,
    CONNECTION,
    NAME,
    TLS,
    InvalidRequestError,
    StepError,
    explain_failed_connect,
)
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity, WireClient
from odradek.tools.kafka.similar_names import find_similar, suggest


def connect(address, tls_context=None, timeout_s=5.0):
    with pytest.raises(StepError) as caught:
        WireClient(address, ClientSecurity(tls_context), timeout_s)
    error = caught.value
    assert str(error) == f"{address} does not answer: {error.step}: {error.reason} ({error.hint})"
    return error


def serve(handle):
    """Return the address of a server that passes its one connection to `handle`."""
    server = socket.create_server(("127.0.0.1", 0))

    def run():
        with server:
            connection, _ = server.accept()
            with closing(connection):
                handle(connection)

    threading.Thread(target=run, daemon=True).start()
    return Address(*server.getsockname())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates")
    write_test_certificates(directory, datetime.now(UTC))
    return directory


def client_context(certificates):
    return ssl.create_default_context(cafile=certificates / "ca.pem")


def tls_server(certificates, **options):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "broker.pem")
    for name, value in options.items():
        setattr(context, name, value)
    if options:
        context.load_verify_locations(certificates / "ca.pem")

    def handle(connection):
        try:
            with context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.recv(1000)
        except OSError:
            pass

    return serve(handle)


def test_the_name():
    error = connect(Address("no-such-host.invalid", 9092))
    assert error.step == NAME and "DNS" in error.hint


def test_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address(*free.getsockname())
    error = connect(address)
    assert (error.step, error.reason) == (CONNECTION, "Connection refused") and "is the broker running" in error.hint


def test_a_server_without_tls(certificates):
    error = connect(serve(lambda connection: connection.sendall(b"HTTP/1.1 400\r\n\r\n")), client_context(certificates))
    assert error.step == TLS and "security.protocol=PLAINTEXT" in error.hint


def test_a_server_without_tls_that_closes_the_connection(certificates):
    error = connect(serve(lambda connection: connection.recv(65536)), client_context(certificates))
    assert error.step == TLS and "security.protocol=PLAINTEXT" in error.hint


def test_an_unknown_authority(certificates):
    error = connect(tls_server(certificates), ssl.create_default_context())
    assert error.step == TLS and "ssl.truststore.location" in error.hint


def test_the_certificate_of_another_host(certificates):
    context = client_context(certificates)
    address = Address("127.0.0.1", tls_server(certificates).port)
    wrap = context.wrap_socket
    context.wrap_socket = lambda plain, server_hostname: wrap(plain, server_hostname="elsewhere.example")
    error = connect(address, context)
    assert error.step == TLS and "a host name that the broker's certificate contains" in error.hint


def test_a_certificate_that_is_required(certificates):
    error = connect(tls_server(certificates, verify_mode=ssl.CERT_REQUIRED), client_context(certificates))
    assert error.step in (TLS, API) and "certificate" in error.hint


def test_a_listener_with_tls(certificates):
    error = connect(tls_server(certificates))
    assert error.step == API and "set security.protocol" in error.hint


def test_a_server_that_is_silent():
    ended = threading.Event()
    error = connect(serve(lambda connection: ended.wait(30)), timeout_s=0.05)
    ended.set()
    assert (error.step, error.reason) == (API, "no response in time")


def test_similar_names():
    names = ["orders", "Orders-eu", "payments", "order-items"]
    assert find_similar("ordrs", names)[0] == "orders"
    assert find_similar("ORDERS", names)[:2] == ["orders", "Orders-eu"]
    assert "payments" in find_similar("pay", names)
    assert suggest("xyz", names) == "" and suggest("paymnts", names) == "; did you mean payments?"


@pytest.mark.parametrize(
    ("name", "partitions", "message"),
    [("t", 1 << 31, "a number is out of range: "), ("\udcff", 1, r"'\\udcff' is not UTF-8")],
)
def test_a_value_that_no_request_can_have(name, partitions, message):
    client = object.__new__(WireClient)
    client._correlation_id = 0
    topic = CreateTopicsRequestCreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    with pytest.raises(InvalidRequestError, match=message):
        client._exchange(CreateTopicsRequest(topics=[topic]), 5, CreateTopicsResponse)


@pytest.mark.parametrize("error", [ssl.SSLEOFError(8, "EOF occurred"), ssl.SSLZeroReturnError(6, "closed (EOF)")])
def test_a_port_without_tls_that_closes_the_connection(error):
    error.reason = None
    assert "try security.protocol=PLAINTEXT" in explain_failed_connect("host:1", error).hint
