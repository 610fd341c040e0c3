"""GSSAPI between brokers, with a real KDC. It runs where a KDC and python-gssapi are installed."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from compat_tests.clients.common import wait_until
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster
from compat_tests.cluster.status import show_status
from compat_tests.security import kerberos
from compat_tests.security.kerberos import REALM, Kdc
from odradek.server.security.sasl.kerberos.names import parse_rule
from odradek.server.security.sasl.mechanism import SaslError
from odradek.testing_cluster import OdradekCluster

pytestmark = [
    pytest.mark.skipif(bool(kerberos.MISSING), reason=f"{', '.join(kerberos.MISSING)} not installed; {kerberos.HINT}"),
    pytest.mark.skipif(
        importlib.util.find_spec("gssapi") is None,
        reason="python-gssapi is not installed: apt-get install libkrb5-dev; pip install gssapi",
    ),
]

LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
PREFIX = "listener.name.sasl_plaintext.gssapi"
SERVICE = f"kafka/localhost@{REALM}"


class Realm:
    """A KDC with the principals of brokers and of a client."""

    def __init__(self, kdc: Kdc) -> None:
        self.kdc = kdc
        self.keytab = kdc.add_keytab("kafka/localhost")
        self.stale_keytab = kdc.add_keytab("kafka/stale")
        kdc.change_key("kafka/stale")
        self.client_keytab = kdc.add_keytab("alice")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A realm, which this process and its brokers use."""
    directory = tmp_path_factory.mktemp("kdc")
    with ExitStack() as stack:
        made = Realm(stack.enter_context(Kdc(directory)))
        variables = made.kdc.environment_of(made.client_keytab)
        stack.enter_context(kerberos.environment({**variables, "KRB5RCACHEDIR": str(directory)}))
        yield made


def run_at_once(work: Callable[[], None]) -> Deferred[None]:
    work()
    return succeed(None)


def make_initiator(keytab: Path, clock: Clock, principal: str = SERVICE) -> Any:
    from odradek.server.security.sasl.kerberos.initiator import InitiatorSettings, KerberosInitiator

    settings = InitiatorSettings(principal, f"FILE:{keytab}", "kafka", "the-property", 100, 1000)
    return KerberosInitiator(settings, clock.seconds, run_at_once)


def make_exchange(realm: Realm) -> Any:
    from odradek.server.security.sasl.kerberos.acceptor import KerberosAcceptor, KerberosSettings

    return KerberosAcceptor(KerberosSettings(SERVICE, str(realm.keytab), (parse_rule("DEFAULT"),))).make_exchange()


