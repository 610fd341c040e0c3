"""The end of a reactor iteration: every writer is flushed, and a failing one affects no other."""

import time

from odradek.server.network.reactor import PlainEPollReactor
from odradek.server.network.tests.edge import Edge, Kind, Script
from odradek.server.network.writers.write_coalescer import WriteCoalescer


class Writer:
    def __init__(self, flushed, error=None, then=None):
        self._flushed = flushed
        self._error = error
        self._then = then
        self.is_aborted = False

    def flush(self):
        self._flushed.append(self)
        if self._then is not None:
            self._then()
        if self._error is not None:
            raise self._error

    def abort(self):
        self.is_aborted = True


def test_a_failing_writer_is_aborted_and_others_are_flushed(caplog):
    coalescer, flushed = WriteCoalescer(), []
    first, failing, last = Writer(flushed), Writer(flushed, ZeroDivisionError("a defect")), Writer(flushed)
    for writer in (first, failing, last):
        coalescer.add(writer)
    coalescer.flush()
    assert flushed == [first, failing, last]
    assert [writer.is_aborted for writer in flushed] == [False, True, False]
    (record,) = caplog.records
    assert "please report it" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


def test_a_writer_added_during_a_flush_is_flushed_too():
    coalescer, flushed = WriteCoalescer(), []
    late = Writer(flushed)
    early = Writer(flushed, then=lambda: coalescer.add(late))
    coalescer.add(early)
    coalescer.flush()
    assert flushed == [early, late]


def test_many_writers_are_flushed_before_the_end_of_the_iteration():
    coalescer, flushed = WriteCoalescer(), []
    for _ in range(WriteCoalescer.LIMIT):
        coalescer.add(Writer(flushed))
    assert len(flushed) == WriteCoalescer.LIMIT


def test_calls_scheduled_by_the_last_flush_are_made_before_the_reactor_sleeps():
    # The request arrives; its Deferred fires in a timer; sending the response fails, which schedules the close.
    edge = Edge(Script([0, 1, 5]), [Kind.LATER], send_outcomes=6).run()
    assert edge.script.taken[2] == (5, 6)
    edge.check()


def test_timers_run_on_the_monotonic_clock(monkeypatch):
    reactor = PlainEPollReactor()
    try:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        before_s = time.monotonic()
        assert before_s <= reactor.seconds() <= time.monotonic()
    finally:
        for reader in list(reactor._internalReaders):
            reactor.removeReader(reader)
            reader.connectionLost(None)
        reactor._poller.close()
