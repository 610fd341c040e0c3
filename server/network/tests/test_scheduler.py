"""The request scheduler: cheap requests first, no starvation, and iterations of limited duration."""

import struct
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.server.network.scheduler import DIRECT_S, ITERATION_S, OVERTAKING_S, RequestScheduler
from odradek.server.network.writers.write_coalescer import WriteCoalescer

PING, COMMIT, METADATA = 18, 8, 3


def request(api_key):
    return struct.pack(">ih", 2, api_key)


class Client:
    """A connection with requests of given API keys and costs."""

    def __init__(self, line, name, *requests):
        self.name = name
        self.line = line
        self.backlog = deque(requests)
        self.api_key = -1
        self.expected_s = 0.0
        self.is_in_line = self.is_cost_guessed = False
        self.level = self.sequence = 0
        self.context = self.writer = None
        self.begun = []
        self.waits_since_s = 0.0

    @property
    def next_api_key(self):
        return self.backlog[0][0] if self.backlog else -1

    def send(self, *requests):
        if not self.is_in_line:
            self.waits_since_s = self.line.now_s
        self.backlog.extend(requests)
        self.line.scheduler.add(self)

    def begin_next(self):
        if self.backlog:
            api_key, cost_s = self.backlog.popleft()
            self.begun.append((api_key, cost_s))
            self.line.longest_wait_s = max(self.line.longest_wait_s, self.line.now_s - self.waits_since_s)
            self.line.served.append(self.name)
            self.line.now_s += cost_s
            self.line.scheduler.end_request(self, request(api_key))
            self.waits_since_s = self.line.now_s
            if self.writer is not None:
                self.line.coalescer.add(self.writer)
        return self.next_api_key


class Writer:
    """A writer that has data to send after each request of its client."""

    def __init__(self, line):
        self._line = line
        self.flushed_at = None

    def flush(self):
        self.flushed_at = len(self._line.served)


class Line:
    """A scheduler with its clock."""

    def __init__(self):
        self.now_s = 0.0
        self.served = []
        self.longest_wait_s = 0.0
        self.coalescer = WriteCoalescer()
        self.scheduler = RequestScheduler(lambda: self.now_s, self.coalescer)

    def iterate(self):
        """Run one iteration. Return the names of the connections served, in order."""
        self.served = []
        self.scheduler.begin_iteration(self.now_s)
        self.scheduler.serve()
        return self.served

    def client(self, name, *requests):
        client = Client(self, name)
        if requests:
            client.send(*requests)
        return client


def test_connections_begin_one_request_each_in_turn():
    line = Line()
    for name in "abc":
        line.client(name, *[(PING, 0.00001)] * 3)
    assert line.iterate() == list("abcabcabc")
    assert line.scheduler.waiting == 0


def test_a_single_connection_begins_as_many_requests_as_an_iteration_allows():
    line = Line()
    line.client("a", *[(PING, 0.001)] * 8)
    assert line.iterate() == ["a"] * 5
    assert line.iterate() == ["a"] * 3


def test_an_expensive_request_is_begun_alone_in_an_iteration():
    line = Line()
    line.client("a", *[(METADATA, 0.007)] * 3)
    line.client("b", *[(METADATA, 0.007)] * 3)
    assert [line.iterate() for _ in range(6)] == [["a"], ["b"], ["a"], ["b"], ["a"], ["b"]]


def test_a_ping_does_not_wait_for_two_hundred_commits():
    line = Line()
    for number in range(200):
        line.client(number, *[(COMMIT, 0.0005)] * 10)
    ping = line.client("ping")
    delays_s = []
    while line.scheduler.waiting:
        sent_s = line.now_s
        ping.send((PING, 0.00005))
        while not ping.line.iterate().count("ping"):
            pass
        delays_s.append(line.now_s - sent_s)
    assert len(delays_s) > 150
    assert max(delays_s) < 2 * ITERATION_S


def test_a_client_with_cheap_requests_does_not_wait_for_others_of_the_same_api():
    line = Line()
    known = line.client("known", (METADATA, 0.00005))
    line.iterate()
    for number in range(100):
        line.client(number, *[(METADATA, 0.007)] * 2)
    line.iterate()
    known.send((METADATA, 0.00005))
    assert line.iterate()[0] == "known"


