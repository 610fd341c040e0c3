"""Delegation tokens with Apache Kafka's tools: created by one user, used by a job that has no password."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from compat_tests import processes
from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.zookeeper_mode import ZooKeeperModeBroker
from compat_tests.clients.common import wait_until
from compat_tests.sasl_users import SCRAM_MODULE, add_users
from compat_tests.token_logins import Login, Token, read_tokens
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.testing import OdradekBroker
from odradek.testing_cluster import OdradekCluster

TOKENS = tools.DELEGATION_TOKENS
SECRET = "the secret of all brokers"
PROPERTIES = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
        f'{SCRAM_MODULE} required username="broker" password="broker-secret";'
    ),
    "delegation.token.secret.key": SECRET,
    "delegation.token.expiry.time.ms": "600000",
}
USERS = ("alice", "bob", "broker")

pytestmark = pytest.mark.usefixtures("kafka_jars")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OdradekBroker]:
    directory = tmp_path_factory.mktemp("broker")
    add_users(USERS, f"log.dirs={directory / 'data'}")
    with OdradekBroker(PROPERTIES, directory=directory, log_level="debug") as started:
        yield started


@pytest.fixture
def alice(broker: OdradekBroker, tmp_path: Path) -> Login:
    return Login(broker.bootstrap_servers, tmp_path, "alice", "alice-secret")


def create(login: Login, *arguments: str) -> Token:
    (token,) = read_tokens(login.run(TOKENS, "--create", "--max-life-time-period", "-1", *arguments).stdout)
    return token


def describe(login: Login, owner: str) -> list[Token]:
    # Without an owner the tool sends an empty list, for which Kafka too returns no tokens.
    return read_tokens(login.run(TOKENS, "--describe", "--owner-principal", owner).stdout)


def test_a_job_works_with_a_token_until_it_is_deleted(broker: OdradekBroker, alice: Login) -> None:
    token = create(alice, "--renewer-principal", "User:bob")
    assert token[2:5] == ("User:alice", "User:alice", "[User:bob]")
    job, lines = alice.as_token(token), "a\nb\n"
    job.run(tools.CONSOLE_PRODUCER, "--topic", "job", stdin=lines)
    assert "principal=User:alice mechanism=SCRAM-SHA-256" in broker.log_text()
    job = alice.as_token(token, "SCRAM-SHA-512")
    consumed = job.run(tools.CONSOLE_CONSUMER, "--topic", "job", "--from-beginning", "--max-messages", "2")
    assert consumed.stdout == lines
    # A token cannot be used to create or renew tokens.
    assert "Delegation Token requests are not allowed" in job.refusal(
        TOKENS, "--create", "--max-life-time-period", "-1"
    )
    # Without the extension the token's id is the name of a user that does not exist.
    assert "Authentication failed" in job._replace(is_token=False).refusal(tools.TOPICS, "--list")
    alice.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", token.hmac)
    assert "Authentication failed" in job.refusal(tools.TOPICS, "--list")


def test_renew_and_describe(broker: OdradekBroker, alice: Login) -> None:
    token = create(alice, "--renewer-principal", "User:bob", "--owner-principal", "User:carol")
    assert token[2:5] == ("User:carol", "User:alice", "[User:bob]")
    bob = alice._replace(name="bob", secret="bob-secret")
    renewed = bob.run(TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", token.hmac)
    assert "Completed renew operation" in renewed.stdout
    refused = alice.refusal(TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", token.hmac)
    assert "DelegationTokenOwnerMismatchException" in refused
    assert describe(bob, "User:carol") == [token]
    assert describe(bob, "User:dave") == []
    broker.restart()
    assert describe(bob, "User:carol") == [token]
    bob.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", token.hmac)
    assert "DelegationTokenNotFoundException" in bob.refusal(
        TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", token.hmac
    )


def test_no_secret_is_logged(broker: OdradekBroker, alice: Login) -> None:
    token = create(alice)
    assert token.token_id in broker.log_text()
    assert token.hmac not in broker.log_text()
    assert SECRET not in broker.log_text()


def test_without_a_secret_there_are_no_tokens(tmp_path: Path) -> None:
    add_users(USERS, f"log.dirs={tmp_path / 'data'}")
    properties = {name: value for name, value in PROPERTIES.items() if not name.startswith("delegation.")}
    with OdradekBroker(properties, directory=tmp_path) as broker:
        alice = Login(broker.bootstrap_servers, tmp_path, "alice", "alice-secret")
        output = alice.refusal(TOKENS, "--create", "--max-life-time-period", "-1")
        assert "Delegation Token feature is not enabled" in output


def test_brokers_of_a_cluster_share_tokens(tmp_path: Path) -> None:
    with ZooKeeperEnsemble() as zookeeper:
        add_users(USERS, f"zookeeper.connect={zookeeper.connect}", f"log.dirs={tmp_path / 'data'}")
        with OdradekCluster(PROPERTIES, zookeeper_connect=zookeeper.connect) as cluster:
            first, second, *_ = (broker.bootstrap_servers for broker in cluster.brokers.values())
            alice = Login(first, tmp_path, "alice", "alice-secret")
            token = create(alice)
            assert describe(alice, "User:alice") == [token]
            other = alice._replace(servers=second)
            # Each broker follows the changes of the other ones.
            wait_until(other.as_token(token).is_accepted)
            other.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", token.hmac)
            wait_until(lambda: describe(alice, "User:alice") == [])
            wait_until(alice.as_token(token).is_refused)
            assert "Authentication failed" in alice.as_token(token).refusal(tools.TOPICS, "--list")


def test_a_mixed_cluster_shares_tokens(tmp_path: Path) -> None:
    jaas = f"{SCRAM_MODULE} required;"
    shared = {
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": jaas,
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": jaas,
        # The former name, which both kinds accept.
        "delegation.token.master.key": SECRET,
        "offsets.topic.replication.factor": "1",
    }

    def listeners() -> dict[str, str]:
        plain, sasl = processes.lasting_ports(2)
        return {"listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"}

    def login(properties: dict[str, str]) -> Login:
        servers = properties["listeners"].rpartition("//")[2]
        return Login(servers, tmp_path, "alice", "alice-secret")

    with ZooKeeperEnsemble(1, directory=tmp_path / "zookeeper") as zookeeper, ExitStack() as stack:
        add_users(USERS, f"zookeeper.connect={zookeeper.connect}", f"log.dirs={tmp_path / 'none'}")
        own = {**shared, **listeners(), "broker.id": "1", "zookeeper.connect": zookeeper.connect}
        stack.enter_context(OdradekBroker(own, directory=tmp_path / "odradek"))
        java = {**shared, **listeners()}
        kafka = ZooKeeperModeBroker(2, zookeeper.connect, tmp_path / "kafka", java)
        stack.callback(kafka.close)
        kafka.start()
        for creator, user in ((login(own), login(java)), (login(java), login(own))):
            token = create(creator, "--owner-principal", "User:c-a,r=o~l*", "--renewer-principal", "User:alice")
            job = user.as_token(token)
            wait_until(job.is_accepted)
            assert describe(user, "User:c-a,r=o~l*") == [token]
            user.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", token.hmac)
            removed = creator.as_token(token)
            wait_until(removed.is_refused)
            assert "Authentication failed" in removed.refusal(tools.TOPICS, "--list")
