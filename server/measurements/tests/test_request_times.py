"""Stage times of requests, with a controlled clock. `server/network/tests/test_edge.py` counts them in all orders."""

from types import SimpleNamespace

import pytest

from odradek.log.background.histogram import WINDOW_S, WINDOWS, Histogram, quantiles
from odradek.server.measurements.request_times import (
    FOLLOWER,
    MEASURED,
    REFILL_S,
    ConnectionTimes,
    RequestTimes,
)
from odradek.server.network.writers.write_coalescer import WriteCoalescer

FETCH_12 = bytes([0, 1, 0, 12])
PRODUCE_9 = bytes([0, 0, 0, 9])


class Times:
    """Request times of one connection."""

    def __init__(self):
        self.now_s = 100.0
        self.coalescer = WriteCoalescer()
        self.times = RequestTimes(lambda: self.now_s, lambda code: code >> 16 < 3, self.coalescer)
        self.writer = SimpleNamespace(is_idle=True)
        self.context = SimpleNamespace(is_follower=False)
        self.connection = ConnectionTimes(self.times, self.context, SimpleNamespace(writer=self.writer))

    def begin(self, code=PRODUCE_9, local_s=0.001):
        began_s = self.now_s
        self.now_s += local_s
        return self.connection.begin(bytes(4) + code + bytes(8), began_s, self.now_s)

    def total(self, code=PRODUCE_9):
        return self.times.by_code[code].total


@pytest.fixture
def one():
    return Times()


def median(histogram):
    return quantiles(histogram.recent_buckets(), [0.5])[0]


@pytest.mark.parametrize("duration_s", [2e-6, 1e-4, 1e-3, 0.02, 1.0, 300.0])
def test_a_quantile_is_near_the_durations(duration_s):
    histogram = Histogram()
    for _ in range(10):
        histogram.record(duration_s)
    assert median(histogram) == pytest.approx(duration_s, rel=0.5 if duration_s < 1e-4 else 0.2)


def test_quantiles_lie_between_the_durations():
    histogram = Histogram()
    for milliseconds in range(1, 1001):
        histogram.record(milliseconds / 1000)
    found = quantiles(histogram.recent_buckets(), [0.5, 0.75, 0.99, 0.999])
    assert found == pytest.approx([0.5, 0.75, 0.99, 0.999], rel=0.05)


def test_quantiles_without_durations_are_zero():
    assert quantiles({}, [0.5, 0.99]) == [0.0, 0.0]
    assert quantiles({0: 7}, [0.5, 0.99]) == [0.0, 0.0]


def test_old_durations_are_counted_but_not_in_quantiles():
    histogram = Histogram()
    histogram.record(1.0)
    for _ in range(WINDOWS - 1):
        histogram.begin_window()
    assert median(histogram) == pytest.approx(1.0, rel=0.1)
    histogram.begin_window()
    assert not histogram.recent_buckets()
    assert histogram.count == 1


def test_the_stages_of_a_request_add_up(one):
    one.connection.arrive(1, one.now_s)
    one.now_s += 0.004
    one.connection.take()
    begun = one.begin(local_s=0.002)
    one.now_s += 0.5
    one.connection.end_wait(begun, one.now_s)
    one.now_s += 0.001
    one.writer.is_idle = False
    one.times.count()
    assert not one.total().count, "the socket has not accepted the response"
    one.now_s += 0.03
    one.connection.drained()
    times = one.times.by_code[PRODUCE_9]
    stages = [times.queue, times.local, times.remote, times.response_queue, times.send]
    assert [median(stage) for stage in stages] == pytest.approx([0.004, 0.002, 0.5, 0.001, 0.03], rel=0.15)
    assert median(times.total) == pytest.approx(0.537, rel=0.05)


def test_a_request_that_is_put_back_waits_since_its_arrival(one):
    one.connection.arrive(1, one.now_s)
    one.connection.take()
    one.connection.put_back()
    one.now_s += 0.1
    one.connection.take()
    one.connection.respond(one.begin())
    one.times.count()
    assert median(one.times.by_code[PRODUCE_9].queue) == pytest.approx(0.1, rel=0.1)


def test_a_request_that_did_not_wait_has_no_time_in_the_queue(one):
    one.connection.arrive(1, one.now_s)
    one.connection.take()
    one.connection.respond(one.begin())
    one.now_s += 1.0
    one.connection.respond(one.begin())
    one.times.count()
    assert one.total().count == 2
    assert not one.times.by_code[PRODUCE_9].queue.count


def test_fetches_of_followers_are_counted_apart(one):
    one.connection.respond(one.begin(FETCH_12))
    one.connection = ConnectionTimes(one.times, SimpleNamespace(is_follower=True), SimpleNamespace(writer=one.writer))
    one.connection.respond(one.begin(FETCH_12))
    one.times.count()
    assert one.total(FETCH_12).count == one.total(FETCH_12 + FOLLOWER).count == 1


def test_requests_that_are_not_served_are_not_counted(one):
    for key in range(100):
        one.connection.respond(one.begin(bytes([0, key, 0, 0])))
    one.times.count()
    assert len(one.times.by_code) == 3


