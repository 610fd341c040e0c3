"""Produce fast path: its responses equal those of a fresh connection."""

import itertools
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.protocol.records import build_batch
from odradek.server.tests.test_transactions import Producer
from odradek.server.tests.wire import TIMEOUT_S, until
from odradek.testing import OdradekBroker

VERSIONS = range(3, 14)
_names = (f"topic-{number}" for number in itertools.count())


class Client:
    def __init__(self, broker):
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S)
        self.stream = self.socket.makefile("rb")
        self.correlation_ids = itertools.count(1)

    def ask(self, message, version, change=lambda frame: frame):
        flexible = type(message).is_flexible(version)
        key, correlation_id = type(message).api_key, next(self.correlation_ids)
        head = struct.pack(">hhih", key, version, correlation_id, 4) + b"test" + (b"\0" if flexible else b"")
        content = change(head + codec.encode(message, version))
        self.socket.sendall(struct.pack(">i", len(content)) + content)
        first = self.stream.read(8)
        if not first:
            return None
        size, answered = struct.unpack(">ii", first)
        assert answered == correlation_id
        body = self.stream.read(size - 4)
        return body[1:] if response_is_flexible(key, flexible) else body

    def close(self):
        self.stream.close()
        self.socket.close()


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker({"num.partitions": "2"}) as broker:
        yield broker


@pytest.fixture
def client(broker):
    client = Client(broker)
    yield client
    client.close()


@pytest.fixture
def topic(client):
    name = next(_names)
    metadata = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
    return name, codec.decode(MetadataResponse, 12, metadata).topics[0].topic_id


def batch(count=1, **options):
    now_ms = int(time.time() * 1000)
    return build_batch([(now_ms, None, b"v" * 50, ())] * count, **options)


def request(topic, records, acks=-1, index=0):
    name, topic_id = topic
    data = ProduceRequestPartitionProduceData(index=index, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[ProduceRequestTopicProduceData(name=name, topic_id=topic_id, partition_data=[data])],
    )


def answer(client, message, version, change=lambda frame: frame):
    body = client.ask(message, version, change)
    return None if body is None else codec.decode(ProduceResponse, version, body)


def row(response):
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_increase_while_partitions_alternate(client, topic, version, acks):
    for count, expected in ((1, 0), (3, 1), (2, 4), (400, 6)):
        for index in (0, 1):
            response = answer(client, request(topic, batch(count), acks, index), version)
            fresh = answer(client, request(topic, batch(1), acks, index=7), version)
            assert (row(response).error_code, row(response).base_offset, row(response).index) == (0, expected, index)
            assert row(response).log_append_time_ms == -1
            assert response.responses[0].name == fresh.responses[0].name
            assert response.responses[0].topic_id == fresh.responses[0].topic_id


BAD = {
    "bad crc": lambda: batch()[:-1] + b"\xff",
    "truncated": lambda: batch()[:-1],
    "empty": lambda: b"",
    "none": lambda: None,
    "two batches": lambda: batch() + batch(),
    "sequence gap": lambda: batch(producer_id=5, producer_epoch=0, base_sequence=9),
    "too large": lambda: batch(30_000),
    "zstd": lambda: batch(codec=4),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_errors_are_those_of_a_fresh_connection(broker, client, topic, version, bad):
    first = batch(producer_id=5, producer_epoch=0, base_sequence=0)
    assert row(answer(client, request(topic, first), version)).error_code == 0
    fresh = Client(broker)
    expected = answer(fresh, request(topic, bad()), version)
    fresh.close()
    response = answer(client, request(topic, bad()), version)
    assert row(response).error_code == row(expected).error_code
    assert row(response).error_message == row(expected).error_message
    after = row(answer(client, request(topic, batch()), version))
    accepted = 2 if row(expected).error_code == 0 else 0
    assert (after.error_code, after.base_offset) == (0, 1 + accepted)


@pytest.mark.parametrize("version", [9, 13])
def test_a_batch_of_a_transaction_without_transactional_id_is_refused(broker, client, topic, version):
    """The transaction is open, and producer id, epoch and sequence are right."""
    producer = Producer(broker.port, topic[0])
    producer.add(0)
    message = request(topic, producer.batch(b"first"))
    message.transactional_id = producer.name
    assert row(answer(client, message, version)).error_code == 0
    for _ in range(2):
        assert row(answer(client, request(topic, batch()), version)).error_code == 0
    refused = row(answer(client, request(topic, producer.batch(b"second")), version))
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producer.wire.socket.close()


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_duplicate_is_answered_with_its_first_offset(client, topic, version):
    first = batch(2, producer_id=77, producer_epoch=0, base_sequence=0)
    assert [row(answer(client, request(topic, first), version)).base_offset for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("version", [8, 9, 13])
@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:-1],
        lambda frame: frame[:-3],
        lambda frame: frame[:-2] + b"\x7f" + frame[-1:],
        lambda frame: frame + b"left over",
    ],
    ids=["one byte short", "no tags", "bad tags", "left over"],
)
def test_malformed_repetitions_are_answered_as_on_a_fresh_connection(broker, client, topic, version, change):
    for _ in range(2):
        answer(client, request(topic, batch()), version)
    fresh = Client(broker)
    expected = answer(fresh, request(topic, batch()), version, change)
    fresh.close()
    response = answer(client, request(topic, batch()), version, change)
    assert (response is None) == (expected is None)
    if expected is not None:
        assert row(response).error_code == row(expected).error_code


