"""`odradek user`, `acl`, `quota` and `token` through the wire, compared with Kafka's tools."""

import re
import sys
from io import StringIO

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.conftest import SHARED_PROPERTIES
from compat_tests.tools.eventually import eventually

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

AUTHORIZERS = {
    "odradek": "kafka.security.authorizer.AclAuthorizer",
    "kafka": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


@pytest.fixture(scope="module")
def broker(backend, request):
    """A broker with an authorizer, for which every client is a super user."""
    from compat_tests.backends import BROKERS

    properties = {"authorizer.class.name": AUTHORIZERS[backend], "super.users": "User:ANONYMOUS"}
    with BROKERS[backend]({**SHARED_PROPERTIES, **properties}) as started:
        yield started


def test_users(odradek, tool, monkeypatch):
    def enter(text):
        monkeypatch.setattr(sys, "stdin", StringIO(text))

    def check(expected):
        def compare():
            shown = tool(tools.CONFIGS, "--describe", "--entity-type", "users").stdout
            lines = re.findall(r"^SCRAM credential configs for user-principal '(\w+)' are (.*)$", shown, re.MULTILINE)
            by_tool = {
                name: {mechanism: int(n) for mechanism, n in re.findall(r"(SCRAM-SHA-\d+)=iterations=(\d+)", line)}
                for name, line in lines
            }
            rows = {row["user"]: row["iterations"] for row in odradek("user", "list", "--json").json}
            assert rows == by_tool == expected

        eventually(compare)

    def plan(*arguments, entered="secret\n"):
        enter(entered)
        planned = odradek("user", *arguments, "--dry-run", "--json").json
        assert planned["dry_run"] and planned["results"] == [{"user": arguments[1], "error": None}]
        return {row["mechanism"]: (row["iterations"], row["new_iterations"]) for row in planned["changes"]}

    assert plan("create", "alice") == {"SCRAM-SHA-256": (None, 4096), "SCRAM-SHA-512": (None, 4096)}
    check({})
    enter("secret\n")
    assert odradek("user", "create", "alice").out == "user alice created\n"
    enter("secret\n")
    odradek("user", "add", "bob", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    check({"alice": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}, "bob": {"SCRAM-SHA-512": 8192}})
    assert plan("create", "bob") == {"SCRAM-SHA-256": (None, 4096), "SCRAM-SHA-512": (8192, 4096)}
    assert plan("alter", "bob", "--iterations", "9000") == {"SCRAM-SHA-512": (8192, 9000)}
    assert plan("delete", "alice") == {"SCRAM-SHA-256": (4096, None), "SCRAM-SHA-512": (4096, None)}
    check({"alice": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}, "bob": {"SCRAM-SHA-512": 8192}})
    enter("other\n")
    odradek("user", "alter", "bob", "--iterations", "9000")
    check({"alice": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}, "bob": {"SCRAM-SHA-512": 9000}})
    assert odradek("user", "describe", "bob", "--json").json == [{"user": "bob", "iterations": {"SCRAM-SHA-512": 9000}}]
    described = tool(tools.CONFIGS, "--describe", "--entity-type", "users", "--entity-name", "bob").stdout
    assert "user-principal 'bob' are SCRAM-SHA-512=iterations=9000" in described
    assert odradek("user", "describe", "bobb", code=1).err == "odradek: user bobb does not exist; did you mean bob?\n"
    enter("")
    assert "Repeat the command with --yes" in odradek("user", "delete", "alice", code=2).err
    odradek("user", "delete", "alice", "--mechanism", "SCRAM-SHA-256", "--yes")
    odradek("user", "remove", "bob", "--yes")
    check({"alice": {"SCRAM-SHA-512": 4096}})
    missing = odradek("user", "delete", "alice", "--mechanism", "SCRAM-SHA-256", "--yes", code=1)
    assert missing.err == "odradek: user alice has no credential of SCRAM-SHA-256\n"
    odradek("user", "delete", "alice", "--yes")
    check({})


def list_by_tool(tool):
    """Return the ACLs that kafka-acls shows, as rows of `odradek acl list`."""
    shown = tool(tools.ACLS, "--list").stdout
    rows = set()
    for block in re.split(r"^Current ACLs", shown, flags=re.MULTILINE)[1:]:
        kind, name, pattern = re.search(r"resourceType=(\w+), name=(.*?), patternType=(\w+)", block).groups()
        for principal, host, operation, permission in re.findall(
            r"principal=(.*?), host=(.*?), operation=(\w+), permissionType=(\w+)", block
        ):
            rows.add((permission, operation.replace("_", ""), principal, host, kind.replace("_", ""), pattern, name))
    return rows


def list_acls(odradek, *arguments):
    rows = odradek("acl", "list", *arguments, "--json").json
    keys = ("permission", "operation", "principal", "host", "resource_type", "pattern_type", "name")
    upper = ("permission", "operation", "resource_type")
    return {tuple(row[key].upper() if key in upper else row[key] for key in keys) for row in rows}


