"""SASL authentication of one connection, before its requests. It performs no I/O.

Sources: Kafka's SaslServerAuthenticator; KIP-43 (SaslHandshake), KIP-152 (SaslAuthenticate), KIP-306 (delay of
failures), KIP-368 (re-authentication). A client may send ApiVersions, then sends SaslHandshake with its mechanism, and
then the tokens of the mechanism: in SaslAuthenticate requests, or, after version 0 of SaslHandshake, as frames without
a header. Any other request closes the connection, or gets ILLEGAL_SASL_STATE if SaslAuthenticate is expected.

`SaslPipeline` takes the frames of a connection until its client is authenticated. Then the connection gets the pipeline
of requests, so that these cost nothing more; if the session has a lifetime, a `SessionPipeline` is before it.
"""

import logging
import re
import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

from twisted.internet.task import deferLater

from odradek.protocol.codec import MALFORMED
from odradek.protocol.encoder_source import SMALL_MESSAGE_BYTES
from odradek.protocol.errors import ErrorCode, KafkaError, shorten
from odradek.protocol.framing import API_KEY_POSITION, SIZE_BYTES
from odradek.protocol.headers import API_VERSIONS_KEY, PREFIX_BYTES, api_code, read_client_id, read_request_prefix
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from odradek.protocol.schema import Message
from odradek.server.dispatch import BoundApi, Dispatch
from odradek.server.measurements.authentications import AuthenticationCounts
from odradek.server.network.request_pipeline import (
    AppendedProduce,
    LastResponse,
    PipelineChange,
    RequestInProgress,
    RequestOutcome,
    RequestOutput,
    RequestPipeline,
)
from odradek.server.network.sasl_state import TRANSITIONS, SaslEvent, SaslState
from odradek.server.request import CloseConnection, RequestContext
from odradek.server.security.principal import USER_TYPE, Principal
from odradek.server.security.sasl.mechanism import Authenticated, SaslError, SaslExchange
from odradek.server.security.sasl.mechanisms import ListenerMechanism
from odradek.server.security.sasl.settings import SaslSettings
from odradek.server.work.clock import Clock

logger = logging.getLogger(__name__)

HANDSHAKE_KEY: Final = SaslHandshakeRequest.api_key
AUTHENTICATE_KEY: Final = SaslAuthenticateRequest.api_key
REAUTHENTICATION_INTERVAL_S: Final = 1.0
"""Least time between two re-authentications of a connection."""

_ERROR_CODE_AT: Final = SIZE_BYTES + 4
_NO_ERROR: Final = b"\0\0"
_AUTHENTICATE_CODE: Final = api_code(AUTHENTICATE_KEY, 0)
_INVALID_CREDENTIALS: Final = "Authentication failed during {} due to invalid credentials with SASL mechanism {}"
_pack_size: Final = struct.Struct(">i").pack


class SaslListener:
    """The parts that all authentications of a listener share.

    mechanisms: those that are enabled, by name; replaced when they change
    make_dispatch: returns the dispatch without the stages of authenticated requests; called with the first client
    max_request_bytes: maximum size of a request after the authentication
    counts: of the authentications
    """

    def __init__(
        self,
        settings: SaslSettings,
        mechanisms: Mapping[str, ListenerMechanism],
        make_dispatch: Callable[[], Dispatch],
        clock: Clock,
        now_ms: Callable[[], int],
        max_request_bytes: int,
        counts: AuthenticationCounts | None = None,
    ) -> None:
        self.counts = counts or AuthenticationCounts()
        self.mechanisms = mechanisms
        self.clock = clock
        self.now_ms = now_ms
        self.failure_delay_s = settings.failure_delay_ms / 1000
        self.max_token_bytes = settings.max_receive_bytes
        self.max_request_bytes = max_request_bytes
        self._make_dispatch = make_dispatch

    @cached_property
    def dispatch(self) -> Dispatch:
        """Finds APIs."""
        return self._make_dispatch()

    def authenticate(self, requests: RequestPipeline, context: RequestContext) -> "SaslPipeline":
        """Return the pipeline of a new connection."""
        return SaslPipeline(self, requests, context)


