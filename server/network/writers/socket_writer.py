"""The writer of a plaintext connection.

`SocketWriter` sends responses within the same reactor iteration, and queues the bytes that the socket does not accept;
`sendfile` sends record bytes from the file.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.interfaces import IPullProducer
from zope.interface import implementer

from odradek.log.storage.filesystem import FileRegion
from odradek.server.network.connection_transport import Piece, TcpTransport, count_bytes
from odradek.server.network.writers.region_loader import FileSender, RegionLoader, early_end_error
from odradek.server.network.writers.write_coalescer import WriteCoalescer

if TYPE_CHECKING:
    from odradek.server.measurements.socket_counts import SocketCounts

logger = logging.getLogger(__name__)

ITERATION_LIMIT_BYTES: Final = 4194304
"""Bytes that one connection may send in one reactor iteration, so that a fast reader does not starve the others."""

MIN_PIECE_BYTES: Final = 8_192
"""Smallest size that is counted for a piece: a fetch of 10,000 partitions with one record each has 20,000 pieces, each
of which is a system call. An iteration sends up to 512 of them."""

_COPIED_REGION_BYTES: Final = 8_192
"""File regions up to this size are copied: one read and one `send` cost less than two samples and `sendfile`, and the
kernel may put several regions into one packet."""

_COPIED_PART_BYTES: Final = 65_536
"""Bytes of a larger region that are copied at once while the connection reads from the disk. What the socket does not
accept is read again."""

_PENDING_LIMIT_BYTES: Final = 262_144
"""Total size from which on small responses are sent at once instead of at the end of the reactor iteration.

