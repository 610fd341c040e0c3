"""A client connection: requests and their responses, in order. It performs no I/O.

A transport passes frames and events to it; responses go to the transport's writer. As in Kafka, one request of a
connection is in progress at a time, and the next begins when the socket has accepted the previous response. This keeps
the order of responses and bounds the memory of a connection.

There is one exception. While a Produce request waits for the replicas only, the batches of a few Produce requests that
follow it are appended, if the produce fast path takes them: a follower then copies several batches with one fetch.
Their responses wait for their turn. A request that the fast path refuses is begun after all responses before it. It is
not tried again until then, because the check of its batch may take long.

The request of a frame that arrives alone begins at once if the scheduler allows it. All other frames are added to the
backlog, and the connection is queued in one of the scheduler's lines. The scheduler calls `begin_next` once for each
request.

A client that has exceeded a quota is throttled (KIP-219): its connection is muted, which means that no request is begun
for the throttle time of the last response. Muting is independent of the connection's state.

The state of the connection is one of `connection_state.ConnectionState`. There is no state for waiting: `begin_next`
does nothing while a request is in progress or the writer is not idle. When the request is complete (its Deferred has
fired) or the writer is idle again (`output_drained`), the connection is queued again. Thus no request is lost, whatever
the order of these events.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, cast

from twisted.internet.task import SchedulerStopped

from odradek.protocol.errors import shorten
from odradek.protocol.framing import API_KEY_POSITION, NO_API_KEY
from odradek.protocol.schema import Message
from odradek.server.dispatch import Dispatch
from odradek.server.measurements.request_times import BegunRequest, ConnectionTimes
from odradek.server.network.connection_state import TRANSITIONS, ConnectionEvent, ConnectionState
from odradek.server.network.connection_transport import ConnectionTransport
from odradek.server.network.request_pipeline import (
    AppendedProduce,
    LastResponse,
    Pipeline,
    PipelineChange,
    RequestInProgress,
    RequestOutcome,
    RequestOutput,
    RequestPipeline,
)
from odradek.server.request import CloseConnection, RequestContext
from odradek.server.work.clock import DelayedCall
from odradek.server.work.waits import shorten_wait

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Authenticate = Callable[[RequestPipeline, RequestContext], Pipeline]

_BACKLOG_LIMIT: Final = 16
_BACKLOG_LIMIT_BYTES: Final = 1048576
_APPENDED_LIMIT: Final = 7
"""Batches that are appended after that of the request in progress. A producer has five requests in flight."""

_LARGE_FRAME_BYTES: Final = 122_880
"""The response to a request in a larger frame is sent at once, because the request has already taken long."""

# Constants, because the access to a member of an enumeration is a slow call.
_OPEN: Final = ConnectionState.OPEN
_INPUT_ENDED: Final = ConnectionState.INPUT_ENDED
_REFUSED: Final = ConnectionState.REFUSED
_CLOSING: Final = ConnectionState.CLOSING
_CLOSED: Final = ConnectionState.CLOSED


class Connection:
    """The order of requests and responses of one connection.

    authenticate: returns the pipeline until the client is authenticated; None without SASL
    in_progress: the request that has begun and has no response yet
    is_authenticating: the client has to authenticate itself first

    Set by the scheduler:
    api_key, expected_s: API of the last request, and the expected time of the next request of this API
    is_in_line: the connection is in a line, so `begin_next` will be called
    level, sequence: the line and the position in it
    is_cost_guessed: the level was chosen by the cost of the API on other connections
    """

    def __init__(
        self,
        transport: ConnectionTransport,
        dispatch: Dispatch,
        context: RequestContext,
        authenticate: Authenticate | None = None,
    ) -> None:
        self._transport = transport
        self._scheduler = transport.scheduler
        self._dispatch = dispatch
        # None if nothing uses the times of requests.
        times = dispatch.request_times
        self._times = None if times is None else ConnectionTimes(times, context, transport)
        requests = RequestPipeline(dispatch, context)
        self._pipeline: Pipeline = requests if authenticate is None else authenticate(requests, context)
        self.is_authenticating = authenticate is not None
        self._state = _OPEN
        self.context = context
        self.in_progress: RequestInProgress | None = None
        # Later requests whose batches are appended: their responses, or what these wait for. Empty if no request is in
        # progress.
        self._appended: deque[bytearray | AppendedProduce] = deque()
        # The fast path refused the next request, which is not tried again before it is begun.
        self._is_next_refused = False
        self.api_key = -1
        self.expected_s = 0.0
        self.is_in_line = False
        self.is_cost_guessed = False
        self.level = self.sequence = 0
        self._backlog: deque[bytes | memoryview] = deque()
        self._is_paused = False
        # The end of the time for which the client is throttled (KIP-219).
        self._unmute_call: DelayedCall | None = None
        self._refusal = ""

    def measure(self) -> None:
        """Begin or end to measure the times of requests, because `Dispatch.request_times` has changed."""
        times = self._dispatch.request_times
        if times is None:
            self._end_measurement()
        elif self._times is None and self._transport is not _LOST:
            self._times = ConnectionTimes(times, self.context, self._transport)
            self._times.adopt(len(self._backlog), len(self._appended), self._scheduler.ended_s)

    @property
    def next_frame(self) -> bytes | memoryview | None:
        """The next request of the backlog; None if it is empty."""
        return self._backlog[0] if self._backlog else None

    @property
    def is_muted(self) -> bool:
        """True while no request is begun because the client is throttled."""
        return self._unmute_call is not None

    @property
    def next_api_key(self) -> int:
        """The API of the next request of the backlog; -1 if it is empty."""
        if not self._backlog:
            return -1
        frame = self._backlog[0]
        return frame[API_KEY_POSITION] if len(frame) > API_KEY_POSITION else NO_API_KEY

    def frame_received(self, frame: bytes | memoryview) -> None:
        """Accept one frame that arrived alone, which is the usual case."""
        if self._scheduler.is_direct and not self._backlog and self._transport.writer.is_idle:
            if self.in_progress is None and self._unmute_call is None:
                self._begin(frame)
                return
            if self._may_begin() and self._append(frame):
                return
        self.frames_received((frame,))

    def frames_received(self, frames: Sequence[bytes | memoryview]) -> None:
        """Accept frames in the order of arrival, each with its length prefix."""
        self._backlog.extend(frames)
        if self._times is not None:
            self._times.arrive(len(frames), self._scheduler.ended_s)
        self._get_in_line()
        if not self._is_paused and self._is_backlog_full():
            self._is_paused = True
            self._transport.pause_reading()

    def output_drained(self) -> None:
        """Begin the next request, because the socket has accepted all responses."""
        if self._times is not None:
            self._times.drained()
        self._get_in_line()

    def input_ended(self) -> None:
        """Close after the last response, as in Kafka. The client has closed its side, but may still read."""
        self.context.has_input_ended = True
        self._change_state(ConnectionEvent.INPUT_END)
        if self.in_progress is not None:
            shorten_wait(self.in_progress.deferred)
        self._get_in_line()

    def closing(self) -> None:
        """Begin no more requests, because the transport is closing. The request in progress may still complete."""
        self._clear_backlog()
        self._cancel_unmute()
        self._change_state(ConnectionEvent.TRANSPORT_CLOSE)

    def connection_lost(self) -> None:
        """Drop the client's requests, and all references to the transport and its buffers."""
        self._change_state(ConnectionEvent.LOSS)
        if self.context.on_lost is not None:
            self.context.on_lost(self.context)
        self._clear_backlog()
        self._cancel_unmute()
        self._transport = _LOST
        self._end_measurement()
        waiting, self.in_progress = self.in_progress, None
        if waiting is not None:
            try:
                waiting.deferred.cancel()
            except Exception:
                logger.exception("a request could not be cancelled; please report it api=%s", waiting.api.name)
        for appended in self._appended:
            if isinstance(appended, AppendedProduce):
                appended.produce.cancel()
        self._appended.clear()

    def refuse(self, why: str) -> None:
        """Close the connection because of malformed input or a failure, with one log line."""
        # A client that is not authenticated may have an id of 32 KB.
        client_id = shorten(self.context.client_id)
        logger.warning("closing connection client=%s client_id=%s why=%r", self.context.client_host, client_id, why)
        self._close()

    def refuse_in_turn(self, why: str) -> None:
        """Close the connection because of malformed input, after the responses to the requests that preceded it."""
        self._refusal = why
        self._change_state(ConnectionEvent.REFUSAL)
        self._get_in_line()

    def _close(self) -> None:
        self._change_state(ConnectionEvent.CLOSE)
        self._transport.close()

    def _change_state(self, event: ConnectionEvent) -> None:
        """Change the state because of an event."""
        self._state = TRANSITIONS[self._state, event]

    def _close_after_defect(self) -> None:
        """Close the connection after an unexpected exception, since the client would wait for its response forever."""
        logger.exception(
            "unexpected error outside a handler; closing the connection; please report it client=%s client_id=%s",
            self.context.client_host,
            self.context.client_id,
        )
        self._close()

    def _get_in_line(self) -> None:
        """Queue the connection in the scheduler if it has a request to begin, or may have to close."""
        if self._backlog or self._state is _INPUT_ENDED or self._state is _REFUSED:
            self._scheduler.add(self)

    def begin_next(self) -> int:
        """Begin the next request of the backlog, unless it has to wait. No other method takes a request from it.

        Return the API of the following request if that request may begin too, else -1.
        """
        try:
            if not self._transport.writer.is_idle or self._state is _CLOSED:
                return -1
            if self._unmute_call is not None:
                if not self._backlog and self.in_progress is None:
                    self._close_if_ended()
                return -1
            if self._backlog and self._may_begin():
                if self._times is not None:
                    self._times.take()
                self._begin_or_append(self._backlog.popleft())
                if self._state is _CLOSED:  # type: ignore[comparison-overlap] # `_begin` may have closed it
                    return -1
                if self._is_paused and not self._is_backlog_full():
                    self._is_paused = False
                    self._transport.resume_reading()
            # Also an append that was refused may have completed the request in progress: the disk may have failed.
            if self._backlog or self.in_progress is not None:
                return self.next_api_key if self._may_begin() else -1
            self._close_if_ended()
        except Exception:
            self._close_after_defect()
        return -1

    def _may_begin(self) -> bool:
        """Return whether the next request does not have to wait for the requests in progress."""
        earlier = self.in_progress
        if self._unmute_call is not None:
            return False
        return earlier is None or (
            earlier.is_appended and len(self._appended) < _APPENDED_LIMIT and not self._is_next_refused
        )

    def _begin_or_append(self, frame: bytes | memoryview) -> None:
        """Take the next request, which may begin; put it back if the fast path refuses it."""
        if self.in_progress is None:
            self._is_next_refused = False
            self._begin(frame)
        elif not self._append(frame):
            self._backlog.appendleft(frame)
            if self._times is not None:
                self._times.put_back()

    def _append(self, frame: bytes | memoryview) -> bool:
        """Append the batch of the next request, which may begin; return False if the fast path refuses it."""
        began_s = self._scheduler.ended_s
        appended = self._pipeline.append_next(frame)
        if appended is None:
            self._is_next_refused = True
            self._scheduler.end_request(self, frame, has_begun=False)
            return False
        self._appended.append(appended)
        self._scheduler.end_request(self, frame)
        if self._times is not None:
            self._times.append(self._times.begin(frame, began_s, self._scheduler.ended_s))
        if self.in_progress is None and self._state is not _CLOSED:
            # The append has completed the earlier request.
            self._call(self._send_appended)
        return True

    def _begin(self, frame: bytes | memoryview) -> None:
        """Begin a request. All exceptions are handled here."""
        began_s = self._scheduler.ended_s
        throttle_ms = 0
        try:
            output = self._pipeline.begin(frame)
            if isinstance(output, bytearray):
                self._transport.writer.send_one(output)
            elif output is not None:
                self._send(output)
            if len(frame) > _LARGE_FRAME_BYTES:
                self._transport.writer.flush()
            if self.context.throttle_ms:
                throttle_ms = self._mute()
        except CloseConnection as reason:
            self.refuse(str(reason))
        except SchedulerStopped:
            self._close()
        except Exception:
            self._close_after_defect()
        self._scheduler.end_request(self, frame)
        if self._times is not None:
            begun = self._times.begin(frame, began_s, self._scheduler.ended_s)
            if begun is not None:
                if self.in_progress is None:
                    self._times.respond(begun)
                else:
                    self.in_progress.begun = begun
            if throttle_ms:
                self._times.throttle(throttle_ms)

    def _mute(self) -> int:
        """Begin no request for the throttle time of the last response (KIP-219), and return that.

        The transport still reads, until the backlog is full, so that the end of the connection is noticed.
        """
        throttle_ms, self.context.throttle_ms = self.context.throttle_ms, 0
        if self._state is not _CLOSED and self._state is not _CLOSING:
            self._cancel_unmute()
            self._unmute_call = self._dispatch.services.reactor.callLater(throttle_ms / 1000, self._unmute)
        return throttle_ms

    def _unmute(self) -> None:
        self._unmute_call = None
        self._get_in_line()

    def _cancel_unmute(self) -> None:
        if self._unmute_call is not None:
            self._unmute_call.cancel()
            self._unmute_call = None

    def _close_if_ended(self) -> None:
        """Close the connection if its input was malformed or has ended. Called with an empty backlog."""
        if not self._transport.writer.is_idle:
            return
        if self._state is _REFUSED:
            self.refuse(self._refusal)
        elif self._state is _INPUT_ENDED:
            writer = self._transport.writer
            writer.flush()
            if writer.is_idle:
                self._close()

    def _end_measurement(self) -> None:
        times, self._times = self._times, None
        if times is not None:
            times.release()

    def _clear_backlog(self) -> None:
        self._backlog.clear()
        if self._times is not None:
            self._times.clear()

    def _is_backlog_full(self) -> bool:
        backlog = self._backlog
        return len(backlog) >= _BACKLOG_LIMIT or sum(map(len, backlog)) >= _BACKLOG_LIMIT_BYTES

    def _wait_for(self, waiting: RequestInProgress) -> None:
        self.in_progress = waiting
        waiting.deferred.addBoth(self._on_outcome, waiting)

    def _on_outcome(self, outcome: RequestOutcome, waiting: RequestInProgress) -> None:
        """Send the response of the request in progress, whose Deferred has fired."""
        self.in_progress = None
        if self._state is _CLOSED:
            return
        self._call(self._send_outcome, outcome, waiting)
        if self.context.throttle_ms:
            throttle_ms = self._mute()
            if self._times is not None:
                self._times.throttle(throttle_ms)
        # The next request begins later: the Deferred may have fired within another connection's append.
        self._get_in_line()

    def _call(self, step: Callable[Arguments, None], *arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        """Take a step. All exceptions are handled here."""
        try:
            step(*arguments, **named)
        except CloseConnection as reason:
            self.refuse(str(reason))
        except SchedulerStopped:
            self._close()
        except Exception:
            self._close_after_defect()

    def _send_outcome(self, outcome: RequestOutcome, waiting: RequestInProgress) -> None:
        """Send the response of the request in progress, and those of appended batches that are available."""
        if isinstance(outcome, bytearray):
            self._transport.writer.send_one(outcome)
        elif isinstance(outcome, Message) and waiting.frame is None:
            self._send(self._pipeline.encode(waiting.api, waiting.correlation_id, outcome))
        else:
            self._send(self._pipeline.finish(outcome, waiting))
        if self._times is not None:
            self._continue(self._times, waiting.begun)
        if self._appended:
            self._send_appended()

    def _send_appended(self) -> None:
        """Send the responses of appended batches in order, up to the first that waits."""
        appended = self._appended
        while appended and self.in_progress is None:
            first = appended.popleft()
            self._send(first if isinstance(first, bytearray) else self._pipeline.respond(first))
            if self._times is not None:
                self._continue(self._times, self._times.take_appended())

    def _continue(self, times: ConnectionTimes, begun: BegunRequest | None) -> None:
        """End the times of a request that has waited, or keep them while its response is encoded in slices."""
        if begun is None:
            return
        if self.in_progress is None:
            times.end_wait(begun, self._dispatch.services.reactor.seconds())
        else:
            self.in_progress.begun = begun

    def _send(self, output: RequestOutput) -> None:
        """Send a response, or wait for it."""
        if isinstance(output, bytearray):
            self._transport.writer.send_one(output)
        elif isinstance(output, list):
            self._transport.writer.send(output)
        elif isinstance(output, RequestInProgress):
            self._wait_for(output)
        elif isinstance(output, PipelineChange):
            self._change_pipeline(output)
        elif output is not None:
            self._close_with(output)

    def _change_pipeline(self, change: PipelineChange) -> None:
        self._pipeline = change.pipeline
        self.is_authenticating = False
        self._transport.limit_frames(change.max_frame_bytes)
        self._send(change.output)

    def _close_with(self, last: LastResponse) -> None:
        """Close the connection after its last response. Requests that have arrived are dropped."""
        self._clear_backlog()
        if last.response is not None:
            self._transport.writer.send_one(last.response)
        self.refuse(last.why)


class _LostTransport:
    """Transport of a lost connection, whose methods have no effect."""

    def __init__(self) -> None:
        self.writer = self
        self.is_idle = False

    def close(self) -> None:
        """Do nothing."""


_LOST: Final = cast(ConnectionTransport, _LostTransport())
