"""Batches that are appended while an earlier Produce request of the connection waits for the replicas."""

import struct
from itertools import pairwise
from types import SimpleNamespace

import pytest
from twisted.internet.task import Clock

from odradek.log.config import LogConfig
from odradek.log.storage.filesystem import LogDirFailure
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.produce import ProduceResponse
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.tests.support import Cluster
from odradek.server.dispatch import Dispatch
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.handlers.records.tests.test_produce import VERSION, context, request
from odradek.server.network.connection import Connection
from odradek.server.network.produce_fast_path import ProduceFastPath
from odradek.server.network.tests.test_connection import Transport
from odradek.server.tests.background import run_iteration
from odradek.server.tests.wire import request_frame
from odradek.server.work.slices import Slices

TIMEOUT_S = 30


class Setting:
    """A connection to the leader of a partition with the replicas 1, 2, which has served one Produce request."""

    def __init__(self, services):
        self.clock = services.reactor = Clock()
        self.now_s = 0.0
        self.completion_s = 0.0
        services.produce_completions = CompletionQueue(Slices(self.clock, self.tick))
        services.verifier = SimpleNamespace()
        self.partition_of = lambda topic: services.replicas.get(topic, 0)
        self.partition = self.partition_of("t")
        self.transport = Transport()
        self.dispatch = Dispatch(services)
        self.connection = Connection(self.transport, self.dispatch, context())
        self.count = 0
        self.produce()
        self.lead(1)

    def tick(self):
        """The time; each completion of a request takes `completion_s`."""
        self.now_s += self.completion_s
        return self.now_s

    def lead(self, leader):
        epoch = self.partition.leader_epoch + 1
        self.partition.apply(PartitionMetadata(leader, epoch, (1, 2), (1, 2)), self.partition.log)

    def produce(self):
        self.connection.frame_received(self.frame())

    def frame(self, topic="t"):
        """The next request."""
        message = request()
        message.topic_data[0].name = topic
        message.timeout_ms = TIMEOUT_S * 1000
        self.count += 1
        return request_frame(message, VERSION, self.count - 1)

    def replicate(self, offset):
        """Let the follower fetch from an offset."""
        self.partition.update_follower(2, offset, 0, 0)

    @property
    def answers(self):
        return read_answers(self.transport)


def read_answers(transport):
    """Correlation id, error code and base offset of each response."""
    found = []
    for data in transport.writer.sent:
        [row] = codec.decode(ProduceResponse, VERSION, bytes(data[9:])).responses[0].partition_responses
        found.append((struct.unpack_from(">i", data, 4)[0], row.error_code, row.base_offset))
    return found


@pytest.fixture
def setting():
    cluster = Cluster()
    create(cluster, new("t"))
    create(cluster, new("u"))
    return Setting(SimpleNamespace(replicas=cluster.replicas, now_ms=lambda: 0, metadata=cluster.image))


def test_batches_are_appended_at_once_and_acknowledged_in_order_when_they_are_replicated(setting):
    for _ in range(3):
        setting.produce()
    assert setting.partition.log.log_end_offset == 4
    assert setting.answers == [(0, 0, 0)]
    setting.replicate(3)
    assert setting.answers[1:] == [(1, 0, 1), (2, 0, 2)]
    setting.produce()
    assert len(setting.answers) == 3
    setting.replicate(5)
    assert setting.answers[3:] == [(3, 0, 3), (4, 0, 4)]


def test_no_batch_is_acknowledged_after_the_leadership_was_lost(setting):
    for _ in range(3):
        setting.produce()
    setting.lead(2)
    setting.lead(1)
    setting.replicate(4)
    assert [code for _, code, _ in setting.answers[1:]] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3


def test_a_replicated_batch_is_acknowledged_although_the_leadership_is_lost_before_the_turn_of_its_response(setting):
    """A producer that does not number its batches would write it again."""
    other = setting.partition_of("u")
    setting.connection.frame_received(setting.frame("u"))
    other.apply(PartitionMetadata(1, other.leader_epoch + 1, (1, 2), (1, 2)), other.log)
    setting.connection.frame_received(setting.frame("u"))
    setting.produce()
    setting.produce()
    assert len(setting.answers) == 2
    setting.replicate(2)
    setting.lead(2)
    other.update_follower(2, 2, 0, 0)
    assert setting.answers[2:] == [(2, 0, 1), (3, 0, 1), (4, ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)]


def test_the_timeout_of_each_batch_counts_from_its_append(setting):
    setting.produce()
    setting.clock.advance(20)
    setting.produce()
    setting.produce()
    setting.clock.advance(10)
    assert setting.answers[1:] == [(1, ErrorCode.REQUEST_TIMED_OUT, 1)]
    setting.clock.advance(19)
    assert len(setting.answers) == 2
    setting.clock.advance(1)
    setting.clock.advance(0)
    assert setting.answers[2:] == [(2, ErrorCode.REQUEST_TIMED_OUT, 2), (3, ErrorCode.REQUEST_TIMED_OUT, 3)]


