"""The HTTP server with clients that do not behave: connections, requests and scrapes are bounded."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransportWithDisconnection

from odradek.server.metrics.declaration import Family, own_gauge
from odradek.server.metrics.endpoint import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    MAX_SCRAPES,
    SCRAPE_TIMEOUT_S,
    SLICE_S,
    make_factory,
)
from odradek.server.metrics.exposition import SAMPLES_PER_STEP
from odradek.server.work.slices import Slices

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
SAMPLES = 2000
GAUGE = own_gauge("test", "A gauge.")
OTHER = own_gauge("other", "A family whose samples have suffixes.")


class Transport(StringTransportWithDisconnection):
    """A transport whose client reads all, or nothing."""

    is_open = True
    protocol: Any

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def write(self, data):
        super().write(data)
        if not self.reads:
            self.producer.pauseProducing()

    def writeSequence(self, data):  # noqa: N802
        self.write(b"".join(data))

    def abortConnection(self):  # noqa: N802
        if self.is_open:
            self.is_open = False
            self.loseConnection()


class Server:
    """The server on a clock."""

    def __init__(self):
        self.clock = Clock()
        self.now_s = 0.0
        view: Any = SimpleNamespace(
            slices=Slices(self.clock, lambda: self.now_s),
            environment=SimpleNamespace(reactor=self.clock),
            collect=lambda names: self.collect(names),
            find_obstacle=lambda: "",
        )
        self.factory = make_factory(view)
        self.factory.doStart()
        self.others = 0

    def collect(self, names):
        self.names = names
        return [
            Family(GAUGE, (("", number) for number in range(SAMPLES))),
            None,
            Family(OTHER, (sample for number in range(SAMPLES) for sample in self.make_others(number))),
        ]

    def make_others(self, number):
        self.others += 1
        return [(f'_sum{{a="{number}"}}', 1), (f'_count{{a="{number}"}}', 2)]

    def connect(self, reads=True):
        protocol = self.factory.buildProtocol(None)
        if protocol is None:
            return None
        transport = Transport(reads)
        transport.protocol = protocol
        protocol.makeConnection(transport)
        return transport

    def iterate(self):
        """Run one reactor iteration. Return the time of its work."""
        began_s = self.now_s
        # `advance` would also make the calls that these calls schedule.
        calls, self.clock.calls = self.clock.calls, []
        for call in calls:
            if call.getTime() > self.clock.seconds():
                self.clock.calls.append(call)
            else:
                call.func(*call.args, **call.kw)
        return self.now_s - began_s

    def send(self, transport, data):
        transport.protocol.dataReceived(data)
        self.clock.pump([0.01] * 100)
        return transport.value()


@pytest.fixture
def server():
    return Server()


def test_a_head_request_has_no_body(server):
    for request, lines in ((GET, SAMPLES), (GET.replace(b"GET", b"HEAD"), 0)):
        answer = server.send(server.connect(), request)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"odradek_test ") == lines + 2 * bool(lines)


def test_a_request_for_some_names(server):
    def ask(query):
        answer = server.send(server.connect(), GET.replace(b" HTTP", query + b" HTTP"))
        return answer.count(b"\nodradek_test "), answer.count(b"\nodradek_other_")

    assert ask(b"") == (SAMPLES, 2 * SAMPLES)
    assert ask(b"?name[]=odradek_test") == (SAMPLES, 0)
    assert ask(b"?name%5B%5D=odradek_other_count&name%5B%5D=unknown") == (0, SAMPLES)
    assert server.names == {"odradek_other_count", "unknown"}
    assert ask(b"?name[]=unknown") == (0, 0)


def test_the_samples_of_one_family_are_selected_in_steps(server, monkeypatch):
    counts = [0]

    def count(work):
        for waited_for in work:
            counts.append(server.others)
            yield waited_for

    run_later = Slices.run_later
    monkeypatch.setattr(Slices, "run_later", lambda slices, work: run_later(slices, count(work)))
    answer = server.send(server.connect(), GET.replace(b" HTTP", b"?name[]=odradek_other_count HTTP"))
    assert answer.count(b"# TYPE odradek_other ") == 1
    assert counts[-1] == SAMPLES
    assert max(after - before for before, after in pairwise(counts)) <= SAMPLES_PER_STEP


def test_all_scrapes_share_short_slices(server):
    step_s = SLICE_S / 8

    def collect(names):
        for _ in range(50):
            server.now_s += step_s
            yield None

    server.collect = collect
    for _ in range(2):
        server.connect().protocol.dataReceived(GET)
    times_s = [server.iterate() for _ in range(40)]
    assert server.now_s == pytest.approx(100 * step_s)
    assert max(times_s) <= SLICE_S + step_s


def test_scrapes_that_are_not_read_end_after_a_time(server):
    stalled = [server.connect(reads=False) for _ in range(MAX_SCRAPES)]
    for one in stalled:
        server.send(one, GET)
    assert server.send(server.connect(), GET).startswith(b"HTTP/1.1 503 ")
    server.clock.advance(SCRAPE_TIMEOUT_S)
    assert [one.is_open for one in stalled] == [False] * MAX_SCRAPES
    assert server.send(server.connect(), GET).startswith(b"HTTP/1.1 200 ")


def test_the_time_of_a_scrape_ends_with_it(server):
    transport = server.connect()
    server.send(transport, GET)
    server.clock.advance(SCRAPE_TIMEOUT_S - 2)
    assert server.send(transport, GET).count(b"HTTP/1.1 200 ") == 2
    server.clock.advance(3)
    assert transport.is_open


def test_connections_are_bounded(server):
    found = [server.connect() for _ in range(MAX_CONNECTIONS)]
    assert None not in found
    assert server.connect() is None
    found[0].loseConnection()
    assert server.connect() is not None


@pytest.mark.parametrize("head", [GET, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n"])
def test_bytes_that_a_client_sends_before_the_response_are_bounded(server, head):
    transport = server.connect(reads=False)
    server.send(transport, head)
    for _ in range(MAX_REQUEST_BYTES // 1000):
        transport.protocol.dataReceived(b"x" * 1000)
    assert transport.is_open
    transport.protocol.dataReceived(b"x" * 1000)
    assert not transport.is_open


def test_requests_of_one_connection_are_not_bounded(server):
    transport = server.connect()
    for _ in range(2):
        assert server.send(transport, GET[:-2] + b"A: " + b"x" * (MAX_REQUEST_BYTES // 5) + b"\r\n\r\n")
    for _ in range(8):
        server.send(transport, GET.replace(b"/metrics", b"/healthz")[:-2] + b"A: " + b"x" * 15_000 + b"\r\n\r\n")
    assert transport.is_open
    assert transport.value().count(b"HTTP/1.1 200 ") == 10
