"""Events of requests, handlers and a socket in any order: each request is answered once, or the connection closed."""

import gc
import itertools
import select
import socket
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from odradek.server.network import connection as connection_module
from odradek.server.network.tests.edge import (
    EDGE_FD,
    MOST_APPENDED,
    NOTHING,
    PARKED,
    Edge,
    Kind,
    Script,
    run_all_scripts,
)
from odradek.server.network.writers import socket_writer

DEPTH = 7
"""The number of choices of which all combinations are run, about that of a scenario of two or three requests."""

KINDS = [kind for kind in Kind if kind not in PARKED]
SOON_APPENDED = [Kind.REPEATED_LATER, Kind.REPEATED_SYNCED, Kind.REPEATED_SOON, Kind.REPEATED_FAILS_LATER]
ANSWERED = [Kind.SMALL, Kind.RECORDS, Kind.LATER, Kind.RECORDS_LATER, Kind.AT_ONCE, Kind.NO_RESPONSE_LATER]


@pytest.fixture
def small_limits(monkeypatch):
    """Set limits that a few requests reach."""
    monkeypatch.setattr(connection_module, "_BACKLOG_LIMIT", 2)
    monkeypatch.setattr(socket_writer, "ITERATION_LIMIT_BYTES", 12)
    monkeypatch.setattr(socket_writer, "_PENDING_LIMIT_BYTES", 40)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_without_faults_each_kind_of_request_is_answered_or_closes_the_connection(kind):
    Edge(Script(), [Kind.SMALL, kind, Kind.LATER, kind, Kind.RECORDS], (2, 3)).run().check()


def test_a_socket_that_has_room_again_at_once_does_not_stall_the_connection():
    # The request arrives; the socket takes half of the response; before any event it has room for the rest.
    edge = Edge(Script([0, 1]), [Kind.SMALL, Kind.SMALL]).run().check()
    assert edge.script.taken[1] == (1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(1,), (3,), (1, 2)], ids=str)
@pytest.mark.parametrize(
    "kinds", list(itertools.product(ANSWERED, repeat=2)), ids=lambda kinds: "-".join(kind.name for kind in kinds)
)
def test_every_order_of_partial_sends_and_events(kinds, cuts):
    def run(script):
        Edge(script, (*kinds, Kind.SMALL), cuts, send_outcomes=3).run().check()

    assert run_all_scripts(run, DEPTH) > DEPTH


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(1,), (3,)], ids=str)
@pytest.mark.parametrize(
    "kinds", list(itertools.product(SOON_APPENDED, repeat=2)), ids=lambda kinds: "-".join(kind.name for kind in kinds)
)
def test_every_order_of_appended_batches_and_of_their_outcomes(kinds, cuts):
    def run(script):
        Edge(script, (*kinds, Kind.REPEATED), cuts, send_outcomes=3, may_leave=True).run().check()
        Edge(script, (*kinds, Kind.SMALL), cuts, send_outcomes=6).run().check()

    assert run_all_scripts(run, DEPTH - 1) > DEPTH


def test_a_few_batches_are_appended_before_the_response_to_the_first():
    edge = Edge(Script(), [Kind.REPEATED_PARKED] * 20, (20,)).run()
    assert edge.began == list(range(MOST_APPENDED))
    edge.release()
    edge.run()
    assert [answer[0] for answer in edge.answers] == [0]
    assert edge.began == list(range(MOST_APPENDED + 1))


