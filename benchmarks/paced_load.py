"""The load of requests at a fixed rate: their latency while the brokers are not saturated."""

from __future__ import annotations

import select

from benchmarks import wire
from benchmarks.connections import WOULD_BLOCK
from benchmarks.loader import DRAIN_S, RECEIVE_BYTES, RequestLoad, now_ns


class PacedLoad(RequestLoad):
    """Produce requests at `requests_per_s`, evenly over time and over the connections, at most one on each.

    The latency of a request that is due before the response to the last one begins when it is due.
    """

    def start(self) -> None:
        self.error_position = wire.produce_error_position(self.spec.topic)
        self.interval_ns = int(1e9 * len(self.sockets) / self.spec.requests_per_s)
        begin_ns = now_ns()
        self.frames_of = {one.fileno(): self.batch_for(index) for index, one in enumerate(self.sockets)}
        self.by_fd = {one.fileno(): one for one in self.sockets}
        self.due_ns = {
            one.fileno(): begin_ns + index * self.interval_ns // len(self.sockets)
            for index, one in enumerate(self.sockets)
        }
        self.begun_ns: dict[int, int] = {}
        for connection in self.sockets:
            connection.setblocking(False)
            self.epoll.register(connection.fileno(), select.EPOLLIN)

    def _request_until(self, until_ns: int) -> None:
        while (time_ns := now_ns()) < until_ns:
            self._send_due(time_ns)
            idle = [due_ns for fd, due_ns in self.due_ns.items() if fd not in self.begun_ns]
            next_ns = min([until_ns, *idle])
            for fd, _ in self.epoll.poll(max(0.0, (next_ns - now_ns()) / 1e9)):
                self._receive(fd)

    def _send_due(self, time_ns: int) -> None:
        """Send the requests that are due on idle connections."""
        for fd, due_ns in self.due_ns.items():
            if due_ns <= time_ns and fd not in self.begun_ns:
                self._send(fd, now_ns())

    def _send(self, fd: int, begun_ns: int) -> None:
        self.begun_ns[fd] = begun_ns
        self.due_ns[fd] += self.interval_ns
        self.by_fd[fd].send(self.frames_of[fd])

    def _receive(self, fd: int) -> None:
        try:
            answer = self.by_fd[fd].recv(RECEIVE_BYTES)
        except WOULD_BLOCK:
            return
        answered_ns = now_ns()
        position = self.error_position
        if answer[position : position + 2] != b"\0\0":
            raise wire.WireError(f"invalid response or error: {answer.hex()}")
        self.times.append(answered_ns - self.begun_ns.pop(fd))
        if self.due_ns[fd] <= answered_ns:
            self._send(fd, self.due_ns[fd])

    def drain(self) -> None:
        for fd in list(self.begun_ns):
            connection = self.by_fd[fd]
            connection.settimeout(DRAIN_S)
            if not connection.recv(RECEIVE_BYTES):
                raise wire.WireError("the broker closed a connection")
            self.answers += 1
