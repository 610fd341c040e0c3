"""Request pipeline of one connection: decode, stages (authorization), handler, quotas, encode.

The produce fast path is a cached result of decoder and authorization for repeated requests. It is not used for an API
with another stage, nor for clients with quotas that apply to them.

Quotas (KIP-219): a request of a client with a quota has a charge, `RequestContext.charge`. It is settled with the
response, which gets the throttle time; the connection is muted afterwards.
"""

import logging
import struct
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.protocol.codec import MALFORMED
from odradek.protocol.codec_source import LargeMessageError, Splice
from odradek.protocol.decoder_source import STEP_BYTES
from odradek.protocol.encoder_source import SMALL_MESSAGE_BYTES
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.framing import SIZE_BYTES
from odradek.protocol.headers import PREFIX_BYTES, read_client_id, read_request_prefix
from odradek.protocol.schema import Message
from odradek.server.dispatch import BoundApi, Dispatch, HandlerReply
from odradek.server.network.connection_transport import Piece
from odradek.server.network.large_messages import (
    VERY_LARGE_BYTES,
    EncodedResponse,
    begin_response,
    encode_in_steps,
    refuse_malformed,
    release_in_steps,
    report_encoding_failure,
)
from odradek.server.request import CloseConnection, EncodedBody, NoResponse, RequestContext
from odradek.server.work.slices import run_first_steps
from odradek.server.work.waits import AnyDeferred

if TYPE_CHECKING:
    from odradek.server.measurements.request_times import BegunRequest
    from odradek.server.network.produce_fast_path import AuthorizedFastPath, PendingProduce, ProduceFastPath
    from odradek.server.quotas.charge import RequestCharge
    from odradek.server.quotas.client_charges import ClientCharges
    from odradek.server.quotas.client_quotas import ClientQuotas

logger = logging.getLogger(__name__)

_pack_response_head: Final = struct.Struct(">ii").pack
_pack_size_into: Final = struct.Struct(">i").pack_into
_CLIENT_ID_AT: Final = SIZE_BYTES + PREFIX_BYTES
_FIRST_STEPS: Final = SMALL_MESSAGE_BYTES // STEP_BYTES
"""Steps that decode a request that is large only due to its records."""

_COPIED_RESPONSE_BYTES: Final = 32 << 10
"""Up to this size one `send` of a copy is cheaper than `sendfile` between two `send` calls, by a third at 16 KB."""

_NO_ID: Final = b"\0" * (2**15 + 1)
"""Longer than any client id, and therefore equal to none."""

class LastResponse(NamedTuple):
    """The end of a connection: a response, if there is one, and the reason for the log."""

    response: bytearray | None
    why: str


RequestOutcome = Message | EncodedBody | EncodedResponse | LastResponse | bytearray | NoResponse | Failure
"""The results of Deferreds that a request waits for."""


class RequestInProgress:
    """A request without a response yet.

    frame: set if its head may be added to the produce fast path
    is_appended: only the replicas or a sync are waited for, so that batches of later requests may be appended
    begun: its times until the wait; None while nothing uses them
    """

    __slots__ = ("api", "begun", "correlation_id", "deferred", "frame", "is_appended", "request")

    def __init__(
        self,
        api: BoundApi,
        correlation_id: int,
        request: Message | None,
        deferred: AnyDeferred,
        frame: bytes | memoryview | None,
        *,
        is_appended: bool = False,
    ) -> None:
        self.is_appended = is_appended
        self.api = api
        self.correlation_id = correlation_id
        self.request = request
        self.deferred = deferred
        self.frame = frame
        self.begun: BegunRequest | None = None


class AppendedProduce(NamedTuple):
    """A Produce request whose batch was appended while an earlier request waits for its response."""

    api: BoundApi
    correlation_id: int
    produce: "PendingProduce"


class PipelineChange(NamedTuple):
    """The output of a request after which another pipeline takes the requests of the connection.

    max_frame_bytes: maximum size of the requests that follow
    """

    output: "RequestOutput"
    pipeline: "Pipeline"
    max_frame_bytes: int


RequestOutput = bytearray | list[Piece] | RequestInProgress | PipelineChange | LastResponse | None
"""An encoded response of one piece or of several, a request in progress, a change of the connection, or no response."""


