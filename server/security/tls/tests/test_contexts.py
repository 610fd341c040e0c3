"""TLS contexts made from the properties of a broker, and the messages for properties that cannot be used."""

import gc
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from odradek.properties import PropertyError
from odradek.server.config import InvalidConfigError, parse_config
from odradek.server.config.broker import BrokerConfig
from odradek.server.security.tls.certificates import Authority, write_test_certificates
from odradek.server.security.tls.cipher_names import to_openssl
from odradek.server.security.tls.contexts import make_client_context, make_server_context
from odradek.server.security.tls.layer import TlsError, TlsLayer
from odradek.server.security.tls.reloaded_context import CHECK_INTERVAL_S, ReloadedContext
from odradek.server.security.tls.tests.support import tls_properties

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    write_test_certificates(path, NOW)
    return path


def layers(server: dict[str, str], client: dict[str, str], name: str = "localhost") -> tuple[TlsLayer, TlsLayer]:
    """Return both sides of a connection after the handshake. Raises TlsError."""
    server_side = TlsLayer(make_server_context(BrokerConfig(server).tls_settings("SSL")))
    context = make_client_context(BrokerConfig(client).tls_settings("SSL"))
    client_side = TlsLayer(context, server_name=name, is_server=False)
    client_side.begin()
    for _ in range(4):
        server_side.receive(client_side.take_output())
        client_side.receive(server_side.take_output())
    return server_side, client_side


def version_of(layer: TlsLayer) -> str | None:
    return layer._tls.version()


def cipher_of(layer: TlsLayer) -> str:
    cipher = layer._tls.cipher()
    assert cipher is not None
    return cipher[0]


def test_both_sides_exchange_data(directory: Path) -> None:
    server, client = layers(tls_properties(directory), tls_properties(directory))
    assert server.is_established and client.is_established
    assert version_of(server) == "TLSv1.3"
    for size in (0, 1, 16_384, 1_000_000):
        client.encrypt(bytes(size))
        assert server.receive(client.take_output()) == bytes(size)
        server.encrypt(memoryview(bytes(size)))
        assert client.receive(server.take_output()) == bytes(size)
    client.end()
    assert server.receive(client.take_output()) == b""
    assert server.has_ended and not client.has_ended


def test_data_that_arrives_byte_by_byte(directory: Path) -> None:
    server, client = layers(tls_properties(directory), tls_properties(directory))
    client.encrypt(b"some data")
    output = client.take_output()
    received = [server.receive(output[at : at + 1]) for at in range(len(output))]
    assert b"".join(received) == b"some data"
    assert received[:-1] == [b""] * (len(output) - 1)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_enabled_protocols(directory: Path, version: str) -> None:
    own = tls_properties(directory, ssl_enabled_protocols=version)
    assert version_of(layers(own, tls_properties(directory))[0]) == version
    other = "TLSv1.3" if version == "TLSv1.2" else "TLSv1.2"
    with pytest.raises(TlsError):
        layers(own, tls_properties(directory, ssl_enabled_protocols=other))


