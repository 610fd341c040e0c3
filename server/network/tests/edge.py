"""One connection with a scripted kernel: a script determines outcomes of system calls and the order of events.

`Edge` runs `KafkaTransport`, `SocketWriter` and `Connection` on Twisted's own TCP connection and `PlainEPollReactor`.
A `Script` determines how much a `send` takes, which event comes next, and when a handler's Deferred fires. After its
end a script chooses 0 everywhere, the benign outcome: everything is read, sent and answered. The reactor runs until it
would sleep for ever; then nothing may be left to do.
"""

import errno
import select
import socket
import struct
from collections import deque
from enum import Enum, unique
from functools import partial
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.tcp import Connection as TcpConnection

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.framing import SIZE_BYTES
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.server.apis import Api
from odradek.server.dispatch import Dispatch
from odradek.server.handlers import api_versions as any_handler_module
from odradek.server.measurements.request_times import RequestTimes
from odradek.server.network import stalls
from odradek.server.network.connection import Connection
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.reactor import PlainEPollReactor
from odradek.server.network.scheduler import RequestScheduler
from odradek.server.network.transport import KafkaTransport, plaintext_writers
from odradek.server.request import NO_RESPONSE, CloseConnection, RequestContext
from odradek.server.tests.wire import request_frame
from odradek.server.work.waits import Wait

VERSION = 11
FETCH_KEY = 1
EDGE_FD, OTHER_FD = 1_000_000, 1_000_001
MOST_POLLS = 2_000
NOTHING = 2
"""The choice of a `send` that takes no byte."""


@unique
class Kind(Enum):
    """A handler's behaviour for one request."""

    SMALL = "a response of one piece"
    RECORDS = "a response with two file regions"
    LATER = "a Deferred of a response of one piece"
    RECORDS_LATER = "a Deferred of a response with two file regions"
    AT_ONCE = "a Deferred that has fired"
    NO_RESPONSE = "no response"
    NO_RESPONSE_LATER = "a Deferred of no response"
    ERROR = "a KafkaError"
    ERROR_LATER = "a Deferred of a KafkaError"
    DEFECT = "an unexpected exception"
    DEFECT_LATER = "a Deferred of an unexpected exception"
    CLOSE = "an instruction to close the connection"
    CLOSE_LATER = "a Deferred of an instruction to close the connection"
    BROKEN = "a response that cannot be encoded"
    BROKEN_LATER = "a Deferred of a response that cannot be encoded"
    UNANSWERABLE = "an error for which no response can be made"
    UNANSWERABLE_LATER = "a Deferred of an error for which no response can be made"
    REPEATED = "a response of the produce fast path"
    REPEATED_LATER = "a Deferred of a response of the produce fast path"
    REPEATED_SYNCED = "a Deferred of the produce fast path that may fire before the turn of its response"
    REPEATED_SOON = "a response of the produce fast path that is available when its turn comes"
    REPEATED_FAILS = "a failure of the produce fast path"
    REPEATED_FAILS_LATER = "a Deferred of a failure of the produce fast path"
    REFUSED = "a request that the produce fast path refuses, and whose attempt completes the requests in progress"
    PARKED = "a Deferred that fires when the test releases it"
    REPEATED_PARKED = "a Deferred of the produce fast path that fires when the test releases it"
    MALFORMED = "no behaviour: the frame cannot be decoded"


