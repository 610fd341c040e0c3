"""One client connection: requests in, responses out, in order.

As in Kafka, one request of a connection is in progress at a time, and the next is not begun before the socket has taken
the response to the last. That gives the order that clients rely on and bounds the memory of a connection.

A frame that arrives alone is begun at once if the scheduler allows it. All others go through the backlog: the
connection waits in the scheduler's line, which calls `begin_next` once for each request.

Whether the next request has to wait is never stored. It follows from what is pending: a request in progress, or a
writer that is not idle. What ends either (the handler's Deferred, the writer's `on_drained`) only puts the connection
in the line, so that no order of events can leave a request behind.
"""

import logging
import struct
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.protocol.codec import MALFORMED, SMALL_MESSAGE_BYTES, LargeMessageError, Splice
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.framing import API_KEY_AT, NO_API_KEY, SIZE_BYTES
from odradek.protocol.headers import PREFIX_BYTES, read_client_id, read_request_prefix
from odradek.protocol.schema import Message
from odradek.protocol.types import FileRegionLike
from odradek.server.apis import PRODUCE_KEY
from odradek.server.dispatch import BoundApi, Dispatch, HandlerReply
from odradek.server.network.large_messages import (
    EncodedResponse,
    encode_in_steps,
    refuse_malformed,
    report_encoding_failure,
    response_head,
    run_first_steps,
)
from odradek.server.request import CloseConnection, EncodedBody, NoResponse, RequestContext
from odradek.server.work.waits import AnyDeferred, hasten_wait

if TYPE_CHECKING:
    from odradek.server.network.produce_fast_path import PendingProduce, ProduceMemo
    from odradek.server.network.transport import KafkaTransport

logger = logging.getLogger(__name__)

Piece = bytes | bytearray | memoryview | FileRegionLike
Answer = Message | EncodedBody | EncodedResponse | bytearray | NoResponse | Failure
"""The results of Deferreds that a request waits for."""

_pack_response_head: Final = struct.Struct(">ii").pack
_pack_size_into: Final = struct.Struct(">i").pack_into
_BACKLOG_LIMIT: Final = 16
_BACKLOG_LIMIT_BYTES: Final = 1048576
_LARGE_FRAME_BYTES: Final = 122_880
"""A request of this size takes a while: its response does not wait for those of other connections."""

_CLIENT_ID_AT: Final = SIZE_BYTES + PREFIX_BYTES
_NO_ID: Final = b"\0" * (2**15 + 1)
"""Longer than any client id, and so equal to none."""


class RequestInProgress:
    """A request whose response is still to come. `frame` is set if the produce memo may remember it."""

    __slots__ = ("api", "correlation_id", "deferred", "frame", "request")

    def __init__(
        self,
        api: BoundApi,
        correlation_id: int,
        request: Message | None,
        deferred: AnyDeferred,
        frame: bytes | memoryview | None,
    ) -> None:
        self.api = api
        self.correlation_id = correlation_id
        self.request = request
        self.deferred = deferred
        self.frame = frame


