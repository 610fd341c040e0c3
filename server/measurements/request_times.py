"""Stage times of requests, for metrics and for the log of slow requests.

A request passes these stages, named as in Kafka's RequestMetrics:

- request queue: from the arrival of its frame until it is begun
- local: decoding, handler, and encoding of a response that does not wait
- remote: the wait for replicas, for records to fetch, for a sync, for work in slices; with the encoding of the response
- response queue: until the responses of the reactor iteration are sent
- response send: until the socket has accepted the response

The time of a throttled client is not a part of the total, as in Kafka since KIP-219.

Connections make an entry for each request that has a response. The entries of an iteration are counted together after
its responses are sent, with one reading of the clock. All times in seconds; the connection and the scheduler read the
clock for other purposes as well. Nothing is measured while no one uses the times.

Every request is counted. Of the requests of a busy broker, `MEASURED` in each `REFILL_S` are measured, which takes some
2 us for each, and those that follow a request of another API on their connection. While requests are logged, all are
measured.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from odradek.log.background.histogram import BUCKETS_PER_ROOT, WINDOW_S, WINDOWS, Histogram
from odradek.protocol.codec_source import Buffer
from odradek.server.work.clock import IterationEnd

MEASURED: Final = 100
REFILL_S: Final = 0.1

CODE_BYTES: Final = 4
"""API key and version in the header of a request."""

SIZE_UNIT_BYTES: Final = 10_000
"""Unit in which sizes are counted by a histogram of durations: a bucket at 100 bytes is 6 % wide, at 1 MB 0.6 %."""

FETCH_KEY: Final = 1
FOLLOWER: Final = b"f"
"""Suffix of the code of a follower's fetch."""


class ApiTimes:
    """The stage times of one API and version; a follower's fetches are apart from others.

    code: the bytes of API key and version in the header, for a follower's fetches with another byte; empty for requests
        that are not served
    size: of the requests, in `SIZE_UNIT_BYTES`
    unmeasured: the number of requests that are not in the histograms
    """

    __slots__ = (
        "code", "local", "queue", "remote", "response_queue", "send", "size", "throttle", "total", "unmeasured",
    )  # fmt: skip

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.unmeasured = 0
        self.total = Histogram()
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.throttle = Histogram()
        self.response_queue = Histogram()
        self.send = Histogram()
        self.size = Histogram()

    def stages(self) -> tuple[Histogram, ...]:
        """All stages."""
        return (
            self.total, self.queue, self.local, self.remote, self.throttle, self.response_queue, self.send,
        )  # fmt: skip

    def histograms(self) -> Iterable[Histogram]:
        """All stages, and the sizes, which requests without a response have too."""
        return (*self.stages(), self.size)

    @property
    def count(self) -> int:
        """The number of requests."""
        return self.total.count + self.unmeasured


class Context(Protocol):
    """The used part of a request's context.

    is_follower: the last fetch was that of another broker
    """

    is_follower: bool


class Writer(Protocol):
    """The used part of a connection's writer."""

    @property
    def is_idle(self) -> bool:
        """True if the socket has accepted all responses."""


class Transport(Protocol):
    """The used part of a connection's transport, which makes its writer after the connection."""

    @property
    def writer(self) -> Writer: ...


BegunRequest = tuple[ApiTimes, float, float, float]
"""A request that waits: times of its API, its time in the request queue, its local time, and the begin of the wait."""

EndedRequest = tuple["ConnectionTimes", ApiTimes, float, float, float, float]
"""A request whose response is ready: its connection, times of its API, its own times in the request queue, local and
remote, and the time at which the response was ready. A plain tuple, because there is one for each measured request."""


