"""Connections to a real ZooKeeper with TLS and SASL, and the access to nodes."""

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl

from odradek.ports import PortReservation
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.store import MetadataStoreError, StoreUnavailableError
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperServer, find_port
from odradek.server.config import parse_config
from odradek.server.environment import Environment
from odradek.server.security.tls.certificates import Authority
from odradek.server.store_location import open_zookeeper_store
from odradek.server.stores.tests.zookeeper import TestReactor
from odradek.server.stores.zookeeper.client import MultiReadingClient, ReactorHandler
from odradek.server.stores.zookeeper.digest_md5 import DigestError, DigestMd5
from odradek.server.stores.zookeeper.settings import Credentials
from odradek.server.tests.refused_start import refuse_start
from odradek.testing import OdradekBroker

JAAS = """\
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_alice="alice's secret \\"1\\""
    user_bob="bob-secret";
};
"""
ALICE = ("alice", "alice's secret \\\"1\\\"")
BOB = ("bob", "bob-secret")
NONE: list[ACL] = []
READ = [make_acl("world", "anyone", read=True)]
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"


class Server:
    """A ZooKeeper with a plaintext port with SASL, and a TLS port that requires a certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority, other = Authority(datetime.now(UTC)), Authority(datetime.now(UTC))
        self.write("ca", authority.certificate)
        self.write("other-ca", other.certificate)
        self.write("zookeeper", *authority.issue("zookeeper", ["localhost", "127.0.0.1"]))
        self.write("broker", *authority.issue("broker"))
        self.write("second-broker", *authority.issue("second-broker"))
        self.write("stranger", *other.issue("stranger"))
        (directory / "jaas.conf").write_text(JAAS)
        self._reservation = PortReservation(find_port())
        self.tls_port = self._reservation.port
        settings = [
            f"serverCnxnFactory={NETTY}",
            f"secureClientPort={self.tls_port}",
            f"ssl.keyStore.location={self.path('zookeeper')}",
            f"ssl.trustStore.location={self.path('ca')}",
            "ssl.enabledProtocols=TLSv1.2,TLSv1.3",
            "ssl.clientHostnameVerification=false",
            "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        ]
        options = [f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"]
        self.zookeeper = ZooKeeperServer(directory / "zookeeper-data", settings=settings, jvm_options=options)

    def write(self, name: str, *parts: bytes) -> None:
        (self.directory / f"{name}.pem").write_bytes(b"".join(parts))

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.pem")

    def tls(self, key: str | None = "broker", **more: str) -> dict[str, str]:
        """Return the properties of a broker that connects with TLS."""
        own = {} if key is None else {"zookeeper.ssl.keystore.location": self.path(key)}
        return {
            "zookeeper.connect": f"127.0.0.1:{self.tls_port}",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.location": self.path("ca"),
            **own,
            **{f"zookeeper.ssl.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def sasl(self, user: tuple[str, str]) -> dict[str, str]:
        """Return the properties of a broker that authenticates with SASL."""
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        return {
            "zookeeper.connect": self.zookeeper.connect,
            "zookeeper.sasl.jaas.config": f'{module} required username="{user[0]}" password="{user[1]}";',
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("secure-zookeeper"))
    try:
        server.zookeeper.start()
        yield server
    finally:
        server.zookeeper.kill()


@pytest.fixture
def reactor() -> TestReactor:
    return TestReactor()


def connect(reactor: TestReactor, properties: dict[str, str], chroot: str = "", timeout_ms: int = 20_000) -> Any:
    """Return a connected store. Raises StartError."""
    timeout = {"zookeeper.connection.timeout.ms": str(timeout_ms), "zookeeper.session.timeout.ms": "6000"}
    values = {**properties, **timeout, "broker.id": "1", "log.dirs": "/none"}
    values["zookeeper.connect"] += chroot
    return reactor.run(open_zookeeper_store(Environment(reactor), parse_config(values).config))  # type: ignore[arg-type]


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
def test_tls_with_a_certificate(server: Server, reactor: TestReactor, versions: str) -> None:
    store = connect(reactor, server.tls(enabled_protocols=versions), f"/{versions}")
    reactor.run(store.create("/a", bytes(900_000)))
    node = reactor.run(store.get("/a"))
    assert len(node.data) == 900_000
    events: list[object] = []
    reactor.run(store.get_children("/", events.append))
    for number in range(200):
        reactor.run(store.create(f"/{number}", b"x" * number))
    reactor.run_until(lambda: bool(events))
    assert len(reactor.run(store.get_children("/"))) == 201
    reactor.run(store.close())


def test_decrypted_bytes_are_readable(server: Server) -> None:
    """Otherwise a response that shares a TLS record with an earlier one would wait for the next heartbeat."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Later versions send tickets after the handshake, which make the socket readable.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server.path("zookeeper"))
    ours, theirs = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: accepted.append(context.wrap_socket(theirs, server_side=True)))
    thread.start()
    client = ssl.create_default_context(cafile=server.path("ca"))
    handler = ReactorHandler(TestReactor(), 1.0)
    idle, other = socket.socketpair()
    with client.wrap_socket(ours, server_hostname="localhost") as readable, idle, other:
        thread.join()
        with accepted[0] as sender:
            sender.sendall(b"ab")
            assert readable.recv(1) == b"a"
            assert handler.select([readable, idle], [], None, 60.0) == ([readable], [], [])
            other.send(b"x")
            assert handler.select([readable, idle], [], None, 60.0) == ([readable, idle], [], [])
            assert readable.recv(1) == b"b"
            assert handler.select([readable, idle], [], None, 60.0) == ([idle], [], [])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"truststore_location": "other-ca"}, "the TLS handshake failed: certificate verify failed"),
        ({"key": "stranger"}, "cannot connect to ZooKeeper"),
        ({"key": None}, "cannot connect to ZooKeeper"),
    ],
)
def test_tls_that_fails(server: Server, reactor: TestReactor, more: dict[str, Any], reason: str) -> None:
    given = {name: server.path(value) if name == "truststore_location" else value for name, value in more.items()}
    with pytest.raises(StartError, match=reason):
        connect(reactor, server.tls(**given), timeout_ms=2000)


