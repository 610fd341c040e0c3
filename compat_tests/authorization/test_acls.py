"""ACLs with Apache Kafka's tool and the admin clients of other libraries, and `odradek acl`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ACLResourcePatternType as PatternType
from kafka.admin import ResourceType as KafkaResourceType
from kafka.errors import SecurityDisabledError

from compat_tests import limits
from compat_tests.apache_kafka.tools import ACLS, ToolResult, run
from compat_tests.authorization.acl_requests import answer_all
from compat_tests.backends import BROKERS, Broker
from odradek.testing import OdradekBroker

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("kafka_jars")]

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:root",
}

EVERYTHING = ACLFilter(
    None, None, ACLOperation.ANY, ACLPermissionType.ANY,
    ResourcePatternFilter(KafkaResourceType.ANY, None, PatternType.ANY),
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(backend: str) -> Iterator[Broker]:
    with BROKERS[backend](AUTHORIZER) as started:
        yield started


@pytest.fixture(autouse=True)
def no_acls(broker: Broker) -> None:
    """Delete the ACLs of the test before."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    [deleted] = admin.delete_acls([any_filter()]).values()
    deleted.result(limits.CONDITION_S)


def any_filter(**fields: Any) -> AclBindingFilter:
    values = {
        "restype": ResourceType.ANY, "name": None, "resource_pattern_type": ResourcePatternType.ANY, "principal": None,
        "host": None, "operation": AclOperation.ANY, "permission_type": AclPermissionType.ANY, **fields,
    }  # fmt: skip
    return AclBindingFilter(*values.values())


