"""Dispatch: the API, version and handler of a request."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from odradek.protocol.codec import Decoder, Encoder, decoder, small_encoder, step_decoder, step_encoder
from odradek.protocol.codec_source import Buffer, Splice
from odradek.protocol.errors import KafkaError
from odradek.protocol.headers import API_VERSIONS_KEY, api_code, response_is_flexible, split_api_code
from odradek.protocol.messages import request_class, response_class
from odradek.protocol.schema import Message
from odradek.protocol.types import DecodeError
from odradek.server.apis import APIS, PRODUCE_KEY, Api
from odradek.server.quotas.switch import NO_QUOTAS, Quotas
from odradek.server.request import EncodedBody, NoResponse, RequestContext
from odradek.server.stages import Stages, runs_on_fast_path, wrap_handler

if TYPE_CHECKING:
    from odradek.server.handlers.records.produce import ProduceServices
    from odradek.server.measurements.request_times import RequestTimes
    from odradek.server.measurements.response_errors import ResponseErrors

HandlerReply = Message | NoResponse | Deferred[Message] | Deferred[Message | NoResponse] | Deferred[EncodedBody]
"""The replies of all handlers."""

BoundHandler = Callable[["ProduceServices", RequestContext, Message | None], HandlerReply]
"""A handler, called with all services of the broker. Its own type declares those that it uses.

`services.check_handlers` makes mypy compare the two. The request is of the API's own class; None if its version is
unknown.
"""

ErrorHandler = Callable[[Message | None, int, KafkaError], Message | None]


class BoundApi:
    """One API in one version: codec, handler, and function for error responses.

    decode: for requests of up to `SMALL_MESSAGE_BYTES`
    handle: the handler, with the stages that run before and after it
    allows_fast_path: the produce fast path may replace these stages and the handler
    encode: raises `LargeMessageError` for a large response
    """

    __slots__ = (
        "_error_response",
        "_request_type",
        "_response_type",
        "allows_fast_path",
        "decode",
        "encode",
        "handle",
        "has_flexible_response_header",
        "is_flexible",
        "is_unsupported",
        "key",
        "max_elements",
        "name",
        "version",
    )

    def __init__(self, api: Api, version: int, stages: Stages, *, is_unsupported: bool = False) -> None:
        request_type, response_type = request_class(api.key), response_class(api.key)
        module_name, _, function_name = api.handler.partition(":")
        module = import_module(f"odradek.server.handlers.{module_name}")
        self._request_type, self._response_type = request_type, response_type
        self.key = api.key
        self.name = api.name
        self.max_elements = api.max_elements
        self.version = version
        self.is_unsupported = is_unsupported
        self.is_flexible = request_type.is_flexible(version)
        self.has_flexible_response_header = response_is_flexible(api.key, self.is_flexible)
        self.decode: Decoder = decoder(request_type, version)
        self.encode: Encoder = small_encoder(response_type, version)
        handler: BoundHandler = getattr(module, function_name)
        self.handle: BoundHandler = wrap_handler(stages, api, version, handler)
        others = tuple(stage for stage in stages if not runs_on_fast_path(stage))
        self.allows_fast_path = api.key == PRODUCE_KEY and wrap_handler(others, api, version, handler) is handler
        self._error_response: ErrorHandler = getattr(module, f"{function_name}_error")

    def decode_in_steps(self, frame: Buffer, position: int) -> Generator[None, None, tuple[Message, int]]:
        """Decode a request of any size; return the same as `decode`."""
        return step_decoder(self._request_type, self.version)(frame, position, len(frame), self.max_elements)

    def encode_in_steps(
        self, response: Message, out: bytearray, splices: list[Splice]
    ) -> Generator[None, None, None]:
        """Encode a response of any size, like `encode`."""
        return step_encoder(self._response_type, self.version)(response, out, splices)

    def make_error_response(self, request: Message | None, version: int, error: KafkaError) -> Message | None:
        """Return the response with `error` for the whole request; None if the connection is to be closed instead."""
        return self._error_response(request, version, error)


class Dispatch:
    """Finds the API, version and handler of a request.

    Modules are imported and codecs compiled with the first request of an API and version.

    request_times, response_errors: measure requests; None while nothing uses the measurements
    """

    def __init__(
        self,
        services: "ProduceServices",
        apis: Mapping[int, Api] = APIS,
        stages: Stages = (),
        quotas: Quotas = NO_QUOTAS,
        request_times: "RequestTimes | None" = None,
        response_errors: "ResponseErrors | None" = None,
    ) -> None:
        self.services = services
        self.quotas = quotas
        self.request_times = request_times
        self.response_errors = response_errors
        self.unexpected_errors: Counter[str] = Counter()
        self._apis = apis
        self._stages = stages
        self.bound: dict[int, BoundApi] = {}

    def find(self, code: int) -> BoundApi:
        """Return the API and version of an API code; `bound` has those of earlier requests.

        Raises `DecodeError` if it is not served, or cannot be loaded now: as in Kafka, the connection is closed. For an
        unknown version of ApiVersions the response has version 0 and contains the supported versions, so that the
        client can repeat the request (KIP-511).
        """
        found = self.bound.get(code)
        return found if found is not None else self._bind(*split_api_code(code))

    def is_served(self, code: int) -> bool:
        """Return whether an API code is one of a served version. Clients may send any codes."""
        key, version = split_api_code(code)
        api = self._apis.get(key)
        return api is not None and api.first_version <= version <= api.last_version

    def find_name(self, key: int) -> str:
        """Return the name of a served API."""
        return self._apis[key].name

    def count_unexpected(self, api_name: str) -> None:
        """Count an unexpected exception of a handler."""
        self.unexpected_errors[api_name] += 1

    def _bind(self, key: int, version: int) -> BoundApi:
        api = self._apis.get(key)
        if api is None:
            raise DecodeError(f"unknown api key {key}")
        if api.first_version <= version <= api.last_version:
            try:
                bound = self.bound[api_code(key, version)] = BoundApi(api, version, self._stages)
            except OSError as error:
                # No file descriptor for the import. The client connects again, and its request repeats the import.
                raise DecodeError(f"{api.name} cannot be loaded now: {error}") from error
            return bound
        if key == API_VERSIONS_KEY:
            return BoundApi(api, 0, self._stages, is_unsupported=True)
        raise DecodeError(f"{api.name} has no version {version}")