class Connection:
    """The state of one connection, between the transport and the handlers.

    in_progress: the request that a handler has not answered yet
    api_key, expected_s, is_in_line, level, sequence, is_cost_guessed: the scheduler's: API of the last request, and the
        time that another is expected to take; whether `begin_next` is going to be called, the place in the line, and
        whether that follows from costs on other connections
    """

    def __init__(self, transport: "KafkaTransport", dispatch: Dispatch, context: RequestContext) -> None:
        self._transport = transport
        self._scheduler = transport.scheduler
        self._dispatch = dispatch
        self._bound = dispatch.bound
        self._services = dispatch.services
        self._client_id_bytes = _NO_ID
        self._produce_memo: ProduceMemo | None = None
        self.context = context
        self.in_progress: RequestInProgress | None = None
        self.api_key = -1
        self.expected_s = 0.0
        self.is_in_line = False
        self.is_cost_guessed = False
        self.level = self.sequence = 0
        self._backlog: deque[bytes | memoryview] = deque()
        self._is_paused = False
        self._is_closed = False
        self._has_input_ended = False
        self._refusal: str | None = None

    @property
    def next_frame(self) -> bytes | memoryview | None:
        """The request that is begun next, if one has arrived."""
        return self._backlog[0] if self._backlog else None

    @property
    def next_api_key(self) -> int:
        """The API of the request that is begun next; -1 if there is none."""
        if not self._backlog:
            return -1
        frame = self._backlog[0]
        return frame[API_KEY_AT] if len(frame) > API_KEY_AT else NO_API_KEY

    def frame_received(self, frame: bytes | memoryview) -> None:
        """One frame that came alone, as most do."""
        if (
            self._scheduler.is_direct
            and not self._backlog
            and self.in_progress is None
            and self._transport.writer.is_idle
        ):
            self._begin(frame)
        else:
            self.frames_received((frame,))

    def frames_received(self, frames: Sequence[bytes | memoryview]) -> None:
        """Frames in the order of arrival, each with its length prefix."""
        self._backlog.extend(frames)
        self._get_in_line()
        if not self._is_paused and self._has_enough_to_do():
            self._is_paused = True
            self._transport.pause_reading()

    def output_drained(self) -> None:
        """The socket has taken all responses."""
        self._get_in_line()

    def input_ended(self) -> None:
        """The client sends nothing more, but may read: close when everything is answered, as Kafka does."""
        self._has_input_ended = self.context.has_input_ended = True
        if self.in_progress is not None:
            hasten_wait(self.in_progress.deferred)
        self._get_in_line()

    def closing(self) -> None:
        """The connection is about to be closed: begin no further request. One in progress may still be answered."""
        self._backlog.clear()
        self._refusal = None
        self._has_input_ended = False

    def connection_lost(self) -> None:
        """The client is gone: drop its requests, and all that would keep the transport and its buffers alive."""
        self._is_closed = True
        self._backlog.clear()
        self._transport = _LOST
        waiting, self.in_progress = self.in_progress, None
        if waiting is not None:
            try:
                waiting.deferred.cancel()
            except Exception:
                logger.exception("a request could not be cancelled; please report it api=%s", waiting.api.name)

    def refuse(self, why: str) -> None:
        """Close because of what the client sent, with the one line an operator needs."""
        logger.warning(
            "closing connection client=%s client_id=%s why=%r", self.context.client_host, self.context.client_id, why
        )
        self._close()

    def refuse_in_turn(self, why: str) -> None:
        """Close because of what the client sent, once what it sent before is answered."""
        self._refusal = why
        self._get_in_line()

    def _close(self) -> None:
        self._is_closed = True
        self._transport.close()

    def _close_after_defect(self) -> None:
        """Called where nothing is expected to fail: without the connection the client would wait for ever."""
        logger.exception(
            "unexpected error outside of a handler; closing the connection; please report it client=%s client_id=%s",
            self.context.client_host,
            self.context.client_id,
        )
        self._close()

    def _get_in_line(self) -> None:
        """Have the next request begun, or the connection closed, when its turn comes and nothing holds it back."""
        if self._backlog or self._refusal is not None or self._has_input_ended:
            self._scheduler.add(self)

    def begin_next(self) -> int:
        """Begin the next request of the backlog, unless it has to wait. The only place that takes one.

        Return the API of the one after it if that may be begun, else -1.
        """
        try:
            if self.in_progress is not None or not self._transport.writer.is_idle or self._is_closed:
                return -1
            backlog = self._backlog
            if backlog:
                self._begin(backlog.popleft())
                if self._is_closed:
                    return -1
                if self._is_paused and not self._has_enough_to_do():
                    self._is_paused = False
                    self._transport.resume_reading()
                if self.in_progress is not None:
                    return -1
            if backlog:
                frame = backlog[0]
                return frame[API_KEY_AT] if len(frame) > API_KEY_AT else NO_API_KEY
            self._end_if_asked()
        except Exception:
            self._close_after_defect()
        return -1

    def _begin(self, frame: bytes | memoryview) -> None:
        """Begin a request; whatever goes wrong ends here."""
        try:
            self._request(frame)
            if len(frame) > _LARGE_FRAME_BYTES:
                self._transport.writer.flush()
        except Exception:
            self._close_after_defect()
        self._scheduler.account(self, frame)

    def _end_if_asked(self) -> None:
        """Nothing is left to begin: close if what the client sent asks for it."""
        if not self._transport.writer.is_idle:
            return
        if self._refusal is not None:
            self.refuse(self._refusal)
        elif self._has_input_ended:
            writer = self._transport.writer
            writer.flush()
            if writer.is_idle:
                self._close()

    def _has_enough_to_do(self) -> bool:
        backlog = self._backlog
        return len(backlog) >= _BACKLOG_LIMIT or sum(map(len, backlog)) >= _BACKLOG_LIMIT_BYTES

    def _request(self, frame: bytes | memoryview) -> None:
        """Decode one request, call its handler, and send the response if it is there already."""
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
            elif end - position <= SMALL_MESSAGE_BYTES:
                request, position = api.decode(frame, position, end)
            else:
                steps = api.decode_in_steps(frame, position)
                decoded = run_first_steps(steps)
                if decoded is None:
                    self._decode_in_slices(api, correlation_id, frame, steps, unforeseen)
                    return
                request, position = decoded
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
        is_memorable = api.key == PRODUCE_KEY and position == end
        if isinstance(response, Message):
            self._respond(api, correlation_id, response)
            if is_memorable:
                self._remember_produce(frame, request, response)
        elif not isinstance(response, NoResponse):
            memorable = frame if is_memorable else None
            self._wait_for(RequestInProgress(api, correlation_id, request, response, memorable), response)

    def _decode_in_slices(
        self,
        api: BoundApi,
        correlation_id: int,
        frame: bytes | memoryview,
        steps: Generator[None, None, tuple[Message, int]],
        unforeseen: Exception | None,
    ) -> None:
        """Decode what is left of a large request, then call its handler."""
        self.context.api_version = api.version
        decoding = self._services.slices.run(steps)
        waiting = RequestInProgress(api, correlation_id, None, decoding, None)

        def decoded(result: tuple[Message, int]) -> HandlerReply:
            waiting.request, end = result
            if api.key == PRODUCE_KEY and end == len(frame):
                waiting.frame = frame
            if unforeseen is not None:
                raise unforeseen
            return api.handle(self._services, self.context, waiting.request)

        self._wait_for(waiting, decoding.addCallbacks(decoded, refuse_malformed))

    def _remember_produce(self, frame: bytes | memoryview, request: Message | None, response: Message) -> None:
        if self._produce_memo is None:
            # Imported when somebody produces: a start needs none of it.
            from odradek.server.network.produce_fast_path import ProduceMemo

            self._produce_memo = ProduceMemo(self._services)
        # The topic may be gone by now.
        with suppress(KafkaError):
            self._produce_memo.remember(frame, self.context, request, response)  # type: ignore[arg-type] # of Produce

    def _answer_produce(self, frame: bytes | memoryview, answer: "bytearray | PendingProduce") -> None:
        """Send the memo's response, or wait for it."""
        if isinstance(answer, bytearray):
            self._transport.writer.send_one(answer)
            return
        code, correlation_id, _ = read_request_prefix(frame, SIZE_BYTES)
        api = self._dispatch.find(code)
        waiting = RequestInProgress(api, correlation_id, answer.request, answer.response, None)
        self._wait_for(waiting, answer.response)

    def _read_client_id(self, frame: bytes | memoryview, size: int, end: int, api: BoundApi) -> int:
        """Note who asks; where the request's body begins."""
        client_id, position = read_client_id(frame, _CLIENT_ID_AT, end, size, api.flexible)
        self.context.client_id = client_id or ""
        # An empty id is not remembered: null would look the same.
        self._client_id_bytes = bytes(frame[_CLIENT_ID_AT : _CLIENT_ID_AT + size]) if size > 0 else _NO_ID
        return position

    def _wait_for(self, waiting: RequestInProgress, outcome: AnyDeferred) -> None:
        self.in_progress = waiting
        outcome.addBoth(self._answered, waiting)

    def _answered(self, outcome: Answer, waiting: RequestInProgress) -> None:
        """The handler's Deferred has fired: send the response."""
        self.in_progress = None
        if self._is_closed:
            return
        try:
            if isinstance(outcome, Failure):
                error = outcome.value or RuntimeError("a failure without an exception")
                self._answer_failure(waiting.api, waiting.correlation_id, waiting.request, error)
            elif isinstance(outcome, bytearray):
                self._transport.writer.send_one(outcome)
            elif isinstance(outcome, EncodedResponse):
                self._send(*outcome)
            elif isinstance(outcome, EncodedBody):
                out = response_head(waiting.api, waiting.correlation_id)
                out += outcome.body
                self._send(out, [])
            elif not isinstance(outcome, NoResponse):
                self._respond(waiting.api, waiting.correlation_id, outcome)
                if waiting.frame is not None:
                    self._remember_produce(waiting.frame, waiting.request, outcome)
        except Exception:
            self._close_after_defect()
        # Not begun at once: the Deferred may have fired within another connection's append, which must end first.
        self._get_in_line()

    def _answer_failure(
        self, api: BoundApi, correlation_id: int, request: Message | None, error: BaseException
    ) -> None:
        if isinstance(error, CloseConnection):
            self.refuse(str(error))
            return
        if isinstance(error, SchedulerStopped):
            # The broker stops: nobody can tell how far the request came.
            self._close()
            return
        if not isinstance(error, KafkaError):
            self._dispatch.count_unexpected(api.name)
            logger.error(
                "unexpected error in a handler; the request was answered with UNKNOWN_SERVER_ERROR; please report it "
                "api=%s version=%d client_id=%s", api.name, api.version, self.context.client_id, exc_info=error,
            )
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        response = api.error_response(request, api.version, error)
        if response is None:
            self.refuse(f"{api.name} failed: {error}")
        else:
            self._respond(api, correlation_id, response)

    def _respond(self, api: BoundApi, correlation_id: int, response: Message) -> None:
        out = bytearray(_pack_response_head(0, correlation_id))
        if api.flexible_response_header:
            out.append(0)
        splices: list[Splice] = []
        try:
            api.encode(response, out, splices)
        except LargeMessageError:
            encoding = self._services.slices.run(encode_in_steps(api, correlation_id, response))
            self._wait_for(RequestInProgress(api, correlation_id, None, encoding, None), encoding)
        except Exception:
            self.refuse(report_encoding_failure(api))
        else:
            if splices:
                self._send(out, splices)
            else:
                _pack_size_into(out, 0, len(out) - SIZE_BYTES)
                self._transport.writer.send_one(out)

    def _send(self, out: bytearray, splices: list[Splice]) -> None:
        """Send an encoded response; its first bytes are overwritten with its size."""
        writer = self._transport.writer
        if not splices:
            _pack_size_into(out, 0, len(out) - SIZE_BYTES)
            writer.send_one(out)
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
        writer.send(pieces)


class _LostTransport:
    """In place of the transport of a connection that is gone: takes nothing, and does nothing."""

    def __init__(self) -> None:
        self.writer = self
        self.is_idle = False

    def close(self) -> None:
        """Nothing is left to close."""


_LOST: Final = cast("KafkaTransport", _LostTransport())
