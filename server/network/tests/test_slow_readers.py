"""Clients with small receive buffers that pipeline requests and read in pieces, against a broker process.

The responses of one client exceed the capacity of the socket, so that the broker's sends are partial again and again
while the client reads. Every request is answered once and in order, and no connection stalls.
"""

import contextlib
import random
import socket
import struct
import time

import pytest

from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest
from odradek.server.tests.wire import Wire, request_frame, until
from odradek.testing import OdradekBroker

CLIENTS = 12
REQUESTS = 1_500
RECEIVE_BUFFER_BYTES = 4096
OUTSTANDING_BYTES = 3_000_000
"""More than the capacity of both sides' socket buffers, so that the broker's sends are blocked again and again."""

SILENCE_S = 60
TOPIC = "records"
PARTITIONS = 2
VALUE = bytes(20_000)
GROUP = "group"
OFFSET_METADATA = "m" * 4096
"""Metadata of the greatest length: the response is large, and costs the broker little."""


class SlowReader:
    """A connection that sends requests before earlier ones are answered, and reads in pieces of random size."""

    def __init__(self, port, kinds, rng):
        self._rng = rng
        self._kinds = kinds
        self._names = rng.choices(list(kinds), (990, 10, 3, 1), k=REQUESTS)
        self._unsent = bytearray()
        self._received = bytearray()
        self._sent_count = 0
        self._outstanding_bytes = 0
        self.answered = 0
        self.heard_s = time.monotonic()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)

    @property
    def is_done(self):
        return self.answered == REQUESTS

    def step(self):
        """Send and read at random. Return whether anything was read."""
        if len(self._unsent) < 4096 and self._outstanding_bytes < OUTSTANDING_BYTES and self._rng.random() < 0.5:
            for _ in range(self._rng.choice((1, 2, 4, 8))):
                self._ask()
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self.socket.send(self._unsent)]
        return self._rng.random() < 0.7 and self._read()

    def _ask(self):
        if self._sent_count < REQUESTS:
            frame, response_bytes = self._kinds[self._names[self._sent_count]]
            self._unsent += frame[:8] + struct.pack(">i", self._sent_count) + frame[12:]
            self._sent_count += 1
            self._outstanding_bytes += response_bytes

    def _read(self):
        try:
            data = self.socket.recv(self._rng.choice((100, 4096, 65536, 1 << 20)))
        except BlockingIOError:
            return False
        assert data, f"closed by the broker after {self.answered} responses"
        self.heard_s = time.monotonic()
        self._received += data
        start = 0
        while len(self._received) - start >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._received, start)
            if len(self._received) - start < 4 + size:
                break
            response_bytes = self._kinds[self._names[self.answered]][1]
            assert (correlation_id, 4 + size) == (self.answered, response_bytes)
            self._outstanding_bytes -= response_bytes
            self.answered += 1
            start += 4 + size
        del self._received[:start]
        return True


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker() as broker:
        with Wire(broker.port) as wire:
            wire.create_topic(TOPIC, PARTITIONS)
            wire.produce(TOPIC, VALUE)
            find = FindCoordinatorRequest(coordinator_keys=[GROUP])
            until(lambda: wire.ask(find).coordinators[0].port > 0)
            until(lambda: commit_offsets(wire) == 0)
        yield broker


def commit_offsets(wire):
    """Commit an offset with large metadata for each partition. Return the error code."""
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=OFFSET_METADATA)
        for index in range(PARTITIONS)
    ]
    request = OffsetCommitRequest(group_id=GROUP, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=rows)])
    return wire.ask(request, 8).topics[0].partitions[0].error_code


def response_bytes(port, frame):
    """Send a request whose response has a constant size. Return this size."""
    with Wire(port) as wire:
        wire.socket.sendall(frame)
        return 4 + struct.unpack(">i", wire._exactly(4))[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_request_is_answered_in_order_and_no_connection_stalls(broker, seed):
    frames = {
        "offsets": request_frame(OffsetFetchRequest(group_id=GROUP, topics=None), 7),
        "api versions": request_frame(ApiVersionsRequest(), 2),
        "records": request_frame(Wire.fetch_request(TOPIC, 0), 11),
        "wait": request_frame(Wire.fetch_request(TOPIC, 1, max_wait_ms=5, min_bytes=1), 11),
    }
    kinds = {name: (frame, response_bytes(broker.port, frame)) for name, frame in frames.items()}
    rng = random.Random(seed)
    clients = [SlowReader(broker.port, kinds, random.Random(rng.random())) for _ in range(CLIENTS)]
    unfinished = list(clients)
    while unfinished:
        has_read = [client.step() for client in unfinished]
        if not any(has_read):
            time.sleep(0.0005)
        now_s = time.monotonic()
        silent = [client.answered for client in unfinished if now_s - client.heard_s > SILENCE_S]
        assert not silent, f"no response for {SILENCE_S} s after {silent} responses\n{broker.log_text()[-2000:]}"
        unfinished = [client for client in unfinished if not client.is_done]
    for client in clients:
        client.socket.close()
    assert "please report" not in broker.log_text()
