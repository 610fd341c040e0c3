"""SASL listeners with the clients that users have, right and wrong credentials, and SASL between brokers."""

import asyncio
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.apache_kafka import tools
from compat_tests.clients.common import wait_until
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster
from compat_tests.sasl_users import PLAIN_MODULE, SCRAM_MODULE, add_user, add_users
from compat_tests.security.test_tls import Certificates, first_error, round_trip
from odradek.testing import OdradekBroker
from odradek.testing_cluster import OdradekCluster

USER, PASSWORD = "alice", 'a "secret", with \\ and ='
JAVA_PASSWORD = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def listener_properties(certificates: Certificates) -> dict[str, str]:
    """Return the properties of a broker with both protocols and all mechanisms."""
    properties = certificates.broker()
    del properties["security.inter.broker.protocol"]
    jaas = f'{PLAIN_MODULE} required user_{USER}="{JAVA_PASSWORD}" user_bob="b";'
    return {
        **properties,
        "listeners": ",".join(f"{protocol}://127.0.0.1:0" for protocol in PROTOCOLS),
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **{f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": jaas for protocol in PROTOCOLS},
    }


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OdradekBroker]:
    directory = tmp_path_factory.mktemp("broker")
    for user, password in ((USER, PASSWORD), ("bob", "b")):
        add_user(user, f"log.dirs={directory / 'data'}", password=password)
    with OdradekBroker(listener_properties(certificates), directory=directory) as broker:
        yield broker


class Login(NamedTuple):
    """A way to connect: protocol, mechanism and password."""

    broker: OdradekBroker
    certificates: Certificates
    protocol: str
    mechanism: str
    password: str = PASSWORD
    user: str = USER

    @property
    def servers(self) -> str:
        return self.broker.addresses[PROTOCOLS.index(self.protocol) if len(self.broker.addresses) > 1 else 0]

    @property
    def wrong(self) -> "Login":
        return self._replace(password="wrong")

    @property
    def topic(self) -> str:
        return f"{self.protocol}-{self.mechanism}".lower()

    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": self.protocol.lower(),
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": self.certificates.path("ca"),
            "log_level": 0,
        }

    def python(self) -> dict[str, Any]:
        trust = ssl.create_default_context(cafile=self.certificates.path("ca"))
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
            "ssl_context": trust if self.protocol == "SASL_SSL" else None,
        }

    def write_java(self, directory: Path) -> str:
        """Write the properties of a Java client; return the file's path."""
        module = PLAIN_MODULE if self.mechanism == "PLAIN" else SCRAM_MODULE
        password = self.password.replace("\\", "\\\\").replace('"', '\\"')
        # The properties file itself has backslashes as escapes.
        jaas = f'{module} required username="{self.user}" password="{password}";'.replace("\\", "\\\\")
        properties = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": jaas,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.path("ca"),
        }
        file = directory / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return str(file)


@pytest.fixture(params=[(protocol, mechanism) for protocol in PROTOCOLS for mechanism in MECHANISMS], ids="-".join)
def login(request: pytest.FixtureRequest, broker: OdradekBroker, certificates: Certificates) -> Login:
    return Login(broker, certificates, *request.param)


def test_confluent_kafka(login: Login) -> None:
    values = [b"%d" % number for number in range(2_000)]
    assert round_trip(login.librdkafka(), f"confluent-{login.topic}", values) == values


def test_confluent_kafka_with_a_wrong_password(login: Login) -> None:
    error = first_error(login.wrong.librdkafka())
    assert error.code() == KafkaError._AUTHENTICATION
    message = "Authentication failed: Invalid username or password"
    if login.mechanism != "PLAIN":
        message = f"due to invalid credentials with SASL mechanism {login.mechanism}"
    assert message in error.str()


def test_kafka_python(login: Login) -> None:
    topic = f"kafka-python-{login.topic}"
    producer = KafkaProducer(**login.python())
    for number in range(100):
        producer.send(topic, b"%d" % number)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **login.python())
    found = [next(consumer).value for _ in range(100)]
    consumer.close()
    assert found == [b"%d" % number for number in range(100)]


def test_aiokafka(login: Login) -> None:
    topic = f"aiokafka-{login.topic}"

    async def run() -> list[bytes]:
        producer = AIOKafkaProducer(**login.python())
        await producer.start()
        for number in range(50):
            await producer.send(topic, b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **login.python())
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(50)]
        await consumer.stop()
        return found

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [b"%d" % number for number in range(50)]


def test_aiokafka_with_a_wrong_password(login: Login) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(**login.wrong.python())
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AiokafkaError):
        asyncio.run(asyncio.wait_for(run(), 60))


