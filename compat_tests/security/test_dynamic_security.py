"""Users and mechanisms of a listener that kafka-configs changes, described as by Apache Kafka (KIP-226)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests import processes
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.clients.common import wait_until
from compat_tests.sasl_users import PLAIN_MODULE
from odradek.testing import OdradekBroker

PREFIX = "listener.name.clients."
PROPERTIES = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    f"{PREFIX}sasl.enabled.mechanisms": "PLAIN",
    f"{PREFIX}plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="static-secret";',
}
CHANGES = {
    "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob-secret";',
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.kerberos.service.name": "kafka",
    "ssl.client.auth": "requested",
    "ssl.enabled.protocols": "TLSv1.3",
}

pytestmark = pytest.mark.usefixtures("kafka_jars")


class ApacheKafkaWithSasl(ApacheKafkaBroker):
    """A broker with another listener, CLIENTS."""

    def __init__(self, port: int) -> None:
        super().__init__(PROPERTIES)
        self._port = port

    def _effective_properties(self) -> dict[str, str]:
        effective = super()._effective_properties()
        return {**effective, "listeners": f"{effective['listeners']},CLIENTS://127.0.0.1:{self._port}"}


@pytest.fixture(scope="module")
def broker() -> Iterator[OdradekBroker]:
    properties = {
        **PROPERTIES,
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "password.encoder.secret": "a secret",
    }
    with OdradekBroker(properties) as broker:
        yield broker


def run_configs(servers: str, *arguments: str, check: bool = True) -> tools.ToolResult:
    return tools.run(
        tools.CONFIGS, "--bootstrap-server", servers, "--entity-type", "brokers", *arguments, check=check
    )  # fmt: skip


def alter(servers: str, changes: dict[str, str], *entity: str, check: bool = True) -> tools.ToolResult:
    added = ",".join(f"{name}=[{value}]" for name, value in changes.items())
    return run_configs(servers, *(entity or ("--entity-name", "1")), "--alter", "--add-config", added, check=check)


def describe(servers: str) -> list[str]:
    """Return the lines about the listener."""
    lines = run_configs(servers, "--entity-name", "1", "--describe").stdout.splitlines()
    return sorted(line.strip() for line in lines if line.strip().startswith(PREFIX))


def can_log_in(address: str, user: str, password: str) -> bool:
    configuration: dict[str, Any] = {
        "bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: None,
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": user, "sasl.password": password,
    }  # fmt: skip
    admin = AdminClient(configuration)
    try:
        admin.list_topics(timeout=10)
    except KafkaException:
        return False
    return True


def test_kafka_configs_changes_the_users_of_a_listener(broker: OdradekBroker) -> None:
    servers, address = broker.bootstrap_servers, broker.addresses[1]
    assert can_log_in(address, "alice", "static-secret")
    alter(servers, {f"{PREFIX}{name}": value for name, value in CHANGES.items()})
    assert [can_log_in(address, "alice", one) for one in ("alice-secret", "static-secret")] == [True, False]
    assert can_log_in(address, "bob", "bob-secret")
    with ExitStack() as stack:
        port = processes.lasting_port()
        kafka = stack.enter_context(ApacheKafkaWithSasl(port))
        alter(kafka.bootstrap_servers, {f"{PREFIX}{name}": value for name, value in CHANGES.items()})
        # Apache Kafka acknowledges a change before its broker describes it.
        wait_until(lambda: len(describe(kafka.bootstrap_servers)) == len(CHANGES))
        expected = describe(kafka.bootstrap_servers)
        assert describe(servers) == expected
        assert not [line for line in expected if "secret" in line]
        refused: list[Callable[[str], tools.ToolResult]] = [
            lambda servers: alter(servers, {f"{PREFIX}ssl.client.auth": "sometimes"}, check=False),
            lambda servers: alter(servers, {f"{PREFIX}ssl.client.auth": "none"}, "--entity-default", check=False),
            lambda servers: alter(
                servers, {f"{PREFIX}plain.sasl.jaas.config": CHANGES["plain.sasl.jaas.config"]}, "--entity-default",
                check=False,
            ),
        ]  # fmt: skip
        for change in refused:
            errors = [change(one).stderr for one in (servers, kafka.bootstrap_servers)]
            assert ["InvalidRequestException" in error for error in errors] == [True, True], errors
    run_configs(
        servers, "--entity-name", "1", "--alter", "--delete-config",
        ",".join(f"{PREFIX}{name}" for name in CHANGES),
    )  # fmt: skip
    assert can_log_in(address, "alice", "static-secret")
    assert "-secret" not in broker.log_text()
