"""TLS listeners with the clients and the key stores that users have."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from kafka import KafkaConsumer, KafkaProducer

from compat_tests import limits
from compat_tests.apache_kafka import tools
from compat_tests.clients.common import wait_until
from odradek.server.security.tls.certificates import Authority
from odradek.testing import OdradekBroker
from odradek.testing_cluster import OdradekCluster

PASSWORD = "a secret"
HOSTS = ("localhost", "127.0.0.1")
MEBIBYTE = 1 << 20


class Certificates:
    """Files with the certificates of a broker and of clients: `name`.pem has a key and its certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        now = datetime.now(UTC)
        self.authority, other = Authority(now), Authority(now)
        self.write("ca", self.authority.certificate)
        self.write("other-ca", other.certificate)
        self.write("broker", *self.authority.issue("broker", HOSTS))
        self.write("elsewhere", *self.authority.issue("broker", ["elsewhere.example"]))
        self.write("expired", *self.authority.issue("broker", HOSTS, timedelta(seconds=-60)))
        self.write("client", *self.authority.issue("client"))
        self.write("stranger", *other.issue("stranger"))

    def write(self, name: str, *parts: bytes) -> None:
        (self.directory / f"{name}.pem").write_bytes(b"".join(parts))

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.pem")

    def broker(self, name: str = "broker", **more: str) -> dict[str, str]:
        """Return the properties of a broker with a TLS listener."""
        return {
            "listeners": "SSL://127.0.0.1:0",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.path(name),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.path("ca"),
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def librdkafka(self, servers: str, key: str | None = None, ca: str = "ca") -> dict[str, Any]:
        """Return the configuration of a client of librdkafka."""
        own = {} if key is None else {"ssl.key.location": self.path(key), "ssl.certificate.location": self.path(key)}
        return {
            "bootstrap.servers": servers,
            "security.protocol": "ssl",
            "ssl.ca.location": self.path(ca),
            "log_level": 0,
            **own,
        }

    def java(self, key: str | None = None) -> dict[str, str]:
        """Return the configuration of a Java client."""
        own = {} if key is None else {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.path(key)}
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.path("ca")}
        return {"security.protocol": "SSL", **trust, **own}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[OdradekBroker]:
    with OdradekBroker(certificates.broker()) as broker:
        yield broker


