"""A simulated client's connection: requests and responses through the real codecs and framing."""

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred

from odradek.protocol.codec import decoder, encoder
from odradek.protocol.framing import SIZE_BYTES, FrameSplitter
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import response_class
from odradek.protocol.schema import Message
from odradek.simulation.api import ConnectionLost
from odradek.simulation.machine.pipes import ByteStream

if TYPE_CHECKING:
    from odradek.simulation.world import World

REQUEST_TIMEOUT_S: Final = 30.0
_MAX_FRAME_BYTES: Final = 100_000_000


class _Pending:
    """A request in flight."""

    __slots__ = ("client_id", "correlation_id", "deferred", "key", "sent_s", "version")

    def __init__(self, client_id: str, key: int, version: int, correlation_id: int, sent_s: float) -> None:
        self.client_id = client_id
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.sent_s = sent_s
        self.deferred: Deferred[Any] = Deferred()


class SimulatedConnection:
    """Implementation of `api.ClientConnection`. A request without a response within `timeout_s` closes it.

    Such a timeout fails the run, unless a fault broke the connection, which the client may not notice. In a cluster
    the broker may also wait for others, until the faults have ended (`World.quiet_s`).
    """

    def __init__(self, world: "World", stream: ByteStream, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._world = world
        self._timeout_s = timeout_s
        self._stream = stream
        self._splitter = FrameSplitter(_MAX_FRAME_BYTES)
        self._pending: deque[_Pending] = deque()
        self._last_correlation_id = 0
        self._is_watched = False
        stream.on_data = self._received
        stream.on_lost = self._lost

    @property
    def is_lost(self) -> bool:
        """True if the connection is lost or closed."""
        return self._stream.is_lost

    def request(self, message: Message, version: int, *, client_id: str) -> "Deferred[Any]":
        """Send a request; return a Deferred of its response, which fails with ConnectionLost."""
        pending = _Pending(
            client_id, message.api_key, version, self._last_correlation_id + 1, self._world.clock.seconds()
        )
        if self._stream.is_lost:
            pending.deferred.errback(ConnectionLost("the connection is closed"))
            return pending.deferred
        self._pending.append(pending)
        self._send(message, version, client_id)
        if not self._is_watched:
            self._is_watched = True
            self._world.clock.callLater(self._timeout_s, self._check_timeout)
        return pending.deferred

    def send_without_answer(self, message: Message, version: int, *, client_id: str) -> None:
        """Send a request that gets no response."""
        if not self._stream.is_lost:
            self._send(message, version, client_id)

    def stop_reading(self) -> None:
        """Stop reading responses; they stay in the network."""
        self._stream.stop_reading()

    def read_again(self) -> None:
        """Resume reading, including responses that have arrived in the meantime."""
        self._stream.read_again()

    def close(self) -> None:
        """Close the connection; requests in flight fail."""
        self._stream.close()
        self._lost()

    def _send(self, message: Message, version: int, client_id: str) -> None:
        self._last_correlation_id += 1
        raw_id = client_id.encode()
        out = bytearray(struct.pack(">ihhih", 0, message.api_key, version, self._last_correlation_id, len(raw_id)))
        out += raw_id
        if message.is_flexible(version):
            out.append(0)
        encoder(type(message), version)(message, out, [])
        struct.pack_into(">i", out, 0, len(out) - SIZE_BYTES)
        self._world.trace_message(">", client_id, self._last_correlation_id, message, version)
        self._stream.write(bytes(out))

    def _received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            if self._stream.is_lost:
                # The client closed the connection because of the response before.
                return
            self._answer(frame)

    def _answer(self, frame: bytes | memoryview) -> None:
        if not self._pending:
            self._world.fail("a response without a request")
            return
        pending = self._pending.popleft()
        (correlation_id,) = struct.unpack_from(">i", frame, SIZE_BYTES)
        if correlation_id != pending.correlation_id:
            self._world.fail(f"response has correlation id {correlation_id} instead of {pending.correlation_id}")
        message_type = response_class(pending.key)
        is_flexible = response_is_flexible(pending.key, message_type.is_flexible(pending.version))
        start = SIZE_BYTES + 4 + is_flexible
        message, end = decoder(message_type, pending.version)(frame, start, len(frame))
        if end != len(frame):
            self._world.fail(f"{len(frame) - end} bytes follow a {message_type.__name__}")
        self._world.trace_message("<", pending.client_id, correlation_id, message, pending.version)
        pending.deferred.callback(message)

    def _lost(self) -> None:
        pending, self._pending = self._pending, deque()
        for one in pending:
            one.deferred.errback(ConnectionLost("the connection was lost"))

    def _check_timeout(self) -> None:
        self._is_watched = False
        if not self._pending:
            return
        left_s = self._pending[0].sent_s + self._timeout_s - self._world.clock.seconds()
        if left_s <= 0:
            self._give_up(self._pending[0])
        else:
            self._is_watched = True
            self._world.clock.callLater(left_s, self._check_timeout)

    def _give_up(self, pending: _Pending) -> None:
        """Close the connection. On an intact connection the broker must respond within the timeout."""
        text = f"{pending.client_id}: no response in {self._timeout_s:.0f} s"
        if self._stream.is_intact and pending.sent_s >= self._world.quiet_s:
            api = response_class(pending.key).__name__.removesuffix("Response")
            self._world.fail(f"{text} to {api} v{pending.version} over an intact connection")
        else:
            self._world.trace(text)
        self.close()
