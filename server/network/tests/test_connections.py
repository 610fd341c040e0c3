"""The connection registry: idle connections are closed as in Kafka, stalls are logged once."""

import errno
import logging
import os
import socket
import struct
from types import SimpleNamespace

import pytest
from twisted.internet.task import Clock

from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.stalls import MARGIN_S
from odradek.server.network.tests.edge import NOTHING, Edge, Kind, Script
from odradek.server.tests.wire import Wire, request_frame, until
from odradek.testing import OdradekBroker

IDLE_S = 100.0
LOOK_S = 5.0


def let_pass(edge, seconds):
    """Let time pass, with the registry's check every LOOK_S."""
    end_s = edge.now_s + seconds
    while edge.now_s < end_s:
        edge.now_s += LOOK_S
        edge.run()


def started(choices=(), kinds=(Kind.SMALL,), **options):
    """A connection whose client has sent its requests, in a registry that checks it every LOOK_S."""
    edge = Edge(Script(choices), kinds, **options)
    edge.registry.start()
    return edge.run()


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_connection_without_reads_or_sends_is_closed_after_the_idle_time():
    edge = started(max_idle_ms=IDLE_S * 1000)
    let_pass(edge, IDLE_S)
    assert not edge.socket.is_closed
    let_pass(edge, 2 * LOOK_S)
    assert edge.socket.is_closed


def test_an_idle_connection_is_closed_although_its_socket_is_not_writable():
    """The kernel has taken all responses, and the client reads none: a write event may never come."""
    edge = started(max_idle_ms=IDLE_S * 1000, is_ever_writable=False)
    assert edge.answers == [(0, 0, 0, b"")]
    let_pass(edge, IDLE_S + 2 * LOOK_S)
    assert edge.socket.is_closed
    assert len(edge.registry) == 0


@pytest.mark.parametrize("kind", [Kind.CLOSE, Kind.CLOSE_LATER, Kind.MALFORMED], ids=lambda kind: kind.name)
def test_a_request_that_closes_the_connection_needs_no_writable_socket(kind):
    edge = started(kinds=[Kind.SMALL, kind], is_ever_writable=False)
    assert edge.answers == [(0, 0, 0, b"")]
    assert edge.socket.is_closed


def test_requests_and_responses_count_as_activity():
    edge = started(kinds=[Kind.PARKED], max_idle_ms=IDLE_S * 1000)
    let_pass(edge, IDLE_S - LOOK_S)
    edge.release()
    edge.run()
    assert edge.answers == [(0, 0, 0, b"")]
    let_pass(edge, IDLE_S - LOOK_S)
    assert not edge.socket.is_closed
    let_pass(edge, 4 * LOOK_S)
    assert edge.socket.is_closed


@pytest.mark.parametrize("is_authenticating", [True, False])
def test_bytes_before_the_authentication_are_no_activity(is_authenticating):
    """Otherwise a client could hold a connection for ever, with a byte now and then."""
    authenticate = (lambda requests, context: requests) if is_authenticating else None
    edge = started(kinds=[Kind.PARKED], max_idle_ms=IDLE_S * 1000, authenticate=authenticate)
    let_pass(edge, IDLE_S - LOOK_S)
    edge.release()
    edge.run()
    let_pass(edge, 3 * LOOK_S)
    assert edge.socket.is_closed == is_authenticating


def test_a_request_in_progress_does_not_keep_an_idle_connection_open(caplog):
    edge = started(kinds=[Kind.PARKED], max_idle_ms=IDLE_S * 1000)
    let_pass(edge, IDLE_S + 2 * LOOK_S)
    assert edge.socket.is_closed
    assert edge.cancelled == [0]
    assert "closing idle connection" in warnings(caplog)[-1]


def test_a_client_that_does_not_read_is_closed_as_idle(caplog):
    # The socket takes nothing, and is never writable.
    edge = started([0, NOTHING], max_idle_ms=IDLE_S * 1000, is_ever_writable=False)
    let_pass(edge, IDLE_S + 2 * LOOK_S)
    assert edge.socket.is_closed
    unread, closed = warnings(caplog)
    assert "client does not read its responses" in unread
    assert "waits_for=socket unsent_bytes=" in unread
    assert "closing idle connection" in closed