def round_trip(configuration: dict[str, Any], topic: str, values: list[bytes], **more: Any) -> list[bytes]:
    """Produce and consume with librdkafka."""
    producer = Producer({**configuration, "message.timeout.ms": limits.CONDITION_S * 1000, **more})
    errors: list[KafkaError] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, message: errors.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(limits.CONDITION_S) == 0
    assert errors == []
    consumer = Consumer({**configuration, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    end_s = time.monotonic() + limits.CONDITION_S
    while len(found) < len(values) and time.monotonic() < end_s:
        for message in consumer.consume(1000, 1.0):
            error = message.error()
            if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue  # a broker of a cluster may have a new topic some time after another one
            assert error is None, error
            content = message.value()
            assert content is not None
            found.append(content)
    consumer.close()
    return found


def first_error(configuration: dict[str, Any]) -> KafkaError:
    """Return the first error of a client that cannot connect."""
    errors: list[KafkaError] = []
    with_callback: Any = {**configuration, "error_cb": errors.append}
    client = AdminClient(with_callback)

    def has_failed() -> bool:
        client.poll(0.1)
        return bool(errors)

    wait_until(has_failed, what="an error")
    return errors[0]


def test_confluent_kafka(certificates: Certificates, broker: OdradekBroker) -> None:
    values = [b"%d" % number for number in range(20_000)]
    assert round_trip(certificates.librdkafka(broker.bootstrap_servers), "confluent", values) == values


def test_records_larger_than_a_tls_record(certificates: Certificates, broker: OdradekBroker) -> None:
    values = [bytes([number]) * (4 * MEBIBYTE) for number in range(12)]
    more = {"message.max.bytes": 8 * MEBIBYTE}
    admin = AdminClient(certificates.librdkafka(broker.bootstrap_servers))
    with OdradekBroker(certificates.broker(message_max_bytes=str(8 * MEBIBYTE))) as own:
        found = round_trip(certificates.librdkafka(own.bootstrap_servers), "large", values, **more)
    assert [(value[0], len(value)) for value in found] == [(value[0], len(value)) for value in values]
    assert admin.list_topics(timeout=60).topics is not None, "the other broker still serves"


def test_kafka_python(certificates: Certificates, broker: OdradekBroker) -> None:
    configuration = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_cafile": certificates.path("ca"),
    }
    producer = KafkaProducer(**configuration)
    for number in range(500):
        producer.send("kafka-python", b"%d" % number)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer("kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **configuration)
    found = [next(consumer).value for _ in range(500)]
    consumer.close()
    assert found == [b"%d" % number for number in range(500)]


def test_aiokafka(certificates: Certificates, broker: OdradekBroker) -> None:
    async def run() -> list[bytes]:
        configuration = {
            "bootstrap_servers": broker.bootstrap_servers,
            "security_protocol": "SSL",
            "ssl_context": ssl.create_default_context(cafile=certificates.path("ca")),
        }
        producer = AIOKafkaProducer(**configuration)
        await producer.start()
        for number in range(100):
            await producer.send("aiokafka", b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **configuration)
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(100)]
        await consumer.stop()
        return found

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [b"%d" % number for number in range(100)]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
def test_kcat(certificates: Certificates, broker: OdradekBroker) -> None:
    command = [
        "kcat", "-b", broker.bootstrap_servers, "-X", "security.protocol=ssl",
        "-X", f"ssl.ca.location={certificates.path('ca')}", "-t", "kcat",
    ]  # fmt: skip
    subprocess.run([*command, "-P"], input="a\nb\n", text=True, check=True, timeout=40)
    found = subprocess.run([*command, "-C", "-e", "-q"], capture_output=True, text=True, check=True, timeout=40)
    assert found.stdout == "a\nb\n"


@pytest.mark.usefixtures("kafka_jars")
class TestJava:
    """Apache Kafka's tools, with each kind of key store in the broker."""

    @pytest.fixture(params=["PEM", "PKCS12", "JKS"])
    def stores(self, request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path) -> dict[str, str]:
        """Return the properties of the stores of a broker with client authentication, made by Java's keytool."""
        kind: str = request.param
        if kind == "PEM":
            return {}
        pem, p12 = Path(certificates.path("broker")).read_bytes(), tmp_path / "broker.p12"
        key: Any = load_pem_private_key(pem, None)
        certificate = x509.load_pem_x509_certificate(pem)
        encryption = BestAvailableEncryption(PASSWORD.encode())
        p12.write_bytes(serialize_key_and_certificates(b"broker", key, certificate, None, encryption))
        key_store, trust_store = tmp_path / f"key.{kind}", tmp_path / f"trust.{kind}"
        keytool("-importkeystore", "-srckeystore", p12, "-srcstoretype", "PKCS12", "-srcstorepass", PASSWORD,
                "-destkeystore", key_store, "-deststoretype", kind, "-deststorepass", PASSWORD)  # fmt: skip
        keytool("-importcert", "-alias", "ca", "-file", certificates.path("ca"), "-keystore", trust_store,
                "-storetype", kind, "-storepass", PASSWORD)  # fmt: skip
        return {
            "ssl_keystore_type": kind,
            "ssl_keystore_location": str(key_store),
            "ssl_keystore_password": PASSWORD,
            "ssl_truststore_type": kind,
            "ssl_truststore_location": str(trust_store),
            "ssl_truststore_password": PASSWORD,
        }

    def test_records_of_the_console_producer(
        self, certificates: Certificates, stores: dict[str, str], tmp_path: Path
    ) -> None:
        client = tmp_path / "client.properties"
        client.write_text("".join(f"{name}={value}\n" for name, value in certificates.java("client").items()))
        with OdradekBroker(certificates.broker(ssl_client_auth="required", **stores)) as broker:
            servers = ["--bootstrap-server", broker.bootstrap_servers]
            lines = "".join(f"value {number}\n" for number in range(1000))
            producer = [*servers, "--command-config", str(client), "--topic", "java"]
            tools.run(tools.CONSOLE_PRODUCER, *producer, stdin=lines)
            values = [line.encode() for line in lines.splitlines()]
            configuration = certificates.librdkafka(broker.bootstrap_servers, "client")
            consumer = Consumer({**configuration, "group.id": "java", "auto.offset.reset": "earliest"})
            consumer.subscribe(["java"])
            found = [message.value() for message in consumer.consume(1000, 30.0)]
            consumer.close()
            assert found == values


def keytool(*arguments: str | Path) -> None:
    subprocess.run(["keytool", "-noprompt", *map(str, arguments)], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("mode", "key", "is_accepted"),
    [
        ("required", "client", True),
        ("required", None, False),
        ("required", "stranger", False),
        ("requested", "client", True),
        ("requested", None, True),
        ("requested", "stranger", False),
        ("none", "stranger", True),
    ],
)
def test_certificates_of_clients(certificates: Certificates, mode: str, key: str | None, is_accepted: bool) -> None:
    with OdradekBroker(certificates.broker(ssl_client_auth=mode)) as broker:
        configuration = certificates.librdkafka(broker.bootstrap_servers, key)
        if is_accepted:
            assert round_trip(configuration, "t", [b"v"]) == [b"v"]
            return
        assert first_error(configuration) is not None
        wait_until(lambda: "the TLS handshake failed" in broker.log_text(), what="a log line")
        assert "Traceback" not in broker.log_text()


def test_a_client_to_whose_name_no_rule_applies(certificates: Certificates) -> None:
    rules = "RULE:CN=(c.*)/$1/"
    properties = certificates.broker(ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    with OdradekBroker(properties) as broker:
        configuration = certificates.librdkafka(broker.bootstrap_servers, "client")
        assert round_trip(configuration, "t", [b"v"]) == [b"v"]
        assert first_error(certificates.librdkafka(broker.bootstrap_servers, "broker")) is not None
        wait_until(lambda: "applies to CN=broker" in broker.log_text(), what="a log line")


@pytest.mark.parametrize(
    ("key", "ca", "reason"),
    [
        ("broker", "other-ca", "certificate verify failed"),
        ("elsewhere", "ca", "certificate verify failed"),
        ("expired", "ca", "certificate verify failed"),
    ],
)
def test_a_client_refuses_a_wrong_certificate(certificates: Certificates, key: str, ca: str, reason: str) -> None:
    with OdradekBroker(certificates.broker(key)) as broker:
        error = first_error(certificates.librdkafka(broker.bootstrap_servers, ca=ca))
        assert reason in error.str()
        wait_until(lambda: "the TLS handshake failed" in broker.log_text(), what="a log line")


def test_certificates_are_replaced_while_connections_remain(certificates: Certificates, tmp_path: Path) -> None:
    key_store = tmp_path / "broker.pem"
    shutil.copy(certificates.path("broker"), key_store)
    with OdradekBroker(certificates.broker(ssl_keystore_location=str(key_store))) as broker:
        configuration = certificates.librdkafka(broker.bootstrap_servers)
        before = AdminClient(configuration)
        assert before.list_topics(timeout=20).brokers
        old = peer_certificate(certificates, broker)
        replacement = tmp_path / "new"
        replacement.write_bytes(b"".join(certificates.authority.issue("broker", HOSTS)))
        replacement.rename(key_store)
        wait_until(lambda: peer_certificate(certificates, broker) != old, what="the new certificate")
        key_store.write_text("not a key")

        def is_reported() -> bool:
            return bool(peer_certificate(certificates, broker)) and "are not used" in broker.log_text()

        wait_until(is_reported, what="an error")
        assert before.list_topics(timeout=20).brokers
        assert round_trip(configuration, "t", [b"v"]) == [b"v"]


def peer_certificate(certificates: Certificates, broker: OdradekBroker) -> bytes:
    """Return the certificate that a new connection gets."""
    host, port = broker.bootstrap_servers.split(":")
    context = ssl.create_default_context(cafile=certificates.path("ca"))
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        return tls.getpeercert(binary_form=True) or b""


def test_plaintext_on_a_tls_port(certificates: Certificates, broker: OdradekBroker) -> None:
    host, port = broker.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(bytes.fromhex("0000000d 0012 0000 00000001 0003 616263"))
        connection.settimeout(10)
        assert len(connection.recv(100)) <= 7, "an alert, or the end"
    wait_until(lambda: "the TLS handshake failed" in broker.log_text(), what="a log line")
    assert round_trip(certificates.librdkafka(broker.bootstrap_servers), "after-plaintext", [b"v"]) == [b"v"]


def test_tls_on_a_plaintext_port(certificates: Certificates) -> None:
    with OdradekBroker() as broker:
        # Depending on the time of its end, librdkafka reports a failed handshake or a lost connection.
        assert "SSL" in first_error(certificates.librdkafka(broker.bootstrap_servers)).str()
        assert round_trip({"bootstrap.servers": broker.bootstrap_servers}, "t", [b"v"]) == [b"v"]


def test_a_plaintext_listener_beside_one_with_tls(certificates: Certificates) -> None:
    properties = certificates.broker(listeners="PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0")
    del properties["security.inter.broker.protocol"]
    properties["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,SECURE:SSL"
    properties["listener.name.secure.ssl.client.auth"] = "required"
    with OdradekBroker(properties) as broker:
        plain = {"bootstrap.servers": broker.bootstrap_servers}
        assert round_trip(plain, "t", [b"v"]) == [b"v"]
        address = next(word for word in broker.log_text().split() if word.startswith("address=")).partition("=")[2]
        secure = next(one for one in address.split(",") if one != broker.bootstrap_servers)
        configuration = certificates.librdkafka(secure, "client")
        nodes = AdminClient(configuration).list_topics(timeout=20).brokers
        assert [f"{node.host}:{node.port}" for node in nodes.values()] == [secure]
        assert round_trip(configuration, "u", [b"v"]) == [b"v"]


def test_brokers_replicate_with_tls(certificates: Certificates) -> None:
    properties = certificates.broker(ssl_client_auth="required")
    del properties["listeners"]
    with OdradekCluster({**properties, "listeners": "SSL://127.0.0.1:0"}) as cluster:
        configuration = certificates.librdkafka(cluster.bootstrap_servers, "client")
        values = [b"%d" % number for number in range(5_000)]
        assert round_trip(configuration, "t", values, acks="all") == values
        leader = AdminClient(configuration).list_topics("t", timeout=20).topics["t"].partitions[0].leader
        cluster.brokers[leader].kill()
        assert round_trip(configuration, "u", values, acks="all") == values
