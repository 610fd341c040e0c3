"""Changes of a listener's key store and trust store while the broker runs (KIP-226)."""

import base64
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not exported explicitly
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from compat_tests import processes
from compat_tests.apache_kafka import jars, tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.clients.common import wait_until
from odradek.server.security.password_encoder import (
    CBC,
    DEFAULT_KEY_FACTORY,
    GCM,
    EncoderSettings,
    PasswordEncoder,
)
from odradek.server.security.tls.certificates import Authority
from odradek.testing import OdradekBroker

HOSTS = ("localhost", "127.0.0.1")
PREFIX = "listener.name.clients.ssl."
SECRET = "a secret of the broker"
STORE_PASSWORD = "a password"
PASSWORDS_SOURCE = Path(jars.__file__).with_name("Passwords.java")


class Stores:
    """Key stores of a broker as PEM files, and a trust store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority = Authority(datetime.now(UTC))
        self.write("ca", authority.certificate)
        self.write("first", *authority.issue("broker", HOSTS))
        self.write("second", *authority.issue("broker", [*HOSTS, "more.example"]))
        self.write("other-name", *authority.issue("other", HOSTS))
        self.write("fewer-hosts", *authority.issue("broker", ["localhost"]))
        self.write("no-key", authority.certificate)

    def write(self, name: str, *parts: bytes) -> None:
        (self.directory / f"{name}.pem").write_bytes(b"".join(parts))

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.pem")

    def make_pkcs12(self, name: str) -> str:
        """Return the path of a PKCS12 file with the key store, made by OpenSSL."""
        path = str(self.directory / f"{name}.p12")
        subprocess.run(
            ["openssl", "pkcs12", "-export", "-in", self.path(name), "-out", path, "-passout", "env:STORE_PASSWORD"],
            env={**os.environ, "STORE_PASSWORD": STORE_PASSWORD},
            check=True,
        )
        return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def properties(stores: Stores, port: int = 0) -> dict[str, str]:
    return {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        f"{PREFIX}keystore.type": "PEM",
        f"{PREFIX}keystore.location": stores.path("first"),
    }


def peer_certificate(port: int, stores: Stores) -> bytes:
    """Return the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=stores.path("ca"))
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""


def certificate_of(stores: Stores, name: str) -> bytes:
    text = Path(stores.path(name)).read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])


def tls_port(broker: OdradekBroker) -> int:
    """Return the port of the listener with TLS."""
    return int(broker.addresses[1].rpartition(":")[2])


def alter(servers: str, **changes: str | None) -> str | None:
    """Change the broker's properties, named after the prefix; return the error, None without one."""
    entries = [
        ConfigEntry(
            name,
            value if value is not None else "",
            incremental_operation=AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE,
        )
        for name, value in changes.items()
    ]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    [future] = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)]
    ).values()
    try:
        future.result(30)
    except KafkaException as error:
        return f"{error.args[0].name()}: {error.args[0].str()}"
    return None


def listener(**changes: str | None) -> dict[str, Any]:
    return {PREFIX + name.replace("_", "."): value for name, value in changes.items()}


@pytest.fixture
def broker(stores: Stores) -> Iterator[OdradekBroker]:
    with OdradekBroker({**properties(stores), "password.encoder.secret": SECRET}) as broker:
        yield broker