def test_a_client_that_waits_for_the_disk_is_logged_once(caplog):
    edge = started([0, 0, 1], kinds=[Kind.RECORDS], may_be_cold=True, is_disk_hung=True)
    let_pass(edge, MARGIN_S + 4 * LOOK_S)
    (slow,) = warnings(caplog)
    assert "records are not read from the disk yet; check the disks" in slow
    assert "waits_for=disk unsent_bytes=" in slow
    edge.is_disk_hung = False
    edge.run()
    assert [n for n, *_ in edge.answers] == [0]


def test_a_request_without_response_is_logged_once_with_its_wait(caplog):
    edge = started(kinds=[Kind.PARKED], max_wait_ms=10_000)
    let_pass(edge, MARGIN_S + 10)
    assert warnings(caplog) == []
    let_pass(edge, 2 * LOOK_S)
    (line,) = warnings(caplog)
    assert "request has no response" in line
    assert "api=Fetch version=11 client=/host client_id=test correlation_id=0" in line
    assert f"age_s={MARGIN_S + 10 + LOOK_S:.0f} timeout_ms=10000 waits_for='a test'" in line
    let_pass(edge, 3 * MARGIN_S)
    assert len(warnings(caplog)) == 1


def test_each_request_without_response_is_logged(caplog):
    edge = started(kinds=[Kind.PARKED, Kind.PARKED], cuts=(2,))
    let_pass(edge, MARGIN_S + 2 * LOOK_S)
    edge.release()
    let_pass(edge, MARGIN_S + 3 * LOOK_S)
    first, second = warnings(caplog)
    assert "correlation_id=0" in first
    assert "correlation_id=1" in second


def test_a_slow_reader_is_no_stall(caplog):
    edge = started([0, NOTHING], kinds=[Kind.RECORDS], is_ever_writable=False)
    let_pass(edge, MARGIN_S)
    edge.protocol.writer.has_progressed = True
    let_pass(edge, MARGIN_S)
    assert warnings(caplog) == []
    let_pass(edge, 3 * LOOK_S)
    assert len(warnings(caplog)) == 1


def test_a_request_that_waits_for_nothing_is_reported_as_a_defect(caplog):
    edge = started(kinds=[Kind.SMALL])
    edge.protocol.connection._backlog.append(b"forgotten")
    let_pass(edge, MARGIN_S + 2 * LOOK_S)
    (line,) = warnings(caplog)
    assert "please report it" in line


def test_a_connection_whose_check_fails_is_closed_and_checks_go_on(monkeypatch, caplog):
    edge = started(kinds=[Kind.PARKED])
    monkeypatch.setattr(edge.protocol, "take_activity", lambda: 1 / 0)
    let_pass(edge, 2 * LOOK_S)
    assert edge.socket.is_closed
    assert len(edge.reactor.getDelayedCalls()) == 1
    assert "please report it" in caplog.text


def test_stop_closes_every_connection():
    edge = started(kinds=[Kind.PARKED])
    edge.registry.stop()
    edge.run()
    assert edge.socket.is_closed
    assert len(edge.registry) == 0


def test_a_reset_after_the_end_of_the_input_is_found_while_a_request_is_in_progress():
    edge = started(kinds=[Kind.PARKED])
    edge.has_left = True
    let_pass(edge, 2 * LOOK_S)
    assert not edge.socket.is_closed
    edge.socket.error = errno.EPIPE
    let_pass(edge, LOOK_S)
    assert edge.socket.is_closed
    assert edge.cancelled == [0]


def test_requests_that_arrived_before_a_reset_are_begun():
    edge = started(kinds=[Kind.PARKED, Kind.PARKED], cuts=(2,))
    edge.has_left = True
    edge.run()
    edge.socket.error = errno.EPIPE
    let_pass(edge, 2 * LOOK_S)
    edge.release()
    edge.run()
    assert edge.began == [0, 1]
    let_pass(edge, LOOK_S)
    assert edge.cancelled == [1]
    assert edge.socket.is_closed


class StubTransport:
    """An idle connection. `close` may fail."""

    def __init__(self, registry, error=None):
        self.error = error
        self.looks = 0
        self.is_closed = self.is_aborted = False
        self.writer = SimpleNamespace(has_progressed=False, is_idle=True, abort=self._abort)
        context = SimpleNamespace(listener_name="PLAINTEXT", client_host="host", client_id="test")
        self.connection = SimpleNamespace(
            in_progress=None, next_frame=None, is_in_line=False, is_muted=False, context=context
        )
        registry.add(self)

    def is_broken(self):
        return False

    def take_activity(self):
        self.looks += 1
        return False

    def close(self):
        if self.error is not None:
            raise self.error
        self.is_closed = True

    def _abort(self):
        self.is_aborted = True


