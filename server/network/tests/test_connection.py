"""One connection: responses in request order, one request at a time, a failure affects its request only."""

import struct
from types import SimpleNamespace

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, SchedulerStopped

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.server.apis import Api
from odradek.server.dispatch import Dispatch
from odradek.server.handlers import api_versions as any_handler_module
from odradek.server.network.connection import Connection
from odradek.server.network.scheduler import RequestScheduler
from odradek.server.network.writers.write_coalescer import WriteCoalescer
from odradek.server.request import NO_RESPONSE, CloseConnection, RequestContext
from odradek.server.work.slices import Slices
from odradek.server.work.waits import Wait


class Writer:
    def __init__(self):
        self.sent = []
        self.takes_all = True

    @property
    def is_idle(self):
        return self.takes_all or not self.sent

    def send_one(self, data):
        self.sent.append(bytes(data))

    def send(self, pieces):
        raise AssertionError("a response has one piece")

    def flush(self):
        pass


class Transport:
    def __init__(self):
        self.writer = Writer()
        self.closed = False
        self.reading = True
        self.now_s = 0.0
        self.scheduler = RequestScheduler(lambda: self.now_s, WriteCoalescer())

    def close(self):
        self.closed = True

    def iterate(self):
        """Run one reactor iteration."""
        self.scheduler.begin_iteration(self.now_s)
        self.scheduler.serve()

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def limit_frames(self, max_frame_bytes):
        self.max_frame_bytes = max_frame_bytes

    def answers(self):
        sent = self.writer.sent
        return [(struct.unpack_from(">i", data, 4)[0], struct.unpack_from(">h", data, 12)[0]) for data in sent]


def frame(correlation_id, version=1, body=None):
    if body is None:
        body = codec.encode(HeartbeatRequest(group_id="g", member_id="m"), version)
    content = struct.pack(">hhih", 12, version, correlation_id, 2) + b"me" + body
    return struct.pack(">i", len(content)) + content


@pytest.fixture
def setting(monkeypatch):
    results = []

    def handler(services, context, request):
        result = results.pop(0) if results else HeartbeatResponse()
        if isinstance(result, Exception):
            raise result
        return result

    def handler_error(request, version, error):
        return HeartbeatResponse(error_code=error.code)

    monkeypatch.setattr(any_handler_module, "sample", handler, raising=False)
    monkeypatch.setattr(any_handler_module, "sample_error", handler_error, raising=False)
    clock = Clock()
    services = SimpleNamespace(slices=Slices(clock, clock.seconds), clock=clock)
    dispatch = Dispatch(services, {12: Api(12, "Heartbeat", 0, 4, "api_versions:sample")})
    transport = Transport()
    return transport, Connection(transport, dispatch, RequestContext("host", "PLAINTEXT")), results, dispatch


def test_responses_are_in_order_and_the_next_request_waits(setting):
    transport, connection, results, _ = setting
    first = Deferred()
    results.append(first)
    connection.frames_received([frame(1), frame(2)])
    transport.iterate()
    connection.frames_received([frame(3)])
    transport.iterate()
    assert transport.answers() == []
    first.callback(HeartbeatResponse(error_code=27))
    transport.iterate()
    assert transport.answers() == [(1, 27), (2, 0), (3, 0)]


def test_the_next_request_begins_in_a_later_iteration_than_the_end_of_a_wait(setting):
    transport, connection, results, _ = setting
    first, third = Deferred(), Deferred()
    results.append(first)
    connection.frames_received([frame(1), frame(2), frame(3), frame(4)])
    transport.iterate()
    first.callback(HeartbeatResponse(error_code=27))
    assert transport.answers() == [(1, 27)]
    results.extend([HeartbeatResponse(), third])
    connection.output_drained()
    transport.iterate()
    assert transport.answers() == [(1, 27), (2, 0)]
    # This iteration serves the call that the first response scheduled; the third request is in progress.
    transport.iterate()
    assert transport.answers() == [(1, 27), (2, 0)]
    third.callback(HeartbeatResponse())
    connection.connection_lost()
    transport.iterate()
    assert transport.answers() == [(1, 27), (2, 0), (3, 0)]


def test_an_unsent_response_delays_the_next_request(setting):
    transport, connection, _, _ = setting
    transport.writer.takes_all = False
    connection.frames_received([frame(1), frame(2)])
    transport.iterate()
    assert transport.answers() == [(1, 0)]
    transport.writer.takes_all = True
    connection.output_drained()
    transport.iterate()
    assert transport.answers() == [(1, 0), (2, 0)]


def test_too_many_waiting_requests_stop_the_reading(setting):
    transport, connection, results, _ = setting
    first = Deferred()
    results.append(first)
    connection.frames_received([frame(n) for n in range(40)])
    transport.iterate()
    assert not transport.reading
    first.callback(HeartbeatResponse())
    transport.iterate()
    assert transport.reading
    assert [correlation_id for correlation_id, _ in transport.answers()] == list(range(40))


