"""GSSAPI with a real KDC. It runs where a KDC and python-gssapi are installed."""

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import QUICK_JVM
from compat_tests.security import kerberos
from compat_tests.security.kerberos import REALM, Kdc
from odradek.server.security.sasl.kerberos.names import parse_rule
from odradek.server.security.sasl.mechanism import SaslError
from odradek.testing import OdradekBroker

pytestmark = [
    pytest.mark.skipif(bool(kerberos.MISSING), reason=f"{', '.join(kerberos.MISSING)} not installed; {kerberos.HINT}"),
    pytest.mark.skipif(
        importlib.util.find_spec("gssapi") is None,
        reason="python-gssapi is not installed: apt-get install libkrb5-dev; pip install gssapi",
    ),
]

SERVICE = f"kafka/localhost@{REALM}"
LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule"


class Realm:
    """A KDC with the principals of a broker and of two clients, and their keytabs."""

    def __init__(self, kdc: Kdc) -> None:
        self.kdc = kdc
        self.broker_keytab = kdc.add_keytab("kafka/localhost")
        self.client_keytab = kdc.add_keytab("alice")
        self.service_keytab = kdc.add_keytab("app/host.example")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    directory = tmp_path_factory.mktemp("kdc")
    with ExitStack() as stack:
        yield Realm(stack.enter_context(Kdc(directory)))


@pytest.fixture
def as_client(realm: Realm) -> Iterator[None]:
    """Take tickets of alice in this process."""
    rcache = str(realm.kdc.config.parent)
    with kerberos.environment({**realm.kdc.environment_of(realm.client_keytab), "KRB5RCACHEDIR": rcache}):
        yield


def make_acceptor(realm: Realm, *, principal: str = SERVICE, keytab: Path | None = None, rule: str = "DEFAULT") -> Any:
    from odradek.server.security.sasl.kerberos.acceptor import KerberosAcceptor, KerberosSettings

    path = str(realm.broker_keytab if keytab is None else keytab)
    return KerberosAcceptor(KerberosSettings(principal, path, (parse_rule(rule),)))


def begin(service: str = SERVICE, **options: Any) -> Any:
    """Return the security context of a client."""
    import gssapi

    name = gssapi.Name(service, gssapi.NameType.kerberos_principal)
    return gssapi.SecurityContext(name=name, usage="initiate", mech=gssapi.MechType.kerberos, **options)


def negotiate(exchange: Any, context: Any) -> bytes:
    """Establish the context; return the broker's offer of security layers."""
    token = context.step()
    while not context.complete:
        token = context.step(exchange.evaluate(token))
    return context.unwrap(exchange.evaluate(token or b"")).message


def refusal(exchange: Any, token: bytes) -> str:
    with pytest.raises(SaslError) as caught:
        exchange.evaluate(token)
    assert caught.value.message is None
    assert exchange.authenticated is None
    return caught.value.reason


@pytest.mark.usefixtures("as_client")
@pytest.mark.parametrize("authorization_id", [b"", b"alice", b"mallory"])
def test_the_user_is_the_short_name_of_the_ticket(realm, authorization_id):
    exchange, context = make_acceptor(realm).make_exchange(), begin()
    assert negotiate(exchange, context) == b"\x01\0\0\0"
    assert exchange.authenticated is None
    assert exchange.evaluate(context.wrap(b"\x01\0\0\0" + authorization_id, encrypt=False).message) == b""
    assert exchange.authenticated == ("alice", None, False)


@pytest.mark.usefixtures("as_client")
def test_without_mutual_authentication_the_offer_is_the_first_answer(realm):
    import gssapi

    exchange, context = make_acceptor(realm).make_exchange(), begin(flags=gssapi.RequirementFlag.integrity)
    offer = exchange.evaluate(context.step())
    assert context.unwrap(offer).message == b"\x01\0\0\0"
    exchange.evaluate(context.wrap(b"\x01\0\0\0", encrypt=False).message)
    assert exchange.authenticated.name == "alice"


def test_principals_are_mapped_by_rules(realm):
    rcache = str(realm.kdc.config.parent)
    with kerberos.environment({**realm.kdc.environment_of(realm.service_keytab), "KRB5RCACHEDIR": rcache}):
        exchange, context = make_acceptor(realm, rule="RULE:[2:$1-$2]/U").make_exchange(), begin()
        negotiate(exchange, context)
        exchange.evaluate(context.wrap(b"\x01\0\0\0", encrypt=False).message)
        assert exchange.authenticated.name == "APP-HOST.EXAMPLE"

        exchange, context = make_acceptor(realm, rule="RULE:[1:$1]").make_exchange(), begin()
        negotiate(exchange, context)
        assert "no rule" in refusal(exchange, context.wrap(b"\x01\0\0\0", encrypt=False).message)