class RequestTimes:
    """The stage times of all requests of a broker.

    by_code: of all APIs and versions that were used, by `ApiTimes.code`
    discarded: of requests whose times are not kept
    others: histograms of other durations with the same windows
    is_served: returns whether an API key and version are served, because clients may send any
    iteration_end: of the reactor; requests are counted after the responses of the iteration
    rest, refill_s: the number of requests that may be measured until the time `refill_s`
    on_logged: called for a served request with a total of `logged_s` or more, with the times of its response queue and
        its sending
    """

    __slots__ = (
        "_clock",
        "_ended",
        "_is_last",
        "_iteration_end",
        "_window_end_s",
        "by_code",
        "discarded",
        "is_served",
        "logged_s",
        "on_logged",
        "others",
        "refill_s",
        "rest",
    )  # fmt: skip

    def __init__(
        self, clock: Callable[[], float], is_served: Callable[[int], bool], iteration_end: IterationEnd
    ) -> None:
        self._clock = clock
        self._window_end_s = clock() + WINDOW_S
        self._iteration_end = iteration_end
        self._ended: list[EndedRequest] = []
        self._is_last = False
        self.by_code: dict[bytes, ApiTimes] = {}
        self.discarded = ApiTimes(b"")
        self.others: list[Histogram] = []
        self.is_served = is_served
        self.rest: float = MEASURED
        self.refill_s = clock() + REFILL_S
        self.logged_s = math.inf
        self.on_logged: Callable[[EndedRequest, float, float], None] | None = None

    def refill(self, now_s: float) -> None:
        """Allow further requests to be measured."""
        self.rest = MEASURED if self.on_logged is None else math.inf
        self.refill_s = now_s + REFILL_S

    def find(self, code: bytes, *, is_follower: bool) -> ApiTimes:
        """Return the times of an API and version.

        Those of a version that is not served, which may be any number, and of a malformed frame without a version are
        not kept: they are `discarded`, without a code.
        """
        if len(code) < CODE_BYTES or not self.is_served(int.from_bytes(code, "big")):
            return self.discarded
        if is_follower and code[1] == FETCH_KEY:
            code += FOLLOWER
        found = self.by_code.get(code)
        if found is None:
            found = self.by_code[code] = ApiTimes(code)
        return found

    def end(self, request: EndedRequest) -> None:
        """Add a request whose response is about to be sent."""
        self._ended.append(request)
        if len(self._ended) == 1:
            self._iteration_end.add(self)

    def flush(self) -> None:
        """Count the requests, after the responses that are sent at the end of this iteration."""
        if not self._is_last:
            # The writers that were added since come first.
            self._is_last = True
            self._iteration_end.add(self)
            return
        self._is_last = False
        self.count()

    def abort(self) -> None:
        """Do nothing: after a failure to count, the next requests are counted."""

    def count(self) -> None:
        """Count the requests of `end`, whose responses were sent, or wait for their sockets."""
        now_s = self._clock()
        if now_s >= self._window_end_s:
            self.begin_windows(now_s)
        ended, self._ended = self._ended, []
        for request in ended:
            times = request[0]
            if times.transport.writer.is_idle:
                self._record(request, now_s - request[5], 0.0)
            elif not times.is_released:
                times.sending.append((request, now_s))

    def count_sent(self, times: "ConnectionTimes") -> None:
        """Count the requests of a connection whose socket has accepted all responses."""
        now_s = self._clock()
        sending, times.sending = times.sending, []
        for request, since_s in sending:
            self._record(request, since_s - request[5], now_s - since_s)

    def end_old_windows(self) -> None:
        """Remove the durations of the windows that have ended, before the histograms are read."""
        now_s = self._clock()
        if now_s >= self._window_end_s:
            self.begin_windows(now_s)

    def begin_windows(self, now_s: float) -> None:
        """Begin the windows up to now, of all histograms."""
        ended = 1 + int((now_s - self._window_end_s) / WINDOW_S)
        self._window_end_s += ended * WINDOW_S
        for _ in range(min(ended, WINDOWS)):
            self._begin_window()

    def _begin_window(self) -> None:
        for histogram in (*chain.from_iterable(map(ApiTimes.histograms, self.by_code.values())), *self.others):
            histogram.begin_window()

    def _record(self, request: EndedRequest, response_queue_s: float, send_s: float) -> None:
        _, found, queue_s, local_s, remote_s, _ = request
        total_s = queue_s + local_s + remote_s + response_queue_s + send_s
        # `Histogram.record`, inline. A stage of 0 is not counted here: most requests have no wait.
        found.total.recent[int(total_s**0.25 * BUCKETS_PER_ROOT)] += 1
        found.local.recent[int(local_s**0.25 * BUCKETS_PER_ROOT)] += 1
        found.response_queue.recent[int(response_queue_s**0.25 * BUCKETS_PER_ROOT)] += 1
        if queue_s:
            found.queue.recent[int(queue_s**0.25 * BUCKETS_PER_ROOT)] += 1
        if remote_s:
            found.remote.recent[int(remote_s**0.25 * BUCKETS_PER_ROOT)] += 1
        if send_s:
            found.send.record(send_s)
        if total_s >= self.logged_s and self.on_logged is not None and found.code:
            self.on_logged(request, response_queue_s, send_s)


