"""Requests between brokers of a cluster, with and without CLUSTER_ACTION, on Apache Kafka 3.9.1 and on Odradek."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compat_tests import processes
from compat_tests.apache_kafka.zookeeper_mode import ZooKeeperModeBroker
from compat_tests.authorization.brokers import CLIENT_HOST, JAAS, SECURITY, UNKNOWN_ID, Broker, Client, needs
from odradek.server.apis import APIS
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.server.security.authorization.needs import CLUSTER_ACTION
from odradek.testing import OdradekBroker

Brokers = tuple[Broker, Broker]
AUTHORIZER = {**SECURITY, "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
_STALE = {"controller_id": 1, "controller_epoch": 0, "broker_epoch": 0}
"""An earlier controller, for an earlier registration of the broker: a permitted request changes nothing."""

CASES: dict[str, tuple[tuple[int, ...], Mapping[str, Any]]] = {
    "LeaderAndIsr": (
        (5, 7),
        {**_STALE, "topic_states": [{"topic_name": "t", "topic_id": UNKNOWN_ID, "partition_states": [{}]}]},
    ),
    "StopReplica": ((3, 4), {**_STALE, "topic_states": [{"topic_name": "t", "partition_states": [{}]}]}),
    "UpdateMetadata": ((7, 8), _STALE),
    "ControlledShutdown": ((3,), {"broker_id": 1, "broker_epoch": 0}),
    "AlterPartition": (
        (2, 3),
        {"broker_id": 1, "broker_epoch": 0, "topics": [{"topic_id": UNKNOWN_ID, "partitions": [{}]}]},
    ),
    "AllocateProducerIds": ((0,), {"broker_id": 1, "broker_epoch": 0}),
}


def make_kafka(zookeeper: str, directory: Path) -> ZooKeeperModeBroker:
    """Return Apache Kafka that is a super user for itself."""
    broker = ZooKeeperModeBroker(1, f"{zookeeper}/kafka", directory, AUTHORIZER)
    internal_port = processes.lasting_port()
    broker.properties |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},INTERNAL://127.0.0.1:{internal_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.internal.plain.sasl.jaas.config": JAAS,
    }
    return broker


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("cluster")
    zookeeper = ZooKeeperEnsemble(1, directory=directory / "zookeeper")
    zookeeper.start()
    kafka = make_kafka(zookeeper.connect, directory / "kafka")
    own = {"broker.id": "1", "zookeeper.connect": f"{zookeeper.connect}/odradek"}
    try:
        kafka.start()
        with OdradekBroker({**AUTHORIZER, **own}) as odradek:
            found = Broker("Apache Kafka", kafka.port), Broker("Odradek", odradek.port)
            for broker in found:
                broker.bootstrap()
            yield found
    finally:
        kafka.close()
        zookeeper.close()


@pytest.mark.parametrize(
    ("api", "version"), [(api, version) for api, (versions, _) in CASES.items() for version in versions]
)
def test_responses_are_those_of_apache_kafka(brokers: Brokers, api: str, version: int) -> None:
    assert needs(api) == (CLUSTER_ACTION,)
    for rights in ([], [(CLUSTER_ACTION, "kafka-cluster")]):
        answers = []
        for broker in brokers:
            broker.grant(rights)
            client = Client(broker.port, CLIENT_HOST)
            answers.append(broker.simplify(client.ask(api, version, CASES[api][1])))
            client.close()
        kafka, odradek = answers
        assert odradek["error_code"] == kafka["error_code"], f"with {rights}"
        assert (kafka["error_code"] == 31) == (not rights)
        if not rights:
            assert odradek == kafka


def test_each_api_between_brokers_has_a_case() -> None:
    assert {api.name for api in APIS.values() if api.in_cluster_only} == set(CASES)
