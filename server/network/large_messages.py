"""Requests and responses that are too large to be decoded or encoded in one step of the reactor thread."""

import logging
import struct
from collections.abc import Generator
from functools import cache
from typing import Final, NamedTuple

from twisted.python.failure import Failure

from odradek.protocol.codec import MALFORMED
from odradek.protocol.codec_source import Splice
from odradek.protocol.decoder_source import STEP_BYTES
from odradek.protocol.encoder_source import SMALL_MESSAGE_BYTES
from odradek.protocol.schema import ArrayType, Message, Struct
from odradek.server.dispatch import BoundApi
from odradek.server.request import CloseConnection

logger = logging.getLogger(__name__)

_pack_response_head: Final = struct.Struct(">ii").pack
_FIRST_STEPS: Final = SMALL_MESSAGE_BYTES // STEP_BYTES
MAX_RESPONSE_BYTES: Final = 1 << 28
"""A larger response closes the connection: few clients would read it, and none can read 2 GiB."""

VERY_LARGE_BYTES: Final = 1 << 18
"""Messages of fewer bytes are freed at once, within some 2 ms."""

RELEASED_PER_STEP: Final = 1_000
"""Elements of arrays that are freed in one step: some 0.1 ms."""


def run_first_steps(steps: Generator[None, None, tuple[Message, int]]) -> tuple[Message, int] | None:
    """Return what `steps` returns if it ends soon, as a request does that is large for the records in it."""
    try:
        for _ in range(_FIRST_STEPS):
            next(steps)
    except StopIteration as end:
        decoded: tuple[Message, int] = end.value
        return decoded
    return None


class EncodedResponse(NamedTuple):
    """A large response that is encoded."""

    out: bytearray
    splices: list[Splice]


def response_head(api: BoundApi, correlation_id: int) -> bytearray:
    """The header of a response, with room for its size."""
    out = bytearray(_pack_response_head(0, correlation_id))
    if api.flexible_response_header:
        out.append(0)
    return out


def encode_in_steps(api: BoundApi, correlation_id: int, response: Message) -> Generator[None, None, EncodedResponse]:
    """Encode a response with its header. Raises CloseConnection if that is not possible."""
    encoded = EncodedResponse(response_head(api, correlation_id), [])
    try:
        for _ in api.encode_in_steps(response, *encoded):
            if len(encoded.out) > MAX_RESPONSE_BYTES:
                raise CloseConnection(f"the response to {api.name} is larger than {MAX_RESPONSE_BYTES} bytes")
            yield
    except CloseConnection:
        raise
    except Exception as error:
        raise CloseConnection(report_encoding_failure(api)) from error
    if len(encoded.out) > VERY_LARGE_BYTES:
        steps = release_in_steps(response)
        del response
        yield from steps
    return encoded


def release_in_steps(message: Struct) -> Generator[None, None, None]:
    """Free the elements of a message's arrays, for a caller that drops the message before the first step.

    The message is not changed: what else refers to an element or to the message keeps it.
    """
    return _release(_copy_arrays(message, 0))


def _release(held: list[list[object]]) -> Generator[None, None, None]:
    count = 0
    while held:
        elements = held[-1]
        if not elements:
            held.pop()
            continue
        element = elements.pop()
        count += 1
        if isinstance(element, Struct) and _array_fields(type(element)):
            held += _copy_arrays(element, RELEASED_PER_STEP // 10)
            count += sum(len(array) for array in _arrays(element) if len(array) <= RELEASED_PER_STEP // 10)
        del element, elements
        if count >= RELEASED_PER_STEP // 2:
            count = 0
            yield


@cache
def _array_fields(struct: type[Struct]) -> tuple[str, ...]:
    """The names of the fields that are arrays."""
    return tuple(item.name for item in struct.fields if isinstance(item.wire, ArrayType))


def _arrays(struct: Struct) -> list[list[object]]:
    """The arrays of a struct, without those whose elements are created when they are encoded."""
    values = (getattr(struct, name) for name in _array_fields(type(struct)))
    return [value for value in values if isinstance(value, list)]


def _copy_arrays(struct: Struct, longer_than: int) -> list[list[object]]:
    return [array[:] for array in _arrays(struct) if len(array) > longer_than]


def report_encoding_failure(api: BoundApi) -> str:
    """Log the exception that is being handled; return why the connection is closed."""
    logger.exception("a response could not be encoded; closing; please report it api=%s", api.name)
    return "response could not be encoded"


def refuse_malformed(failure: Failure) -> Failure:
    """Errback of a request's decoding: have the connection closed."""
    if not isinstance(failure.value, MALFORMED):
        return failure
    raise CloseConnection(f"malformed request: {failure.value}")
