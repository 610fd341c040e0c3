"""Ends of connections: connections.max.idle.ms, and clients that have closed their side."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest

from compat_tests.bad_frames import ClosedError, Connection
from compat_tests.clients import load
from compat_tests.plain_requests import wait_for_topics

pytestmark = pytest.mark.side_by_side

IDLE_S = 2.0
TOPIC = "idle"


def fetch_request(max_wait_ms: int) -> FetchRequest:
    """Return a Fetch request for records that do not exist yet."""
    of_topic = FetchRequest.FetchTopic
    asked = of_topic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[of_topic(topic=TOPIC, partitions=[asked])],
        forgotten_topics_data=[],
        rack_id="",
    )


def test_a_connection_whose_fetch_waits_for_longer_than_the_idle_time_is_closed(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker({"connections.max.idle.ms": str(int(IDLE_S * 1000))})
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 1)
    wait_for_topics(broker, [TOPIC])
    with Connection(broker.port) as short, Connection(broker.port) as long:
        short.send(short.frame(fetch_request(max_wait_ms=int(IDLE_S * 500)), 12))
        short.receive()
        started_s = time.monotonic()
        long.send(long.frame(fetch_request(max_wait_ms=600_000), 12))
        assert long.is_closed()
        # A busy machine closes it later, but not as late as the fetch ends, for which `is_closed` would not wait.
        assert time.monotonic() - started_s >= IDLE_S


def received(connection: Connection) -> list[int]:
    """Return the correlation ids of all responses up to the end of the connection."""
    found: list[int] = []
    while True:
        try:
            found += struct.unpack_from(">i", connection.receive())
        except ClosedError:
            return found


@pytest.mark.parametrize("count", [1, 3])
def test_a_half_closed_client_gets_the_responses_to_fetches_that_wait(
    start_broker: Callable[..., Any], count: int
) -> None:
    broker = start_broker()
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 1)
    wait_for_topics(broker, [TOPIC])
    with Connection(broker.port) as connection:
        for _ in range(count):
            connection.send(connection.frame(fetch_request(max_wait_ms=300), 12))
        connection.socket.shutdown(socket.SHUT_WR)
        assert received(connection) == list(range(1, count + 1))
