"""Large requests and responses of a connection: in slices, in order, and stopped when the client disconnects."""

import gc
import struct
from itertools import pairwise
from types import SimpleNamespace

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.schema import rows
from odradek.server.apis import Api
from odradek.server.dispatch import Dispatch
from odradek.server.handlers import api_versions as any_handler_module
from odradek.server.network.connection import Connection
from odradek.server.network.large_messages import RELEASED_PER_STEP
from odradek.server.network.tests.test_connection import Transport
from odradek.server.request import EncodedBody, RequestContext
from odradek.server.tests.wire import request_frame
from odradek.server.work.slices import Slices

VERSION = 9
NAMES = [f"topic-{number}" for number in range(3_000)]


class Setting:
    def __init__(self):
        self.clock = Clock()
        self.results = []
        self.requests = []
        services = SimpleNamespace(slices=Slices(self.clock, self.clock.seconds, slice_s=0), groups_in_use=None)
        apis = {
            3: Api(3, "Metadata", 0, 12, "api_versions:sample"),
            12: Api(12, "Heartbeat", 0, 4, "api_versions:small"),
        }
        self.transport = Transport()
        self.connection = Connection(
            self.transport, Dispatch(services, apis), RequestContext("host", "PLAINTEXT")
        )

    def handle(self, services, context, request):
        self.requests.append(request)
        result = self.results.pop(0) if self.results else MetadataResponse()
        if isinstance(result, Exception):
            raise result
        return result

    def iterate(self):
        """Run reactor iterations until nothing is left to do. Return their number."""
        count = 0
        self.transport.iterate()
        while self.clock.calls:
            # `advance` would also make the calls that these calls schedule.
            calls, self.clock.calls = self.clock.calls, []
            for call in calls:
                call.func(*call.args)
            self.transport.iterate()
            count += 1
        return count

    def answer(self, number=-1):
        """Correlation id and message of a response."""
        sent = self.transport.writer.sent[number]
        size, correlation_id = struct.unpack_from(">ii", sent)
        assert size == len(sent) - 4
        return correlation_id, codec.decode(MetadataResponse, VERSION, sent, 9)

    @property
    def correlation_ids(self):
        return [struct.unpack_from(">i", sent, 4)[0] for sent in self.transport.writer.sent]


@pytest.fixture
def setting(monkeypatch):
    made = Setting()

    def error(request, version, error):
        return MetadataResponse(
            topics=rows(
                lambda topic: MetadataResponseTopic(name=topic.name, error_code=error.code), request.topics or []
            )
        )

    monkeypatch.setattr(any_handler_module, "sample", made.handle, raising=False)
    monkeypatch.setattr(any_handler_module, "sample_error", error, raising=False)
    monkeypatch.setattr(any_handler_module, "small", lambda *_: HeartbeatResponse(), raising=False)
    monkeypatch.setattr(any_handler_module, "small_error", lambda *_: None, raising=False)
    return made


def large_request():
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES])


def large_response():
    return MetadataResponse(topics=[MetadataResponseTopic(name=name) for name in NAMES])


def small_frame(correlation_id):
    return request_frame(HeartbeatRequest(), 1, correlation_id)


def test_a_large_request_is_decoded_in_slices_and_the_next_waits(setting):
    setting.connection.frames_received([request_frame(large_request(), VERSION, 1), small_frame(2)])
    setting.transport.iterate()
    assert setting.requests == []
    assert setting.connection.in_progress.request is None
    assert setting.iterate() > 10
    assert setting.requests == [large_request()]
    assert setting.correlation_ids == [1, 2]


def test_a_large_response_is_encoded_in_slices_and_the_next_waits(setting):
    setting.results.append(large_response())
    setting.connection.frames_received([request_frame(MetadataRequest(), VERSION, 1), small_frame(2)])
    setting.transport.iterate()
    assert setting.transport.writer.sent == []
    assert setting.iterate() > 10
    assert setting.answer(0) == (1, large_response())
    assert setting.correlation_ids == [1, 2]


