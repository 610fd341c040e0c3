"""One client connection: requests in, responses out, in order.

As in Kafka, one request of a connection is in progress at a time and the next is not looked at before the answer to
the last has left for the socket. That gives the order that clients rely on and bounds what a connection can hold.
"""

import logging
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.codec import MALFORMED, Splice
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.framing import SIZE_BYTES
from odradek.protocol.headers import PREFIX_BYTES, read_client_id, read_request_prefix
from odradek.protocol.schema import Message
from odradek.protocol.types import FileRegionLike
from odradek.server.apis import PRODUCE_KEY, BoundApi, Dispatch
from odradek.server.request import NO_RESPONSE, CloseConnection, RequestContext

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from odradek.server.produce_memo import ProduceMemo
    from odradek.server.transport import KafkaTransport

logger = logging.getLogger(__name__)

Piece = bytes | bytearray | memoryview | FileRegionLike

_pack_response_head: Final = struct.Struct(">ii").pack
_pack_size_into: Final = struct.Struct(">i").pack_into
_BACKLOG_LIMIT: Final = 16
_BACKLOG_LIMIT_BYTES: Final = 1048576
_CLIENT_ID_AT: Final = SIZE_BYTES + PREFIX_BYTES
_NO_ID: Final = b"\0" * (2**15 + 1)
"""Longer than any client id, and so equal to none."""