def test_another_request_waits_for_the_responses_to_the_batches_before_it(setting):
    setting.produce()
    setting.produce()
    setting.connection.frame_received(request_frame(ApiVersionsRequest(), 0, 99))
    setting.produce()
    setting.transport.iterate()
    assert setting.partition.log.log_end_offset == 3
    setting.replicate(3)
    while setting.connection.is_in_line:
        setting.transport.iterate()
    sent = setting.transport.writer.sent
    assert [struct.unpack_from(">i", data, 4)[0] for data in sent] == [0, 1, 2, 99]
    assert setting.partition.log.log_end_offset == 4


def test_a_batch_that_the_fast_path_refuses_waits_and_gets_its_error_in_its_turn(setting):
    setting.produce()
    setting.partition.configure(LogConfig({"max.message.bytes": "1"}))
    setting.produce()
    assert setting.partition.log.log_end_offset == 2
    setting.replicate(2)
    setting.transport.iterate()
    assert setting.answers[1:] == [(1, 0, 1), (2, ErrorCode.MESSAGE_TOO_LARGE, -1)]


def test_requests_behind_a_failed_append_are_answered(setting, monkeypatch):
    """The failure takes the partition offline, which completes the request that waits for replicas."""
    partition = setting.partition

    def fail(*arguments, **named):
        raise LogDirFailure("/data", "append failed")

    partition._on_failure = lambda failure: partition.take_offline()
    setting.produce()
    monkeypatch.setattr(partition.log, "append_as_leader", fail)
    setting.connection.frames_received([setting.frame(), setting.frame()])
    for _ in range(3):
        setting.transport.iterate()
    assert setting.answers[1:] == [
        (1, ErrorCode.KAFKA_STORAGE_ERROR, 1),
        (2, ErrorCode.KAFKA_STORAGE_ERROR, -1),
        (3, ErrorCode.KAFKA_STORAGE_ERROR, -1),
    ]


def test_the_time_of_refused_batches_is_part_of_the_iteration(setting, monkeypatch):
    """The check of a batch may take long, because it is decompressed."""
    transport = setting.transport
    connections = [setting.connection, Connection(transport, setting.dispatch, context())]
    for connection in connections:
        connection.frame_received(setting.frame())
    setting.replicate(3)
    for connection in connections:
        connection.frame_received(setting.frame())
        assert connection.in_progress.is_appended
    attempts = []

    def refuse(fast_path, frame):
        attempts.append(frame)
        transport.now_s += 0.01

    monkeypatch.setattr(ProduceFastPath, "append_records", refuse)
    for connection in connections:
        connection.frames_received([setting.frame()])
    transport.iterate()
    assert len(attempts) == 1
    assert transport.scheduler.ended_s == transport.now_s
    for _ in range(3):
        transport.iterate()
    assert len(attempts) == 2


def test_one_advance_of_the_high_watermark_completes_the_requests_of_many_connections_in_slices(setting):
    count = 100
    transports = [Transport() for _ in range(count)]
    connections = [Connection(transport, setting.dispatch, context()) for transport in transports]
    for connection in connections:
        connection.frame_received(setting.frame())
    setting.replicate(setting.partition.log.log_end_offset)
    for connection, transport in zip(connections, transports, strict=True):
        transport.writer.sent.clear()
        for _ in range(2):
            connection.frame_received(setting.frame())
    setting.completion_s = 0.0001

    def completed():
        return sum(len(transport.writer.sent) for transport in transports)

    setting.replicate(setting.partition.log.log_end_offset)
    found = [completed()]
    while run_iteration(setting.clock):
        found.append(completed())
    assert found[0] > 0
    assert [len(transport.writer.sent) for transport in transports] == [2] * count
    assert max(after - before for before, after in pairwise([0, *found])) <= 3 * 0.001 / setting.completion_s


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
@pytest.mark.parametrize("event", ["the leadership is lost", "the timeout expires"])
def test_a_request_that_waits_for_a_slice_is_acknowledged_if_it_was_replicated_before(setting, event, is_known):
    transports = [Transport() for _ in range(3)]
    connections = [Connection(transport, setting.dispatch, context()) for transport in transports]
    for _ in range(1 + is_known):
        setting.replicate(setting.partition.log.log_end_offset)
        for connection, transport in zip(connections, transports, strict=True):
            transport.writer.sent.clear()
            connection.frame_received(setting.frame())
            assert connection.in_progress is not None
    setting.completion_s = 1.0
    setting.replicate(setting.partition.log.log_end_offset)
    assert [len(transport.writer.sent) for transport in transports] == [1, 0, 0]
    if event == "the leadership is lost":
        setting.lead(2)
    else:
        for call in setting.clock.getDelayedCalls():
            if call.getTime() >= TIMEOUT_S:
                call.func()
    while run_iteration(setting.clock):
        pass
    for transport in transports:
        assert [code for _, code, _ in read_answers(transport)] == [0]
