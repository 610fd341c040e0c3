"""Brokers of Apache Kafka and Odradek that authenticate with ZooKeeper, and the access to their nodes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not exported explicitly
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from compat_tests.apache_kafka.zookeeper_mode import ZooKeeperModeBroker
from compat_tests.clients.common import wait_until
from compat_tests.processes import lasting_port
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperServer
from odradek.server.security.tls.certificates import Authority
from odradek.server.stores.zookeeper.client import MultiReadingClient
from odradek.server.stores.zookeeper.settings import Credentials
from odradek.testing import OdradekBroker

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
SERVER_JAAS = f'Server {{ {MODULE} required user_kafka="kafka-secret"; }};\n'
CLIENT_JAAS = f'Client {{ {MODULE} required username="kafka" password="kafka-secret"; }};\n'


class Secured:
    """A ZooKeeper with SASL, and a TLS port, and the files of its clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority = Authority(datetime.now(UTC))
        (directory / "ca.pem").write_bytes(authority.certificate)
        (directory / "zookeeper.pem").write_bytes(b"".join(authority.issue("zookeeper", ["127.0.0.1"])))
        (directory / "server.conf").write_text(SERVER_JAAS)
        (directory / "client.conf").write_text(CLIENT_JAAS)
        self.options = f"-Djava.security.auth.login.config={directory / 'client.conf'}"
        self.tls_port = lasting_port()
        settings = [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={self.tls_port}",
            f"ssl.keyStore.location={directory / 'zookeeper.pem'}",
            "ssl.enabledProtocols=TLSv1.2",
            "ssl.clientAuth=none",
            "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        ]
        options = [f"-Djava.security.auth.login.config={directory / 'server.conf'}"]
        self.zookeeper = ZooKeeperServer(directory / "data", settings=settings, jvm_options=options)

    def properties(self, chroot: str) -> dict[str, str]:
        """Return the properties of a broker of either kind."""
        return {
            "zookeeper.connect": f"127.0.0.1:{self.tls_port}{chroot}",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.location": str(self.directory / "ca.pem"),
            "zookeeper.ssl.truststore.type": "PEM",
            "zookeeper.set.acl": "true",
            "offsets.topic.num.partitions": "2",
            "password.encoder.secret": "a secret",
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    try:
        secured.zookeeper.start()
        yield secured
    finally:
        secured.zookeeper.kill()


def read_acls(secured: Secured, chroot: str) -> dict[str, list[tuple[str, str, tuple[str, ...]]]]:
    """Return the access to each node by its path."""
    client = MultiReadingClient(hosts=secured.zookeeper.connect)
    client.authenticate(Credentials("kafka", "kafka-secret"), lambda: None, lambda why: None)
    client.start()
    try:
        found: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
        waiting = [""]
        while waiting:
            path = waiting.pop()
            found[path] = sorted(
                (acl.id.scheme, acl.id.id, tuple(acl.acl_list)) for acl in client.get_acls(chroot + path)[0]
            )
            waiting += [f"{path}/{name}" for name in client.get_children(chroot + path)]
        return found
    finally:
        client.stop()
        client.close()


def change_something(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    # A broker of Apache Kafka that has started may not have itself in its metadata yet; the client would not ask again.
    wait_until(lambda: admin.list_topics(timeout=30).brokers, what="the broker has its metadata")
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.mark.usefixtures("kafka_jars")
def test_both_kinds_of_brokers_give_the_same_access(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_OPTS", secured.options)
    with OdradekBroker({**secured.properties("/odradek"), "broker.id": "1"}) as odradek:
        change_something(odradek.bootstrap_servers)
        own = read_acls(secured, "/odradek")
        assert "kafka-secret" not in odradek.log_text()
    with monkeypatch.context() as java:
        java.setenv("JDK_JAVA_OPTIONS", secured.options)
        kafka = ZooKeeperModeBroker(1, "", tmp_path / "kafka", secured.properties("/kafka"))
        try:
            kafka.start()
            java.delenv("JDK_JAVA_OPTIONS")
            change_something(kafka.bootstrap_servers)
            expected = read_acls(secured, "/kafka")
        finally:
            kafka.close()
    common = own.keys() & expected.keys()
    assert {path: own[path] for path in common} == {path: expected[path] for path in common}
    paths = {"", "/consumers", "/config", "/config/users", "/config/brokers", "/config/topics/t", "/brokers/ids/1"}
    assert paths <= common
    assert own["/config/brokers"] == [("sasl", "kafka", ("ALL",))]
    everyone = {path for path, acls in own.items() if ("world", "anyone", ("ALL",)) in acls}
    assert everyone == {"/consumers"}


def names_both_brokers(client: AdminClient) -> bool:
    """Apache Kafka names neither brokers nor topics until the controller has sent it the first metadata."""
    try:
        return len(client.list_topics(timeout=30).brokers) == 2
    except KafkaException as error:
        if error.args[0].code() != KafkaError._PARTIAL:
            raise
        return False


def list_replicas(broker: OdradekBroker) -> dict[str, list[int]]:
    """Return the replicas of the first partition of each topic."""
    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}).list_topics(timeout=60).topics
    return {name: sorted(topic.partitions[0].replicas) for name, topic in topics.items() if topic.partitions}


@pytest.mark.usefixtures("kafka_jars")
def test_a_mixed_cluster(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of broker reads the nodes that the other has made."""
    monkeypatch.setenv("KAFKA_OPTS", secured.options)
    properties = secured.properties("/mixed")
    with OdradekBroker({**properties, "broker.id": "1"}) as odradek, monkeypatch.context() as java:
        change_something(odradek.bootstrap_servers)
        java.setenv("JDK_JAVA_OPTIONS", secured.options)
        kafka = ZooKeeperModeBroker(2, "", tmp_path / "kafka", properties)
        try:
            kafka.start()
            java.delenv("JDK_JAVA_OPTIONS")
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            # The controller may not have followed the registration of the second broker yet, and that broker may not
            # have been told who the controller is: librdkafka asks for it once.
            own = AdminClient({"bootstrap.servers": odradek.bootstrap_servers, "log_level": 0})
            for client in (own, admin):
                wait_until(partial(names_both_brokers, client))
            admin.create_topics([NewTopic("of-kafka", 1, 2)])["of-kafka"].result(60)
            wait_until(lambda: list_replicas(odradek) == {"t": [1], "of-kafka": [1, 2]})
        finally:
            kafka.close()


def test_a_wrong_password_prevents_the_start(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.conf").write_text(CLIENT_JAAS.replace("kafka-secret", "wrong-secret"))
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={tmp_path / 'wrong.conf'}")
    with pytest.raises(Exception, match="ZooKeeper refuses the user name or the password") as failure:
        OdradekBroker({**secured.properties("/wrong"), "broker.id": "1"}).start()
    assert "exit code 1;" in str(failure.value)
    assert str(failure.value).count(" ERROR ") == 1
    assert "wrong-secret" not in str(failure.value)