def test_acls(odradek, tool):
    created = odradek(
        "acl", "create", "--allow-principal", "User:alice", "--producer", "--consumer", "--topic", "o-", "--group", "g",
        "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert len(created.out.splitlines()) == 6
    odradek(
        "acl", "add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--operation", "describe", "--cluster"
    )

    def check_created():
        assert list_acls(odradek) == list_by_tool(tool)
        assert len(list_acls(odradek)) == 6

    eventually(check_created)
    assert list_acls(odradek, "--cluster") == {
        ("DENY", "DESCRIBE", "User:*", "10.0.0.9", "CLUSTER", "LITERAL", "kafka-cluster")
    }
    assert len(list_acls(odradek, "--topic", "o-1", "--resource-pattern-type", "match")) == 4
    assert len(list_acls(odradek, "--principal", "User:alice")) == 5
    selected = ["--topic", "o-", "--resource-pattern-type", "prefixed"]
    refused = odradek("acl", "delete", *selected, code=2)
    assert "Delete 4 ACLs? Repeat the command with --yes" in refused.err and len(refused.out.splitlines()) == 5
    odradek("acl", "delete", *selected, "--dry-run")
    assert len(list_acls(odradek)) == 6
    odradek("acl", "delete", *selected, "--yes")
    odradek("acl", "remove", "--cluster", "--force")

    def check_deleted():
        assert list_acls(odradek) == list_by_tool(tool)
        assert len(list_acls(odradek)) == 1

    eventually(check_deleted)
    before = list_by_tool(tool)
    planned = odradek(
        "acl", "create", "--allow-principal", "User:alice", "--consumer", "--topic", "t", "--group", "g",
        "--resource-pattern-type", "prefixed", "--dry-run", "--json",
    ).json  # fmt: skip
    assert {(row["resource_type"], row["operation"], row["exists"]) for row in planned} == {
        ("Group", "Read", True),
        ("Topic", "Read", False),
        ("Topic", "Describe", False),
    }
    assert list_by_tool(tool) == before
    assert "specify a resource" in odradek("acl", "create", "--allow-principal", "User:a", code=2).err


def describe_quotas_by_tool(tool, *entity):
    """Return the quotas that kafka-configs shows."""
    shown = tool(tools.CONFIGS, "--describe", *entity).stdout
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", shown)}


def test_a_quota_that_does_not_exist(odradek):
    refused = odradek("quota", "alter", "--user", "quota-user", "--set", "produce_byte_rate=1", code=1).err
    assert refused.endswith("; did you mean producer_byte_rate or consumer_byte_rate?\n")
    refused = odradek("quota", "alter", "--ip", "10.0.0.1", "--set", "bytes=1", code=1).err
    assert refused.endswith("; there are connection_creation_rate\n")


def test_quotas(odradek, tool):
    alter = ["quota", "alter", "--user", "quota-user"]
    done = odradek(*alter, "--set", "producer_byte_rate=1000", "--set", "request_percentage=12.5")
    assert re.search(r"^user quota-user +producer_byte_rate +- +1000$", done.out, re.MULTILINE)

    def check_set():
        [row] = odradek("quota", "list", "--user", "quota-user", "--json").json
        assert row["quotas"] == {"producer_byte_rate": 1000, "request_percentage": 12.5}
        entity = ["--entity-type", "users", "--entity-name", "quota-user"]
        assert describe_quotas_by_tool(tool, *entity) == row["quotas"]

    eventually(check_set)
    preview = odradek(*alter, "--set", "producer_byte_rate=5", "--dry-run").out
    assert re.search(r"producer_byte_rate +1000 +5$", preview, re.MULTILINE)
    check_set()
    odradek(*alter, "--client-id", "<default>", "--set", "consumer_byte_rate=7")
    odradek("quota", "alter", "--ip", "10.0.0.1", "--set", "connection_creation_rate=3")

    def check_all():
        rows = odradek("quota", "list", "--json").json
        assert {"user": "quota-user", "client_id": "<default>", "ip": None, "quotas": {"consumer_byte_rate": 7}} in rows
        assert {"user": None, "client_id": None, "ip": "10.0.0.1", "quotas": {"connection_creation_rate": 3}} in rows
        assert len(odradek("quota", "list", "--user", "quota-user", "--json").json) == 2
        assert len(odradek("quota", "list", "--user", "quota-user", "--strict", "--json").json) == 1
        assert describe_quotas_by_tool(tool, "--entity-type", "ips", "--entity-name", "10.0.0.1") == {
            "connection_creation_rate": 3
        }

    eventually(check_all)
    odradek(*alter, "--delete", "request_percentage")
    assert "Repeat the command with --yes" in odradek("quota", "delete", "--ip", "10.0.0.1", code=2).err
    odradek("quota", "delete", "--ip", "10.0.0.1", "--yes")

    def check_deleted():
        assert describe_quotas_by_tool(tool, "--entity-type", "ips", "--entity-name", "10.0.0.1") == {}
        entity = ["--entity-type", "users", "--entity-name", "quota-user"]
        assert describe_quotas_by_tool(tool, *entity) == {"producer_byte_rate": 1000}
        rows = odradek("quota", "list", "--json").json
        assert [row["quotas"] for row in rows if row["client_id"] is None] == [{"producer_byte_rate": 1000}]

    eventually(check_deleted)
    assert odradek("quota", "delete", "--ip", "10.0.0.1", "--yes", code=1).err == "odradek: ip 10.0.0.1 has no quotas\n"
    assert odradek(*alter, "--set", "invented=1", code=1).err.startswith("odradek: INVALID_REQUEST: ")
    assert "the value must be a number" in odradek(*alter, "--set", "producer_byte_rate=x", code=2).err
    assert "specify --user" in odradek("quota", "alter", "--set", "producer_byte_rate=1", code=2).err