@pytest.mark.usefixtures("kafka_jars")
class TestKafkaConfigs:
    """Changes by Apache Kafka's kafka-configs."""

    def configs(self, broker: OdradekBroker, *arguments: str) -> tools.ToolResult:
        return tools.run(
            tools.CONFIGS, "--bootstrap-server", broker.bootstrap_servers,
            "--entity-type", "brokers", "--entity-name", "1", *arguments,
        )  # fmt: skip

    def test_a_new_key_store(self, broker: OdradekBroker, stores: Stores) -> None:
        port = tls_port(broker)
        with socket.create_connection(("127.0.0.1", port)) as plain:
            context = ssl.create_default_context(cafile=stores.path("ca"))
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as present:
                assert peer_certificate(port, stores) == certificate_of(stores, "first")
                self.configs(
                    broker, "--alter", "--add-config",
                    f"{PREFIX}keystore.location={stores.make_pkcs12('second')},{PREFIX}keystore.type=PKCS12,"
                    f"{PREFIX}keystore.password={STORE_PASSWORD}",
                )  # fmt: skip
                assert peer_certificate(port, stores) == certificate_of(stores, "second")
                present.sendall(bytes.fromhex("0000000d 0012 0000 00000001 0003 616263"))
                assert len(present.recv(4)) == 4, "the connection that existed is still served"
        described = self.configs(broker, "--describe").stdout
        assert f"{PREFIX}keystore.password=null sensitive=true" in described
        assert f"{PREFIX}keystore.type=PKCS12 sensitive=false" in described
        assert STORE_PASSWORD not in described + broker.log_text()
        broker.stop()
        assert all(
            STORE_PASSWORD.encode() not in path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()
        )
        broker.start()
        assert peer_certificate(tls_port(broker), stores) == certificate_of(stores, "second")


REFUSED: list[tuple[dict[str, Any], str]] = [
    (listener(keystore_location="other-name"), "distinguished name CN=other is not that of the last one, CN=broker"),
    (listener(keystore_location="fewer-hosts"), "lacks subject alternative names of the last one: 127.0.0.1"),
    (listener(keystore_location="no-key"), "there is no private key"),
    (listener(keystore_location="missing"), "cannot be read: No such file or directory"),
    (listener(keystore_location=None, keystore_type="JKS"), "neither PKCS12 nor JKS"),
    (listener(truststore_location="ca", truststore_type="PEM"), "cannot be added to a listener without a trust store"),
    ({"ssl.client.auth": "required"}, "can be dynamically updated only per-listener using the listener prefix"),
    (listener(client_auth="sometimes"), "must be one of: required, requested, none"),
    (listener(keystore_type="BKS"), "must be one of: JKS, PKCS12, PEM"),
    ({"ssl.keystore.location": "first"}, "can be dynamically updated only per-listener using the listener prefix"),
    ({"ssl.principal.mapping.rules": "DEFAULT"}, "Cannot update these configs dynamically"),
]


def with_paths(stores: Stores, changes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: stores.path(value) if name.endswith("location") and value is not None else value
        for name, value in changes.items()
    }


def test_changes_that_cannot_be_used_are_refused(broker: OdradekBroker, stores: Stores) -> None:
    for changes, reason in REFUSED:
        error = alter(broker.bootstrap_servers, **with_paths(stores, changes))
        assert error is not None and error.startswith("INVALID_REQUEST") and reason in error, error
        assert peer_certificate(tls_port(broker), stores) == certificate_of(stores, "first")
    assert alter(broker.bootstrap_servers, **listener(keystore_location=stores.path("second"))) is None
    assert peer_certificate(tls_port(broker), stores) == certificate_of(stores, "second")


