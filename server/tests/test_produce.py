"""Produce: what becomes of a batch whose partition changes under it."""

import struct
from types import SimpleNamespace

import pytest

from odradek.protocol import codec
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.protocol.records import build_batch
from odradek.replication.tests.support import Cluster
from odradek.replication.tests.test_topic_admin import create, new
from odradek.server.handlers.produce import produce
from odradek.server.produce_memo import ProduceMemo
from odradek.server.request import RequestContext

VERSION = 9


class BrokenDisk:
    """A reader that is woken by an append and finds that the disk is broken."""

    def __init__(self, partition):
        self.partition = partition
        partition.watchers[self] = None

    def wake(self):
        del self.partition.watchers[self]
        self.partition.take_offline()


@pytest.fixture
def services():
    cluster = Cluster()
    create(cluster, new("t"))
    return SimpleNamespace(replicas=cluster.replicas, now_ms=lambda: 0, metadata=cluster.image)


def request():
    batch = build_batch([(0, None, b"v", ())])
    data = ProduceRequestPartitionProduceData(index=0, records=memoryview(batch))
    topic = ProduceRequestTopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def context():
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = VERSION
    return context


def test_what_is_appended_is_acknowledged_though_the_disk_broke_for_a_reader(services):
    BrokenDisk(services.replicas.get("t", 0))
    response = produce(services, context(), request())
    [row] = response.responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 0)


def test_the_same_from_memory(services):
    content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request(), VERSION)
    frame = struct.pack(">i", len(content)) + content
    memo = ProduceMemo(services)
    memo.remember(frame, context(), request(), produce(services, context(), request()))
    BrokenDisk(services.replicas.get("t", 0))
    answer = memo.answer(frame)
    response = codec.decode(ProduceResponse, VERSION, answer[9:])
    [row] = response.responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 1)
