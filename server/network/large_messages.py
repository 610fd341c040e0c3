"""Requests and responses that are too large to be decoded or encoded in one step of the reactor thread."""

import logging
import struct
from collections.abc import Generator
from functools import cache
from typing import Final, NamedTuple

from twisted.python.failure import Failure

from odradek.protocol.codec import MALFORMED
from odradek.protocol.codec_source import Splice
from odradek.protocol.schema import ArrayType, Message, Struct
from odradek.server.dispatch import BoundApi
from odradek.server.request import CloseConnection

logger = logging.getLogger(__name__)

_pack_response_head: Final = struct.Struct(">ii").pack
MAX_RESPONSE_BYTES: Final = 1 << 28
"""Limit of a response; a larger one closes the connection. Few clients would read it, and none can read 2 GiB."""

VERY_LARGE_BYTES: Final = 1 << 18
"""Size from which on a message is freed in steps. A smaller one is freed within some 2 ms."""

RELEASED_PER_STEP: Final = 1_000
"""Array elements that are freed in one step, which takes some 0.1 ms."""

_SHORT_ARRAY: Final = 100
"""Largest number of elements of an array that is freed together with the element that contains it."""


class EncodedResponse(NamedTuple):
    """An encoded large response."""

    out: bytearray
    splices: list[Splice]


def begin_response(api: BoundApi, correlation_id: int) -> bytearray:
    """Return the header of a response, with space for the size."""
    out = bytearray(_pack_response_head(0, correlation_id))
    if api.has_flexible_response_header:
        out.append(0)
    return out


def encode_in_steps(api: BoundApi, correlation_id: int, response: Message) -> Generator[None, None, EncodedResponse]:
    """Encode a response with its header. Raises CloseConnection if it fails or the response is too large."""
    encoded = EncodedResponse(begin_response(api, correlation_id), [])
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

    The message is not changed: other references to it or to its elements stay valid.
    """
    arrays = (getattr(message, name) for name in _find_array_fields(type(message)))
    return _release([array[:] for array in arrays if isinstance(array, list)])


def _release(held: list[list[object]]) -> Generator[None, None, None]:
    while held:
        elements = held[-1]
        if not elements:
            held.pop()
            continue
        # All elements of an array are of one class.
        last = elements[-1]
        names = _find_array_fields(type(last)) if isinstance(last, Struct) else ()
        del last
        if names:
            _release_some(elements, names, held)
        else:
            del elements[-RELEASED_PER_STEP:]
        yield


def _release_some(elements: list[object], names: tuple[str, ...], held: list[list[object]]) -> None:
    """Free the last elements and the short arrays in them; append a copy of each longer array to `held`."""
    count = 0
    while elements and count < RELEASED_PER_STEP - _SHORT_ARRAY:
        element = elements.pop()
        count += 1
        for name in names:
            array = getattr(element, name)
            if not isinstance(array, list):
                continue
            if len(array) > _SHORT_ARRAY:
                held.append(array[:])
                count = RELEASED_PER_STEP
            else:
                count += len(array)


@cache
def _find_array_fields(struct: type[Struct]) -> tuple[str, ...]:
    """Return the names of the fields that are arrays.

    The value of such a field is not a list if its elements are created when they are encoded.
    """
    return tuple(item.name for item in struct.fields if isinstance(item.wire, ArrayType))


def report_encoding_failure(api: BoundApi) -> str:
    """Log the exception that is being handled; return the reason for closing the connection."""
    logger.exception("a response could not be encoded; closing the connection; please report it api=%s", api.name)
    return "response could not be encoded"


def refuse_malformed(failure: Failure) -> Failure:
    """Errback of a request's decoding: raise CloseConnection if the request is malformed."""
    if not isinstance(failure.value, MALFORMED):
        return failure
    raise CloseConnection(f"malformed request: {failure.value}")
