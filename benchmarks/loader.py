"""The raw-frame loader: prepared requests over plain sockets, in a separate process.

    python -m benchmarks.loader '{"kind": "produce", "ports": [9092], ...}'

The argument has fields of LoadSpec; the output is one JSON line.

It is meant to cost less than any broker. Frames are encoded before the measurement and sent unchanged. Of a response
only the error code is checked (and the batch headers of a Fetch response, which contain the next offset); nothing is
allocated per record. One thread and one epoll drive all connections.

Each load warms up over the connections that it then measures, so the window includes no connection set-up; responses
that arrive after the window are awaited but not counted.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import wire
from benchmarks.connections import NO_SECURITY, WOULD_BLOCK, Security, connect
from benchmarks.procfs import cpu_seconds

RECEIVE_BYTES = 65_536
DRAIN_S = 30.0

now_ns = time.perf_counter_ns


class LoadSpec(NamedTuple):
    """One load. `kind`: produce (several requests in flight), requests (one each, timed), paced (the same at a fixed
    rate), consume or transactions.

    `ports` has the port of each partition's leader, or one for all; `broker_pids` the processes whose CPU is measured.
    """

    kind: str
    ports: list[int]
    topic: str
    broker_pids: list[int]
    host: str = "127.0.0.1"
    partitions: int = 1
    connections: int = 1
    in_flight: int = 5
    value_bytes: int = 1024
    records_per_batch: int = 1
    requests_per_s: float = 0.0
    records_per_transaction: int = 0
    abort_every: int = 0
    isolation_level: int = 0
    fetch_bytes: int = 1_048_576
    warm_s: float = 0.5
    seconds: float = 2.0
    max_bytes: int = 1_500_000_000
    security: Security = NO_SECURITY


class LoadResult(NamedTuple):
    """Results of the window. `acked_records` counts all acknowledged records, including those of warm-up and drain.

    A request of the transaction load is a whole transaction, and its marker counts as one more record.
    """

    seconds: float
    requests: int
    payload_bytes: int
    broker_cpu_s: float
    loader_cpu_s: float
    p50_us: float
    p99_us: float
    acked_records: int


class Load:
    """Connections, one epoll over them, and the counters. Subclasses handle readable and writable connections."""

    def __init__(self, spec: LoadSpec) -> None:
        self.spec = spec
        self.answers = 0
        self.payload_bytes = 0
        self.times = array("q")
        """Times from requests to their responses since the warm-up, in ns, of the loads that measure them."""
        self.epoll = select.epoll()
        self.sockets: list[socket.socket] = []
        for index in range(spec.connections):
            self.sockets.append(connect(spec.host, self.port_of(index % spec.partitions), spec.security))

    def port_of(self, partition: int) -> int:
        """Return the port of a partition's leader."""
        return self.spec.ports[partition % len(self.spec.ports)]

    def start(self) -> None:
        """Register every connection and send its first requests."""
        raise NotImplementedError

    def run(self, until_ns: int, max_bytes: int) -> None:
        """Keep every connection busy until that time, or until `max_bytes` of payload are transferred."""
        raise NotImplementedError

    def drain(self) -> None:
        """Wait for the outstanding responses."""

    def forget_latencies(self) -> None:
        """End the warm-up."""
        self.times = array("q")

    def acked_records(self) -> int:
        """Return the number of offsets of the acknowledged requests."""
        return self.answers * self.spec.records_per_batch

    def batch_for(self, index: int) -> bytes:
        """Return the Produce frame of connection number `index`."""
        spec = self.spec
        batch = wire.record_batch(spec.value_bytes, spec.records_per_batch, wire.now_ms())
        return wire.produce_frame(spec.topic, index % spec.partitions, batch)


class ProduceStream:
    """One connection of ProduceLoad: the position in the current frame, and the begins of outstanding requests."""

    __slots__ = ("answer_bytes", "begun_ns", "frame", "rest", "socket", "tail", "wants_write")

    def __init__(self, connection: socket.socket, frame: bytes) -> None:
        self.socket = connection
        self.frame = memoryview(frame)
        self.rest = memoryview(b"")
        self.begun_ns: deque[int] = deque()
        self.tail = b""
        self.answer_bytes = 0
        self.wants_write = False


