"""Properties of TLS and SASL that change while the broker runs: new connections use them, others go on."""

import socket
import ssl
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest
from odradek.server.security.tls.certificates import write_test_certificates
from odradek.server.security.tls.tests.support import tls_properties
from odradek.server.tests.test_dynamic_configs import BROKER, DELETE, SET, Admin
from odradek.server.tests.wire import Wire, request_frame
from odradek.testing import OdradekBroker

PREFIX = "listener.name.clients."
JAAS = f"{PREFIX}plain.sasl.jaas.config"
MECHANISMS = f"{PREFIX}sasl.enabled.mechanisms"
SASL = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "password.encoder.secret": "a secret",
    MECHANISMS: "PLAIN",
}


def make_jaas(password, user="alice"):
    return f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";'


def port_of_clients(broker):
    return int(broker.addresses[1].rpartition(":")[2])


def log_in(wire, password, mechanism="PLAIN"):
    """Return the enabled mechanisms if the mechanism is not, otherwise the error of the authentication."""
    handshake = wire.ask(SaslHandshakeRequest(mechanism=mechanism))
    if handshake.error_code:
        return handshake.mechanisms
    return wire.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0" + password.encode())).error_code


def try_to_log_in(broker, password, mechanism="PLAIN"):
    with Wire(port_of_clients(broker)) as wire:
        return log_in(wire, password, mechanism)


@pytest.fixture
def broker():
    with OdradekBroker({**SASL, JAAS: make_jaas("hunter1")}) as broker:
        yield broker


def test_the_users_of_plain_change(broker):
    admin = Admin(broker)
    with Wire(port_of_clients(broker)) as present:
        assert log_in(present, "hunter1") == 0
        assert admin.alter(BROKER, "1", (JAAS, SET, make_jaas("hunter2"))) == 0
        assert present.metadata().cluster_id, "the client that is authenticated goes on"
        assert try_to_log_in(broker, "hunter1") == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert try_to_log_in(broker, "hunter2") == 0
    broker.restart()
    assert try_to_log_in(broker, "hunter1") == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert try_to_log_in(broker, "hunter2") == 0
    assert admin.alter(BROKER, "1", (JAAS, DELETE, None)) == 0
    assert try_to_log_in(broker, "hunter1") == 0
    assert "hunter" not in broker.log_text()


def test_a_handshake_before_the_change_ends_with_the_properties_before_it(broker):
    with Wire(port_of_clients(broker)) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
        assert Admin(broker).alter(BROKER, "1", (MECHANISMS, SET, "SCRAM-SHA-256")) == 0
        assert wire.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter1")).error_code == 0
        assert wire.metadata().cluster_id


def test_the_enabled_mechanisms_change(broker):
    admin = Admin(broker)
    assert try_to_log_in(broker, "", "SCRAM-SHA-256") == ["PLAIN"]
    assert admin.alter(BROKER, "1", (MECHANISMS, SET, "SCRAM-SHA-256")) == 0
    assert try_to_log_in(broker, "hunter1") == ["SCRAM-SHA-256"]
    with Wire(port_of_clients(broker)) as wire:
        assert wire.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256")).error_code == 0
        first = wire.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=nobody,r=x"))
        assert first.error_code == 0 and first.auth_bytes.startswith(b"r=x")
    assert admin.alter(BROKER, "1", (MECHANISMS, DELETE, None)) == 0
    assert try_to_log_in(broker, "hunter1") == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (JAAS, "hunter2"),
        (JAAS, 'org.apache.kafka.common.security.scram.ScramLoginModule required user_a="hunter2";'),
        (MECHANISMS, "PLAIN,UNKNOWN"),
        (MECHANISMS, ""),
        (MECHANISMS, "PLAIN,OAUTHBEARER"),
    ],
    ids=["no module", "another module", "unknown", "none", "incomplete"],
)
def test_what_would_not_be_accepted_at_start_is_refused(broker, name, value):
    assert Admin(broker).alter(BROKER, "1", (name, SET, value)) == ErrorCode.INVALID_REQUEST
    assert try_to_log_in(broker, "hunter1") == 0
    assert "hunter" not in broker.log_text()


def test_a_stored_value_that_cannot_be_used_leaves_the_last_ones(broker):
    """As after a change of the static properties that it was checked with."""
    assert Admin(broker).alter(BROKER, "1", (MECHANISMS, SET, "PLAIN,SCRAM-SHA-256"), (JAAS, SET, make_jaas("b"))) == 0
    broker.stop()
    broker.properties["password.encoder.secret"] = "another secret"
    broker.start()
    assert try_to_log_in(broker, "hunter1") == 0
    assert f"ignoring stored password name={JAAS}" in broker.log_text()


@contextmanager
def connect(broker, directory, certificate=None):
    """Connect with TLS; the context's value sends one request and returns whether it is answered."""
    context = ssl.create_default_context(cafile=directory / "ca.pem")
    if certificate is not None:
        context.load_cert_chain(directory / certificate)
    with (
        socket.create_connection(("127.0.0.1", port_of_clients(broker)), 15) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):

        def is_served():
            try:
                tls.sendall(request_frame(MetadataRequest(topics=[]), 9))
                return len(tls.recv(4)) == 4 and bool(tls.recv(1 << 16))
            except (ssl.SSLError, ConnectionError):
                return False

        yield is_served


def test_certificates_of_clients_become_required(tmp_path):
    write_test_certificates(tmp_path, datetime.now(UTC))
    properties = {
        **tls_properties(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SSL",
        "security.inter.broker.protocol": "PLAINTEXT",
    }
    with OdradekBroker(properties) as broker, connect(broker, tmp_path) as is_served:
        admin = Admin(broker)
        assert is_served()
        assert admin.alter(BROKER, "1", (f"{PREFIX}ssl.client.auth", SET, "required")) == 0
        assert is_served(), "the connection that existed goes on"
        for certificate, expected in ((None, False), ("client.pem", True)):
            with connect(broker, tmp_path, certificate) as is_new_served:
                assert is_new_served() == expected
        broker.restart()
        with connect(broker, tmp_path) as is_new_served:
            assert not is_new_served()
        assert admin.alter(BROKER, "1", (f"{PREFIX}ssl.client.auth", DELETE, None)) == 0
        with connect(broker, tmp_path) as is_new_served:
            assert is_new_served()
        assert admin.alter(BROKER, "1", (f"{PREFIX}ssl.enabled.protocols", SET, "TLSv1.2")) == 0
        with connect(broker, tmp_path) as is_new_served:
            assert is_new_served()
        assert admin.alter(BROKER, "1", (f"{PREFIX}ssl.cipher.suites", SET, "NO_SUCH_SUITE")) != 0
