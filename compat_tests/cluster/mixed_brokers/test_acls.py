"""ACLs in a cluster of Odradek's and Apache Kafka 3.9's brokers: a change on any broker applies to all of them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from compat_tests import limits
from compat_tests.clients.common import wait_until
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster
from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.messages.create_acls import CreateAclsRequest, CreateAclsRequestAclCreation
from odradek.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsRequestDeleteAclsFilter
from odradek.protocol.messages.describe_acls import DescribeAclsRequest
from odradek.server.tests.wire import Wire

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(limits.LONG_TEST_S),
]

AUTHORIZER = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
JAVA, FIRST, SECOND = 3, 1, 2
BROKERS = (FIRST, SECOND, JAVA)
Acl = tuple[str, str, str, str, str]
"""Pattern type, name, principal, operation and permission."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    kinds = {FIRST: ODRADEK, SECOND: ODRADEK, JAVA: KAFKA}
    with MixedCluster(kinds, tmp_path_factory.mktemp("mixed"), AUTHORIZER) as cluster:
        for number in (JAVA, FIRST, SECOND):
            cluster.start(number)
        yield cluster


def create(cluster: MixedCluster, broker: int, *acls: Acl) -> None:
    creations = [
        CreateAclsRequestAclCreation(
            resource_type=ResourceType.TOPIC,
            resource_name=name,
            resource_pattern_type=PatternType.parse(pattern_type),
            principal=principal,
            host="*",
            operation=Operation.parse(operation),
            permission_type=Permission.parse(permission),
        )
        for pattern_type, name, principal, operation, permission in acls
    ]
    with Wire(cluster.port(broker)) as wire:
        results = wire.ask(CreateAclsRequest(creations=creations), 3).results
    assert [result.error_code for result in results] == [0] * len(acls)