def await_now(awaitable: Any) -> Any:
    """Return the result of a coroutine that does not wait."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(awaitable).addBoth(outcome.append)
    [result] = outcome
    if hasattr(result, "raiseException"):
        result.raiseException()
    return result


def test_both_sides_agree(realm: Realm) -> None:
    initiator = make_initiator(realm.keytab, Clock())
    for _ in range(2):
        client, server = initiator.make_exchange("localhost"), make_exchange(realm)
        token = await_now(client.begin())
        answers = 0
        while token is not None:
            answers += 1
            token = await_now(client.answer(server.evaluate(token)))
        assert (answers, server.authenticated.name) == (3, "kafka")


def test_offers_and_tokens_that_are_refused(realm: Realm) -> None:
    initiator = make_initiator(realm.keytab, Clock())
    client = initiator.make_exchange("localhost")
    await_now(client.begin())
    with pytest.raises(SaslError, match="Kerberos"):
        await_now(client.answer(b"no token"))

    client, server = initiator.make_exchange("localhost"), make_exchange(realm)
    assert await_now(client.answer(server.evaluate(await_now(client.begin())))) == b""
    with pytest.raises(SaslError, match="security layer"):
        await_now(client.answer(server._context.wrap(b"\x04\0\0\0", encrypt=False).message))


def test_an_unknown_host_fails_alone_and_is_reported_once(realm: Realm, caplog: pytest.LogCaptureFixture) -> None:
    initiator = make_initiator(realm.keytab, Clock())
    for _ in range(2):
        with pytest.raises(SaslError, match=r"kafka/elsewhere.*not found in Kerberos database"):
            await_now(initiator.make_exchange("elsewhere").begin())
        await_now(initiator.make_exchange("localhost").begin())
    [record] = caplog.records
    assert "no ticket for kafka/elsewhere" in record.getMessage()


def test_failed_logins_are_reported_once_and_wait(realm: Realm, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    keytab = realm.kdc.copy_keytab(realm.stale_keytab, "repaired")
    initiator = make_initiator(keytab, clock, f"kafka/stale@{REALM}")

    def begin() -> str:
        try:
            return str(len(await_now(initiator.make_exchange("localhost").begin())) > 0)
        except SaslError as error:
            return str(error)

    assert "Decrypt integrity check failed" in begin()
    [record] = caplog.records
    assert f"cannot log in as kafka/stale@{REALM}; check principal and keyTab of the-property" in record.getMessage()
    realm.kdc.append_key(keytab, "kafka/stale")
    # No attempt before the backoff has ended.
    assert "Decrypt integrity check failed" in begin()
    clock.advance(0.11)
    assert begin() == "True"
    assert len(caplog.records) == 1


def broker_properties(keytab: Path, principal: str = SERVICE) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://localhost:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "min.insync.replicas": "2",
        f"{PREFIX}.sasl.jaas.config": f'{LOGIN_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" '
        f'principal="{principal}";',
        # The connections between brokers are authenticated again and again, when 15 % of this time remain: more than
        # a request takes on a busy machine.
        f"{PREFIX}.connections.max.reauth.ms": "10000",
    }


def write(bootstrap_servers: str, topic: str) -> None:
    """Write a topic with acks=all, and read it."""
    options = {
        "bootstrap_servers": bootstrap_servers.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
    }
    producer = KafkaProducer(acks="all", **options)
    for number in range(100):
        producer.send(topic, b"%d" % number)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **options)
    assert len([next(consumer) for _ in range(100)]) == 100
    consumer.close()


def client_properties(keytab: Path, principal: str) -> str:
    return (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f'sasl.jaas.config={LOGIN_MODULE} required useKeyTab=true keyTab="{keytab}" principal="{principal}";\n'
    )


def test_a_cluster(realm: Realm, tmp_path: Path) -> None:
    with OdradekCluster(broker_properties(realm.keytab), size=2, log_level="debug") as cluster:

        def authentications() -> int:
            return cluster.log_text().count("principal=User:kafka mechanism=GSSAPI")

        write(cluster.bootstrap_servers, "t")
        before = authentications()
        assert before >= 2
        wait_until(lambda: authentications() >= before + 4, what="re-authentications", timeout_s=60)
        write(cluster.bootstrap_servers, "u")
        assert "the session has expired" not in cluster.log_text()
        file = tmp_path / "client.properties"
        good = show_status(cluster, file, client_properties(realm.client_keytab, f"alice@{REALM}"))
        assert (good.returncode, good.stderr) == (0, "")
        stale = show_status(cluster, file, client_properties(realm.stale_keytab, f"kafka/stale@{REALM}"))
        assert stale.returncode == 3
        assert f"does not authenticate principal kafka/stale@{REALM}: Kerberos: " in stale.stderr
        assert stale.stderr.count("\n") == 1


@pytest.mark.usefixtures("kafka_jars")
def test_a_mixed_cluster(realm: Realm, tmp_path: Path) -> None:
    properties = {**broker_properties(realm.keytab), "min.insync.replicas": "3"}
    del properties["listeners"]
    with (
        kerberos.environment({"JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={realm.kdc.config}"}),
        MixedCluster(
            {1: ODRADEK, 2: KAFKA, 3: ODRADEK}, tmp_path, properties, "SASL_PLAINTEXT", host="localhost"
        ) as cluster,
    ):
        for number in (1, 2, 3):
            cluster.start(number)
        for number, controller in enumerate((1, 2)):
            cluster.elect_controller(controller)
            write(cluster.bootstrap_servers, f"t{number}")


def test_a_cluster_with_a_key_that_is_not_valid(realm: Realm) -> None:
    properties = broker_properties(realm.stale_keytab, f"kafka/stale@{REALM}")
    with OdradekCluster(properties, size=2, awaits_all=False) as cluster:
        message = f"cannot log in as kafka/stale@{REALM}"
        wait_until(lambda: message in cluster.log_text(), what="the failure")
        wait_until(lambda: "failures=8" in cluster.log_text(), what="retries", timeout_s=60)
        lines = [line for line in cluster.log_text().splitlines() if message in line]
        assert len({line.partition("GSSAPI")[2] for line in lines}) == 1
        assert len(lines) <= 2
        assert f"check principal and keyTab of {PREFIX}.sasl.jaas.config" in lines[0]
