"""Adoption of the ACLs, SCRAM users, quotas and subscriptions of a directory that Apache Kafka wrote."""

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests import limits
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.authorization.test_acls import describe
from compat_tests.clients.common import wait_until
from odradek.testing import OdradekBroker

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
# Some records are in a snapshot, the others in the log after it.
KAFKA = {**AUTHORIZER, "metadata.log.max.record.bytes.between.snapshots": "3000"}
LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
}
REMOVED = (("gone", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512"))
CREDENTIALS = (("alice", "SCRAM-SHA-256"), ("bob", "SCRAM-SHA-512"), *REMOVED)

pytestmark = pytest.mark.usefixtures("kafka_jars")


def alter(server: str, *arguments: str) -> None:
    tools.run(tools.CONFIGS, "--bootstrap-server", server, "--alter", *arguments)


def fill(kafka: ApacheKafkaBroker) -> None:
    server = kafka.bootstrap_servers
    for user, mechanism in CREDENTIALS:
        credential = f"{mechanism}=[password={user}-secret]"
        alter(server, "--entity-type", "users", "--entity-name", user, "--add-config", credential)
    for user, mechanism in REMOVED:
        alter(server, "--entity-type", "users", "--entity-name", user, "--delete-config", mechanism)
    alter(server, "--entity-type", "users", "--entity-name", "alice", "--add-config", "producer_byte_rate=100000")
    pair = ("--entity-type", "clients", "--entity-name", "app ~*", "--entity-type", "users", "--entity-default")
    alter(server, *pair, "--add-config", "request_percentage=12.5,consumer_byte_rate=7")
    alter(server, *pair, "--delete-config", "consumer_byte_rate")
    alter(server, "--entity-type", "ips", "--entity-name", "10.0.0.1", "--add-config", "connection_creation_rate=9")
    metrics = ("--entity-type", "client-metrics", "--entity-name")
    alter(server, *metrics, "all of a/b", "--add-config", "metrics=[a.,b],match=[client_id=x],interval.ms=1000")
    alter(server, *metrics, "gone", "--add-config", "interval.ms=1000")
    alter(server, *metrics, "gone", "--delete-config", "interval.ms")
    group = ("--entity-type", "groups", "--entity-name", "billing")
    alter(server, *group, "--add-config", "consumer.session.timeout.ms=50000")
    acls = ("--bootstrap-server", server)
    rules = ("--allow-principal", "User:alice", "--deny-principal", "User:bob", "--deny-host", "10.0.0.9")
    tools.run(tools.ACLS, *acls, "--add", *rules, "--operation", "All", "--topic", "orders", "--group", "*")
    prefixed = ("--resource-pattern-type", "prefixed", "--topic", "app-", "--operation", "Read")
    tools.run(tools.ACLS, *acls, "--add", "--allow-principal", "User:*", *prefixed)
    tools.run(tools.ACLS, *acls, "--add", "--allow-principal", "User:alice", "--cluster", "--operation", "Alter")
    tools.run(tools.ACLS, *acls, "--add", "--allow-principal", "User:bob", "--topic", "gone", "--operation", "Read")
    tools.run(tools.ACLS, *acls, "--remove", "--force", "--topic", "gone")


def described(server: str) -> set[str]:
    """Return the configurations of users, clients, addresses and client metrics, as kafka-configs prints them."""
    found = set()
    for kinds in (("users",), ("clients",), ("users", "clients"), ("ips",), ("client-metrics",)):
        options = [part for kind in kinds for part in ("--entity-type", kind)]
        lines = tools.run(tools.CONFIGS, "--bootstrap-server", server, "--describe", *options).lines
        found.update(re.sub(r"\s+", " ", line).strip() for line in lines)
    return found


def log_in(address: str, user: str, mechanism: str) -> None:
    """Ask a question as a user with its password."""
    admin = AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": f"{user}-secret",
        }
    )
    admin.list_topics(timeout=limits.CONDITION_S)


@pytest.mark.parametrize("clean", [pytest.param(True, id="stopped"), pytest.param(False, id="killed")])
def test_users_quotas_and_acls_are_those_of_kafka(tmp_path: Path, clean: bool) -> None:
    with ApacheKafkaBroker(KAFKA, directory=tmp_path) as kafka:
        fill(kafka)
        # Apache Kafka acknowledges a change before its broker describes it.
        wait_until(lambda: len(describe(kafka)) == 6, what="the ACLs")
        acls, entities = describe(kafka), described(kafka.bootstrap_servers)
        kafka.stop() if clean else kafka.kill()
    assert all(any(text in line for line in entities) for text in ("producer_byte_rate", "a/b"))
    with OdradekBroker({**AUTHORIZER, **LISTENERS, "log.dirs.adopt": "true"}, directory=tmp_path) as broker:
        for _ in range(2):
            assert describe(broker) == acls
            assert described(broker.bootstrap_servers) == entities
            for user, mechanism in CREDENTIALS[:2]:
                log_in(broker.addresses[1], user, mechanism)
            broker.restart(clean=clean)
        log = broker.log_text()
    not_adopted = [line for line in log.splitlines() if "not adopted" in line]
    assert "acls=6" in log and len(not_adopted) == 1
    assert "configurations of groups are not adopted" in not_adopted[0] and "count=1: billing" in not_adopted[0]