def describe(broker: Any, **fields: Any) -> set[str]:
    """Return the ACLs in a short form, such as `TOPIC LITERAL t User:a * READ ALLOW`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    found = admin.describe_acls(any_filter(**fields)).result(limits.CONDITION_S)
    return {
        f"{one.restype.name} {one.resource_pattern_type.name} {one.name} {one.principal} {one.host} "
        f"{one.operation.name} {one.permission_type.name}"
        for one in found
    }


def kafka_acls(broker: Broker, *arguments: str, **options: Any) -> ToolResult:
    return run(ACLS, "--bootstrap-server", broker.bootstrap_servers, *arguments, **options)


@pytest.mark.side_by_side
def test_kafka_acls_adds_lists_and_removes(broker: Broker) -> None:
    kafka_acls(
        broker, "--add", "--allow-principal", "User:alice", "--allow-host", "10.0.0.1", "--deny-principal", "User:*",
        "--deny-host", "10.0.0.9", "--operation", "Read", "--operation", "Write", "--topic", "orders",
    )  # fmt: skip
    prefixed = ("--resource-pattern-type", "prefixed", "--group", "app-")
    kafka_acls(broker, "--add", "--allow-principal", "User:alice", "--operation", "Read", *prefixed)
    orders = {
        f"TOPIC LITERAL orders {rule}"
        for operation in ("READ", "WRITE")
        for rule in (f"User:alice 10.0.0.1 {operation} ALLOW", f"User:* 10.0.0.9 {operation} DENY")
    }
    assert describe(broker) == {*orders, "GROUP PREFIXED app- User:alice * READ ALLOW"}
    listed = kafka_acls(broker, "--list", "--topic", "orders").stdout
    assert "resourceType=TOPIC, name=orders, patternType=LITERAL" in listed and "name=app-" not in listed
    assert listed.count("principal=") == 4
    matching = kafka_acls(broker, "--list", "--group", "app-1", "--resource-pattern-type", "match").stdout
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in matching
    mine = kafka_acls(broker, "--list", "--principal", "User:alice").stdout
    assert mine.count("principal=User:alice") == 3 and "User:*" not in mine
    kafka_acls(
        broker, "--remove", "--force", "--allow-principal", "User:alice", "--allow-host", "10.0.0.1", "--operation",
        "Read", "--topic", "orders",
    )  # fmt: skip
    assert describe(broker) >= orders - {"TOPIC LITERAL orders User:alice 10.0.0.1 READ ALLOW"}
    kafka_acls(broker, "--remove", "--force", "--topic", "orders")
    assert describe(broker) == {"GROUP PREFIXED app- User:alice * READ ALLOW"}
    kafka_acls(broker, "--remove", "--force", *prefixed)
    assert describe(broker) == set()


@pytest.mark.side_by_side
def test_kafka_acls_for_producers_and_consumers(broker: Broker) -> None:
    kafka_acls(
        broker, "--add", "--allow-principal", "User:app", "--producer", "--idempotent", "--consumer", "--topic", "t",
        "--group", "g", "--transactional-id", "x",
    )  # fmt: skip
    assert describe(broker) == {
        *(f"TOPIC LITERAL t User:app * {operation} ALLOW" for operation in ("READ", "WRITE", "CREATE", "DESCRIBE")),
        "GROUP LITERAL g User:app * READ ALLOW",
        *(f"TRANSACTIONAL_ID LITERAL x User:app * {operation} ALLOW" for operation in ("WRITE", "DESCRIBE")),
        "BROKER LITERAL kafka-cluster User:app * IDEMPOTENT_WRITE ALLOW",
    }


@pytest.mark.side_by_side
def test_kafka_acls_reports_refused_acls(broker: Broker) -> None:
    refused = kafka_acls(
        broker, "--add", "--allow-principal", "User:a", "--operation", "Alter", "--cluster", "--topic", "", check=False
    )
    assert refused.returncode == 1 and "Invalid empty resource name" in refused.stdout + refused.stderr


@pytest.mark.side_by_side
def test_confluent_kafka_creates_describes_and_deletes(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    bindings = [
        AclBinding(restype, name, pattern, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
        for restype, name, pattern in (
            (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL),
            (ResourceType.TOPIC, "te", ResourcePatternType.PREFIXED),
            (ResourceType.TOPIC, "*", ResourcePatternType.LITERAL),
            (ResourceType.GROUP, "team/app", ResourcePatternType.LITERAL),
        )
    ]
    for future in admin.create_acls(bindings).values():
        future.result(limits.CONDITION_S)
    matching = {"restype": ResourceType.TOPIC, "resource_pattern_type": ResourcePatternType.MATCH, "name": "test"}
    assert describe(broker, **matching) == {
        "TOPIC PREFIXED te User:alice * READ ALLOW",
        "TOPIC LITERAL * User:alice * READ ALLOW",
    }
    [deleted] = admin.delete_acls([any_filter(**matching)]).values()
    assert {one.name for one in deleted.result(limits.CONDITION_S)} == {"te", "*"}
    assert describe(broker) == {
        "TOPIC LITERAL t User:alice * READ ALLOW",
        "GROUP LITERAL team/app User:alice * READ ALLOW",
    }


@pytest.mark.side_by_side
def test_kafka_python_creates_describes_and_deletes(broker: Broker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        pattern = ResourcePattern(KafkaResourceType.TRANSACTIONAL_ID, "tx-", PatternType.PREFIXED)
        acl = ACL("User:bob", "10.0.0.1", ACLOperation.WRITE, ACLPermissionType.DENY, pattern)
        created = admin.create_acls([acl])
        assert len(created["succeeded"]) == 1 and not created["failed"]
        found, _ = admin.describe_acls(EVERYTHING)
        assert found == [acl]
        [(_, deleted, _)] = admin.delete_acls([EVERYTHING])
        assert deleted == [acl]
        assert admin.describe_acls(EVERYTHING)[0] == []
    finally:
        admin.close()


@pytest.mark.side_by_side
def test_acls_remain_after_a_restart_and_a_crash(backend: str) -> None:
    with BROKERS[backend](AUTHORIZER) as broker:
        binding = AclBinding(
            ResourceType.GROUP, "a/b", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.create_acls([binding]).values():
            future.result(limits.CONDITION_S)
        for clean in (True, False):
            broker.restart(clean=clean)
            assert describe(broker) == {"GROUP LITERAL a/b User:a * READ ALLOW"}


def test_requests_are_answered_as_by_apache_kafka() -> None:
    with BROKERS["kafka"](AUTHORIZER) as kafka, OdradekBroker(AUTHORIZER) as odradek:
        for version in (1, 2, 3):
            expected, answers = answer_all(kafka.port, version), answer_all(odradek.port, version)
            assert answers == expected, version


def test_without_an_authorizer_requests_are_answered_as_by_apache_kafka() -> None:
    with BROKERS["kafka"]({}) as kafka, OdradekBroker({}) as odradek:
        expected, answers = answer_all(kafka.port, 3), answer_all(odradek.port, 3)
        admin = KafkaAdminClient(bootstrap_servers=odradek.bootstrap_servers)
        with pytest.raises(SecurityDisabledError):
            admin.describe_acls(EVERYTHING)
        admin.close()
    assert answers == expected


def odradek_acl(data_dir: Path, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    overrides = [f"--override=log.dirs={data_dir}", *(f"--override={name}={text}" for name, text in AUTHORIZER.items())]
    return subprocess.run(
        [sys.executable, "-m", "odradek", "acl", *arguments, *overrides],
        input=stdin, capture_output=True, text=True, timeout=limits.TOOL_S,
    )  # fmt: skip


def read_table(text: str) -> list[list[str]]:
    """Return the rows of a table without its heading."""
    return [line.split() for line in text.splitlines()[1:]]


def test_odradek_acl_before_the_first_start_and_after_it(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    added = odradek_acl(
        data_dir, "add", "--allow-principal", "User:alice", "--consumer", "--topic", "o-", "--group", "g",
        "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    rows = [
        ["ALLOW", "Read", "User:alice", "*", "Topic", "PREFIXED", "o-"],
        ["ALLOW", "Describe", "User:alice", "*", "Topic", "PREFIXED", "o-"],
        ["ALLOW", "Read", "User:alice", "*", "Group", "PREFIXED", "g"],
    ]
    assert read_table(added.stdout) == rows
    with OdradekBroker({**AUTHORIZER, "log.dirs": str(data_dir)}) as broker:
        assert describe(broker) == {
            "TOPIC PREFIXED o- User:alice * READ ALLOW",
            "TOPIC PREFIXED o- User:alice * DESCRIBE ALLOW",
            "GROUP PREFIXED g User:alice * READ ALLOW",
        }
        running = odradek_acl(data_dir, "list")
        assert running.returncode == 1
        assert running.stderr.startswith("odradek: the broker is running") and "--bootstrap-server" in running.stderr
        broker.stop()
        client = ("--principal", "User:alice", "--host", "10.0.0.1")
        allowed = odradek_acl(data_dir, "test", *client, "--operation", "Read", "--topic", "o-1")
        assert (allowed.returncode, allowed.stdout) == (
            0,
            "allowed: ALLOW Read for User:alice from * on Topic:PREFIXED:o-\n",
        )
        denied = odradek_acl(data_dir, "test", *client, "--operation", "Write", "--topic", "o-1")
        assert (denied.returncode, denied.stdout) == (1, "denied: no matching ACL\n")
        refused = odradek_acl(data_dir, "remove", "--topic", "o-", "--resource-pattern-type", "prefixed")
        assert refused.returncode == 2 and "Delete 2 ACLs? Repeat the command with --yes" in refused.stderr
        removed = odradek_acl(data_dir, "remove", "--topic", "o-", "--resource-pattern-type", "prefixed", "--force")
        assert (removed.returncode, read_table(removed.stdout)) == (0, rows[:2])
        assert read_table(odradek_acl(data_dir, "list").stdout) == rows[2:]
        broker.start()
        assert describe(broker) == {"GROUP PREFIXED g User:alice * READ ALLOW"}