@pytest.mark.parametrize("cuts", [(1,), (4,), (1, 3)], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_a_refused_batch_that_completes_the_requests_in_progress_and_those_after_it_are_answered(cuts, count):
    """A disk failure refuses a batch, and completes the requests that wait for replicas."""
    kinds = [*[Kind.REPEATED_PARKED] * count, Kind.REFUSED, Kind.SMALL]
    edge = Edge(Script(), kinds, cuts).run()
    while edge.in_progress is not None:
        edge.release()
        edge.run()
    assert [answer[0] for answer in edge.answers] == list(range(len(kinds)))


@pytest.mark.parametrize("cuts", [(1,), (12,)], ids=str)
def test_a_refused_batch_is_not_tried_again_before_it_is_begun(cuts):
    kinds = [Kind.REPEATED_PARKED, Kind.REPEATED_PARKED, *[Kind.SMALL] * 10]
    edge = Edge(Script(), kinds, cuts).run()
    assert edge.attempts == [0, 1, 2]
    edge.release()
    edge.run()
    assert edge.attempts == [0, 1, 2]
    edge.release()
    edge.run()
    assert edge.attempts == [0, 1, 2, *range(2, 12)]
    assert [answer[0] for answer in edge.answers] == list(range(12))


def test_appended_batches_of_a_lost_connection_are_dropped():
    edge = Edge(Script(), [Kind.REPEATED_PARKED, Kind.REPEATED_SYNCED, Kind.REPEATED_LATER], (3,)).run()
    edge.tcp.connectionLost(Failure(ConnectionLost()))
    assert edge.began == [0, 1, 2]
    assert not edge.deferreds


@pytest.mark.parametrize("kind", [Kind.SMALL, Kind.RECORDS, Kind.LATER, Kind.CLOSE_LATER], ids=lambda kind: kind.name)
def test_every_order_with_a_failing_socket_and_a_client_that_closes_its_side(kind):
    def run(script):
        Edge(script, (Kind.RECORDS, kind, Kind.SMALL), (3,), send_outcomes=6, may_leave=True).run().check()

    assert run_all_scripts(run, DEPTH - 1) > DEPTH


@pytest.mark.parametrize("kind", [Kind.SMALL, Kind.RECORDS_LATER, Kind.CLOSE_LATER], ids=lambda kind: kind.name)
def test_every_order_with_file_regions_that_threads_read_from_the_disk(kind):
    def run(script):
        kinds = (Kind.RECORDS, kind, Kind.SMALL)
        Edge(script, kinds, (3,), send_outcomes=3, may_leave=True, may_be_cold=True).run().check()

    assert run_all_scripts(run, DEPTH) > DEPTH


def test_a_connection_that_is_lost_during_a_read_from_the_disk_ends_the_read():
    edge = Edge(Script([0, 0, 1]), [Kind.RECORDS], may_be_cold=True, is_disk_hung=True).run()
    ((work, done),) = edge.reads
    region = edge.protocol.writer._queue[0]
    edge.tcp.connectionLost(Failure(ConnectionLost()))
    work()
    done(None)
    assert not region.file.is_loaded


def test_a_connection_that_is_closed_during_a_read_from_the_disk_ends_the_read_at_once():
    """A stop of the broker waits for the queue of reads, before Twisted reports the lost connections."""
    edge = Edge(Script([0, 0, 1]), [Kind.RECORDS], may_be_cold=True, is_disk_hung=True).run()
    ((work, _),) = edge.reads
    region = edge.protocol.writer._queue[0]
    edge.protocol.close()
    work()
    assert not region.file.is_loaded


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    cuts=st.lists(st.sampled_from((1, 1.5, 2, 3.5, 8)), min_size=1, max_size=3),
    choices=st.lists(st.integers(0, 11), max_size=120),
    errors=st.booleans(),
    may_leave=st.booleans(),
    may_be_cold=st.booleans(),
    costs_s=st.lists(st.sampled_from((0.0, 0.0001, 0.001, 0.003, 0.5)), min_size=1, max_size=4),
)
def test_random_orders_of_all_kinds(small_limits, kinds, cuts, choices, errors, **more):
    Edge(Script(choices), kinds, cuts, send_outcomes=5 + errors, **more).run().check()


def test_unread_responses_limit_the_requests_that_are_begun(small_limits):
    edge = Edge(Script([0, *[NOTHING] * 1000]), [Kind.SMALL] * 300, (300,), is_ever_writable=False).run()
    assert len(edge.began) <= 3
    assert edge.protocol.writer.unsent_bytes <= 40 + 30
    assert edge.reactor._poller.masks[EDGE_FD] == select.EPOLLOUT


