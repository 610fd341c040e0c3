"""The reactor: input is handled before late timers, and a watchdog reports iterations that take too long."""

import logging
import select

from twisted.internet.error import ConnectionLost

from odradek.server.network import reactor as reactor_module
from odradek.server.network.tests.edge import Edge, Kind, Script
from odradek.server.work.slices import Slices

PAUSE_S = 30.0
FIRST_FD = 1_000_002


def expire(edge, timers, due_s):
    """Schedule a timer that records the number of requests begun before it."""
    edge.reactor.callLater(due_s, lambda: timers.append(len(edge.began)))
    edge.reactor.runUntilCurrent()


def test_after_a_pause_requests_precede_timers_that_expired_in_it():
    edge, timers = Edge(Script(), [Kind.SMALL] * 3), []
    expire(edge, timers, due_s=10.0)
    edge.now_s += PAUSE_S
    edge.run().check()
    assert timers == [3]


def test_pipelined_requests_precede_expired_timers_too():
    # The backlog takes many iterations; the connection pauses reading, so that it is read in pieces.
    edge, timers = Edge(Script(), [Kind.SMALL] * 100, (20,), costs_s=(0.002,)), []
    expire(edge, timers, due_s=10.0)
    edge.now_s += PAUSE_S
    edge.run().check()
    assert timers == [100]


def test_timers_wait_for_input_at_most_as_long_as_they_were_late():
    edge, timers = Edge(Script(), [Kind.SMALL] * 100, (20,), costs_s=(0.01,)), []
    expire(edge, timers, due_s=10.0)
    edge.now_s += 10.1
    edge.run().check()
    assert len(timers) == 1
    assert 10 <= timers[0] <= 12


def test_a_punctual_timer_does_not_wait_for_input():
    edge, timers = Edge(Script(), [Kind.SMALL]), []
    expire(edge, timers, due_s=10.0)
    edge.now_s += 10.001
    edge.run().check()
    assert timers == [0]


def watched(kinds=(), cpu_s=None, **options):
    """A connection whose iterations of more than 100 ms are reported; `cpu_s` replaces the CPU clock."""
    edge = Edge(Script(), kinds, **options)
    edge.reactor.watchdog.threshold_s = 0.1
    edge.reactor.watchdog._cpu_clock = cpu_s or (lambda: edge.now_s)
    edge.reactor._woke_s = edge.now_s
    return edge


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_slow_request_is_reported_with_its_api_and_client(caplog):
    edge = watched([Kind.SMALL] * 3, costs_s=(0.0, 0.25, 0.0)).run()
    assert edge.reactor.watchdog.slow_iterations == edge.reactor.watchdog.busy_iterations == 1
    (line,) = lines(caplog)
    assert "wall_ms=250 cpu_ms=250 longest_ms=250 longest='Fetch client=/host client_id=test' count=1" in line


def test_a_slow_request_of_a_backlog_is_reported_too(caplog):
    watched([Kind.SMALL] * 3, cuts=(3,), costs_s=(0.0, 0.25, 0.0)).run()
    (line,) = lines(caplog)
    assert "longest='Fetch client=/host client_id=test'" in line


def test_a_slow_timer_is_reported_with_its_name(caplog):
    edge = watched()

    def checkpoint():
        edge.now_s += 0.3

    edge.reactor.callLater(0, checkpoint)
    edge.run()
    (line,) = lines(caplog)
    assert "longest_ms=300 longest=" in line
    assert "checkpoint" in line


def test_slow_slices_are_reported_with_the_remaining_work(caplog):
    edge = watched()

    def search_the_log():
        while True:
            edge.now_s += 0.3
            yield

    slices = Slices(edge.reactor, edge.reactor.seconds)
    slices.run_later(search_the_log())
    edge.reactor.runUntilCurrent()
    edge.reactor.doIteration(0)
    slices.stop()
    (line,) = lines(caplog)
    assert "longest='slices of " in line
    assert "search_the_log" in line


def test_many_short_pieces_of_work_are_reported_as_one_slow_iteration(caplog):
    edge = watched()

    def work():
        edge.now_s += 0.01

    for _ in range(20):
        edge.reactor.callLater(0, work)
    edge.run()
    (line,) = lines(caplog)
    assert "wall_ms=200" in line
    assert "longest_ms=10" in line


def test_an_unscheduled_thread_is_not_counted_as_busy():
    edge = watched([Kind.SMALL], cpu_s=lambda: 0.0, costs_s=(0.25,)).run()
    assert edge.reactor.watchdog.slow_iterations == 1
    assert edge.reactor.watchdog.busy_iterations == 0


def test_waiting_for_events_and_short_iterations_are_not_reported(caplog):
    edge = watched([Kind.SMALL] * 3, costs_s=(0.04,))
    edge.reactor.callLater(PAUSE_S, list)
    edge.run()
    edge.now_s += PAUSE_S
    edge.run()
    assert lines(caplog) == []
    assert edge.reactor.watchdog.slow_iterations == 0


class Reader:
    """A readable socket; a read takes `cost_s`, and returns `error`."""

    def __init__(self, edge, descriptor, cost_s=0.0, error=None):
        self.descriptor = descriptor
        self.reads = 0
        self._edge = edge
        self._cost_s = cost_s
        self._error = error
        edge.reactor.addReader(self)

    def fileno(self):
        return self.descriptor

    def doRead(self):  # noqa: N802
        self.reads += 1
        self._edge.now_s += self._cost_s
        return self._error

    def connectionLost(self, reason):  # noqa: N802
        raise ZeroDivisionError("a defect")


def readable_once(edge, readers):
    """Have the next poll report all readers as readable, in addition to its own events."""
    wait = edge.reactor._poller.poll
    is_first = iter([True])

    def poll(timeout, most):
        found = [(reader.descriptor, select.EPOLLIN) for reader in readers] if next(is_first, False) else []
        return found + wait(0 if found else timeout, most)

    edge.reactor._poller.poll = poll


def test_an_iteration_is_limited_although_many_sockets_are_ready():
    edge = Edge(Script(), [])
    readers = [Reader(edge, FIRST_FD + number, cost_s=0.001) for number in range(8)]
    readable_once(edge, readers)
    edge.reactor.doIteration(0)
    assert [reader.reads for reader in readers] == [1, 1, 1, 0, 0, 0, 0, 0]
    edge.reactor.removeReader(readers[4])
    edge.reactor.doIteration(None)
    assert [reader.reads for reader in readers] == [1, 1, 1, 1, 0, 1, 1, 0]
    edge.reactor.doIteration(None)
    assert [reader.reads for reader in readers] == [1, 1, 1, 1, 0, 1, 1, 1]


def test_a_connection_that_fails_while_it_is_closed_affects_no_other(monkeypatch):
    failures = []
    monkeypatch.setattr(reactor_module, "_log_failure", lambda: failures.append(1))
    edge = Edge(Script(), [Kind.SMALL])
    readable_once(edge, [Reader(edge, FIRST_FD, error=ConnectionLost())])
    edge.run().check()
    assert failures
    assert edge.answers == [(0, 0, 0, b"")]