class ProduceLoad(Load):
    """Up to `in_flight` Produce requests on each connection, as librdkafka and the Java producer send them.

    The latency of a request begins when its first byte is sent, or waits for the socket.
    """

    def start(self) -> None:
        self.error_position = wire.produce_error_position(self.spec.topic)
        self.request_bytes = self.spec.value_bytes * self.spec.records_per_batch
        self.streams: dict[int, ProduceStream] = {}
        frames: dict[int, bytes] = {}
        for index, connection in enumerate(self.sockets):
            partition = index % self.spec.partitions
            frame = frames.setdefault(partition, b"") or self.batch_for(partition)
            frames[partition] = frame
            connection.setblocking(False)
            self.streams[connection.fileno()] = ProduceStream(connection, frame)
            self.epoll.register(connection.fileno(), select.EPOLLIN | select.EPOLLOUT)
            self.streams[connection.fileno()].wants_write = True

    def run(self, until_ns: int, max_bytes: int) -> None:
        poll, streams, in_flight = self.epoll.poll, self.streams, self.spec.in_flight
        limit = self.payload_bytes + max_bytes
        while now_ns() < until_ns and self.payload_bytes < limit:
            for fd, event in poll(0.2):
                stream = streams[fd]
                if event & ~select.EPOLLOUT:
                    self._receive(stream)
                self._send(fd, stream, in_flight)

    def drain(self) -> None:
        deadline = now_ns() + int(DRAIN_S * 1e9)
        while any(stream.begun_ns for stream in self.streams.values()):
            if now_ns() > deadline:
                raise wire.WireError(f"responses are missing after {DRAIN_S:.0f} s")
            for fd, event in self.epoll.poll(0.2):
                if event & ~select.EPOLLOUT:
                    self._receive(self.streams[fd])
                self._send(fd, self.streams[fd], 0)

    def _receive(self, stream: ProduceStream) -> None:
        try:
            received = stream.socket.recv(RECEIVE_BYTES)
        except WOULD_BLOCK:
            return
        if not received:
            raise wire.WireError("the broker closed a connection")
        if stream.tail:
            received = stream.tail + received
        size = stream.answer_bytes
        if not size:
            if len(received) < 4:
                stream.tail = received
                return
            size = stream.answer_bytes = 4 + int.from_bytes(received[:4], "big")
        count, over = divmod(len(received), size)
        for position in range(self.error_position, count * size, size):
            if received[position] or received[position + 1]:
                raise wire.WireError(f"produce error {int.from_bytes(received[position : position + 2], 'big')}")
        stream.tail = received[len(received) - over :] if over else b""
        answered_ns = now_ns()
        for _ in range(count):
            self.times.append(answered_ns - stream.begun_ns.popleft())
        self.answers += count
        self.payload_bytes += count * self.request_bytes

    def _send(self, fd: int, stream: ProduceStream, in_flight: int) -> None:
        blocked = False
        while stream.rest or len(stream.begun_ns) < in_flight:
            if not stream.rest:
                stream.rest = stream.frame
                stream.begun_ns.append(now_ns())
            try:
                sent = stream.socket.send(stream.rest)
            except WOULD_BLOCK:
                blocked = True
                break
            if sent < len(stream.rest):
                stream.rest = stream.rest[sent:]
            else:
                stream.rest = stream.rest[:0]
        if blocked != stream.wants_write:
            stream.wants_write = blocked
            self.epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if blocked else select.EPOLLIN)


