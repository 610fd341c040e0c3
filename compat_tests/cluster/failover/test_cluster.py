"""Three broker processes and ZooKeeper: failover, restarts and pauses under load."""

import contextlib
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests.clients.common import wait_until
from compat_tests.cluster.copying import PartitionCopier
from compat_tests.cluster.load import NumberedLoad, check_numbers, read_numbers
from compat_tests.cluster.replicas import ask_repeatedly, compare_logs, describe, wait_until_in_sync
from compat_tests.cluster.strict_readers import (
    ConfluentReader,
    JavaReader,
    KafkaPythonReader,
    StrictReader,
    wait_for_more,
)
from compat_tests.cluster.transactions import TransactionalLoad, check_transactions
from compat_tests.kill.history import check_log, shown
from compat_tests.kill.load import read_whole, running
from compat_tests.kill.writers import KafkaPythonWriter, VerifiableProducerWriter
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.testing_cluster import OdradekCluster

pytestmark = [
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(400),
]

PARTITIONS = 3
CLIENT_TIMEOUT_MS = 120_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[OdradekCluster]:
    with OdradekCluster(directory=os.environ.get("ODRADEK_CLUSTER_DIRECTORY")) as cluster:
        yield cluster


def create(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
    wait_until_in_sync(admin, topic)


def check(cluster: OdradekCluster, admin: KafkaAdminClient, topic: str, load: NumberedLoad) -> None:
    """All replicas are in sync again and equal, and each acknowledged record is in them."""
    states = wait_until_in_sync(admin, topic)
    assert not load.failures
    check_numbers(load, read_numbers(cluster.bootstrap_servers, topic, PARTITIONS))
    compare_logs({number: broker.data_dir for number, broker in cluster.brokers.items()}, topic, states)


def test_nothing_acknowledged_is_lost_when_brokers_are_killed(cluster, admin):
    create(admin, "killed")
    rng = random.Random(1)
    with NumberedLoad(cluster.bootstrap_servers, "killed", PARTITIONS) as load:
        load.wait_for_more()
        for broker_id in rng.sample(sorted(cluster.brokers), 3):
            cluster.kill(broker_id)
            load.wait_for_more()
            cluster.start_broker(broker_id)
            load.wait_for_more()
            wait_until_in_sync(admin, "killed")
    check(cluster, admin, "killed", load)


def test_a_rolling_restart_interrupts_no_client(cluster, admin, tmp_path):
    """Producers, transactions and groups of three libraries get no error, and nothing is lost or doubled.

    No exception is made for errors after which a transaction has to be aborted: there are none.
    """
    topics = ("rolled", "rolled-records", "rolled-transactions", "rolled-copy")
    for topic in topics:
        create(admin, topic)
    servers = cluster.bootstrap_servers
    load = NumberedLoad(servers, "rolled", PARTITIONS, delivery_timeout_ms=30_000)
    transactions = TransactionalLoad(servers, "rolled-transactions", PARTITIONS, "rolled")
    writers: list[Any] = [
        KafkaPythonWriter("python", servers, "rolled-records", PARTITIONS, once=True, seed="1"),
        VerifiableProducerWriter("1", servers, "rolled-records", tmp_path, once=True),
    ]
    names = [writer.ledger.writer for writer in writers]
    readers: list[StrictReader] = [
        KafkaPythonReader("read-by-python", servers, "rolled-records"),
        JavaReader("read-by-java", servers, "rolled-records", tmp_path),
    ]
    committed = ConfluentReader("read-committed", servers, "rolled-transactions")
    copier = PartitionCopier(servers, "rolled", "rolled-copy", tmp_path)

    def progress() -> None:
        """Wait until each client has progressed."""
        load.wait_for_more()
        transactions.wait_for_more(4)
        wait_for_more({**dict.fromkeys(readers, names), committed: [""]})

    with running([*readers, committed]):
        with running([copier]), running(writers), load, transactions:
            progress()
            for broker_id in sorted(cluster.brokers):
                assert cluster.stop_broker(broker_id) == 0
                progress()
                cluster.start_broker(broker_id)
                for topic in (*topics, "__consumer_offsets", "__transaction_state"):
                    wait_until_in_sync(admin, topic)
                progress()
        records = read_whole(servers, "rolled-records", PARTITIONS, "read_committed")
        in_transactions = read_whole(servers, "rolled-transactions", PARTITIONS, "read_committed")
        for reader in readers:
            reader.wait_until_read(records)
        committed.wait_until_read(in_transactions)
    assert not transactions.errors
    assert not copier.troubles and not copier.failures
    complaints = [trouble for writer in writers for trouble in writer.ledger.troubles]
    complaints += check_log([writer.ledger for writer in writers], records, committed_only=True)
    complaints += [complaint for reader in readers for complaint in reader.check(records)]
    complaints += committed.check(in_transactions)
    assert not complaints, shown(complaints)
    check_transactions(transactions, read_numbers(servers, "rolled-transactions", PARTITIONS))
    check(cluster, admin, "rolled", load)
    written, copied = (read_whole(servers, topic, 1, "read_committed")[0] for topic in ("rolled", "rolled-copy"))
    assert [record.value for record in copied] == [record.value for record in written], "the copy differs"


def test_a_leader_that_was_paused_loses_its_leadership_and_no_record(cluster, admin):
    create(admin, "paused")
    with NumberedLoad(cluster.bootstrap_servers, "paused", PARTITIONS) as load:
        load.wait_for_more()
        for broker_id in (1, 2):
            cluster.pause(broker_id)
            load.wait_for_more()
            cluster.resume(broker_id)
            wait_until_in_sync(admin, "paused")
            load.wait_for_more()
    check(cluster, admin, "paused", load)


def test_zookeeper_may_be_away(cluster, admin):
    """Data traffic continues, each broker reports it in one line, and a change waits."""
    assert cluster.zookeeper is not None
    create(admin, "alone")
    with (
        NumberedLoad(cluster.bootstrap_servers, "alone", PARTITIONS, delivery_timeout_ms=30_000) as load,
        ThreadPoolExecutor(1) as threads,
    ):
        load.wait_for_more()
        [server] = cluster.zookeeper.servers
        server.kill()
        creation = threads.submit(create_patiently, cluster.bootstrap_servers, "waiting")
        load.wait_for_more(1000)
        wait_until(
            lambda: count_open_reports(cluster) == [1] * len(cluster.brokers),
            what=lambda: count_open_reports(cluster),
        )
        assert not creation.done()
        server.start()
        load.wait_for_more()
        creation.result()
    wait_until_in_sync(admin, "waiting")
    wait_until(lambda: not any(count_open_reports(cluster)), what=lambda: count_open_reports(cluster))
    check(cluster, admin, "alone", load)


def create_patiently(bootstrap_servers: str, topic: str) -> None:
    """Create a topic with a request that waits for ZooKeeper."""
    servers = bootstrap_servers.split(",")
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=CLIENT_TIMEOUT_MS)) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)], timeout_ms=CLIENT_TIMEOUT_MS)


