"""Requests and bytes for a page do not grow with the number of topics, except in one metadata request."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests.tools.eventually import eventually
from odradek.protocol import codec
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.connection.profile import Connection
from odradek.tools.kafka.connection.wire_client import WireClient, parse_addresses
from odradek.tools.kafka.topics.log_dirs import fetch_log_dirs

pytestmark = [pytest.mark.side_by_side]

FEW, MANY = 60, 300
MOST_VARIATION_BYTES = 50


class Load(NamedTuple):
    """Requests of a page by name, and the bytes of requests and responses without all topics' metadata."""

    requests: Counter[str]
    size_bytes: int


class Counts:
    """A count of the requests of clients that it makes."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.size_bytes = 0

    def connect(self, *arguments: Any) -> WireClient:
        counts = self

        class CountingClient(WireClient):
            def _exchange(self, request: Any, version: int, response_type: Any) -> Any:
                is_of_all = isinstance(request, MetadataRequest) and request.topics is None
                counts.requests["all topics" if is_of_all else type(request).__name__] += 1
                before = counts.size_bytes
                response = super()._exchange(request, version, response_type)
                counts.size_bytes += len(codec.encode(request, version))
                if is_of_all:
                    counts.size_bytes = before
                return response

            def _receive(self, count: int, end_s: float) -> bytes:
                counts.size_bytes += count
                return super()._receive(count, end_s)

        return CountingClient(*arguments)


def measure(bootstrap_servers: str, path: str) -> Load:
    """Load a page with new connections."""
    counts = Counts()
    connection = Connection(parse_addresses(bootstrap_servers), {})
    console = Console(lambda: Cluster(connection, connect=counts.connect), "", ConsoleSettings())
    response = make_app(console).test_client().get(path)
    assert response.status_code == 200, response.get_data(as_text=True)
    return Load(counts.requests, counts.size_bytes)


@pytest.fixture
def names(broker: Any, unique: str) -> Iterator[Sequence[str]]:
    """Names of topics, which are deleted at the end."""
    found = [f"{unique}-{number:03}" for number in range(MANY)]
    yield found
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as client:
        client.delete_topics(found)


def create(broker: Any, names: Sequence[str]) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as client:
        client.create_topics([NewTopic(name, 1, 1) for name in names])
    with Cluster(Connection(parse_addresses(broker.bootstrap_servers), {})) as cluster:

        def check() -> None:
            assert all(one.partitions[0].leader_id >= 0 for one in cluster.fetch_topics(names))
            # Apache Kafka creates the logs after it has the topics in its metadata.
            stored = {one.topic for log_dir in fetch_log_dirs(cluster) for one in log_dir.replicas}
            assert stored.issuperset(names)

        eventually(check)


def test_requests_and_bytes_of_pages(broker, unique, names):
    create(broker, names[:FEW])
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(names[0], "value", "key")
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": unique})
    consumer.commit(offsets=[TopicPartition(names[0], 0, 1)], asynchronous=False)
    consumer.close()
    most_of_all_topics = {
        "/": 1,
        f"/topics?search={unique}": 1,
        f"/groups?search={unique}": 0,
        f"/group?name={unique}": 0,
        f"/topics/{names[0]}": 0,
        f"/topics/{names[0]}/records": 0,
        f"/topics/{names[0]}/records?position=oldest": 0,
    }
    few = {path: measure(broker.bootstrap_servers, path) for path in most_of_all_topics}
    create(broker, names[FEW:])
    for path, most in most_of_all_topics.items():
        many = measure(broker.bootstrap_servers, path)
        assert many.requests == few[path].requests, path
        assert many.requests["all topics"] <= most, path
        assert many.size_bytes <= few[path].size_bytes + MOST_VARIATION_BYTES, path