class Pipeline(Protocol):
    """Turns the frames of one connection into responses: a `RequestPipeline`, or one that is before it for SASL."""

    def begin(self, frame: bytes | memoryview, /) -> RequestOutput:
        """Run a request until it has a response or has to wait."""

    def append_next(self, frame: bytes | memoryview, /) -> bytearray | AppendedProduce | None:
        """Append the batch of the next request, if that is possible (`RequestPipeline.append_next`)."""

    def respond(self, appended: AppendedProduce, /) -> RequestOutput:
        """Return the response to an appended batch, or wait for it."""

    def finish(self, outcome: "RequestOutcome", waiting: RequestInProgress, /) -> RequestOutput:
        """Continue with the outcome of a request in progress."""

    def encode(self, api: BoundApi, correlation_id: int, response: Message, /) -> RequestOutput:
        """Encode a response, a large one in slices."""


class RequestPipeline:
    """Turns the frames of one connection into responses.

    Its methods raise CloseConnection if the connection must close, and SchedulerStopped if the broker stops.
    """

    __slots__ = (
        "_bound", "_charges", "_client_id_bytes", "_context", "_defect", "_dispatch", "_errors", "_fast_path",
        "_quotas", "_services",
    )  # fmt: skip

    def __init__(self, dispatch: Dispatch, context: RequestContext) -> None:
        self._dispatch = dispatch
        self._bound = dispatch.bound
        self._services = dispatch.services
        self._quotas = dispatch.quotas
        self._errors = dispatch.response_errors
        self._charges: ClientCharges | None = None
        self._context = context
        self._client_id_bytes = _NO_ID
        self._fast_path: ProduceFastPath | AuthorizedFastPath | None = None
        # The failure of the fast path for the next request.
        self._defect: Exception | None = None

    def begin(self, frame: bytes | memoryview) -> RequestOutput:
        """Run a request through the stages until it has a response or has to wait."""
        quotas = self._quotas.active
        if quotas is not None and self._context.charge is None:
            charge = self._make_charge(quotas, frame)
            if charge is not None:
                return self._begin_charged(frame, charge)
        answer = self._append_records(frame)
        if answer is not None:
            return answer if isinstance(answer, bytearray) else self.respond(self._make_appended(frame, answer))
        unexpected, self._defect = self._defect, None
        try:
            code, correlation_id, client_id_size = read_request_prefix(frame, SIZE_BYTES)
            api = self._bound.get(code) or self._dispatch.find(code)
            position = _CLIENT_ID_AT + client_id_size
            end = len(frame)
            # A client sends the same id with every request.
            if (
                frame[_CLIENT_ID_AT:position] == self._client_id_bytes
                and position <= end
                and not (api.is_flexible and frame[position])
            ):
                position += api.is_flexible
            else:
                position = self._read_client_id(frame, client_id_size, end, api)
            if api.is_unsupported:
                request = None
            elif end - position <= SMALL_MESSAGE_BYTES:
                request, position = api.decode(frame, position, end)
            else:
                steps = api.decode_in_steps(frame, position)
                decoded = run_first_steps(steps, _FIRST_STEPS)
                if decoded is None:
                    return self._decode_in_slices(api, correlation_id, frame, steps, unexpected)
                request, position = decoded
        except MALFORMED as error:
            raise CloseConnection(f"malformed request: {error}") from error
        self._context.api_version = api.version
        try:
            if unexpected is not None:
                raise unexpected
            response = api.handle(self._services, self._context, request)
        except Exception as error:
            return self._fail(api, correlation_id, request, error)
        may_use_fast_path = api.allows_fast_path and position == end
        if isinstance(response, Message):
            if may_use_fast_path:
                self.add_to_fast_path(frame, request, response)
            return self.encode(api, correlation_id, response)
        if isinstance(response, NoResponse):
            return None
        return RequestInProgress(api, correlation_id, request, response, frame if may_use_fast_path else None)

    def append_next(self, frame: bytes | memoryview) -> bytearray | AppendedProduce | None:
        """Append the batch of the next request before the requests in progress have their responses.

        Return its response or an `AppendedProduce`; None, with nothing appended, if it has to wait until it is begun.
        """
        quotas = self._quotas.active
        if quotas is not None and self._make_charge(quotas, frame) is not None:
            return None
        answer = self._append_records(frame)
        if answer is None or isinstance(answer, bytearray):
            return answer
        return self._make_appended(frame, answer)

    def respond(self, appended: AppendedProduce) -> RequestOutput:
        """Return the response to an appended batch, or wait for it."""
        api, correlation_id, produce = appended
        response = produce.respond()
        if isinstance(response, bytearray):
            return response
        if isinstance(response, Message):
            return self.encode(api, correlation_id, response)
        return RequestInProgress(api, correlation_id, produce.request, response, None, is_appended=True)

    def finish(self, outcome: RequestOutcome, waiting: RequestInProgress) -> RequestOutput:
        """Continue with the outcome of a request in progress."""
        if isinstance(outcome, Failure):
            error = outcome.value or RuntimeError("a failure without an exception")
            return self._fail(waiting.api, waiting.correlation_id, waiting.request, error)
        if isinstance(outcome, bytearray):
            return outcome
        if isinstance(outcome, EncodedResponse):
            return _make_pieces(*outcome)
        if isinstance(outcome, EncodedBody):
            if self._errors is not None:
                self._errors.count_without_error(waiting.api.name)
            out = begin_response(waiting.api, waiting.correlation_id)
            body_at = len(out)
            out += outcome.body
            if self._context.charge is not None:
                throttle_ms = self._settle(self._context.charge)
                if outcome.begins_with_throttle_time:
                    _pack_size_into(out, body_at, throttle_ms)
            return _make_pieces(out, [])
        if isinstance(outcome, NoResponse):
            self._settle_without_response()
            return None
        if isinstance(outcome, LastResponse):
            return outcome
        if waiting.frame is not None:
            self.add_to_fast_path(waiting.frame, waiting.request, outcome)
        return self.encode(waiting.api, waiting.correlation_id, outcome)

    def encode(self, api: BoundApi, correlation_id: int, response: Message) -> RequestOutput:
        """Encode a response, a large one in slices."""
        charge = self._context.charge
        if charge is not None:
            throttle_ms = self._settle(charge)
            if throttle_ms > 0 and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = throttle_ms
        if self._errors is not None:
            self._errors.count(api.name, response)
        out = bytearray(_pack_response_head(0, correlation_id))
        if api.has_flexible_response_header:
            out.append(0)
        splices: list[Splice] = []
        try:
            api.encode(response, out, splices)
        except LargeMessageError:
            encoding = self._services.slices.run(encode_in_steps(api, correlation_id, response))
            return RequestInProgress(api, correlation_id, None, encoding, None)
        except Exception as error:
            raise CloseConnection(report_encoding_failure(api)) from error
        if splices:
            return _make_pieces(out, splices)
        _pack_size_into(out, 0, len(out) - SIZE_BYTES)
        return out

    def add_to_fast_path(self, frame: bytes | memoryview, request: Message | None, response: Message) -> None:
        """Add the head of this request to the fast path, for later requests like it."""
        if self._fast_path is None:
            # Imported with the first Produce request, because it is not needed at start.
            from odradek.server.network.produce_fast_path import make_fast_path

            self._fast_path = make_fast_path(self._services, self._context)
        # The topic may have been deleted meanwhile.
        with suppress(KafkaError):
            self._fast_path.add_head(frame, self._context, request, response)  # type: ignore[arg-type] # of Produce

    def _append_records(self, frame: bytes | memoryview) -> "bytearray | PendingProduce | None":
        """Take the fast path; return None, with nothing appended, if that is not possible."""
        context = self._context
        if (
            self._fast_path is None
            or context.refused_batches
            or context.charge is not None
            or self._defect is not None
        ):
            return None
        try:
            return self._fast_path.append_records(frame)
        except Exception as error:
            self._defect = error
            return None

    def _make_charge(self, quotas: "ClientQuotas", frame: bytes | memoryview) -> "RequestCharge | None":
        """Return the charge of a request; None if no quota applies to it."""
        charges = self._charges
        if charges is None:
            # Imported with the first request after a quota was set.
            from odradek.server.quotas.client_charges import ClientCharges

            charges = self._charges = ClientCharges(quotas)
        return charges.make_charge(frame, self._context.principal)

    def _begin_charged(self, frame: bytes | memoryview, charge: "RequestCharge") -> RequestOutput:
        """Begin a request to which a quota applies."""
        self._context.charge = charge
        charge.resume()
        try:
            # The request has its charge now, so `begin` does not return here.
            output = self.begin(frame)
        finally:
            charge.pause()
        if output is None:
            self._settle_without_response()
        return output

    def _settle(self, charge: "RequestCharge") -> int:
        """Record the use of quotas by the request that has a response now; return its throttle time."""
        context = self._context
        context.charge = None
        context.throttle_ms = throttle_ms = charge.settle()
        return throttle_ms

    def _settle_without_response(self) -> None:
        """Record the use of quotas by a Produce request with acks=0."""
        context = self._context
        charge, context.charge = context.charge, None
        if charge is not None:
            context.throttle_ms = charge.settle_without_response()

    def _make_appended(self, frame: bytes | memoryview, produce: "PendingProduce") -> AppendedProduce:
        code, correlation_id, _ = read_request_prefix(frame, SIZE_BYTES)
        return AppendedProduce(self._bound.get(code) or self._dispatch.find(code), correlation_id, produce)

    def _decode_in_slices(
        self,
        api: BoundApi,
        correlation_id: int,
        frame: bytes | memoryview,
        steps: Generator[None, None, tuple[Message, int]],
        unexpected: Exception | None,
    ) -> RequestInProgress:
        """Decode the rest of a large request, then call its handler."""
        self._context.api_version = api.version
        decoding = self._services.slices.run(steps)
        waiting = RequestInProgress(api, correlation_id, None, decoding, None)

        def decoded(result: tuple[Message, int]) -> HandlerReply:
            waiting.request, end = result
            if api.allows_fast_path and end == len(frame):
                waiting.frame = frame
            if unexpected is not None:
                raise unexpected
            return api.handle(self._services, self._context, waiting.request)

        decoding.addCallbacks(decoded, refuse_malformed)
        if len(frame) > VERY_LARGE_BYTES:
            decoding.addBoth(self._release_request, waiting)
        return waiting

    def _release_request(self, outcome: RequestOutcome, waiting: RequestInProgress) -> RequestOutcome:
        """Return the outcome of a very large request, and free the request in steps from the next iteration on."""
        if waiting.request is not None:
            releasing = self._services.slices.run_later(release_in_steps(waiting.request))
            releasing.addErrback(_ignore_stop)
        return outcome

    def _read_client_id(self, frame: bytes | memoryview, size: int, end: int, api: BoundApi) -> int:
        """Record the client id; return where the request's body begins."""
        client_id, position = read_client_id(frame, _CLIENT_ID_AT, end, size, api.is_flexible)
        self._context.client_id = client_id or ""
        # An empty id is not stored, because it has the same bytes as null.
        self._client_id_bytes = bytes(frame[_CLIENT_ID_AT : _CLIENT_ID_AT + size]) if size > 0 else _NO_ID
        return position

    def _fail(self, api: BoundApi, correlation_id: int, request: Message | None, error: BaseException) -> RequestOutput:
        """Return the error response of a request. Raises CloseConnection if the API has none for it."""
        if isinstance(error, (CloseConnection, SchedulerStopped)):
            # After SchedulerStopped the progress of the request is unknown.
            raise error
        if not isinstance(error, KafkaError):
            self._dispatch.count_unexpected(api.name)
            logger.error(
                "unexpected error in a handler; the request got UNKNOWN_SERVER_ERROR; please report it "
                "api=%s version=%d client_id=%s", api.name, api.version, self._context.client_id, exc_info=error,
            )  # fmt: skip
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        charge = self._context.charge
        if charge is not None:
            # As in Kafka a request between brokers counts if its client is none.
            charge.is_exempt &= error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            charge.settle(has_failed=True)
        response = api.make_error_response(request, api.version, error)
        if response is None:
            raise CloseConnection(f"{api.name} failed: {error}")
        return self.encode(api, correlation_id, response)


def _ignore_stop(failure: Failure) -> Failure | None:
    return None if isinstance(failure.value, SchedulerStopped) else failure


def _make_pieces(out: bytearray, splices: list[Splice]) -> bytearray | list[Piece]:
    """Write the size into an encoded response, and insert the spliced file regions."""
    if not splices:
        _pack_size_into(out, 0, len(out) - SIZE_BYTES)
        return out
    size = len(out) - SIZE_BYTES + sum([splice.region.size_bytes for splice in splices])
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
    return (_copy(pieces) if size <= _COPIED_RESPONSE_BYTES else None) or pieces


def _copy(pieces: list[Piece]) -> bytearray | None:
    """Return a response in one piece; None if the writer is to read it from the disk, or to report a failed read."""
    parts: list[bytes | bytearray | memoryview] = []
    for piece in pieces:
        if isinstance(piece, (bytes, bytearray, memoryview)):
            parts.append(piece)
            continue
        try:
            records = piece.read_cached()
        except OSError:
            return None
        if records is None:
            return None
        parts.append(records)
    return bytearray().join(parts)