def delete(cluster: MixedCluster, broker: int, name: str | None, pattern_type: PatternType) -> int:
    """Delete the ACLs that a filter selects; return their number."""
    one = DeleteAclsRequestDeleteAclsFilter(
        resource_type_filter=ResourceType.TOPIC,
        resource_name_filter=name,
        pattern_type_filter=pattern_type,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    with Wire(cluster.port(broker)) as wire:
        [result] = wire.ask(DeleteAclsRequest(filters=[one]), 3).filter_results
    assert result.error_code == 0
    return len(result.matching_acls)


def describe(cluster: MixedCluster, broker: int) -> set[Acl]:
    everything = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    with Wire(cluster.port(broker)) as wire:
        resources = wire.ask(everything, 3).resources
    return {
        (
            PatternType(one.pattern_type).name,
            one.resource_name,
            acl.principal,
            Operation(acl.operation).name,
            Permission(acl.permission_type).name,
        )
        for one in resources
        for acl in one.acls
    }


def wait_for(cluster: MixedCluster, expected: set[Acl], brokers: tuple[int, ...] = BROKERS) -> float:
    """Wait until brokers apply these ACLs, and no others; return the time that it took, in seconds."""
    began = time.monotonic()
    for broker in brokers:
        found: list[set[Acl]] = []

        def applies(broker: int = broker, found: list[set[Acl]] = found) -> bool:
            found.append(describe(cluster, broker))
            return found[-1] == expected

        wait_until(applies)
    return time.monotonic() - began


@pytest.mark.parametrize("maker", BROKERS)
def test_a_change_on_one_broker_applies_to_all(cluster: MixedCluster, maker: int) -> None:
    literal = ("LITERAL", "orders", "User:alice", "READ", "ALLOW")
    everything = ("LITERAL", "*", "User:*", "DESCRIBE", "DENY")
    prefixed = ("PREFIXED", "o-", "User:CN=bob,O=x", "ALL", "ALLOW")
    create(cluster, maker, literal, everything, prefixed)
    assert describe(cluster, maker) == {literal, everything, prefixed}
    wait_for(cluster, {literal, everything, prefixed})
    # A second change of a pattern that exists, by a broker that did not create it.
    other = BROKERS[(BROKERS.index(maker) + 1) % len(BROKERS)]
    another = ("LITERAL", "orders", "User:bob", "WRITE", "DENY")
    create(cluster, other, another)
    wait_for(cluster, {literal, another, everything, prefixed})
    assert delete(cluster, maker, "orders", PatternType.LITERAL) == 2
    assert describe(cluster, maker) == {everything, prefixed}
    wait_for(cluster, {everything, prefixed})
    assert delete(cluster, other, None, PatternType.ANY) == 2
    wait_for(cluster, set())


def test_no_change_of_the_same_pattern_by_several_brokers_is_lost(cluster: MixedCluster) -> None:
    count = 15
    expected = {
        ("LITERAL", "shared", f"User:{broker}-{index}", "READ", "ALLOW") for broker in BROKERS for index in range(count)
    }
    failures: list[BaseException] = []

    def create_all(broker: int) -> None:
        try:
            for index in range(count):
                create(cluster, broker, ("LITERAL", "shared", f"User:{broker}-{index}", "READ", "ALLOW"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create_all, args=(broker,)) for broker in BROKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    wait_for(cluster, expected)
    assert delete(cluster, FIRST, "shared", PatternType.LITERAL) == len(expected)
    wait_for(cluster, set())


def test_brokers_load_the_acls_of_the_other_kind_at_their_start(cluster: MixedCluster) -> None:
    of_java = ("PREFIXED", "java-", "User:alice", "READ", "ALLOW")
    of_odradek = ("PREFIXED", "odradek-", "User:alice", "READ", "ALLOW")
    create(cluster, JAVA, of_java)
    create(cluster, FIRST, of_odradek)
    for broker in (JAVA, FIRST):
        cluster.stop(broker)
        cluster.start(broker)
        assert describe(cluster, broker) == {of_java, of_odradek}
    # A broker follows changes also after a restart of any of them.
    assert delete(cluster, JAVA, "java-", PatternType.PREFIXED) == 1
    wait_for(cluster, {of_odradek})
    assert delete(cluster, FIRST, "odradek-", PatternType.PREFIXED) == 1
    wait_for(cluster, set())


def test_a_broker_follows_changes_after_its_session_has_expired(cluster: MixedCluster) -> None:
    pid = cluster.brokers[SECOND].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with zookeeper(cluster) as client:
            wait_until(lambda: str(SECOND) not in client.get_children("/brokers/ids"), timeout_s=60)
        meanwhile = ("LITERAL", "meanwhile", "User:alice", "READ", "ALLOW")
        create(cluster, JAVA, meanwhile)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: describe(cluster, SECOND) == {meanwhile}, timeout_s=60)
    assert delete(cluster, JAVA, "meanwhile", PatternType.LITERAL) == 1
    wait_for(cluster, set())


def test_odradek_acl_changes_the_acls_of_running_brokers(cluster: MixedCluster, tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        overrides = {"zookeeper.connect": cluster.zookeeper.connect, "log.dirs": str(tmp_path), **AUTHORIZER}
        command = [sys.executable, "-m", "odradek", "acl", *arguments]
        command += [f"--override={name}={text}" for name, text in overrides.items()]
        return subprocess.run(command, capture_output=True, text=True, timeout=limits.TOOL_S)

    added = run("add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "t")
    assert added.returncode == 0, added.stderr
    wait_for(cluster, {("LITERAL", "t", "User:alice", "READ", "ALLOW")})
    client = ("--principal", "User:alice", "--host", "10.0.0.1", "--topic", "t")
    assert run("test", *client, "--operation", "Describe").returncode == 0
    assert run("test", *client, "--operation", "Write").returncode == 1
    assert run("remove", "--force", "--topic", "t").returncode == 0
    wait_for(cluster, set())


class zookeeper:  # noqa: N801 - used like a function
    """A client of the cluster's ensemble, as a context manager."""

    def __init__(self, cluster: MixedCluster) -> None:
        self._client = KazooClient(cluster.zookeeper.connect)

    def __enter__(self) -> KazooClient:
        self._client.start()
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()
