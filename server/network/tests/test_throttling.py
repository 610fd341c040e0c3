"""A throttled connection: the response is sent at once, then no request is begun for the throttle time (KIP-219)."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.heartbeat import HeartbeatResponse
from odradek.server.apis import Api
from odradek.server.dispatch import Dispatch
from odradek.server.handlers import api_versions as any_handler_module
from odradek.server.network.connection import Connection
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.stalls import MARGIN_S, StallWatch
from odradek.server.network.tests.test_connection import Transport, frame
from odradek.server.quotas.switch import QuotaSwitch
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

VERSION = 1


class Throttled:
    """A connection whose requests take 1 s each, and whose client has a quota of 5 % of the time."""

    def __init__(self, monkeypatch):
        self.clock = Clock()
        self.busy_s = 1.0
        self.results = []
        self.ip_rates = []
        monkeypatch.setattr(any_handler_module, "sample", self.handle, raising=False)
        monkeypatch.setattr(any_handler_module, "sample_error", self.make_error, raising=False)
        config = SimpleNamespace(
            quota_window_num=11,
            quota_window_size_seconds=1,
            controller_quota_window_num=11,
            controller_quota_window_size_seconds=1,
        )
        slices = Slices(self.clock, self.clock.seconds)
        clock: Any = self.clock
        self.switch = QuotaSwitch(config, clock, self.monotonic_ms, clock.seconds, slices, self.ip_rates.append)
        services = SimpleNamespace(slices=slices, reactor=self.clock)
        self.dispatch = Dispatch(
            services, {12: Api(12, "Heartbeat", 0, 4, "api_versions:sample")}, quotas=self.switch
        )
        self.transport, self.connection = self.connect()

    def connect(self):
        transport = Transport()
        return transport, Connection(transport, self.dispatch, RequestContext("host", "PLAINTEXT"))

    def monotonic_ms(self):
        return int(self.clock.seconds() * 1000)

    def handle(self, services, context, request):
        # `advance` would call the timers that are due.
        self.clock.rightNow += self.busy_s
        result = self.results.pop(0) if self.results else HeartbeatResponse()
        if isinstance(result, Exception):
            raise result
        return result

    @staticmethod
    def make_error(request, version, error):
        return HeartbeatResponse(error_code=error.code)

    def put(self, **quotas):
        self.switch.update({"clients/me": {key: str(value) for key, value in quotas.items()}})

    def send(self, *correlation_ids):
        self.connection.frames_received([frame(one) for one in correlation_ids])
        self.transport.iterate()

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.transport.iterate()

    @property
    def throttle_times(self):
        sent = self.transport.writer.sent
        return [codec.decode(HeartbeatResponse, VERSION, data[8:]).throttle_time_ms for data in sent]


class Observed:
    """The transport of a connection, as the registry sees it."""

    def __init__(self, connection, writer):
        self.connection = connection
        self.writer = writer

    def take_activity(self):
        return False

    def is_broken(self):
        return False

    def close(self):
        pytest.fail("closed as idle")


@pytest.fixture
def setting(monkeypatch):
    setting = Throttled(monkeypatch)
    setting.put(request_percentage=5)
    return setting


def test_the_response_is_sent_at_once_and_the_next_request_waits(setting):
    setting.send(1, 2)
    assert setting.throttle_times == [1000]
    assert setting.connection.is_muted
    setting.advance(0.99)
    assert len(setting.throttle_times) == 1
    setting.advance(0.01)
    assert len(setting.throttle_times) == 2


def test_a_client_that_ignores_its_throttle_time_gains_nothing(setting):
    """Requests that arrive meanwhile wait, and from a number of them on the socket is not read."""
    for number in range(40):
        setting.connection.frame_received(frame(number))
        setting.transport.iterate()
    assert len(setting.throttle_times) == 1
    assert not setting.transport.reading
    for expected in range(2, 6):
        setting.advance(1.0)
        assert len(setting.throttle_times) == expected
    assert [number for number, _ in setting.transport.answers()] == [0, 1, 2, 3, 4]


def test_a_request_that_waits_is_throttled_when_it_is_answered(setting):
    waiting = Deferred()
    setting.results.append(waiting)
    setting.send(1, 2)
    assert not setting.connection.is_muted
    setting.advance(5)
    waiting.callback(HeartbeatResponse())
    assert setting.throttle_times == [1000]
    assert setting.connection.is_muted


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), RuntimeError("a defect")])
def test_a_failed_request_is_throttled(setting, error):
    setting.results.append(error)
    setting.send(1)
    assert setting.throttle_times == [1000]
    setting.send(2)
    assert setting.throttle_times == [1000]


def test_other_clients_are_not_throttled(setting):
    setting.send(1)
    transport, connection = setting.connect()
    other = frame(1).replace(b"\0\2me", b"\0\2us")
    connection.frames_received([other, other])
    transport.iterate()
    assert len(transport.answers()) == 2


def test_a_quota_is_set_raised_and_removed_while_a_client_is_connected(setting):
    setting.put()
    setting.send(1, 2)
    assert setting.throttle_times == [0, 0]
    setting.put(request_percentage=5)
    setting.send(3)
    assert setting.throttle_times == [0, 0, 1000]
    setting.advance(1)
    setting.put(request_percentage=1000)
    setting.send(4)
    assert setting.throttle_times[3:] == [0]
    setting.put(request_percentage=5)
    setting.send(5)
    setting.put()
    # The throttle time in the response does not change.
    setting.send(6)
    assert setting.throttle_times[4:] == [1000]
    setting.advance(1)
    assert setting.throttle_times[4:] == [1000, 0]


def test_a_muted_connection_notices_that_its_client_has_gone(setting):
    setting.send(1)
    setting.connection.input_ended()
    setting.transport.iterate()
    assert setting.transport.closed


def test_requests_before_the_end_of_the_input_are_served_after_the_throttle_time(setting):
    setting.send(1, 2)
    setting.connection.input_ended()
    setting.transport.iterate()
    assert not setting.transport.closed
    setting.advance(1)
    setting.advance(1)
    assert len(setting.throttle_times) == 2
    assert setting.transport.closed


@pytest.mark.parametrize("end", ["connection_lost", "closing"])
def test_a_lost_connection_leaves_no_timer(setting, end):
    setting.send(1, 2)
    getattr(setting.connection, end)()
    assert not setting.clock.getDelayedCalls()
    assert not setting.connection.is_muted


def test_malformed_input_closes_a_muted_connection(setting):
    setting.send(1)
    setting.connection.refuse_in_turn("malformed")
    setting.transport.iterate()
    assert setting.transport.closed


def test_a_muted_connection_is_neither_stalled_nor_idle(setting, caplog):
    setting.put(request_percentage=5, producer_byte_rate=1)
    setting.send(1, 2)
    setting.connection.context.throttle_ms = 10_000_000
    setting.connection._mute()
    writer = setting.transport.writer
    writer.has_progressed = False
    observed: Any = Observed(setting.connection, writer)
    watch = StallWatch()
    for now_s in (0.0, MARGIN_S, 3 * MARGIN_S):
        watch.check(observed, lambda request: 0, now_s, False)
    registry = ConnectionRegistry(setting.clock, lambda request: 0, max_idle_ms=60_000)
    registry.add(observed)
    registry.start()
    for _ in range(100):
        setting.clock.advance(5)
    assert not caplog.records
    registry._call.cancel()


def test_nothing_is_loaded_or_measured_without_quotas(monkeypatch):
    setting = Throttled(monkeypatch)
    setting.switch.update({"users/alice": {"SCRAM-SHA-256": "salt=..."}})
    setting.send(1, 2)
    assert setting.switch.active is None
    assert setting.switch._clients is None
    assert setting.connection._pipeline._charges is None
    assert setting.throttle_times == [0, 0]


def test_a_request_of_brokers_counts_only_if_its_client_is_not_one(setting, monkeypatch):
    """As in Kafka: otherwise a client could occupy the broker with requests that it may not send."""
    monkeypatch.setattr("odradek.server.quotas.client_charges._EXEMPT_KEYS", frozenset((12,)))
    setting.results += [HeartbeatResponse(), KafkaError(ErrorCode.NOT_CONTROLLER)]
    setting.send(1, 2)
    assert setting.throttle_times == [0, 0]
    setting.results += [KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    setting.send(3, 4)
    assert setting.throttle_times == [0, 0, 1000]
