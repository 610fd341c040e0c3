"""Batches of an idempotent producer that follow one that was refused on the same connection."""

import struct
from types import SimpleNamespace

import pytest

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.protocol.records import build_batch
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.tests.support import Cluster
from odradek.server.dispatch import Dispatch
from odradek.server.network.connection import Connection
from odradek.server.network.tests.test_connection import Transport
from odradek.server.refused_batches import MOST_LATER_BATCHES
from odradek.server.request import RequestContext

VERSION = 9
LAST = 0x7FFFFFFF
NONE, NOT_LEADER, OUT_OF_ORDER = (
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


class World:
    """Partition t-0, which this broker, 1, leads or not, and connections of clients."""

    def __init__(self):
        cluster = Cluster()
        create(cluster, new("t"))
        self.services = SimpleNamespace(replicas=cluster.replicas, now_ms=lambda: 0, metadata=cluster.image)
        self.partition = cluster.replicas.get("t", 0)
        self.connect()

    def connect(self):
        self.transport = Transport()
        self.connection = Connection(self.transport, Dispatch(self.services), RequestContext("host", "PLAINTEXT"))

    def elect(self, leader):
        epoch = self.partition.leader_epoch + 1
        self.partition.apply(PartitionMetadata(leader, epoch, (1,), (1,)), self.partition.log)

    def produce(self, *sequences, epoch=0, producer_id=5, topics=("t",)):
        """Send a batch of one record for each sequence; return the errors of the first topic."""
        errors = []
        for sequence in sequences:
            batch = build_batch(
                [(0, None, b"v", ())], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            data = [ProduceRequestPartitionProduceData(index=0, records=batch)]
            topic_data = [ProduceRequestTopicProduceData(name=name, partition_data=data) for name in topics]
            request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topic_data)
            content = struct.pack(">hhihb", 0, VERSION, 7, -1, 0) + codec.encode(request, VERSION)
            self.connection.frame_received(struct.pack(">i", len(content)) + content)
            response = codec.decode(ProduceResponse, VERSION, self.transport.writer.sent[-1][9:])
            errors.append(response.responses[0].partition_responses[0].error_code)
        return errors

    @property
    def log_end(self):
        return self.partition.log.log_end_offset


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize("known", [0, 3], ids=["an unknown producer", "a known producer"])
def test_later_batches_wait_for_the_repetition_of_a_refused_one(world, known):
    assert world.produce(*range(known)) == [NONE] * known
    world.elect(2)
    assert world.produce(known, known + 1) == [NOT_LEADER] * 2
    world.elect(1)
    assert world.produce(known + 2, known + 3) == [NOT_LEADER] * 2
    assert world.log_end == known
    assert world.produce(*range(known, known + 6)) == [NONE] * 6
    assert world.log_end == known + 6


def test_a_batch_of_the_fast_path_waits_too(world):
    """The refused request had another head than those of the fast path."""
    assert world.produce(0) == [NONE]
    world.elect(2)
    assert world.produce(0, topics=("t", "u"), producer_id=6) == [NOT_LEADER]
    world.elect(1)
    assert world.produce(1, producer_id=6) == [NOT_LEADER]
    assert world.log_end == 1
    assert world.produce(0, 1, producer_id=6) == [NONE] * 2


def test_a_topic_that_this_broker_does_not_know_yet(world):
    replicas = world.services.replicas
    del replicas.partitions["t", 0]
    world.services.metadata.topics.pop("t")
    assert world.produce(0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    replicas.partitions["t", 0] = world.partition
    assert world.produce(1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.produce(0, 1) == [NONE] * 2


def test_a_batch_that_another_leader_appended_is_not_awaited(world):
    world.elect(2)
    assert world.produce(0) == [NOT_LEADER]
    world.elect(1)
    refused = world.connection, world.transport
    world.connect()
    assert world.produce(0) == [NONE]
    world.connection, world.transport = refused
    assert world.produce(1, 0, 2) == [NONE] * 3
    assert world.log_end == 3


def test_a_new_epoch_of_the_producer_is_not_held_back(world):
    world.elect(2)
    assert world.produce(3) == [NOT_LEADER]
    world.elect(1)
    assert world.produce(0, 1, epoch=1) == [NONE] * 2


def test_as_many_batches_as_can_be_in_flight_are_held_back(world):
    """A client that omits the refused batch gets the response that it would get otherwise."""
    assert world.produce(0) == [NONE]
    world.elect(2)
    assert world.produce(1) == [NOT_LEADER]
    world.elect(1)
    assert world.produce(*[2] * (MOST_LATER_BATCHES + 1)) == [NOT_LEADER] * MOST_LATER_BATCHES + [OUT_OF_ORDER]


def test_sequences_that_begin_again_at_0(world):
    assert world.produce(LAST - 1) == [NONE]
    world.elect(2)
    assert world.produce(LAST) == [NOT_LEADER]
    world.elect(1)
    assert world.produce(0) == [NOT_LEADER]
    assert world.produce(LAST, 0, 1) == [NONE] * 3


def test_other_connections_and_other_producers_are_not_held_back(world):
    world.elect(2)
    assert world.produce(0) == [NOT_LEADER]
    world.elect(1)
    assert world.produce(7, producer_id=6) == [NONE]
    world.connect()
    assert world.produce(7) == [NONE]