def test_host_names_are_verified(server: Server, reactor: TestReactor) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = Authority(datetime.now(UTC))
    server.write("own-ca", authority.certificate)
    server.write("elsewhere", *authority.issue("zookeeper", ["elsewhere.example"]))
    context.load_cert_chain(server.path("elsewhere"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    with context.wrap_socket(listening.accept()[0], server_side=True):
                        pass
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        properties = server.tls(truststore_location=server.path("own-ca"))
        properties["zookeeper.connect"] = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(StartError, match="IP address mismatch"):
            connect(reactor, properties, timeout_ms=1000)
        listening.shutdown(socket.SHUT_RDWR)


def test_sasl(server: Server, reactor: TestReactor) -> None:
    store = connect(reactor, server.sasl(ALICE), "/sasl")
    reactor.run(store.create("/a", b"x"))
    reactor.run(store.close())


@pytest.mark.parametrize("user", [("alice", "wrong"), ("unknown", "x")])
def test_a_wrong_password(server: Server, reactor: TestReactor, user: tuple[str, str]) -> None:
    with pytest.raises(StartError) as refused:
        connect(reactor, server.sasl(user))
    assert str(refused.value).startswith("ZooKeeper refuses the user name or the password")
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize("kind", ["sasl", "tls"])
def test_access_to_nodes(server: Server, reactor: TestReactor, kind: str) -> None:
    """The nodes are those of their creator; others may read them, except those with secrets."""
    properties = server.sasl(ALICE) if kind == "sasl" else server.tls("broker")
    others = server.sasl(BOB) if kind == "sasl" else server.tls("second-broker")
    chroot = f"/acl-{kind}"
    store = connect(reactor, {**properties, "zookeeper.set.acl": "true"}, chroot)
    paths = ("/config", "/config/brokers", "/config/users", "/config/topics", "/consumers", "/config/users/u")
    for path in paths:
        reactor.run(store.create(path, b"x"))
    observer = KazooClient(server.zookeeper.connect)
    observer.start()
    try:
        permissions = {path: observer.get_acls(chroot + path)[0] for path in ("/consumers", "/config")}
        assert [acl.id.scheme for acl in permissions["/consumers"]] == ["world"]
        own, world = permissions["/config"]
        expected = ("sasl", "alice") if kind == "sasl" else ("x509", "CN=broker")
        assert (own.id.scheme, own.id.id, own.acl_list) == (*expected, ["ALL"])
        assert (world.id.scheme, world.acl_list) == ("world", ["READ"])
    finally:
        observer.stop()
        observer.close()
    other = connect(reactor, others, chroot)
    assert reactor.run(other.get("/config/topics")).data == b"x"
    for path in ("/config/brokers", "/config/users", "/config/users/u"):
        with pytest.raises(StoreUnavailableError, match="ZooKeeper denies access to"):
            reactor.run(other.get(path))
        assert reactor.run(store.get(path)).data == b"x"
    for change in (other.set("/config/topics", b"y"), other.delete("/config/topics"), other.create("/config/x")):
        with pytest.raises(MetadataStoreError):
            reactor.run(change)
    reactor.run(other.create("/consumers/group", b""))
    reactor.run(store.set("/config/topics", b"y"))
    for one in (store, other):
        reactor.run(one.close())


def refuse(server: Server, properties: dict[str, str], chroot: str, directory: Path, log_level: str = "warning") -> str:
    """Start a broker process, which is refused; return the only line in its log, without the remedy for a node."""
    own = {"broker.id": "2", "listeners": f"PLAINTEXT://127.0.0.1:{find_port()}", "log.dirs": str(directory)}
    connect = {"zookeeper.connect": server.zookeeper.connect + chroot}
    line = refuse_start({**own, **properties, **connect}, log_level)
    return line.partition("; authenticate as the user that created it (zookeeper.sasl.jaas.config, ")[0]


@pytest.mark.parametrize("user", [("alice", "wrong"), ("unknown", "wrong")])
def test_a_broker_with_a_wrong_password_does_not_start(server: Server, tmp_path: Path, user: tuple[str, str]) -> None:
    assert refuse(server, server.sasl(user), "/wrong", tmp_path) == (
        "ZooKeeper refuses the user name or the password; check zookeeper.sasl.jaas.config and the server's JAAS file"
    )


@pytest.fixture(scope="module")
def owner(server: Server) -> Iterator[Any]:
    """A client of Alice."""
    client = MultiReadingClient(hosts=server.zookeeper.connect)
    client.authenticate(Credentials(ALICE[0], "alice's secret \"1\""), lambda: None, lambda why: None)
    client.start()
    yield client
    client.stop()
    client.close()


def test_a_broker_without_access_to_the_nodes_of_another_user_does_not_start(server: Server, tmp_path: Path) -> None:
    properties = {**server.sasl(ALICE), "zookeeper.set.acl": "true", "broker.id": "1"}
    with OdradekBroker({**properties, "zookeeper.connect": f"{server.zookeeper.connect}/of-alice"}):
        pass
    for other in (server.sasl(BOB), {}):
        refusal = refuse(server, other, "/of-alice", tmp_path)
        assert refusal == "ZooKeeper denies access to /config/brokers"
    assert refuse(server, {}, "/of-alice/new", tmp_path) == "ZooKeeper denies access to /of-alice/new"


@pytest.fixture(scope="module")
def open_chroot(server: Server) -> str:
    """The path of a cluster with a topic, to whose nodes everyone has access."""
    with OdradekBroker({"zookeeper.connect": f"{server.zookeeper.connect}/open", "broker.id": "1"}) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics([NewTopic("t", 1, 1)])
        admin.close()
    return "/open"


@pytest.mark.parametrize(
    ("path", "permissions", "denied", "log_level"),
    [
        ("/cluster/id", NONE, "/cluster/id", "warning"),
        # One of the nodes of a request for many.
        ("/config/topics/t", NONE, "/config/topics/t", "warning"),
        # An operation of a transaction.
        ("/brokers/ids", READ, "/brokers/ids/2", "warning"),
        # The broker becomes the controller, and resigns with a warning.
        ("/brokers/topics/t/partitions/0/state", NONE, "/brokers/topics/t/partitions/0/state", "error"),
        ("/brokers/topics/t/partitions/0/state", READ, "/brokers/topics/t/partitions/0/state", "error"),
    ],
)
def test_a_broker_without_access_to_a_node_does_not_start(
    server: Server,
    owner: Any,
    open_chroot: str,
    tmp_path: Path,
    path: str,
    permissions: list[ACL],
    denied: str,
    log_level: str,
) -> None:
    owner.set_acls(open_chroot + path, [make_acl("sasl", ALICE[0], all=True), *permissions])
    try:
        assert refuse(server, {}, open_chroot, tmp_path, log_level) == f"ZooKeeper denies access to {denied}"
    finally:
        owner.set_acls(open_chroot + path, [make_acl("world", "anyone", all=True)])


def test_sasl_after_a_reconnection(server: Server, reactor: TestReactor) -> None:
    store = connect(reactor, {**server.sasl(ALICE), "zookeeper.set.acl": "true"}, "/again")
    reactor.run(store.create("/config", b"x"))
    reactor.run(store.create("/config/users", b"x"))
    server.zookeeper.restart()
    assert reactor.run(store.get("/config/users")).data == b"x"
    reactor.run(store.close())


def test_digest_md5() -> None:
    """The example of RFC 2831, with the name of ZooKeeper's service."""
    exchange = DigestMd5("alice", 'pass"word', lambda: "client-nonce")
    answer = exchange.respond(
        b'realm="zk-sasl-md5",nonce="server-nonce",qop="auth,auth-int",charset=utf-8,algorithm=md5-sess'
    )
    assert answer is not None and answer.startswith(b'charset=utf-8,username="alice",realm="zk-sasl-md5"')
    with pytest.raises(DigestError, match="does not prove"):
        exchange.respond(b"rspauth=00000000000000000000000000000000")
    for challenge in (b"", b"nonce", b'realm="x"', b'nonce="n",qop="auth-conf"', b"\xff\xfe"):
        with pytest.raises(DigestError):
            DigestMd5("alice", "x").respond(challenge)