@pytest.mark.parametrize("kind", [Kind.LATER, Kind.RECORDS_LATER, Kind.REPEATED_LATER], ids=lambda kind: kind.name)
def test_a_client_that_has_closed_its_side_gets_all_responses(kind):
    """As with Apache Kafka, which reads the end of the input only after it has sent the response."""
    edge = Edge(Script(), [Kind.SMALL, kind, Kind.SMALL, kind], (4,), may_leave=True)
    edge.has_left = True
    edge.run().check()
    assert len(edge.answers) == 4


def test_a_client_that_has_closed_its_side_while_its_request_waits_gets_the_response():
    edge = Edge(Script(), [Kind.PARKED, Kind.SMALL], (2,))
    edge.run()
    edge.has_left = True
    edge.run()
    assert edge.answers == []
    edge.release()
    edge.run().check()
    assert [answer[0] for answer in edge.answers] == [0, 1]


@pytest.mark.parametrize(
    "data, protocol", [(b"GET / HTTP/1.1\r\n\r\n", "an HTTP request"), (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake")]
)
def test_another_protocol_closes_the_connection_with_one_line(data, protocol, caplog):
    edge = Edge(Script(), [Kind.SMALL])
    edge._unread.appendleft(data)
    edge.run()
    assert edge.socket.is_closed
    (record,) = caplog.records
    assert f"why='received {protocol} instead of a Kafka request'" in record.getMessage()


def test_connections_have_keepalive_and_no_delay_as_in_kafka():
    options = Edge(Script(), []).socket.options
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, True) in options
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, True) in options


def _parked(edge):
    edge.run()
    assert edge.in_progress is not None


def _incomplete(edge):
    edge._unread.clear()
    edge._unread.append((1 << 19).to_bytes(4, "big") + bytes(100_000))
    edge.run()


def _answered(edge):
    edge.run()


@pytest.mark.parametrize(
    "kinds, choices, prepare",
    [
        ([Kind.SMALL, Kind.RECORDS], (), _answered),
        ([Kind.SMALL], (), _incomplete),
        ([Kind.PARKED, Kind.SMALL], (), _parked),
        ([Kind.RECORDS, Kind.SMALL], [0, NOTHING], _answered),
        ([Kind.SMALL, Kind.SMALL], [0, NOTHING], _answered),
    ],
    ids=["answered", "incomplete request", "request in progress", "records unread", "response unread"],
)
def test_a_closed_connection_is_freed_without_the_garbage_collector(kinds, choices, prepare):
    edge = Edge(Script(choices), kinds, (len(kinds),), is_ever_writable=False)
    prepare(edge)
    protocol = edge.protocol
    parts = [protocol, protocol.connection, protocol.writer, edge.tcp]
    freed = [weakref.ref(part) for part in parts]
    gc.collect()
    gc.disable()
    try:
        edge.tcp.connectionLost(Failure(ConnectionLost()))
        edge.protocol = edge.tcp = None
        parts.clear()
        del protocol
        assert [reference() for reference in freed] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [Kind.RECORDS, Kind.RECORDS_LATER, Kind.SMALL, Kind.LATER], ids=lambda kind: kind.name)
def test_a_response_that_cannot_be_sent_closes_the_connection_with_a_log_line(kind, caplog):
    edge = Edge(Script(), [kind, Kind.SMALL], (2,))

    def fail(*arguments):
        raise ZeroDivisionError("a defect")

    edge.socket.send = edge.socket.send_file = fail
    edge.run()
    assert edge.socket.is_closed
    assert any("please report it" in record.getMessage() for record in caplog.records)
    assert not edge.protocol.connection.is_in_line


def test_a_connection_whose_request_cannot_be_cancelled_is_unregistered(caplog):
    edge = Edge(Script(), [Kind.PARKED])
    edge.run()

    def fail(*arguments):
        raise ZeroDivisionError("a defect")

    edge.protocol.connection.in_progress.deferred.cancel = fail
    edge.tcp.connectionLost(Failure(ConnectionLost()))
    (record,) = caplog.records
    assert "could not be cancelled" in record.getMessage()
    assert len(edge.registry) == 0
