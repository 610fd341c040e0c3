"""Consumers of records that are on the disk only."""

import os
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from odradek.server.security.tls.certificates import write_test_certificates
from odradek.server.security.tls.tests.support import tls_properties
from odradek.testing import OdradekBroker

RECORDS = 3_000


def drop_from_memory(directory: Path) -> None:
    """Drop a partition's files from the page cache."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(params=["PLAINTEXT", "SSL"])
def served(request, tmp_path):
    """A broker, and the configuration of its clients."""
    properties = {"log.segment.bytes": str(2 << 20)}
    clients = {}
    if request.param == "SSL":
        write_test_certificates(tmp_path, datetime.now(UTC))
        properties |= {**tls_properties(tmp_path), "listeners": "SSL://127.0.0.1:0"}
        clients = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
    with OdradekBroker(properties) as broker:
        yield broker, {"bootstrap.servers": broker.bootstrap_servers, **clients}


@pytest.mark.parametrize("fetch_bytes", [20_000, 3 << 20])
def test_a_consumer_gets_all_records_although_none_is_in_memory(served, fetch_bytes):
    """Responses of up to 32 KB are copied, larger ones are sent from the file."""
    broker, clients = served
    values = [random.Random(number).randbytes(4_000) for number in range(RECORDS)]
    producer = Producer(clients)
    for value in values:
        producer.produce("t", value, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    drop_from_memory(broker.data_dir / "t-0")
    consumer = Consumer(
        {
            **clients,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": fetch_bytes,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    received = []
    while len(received) < RECORDS:
        messages = consumer.consume(500, timeout=30)
        assert messages, "no record for 30 s"
        received += [message.value() for message in messages]
    consumer.close()
    assert received == values