def test_kafka_errors_are_answered_and_unexpected_errors_counted(setting):
    transport, connection, results, dispatch = setting
    results += [KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), ZeroDivisionError()]
    connection.frames_received([frame(1), frame(2), frame(3)])
    transport.iterate()
    assert transport.answers() == [(1, 25), (2, -1), (3, 0)]
    assert dispatch.unexpected_errors == {"Heartbeat": 1}


def test_large_requests_that_wait_stop_the_reading_sooner(setting):
    transport, connection, results, _ = setting
    first = Deferred()
    results.append(first)
    large = frame(2, body=codec.encode(HeartbeatRequest(group_id="g" * 30_000, member_id="m"), 1) + bytes(2_000_000))
    connection.frames_received([frame(1), large])
    transport.iterate()
    assert not transport.reading
    first.callback(HeartbeatResponse())
    transport.iterate()
    assert transport.reading


def test_a_failed_deferred_is_answered_too(setting):
    transport, connection, results, _ = setting
    waiting = Deferred()
    results.append(waiting)
    connection.frames_received([frame(1), frame(2)])
    transport.iterate()
    waiting.errback(KafkaError(ErrorCode.ILLEGAL_GENERATION))
    transport.iterate()
    assert transport.answers() == [(1, 22), (2, 0)]


def test_a_request_that_a_stop_interrupts_is_not_answered(setting, caplog):
    transport, connection, results, dispatch = setting
    waiting = Deferred()
    results.append(waiting)
    connection.frames_received([frame(1), frame(2)])
    transport.iterate()
    waiting.errback(SchedulerStopped())
    transport.iterate()
    assert transport.answers() == []
    assert transport.closed
    assert not caplog.records
    assert not dispatch.unexpected_errors


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00\x00\x00\x02\x00\x0c",
        frame(1, body=b""),

        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 12, 99, 1, -1),
        struct.pack(">ihhih", 10, 12, 1, 1, -2),
        struct.pack(">ihhih", 10, 12, 1, 1, 500),
    ],
    ids=["short", "no body", "unknown key", "unknown version", "negative client id", "long client id"],
)
def test_malformed_requests_close_the_connection(setting, bad, caplog):
    transport, connection, _, _ = setting
    connection.frames_received([bad, frame(2)])
    transport.iterate()
    assert transport.closed
    assert transport.writer.sent == []
    assert len(caplog.records) == 1


def test_well_formed_requests_keep_the_connection_open(setting, caplog):
    transport, connection, _, _ = setting
    connection.frames_received([frame(1), frame(2)])
    transport.iterate()
    assert not transport.closed
    assert transport.answers() == [(1, 0), (2, 0)]
    assert caplog.records == []


def test_bytes_after_a_request_are_ignored_as_in_kafka(setting):
    transport, connection, _, _ = setting
    body = codec.encode(HeartbeatRequest(group_id="g"), 1) + b"x"
    connection.frames_received([frame(1, body=body)])
    transport.iterate()
    assert transport.answers() == [(1, 0)]


def test_a_handler_may_return_no_response_or_close_the_connection(setting):
    transport, connection, results, _ = setting
    results += [NO_RESPONSE, CloseConnection("acks=0 failed")]
    connection.frames_received([frame(1), frame(2), frame(3)])
    transport.iterate()
    assert transport.answers() == []
    assert transport.closed


def test_the_end_of_the_input_hastens_the_request_in_progress(setting):
    transport, connection, results, _ = setting
    decoded, waiting, hastened = Deferred(), Wait(lambda: ""), []
    waiting.shorten = lambda: hastened.append(connection.context.has_input_ended)
    decoded.addCallback(lambda _: waiting)
    results.append(decoded)
    connection.frames_received([frame(1)])
    transport.iterate()
    decoded.callback(None)
    connection.input_ended()
    assert hastened == [True]
    assert not transport.closed
    waiting.callback(HeartbeatResponse())
    transport.iterate()
    assert len(transport.answers()) == 1
    assert transport.closed


def test_a_lost_connection_is_reported_to_what_depends_on_it(setting):
    connection = setting[1]
    lost = []
    connection.context.on_lost = lost.append
    connection.closing()
    assert lost == []
    connection.connection_lost()
    assert lost == [connection.context]


def test_a_lost_connection_cancels_its_request(setting):
    transport, connection, results, _ = setting
    cancelled = []
    waiting = Deferred(cancelled.append)
    results.append(waiting)
    connection.frames_received([frame(1), frame(2)])
    transport.iterate()
    connection.connection_lost()
    assert cancelled == [waiting]
    assert transport.answers() == []
