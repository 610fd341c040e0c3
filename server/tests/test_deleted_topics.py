"""Requests for a deleted topic whose replicas are not retired yet are refused, on the fast paths too."""

import struct
from typing import Any

import pytest

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import response_class
from odradek.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.store import run_now
from odradek.server.dispatch import Dispatch
from odradek.server.network.connection import Connection
from odradek.server.network.tests.test_connection import Transport
from odradek.server.request import RequestContext
from odradek.server.tests.faults.test_failing_store import FailingServer
from odradek.server.tests.test_broker import started
from odradek.server.tests.wire import request_frame

BY_NAME, BY_ID = 11, 13


class Applied:
    """The outcome of steps that a test delays."""

    def __await__(self):
        return
        yield


class Client:
    """A connection to a broker whose replicas follow the image only when `follow` is called."""

    def __init__(self):
        self.broker = started(FailingServer())
        self.services = self.broker.services
        self.transport = Transport()
        context = RequestContext("host", "PLAINTEXT")
        self.connection = Connection(self.transport, Dispatch(self.services), context)
        self.held = []
        self.create()

    def create(self):
        create(self.services, new("t"))

    def hold(self):
        def hold(steps):
            self.held.append(steps)
            return Applied()

        self.services.replicas.run_steps = hold

    def follow(self):
        for steps in self.held:
            for _ in steps:
                pass

    @property
    def topic_id(self):
        return self.services.metadata.topics["t"].topic_id

    def ask(self, request, version):
        self.connection.frame_received(request_frame(request, version))
        self.transport.iterate()
        answer = self.transport.writer.sent.pop()
        assert struct.unpack_from(">i", answer, 4) == (1,)
        start = 8 + response_is_flexible(request.api_key, request.is_flexible(version))
        response: Any = codec.decode(response_class(request.api_key), version, answer, start)
        [topic] = response.responses
        return topic

    def produce(self, version, topic_id):
        batch = build_batch([(self.services.now_ms(), None, b"v", ())])
        data = ProduceRequestPartitionProduceData(index=0, records=batch)
        topic = ProduceRequestTopicProduceData(name="t", topic_id=topic_id, partition_data=[data])
        [row] = self.ask(ProduceRequest(acks=-1, timeout_ms=10, topic_data=[topic]), version).partition_responses
        return row.error_code, row.base_offset

    def fetch(self, version, topic_id, offset=2):
        """Fetch from the log's end, so that the response has no records."""
        asked = FetchRequestFetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        topic = FetchRequestFetchTopic(topic="t", topic_id=topic_id, partitions=[asked])
        request = FetchRequest(max_wait_ms=0, max_bytes=1000, session_epoch=-1, topics=[topic])
        [row] = self.ask(request, version).partitions
        return row.error_code, row.high_watermark


@pytest.fixture
def client():
    client = Client()
    yield client
    run_now(client.broker.stop())


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_deleted_topic_is_refused_before_its_replicas_are_retired(client, version, is_created_again):
    old_id = client.topic_id
    assert client.produce(version, old_id) == (0, 0)
    assert client.produce(version, old_id) == (0, 1)
    assert client.fetch(version, old_id) == (0, 2)
    log = client.services.replicas.get("t", 0).log
    client.hold()
    run_now(client.services.controller.delete_topics(["t"]))
    if is_created_again:
        client.create()
    expected = ErrorCode.UNKNOWN_TOPIC_ID if version == BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version == BY_NAME and is_created_again:
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert client.produce(version, old_id) == (expected, -1)
    assert client.fetch(version, old_id) == (expected, -1)
    assert log.log_end_offset == 2
    client.follow()
    if is_created_again:
        assert client.produce(version, client.topic_id) == (0, 0)
        assert client.fetch(version, client.topic_id, 1) == (0, 1)