def test_one_slow_request_does_not_make_a_client_expensive():
    line = Line()
    ping = line.client("ping", *[(PING, 0.00003)] * 3)
    line.iterate()
    ping.send((PING, 0.1))
    line.iterate()
    for number in range(100):
        line.client(number, *[(COMMIT, 0.0005)] * 2)
    line.iterate()
    ping.send((PING, 0.00003))
    assert line.iterate()[0] == "ping"


def test_an_expensive_request_is_begun_although_cheap_ones_never_end():
    line = Line()
    waiting = line.client("commit", (COMMIT, 0.001))
    line.iterate()
    waiting.send((COMMIT, 0.001))
    for number in range(20):
        line.client(number, *[(PING, 0.00005)] * 10_000)
    first = line.iterate() + line.iterate()
    assert "commit" in first
    assert 0.001 + first.index("commit") * 0.00005 <= 0.001 + OVERTAKING_S + 0.0001


def test_responses_are_sent_before_more_expensive_requests_are_begun():
    line = Line()
    costs_s = {"ping": 0.00001, "heartbeat": 0.0001, "commit": 0.001}
    clients = [line.client(name, (PING, cost_s)) for name, cost_s in costs_s.items()]
    line.iterate()
    for client in clients:
        client.writer = Writer(line)
        client.send((PING, costs_s[client.name]))
    assert line.iterate() == ["ping", "heartbeat", "commit"]
    assert [client.writer.flushed_at for client in clients] == [2, 2, None]


def test_a_request_is_begun_when_read_if_none_waits_and_the_iteration_is_short():
    line = Line()
    line.scheduler.begin_iteration(line.now_s)
    client = line.client("a")
    assert line.scheduler.is_direct
    line.now_s += DIRECT_S / 2
    line.scheduler.end_request(client, request(PING))
    assert line.scheduler.is_direct
    line.now_s += DIRECT_S / 2
    line.scheduler.end_request(client, request(PING))
    assert not line.scheduler.is_direct
    line.scheduler.begin_iteration(line.now_s)
    assert line.scheduler.is_direct
    client.send((PING, 0.0))
    line.scheduler.begin_iteration(line.now_s)
    assert not line.scheduler.is_direct


def test_a_sleeping_reactor_is_woken_once():
    line, asked = Line(), []
    coalescer = WriteCoalescer()
    line.scheduler = RequestScheduler(lambda: line.now_s, coalescer, wake=lambda: asked.append(1), iteration_s=0.0)
    line.client("a", (PING, 0.0), (PING, 0.0))
    line.client("b", (PING, 0.0))
    assert len(asked) == 1
    assert line.iterate() == ["a"]
    assert len(asked) == 2
    assert line.iterate() == ["b"]
    assert line.iterate() == ["a"]
    assert len(asked) == 3


CLIENTS = 10
COSTS = st.sampled_from([0.00001, 0.0001, 0.0005, 0.003, 0.02])


@settings(max_examples=200, deadline=None)
@given(
    arrivals=st.lists(
        st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, 4), COSTS), max_size=12), min_size=1, max_size=20
    )
)
def test_every_request_is_begun_in_order_and_within_the_bound(arrivals):
    line = Line()
    clients = [line.client(number) for number in range(CLIENTS)]
    sent = [[] for _ in clients]
    longest_s = max((cost_s for batch in arrivals for _, _, cost_s in batch), default=0.0)
    left = deque(arrivals)
    while left or line.scheduler.waiting:
        for number, api_key, cost_s in left.popleft() if left else ():
            sent[number].append((api_key, cost_s))
            clients[number].send((api_key, cost_s))
        began_s, waited = line.now_s, line.scheduler.waiting
        assert bool(line.iterate()) == bool(waited)
        assert line.now_s - began_s < ITERATION_S + longest_s
    assert [client.begun for client in clients] == sent
    assert not any(client.is_in_line for client in clients)
    assert line.longest_wait_s <= CLIENTS * (OVERTAKING_S + 2 * longest_s)