def count_open_reports(cluster: OdradekCluster) -> list[int]:
    """Return how often each broker has reported that ZooKeeper is unreachable, without the reports that it has ended.

    On a busy machine a broker may lose the connection for a moment also while ZooKeeper runs.
    """
    found = []
    for broker in cluster.brokers.values():
        log = broker.log_text()
        ended = log.count("ZooKeeper is reachable again") + log.count("the ZooKeeper session has expired")
        found.append(log.count("ZooKeeper is unreachable") - ended)
    return found


@pytest.mark.parametrize("role", ["controller", "other"])
def test_a_killed_broker_is_replaced_before_its_session_expires(role):
    session_timeout_ms = 300_000
    with (
        ZooKeeperEnsemble(tick_ms=session_timeout_ms // 20) as zookeeper,
        OdradekCluster(zookeeper_connect=zookeeper.connect, session_timeout_ms=session_timeout_ms) as cluster,
        contextlib.closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))) as admin,
    ):
        create(admin, "t")
        controller = admin.describe_cluster()["controller_id"]
        killed = controller if role == "controller" else next(one for one in cluster.brokers if one != controller)
        with NumberedLoad(cluster.bootstrap_servers, "t", PARTITIONS) as load:
            load.wait_for_more()
            cluster.kill(killed)

            def is_replaced():
                states = ask_repeatedly(lambda: describe(admin, "t"))
                return all(killed not in (state.leader, *state.isr) for state in states.values())

            wait_until(is_replaced)
            load.wait_for_more()
        assert not load.failures
        described = ask_repeatedly(admin.describe_cluster)
        assert killed in {broker["broker_id"] for broker in described["brokers"]}
        assert (described["controller_id"] == controller) == (role == "other")
        check_numbers(load, read_numbers(cluster.bootstrap_servers, "t", PARTITIONS))