@pytest.mark.parametrize("size", range(4))
def test_frames_without_an_api_version_are_not_counted(one, size):
    # Clients may send frames of any size. All of these would be Produce, whose version 0 is served here.
    one.context.is_follower = True
    one.connection.respond(one.connection.begin(bytes(4 + size), one.now_s, one.now_s))
    one.coalescer.flush()
    assert one.times.by_code == {}


def test_requests_that_are_not_served_are_not_slow(one):
    slow = []
    one.times.logged_s, one.times.on_logged = 0.0, lambda request, *_: slow.append(request[1].code)
    for code in (bytes([127, 1, 0, 0]), FETCH_12):
        one.connection.respond(one.begin(code))
        one.coalescer.flush()
    assert slow == [FETCH_12]


def test_requests_are_counted_after_the_responses_of_the_iteration(one):
    class Writer:
        def flush(self):
            one.now_s += 0.01

    one.connection.respond(one.begin())
    one.coalescer.add(Writer())
    one.coalescer.flush()
    assert median(one.times.by_code[PRODUCE_9].response_queue) == pytest.approx(0.01, rel=0.1)


def test_a_connection_that_is_lost_before_its_requests_are_counted_keeps_none(one):
    # A kept request would refer to the connection that refers to it, and only the garbage collector would free both.
    one.connection.respond(one.begin())
    one.connection.release()
    one.writer.is_idle = False
    one.coalescer.flush()
    assert one.connection.sending == []
    assert one.times.by_code[PRODUCE_9].count == 0


def test_requests_of_each_iteration_are_counted_once(one):
    for iteration in range(1, 4):
        one.connection.respond(one.begin())
        one.connection.respond(one.begin())
        one.coalescer.flush()
        assert one.total().count == 2 * iteration
        assert not one.coalescer.waiting


def test_windows_follow_the_clock(one):
    one.connection.respond(one.begin())
    one.times.count()
    for _ in range(WINDOWS):
        one.now_s += WINDOW_S
        one.connection.respond(one.begin(FETCH_12))
        one.times.count()
    assert not one.total().recent_buckets()
    assert one.total().count == 1


def test_a_slow_request_is_reported_with_its_stages(one):
    slow = []
    one.times.logged_s = 0.1
    one.times.on_logged = lambda *arguments: slow.append(arguments)
    one.connection.respond(one.begin(local_s=0.05))
    one.times.count()
    assert not slow
    one.connection.respond(one.begin(local_s=0.2))
    one.times.count()
    ((request, response_queue_s, send_s),) = slow
    assert (request[0], request[1].code) == (one.connection, PRODUCE_9)
    assert request[3] == pytest.approx(0.2)
    assert (response_queue_s, send_s) == (0.0, 0.0)


def test_the_throttle_time_belongs_to_the_last_request(one):
    one.connection.respond(one.begin())
    one.times.count()
    one.connection.throttle(250)
    assert median(one.times.by_code[PRODUCE_9].throttle) == pytest.approx(0.25, rel=0.1)


def test_all_requests_of_a_busy_broker_are_counted_and_some_measured(one):
    one.now_s += REFILL_S
    begun = [one.begin(local_s=1e-6) for _ in range(3 * MEASURED)]
    assert sum(times is not None for times in begun) == MEASURED
    for times in filter(None, begun):
        one.connection.respond(times)
    one.times.count()
    assert one.times.by_code[PRODUCE_9].count == 3 * MEASURED
    assert one.total().count == MEASURED
    one.now_s += REFILL_S
    assert one.begin() is not None


def test_a_request_of_another_api_is_measured(one):
    one.times.rest = 0
    assert one.begin() is not None
    assert one.begin() is None
    assert one.begin(FETCH_12) is not None
    assert one.begin(FETCH_12) is None
    assert one.times.by_code[PRODUCE_9].unmeasured == one.times.by_code[FETCH_12].unmeasured == 1


def test_all_requests_are_measured_while_slow_ones_are_logged(one):
    one.times.on_logged = lambda *arguments: None
    one.now_s += REFILL_S
    assert all(one.begin(local_s=1e-6) is not None for _ in range(3 * MEASURED))


def test_a_request_that_is_only_counted_leaves_no_arrival_behind(one):
    one.connection.respond(one.begin())
    one.times.rest = 0
    one.connection.arrive(1, one.now_s)
    one.now_s += 5.0
    one.times.refill_s = one.now_s + 1.0
    one.connection.take()
    assert one.begin() is None
    one.times.rest = 1
    one.connection.respond(one.begin())
    one.times.count()
    assert not one.times.by_code[PRODUCE_9].queue.count


def test_an_idle_broker_has_no_recent_durations(one):
    one.connection.respond(one.begin())
    one.times.count()
    one.now_s += WINDOW_S * (WINDOWS - 1)
    one.times.end_old_windows()
    assert one.total().recent_buckets()
    one.now_s += WINDOW_S * 1000
    one.times.end_old_windows()
    assert not one.total().recent_buckets()
    assert one.total().count == 1
