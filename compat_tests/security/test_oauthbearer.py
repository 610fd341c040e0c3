"""OAUTHBEARER with the clients that users have, and an issuer of tokens that the test runs."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokenProvider
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import QUICK_JVM
from compat_tests.clients.common import wait_until
from compat_tests.http_server import serving
from compat_tests.security.test_tls import first_error, round_trip
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import make_jwk, make_key_set, private_key, sign
from odradek.testing import OdradekBroker

LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LOGIN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
PREFIX = "listener.name.sasl_plaintext.oauthbearer"
ISSUER = "https://issuer.example"


class Issuer:
    """An issuer whose keys are published by HTTP. `requests`: number of reads of the keys."""

    def __init__(self) -> None:
        self.key_name = "first"
        self.requests = 0
        self.url = ""

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        return 200, make_key_set(make_jwk(private_key("RS256", self.key_name), "RS256", kid=self.key_name))

    def issue(self, subject: str = "alice", *, lifetime_s: int = 600, **claims: Any) -> str:
        now_s = int(time.time())
        times = {"iat": now_s - 3600, "exp": now_s + lifetime_s}
        key = private_key("RS256", self.key_name)
        claims = {"sub": subject, "iss": ISSUER, "aud": "kafka", **times, **claims}
        return sign(key, "RS256", {"kid": self.key_name}, **claims)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    with serving(made.respond) as url:
        made.url = f"{url}/keys"
        yield made


def broker_properties(url: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}.sasl.jaas.config": f"{LOGIN_MODULE} required;",
        f"{PREFIX}.sasl.server.callback.handler.class": HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.audience": "other,kafka",
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[OdradekBroker]:
    with OdradekBroker(broker_properties(issuer.url), log_level="debug") as started:
        wait_until(lambda: "read keys of OAUTHBEARER" in started.log_text(), what="the keys")
        yield started


def librdkafka(broker: OdradekBroker, token: str, lifetime_s: float = 600) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda configuration: (token, time.time() + lifetime_s),
        "log_level": 0,
    }


def kafka_python(broker: OdradekBroker, token: str) -> dict[str, Any]:
    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return token

        def extensions(self) -> dict[str, str]:
            return {"traceId": "1"}

    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Provider(),
    }


def test_confluent_kafka(broker: OdradekBroker, issuer: Issuer) -> None:
    values = [b"%d" % number for number in range(1000)]
    assert round_trip(librdkafka(broker, issuer.issue("confluent")), "confluent", values) == values
    assert "principal=User:confluent mechanism=OAUTHBEARER" in broker.log_text()


@pytest.mark.parametrize(
    "claims",
    [{"lifetime_s": -60}, {"aud": "web"}, {"iss": "https://other.example"}, {"nbf": 2**33}, {"sub": " "}],
    ids=["expired", "audience", "issuer", "not yet valid", "subject"],
)
def test_confluent_kafka_with_an_invalid_token(broker: OdradekBroker, issuer: Issuer, claims: dict[str, Any]) -> None:
    token = issuer.issue(**{"subject": "mallory", **claims})
    error = first_error(librdkafka(broker, token))
    assert error.code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in error.str()
    assert token not in broker.log_text()


def test_kafka_python(broker: OdradekBroker, issuer: Issuer) -> None:
    settings = kafka_python(broker, issuer.issue("kafka-python"))
    producer = KafkaProducer(**settings)
    for number in range(100):
        producer.send("kafka-python", b"%d" % number)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer("kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **settings)
    assert [next(consumer).value for _ in range(100)] == [b"%d" % number for number in range(100)]
    consumer.close()


def test_kafka_python_with_an_unsigned_token(broker: OdradekBroker, issuer: Issuer) -> None:
    _, claims, _ = issuer.issue().split(".")
    unsigned = f"eyJhbGciOiJub25lIn0.{claims}."  # alg none
    with pytest.raises(KafkaPythonError):
        KafkaProducer(bootstrap_timeout_ms=2000, **kafka_python(broker, unsigned))
    assert "not a signed JSON Web Token" in broker.log_text()


def test_aiokafka(broker: OdradekBroker, issuer: Issuer) -> None:
    async def send(token: str, timeout_ms: int = 40_000) -> int:
        class Provider(AiokafkaTokenProvider):
            async def token(self) -> str:
                return token

        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            request_timeout_ms=timeout_ms,
            sasl_oauth_token_provider=Provider(),
        )
        try:
            await producer.start()
            return int((await producer.send_and_wait("aiokafka", b"v")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(asyncio.wait_for(send(issuer.issue("aiokafka")), 60)) == 0
    with pytest.raises(AiokafkaError):
        asyncio.run(asyncio.wait_for(send(issuer.issue("aiokafka", aud="web"), 2000), 60))


def test_a_new_key_is_read_when_a_token_names_it(issuer: Issuer) -> None:
    # With an own broker, because others keep the first key.
    with OdradekBroker(broker_properties(issuer.url)) as broker:
        wait_until(lambda: "read keys of OAUTHBEARER" in broker.log_text(), what="the keys")
        before, token = issuer.requests, issuer.issue("rotated")
        issuer.key_name = "second"
        try:
            # The first attempt is refused; librdkafka repeats it.
            assert AdminClient(librdkafka(broker, issuer.issue("rotated"))).list_topics(timeout=30).brokers
            assert issuer.requests == before + 1
            assert first_error(librdkafka(broker, token)).code() == KafkaError._AUTHENTICATION
        finally:
            issuer.key_name = "first"


def test_a_client_authenticates_itself_again_before_its_token_expires(issuer: Issuer) -> None:
    with OdradekBroker(broker_properties(issuer.url), log_level="debug") as broker:
        wait_until(lambda: "read keys of OAUTHBEARER" in broker.log_text(), what="the keys")
        configuration = librdkafka(broker, "")
        configuration["oauth_cb"] = lambda _: (issuer.issue(lifetime_s=5), time.time() + 5)
        admin = AdminClient(configuration)
        assert admin.list_topics(timeout=20).brokers

        def authentications() -> int:
            admin.poll(0.1)
            return broker.log_text().count("principal=User:alice")

        wait_until(lambda: authentications() >= 3, what="re-authentications")
        assert admin.list_topics(timeout=20).brokers


@pytest.mark.usefixtures("kafka_jars")
class TestJava:
    """Apache Kafka's tools, with a token in a file."""

    def run(self, broker: OdradekBroker, token: str, directory: Path, *arguments: str, **options: Any) -> Any:
        token_file = directory / "token"
        token_file.write_text(token)
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{LOGIN_MODULE} required extension_traceId="1";',
            "sasl.login.callback.handler.class": LOGIN_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": token_file.as_uri(),
        }
        file = directory / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        jvm_options = (*QUICK_JVM, f"{allowed}.urls={token_file.as_uri()}", f"{allowed}.files={token_file}")
        return tools.run(
            *arguments[:1], "--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file),
            *arguments[1:], jvm_options=jvm_options, **options,
        )  # fmt: skip

    def test_records(self, broker: OdradekBroker, issuer: Issuer, tmp_path: Path) -> None:
        lines = "".join(f"value {number}\n" for number in range(100))
        token = issuer.issue("java")
        self.run(broker, token, tmp_path, tools.CONSOLE_PRODUCER, "--topic", "java", stdin=lines)
        result = self.run(
            broker, token, tmp_path, tools.CONSOLE_CONSUMER, "--topic", "java", "--from-beginning",
            "--max-messages", "100",
        )  # fmt: skip
        assert result.stdout == lines
        assert "principal=User:java mechanism=OAUTHBEARER" in broker.log_text()

    def test_a_token_for_another_audience(self, broker: OdradekBroker, issuer: Issuer, tmp_path: Path) -> None:
        token = issuer.issue("java", aud="web")
        result = self.run(broker, token, tmp_path, tools.TOPICS, "--list", check=False)
        assert result.returncode != 0
        assert "invalid_token" in result.stdout + result.stderr


def test_keys_in_a_file(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(make_key_set(make_jwk(private_key("RS256", "first"), "RS256", kid="first")))
    with OdradekBroker(broker_properties(file.as_uri())) as broker:
        assert AdminClient(librdkafka(broker, issuer.issue())).list_topics(timeout=20).brokers