@pytest.fixture
def stubs():
    clock = Clock()
    registry = ConnectionRegistry(clock, lambda request: 0, max_idle_ms=-1)
    return clock, registry


def iterate(clock):
    """Run one reactor iteration, in which all timers are due."""
    # `advance` would also make the calls that these calls schedule.
    calls, clock.calls = clock.calls, []
    for call in calls:
        call.called = 1
        call.func(*call.args, **call.kw)


def test_many_connections_are_checked_in_parts(stubs):
    clock, registry = stubs
    connections = [StubTransport(registry) for _ in range(1000)]
    registry.start()
    looks = [0]
    while looks[-1] < 999:
        iterate(clock)
        registry.remove(connections[-1])
        looks.append(sum(connection.looks for connection in connections))
        assert 0 < looks[-1] - looks[-2] <= 256
    assert [connection.looks for connection in connections] == [1] * 999 + [0]
    (next_look,) = clock.getDelayedCalls()
    assert next_look.getTime() == LOOK_S
    iterate(clock)
    assert connections[0].looks == 2
    registry.stop()
    assert clock.getDelayedCalls() == []


def test_a_connection_that_cannot_be_closed_does_not_keep_others_open(stubs, caplog):
    _, registry = stubs
    connections = [StubTransport(registry, error) for error in (None, ZeroDivisionError("a defect"), None)]
    registry.stop()
    assert [connection.is_closed for connection in connections] == [True, False, True]
    assert connections[1].is_aborted
    assert "please report it" in caplog.text


def test_a_closing_connection_begins_no_request():
    """A stop answers waiting requests; a request behind them must not reach closed logs."""
    edge = started(kinds=[Kind.PARKED, Kind.SMALL], cuts=(2,))
    edge.registry.stop()
    edge.release()
    edge.run()
    assert edge.began == [0]
    assert edge.socket.is_closed


def test_a_broker_closes_an_idle_connection_although_its_fetch_waits():
    """As Apache Kafka 4.3 does."""
    with OdradekBroker({"connections.max.idle.ms": "500"}) as broker, Wire(broker.port) as wire:
        wire.create_topic("t")
        wire.send(wire.fetch_request("t", 0, max_wait_ms=600_000, min_bytes=1), 11)
        assert wire.socket.recv(1) == b""


def open_sockets(broker):
    """The number of sockets that the broker has open."""
    descriptors = f"/proc/{broker.pid}/fd"
    count = 0
    for name in os.listdir(descriptors):
        try:
            count += os.readlink(f"{descriptors}/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def read_to_end(client):
    """Read until the broker closes the connection. Return the data, and whether the close was orderly."""
    data = bytearray()
    try:
        while more := client.recv(1 << 16):
            data += more
    except ConnectionResetError:
        return data, False
    return data, True


def test_idle_connections_are_closed_with_any_amount_of_unread_responses():
    """The kernel does not report a socket as writable while more than two thirds of its send buffer are in use."""
    frame = request_frame(ApiVersionsRequest(), 0)
    with OdradekBroker({"connections.max.idle.ms": "1000", "socket.send.buffer.bytes": "65536"}) as broker:
        before = open_sockets(broker)
        clients = []
        for count in range(20, 1500, 40):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", broker.port))
            client.sendall(frame * count)
            clients.append((client, count))
        until(lambda: open_sockets(broker) <= before, what="the idle connections to be closed")
        orderly = 0
        for client, count in clients:
            data, is_orderly = read_to_end(client)
            client.close()
            if is_orderly:
                (size,) = struct.unpack_from(">i", data)
                assert len(data) == (4 + size) * count
                orderly += 1
        assert orderly


def test_a_broker_closes_a_connection_that_is_reset_after_its_input_has_ended():
    # The registry checks connections every two seconds.
    with OdradekBroker({"connections.max.idle.ms": "16000"}) as broker, Wire(broker.port) as wire:
        wire.create_topic("t")
        before = open_sockets(broker)
        with Wire(broker.port) as leaving:
            leaving.send(Wire.fetch_request("t", 0, max_wait_ms=600_000, min_bytes=1), 11)
            until(lambda: open_sockets(broker) > before)
            leaving.socket.shutdown(socket.SHUT_WR)
            # When this is answered, the broker has read the end of the input, or reads it in the same iteration.
            wire.metadata("t")
            leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: open_sockets(broker) <= before, what="the connection to be closed")