class Connection:
    """The state of one connection, between the transport and the handlers."""

    def __init__(self, transport: "KafkaTransport", dispatch: Dispatch, context: RequestContext) -> None:
        self._transport = transport
        self._dispatch = dispatch
        self._bound = dispatch.bound
        self._services = dispatch.services
        self._client_id_bytes = _NO_ID
        self._produce_memo: ProduceMemo | None = None
        self.context = context
        self._backlog: deque[bytes | memoryview] = deque()
        self._in_progress: Deferred[Any] | None = None
        self._blocked = False
        self._is_unblocking = False
        self._paused = False
        self._lost = False
        self._refusal: str | None = None

    def frame_received(self, frame: bytes) -> None:
        """One frame that came alone, as most do."""
        if self._blocked:
            self.frames_received([frame])
        else:
            self._request(frame)

    def frames_received(self, frames: Sequence[bytes | memoryview]) -> None:
        """Frames in the order of arrival, each with its length prefix."""
        if self._blocked:
            self._backlog.extend(frames)
        else:
            for number, frame in enumerate(frames, 1):
                self._request(frame)
                if self._blocked:
                    self._backlog.extend(frames[number:])
                    break
        if not self._paused and self._backlog and self._has_enough_to_do():
            self._paused = True
            self._transport.pause_reading()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress, or its response still on the way."""
        return self._blocked

    def output_held_back(self) -> None:
        """The socket did not take the last response whole: no further request until it has."""
        self._blocked = True

    def output_drained(self) -> None:
        """The last response has reached the socket."""
        if self._in_progress is None:
            self._unblock()

    def connection_lost(self) -> None:
        """The client is gone: drop what it asked."""
        self._lost = True
        self._backlog.clear()
        if self._in_progress is not None:
            self._in_progress.cancel()

    def refuse(self, why: str) -> None:
        """Close because of what the client sent, with the one line an operator needs."""
        logger.warning(
            "closing connection client=%s client_id=%s why=%r", self.context.client_host, self.context.client_id, why
        )
        self._lost = True
        self._backlog.clear()
        self._transport.close()

    def refuse_in_turn(self, why: str) -> None:
        """Close because of what the client sent, once what it sent before is answered."""
        if self._blocked:
            self._refusal = why
        elif not self._lost:
            self.refuse(why)

    def _unblock(self) -> None:
        self._blocked = False
        if self._is_unblocking:
            return
        self._is_unblocking = True
        try:
            while self._backlog and not self._blocked:
                self._request(self._backlog.popleft())
        finally:
            self._is_unblocking = False
        if self._refusal is not None and not self._blocked and not self._lost:
            self.refuse(self._refusal)
            return
        if self._paused and not self._blocked and not self._has_enough_to_do():
            self._paused = False
            self._transport.resume_reading()

    def _has_enough_to_do(self) -> bool:
        backlog = self._backlog
        return len(backlog) >= _BACKLOG_LIMIT or sum(map(len, backlog)) >= _BACKLOG_LIMIT_BYTES

    def _request(self, frame: bytes | memoryview) -> None:
        """Decode one request, let its handler answer, and send the answer if it is there already."""
        if self._lost:
            return
        unforeseen: Exception | None = None
        if self._produce_memo is not None:
            try:
                answer = self._produce_memo.answer(frame)
            except Exception as error:
                answer, unforeseen = None, error
            if answer is not None:
                self._answer_produce(frame, answer)
                return
        try:
            code, correlation_id, client_id_size = read_request_prefix(frame, SIZE_BYTES)
            api = self._bound.get(code) or self._dispatch.find(code)
            position = _CLIENT_ID_AT + client_id_size
            end = len(frame)
            # A client sends the same id with every request.
            if (
                frame[_CLIENT_ID_AT:position] == self._client_id_bytes
                and position <= end
                and not (api.flexible and frame[position])
            ):
                position += api.flexible
            else:
                position = self._read_client_id(frame, client_id_size, end, api)
            if api.unsupported_version:
                request = None
            else:
                request, position = api.decode(frame, position, end)
        except MALFORMED as error:
            self.refuse(f"malformed request: {error}")
            return
        self.context.api_version = api.version
        try:
            if unforeseen is not None:
                raise unforeseen
            response = api.handle(self._services, self.context, request)
        except Exception as error:
            self._answer_failure(api, correlation_id, request, error)
            return
        if isinstance(response, Message):
            self._respond(api, correlation_id, response)
            if api.key == PRODUCE_KEY and position == end:
                self._remember_produce(frame, request, response)
        elif response is not NO_RESPONSE:
            if api.key == PRODUCE_KEY and position == end:

                def remember(answer: Any) -> Any:
                    if isinstance(answer, Message):
                        self.context.api_version = api.version
                        # The topic may be gone by now.
                        with suppress(KafkaError):
                            self._remember_produce(frame, request, answer)
                    return answer

                response.addCallback(remember)
            self._wait_for(api, correlation_id, request, response)

    def _remember_produce(self, frame: bytes | memoryview, request: Any, response: Any) -> None:
        if self._produce_memo is None:
            # Imported when somebody produces: a start needs none of it.
            from odradek.server.produce_memo import ProduceMemo

            self._produce_memo = ProduceMemo(self._services)
        self._produce_memo.remember(frame, self.context, request, response)

    def _answer_produce(self, frame: bytes | memoryview, answer: Any) -> None:
        """Send what the memo answered, or wait for it."""
        if isinstance(answer, bytearray):
            if not self._transport.writer.send_one(answer):
                self._blocked = True
            return
        code, correlation_id, _ = read_request_prefix(frame, SIZE_BYTES)
        self._wait_for(self._bound[code], correlation_id, None, answer)

    def _read_client_id(self, frame: bytes | memoryview, size: int, end: int, api: BoundApi) -> int:
        """Note who asks; where the request's body begins."""
        client_id, position = read_client_id(frame, _CLIENT_ID_AT, end, size, api.flexible)
        self.context.client_id = client_id or ""
        # An empty id is not remembered: null would look the same.
        self._client_id_bytes = bytes(frame[_CLIENT_ID_AT : _CLIENT_ID_AT + size]) if size > 0 else _NO_ID
        return position

    def _wait_for(self, api: BoundApi, correlation_id: int, request: Any, deferred: "Deferred[Any]") -> None:
        self._in_progress = deferred
        self._blocked = True

        def answered(response: Any) -> None:
            self._in_progress = None
            if isinstance(response, bytearray):
                if not self._lost and not self._transport.writer.send_one(response):
                    self._blocked = True
            elif response is not NO_RESPONSE:
                self._respond(api, correlation_id, response)
            self._done_waiting()

        def failed(failure: "Failure") -> None:
            self._in_progress = None
            if self._lost:
                return
            self._answer_failure(api, correlation_id, request, failure.value or RuntimeError("no reason given"))
            self._done_waiting()

        deferred.addCallbacks(answered, failed)

    def _done_waiting(self) -> None:
        """Go on with the requests that came meanwhile.

        Not at once: what ended the wait may be another connection's append, whose own work is not done yet.
        """
        if self._backlog:
            self._transport.next_turn(self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._in_progress is None and self._transport.writer.is_idle and not self._lost:
            self._unblock()

    def _answer_failure(self, api: BoundApi, correlation_id: int, request: Any, error: BaseException) -> None:
        if isinstance(error, CloseConnection):
            self.refuse(str(error))
            return
        if not isinstance(error, KafkaError):
            self._dispatch.count_unexpected(api.name)
            logger.error(
                "unexpected error in a handler; the request was answered with UNKNOWN_SERVER_ERROR; please report it "
                "api=%s version=%d client_id=%s", api.name, self.context.api_version, self.context.client_id,
                exc_info=error,
            )
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        response = api.error_response(request, self.context.api_version, error)
        if response is None:
            self.refuse(f"{api.name} failed: {error}")
        else:
            self._respond(api, correlation_id, response)

    def _respond(self, api: BoundApi, correlation_id: int, response: Message) -> None:
        if self._lost:
            return
        out = bytearray(_pack_response_head(0, correlation_id))
        if api.flexible_response_header:
            out.append(0)
        splices: list[Splice] = []
        try:
            api.encode(response, out, splices)
        except Exception:
            logger.exception("a response could not be encoded; closing; please report it api=%s", api.name)
            self.refuse("response could not be encoded")
            return
        writer = self._transport.writer
        if not splices:
            _pack_size_into(out, 0, len(out) - SIZE_BYTES)
            if not writer.send_one(out):
                self._blocked = True
            return
        size = len(out) - SIZE_BYTES + sum(splice.region.size_bytes for splice in splices)
        _pack_size_into(out, 0, size)
        view = memoryview(out)
        pieces: list[Piece] = []
        start = 0
        for position, region in splices:
            if position > start:
                pieces.append(view[start:position])
            pieces.append(region)
            start = position
        if start < len(out):
            pieces.append(view[start:])
        if not writer.send(pieces):
            self._blocked = True