def test_cipher_suites(directory: Path) -> None:
    name = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    server, _ = layers(tls_properties(directory, ssl_cipher_suites=name), tls_properties(directory))
    assert (version_of(server), cipher_of(server)) == ("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")
    both = f"{name},TLS_AES_128_GCM_SHA256"
    server, _ = layers(tls_properties(directory, ssl_cipher_suites=both), tls_properties(directory))
    assert version_of(server) == "TLSv1.3"


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
    ],
)
def test_names_of_cipher_suites(java: str, openssl: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(to_openssl(java))
    assert [one["name"] for one in context.get_ciphers() if "TLSv1.3" not in one["description"]] == [openssl]


def test_a_name_that_differs_from_the_certificate(directory: Path) -> None:
    with pytest.raises(TlsError, match="certificate verify failed: Hostname mismatch"):
        layers(tls_properties(directory), tls_properties(directory), "elsewhere.example")
    unverified = tls_properties(directory, ssl_endpoint_identification_algorithm="")
    assert layers(tls_properties(directory), unverified, "elsewhere.example")[0].is_established


def test_trusting_the_certificate_of_the_peer_itself(directory: Path, tmp_path: Path) -> None:
    """Java trusts each certificate in a trust store, also one that is not of an authority."""
    trusted = tmp_path / "broker-only.pem"
    trusted.write_bytes((directory / "broker.pem").read_bytes().partition(b"-----END PRIVATE KEY-----\n")[2])
    client = tls_properties(directory, ssl_truststore_location=str(trusted))
    assert layers(tls_properties(directory), client)[0].is_established


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"ssl_keystore_location": "/none/k.pem"}, "ssl.keystore.location", "cannot be read: No such file"),
        ({"ssl_keystore_location": "{ca}"}, "ssl.keystore.location", "no private key"),
        ({"ssl_keystore_type": "JKS"}, "ssl.keystore.location", "neither PKCS12 nor JKS"),
        ({"ssl_keystore_password": "x"}, "ssl.keystore.password", "must not be set for PEM"),
        ({"ssl_keystore_key": "x"}, "ssl.keystore.location", "must not be set together with ssl.keystore.key"),
        ({"ssl_truststore_location": "{empty}", "ssl_client_auth": "required"}, "ssl.truststore.location", "no certif"),
        ({"ssl_truststore_password": "x", "ssl_client_auth": "requested"}, "ssl.truststore.password", "must not be"),
        ({"ssl_cipher_suites": "TLS_NONSENSE_WITH_NOTHING"}, "ssl.cipher.suites", "must be names of suites"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256", "ssl_enabled_protocols": "TLSv1.2"}, "ssl.cipher.suites", ""),
        ({"listener_name_ssl_ssl_keystore_location": "/none"}, "listener.name.ssl.ssl.keystore.location", "cannot be"),
    ],
)
def test_properties_that_cannot_be_used(
    directory: Path, tmp_path: Path, changes: dict[str, str], name: str, reason: str
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    paths = {"{ca}": str(directory / "ca.pem"), "{empty}": str(tmp_path / "empty")}
    with pytest.raises((PropertyError, InvalidConfigError)) as error:
        parse_config(tls_properties(directory, **{key: paths.get(value, value) for key, value in changes.items()}))
    assert f"for configuration {name}:" in str(error.value)
    assert reason in str(error.value)


def test_files_that_would_block_or_fill_the_memory(directory: Path, tmp_path: Path) -> None:
    """A client with the right to change configurations names files of a running broker."""
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(10_000_001)
    for name, text in (("fifo", "is not a regular file"), ("huge", "is larger than 10000000 bytes")):
        settings = BrokerConfig(tls_properties(directory, **{"ssl.truststore.location": str(tmp_path / name)}))
        with pytest.raises(PropertyError, match=text):
            make_client_context(settings.tls_settings("SSL"))


def test_a_null_character_in_a_path(directory: Path) -> None:
    settings = BrokerConfig(tls_properties(directory, **{"ssl.truststore.location": "/a\0b"}))
    with pytest.raises(PropertyError, match="is no path: embedded null byte"):
        make_client_context(settings.tls_settings("SSL"))


def test_a_directory_instead_of_a_store_leaves_no_descriptor_open(directory: Path) -> None:
    settings = BrokerConfig(tls_properties(directory, **{"ssl.truststore.location": str(directory)}))
    # Otherwise sockets of earlier tests may be closed between the two lists.
    gc.collect()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PropertyError, match="Is a directory"):
        make_client_context(settings.tls_settings("SSL"))
    assert os.listdir("/proc/self/fd") == before


def test_a_listener_without_a_key_store(directory: Path) -> None:
    values = tls_properties(directory)
    del values["ssl.keystore.location"]
    with pytest.raises(PropertyError, match=r"ssl\.keystore\.location: a listener with TLS requires a key store"):
        parse_config(values)


def test_keys_and_certificates_in_properties(directory: Path) -> None:
    values = tls_properties(directory)
    del values["ssl.keystore.location"], values["ssl.truststore.location"]
    text = (directory / "broker.pem").read_text()
    inline = {
        **values,
        "ssl.keystore.key": text,
        "ssl.keystore.certificate.chain": text,
        "ssl.truststore.certificates": (directory / "ca.pem").read_text(),
    }
    assert layers({**inline, "ssl.client.auth": "required"}, inline)[0].is_established
    assert "PRIVATE KEY" not in repr(BrokerConfig(inline))


def test_properties_of_one_listener(directory: Path) -> None:
    own = {"listener.name.internal.ssl.client.auth": "required", "listener.name.internal.ssl.key.password": "secret"}
    config = BrokerConfig({**tls_properties(directory), **own})
    assert config.tls_settings("INTERNAL").client_auth == "required"
    assert config.tls_settings("INTERNAL").keystore_type == "PEM"
    assert config.tls_settings("SSL").client_auth == "none"
    assert "secret" not in repr(config)