class _Session(NamedTuple):
    """A session after an authentication, or the one that a re-authentication is to replace.

    began_s: time of the last re-authentication's begin; None before the first
    """

    mechanism: str
    principal: Principal
    began_s: float | None


class SaslPipeline:
    """Authenticates the client of one connection, or authenticates it again if there is an `earlier` session."""

    def __init__(
        self,
        listener: SaslListener,
        requests: RequestPipeline,
        context: RequestContext,
        earlier: _Session | None = None,
    ) -> None:
        self._listener = listener
        self._requests = requests
        self._own_requests = RequestPipeline(listener.dispatch, context)
        self._context = context
        self._earlier = earlier
        self._state = SaslState.START
        self._mechanism = ""
        self._max_reauth_ms = 0
        self._has_headers = False
        self._exchange: SaslExchange | None = None

    def begin(self, frame: bytes | memoryview) -> RequestOutput:
        """Process a frame. Raises CloseConnection."""
        if self._state is SaslState.AUTHENTICATE:
            return self._take_request_with_token(frame) if self._has_headers else self._take_token(frame)
        if self._state is SaslState.OTHER_MECHANISM:
            return self._fail(None, "the client has changed the mechanism")
        key = _read_api_key(frame)
        if key == API_VERSIONS_KEY:
            return self._answer_versions(frame)
        if key == HANDSHAKE_KEY:
            return self._answer_handshake(frame)
        raise CloseConnection(f"received API key {key} instead of SaslHandshake; the client may lack SASL")

    def append_next(self, frame: bytes | memoryview) -> None:
        """Refuse to append a batch."""

    def respond(self, appended: AppendedProduce) -> RequestOutput:
        """Return the response to an appended batch: there is none here."""
        raise AssertionError("no batch is appended before the authentication")

    def finish(self, outcome: RequestOutcome, waiting: RequestInProgress) -> RequestOutput:
        """Continue after the delay of a failure."""
        return self._own_requests.finish(outcome, waiting)

    def encode(self, api: BoundApi, correlation_id: int, response: Message) -> RequestOutput:
        """Encode a response."""
        return self._own_requests.encode(api, correlation_id, response)

    def _change_state(self, event: SaslEvent) -> None:
        """Change the state because of an event."""
        self._state = TRANSITIONS[self._state, event]

    def _answer_versions(self, frame: bytes | memoryview) -> RequestOutput:
        if self._state is not SaslState.START:
            raise CloseConnection("received a second ApiVersions request before SaslHandshake")
        output = self._own_requests.begin(frame)
        # After an error, such as an unknown version, the client repeats the request.
        if isinstance(output, bytearray) and output[_ERROR_CODE_AT : _ERROR_CODE_AT + 2] == _NO_ERROR:
            self._change_state(SaslEvent.VERSIONS)
        return output

    def _answer_handshake(self, frame: bytes | memoryview) -> RequestOutput:
        api, correlation_id, request = self._decode(frame)
        assert isinstance(request, SaslHandshakeRequest)
        self._has_headers = api.version > 0
        mechanism = request.mechanism
        response = SaslHandshakeResponse(mechanisms=list(self._listener.mechanisms))
        enabled = self._listener.mechanisms.get(mechanism)
        if enabled is None and self._earlier is not None:
            raise CloseConnection(f"re-authentication with mechanism {shorten(mechanism)}, which is not enabled")
        if enabled is None:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            why = f"mechanism {shorten(mechanism)} is not enabled"
            return self._fail(self._encode(api, correlation_id, response), why)
        if self._earlier is not None and self._earlier.mechanism != mechanism:
            self._change_state(SaslEvent.OTHER_MECHANISM)
        else:
            self._mechanism = mechanism
            # Of this mechanism: it may be disabled before the exchange ends.
            self._exchange, self._max_reauth_ms = enabled.make_exchange(), enabled.max_reauth_ms
            self._change_state(SaslEvent.MECHANISM)
        return self._encode(api, correlation_id, response)

    def _take_request_with_token(self, frame: bytes | memoryview) -> RequestOutput:
        key = _read_api_key(frame)
        if key != AUTHENTICATE_KEY:
            return self._refuse_other_request(frame, key)
        api, correlation_id, request = self._decode(frame)
        assert isinstance(request, SaslAuthenticateRequest)
        try:
            token = self._evaluate(bytes(request.auth_bytes))
        except SaslError as error:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=error.message or _INVALID_CREDENTIALS.format(self._what, self._mechanism),
            )
            return self._fail(self._encode(api, correlation_id, response), error.reason)
        response = SaslAuthenticateResponse(error_message="", auth_bytes=token)
        if self._state is not SaslState.COMPLETE:
            return self._encode(api, correlation_id, response)
        lifetime_ms = self._find_lifetime_ms()
        if api.version > 0:
            response.session_lifetime_ms = lifetime_ms or 0
        return self._complete(self._encode(api, correlation_id, response), lifetime_ms)

    def _take_token(self, frame: bytes | memoryview) -> RequestOutput:
        """Process a token without a header. As in Kafka, a failure is not answered."""
        try:
            token = self._evaluate(bytes(frame[SIZE_BYTES:]))
        except SaslError as error:
            return self._fail(None, error.reason)
        output = bytearray(_pack_size(len(token)) + token)
        return self._complete(output, self._find_lifetime_ms()) if self._state is SaslState.COMPLETE else output

    def _evaluate(self, token: bytes) -> bytes:
        """Return the broker's next token. Raises SaslError."""
        assert self._exchange is not None
        answer = self._exchange.evaluate(token)
        authenticated = self._exchange.authenticated
        if authenticated is not None:
            self._check_principal(_make_principal(authenticated))
            self._change_state(SaslEvent.SUCCESS)
        return answer

    def _check_principal(self, principal: Principal) -> None:
        """Raise SaslError if a re-authentication has another principal."""
        if self._earlier is not None and self._earlier.principal[:2] != principal[:2]:
            was, now = (f"{one.type}.{one.name}" for one in (self._earlier.principal, principal))
            raise SaslError(f"Cannot change principals during re-authentication from {was}: {now}")

    def _find_lifetime_ms(self) -> int | None:
        """Return the lifetime of the session; None if it has no end."""
        assert self._exchange is not None and self._exchange.authenticated is not None
        lifetimes_ms: list[int] = []
        if self._max_reauth_ms > 0:
            lifetimes_ms.append(self._max_reauth_ms)
        if (expires_ms := self._exchange.authenticated.expires_ms) is not None:
            lifetimes_ms.append(max(0, expires_ms - self._listener.now_ms()))
        return min(lifetimes_ms, default=None)

    def _complete(self, output: RequestOutput, lifetime_ms: int | None) -> PipelineChange:
        """Replace this pipeline after a success."""
        assert self._exchange is not None and self._exchange.authenticated is not None
        principal = self._context.principal = _make_principal(self._exchange.authenticated)
        listener = self._listener
        if self._earlier is None:
            listener.counts.successful += 1
        else:
            listener.counts.reauthenticated += 1
        logger.debug(
            "authenticated client=%s principal=%s mechanism=%s lifetime_ms=%s",
            self._context.client_host, principal, self._mechanism, lifetime_ms,
        )  # fmt: skip
        if lifetime_ms is None:
            return PipelineChange(output, self._requests, listener.max_request_bytes)
        session = _Session(self._mechanism, principal, None if self._earlier is None else self._earlier.began_s)
        expires_s = listener.clock.seconds() + lifetime_ms / 1000
        pipeline = SessionPipeline(listener, self._requests, self._context, session, expires_s)
        return PipelineChange(output, pipeline, listener.max_request_bytes)

    def _refuse_other_request(self, frame: bytes | memoryview, key: int) -> RequestOutput:
        """Answer a request that is not SaslAuthenticate with ILLEGAL_SASL_STATE, if its API has such a response."""
        if len(frame) > SMALL_MESSAGE_BYTES:
            raise CloseConnection(f"received API key {key} instead of SaslAuthenticate")
        api, correlation_id, request = self._decode(frame)
        name = re.sub("(?<=[a-z])(?=[A-Z])", "_", api.name).upper()
        error = KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE, f"Unexpected Kafka request of type {name} during SASL authentication."
        )
        response = api.make_error_response(request, api.version, error)
        encoded = None if response is None else self._encode(api, correlation_id, response)
        return self._fail(encoded, f"received {api.name} instead of SaslAuthenticate")

    def _fail(self, response: bytearray | None, why: str) -> RequestInProgress:
        """Fail the authentication after a delay, during which nothing is processed (KIP-306)."""
        self._change_state(SaslEvent.FAILURE)
        if self._earlier is None:
            self._listener.counts.failed += 1
        else:
            self._listener.counts.failed_again += 1
        last = LastResponse(response, f"SASL {self._what} failed: {why}")
        delayed = deferLater(cast(Any, self._listener.clock), self._listener.failure_delay_s, lambda: last)
        return RequestInProgress(self._listener.dispatch.find(_AUTHENTICATE_CODE), 0, None, delayed, None)

    @property
    def _what(self) -> str:
        return "authentication" if self._earlier is None else "re-authentication"

    def _decode(self, frame: bytes | memoryview) -> tuple[BoundApi, int, Message | None]:
        """Return API, correlation id and request of a frame. Raises CloseConnection."""
        try:
            code, correlation_id, client_id_size = read_request_prefix(frame, SIZE_BYTES)
            api, end = self._listener.dispatch.find(code), len(frame)
            client_id, position = read_client_id(
                frame, SIZE_BYTES + PREFIX_BYTES, end, client_id_size, api.is_flexible
            )
            self._context.client_id = client_id or ""
            request = None if api.is_unsupported else api.decode(frame, position, end)[0]
        except MALFORMED as error:
            raise CloseConnection(f"malformed request: {error}") from error
        return api, correlation_id, request

    def _encode(self, api: BoundApi, correlation_id: int, response: Message) -> bytearray:
        output = self.encode(api, correlation_id, response)
        assert isinstance(output, bytearray)
        return output