@pytest.mark.parametrize("version", [9, 13])
def test_a_topic_that_is_deleted_and_created_again_is_found(client, topic, version):
    name = topic[0]
    for _ in range(2):
        assert row(answer(client, request(topic, batch()), version)).error_code == 0
    client.ask(DeleteTopicsRequest(topic_names=[name]), 5)
    expected = {9: 3, 13: 100}[version]
    assert row(answer(client, request(topic, batch()), version)).error_code == expected
    client.ask(
        CreateTopicsRequest(
            topics=[CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=1)]
        ),
        5,
    )
    if version == 9:
        assert row(answer(client, request(topic, batch()), version)).base_offset == 0


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("config", [("flush.messages", "1"), ("flush.before.acks", "true")], ids=lambda pair: pair[0])
def test_a_response_that_waits_for_the_disk_is_sent(client, config, acks):
    name = next(_names)
    config = CreateTopicsRequestCreatableTopicConfig(name=config[0], value=config[1])
    creation = CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config])
    client.ask(CreateTopicsRequest(topics=[creation]), 5)
    for expected in range(4):
        response = answer(client, request((name, bytes(16)), batch(), acks), 9)
        assert (row(response).error_code, row(response).base_offset) == (0, expected)
        assert row(response).log_start_offset == 0


def test_topics_with_names_of_many_lengths(client):
    topics = [("x" * length, bytes(16)) for length in range(1, 9)]
    client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name, _ in topics]), 9)
    for expected in range(3):
        for topic in topics:
            assert row(answer(client, request(topic, batch()), 9)).base_offset == expected


def open_files(broker, topic):
    """Files of a topic that the broker has open."""
    directory = Path(f"/proc/{broker.pid}/fd")
    found = []
    for link in directory.iterdir():
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return [path for path in found if f"/{topic}-" in path]


def test_files_of_a_deleted_topic_are_closed_while_its_clients_stay_connected():
    with OdradekBroker({"log.segment.delete.delay.ms": "0", "log.initial.task.delay.ms": "0"}) as broker:
        clients = producer, reader, waiting = [Client(broker) for _ in range(3)]
        creation = CreateTopicsRequestCreatableTopic(name="gone", num_partitions=1, replication_factor=1)
        producer.ask(CreateTopicsRequest(topics=[creation]), 5)
        topic = "gone", bytes(16)
        for _ in range(3):
            assert row(answer(producer, request(topic, batch()), 9)).error_code == 0
        asked = FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topics = [FetchRequestFetchTopic(topic="gone", partitions=[asked])]
        fetch = FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=0, topics=topics)
        reader.ask(fetch, 12)
        fetch.max_wait_ms, fetch.min_bytes, fetch.session_epoch = 60_000, 1 << 20, -1
        content = struct.pack(">hhih", FetchRequest.api_key, 12, 1, 4) + b"wait\0" + codec.encode(fetch, 12)
        waiting.socket.sendall(struct.pack(">i", len(content)) + content)
        assert open_files(broker, "gone")
        producer.ask(DeleteTopicsRequest(topic_names=["gone"]), 5)
        until(lambda: not open_files(broker, "gone"), what="the files of the topic to be closed")
        assert waiting.stream.read(4)
        for client in clients:
            client.close()