class RequestLoad(Load):
    """One Produce request at a time on each connection; the time from each request to its response is kept."""

    def start(self) -> None:
        self.error_position = wire.produce_error_position(self.spec.topic)
        size = 1 + max(connection.fileno() for connection in self.sockets)
        self.frames, self.sent_ns = [b""] * size, [0] * size
        self.recv: list[Callable[[int], bytes]] = [bytes] * size
        self.send: list[Callable[[bytes], int]] = [len] * size
        for index, connection in enumerate(self.sockets):
            fd = connection.fileno()
            connection.setblocking(len(self.sockets) == 1)
            self.frames[fd] = self.batch_for(index)
            self.recv[fd], self.send[fd] = connection.recv, connection.send
            self.epoll.register(fd, select.EPOLLIN)
            self.sent_ns[fd] = now_ns()
            self.send[fd](self.frames[fd])

    def run(self, until_ns: int, max_bytes: int) -> None:
        before = len(self.times)
        self._request_until(until_ns)
        self.answers += len(self.times) - before
        self.payload_bytes += (len(self.times) - before) * self.spec.value_bytes * self.spec.records_per_batch

    def _request_until(self, until_ns: int) -> None:
        if len(self.sockets) == 1:
            self._run_one(until_ns)
        else:
            self._run_many(until_ns)

    def _run_one(self, until_ns: int) -> None:
        fd = self.sockets[0].fileno()
        recv, send, frame, keep = self.recv[fd], self.send[fd], self.frames[fd], self.times.append
        position, sent_ns = self.error_position, self.sent_ns[fd]
        while sent_ns < until_ns:
            answer = recv(RECEIVE_BYTES)
            answered_ns = now_ns()
            if answer[position : position + 2] != b"\0\0":
                raise wire.WireError(f"invalid response or error: {answer.hex()}")
            keep(answered_ns - sent_ns)
            sent_ns = answered_ns
            send(frame)
        self.sent_ns[fd] = sent_ns

    def _run_many(self, until_ns: int) -> None:
        recv, send, frames, keep, sent = self.recv, self.send, self.frames, self.times.append, self.sent_ns
        position, poll, clock, answered_ns = self.error_position, self.epoll.poll, now_ns, now_ns()
        while answered_ns < until_ns:
            for fd, _ in poll(1.0):
                try:
                    answer = recv[fd](RECEIVE_BYTES)
                except WOULD_BLOCK:
                    continue
                answered_ns = clock()
                if answer[position : position + 2] != b"\0\0":
                    raise wire.WireError(f"invalid response or error: {answer.hex()}")
                keep(answered_ns - sent[fd])
                sent[fd] = answered_ns
                send[fd](frames[fd])

    def drain(self) -> None:
        for connection in self.sockets:
            connection.settimeout(DRAIN_S)
            if not connection.recv(RECEIVE_BYTES):
                raise wire.WireError("the broker closed a connection")
            self.answers += 1


def load_class(kind: str) -> type[Load]:
    """Return the class of a kind of load. Raises KeyError."""
    if kind == "transactions":
        from benchmarks.transaction_load import TransactionLoad

        return TransactionLoad
    if kind == "paced":
        from benchmarks.paced_load import PacedLoad

        return PacedLoad
    if kind == "consume":
        from benchmarks.consume_load import ConsumeLoad

        return ConsumeLoad
    return {"produce": ProduceLoad, "requests": RequestLoad}[kind]


def _brokers_cpu_s(spec: LoadSpec) -> float:
    return sum(cpu_seconds(pid) for pid in spec.broker_pids)


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile_us(sorted_ns: list[int], share: float) -> float:
    """Return the value at that share of sorted times, in microseconds; 0 if there are none."""
    if not sorted_ns:
        return 0.0
    return sorted_ns[min(int(len(sorted_ns) * share), len(sorted_ns) - 1)] / 1000


def run_load(spec: LoadSpec) -> LoadResult:
    """Warm up, measure one window, drain. Raises WireError at the first error response."""
    load = load_class(spec.kind)(spec)
    load.start()
    load.run(now_ns() + int(spec.warm_s * 1e9), spec.max_bytes // 4)
    load.forget_latencies()
    answers, payload_bytes = load.answers, load.payload_bytes
    broker_cpu_s, own_cpu_s, start_ns = _brokers_cpu_s(spec), _own_cpu_s(), now_ns()
    load.run(start_ns + int(spec.seconds * 1e9), spec.max_bytes)
    end_ns = now_ns()
    broker_cpu_s, own_cpu_s = _brokers_cpu_s(spec) - broker_cpu_s, _own_cpu_s() - own_cpu_s
    answers, payload_bytes = load.answers - answers, load.payload_bytes - payload_bytes
    load.drain()
    times = sorted(load.times)
    return LoadResult(
        seconds=(end_ns - start_ns) / 1e9,
        requests=answers,
        payload_bytes=payload_bytes,
        broker_cpu_s=broker_cpu_s,
        loader_cpu_s=own_cpu_s,
        p50_us=percentile_us(times, 0.50),
        p99_us=percentile_us(times, 0.99),
        acked_records=load.acked_records(),
    )


def main() -> None:
    fields: dict[str, Any] = json.loads(sys.argv[1])
    try:
        security = Security(*fields.pop("security", ()))
        result = run_load(LoadSpec(**fields, security=security))
    except (wire.WireError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(result._asdict()))


if __name__ == "__main__":
    main()
