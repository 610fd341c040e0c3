"""The principal of a connection with TLS: set at the end of the handshake, before the first request."""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.properties import PropertyError
from odradek.server.config import parse_config
from odradek.server.config.broker import BrokerConfig
from odradek.server.config.loading import _find_ignored_client_auth
from odradek.server.network.tls import TlsTransport, TlsWriter
from odradek.server.security.principal import ANONYMOUS
from odradek.server.security.tls.certificates import write_test_certificates
from odradek.server.security.tls.contexts import make_client_context, make_principal_mapper, make_server_context
from odradek.server.security.tls.layer import TlsLayer
from odradek.server.security.tls.tests.support import tls_properties


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    write_test_certificates(path, datetime.now(UTC))
    return path


class Server:
    """A listener with one connection. `requests` has the plaintext with the principal at that time."""

    def __init__(self, directory: Path, **properties: str) -> None:
        settings = BrokerConfig(tls_properties(directory, **properties)).tls_settings("SSL")
        self.settings = settings
        self.context = make_server_context(settings)
        self.requests: list[tuple[bytes, str]] = []
        self.refusals: list[str] = []

    def accept(self, *, is_sasl: bool = False) -> TlsTransport:
        context = SimpleNamespace(principal=ANONYMOUS)
        layer = TlsLayer(self.context)
        self.output: list[bytes] = []
        socket: Any = SimpleNamespace(send=self.output.extend)
        files: Any = SimpleNamespace(run_read=None, monotonic=None)
        plain: Any = SimpleNamespace(
            connection=SimpleNamespace(context=context),
            writer=TlsWriter(layer, lambda on_drained: socket, files, lambda: None),
            dataReceived=lambda data: self.requests.append((data, str(context.principal))),
            refuse=self.refusals.append,
        )
        find = None if is_sasl else make_principal_mapper(self.settings).find_principal
        return TlsTransport(plain, layer, find)

    def take_output(self) -> bytes:
        data = b"".join(self.output)
        self.output.clear()
        return data


def client_context(directory: Path, key: str | None) -> ssl.SSLContext:
    properties = tls_properties(directory)
    if key is None:
        del properties["ssl.keystore.location"]
    else:
        properties["ssl.keystore.location"] = str(directory / key)
    return make_client_context(BrokerConfig(properties).tls_settings("SSL"))


def connect(
    server: Server, context: ssl.SSLContext, *, is_sasl: bool = False, session: ssl.SSLSession | None = None
) -> TlsLayer:
    """Shake hands, and send a request in the same bytes as the end of the handshake."""
    transport = server.accept(is_sasl=is_sasl)
    client = TlsLayer(context, server_name="localhost", is_server=False)
    if session is not None:
        client._tls.session = session
    client.begin()
    has_sent = False
    for _ in range(3):
        data = client.take_output()
        if client.is_established and not has_sent:
            client.encrypt(b"request")
            data += client.take_output()
            has_sent = True
        transport.dataReceived(data)
        client.receive(server.take_output())
    return client


@pytest.mark.parametrize("versions", ["TLSv1.3", "TLSv1.2"])
@pytest.mark.parametrize(
    ("rules", "key", "expected"),
    [
        ("DEFAULT", "client.pem", "User:CN=client"),
        ("DEFAULT", None, "User:ANONYMOUS"),
        ("RULE:CN=(.*)/$1/U", "client.pem", "User:CLIENT"),
        ("RULE:CN=(.*)/$1/U", None, "User:ANONYMOUS"),
    ],
)
def test_the_first_request_has_the_principal(
    directory: Path, rules: str, key: str | None, expected: str, versions: str
) -> None:
    server = Server(
        directory, ssl_client_auth="requested", ssl_principal_mapping_rules=rules, ssl_enabled_protocols=versions
    )
    connect(server, client_context(directory, key))
    assert server.requests == [(b"request", expected)]


def test_a_client_to_which_no_rule_applies_is_refused_before_its_first_request(directory: Path) -> None:
    server = Server(directory, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:CN=other/x/")
    connect(server, client_context(directory, "client.pem"))
    assert server.requests == []
    assert server.refusals[0].startswith(
        "authentication failed: no rule of ssl.principal.mapping.rules applies to CN=client, rules RULE:CN=other/x/"
    )


@pytest.mark.parametrize("versions", ["TLSv1.3", "TLSv1.2"])
def test_a_resumed_session_has_the_principal(directory: Path, versions: str) -> None:
    server = Server(directory, ssl_client_auth="required", ssl_enabled_protocols=versions)
    context = client_context(directory, "client.pem")
    first = connect(server, context)
    server.requests.clear()
    resumed = connect(server, context, session=first._tls.session)
    assert resumed._tls.session_reused
    assert server.requests == [(b"request", "User:CN=client")]


def test_with_sasl_the_certificate_is_not_the_identity(directory: Path) -> None:
    server = Server(directory, ssl_client_auth="required")
    connect(server, client_context(directory, "client.pem"), is_sasl=True)
    assert server.requests == [(b"request", "User:ANONYMOUS")]


def test_certificates_of_clients_on_listeners_with_sasl(directory: Path) -> None:
    """KIP-684: the property without prefix is for listeners with SSL."""
    listeners = {"listeners": "SSL://:1,SASL_SSL://:2", "ssl.client.auth": "required"}
    config = BrokerConfig(listeners)
    assert config.tls_settings("SSL").client_auth == "required"
    assert config.tls_settings("SASL_SSL").client_auth == "none"
    [warning] = _find_ignored_client_auth(config)
    assert warning.startswith("ssl.client.auth has no effect on SASL_SSL, because")
    own = BrokerConfig({**listeners, "listener.name.sasl_ssl.ssl.client.auth": "requested"})
    assert own.tls_settings("SASL_SSL").client_auth == "requested"
    assert list(_find_ignored_client_auth(own)) == []


def test_each_listener_has_its_rules(directory: Path) -> None:
    properties = tls_properties(directory, ssl_principal_mapping_rules="RULE:CN=(.*)/$1/")
    properties["listener.name.ssl.ssl.principal.mapping.rules"] = "DEFAULT"
    settings = BrokerConfig(properties).tls_settings("SSL")
    assert make_principal_mapper(settings).map_name("CN=a") == "CN=a"


def test_a_wrong_rule_prevents_the_start(directory: Path) -> None:
    properties = tls_properties(directory, ssl_principal_mapping_rules="RULE:CN=(/x/")
    with pytest.raises(PropertyError, match=r"Invalid value RULE:CN=.* for configuration ssl\.principal\.mapping"):
        parse_config(properties)
