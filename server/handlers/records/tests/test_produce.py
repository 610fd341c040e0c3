"""Produce to a partition that fails or changes during the append."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.protocol.records import build_batch
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.image import BrokerMetadata, Endpoint, PartitionMetadata
from odradek.replication.replicas.partition import Partition
from odradek.replication.tests.support import Cluster
from odradek.server.dispatch import Dispatch
from odradek.server.handlers.records.produce import produce
from odradek.server.network.connection import Connection
from odradek.server.network.produce_fast_path import ProduceFastPath
from odradek.server.network.tests.test_connection import Transport
from odradek.server.request import RequestContext
from odradek.server.tests.background import completions

VERSION = 9


class BrokenDisk:
    """A reader that an append wakes, and that takes the partition offline."""

    def __init__(self, partition):
        self.partition = partition
        partition.watchers[self] = None

    def wake(self):
        del self.partition.watchers[self]
        self.partition.take_offline()


class Failing:
    """A reader that fails when it is woken, with an error that an append could raise as well."""

    def __init__(self, partition):
        self.partition = partition
        partition.watchers[self] = None

    def wake(self):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
def services():
    cluster = Cluster()
    create(cluster, new("t"))
    return SimpleNamespace(
        replicas=cluster.replicas, now_ms=lambda: 0, metadata=cluster.image, produce_completions=completions(Clock())
    )


def request():
    batch = build_batch([(0, None, b"v", ())])
    data = ProduceRequestPartitionProduceData(index=0, records=memoryview(batch))
    topic = ProduceRequestTopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def context():
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = VERSION
    return context


def produced(services):
    response = produce(services, context(), request())
    assert isinstance(response, ProduceResponse)
    return response


def test_an_appended_batch_is_acknowledged_although_a_reader_finds_a_failed_disk(services):
    BrokenDisk(services.replicas.get("t", 0))
    response = produce(services, context(), request())
    [row] = response.responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 0)


def test_a_batch_appended_by_the_fast_path_is_acknowledged_although_a_reader_finds_a_failed_disk(services):
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request(), VERSION)
    frame = struct.pack(">i", len(content)) + content
    fast_path = ProduceFastPath(services)
    fast_path.add_head(frame, context(), request(), produced(services))
    BrokenDisk(services.replicas.get("t", 0))
    answer = fast_path.append_records(frame)
    assert isinstance(answer, bytearray)
    response = codec.decode(ProduceResponse, VERSION, answer[9:])
    [row] = response.responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 1)


def append(fast_path, frame):
    """A Deferred of the fast path's response, which waits for the replicas."""
    response = fast_path.append_records(frame).respond()
    return response if isinstance(response, Deferred) else succeed(response)


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
def test_a_reader_that_fails_when_woken_neither_fails_nor_repeats_the_append(services, is_known):
    partition = services.replicas.get("t", 0)
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request(), VERSION)
    frame = struct.pack(">i", len(content)) + content
    transport = Transport()
    connection = Connection(transport, Dispatch(services), context())
    if is_known:
        connection.frame_received(frame)
    Failing(partition)
    connection.frame_received(frame)
    response = codec.decode(ProduceResponse, VERSION, transport.writer.sent[-1][9:])
    [row] = response.responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, int(is_known))
    assert partition.log.log_end_offset == 1 + is_known


def test_a_batch_that_is_refused_on_both_paths_is_counted_once(services):
    partition = services.replicas.get("t", 0)
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request(), VERSION)
    frame = struct.pack(">i", len(content)) + content
    connection = Connection(Transport(), Dispatch(services), context())
    connection.frame_received(frame)
    # The last bytes of the frame are those of the batch, before three counts of tagged fields.
    connection.frame_received(frame[:-4] + bytes([frame[-4] ^ 1]) + frame[-3:])
    traffic = partition.traffic
    assert (traffic.produce_requests, traffic.invalid_crc_records, traffic.messages_in) == (2, 1, 1)


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
def test_a_request_that_must_wait_for_replicas_of_an_offline_partition_fails_at_once(services, is_known):
    partition = services.replicas.get("t", 0)
    services.reactor = Clock()
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request(), VERSION)
    frame = struct.pack(">i", len(content)) + content
    fast_path = ProduceFastPath(services)
    fast_path.add_head(frame, context(), request(), produced(services))
    partition.apply(PartitionMetadata(1, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)
    produce(services, context(), request())
    partition.followers[2].log_end_offset = 2
    BrokenDisk(partition)
    answers: list[Any] = []
    waiting = append(fast_path, frame) if is_known else produce(services, context(), request())
    waiting.addCallback(answers.append)
    [row] = answers[0].responses[0].partition_responses
    assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
def test_a_leadership_lost_during_the_wait_for_replicas_names_the_new_leader(services, is_known):
    """KIP-951."""
    partition = services.replicas.get("t", 0)
    services.reactor = Clock()
    image = services.metadata
    image.put_broker(BrokerMetadata(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "other", 9002),)))
    client = context()
    client.api_version = version = 12
    content = struct.pack(">hhihb", 0, version, 7, -1, 0) + codec.encode(request(), version)
    frame = struct.pack(">i", len(content)) + content
    fast_path = ProduceFastPath(services)
    fast_path.add_head(frame, client, request(), produced(services))
    epoch = partition.leader_epoch + 1
    partition.apply(PartitionMetadata(1, epoch, (1, 2), (1, 2)), partition.log)
    answers: list[Any] = []
    waiting = append(fast_path, frame) if is_known else produce(services, client, request())
    waiting.addCallback(answers.append)
    assert answers == []
    partition.apply(PartitionMetadata(2, epoch + 1, (1, 2), (1, 2)), partition.log)
    [row] = answers[0].responses[0].partition_responses
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, epoch + 1)
    assert [(node.node_id, node.host) for node in answers[0].node_endpoints] == [(2, "other")]


def test_a_defect_during_the_wait_of_the_fast_path_is_answered(services, monkeypatch):
    """The frame was not decoded; the error response needs the request."""
    partition = services.replicas.get("t", 0)
    services.reactor = Clock()
    services.verifier = SimpleNamespace()
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request(), VERSION)
    frame = struct.pack(">i", len(content)) + content
    transport = Transport()
    connection = Connection(transport, Dispatch(services), context())
    connection.frame_received(frame)
    partition.apply(PartitionMetadata(1, partition.leader_epoch + 1, (1, 2), (1, 2)), partition.log)
    connection.frame_received(frame)
    assert len(transport.writer.sent) == 1

    def broken(*arguments):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Partition, "has_reached", broken)
    partition.wake_watchers()
    first, second = (codec.decode(ProduceResponse, VERSION, data[9:]) for data in transport.writer.sent)
    assert first.responses[0].partition_responses[0].error_code == 0
    [topic] = second.responses
    [row] = topic.partition_responses
    assert (topic.name, row.index, row.error_code) == ("t", 0, ErrorCode.UNKNOWN_SERVER_ERROR)