def test_a_file_that_is_replaced(directory: Path, tmp_path: Path) -> None:
    times = [0.0]
    store = tmp_path / "k.pem"
    store.write_bytes((directory / "broker.pem").read_bytes())
    settings = BrokerConfig(tls_properties(directory, ssl_keystore_location=str(store))).tls_settings("SSL")
    context = ReloadedContext(settings, make_server_context, lambda: times[0])
    first = context()
    store.write_bytes(b"".join(Authority(NOW).issue("new")))
    assert context() is first, "the files are not checked for each connection"
    times[0] += CHECK_INTERVAL_S
    second = context()
    assert second is not first
    store.unlink()
    times[0] += CHECK_INTERVAL_S
    assert context() is second
    times[0] += CHECK_INTERVAL_S
    assert context() is second


def test_bytes_after_the_end_are_dropped(directory: Path) -> None:
    """Otherwise they would fill the memory while the response to the last request is not sent yet."""
    server, client = layers(tls_properties(directory), tls_properties(directory))
    client.encrypt(b"last")
    client.end()
    assert server.receive(client.take_output() + bytes(100_000)) == b"last"
    pending_bytes = server._incoming.pending
    assert server.receive(bytes(100_000)) == b""
    assert server._incoming.pending == pending_bytes
    server.encrypt(b"response")
    assert client.receive(server.take_output()) == b"response"


class RecordedBio:
    """A MemoryBIO whose reads and writes are recorded."""

    def __init__(self, bio: ssl.MemoryBIO) -> None:
        self._bio = bio
        self.sizes: list[int] = []

    @property
    def pending(self) -> int:
        self.sizes.append(self._bio.pending)
        return self._bio.pending

    def read(self) -> bytes:
        self.sizes.append(self._bio.pending)
        return self._bio.read()

    def write(self, data: bytes) -> int:
        written = self._bio.write(data)
        self.sizes.append(self._bio.pending)
        return written


def test_the_buffers_of_openssl_remain_small(directory: Path) -> None:
    """They keep their largest size: 10,000 connections with one large request each would keep 10 GB."""
    server, client = layers(tls_properties(directory), tls_properties(directory))
    incoming, outgoing = RecordedBio(server._incoming), RecordedBio(client._outgoing)
    server._incoming, client._outgoing = incoming, outgoing  # type: ignore[assignment]
    client.encrypt(bytes(1_000_000))
    assert server.receive(client.take_output()) == bytes(1_000_000)
    assert max(incoming.sizes) < 60_000
    assert max(outgoing.sizes) < 40_000


def test_a_flood_of_records_without_data_is_refused(directory: Path) -> None:
    server, client = layers(tls_properties(directory), tls_properties(directory))
    for _ in range(20_000):
        client.encrypt(b"x")
    with pytest.raises(TlsError, match="the records have almost no data"):
        server.receive(client.take_output())


def test_small_records_are_not_a_flood(directory: Path) -> None:
    server, client = layers(tls_properties(directory), tls_properties(directory))
    for _ in range(20_000):
        client.encrypt(b"size")
    assert server.receive(client.take_output()) == b"size" * 20_000


def test_a_trusted_certificate_that_openssl_cannot_use(directory: Path, tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert((directory / "ca.pem").read_text())
    name = b"\x0c\x16Odradek test authority"
    assert name in der
    malformed = ssl.DER_cert_to_PEM_cert(der.replace(name, b"\xb8" + name[1:]))
    (tmp_path / "malformed.pem").write_text(malformed)
    settings = BrokerConfig(tls_properties(directory, ssl_truststore_location=str(tmp_path / "malformed.pem")))
    with pytest.raises(PropertyError, match=r"ssl\.truststore\.location"):
        make_client_context(settings.tls_settings("SSL"))


def test_a_key_that_openssl_cannot_get(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while no descriptor is free: the last context remains in use."""

    def fail(name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.memfd_create", fail)
    with pytest.raises(PropertyError, match="Too many open files"):
        make_server_context(BrokerConfig(tls_properties(directory)).tls_settings("SSL"))


def test_a_misspelt_endpoint_identification_algorithm(directory: Path) -> None:
    """It must not disable the verification of host names."""
    with pytest.raises(PropertyError, match=r"ssl\.endpoint\.identification\.algorithm.*https, or empty"):
        BrokerConfig(tls_properties(directory, ssl_endpoint_identification_algorithm="htps"))
    unverified = BrokerConfig(tls_properties(directory, ssl_endpoint_identification_algorithm=""))
    assert unverified.ssl_endpoint_identification_algorithm == ""


def test_secrets_are_not_shown(directory: Path) -> None:
    values = {"ssl.keystore.password": "secret 1", "listener.name.ssl.ssl.key.password": "secret 2"}
    config = BrokerConfig({**tls_properties(directory), **values})
    settings = config.tls_settings("SSL")
    assert (settings.keystore_password, settings.key_password) == ("secret 1", "secret 2")
    assert "secret" not in repr(settings) + repr(config)
