"""The load of consumers: one Fetch at a time on each connection, from the log's start to its end, repeatedly."""

from __future__ import annotations

import select
import socket
import struct
from functools import partial

from benchmarks import wire
from benchmarks.connections import WOULD_BLOCK, connect
from benchmarks.loader import Load, now_ns

BATCH_LENGTH = struct.Struct(">qi")


class FetchStream:
    """One connection of ConsumeLoad and its incomplete response."""

    __slots__ = ("buffer", "due", "offset", "offset_position", "received", "request", "socket")

    def __init__(self, connection: socket.socket, request: tuple[bytearray, int], fetch_bytes: int) -> None:
        self.socket = connection
        self.request, self.offset_position = request
        self.buffer = memoryview(bytearray(fetch_bytes + 2 * 1_048_576))
        self.received = 0
        self.due = 0
        self.offset = 0


class ConsumeLoad(Load):
    """One Fetch at a time on each connection, from the log's start, repeatedly."""

    def start(self) -> None:
        spec = self.spec
        self.streams: dict[int, FetchStream] = {}
        self.record_payload_bytes = spec.value_bytes
        self.end_offsets = []
        for partition in range(spec.partitions):
            port = self.port_of(partition)
            with wire.Admin(port, connect=partial(connect, spec.host, port, spec.security)) as admin:
                self.end_offsets.append(admin.end_offset(spec.topic, partition))
        self.stream_end: dict[int, int] = {}
        for index, connection in enumerate(self.sockets):
            partition = index % spec.partitions
            request = wire.fetch_frame(
                spec.topic, partition, partition_max_bytes=spec.fetch_bytes, isolation_level=spec.isolation_level
            )
            connection.setblocking(False)
            stream = FetchStream(connection, request, spec.fetch_bytes)
            self.streams[connection.fileno()] = stream
            self.stream_end[connection.fileno()] = self.end_offsets[partition]
            self.epoll.register(connection.fileno(), select.EPOLLIN)
            self._ask(stream)

    def run(self, until_ns: int, max_bytes: int) -> None:
        poll, streams = self.epoll.poll, self.streams
        while now_ns() < until_ns:
            for fd, _ in poll(1.0):
                stream = streams[fd]
                if self._receive(stream):
                    if stream.offset >= self.stream_end[fd]:
                        stream.offset = 0
                    self._ask(stream)

    def _ask(self, stream: FetchStream) -> None:
        struct.pack_into(">q", stream.request, stream.offset_position, stream.offset)
        stream.received = stream.due = 0
        stream.socket.send(stream.request)

    def _receive(self, stream: FetchStream) -> bool:
        """Receive available bytes; return True once the response is complete and the next offset known."""
        try:
            count = stream.socket.recv_into(stream.buffer[stream.received :])
        except WOULD_BLOCK:
            return False
        if not count:
            raise wire.WireError("the broker closed a connection")
        stream.received += count
        if not stream.due and stream.received >= 4:
            stream.due = 4 + int.from_bytes(stream.buffer[:4], "big")
        if not stream.due or stream.received < stream.due:
            return False
        self._advance(stream)
        return True

    def _advance(self, stream: FetchStream) -> None:
        buffer = stream.buffer
        located = wire.locate_records(buffer[: stream.due], self.spec.topic)
        if located.error_code:
            raise wire.WireError(f"fetch error {located.error_code}")
        position, end, first = located.start, located.start + located.size_bytes, stream.offset
        unpack = BATCH_LENGTH.unpack_from
        while position + wire.BATCH_OVERHEAD_BYTES <= end:
            base_offset, length = unpack(buffer, position)
            if position + 12 + length > end:
                break
            stream.offset = base_offset + int.from_bytes(buffer[position + 23 : position + 27], "big") + 1
            position += 12 + length
        if stream.offset == first:
            raise wire.WireError(f"no complete batch at offset {first} of {self.spec.topic}")
        self.answers += 1
        self.payload_bytes += (stream.offset - first) * self.record_payload_bytes