class ConnectionTimes:
    """The times of the requests of one connection, in the order of the requests.

    context, transport: those of the connection
    is_released: the connection is lost, or the measurement has ended
    sending: requests whose responses the socket has not accepted, and since when
    """

    __slots__ = (
        "_appended", "_arrivals", "_arrived_s", "_last", "_last_code", "_times", "context", "is_released", "sending",
        "transport",
    )  # fmt: skip

    def __init__(self, times: RequestTimes, context: Context, transport: Transport) -> None:
        self._times = times
        self._arrivals: deque[float] = deque()
        self._arrived_s = math.inf
        self._appended: deque[BegunRequest | None] = deque()
        # API key and version of the last request, and their times.
        self._last_code = b""
        self._last = times.discarded
        self.context = context
        self.transport = transport
        self.is_released = False
        self.sending: list[tuple[EndedRequest, float]] = []

    def arrive(self, count: int, now_s: float) -> None:
        """Record the arrival of requests that wait to be begun."""
        self._arrivals.extend([now_s] * count)

    def adopt(self, waiting_count: int, appended_count: int, now_s: float) -> None:
        """Add the requests that a connection has when the measurement begins. Appended ones are not counted."""
        self.arrive(waiting_count, now_s)
        self._appended.extend([None] * appended_count)

    def take(self) -> None:
        """Take the next request that waits; it is about to be begun."""
        self._arrived_s = self._arrivals.popleft()

    def put_back(self) -> None:
        """Let the request of `take` wait again."""
        self._arrivals.appendleft(self._arrived_s)
        self._arrived_s = math.inf

    def clear(self) -> None:
        """Drop the requests that wait."""
        self._arrivals.clear()

    def begin(self, frame: Buffer, began_s: float, ended_s: float) -> BegunRequest | None:
        """Return the times of a request that was begun at `began_s`, and whose handler has returned.

        None if it is only counted.
        """
        arrived_s, self._arrived_s = self._arrived_s, math.inf
        code, times = frame[4:8], self._times
        if code == self._last_code:
            if times.rest <= 0 and ended_s < times.refill_s:
                self._last.unmeasured += 1
                return None
        else:
            self._last_code = bytes(code)
            self._last = times.find(self._last_code, is_follower=self.context.is_follower)
        if ended_s >= times.refill_s:
            times.refill(ended_s)
        times.rest -= 1
        self._last.size.record(len(frame) / SIZE_UNIT_BYTES)
        return self._last, (began_s - arrived_s if arrived_s < began_s else 0.0), ended_s - began_s, ended_s

    def respond(self, begun: BegunRequest) -> None:
        """End a request that had its response when its handler returned."""
        api, queue_s, local_s, ended_s = begun
        self._times.end((self, api, queue_s, local_s, 0.0, ended_s))

    def end_wait(self, begun: BegunRequest, now_s: float) -> None:
        """End a request whose response is ready after a wait."""
        api, queue_s, local_s, ended_s = begun
        self._times.end((self, api, queue_s, local_s, now_s - ended_s, now_s))

    def append(self, begun: BegunRequest | None) -> None:
        """Add a request whose batch is appended while an earlier request waits."""
        self._appended.append(begun)

    def take_appended(self) -> BegunRequest | None:
        """Take the first request of `append`, whose response is in turn."""
        return self._appended.popleft()

    def release(self) -> None:
        """Drop all requests, which refer to this object, because the connection is lost."""
        self.is_released = True
        self._arrivals.clear()
        self._appended.clear()
        self.sending = []

    def drained(self) -> None:
        """Count the requests whose responses the socket has accepted now."""
        if self.sending:
            self._times.count_sent(self)

    def throttle(self, throttle_ms: int) -> None:
        """Count the time for which the client is throttled."""
        self._last.throttle.record(throttle_ms / 1000)