def librdkafka_of_kcat() -> tuple[int, ...]:
    text = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True, timeout=40).stdout
    match = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", text)
    assert match is not None, text
    return tuple(map(int, match.groups()))


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat(broker: OdradekBroker, certificates: Certificates, mechanism: str) -> None:
    def command(login: Login, *more: str) -> list[str]:
        settings = login.librdkafka()
        servers = settings.pop("bootstrap.servers")
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        return ["kcat", "-b", servers, *options, "-t", f"kcat-{login.topic}", *more]

    login = Login(broker, certificates, "SASL_SSL", mechanism)
    if mechanism != "PLAIN" and librdkafka_of_kcat() < (2, 6, 1):
        pytest.skip("this librdkafka sends a nonce that Apache Kafka has refused since CVE-2024-56128")
    # kcat interprets some of the characters in the other password.
    simple = login._replace(user="bob", password="b")
    subprocess.run(command(simple, "-P"), input="a\nb\n", text=True, check=True, timeout=40)
    found = subprocess.run(command(simple, "-C", "-e", "-q"), capture_output=True, text=True, check=True, timeout=40)
    assert found.stdout == "a\nb\n"
    refused = subprocess.run(command(login.wrong, "-L", "-m", "2"), capture_output=True, text=True, timeout=40)
    assert refused.returncode != 0


@pytest.mark.usefixtures("kafka_jars")
class TestJava:
    """Apache Kafka's tools."""

    @pytest.mark.parametrize(
        ("protocol", "mechanism"),
        [("SASL_SSL", "PLAIN"), ("SASL_PLAINTEXT", "SCRAM-SHA-256"), ("SASL_SSL", "SCRAM-SHA-512")],
    )
    def test_records_of_the_console_producer(
        self, broker: OdradekBroker, certificates: Certificates, tmp_path: Path, protocol: str, mechanism: str
    ) -> None:
        login = Login(broker, certificates, protocol, mechanism)
        lines = "".join(f"value {number}\n" for number in range(100))
        topic = f"java-{login.topic}"
        arguments = ["--bootstrap-server", login.servers, "--topic", topic]
        tools.run(tools.CONSOLE_PRODUCER, *arguments, "--command-config", login.write_java(tmp_path), stdin=lines)
        result = tools.run(
            tools.CONSOLE_CONSUMER, *arguments, "--command-config", login.write_java(tmp_path), "--from-beginning",
            "--max-messages", "100",
        )  # fmt: skip
        assert result.stdout == lines

    def test_a_wrong_password(self, broker: OdradekBroker, certificates: Certificates, tmp_path: Path) -> None:
        login = Login(broker, certificates, "SASL_SSL", "SCRAM-SHA-512").wrong
        file = login.write_java(tmp_path)
        result = tools.run(
            tools.TOPICS, "--bootstrap-server", login.servers, "--command-config", file, "--list", check=False
        )
        assert result.returncode != 0
        assert "SaslAuthenticationException" in result.stdout + result.stderr

    def test_users_of_kafka_configs(self, broker: OdradekBroker, certificates: Certificates, tmp_path: Path) -> None:
        login = Login(broker, certificates, "SASL_PLAINTEXT", "SCRAM-SHA-256")
        server = ["--bootstrap-server", login.servers, "--command-config", login.write_java(tmp_path)]
        entity = ["--entity-type", "users", "--entity-name", "carol"]
        added = "SCRAM-SHA-256=[iterations=8192,password=carol-secret]"
        tools.run(tools.CONFIGS, *server, *entity, "--alter", "--add-config", added)
        admin = AdminClient(login.librdkafka())
        assert [one.iterations for one in describe_user(admin, "carol").scram_credential_infos] == [8192]
        carol = login._replace(user="carol", password="carol-secret")
        assert round_trip(carol.librdkafka(), "carol", [b"v"]) == [b"v"]
        tools.run(tools.CONFIGS, *server, *entity, "--alter", "--delete-config", "SCRAM-SHA-256")
        assert first_error(carol.librdkafka()).code() == KafkaError._AUTHENTICATION


def describe_user(admin: AdminClient, user: str) -> Any:
    futures: Any = admin.describe_user_scram_credentials([user])
    return futures[user].result(30)


def test_users_of_confluent_kafka(broker: OdradekBroker, certificates: Certificates) -> None:
    login = Login(broker, certificates, "SASL_SSL", "SCRAM-SHA-512")
    admin = AdminClient(login.librdkafka())
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    dave = login._replace(user="d=a,ve", password="dave-secret")
    added = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(dave.user, info, b"dave-secret")])
    assert added[dave.user].result(30) is None
    [found] = describe_user(admin, dave.user).scram_credential_infos
    assert (found.mechanism, found.iterations) == (ScramMechanism.SCRAM_SHA_512, 4096)
    assert round_trip(dave.librdkafka(), "dave", [b"v"]) == [b"v"]
    broker.restart()
    assert round_trip(dave.librdkafka(), "dave-again", [b"v"]) == [b"v"]
    deletion = UserScramCredentialDeletion(dave.user, ScramMechanism.SCRAM_SHA_512)
    assert admin.alter_user_scram_credentials([deletion])[dave.user].result(30) is None
    with pytest.raises(KafkaException) as caught:
        admin.alter_user_scram_credentials([deletion])[dave.user].result(30)
    assert caught.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


def test_no_password_is_logged(broker: OdradekBroker) -> None:
    assert "secret" not in broker.log_text()