@pytest.mark.usefixtures("kafka_jars")
def test_apache_kafka_refuses_the_same_changes(stores: Stores) -> None:
    own = {name: value for name, value in properties(stores).items() if name not in ("broker.id", "listeners")}
    own["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    port = processes.lasting_port()
    with ApacheKafkaWithTls(own, port) as kafka:
        assert peer_certificate(port, stores) == certificate_of(stores, "first")
        for changes, _ in REFUSED:
            # Apache Kafka accepts this one, for listeners without one of their own, from the next start on.
            if changes == {"ssl.client.auth": "required"}:
                continue
            error = alter(kafka.bootstrap_servers, **with_paths(stores, changes))
            assert error is not None and error.startswith("INVALID_REQUEST"), (changes, error)
        assert alter(kafka.bootstrap_servers, **listener(keystore_location=stores.path("second"))) is None
        second = certificate_of(stores, "second")
        wait_until(lambda: peer_certificate(port, stores) == second, what="the new certificate")


class ApacheKafkaWithTls(ApacheKafkaBroker):
    """A broker with another listener, CLIENTS."""

    def __init__(self, own: dict[str, str], tls_port: int) -> None:
        super().__init__(own)
        self._tls_port = tls_port

    def _effective_properties(self) -> dict[str, str]:
        effective = super()._effective_properties()
        return {**effective, "listeners": f"{effective['listeners']},CLIENTS://127.0.0.1:{self._tls_port}"}


def test_other_names_are_allowed_if_configured(stores: Stores) -> None:
    allowed = {"ssl.allow.dn.changes": "true", f"{PREFIX}allow.san.changes": "true"}
    with OdradekBroker({**properties(stores), **allowed}) as broker:
        for name in ("other-name", "fewer-hosts"):
            assert alter(broker.bootstrap_servers, **listener(keystore_location=stores.path(name))) is None


def test_a_password_requires_the_encoder_secret(stores: Stores) -> None:
    with OdradekBroker(properties(stores)) as broker:
        changes = listener(
            keystore_location=stores.make_pkcs12("second"), keystore_type="PKCS12", keystore_password=STORE_PASSWORD
        )
        error = alter(broker.bootstrap_servers, **changes)
        assert error is not None and "password.encoder.secret: must be set" in error
        assert STORE_PASSWORD not in error + broker.log_text()


def test_the_secret_is_changed(stores: Stores, tmp_path: Path) -> None:
    def inline(name: str) -> dict[str, Any]:
        key, begin, chain = Path(stores.path(name)).read_text().partition("-----BEGIN CERTIFICATE")
        return listener(keystore_key=key, keystore_certificate_chain=begin + chain)

    static = {**properties(stores), **inline("first")}
    del static[f"{PREFIX}keystore.location"]
    secrets: list[dict[str, str]] = [
        {"password.encoder.secret": "one"},
        {"password.encoder.secret": "two", "password.encoder.old.secret": "one"},
        {"password.encoder.secret": "two"},
    ]
    for number, secret in enumerate(secrets):
        with OdradekBroker({**static, **secret}, directory=tmp_path) as broker:
            if number == 0:
                assert alter(broker.bootstrap_servers, **inline("second")) is None
            assert peer_certificate(tls_port(broker), stores) == certificate_of(stores, "second")
            if number == 1:
                wait_until(lambda: "encrypted the stored passwords" in broker.log_text(), what="a log line")


CASES = [(CBC, 128), (CBC, 256), (GCM, 128), (GCM, 192)]
TEXTS = ["", "x", "sixteen letters.", "\u00fc\u20ac\U0001f600" * 100, "a,b:c=d\n"]


@pytest.mark.usefixtures("kafka_jars")
def test_passwords_are_encrypted_as_by_apache_kafka() -> None:
    secret = "s\u00e9cret"
    encoders = {
        case: PasswordEncoder(EncoderSettings(secret, None, DEFAULT_KEY_FACTORY, *case, 4096)) for case in CASES
    }
    lines = [
        f"{verb} {_encode(secret)} {case[0]} {case[1]} {_encode(text if verb == 'encode' else encoder.encode(text))}"
        for case, encoder in encoders.items()
        for text in TEXTS
        for verb in ("encode", "decode")
        if text
    ]
    lines.append(f"decode {_encode('other')} {CBC} 128 {_encode(encoders[CBC, 128].encode('x'))}")
    class_path = os.pathsep.join(map(str, jars.zookeeper_mode_jars()))
    command = [jars.java(), "-Xshare:auto", "-cp", class_path, str(PASSWORDS_SOURCE)]
    result = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=120)
    answers = iter(result.stdout.splitlines())
    for case in CASES:
        for text in filter(None, TEXTS):
            other = PasswordEncoder(EncoderSettings(secret, None, DEFAULT_KEY_FACTORY, CBC, 128, 4096))
            assert other.decode(next(answers)) == text
            assert base64.b64decode(next(answers)).decode() == text, case
    assert next(answers) == "error"
    with pytest.raises(ValueError, match="cannot be decrypted"):
        PasswordEncoder(EncoderSettings("other", None, DEFAULT_KEY_FACTORY, CBC, 128, 4096)).decode(
            encoders[GCM, 128].encode("x")
        )


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