@pytest.mark.usefixtures("as_client")
def test_messages_out_of_order_fail(realm):
    acceptor = make_acceptor(realm)
    assert "Kerberos" in refusal(acceptor.make_exchange(), b"")
    assert "Kerberos" in refusal(acceptor.make_exchange(), b"no token")
    assert "Kerberos" in refusal(acceptor.make_exchange(), b"x" * 500_000)

    exchange, context = acceptor.make_exchange(), begin()
    token = context.step()
    context.step(exchange.evaluate(token))
    assert "unexpected" in refusal(exchange, b"not empty")
    assert "unexpected" in refusal(exchange, b"")

    exchange, context = acceptor.make_exchange(), begin()
    negotiate(exchange, context)
    assert "Kerberos" in refusal(exchange, b"\x01\0\0\0")  # not wrapped
    assert "unexpected" in refusal(exchange, context.wrap(b"\x01\0\0\0", encrypt=False).message)


@pytest.mark.usefixtures("as_client")
@pytest.mark.parametrize("choice", [b"", b"\x01", b"\x02\0\0\0", b"\x04\0\0\0", b"\x07\xff\xff\xff"])
def test_a_security_layer_is_refused(realm, choice):
    exchange, context = make_acceptor(realm).make_exchange(), begin()
    negotiate(exchange, context)
    assert "security layer" in refusal(exchange, context.wrap(choice, encrypt=False).message)


@pytest.mark.usefixtures("as_client")
def test_a_ticket_is_not_accepted_twice(realm):
    acceptor = make_acceptor(realm)
    token = begin().step()
    assert acceptor.make_exchange().evaluate(token)
    assert "replay" in refusal(acceptor.make_exchange(), token).lower()


@pytest.mark.usefixtures("as_client")
def test_a_ticket_for_another_service_is_refused(realm):
    keytab = realm.kdc.add_keytab("other/localhost")
    acceptor = make_acceptor(realm, principal=f"other/localhost@{REALM}", keytab=keytab)
    assert "Kerberos" in refusal(acceptor.make_exchange(), begin().step())


@pytest.mark.usefixtures("as_client")
def test_an_unusable_keytab_is_reported(realm, tmp_path):
    from odradek.server.security.sasl.kerberos.keytab import KerberosError

    empty = tmp_path / "empty"
    empty.touch()
    for options in ({"keytab": tmp_path / "absent"}, {"keytab": empty}, {"principal": f"kafka/elsewhere@{REALM}"}):
        with pytest.raises(KerberosError):
            make_acceptor(realm, **options)
    assert make_acceptor(realm, keytab=Path(f"file:{realm.broker_keytab}"))


PREFIX = "listener.name.sasl_plaintext.gssapi"


@pytest.fixture(scope="module")
def broker(realm: Realm) -> Iterator[OdradekBroker]:
    properties = {
        "listeners": "SASL_PLAINTEXT://localhost:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": r"RULE:[2:$1](app)s/app/service/,DEFAULT",
        f"{PREFIX}.sasl.jaas.config": f"{LOGIN_MODULE} required useKeyTab=true storeKey=true "
        f'keyTab="{realm.broker_keytab}" principal="{SERVICE}";',
    }
    with (
        kerberos.environment({"KRB5_CONFIG": str(realm.kdc.config), "KRB5RCACHEDIR": str(realm.kdc.config.parent)}),
        OdradekBroker(properties, log_level="debug") as started,
    ):
        yield started


@pytest.mark.usefixtures("as_client")
def test_kafka_python(broker):
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
    )
    assert producer.send("kafka-python", b"v").get(30).offset == 0
    producer.close()
    assert "principal=User:alice mechanism=GSSAPI" in broker.log_text()


@pytest.mark.usefixtures("kafka_jars")
class TestJava:
    """Apache Kafka's tools, with a keytab."""

    def run(self, realm, broker, directory, tool, *arguments, keytab, principal, **options):
        login = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}"'
        jaas = f"{LOGIN_MODULE} required {login};"
        file = directory / "client.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
            f"sasl.jaas.config={jaas}\n"
        )
        server = ["--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file)]
        jvm_options = (*QUICK_JVM, f"-Djava.security.krb5.conf={realm.kdc.config}")
        return tools.run(tool, *server, *arguments, jvm_options=jvm_options, **options)

    def test_records(self, realm, broker, tmp_path):
        lines = "".join(f"value {number}\n" for number in range(100))
        user = {"keytab": realm.service_keytab, "principal": "app/host.example"}
        self.run(realm, broker, tmp_path, tools.CONSOLE_PRODUCER, "--topic", "java", stdin=lines, **user)
        result = self.run(
            realm, broker, tmp_path, tools.CONSOLE_CONSUMER, "--topic", "java", "--from-beginning", "--max-messages",
            "100", **user,
        )  # fmt: skip
        assert result.stdout == lines
        assert "principal=User:service mechanism=GSSAPI" in broker.log_text()

    def test_a_principal_without_a_user_name(self, realm, broker, tmp_path):
        keytab = realm.kdc.add_keytab("a/b/c")
        result = self.run(
            realm, broker, tmp_path, tools.TOPICS, "--list", keytab=keytab, principal="a/b/c", check=False
        )
        assert result.returncode != 0
        assert "Malformed Kerberos name: a/b/c@" in broker.log_text()