LATER = {
    Kind.LATER: Kind.SMALL,
    Kind.RECORDS_LATER: Kind.RECORDS,
    Kind.NO_RESPONSE_LATER: Kind.NO_RESPONSE,
    Kind.ERROR_LATER: Kind.ERROR,
    Kind.DEFECT_LATER: Kind.DEFECT,
    Kind.CLOSE_LATER: Kind.CLOSE,
    Kind.BROKEN_LATER: Kind.BROKEN,
    Kind.UNANSWERABLE_LATER: Kind.UNANSWERABLE,
    Kind.REPEATED_LATER: Kind.REPEATED,
    Kind.REPEATED_SYNCED: Kind.REPEATED,
    Kind.REPEATED_SOON: Kind.REPEATED,
    Kind.REPEATED_FAILS_LATER: Kind.DEFECT,
    Kind.PARKED: Kind.SMALL,
    Kind.REPEATED_PARKED: Kind.REPEATED,
}
PARKED = {Kind.PARKED, Kind.REPEATED_PARKED}
APPENDED = {
    Kind.REPEATED_LATER, Kind.REPEATED_SYNCED, Kind.REPEATED_SOON, Kind.REPEATED_FAILS_LATER, Kind.REPEATED_PARKED,
}  # fmt: skip
REPEATED = {Kind.REPEATED, Kind.REPEATED_FAILS, *APPENDED}
ON_FAST_PATH = {Kind.REFUSED, *REPEATED}
MOST_APPENDED = 8
"""Requests of a connection whose batches are appended and that have no responses yet."""
CLOSING = {
    Kind.CLOSE, Kind.CLOSE_LATER, Kind.BROKEN, Kind.BROKEN_LATER, Kind.UNANSWERABLE, Kind.UNANSWERABLE_LATER,
    Kind.MALFORMED,
}  # fmt: skip
SILENT = {Kind.NO_RESPONSE, Kind.NO_RESPONSE_LATER}
WITH_RECORDS = {Kind.RECORDS, Kind.RECORDS_LATER}
ERRORS = {
    Kind.ERROR: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    Kind.ERROR_LATER: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    Kind.DEFECT: ErrorCode.UNKNOWN_SERVER_ERROR,
    Kind.DEFECT_LATER: ErrorCode.UNKNOWN_SERVER_ERROR,
    Kind.REPEATED_FAILS: ErrorCode.UNKNOWN_SERVER_ERROR,
    Kind.REPEATED_FAILS_LATER: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Script:
    """Choices made in advance; `taken` lists each with its number of options."""

    def __init__(self, choices=()):
        self._choices = choices
        self.taken = []

    def choose(self, options):
        position = len(self.taken)
        choice = self._choices[position] % options if position < len(self._choices) else 0
        self.taken.append((choice, options))
        return choice


def run_all_scripts(run, depth):
    """Call `run` with a script for each combination of the first `depth` choices. Return the number of scripts."""
    choices: list[int] | None = []
    count = 0
    while choices is not None:
        script = Script(choices)
        run(script)
        count += 1
        taken = script.taken[:depth]
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        choices = [choice for choice, _ in taken[:-1]] + [taken[-1][0] + 1] if taken else None
    return count


class Region:
    """A file region; its bytes identify the request that it answers.

    choose_cold: returns whether it is on the disk only
    """

    def __init__(self, content, choose_cold=lambda: False):
        self.file = RegionFile(content, choose_cold)
        self.position = 0
        self.size_bytes = len(content)

    def read_cached(self):
        return None


class RegionFile:
    """The file of a `Region`, with its bytes only."""

    path = "/segment"

    def __init__(self, content, choose_cold):
        self.content = content
        self.is_loaded = False
        self._choose_cold = choose_cold

    def size_bytes(self):
        return len(self.content)

    def read_cached(self, position, size_bytes):
        return None if self._choose_cold() else self.pread(position, size_bytes)

    def pread(self, position, size_bytes):
        assert position + size_bytes == len(self.content)
        return self.content[position:]

    def is_cached(self, position, size_bytes):
        assert position + size_bytes == len(self.content)
        return not self._choose_cold()

    def load(self, position, size_bytes):
        assert position + size_bytes == len(self.content)
        self.is_loaded = True


def records(number):
    """The bytes of the two regions of a response: the second is copied, the first only after a read from the disk."""
    return bytes([2 * number % 256]) * (10_000 + number), bytes([(2 * number + 1) % 256]) * 2


class ScriptedSocket:
    """The interface of a socket that Twisted and `SocketWriter` use. `sent` has the bytes that the peer receives."""

    def __init__(self, script, send_outcomes):
        self._script = script
        self._outcomes = send_outcomes
        self.arrived = deque()
        self.sent = bytearray()
        self.has_failed = False
        self.is_closed = False
        self.error = 0
        self.options = []

    def _take(self, size):
        if self.is_closed:
            raise OSError(errno.EBADF, "closed")
        if self.has_failed:
            raise BrokenPipeError(errno.EPIPE, "broken")
        if not size:
            return 0
        taken = (size, size // 2, 0, 1, size - 1, -1)[self._script.choose(self._outcomes)]
        if taken < 0:
            self.has_failed = True
            raise BrokenPipeError(errno.EPIPE, "broken")
        if taken == 0:
            raise BlockingIOError(errno.EAGAIN, "full")
        return taken

    def send(self, data, flags=0):
        taken = self._take(len(data))
        self.sent += memoryview(data)[:taken]
        return taken

    def send_file(self, file, position, size_bytes):
        taken = self._take(size_bytes)
        self.sent += file.content[position : position + taken]
        return taken

    def recv(self, size):
        if not self.arrived:
            raise BlockingIOError(errno.EAGAIN, "nothing there")
        return self.arrived.popleft()

    def fileno(self):
        return -1 if self.is_closed else EDGE_FD

    def close(self):
        self.is_closed = True

    def shutdown(self, how):
        pass

    def setblocking(self, flag):
        pass

    def setsockopt(self, *arguments):
        self.options.append(arguments)

    def getsockopt(self, level, option):
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.error


class Other:
    """Another connection: handling its request fires a Deferred that the tested connection waits for."""

    def __init__(self):
        self.work = deque()

    def fileno(self):
        return OTHER_FD

    def doRead(self):  # noqa: N802
        self.work.popleft()()

    def connectionLost(self, reason):  # noqa: N802
        raise AssertionError(reason)

    def logPrefix(self):  # noqa: N802
        return "other"


class ScriptedPoller:
    """The part of epoll's interface that the reactor uses; `wait` supplies the events."""

    def __init__(self, wait):
        self.masks = {}
        self.poll = wait

    def register(self, fd, mask):
        self.masks[fd] = mask

    modify = register

    def unregister(self, fd):
        del self.masks[fd]


class Asleep(BaseException):
    """The reactor sleeps, and nothing will wake it."""


def make_reactor(wait, seconds):
    """A reactor whose poller and clock are scripted."""
    reactor = PlainEPollReactor()
    for reader in list(reactor._internalReaders):
        reactor.removeReader(reader)
        reader.connectionLost(None)
    reactor._poller.close()
    reactor._poller = ScriptedPoller(wait)
    reactor.seconds = seconds
    reactor.scheduler = RequestScheduler(seconds, reactor.write_coalescer, reactor.watchdog)
    reactor.running = True
    return reactor


class AppendedBatch:
    """Replaces `PendingProduce`."""

    def __init__(self, edge, n):
        self._edge = edge
        self._n = n
        self.request = FetchRequest(session_id=n)  # Requests of an Edge are Fetch requests, also in place of a Produce.
        self._sync = None
        if edge.kinds[n] is Kind.REPEATED_SYNCED:
            self._sync = edge._promise(n)
            edge.early.add(n)

    def respond(self):
        """Return the response or a Deferred of it; all earlier requests must have their responses."""
        edge, n = self._edge, self._n
        assert min(edge.waiting, default=n) == n
        if self._sync is not None:
            edge.early.discard(n)
            if n not in edge.deferreds:
                del edge.waiting[n]
            return self._sync
        if edge.kinds[n] is Kind.REPEATED_SOON:
            del edge.waiting[n]
            return edge._outcome(n, Kind.REPEATED)
        return edge._promise(n)

    def cancel(self):
        if self._sync is not None:
            self._sync.addErrback(lambda _: None)
            self._sync.cancel()


class Edge:
    """A connection with its client and its handlers: `run` it, then `check` the result.

    kinds: the handlers' behaviour, for each request
    cuts: numbers of requests that arrive at once, repeated; with 2.5 the second of two requests arrives in two pieces
    send_outcomes: 1: everything is taken; 3: also half, or nothing; 5: also one byte, all but one; 6: also EPIPE
    may_leave: whether the client may close its side of the connection after it has sent everything
    may_be_cold: whether file regions may have to be read from the disk
    is_disk_hung: no such read ends
    costs_s: the time that the handler takes, for each request, repeated
    is_ever_writable: whether write events occur
    max_idle_ms, max_wait_ms: of the registry, and of each request
    authenticate: of the connection
    now_s: the clock
    attempts: the requests that the produce fast path got
    waiting: the requests that have begun and have no response
    early: those of them whose response must wait for its turn
    reads: the work of threads that read file regions
    """

    def __init__(self, script, kinds, cuts=(1,), *, send_outcomes=5, may_leave=False, **more):
        self.script = script
        self.kinds = list(kinds)
        self.began = []
        self.attempts = []
        self.deferreds = {}
        self.waiting = {}
        self.early = set()
        self.reads = deque()
        self.is_disk_hung = more.get("is_disk_hung", False)
        self._may_be_cold = more.get("may_be_cold", False)
        self.has_left = False
        self.cancelled = []
        self._polls = 0
        self._is_ever_writable = more.get("is_ever_writable", True)
        self._max_wait_ms = more.get("max_wait_ms", 0)
        self._may_leave = may_leave
        self._costs_s = more.get("costs_s", (0.0,))
        self.socket = ScriptedSocket(script, send_outcomes)
        self._unread = deque(self._pieces(cuts))
        self._other = Other()
        self.now_s = 0.0
        self.reactor = make_reactor(self._wait, lambda: self.now_s)
        services = SimpleNamespace(reactor=self.reactor)
        find_timeout_ms = partial(stalls.find_timeout_ms, None)
        self.registry = ConnectionRegistry(self.reactor, find_timeout_ms, more.get("max_idle_ms", -1))
        self.times = RequestTimes(self.reactor.seconds, lambda code: True, self.reactor.write_coalescer)
        dispatch = Dispatch(
            services,
            {FETCH_KEY: Api(FETCH_KEY, "Fetch", 4, VERSION, "api_versions:edge")},
            request_times=self.times,
        )
        handlers: Any = any_handler_module
        handlers.edge, handlers.edge_error = self._handle, self._error_response
        context = RequestContext("host", "PLAINTEXT")
        protocol: Any = KafkaTransport(
            lambda transport: Connection(transport, dispatch, context, more.get("authenticate")),
            1 << 20,
            self.registry,
            plaintext_writers(self),
        )
        scripted: Any = self.socket
        self.protocol = protocol
        self.tcp: Any = TcpConnection(scripted, protocol, self.reactor)
        self.tcp.connected = 1
        self.protocol.makeConnection(self.tcp)
        if ON_FAST_PATH & set(self.kinds):
            self.protocol.connection._pipeline._fast_path = SimpleNamespace(append_records=self._repeat)
        self.tcp.startReading()
        self.reactor.addReader(self._other)

    # -- the client ------------------------------------------------------------------------------------------------

    def _pieces(self, cuts):
        requests = [FetchRequest(session_id=n, max_wait_ms=self._max_wait_ms) for n in range(len(self.kinds))]
        frames = [request_frame(request, VERSION, n) for n, request in enumerate(requests)]
        for n, kind in enumerate(self.kinds):
            if kind is Kind.MALFORMED:
                frames[n] = frames[n][:12] + b"\xff" * (len(frames[n]) - 12)
        start, number = 0, 0
        while start < len(frames):
            cut = cuts[number % len(cuts)]
            number += 1
            piece = b"".join(frames[start : start + int(cut)])
            start += int(cut)
            if cut != int(cut):
                middle = len(piece) - len(frames[0]) // 2
                yield piece[:middle]
                piece = piece[middle:]
            yield piece

    @property
    def answers(self):
        """The complete responses that the client received: correlation id, session id, error code and records."""
        found, position, data = [], 0, bytes(self.socket.sent)
        while len(data) - position >= SIZE_BYTES:
            (size,) = struct.unpack_from(">i", data, position)
            assert 4 <= size < 1 << 20, "the bytes sent are no sequence of responses"
            content = data[position + SIZE_BYTES : position + SIZE_BYTES + size]
            if len(content) < size:
                break
            (correlation_id,) = struct.unpack_from(">i", content)
            response = codec.decode(FetchResponse, VERSION, content, 4)
            received = b""
            for row in (row for topic in response.responses for row in topic.partitions):
                assert isinstance(row.records, bytes | memoryview)
                received += row.records
            found.append((correlation_id, response.session_id, response.error_code, received))
            position += SIZE_BYTES + size
        return found

    def _expected(self):
        """The responses, up to the request that closes the connection."""
        for n, kind in enumerate(self.kinds):
            if kind in CLOSING:
                return
            if kind in ERRORS:
                yield n, 0, int(ERRORS[kind]), b""
            elif kind not in SILENT:
                yield n, n, 0, b"".join(records(n)) if kind in WITH_RECORDS else b""

    # -- the handlers ----------------------------------------------------------------------------------------------

    def _handle(self, services, context, request):
        n = request.session_id
        kind = self.kinds[n]
        self._begin(n)
        if kind is Kind.AT_ONCE:
            fired = Deferred()
            fired.callback(self._outcome(n, Kind.SMALL))
            return fired
        if kind in LATER:
            return self._promise(n)
        outcome = self._outcome(n, kind)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _repeat(self, frame):
        """Replace `ProduceFastPath.append_records`."""
        (n,) = struct.unpack_from(">i", frame, SIZE_BYTES + 4)
        kind = self.kinds[n]
        self.attempts.append(n)
        if kind is Kind.REPEATED_FAILS:
            self.began.append(n)
            raise ZeroDivisionError("a defect")
        if kind is Kind.REFUSED:
            # As a disk failure does.
            for earlier in list(self.deferreds):
                self._fire(earlier)
        if kind not in REPEATED:
            return None
        self._begin(n)
        return AppendedBatch(self, n) if kind in APPENDED else self._outcome(n, kind)

    @property
    def in_progress(self):
        """The first request whose Deferred has not fired; None if there is none."""
        return next(iter(self.deferreds), None)

    def _begin(self, n):
        kinds = {self.kinds[earlier] for earlier in self.waiting}
        assert not kinds or (kinds <= APPENDED and self.kinds[n] in REPEATED), f"request {n} begins too early"
        assert len(self.waiting) < MOST_APPENDED
        assert not self.socket.has_failed, f"request {n} begins although the connection has failed"
        self.began.append(n)
        self.now_s += self._costs_s[n % len(self._costs_s)]
        if self.kinds[n] in LATER:
            self.waiting[n] = None

    def _promise(self, n):
        self.deferreds[n] = Wait(lambda: "a test", lambda deferred: self._cancel(n))
        return self.deferreds[n]

    def _cancel(self, n):
        del self.deferreds[n]
        self.waiting.pop(n, None)
        self.cancelled.append(n)

    def _outcome(self, n, kind):
        if kind is Kind.NO_RESPONSE:
            return NO_RESPONSE
        if kind is Kind.ERROR:
            return KafkaError(ERRORS[kind])
        if kind is Kind.DEFECT:
            return ZeroDivisionError("a defect")
        if kind is Kind.CLOSE:
            return CloseConnection("as asked")
        if kind is Kind.BROKEN:
            return FetchResponse(session_id="not a number")
        if kind is Kind.UNANSWERABLE:
            return KafkaError(ErrorCode.NONE)
        if kind is Kind.REPEATED:
            content = struct.pack(">i", n) + codec.encode(FetchResponse(session_id=n), VERSION)
            return bytearray(struct.pack(">i", len(content)) + content)
        response = FetchResponse(session_id=n)
        if kind is Kind.RECORDS:
            regions = [Region(content, self._choose_cold) for content in records(n)]
            rows = [FetchResponsePartitionData(records=region) for region in regions]
            response.responses = [FetchResponseFetchableTopicResponse(topic="t", partitions=rows)]
        return response

    @staticmethod
    def _error_response(request, version, error):
        if error.code == ErrorCode.NONE:
            raise ZeroDivisionError("a defect")
        return FetchResponse(error_code=error.code)

    def release(self):
        """Answer the request in progress."""
        self._fire(self.in_progress)

    def _fire(self, n):
        """Fire the Deferred of request `n`, unless it has been cancelled."""
        deferred = self.deferreds.pop(n, None)
        if deferred is not None:
            if n not in self.early:
                del self.waiting[n]
            outcome = self._outcome(n, LATER[self.kinds[n]])
            if isinstance(outcome, Exception):
                deferred.errback(outcome)
            else:
                deferred.callback(outcome)

    # -- the environment -------------------------------------------------------------------------------------------

    @staticmethod
    def send_file(socket, file, position, size_bytes):
        return socket.send_file(file, position, size_bytes)

    def monotonic(self):
        return self.now_s

    def run_read(self, work, done):
        self.reads.append((work, done))

    def _choose_cold(self):
        return self._may_be_cold and self.script.choose(2) == 1

    def _end_read(self):
        work, done = self.reads.popleft()
        work()
        done(None)

    # -- the kernel ------------------------------------------------------------------------------------------------

    def _wait(self, timeout, most):
        """epoll_wait: one event or several, as the script chooses."""
        self._polls += 1
        assert self._polls < MOST_POLLS, "the reactor spins"
        events, used = [], set()
        while options := [option for option in self._options() if option[0] not in used]:
            # The benign choice is one event a poll, the first that is possible.
            stops = int(bool(events))
            choice = self.script.choose(len(options) + stops) - stops
            if choice < 0:
                break
            subject, event = options[choice]
            used.add(subject)
            event(events)
        if not events and timeout != 0:
            raise Asleep
        return events

    def _options(self):
        mask = self.reactor._poller.masks.get(EDGE_FD, 0)
        reads = mask & select.EPOLLIN and (self._unread or self.has_left)
        writes = mask & select.EPOLLOUT and self._is_ever_writable
        if reads:
            yield "edge", self._readable
        if writes:
            yield "edge", lambda events: events.append((EDGE_FD, select.EPOLLOUT))
        if reads and writes:
            yield "edge", lambda events: self._readable(events, select.EPOLLOUT)
        for n in self.deferreds:
            if self.kinds[n] not in PARKED:
                yield "other", partial(self._other_readable, work=self._fire, arguments=(n,))
                yield "other", partial(
                    self._other_readable, work=self.reactor.callLater, arguments=(0, self._fire, n)
                )
        if self.reads and not self.is_disk_hung:
            yield "other", partial(self._other_readable, work=self._end_read, arguments=())
        if self._may_leave and not self.has_left:
            yield "client", self._leave

    def _readable(self, events, more=0):
        self.socket.arrived.append(self._unread.popleft() if self._unread else b"")
        events.append((EDGE_FD, select.EPOLLIN | more))

    def _other_readable(self, events, work, arguments):
        self._other.work.append(lambda: work(*arguments))
        events.append((OTHER_FD, select.EPOLLIN))

    def _leave(self, events):
        self.has_left = True

    # -- a run -----------------------------------------------------------------------------------------------------

    def run(self):
        """Run the reactor until it would sleep."""
        try:
            while True:
                self.reactor.runUntilCurrent()
                self.reactor.doIteration(self.reactor.timeout())
        except Asleep:
            return self

    def _check_times(self, *, is_broken):
        """Assert that the times of each request were counted once, with those of its stages."""
        counted = sum(times.count for times in self.times.by_code.values())
        assert counted <= len(self.began) + 1 if is_broken else counted == len(self.began)
        for times in self.times.by_code.values():
            assert all(histogram.count <= times.total.count for histogram in times.stages())

    def check(self):
        """Assert that each request is answered once and in order, or the connection is closed, and nothing is left."""
        expected = list(self._expected())
        assert self.began == list(range(len(self.began)))
        assert not self.deferreds
        assert not self.reads
        assert not self.reactor.getDelayedCalls(), "the reactor sleeps although there is work to do"
        is_broken = self.socket.has_failed or any(kind in CLOSING for kind in self.kinds)
        assert self.answers == (expected[: len(self.answers)] if is_broken else expected)
        assert not self.protocol.connection.is_in_line
        self._check_times(is_broken=is_broken or self.has_left)
        if is_broken or self.has_left:
            assert self.socket.is_closed
            assert not self.reactor._poller.masks.keys() - {OTHER_FD}
        else:
            assert self.reactor._poller.masks[EDGE_FD] == select.EPOLLIN
        return self
