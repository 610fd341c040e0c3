"""All brokers of a cluster are killed; one of them has lost its disk when they return, one after the other."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic  # type: ignore[attr-defined]

from compat_tests.clients.common import wait_until
from odradek.testing_cluster import OdradekCluster

PARTITIONS = 3
RECORDS = 300
SESSION_MS = 4_000
TIMEOUT_S = 60

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def produce(servers: str) -> None:
    """Write records that all replicas acknowledge."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([Topic("t", PARTITIONS, 3)])["t"].result(TIMEOUT_S)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    for number in range(RECORDS):
        partition = number % PARTITIONS
        producer.produce("t", str(number), partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None] * RECORDS


def read(servers: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    values: list[int] = []

    def has_all() -> bool:
        messages = [message for message in consumer.consume(RECORDS, 0.5) if message.error() is None]
        values.extend(int(message.value() or b"") for message in messages)
        return len(values) >= RECORDS

    wait_until(has_all, TIMEOUT_S, lambda: f"{len(values)} records")
    consumer.close()
    return sorted(values)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_broker_that_lost_its_disk_leads_nothing_before_it_has_copied_it(tmp_path: Path, lost: int) -> None:
    """The second broker that returned was elected with an empty log, and the others truncated theirs to nothing."""
    with OdradekCluster(directory=tmp_path, session_timeout_ms=SESSION_MS) as cluster:
        produce(cluster.bootstrap_servers)
        for broker_id in cluster.brokers:
            cluster.kill(broker_id)
        shutil.rmtree(cluster.brokers[lost].data_dir)
        for broker_id in cluster.brokers:
            cluster.start_broker(broker_id)
        assert read(cluster.bootstrap_servers) == list(range(RECORDS))