class SessionPipeline:
    """Serves the requests of an authenticated client until its session expires, and begins its re-authentication.

    A request after the expiry closes the connection, unless it is SaslHandshake.
    """

    def __init__(
        self,
        listener: SaslListener,
        requests: RequestPipeline,
        context: RequestContext,
        session: _Session,
        expires_s: float,
    ) -> None:
        self._listener = listener
        self._requests = requests
        self._context = context
        self._session = session
        self._expires_s = expires_s
        self.respond = requests.respond
        self.finish = requests.finish
        self.encode = requests.encode

    def begin(self, frame: bytes | memoryview) -> RequestOutput:
        """Begin a request, or the re-authentication."""
        now_s = self._listener.clock.seconds()
        began_s = self._session.began_s
        if _read_api_key(frame) == HANDSHAKE_KEY and (
            began_s is None or now_s - began_s >= REAUTHENTICATION_INTERVAL_S
        ):
            earlier = self._session._replace(began_s=now_s)
            pipeline = SaslPipeline(self._listener, self._requests, self._context, earlier)
            return PipelineChange(pipeline.begin(frame), pipeline, self._listener.max_token_bytes)
        if now_s > self._expires_s:
            self._listener.counts.expired += 1
            raise CloseConnection("the session has expired, and the client has not authenticated itself again")
        return self._requests.begin(frame)

    def append_next(self, frame: bytes | memoryview) -> bytearray | AppendedProduce | None:
        """Append the batch of the next request. After the end of the session `begin` refuses it."""
        if self._listener.clock.seconds() > self._expires_s:
            return None
        return self._requests.append_next(frame)


def _make_principal(authenticated: Authenticated) -> Principal:
    return Principal(USER_TYPE, authenticated.name, authenticated.is_token_authenticated)


def _read_api_key(frame: bytes | memoryview) -> int:
    """Return the API key of a request; -1 if the frame is too short."""
    return int.from_bytes(frame[SIZE_BYTES : SIZE_BYTES + 2], "big") if len(frame) > API_KEY_POSITION else -1