A read of `READ_BYTES` may contain thousands of requests. Without a limit all their responses would be in memory before
the first is sent. With it, a response that the socket does not accept delays the next request."""


@implementer(IPullProducer)
class SocketWriter:
    """Sends pieces, bytes and file regions, in order.

    Small responses wait for the end of the reactor iteration (`WriteCoalescer`). While the socket does not accept all
    bytes, or a file region is read from the disk, the writer is registered as the transport's pull producer: Twisted's
    own write buffer stays empty, and only this object writes to the socket.

    A connection reads `is_idle` to determine whether it has to wait. `on_drained` ends a wait: it is called at a write
    event of the reactor, when the queue has become empty, never from within `send_one`, `send` or `flush`.

    has_progressed: set when the socket accepts bytes; `ConnectionRegistry` resets it
    files: sends the file regions
    counts: of the listener; None if they are not used, or another writer counts
    """

    def __init__(
        self,
        transport: TcpTransport,
        write_coalescer: WriteCoalescer,
        files: FileSender,
        on_drained: Callable[[], None],
        counts: "SocketCounts | None" = None,
    ) -> None:
        self.has_progressed = False
        self._counts = counts
        self._transport = transport
        self._write_coalescer = write_coalescer
        self._send_file = files.send_file
        self._loader = RegionLoader(files, self._continue)
        self._on_drained = on_drained
        self._socket: socket.socket = transport.getHandle()
        self._pending: bytearray | None = None
        self._queue: deque[Piece] = deque()
        self._region_sent_bytes = 0
        self._is_registered = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Return whether the socket has accepted all bytes, except those that wait for the end of the iteration.

        Always False after the connection has failed.
        """
        return not self._queue and not self._is_closed

    @property
    def is_loading(self) -> bool:
        """True while a part of a file region is read from the disk."""
        return self._loader.is_loading

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not accepted: at most `_PENDING_LIMIT_BYTES` and two responses."""
        return len(self._pending or b"") - self._region_sent_bytes + count_bytes(self._queue)

    def send_one(self, data: bytearray) -> None:
        """Send a response of one piece at the end of the iteration."""
        if self._counts is not None:
            self._counts.responses += 1
        if self._queue:
            self._queue.append(data)
        elif self._pending is not None:
            self._pending += data
            if len(self._pending) >= _PENDING_LIMIT_BYTES:
                self.flush()
        else:
            self._pending = data
            self._write_coalescer.add(self)

    def flush(self) -> None:
        """Send the responses that wait for the end of the iteration."""
        data = self._pending
        if data is None or self._is_closed:
            return
        self._pending = None
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        if sent:
            self.has_progressed = True
            if self._counts is not None:
                self._counts.sent_bytes += sent
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self.wait_for_room()

    def send(self, pieces: list[Piece]) -> None:
        """Send a response of several pieces."""
        if self._is_closed:
            return
        if self._counts is not None:
            self._counts.responses += 1
        if self._pending is not None:
            self._queue.append(self._pending)
            self._pending = None
        self._queue.extend(pieces)
        if not self._is_registered and not self._send_queue():
            self.wait_for_room()

    def end(self) -> None:
        """Do nothing: the end of plaintext needs no bytes."""

    def abort(self) -> None:
        """Drop unsent bytes, and close the connection at once."""
        self.close()
        self._transport.abortConnection()

    def close(self) -> None:
        """Drop unsent bytes: the connection is closed, or about to be closed."""
        self._is_closed = True
        self._queue.clear()
        self._pending = None
        self._loader.close()
        # The owner of the function may refer to this object, and only the garbage collector would free such a cycle.
        self._on_drained = _do_nothing

    def resumeProducing(self) -> None:
        """Twisted: the socket is writable.

        Twisted also calls this from within `registerProducer`, when the socket may not be writable. That call only
        registers for write events.
        """
        if not self._is_registered or not self._send_queue():
            if not self._is_closed and not self._loader.is_loading:
                self._transport.startWriting()
            return
        self._is_registered = False
        self._transport.unregisterProducer()
        self._on_drained()

    def stopProducing(self) -> None:
        """Twisted: the connection is closed."""
        self.close()

    def wait_for_room(self) -> None:
        """Call `on_drained` at a later write event of the reactor, also if nothing is queued."""
        if not self._is_registered and not self._is_closed:
            self._transport.registerProducer(self, False)
            self._is_registered = True

    def _send_queue(self) -> bool:
        """Send until the queue is empty; return False if the socket, the disk, the limit or an error prevents it."""
        queue, counts = self._queue, self._counts
        budget_bytes = ITERATION_LIMIT_BYTES
        try:
            while queue:
                if budget_bytes <= 0:
                    return False
                piece = queue[0]
                flags = socket.MSG_MORE if len(queue) > 1 else 0
                if isinstance(piece, (bytes, bytearray, memoryview)):
                    sent, offered = self._socket.send(piece, flags), len(piece)
                    if sent < offered:
                        queue[0] = memoryview(piece)[sent:]
                    else:
                        queue.popleft()
                else:
                    sent, offered = self._send_region(piece, flags)  # type: ignore[arg-type] # of a log
                    if self._loader.is_loading:
                        return False
                if counts is not None:
                    counts.sent_bytes += sent
                self.has_progressed = True
                if sent < offered:
                    return False
                budget_bytes -= max(sent, MIN_PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _send_region(self, region: FileRegion, flags: int) -> tuple[int, int]:
        """Send a part of the region at the head of the queue once; return the bytes that were sent and those offered.

        Both are 0 if the region is being loaded.
        """
        already = self._region_sent_bytes
        rest_bytes = region.size_bytes - already
        if rest_bytes <= _COPIED_REGION_BYTES or self._loader.is_reading():
            records = self._loader.read(region, already, min(rest_bytes, _COPIED_PART_BYTES))
            if records is None:
                return 0, 0
            sent, offered = self._socket.send(records, flags), len(records)
        else:
            offered = self._loader.readable_bytes(region, already)
            if self._loader.is_loading:
                return 0, 0
            sent = offered = self._send_file(self._socket, region.file, region.position + already, offered)
            if not sent:
                raise early_end_error(rest_bytes)
        self._region_sent_bytes += sent
        if self._region_sent_bytes == region.size_bytes:
            self._region_sent_bytes = 0
            self._loader.end_region()
            self._queue.popleft()
        return sent, offered

    def _continue(self) -> None:
        """Continue at the next write event, because a part of a file region is loaded."""
        if not self._is_closed:
            self._transport.startWriting()

    def _fail(self, error: OSError) -> None:
        logger.debug("write failed error=%s", error)
        self.abort()


def _do_nothing() -> None:
    """Replaces `on_drained` when the connection is closed."""