def test_clients_authenticate_themselves_again(certificates: Certificates) -> None:
    """Clients with a session of 1 s stay connected: they authenticate themselves again before it expires."""
    properties = {**listener_properties(certificates), "connections.max.reauth.ms": "1000"}
    with OdradekBroker(properties, log_level="debug") as broker:
        login = Login(broker, certificates, "SASL_PLAINTEXT", "PLAIN")
        consumer = KafkaConsumer(**login._replace(user="bob", password="b").python())
        admin = AdminClient(login.librdkafka())
        assert admin.list_topics(timeout=20).brokers
        wait_until(lambda: broker.log_text().count("lifetime_ms=1000") >= 4, what="re-authentications")
        assert admin.list_topics(timeout=20).brokers
        assert consumer.topics() == set()
        consumer.close()


def test_brokers_authenticate_each_other(certificates: Certificates) -> None:
    """Tests of delegation tokens have a cluster with SCRAM, and the next one also brokers of Apache Kafka."""
    protocol, mechanism = "SASL_SSL", "PLAIN"
    users = f'user_broker="broker-secret" user_{USER}="{USER}-secret"'
    prefix = f"listener.name.{protocol.lower()}.{mechanism.lower()}"
    properties = {
        **certificates.broker(),
        "listeners": f"{protocol}://127.0.0.1:0",
        "security.inter.broker.protocol": protocol,
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"{prefix}.sasl.jaas.config": f'{PLAIN_MODULE} required username="broker" password="broker-secret" {users};',
        # The connections between brokers are authenticated again and again.
        f"{prefix}.connections.max.reauth.ms": "10000",
    }
    with OdradekCluster(properties, log_level="debug") as cluster:
        login = Login(cluster.brokers[1], certificates, protocol, mechanism, f"{USER}-secret")
        configuration = {**login.librdkafka(), "bootstrap.servers": cluster.bootstrap_servers}
        values = [b"%d" % number for number in range(2_000)]
        assert round_trip(configuration, "t", values, acks="all") == values
        logins = cluster.log_text().count("principal=User:broker mechanism=PLAIN")
        # Each broker authenticates itself again to the two other ones.
        wait_until(
            lambda: cluster.log_text().count("principal=User:broker mechanism=PLAIN") >= logins + 6,
            what="re-authentications",
        )
        leader = AdminClient(configuration).list_topics("t", timeout=20).topics["t"].partitions[0].leader
        cluster.kill(leader)
        assert round_trip(configuration, "u", values, acks="all") == values
        cluster.start_broker(leader)
        assert "the session has expired" not in cluster.log_text()
        assert "-secret" not in cluster.log_text()


@pytest.mark.usefixtures("kafka_jars")
def test_a_mixed_cluster_shares_users(tmp_path: Path) -> None:
    """Brokers of both kinds authenticate each other, and users set at either kind are known to the other."""
    protocol, mechanism = "SASL_PLAINTEXT", "SCRAM-SHA-256"
    jaas = f'{SCRAM_MODULE} required username="broker" password="broker-secret";'
    properties = {
        "security.inter.broker.protocol": protocol,
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": jaas,
    }
    numbers = (1, 2, 3)
    with MixedCluster({1: ODRADEK, 2: ODRADEK, 3: KAFKA}, tmp_path, properties, protocol) as cluster:
        add_users(("broker", USER), f"zookeeper.connect={cluster.zookeeper.connect}", f"log.dirs={tmp_path}")
        for number in numbers:
            cluster.start(number)

        def configuration(user: str, servers: str = cluster.bootstrap_servers) -> dict[str, Any]:
            return {
                "bootstrap.servers": servers,
                "security.protocol": protocol.lower(),
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": f"{user}-secret",
                "log_level": 0,
            }

        def can_log_in(user: str, number: int) -> bool:
            """Log in; return False if the user or the metadata is not at the broker yet."""
            admin = AdminClient(configuration(user, f"127.0.0.1:{cluster.port(number)}"))
            try:
                return len(admin.list_topics(timeout=3).brokers) == len(numbers)
            except KafkaException:
                return False

        def is_added(user: str) -> bool:
            """Add a user; return False if the client does not have the new controller yet."""
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            upsertion = UserScramCredentialUpsertion(user, info, f"{user}-secret".encode())
            admin = AdminClient(configuration(USER))
            try:
                admin.alter_user_scram_credentials([upsertion])[user].result(30)
            except KafkaException as error:
                assert error.args[0].code() == KafkaError.NOT_CONTROLLER
                return False
            return True

        def can_all_log_in(user: str) -> bool:
            return all(can_log_in(user, number) for number in numbers)

        values = [b"%d" % number for number in range(500)]
        wait_until(partial(can_all_log_in, USER), what="the metadata of the brokers")
        assert round_trip(configuration(USER), "t", values, acks="all") == values
        # The controller changes users.
        for user, controllers in (("of-kafka", (3,)), ("of-odradek", (1, 2))):
            cluster.elect_controller(*controllers)
            wait_until(partial(is_added, user), what="the controller")
            wait_until(partial(can_all_log_in, user), what="the user")
        assert round_trip(configuration("of-odradek"), "u", values, acks="all") == values
