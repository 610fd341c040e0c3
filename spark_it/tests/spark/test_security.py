"""A pipeline over SASL_SSL, with a user that has only the rights in docs/pipelines.md."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation as Operation  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from compat_tests.clients.common import wait_until
from odradek.spark_it.kafka import cluster
from odradek.spark_it.kafka.requests import ClusterError
from spark_it.tests.secured import SecuredBroker, group, make_password, topic, transactional_ids
from spark_it.tests.spark.engine import Engine, errors, order, orders

OF_JAVA = """
[consumer.override]
security.protocol = "SASL_SSL"
ssl.truststore.type = "PEM"
ssl.truststore.location = "{authority}"
sasl.mechanism = "SCRAM-SHA-512"
sasl.jaas.config = '''org.apache.kafka.common.security.scram.ScramLoginModule required
    username="{user}" password="${{ORDERS_PASSWORD}}";'''
"""
OF_LIBRDKAFKA = """
[{client}.override]
security.protocol = "SASL_SSL"
ssl.ca.location = "{authority}"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "{user}"
sasl.password = "${{ORDERS_PASSWORD}}"
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


class SecuredCopy:
    """A pipeline from a topic to another one, and its user, who has all necessary rights except on the group."""

    def __init__(self, spark: SparkSession, secured: SecuredBroker, folder: Path, name: str) -> None:
        self.source, self.target = (secured.topics.create(f"{name}-{side}", 2) for side in ("source", "target"))
        self.dead = f"{name}-dead"
        rights = [
            *topic(self.source, Operation.READ),
            *topic(self.target, Operation.WRITE),
            *topic(self.dead, Operation.CREATE, Operation.WRITE),
            *transactional_ids(f"{name}:"),
        ]
        user = secured.add_user(name, rights)
        authority = secured.connection.authority
        security = OF_JAVA.format(authority=authority, user=user) + "".join(
            OF_LIBRDKAFKA.format(client=client, authority=authority, user=user) for client in ("producer", "admin")
        )
        self._engine = Engine(spark, secured.connection.servers, folder, name)
        replicas = "deadletterqueue.topic.replication.factor = 1\n"
        self._text = security + orders(self.source) + errors(self.dead) + replicas
        self._sink = f'[sink]\nconnector = "topic"\ntopic = "{self.target}"\nkey.fields = "id"\n'

    def run(self, password: str) -> tuple[int, int, int, int]:
        self._engine.environment = {"ORDERS_PASSWORD": password}
        self._engine.run(self._text, self._sink)
        counters: tuple[int, int, int, int] = self._engine.counters()
        return counters

    def refusal(self, password: str) -> str:
        """Return the error of a run that brokers reject, one line."""
        with pytest.raises(ClusterError) as caught:
            self.run(password)
        message = str(caught.value)
        assert "\n" not in message and password not in message
        return message


def test_topic_to_topic(
    spark: SparkSession, secured: SecuredBroker, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = SecuredCopy(spark, secured, tmp_path, unique)
    secured.topics.produce(copy.source, [*map(order, range(300)), (b"k", b"{")])
    password = make_password(unique)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_TIMEOUT_S", 1.0)
        # On a busy machine, a request may end with its short timeout before the broker has rejected the client.
        wait_until(lambda: "SASL authentication error: Authentication failed" in copy.refusal("wrong"))
        wait_until(lambda: "FindCoordinator response error: Group authorization failed" in copy.refusal(password))
    secured.grant(unique, group(unique))
    assert copy.run(password) == (301, 300, 1, 0)
    assert sorted(json.loads(record.value())["id"] for record in secured.read(copy.target)) == list(range(300))
    assert [record.value() for record in secured.read(copy.dead)] == [b"{"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if password.encode() in path.read_bytes()]