def test_a_large_response_of_a_deferred_is_encoded_in_slices(setting):
    response = Deferred()
    setting.results.append(response)
    setting.connection.frames_received([request_frame(large_request(), VERSION, 1), small_frame(2)])
    setting.iterate()
    assert setting.requests == [large_request()]
    assert setting.connection.in_progress.request == large_request()
    response.callback(large_response())
    assert setting.iterate() > 10
    assert setting.answer(0) == (1, large_response())
    assert setting.correlation_ids == [1, 2]


def test_a_failed_large_request_has_an_error_for_each_element(setting):
    setting.results.append(KafkaError(ErrorCode.NOT_CONTROLLER))
    setting.connection.frame_received(request_frame(large_request(), VERSION, 1))
    setting.iterate()
    _, response = setting.answer()
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        (name, ErrorCode.NOT_CONTROLLER) for name in NAMES
    ]


def test_a_large_request_that_is_malformed_closes_the_connection(setting, caplog):
    frame = request_frame(large_request(), VERSION, 1)
    position = frame.rindex(b"topic-2990")
    setting.connection.frames_received([frame[: position - 1] + b"\xff" + frame[position:], small_frame(2)])
    setting.transport.iterate()
    assert not setting.transport.closed
    setting.iterate()
    assert setting.transport.closed
    assert setting.transport.writer.sent == []
    assert "malformed request" in caplog.text


def test_a_large_response_that_cannot_be_encoded_closes_the_connection(setting, caplog):
    response = large_response()
    response.topics[-1].topic_authorized_operations = "no number"
    setting.results.append(response)
    setting.connection.frames_received([request_frame(MetadataRequest(), VERSION, 1), small_frame(2)])
    setting.iterate()
    assert setting.transport.closed
    assert setting.transport.writer.sent == []
    assert "response could not be encoded" in caplog.text


@pytest.mark.parametrize("is_response", [False, True])
def test_work_for_a_lost_connection_stops(setting, is_response):
    setting.results.append(large_response())
    request = MetadataRequest() if is_response else large_request()
    setting.connection.frame_received(request_frame(request, VERSION, 1))
    setting.transport.iterate()
    setting.connection.connection_lost()
    assert setting.iterate() <= 1
    assert len(setting.requests) == is_response
    assert setting.transport.writer.sent == []


@pytest.mark.parametrize("released", ["request", "response", "rows of one topic"])
def test_a_very_large_message_is_released_in_steps(setting, monkeypatch, released):
    request, ended = MetadataRequest(), []
    counted: type[object] = MetadataResponseTopic
    names = [f"{number:040}" for number in range(19_000)]
    if released == "request":
        request.topics, counted = [MetadataRequestTopic(name=name) for name in names], MetadataRequestTopic
    elif released == "response":
        setting.results.append(MetadataResponse(topics=[MetadataResponseTopic(name=name) for name in names]))
    else:
        counted = MetadataResponsePartition
        partitions = [MetadataResponsePartition(partition_index=number) for number in range(len(names))]
        setting.results.append(MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)]))
        del partitions
    frame = request_frame(request, VERSION, 1)
    del request
    setting.requests = SimpleNamespace(append=lambda request: None)
    gc.collect()  # Messages of earlier tests are not counted.
    monkeypatch.setattr(counted, "__del__", lambda element: ended.append(1), raising=False)
    setting.connection.frame_received(frame)
    setting.transport.iterate()
    counts = [0]
    while setting.clock.calls:
        call = setting.clock.calls.pop(0)
        call.func(*call.args)
        del call
        setting.transport.iterate()
        counts.append(len(ended))
    assert counts[-1] == len(names)
    assert max(after - before for before, after in pairwise(counts)) <= RELEASED_PER_STEP
    assert setting.correlation_ids == [1]


def test_an_encoded_body_is_sent_as_it_is(setting):
    body = Deferred()
    setting.results.append(body)
    setting.connection.frames_received([request_frame(MetadataRequest(), VERSION, 1), small_frame(2)])
    setting.transport.iterate()
    body.callback(EncodedBody(codec.encode(large_response(), VERSION), begins_with_throttle_time=True))
    setting.iterate()
    assert setting.answer(0) == (1, large_response())
    assert setting.correlation_ids == [1, 2]
