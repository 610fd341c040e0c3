"""Encoding of requests to other brokers, and decoding of their responses; large ones in slices."""

import struct
from typing import Final, TypeVar

from odradek.protocol.codec import MALFORMED, decoder, small_encoder, step_decoder, step_encoder
from odradek.protocol.codec_source import LargeMessageError, Splice
from odradek.protocol.encoder_source import SMALL_MESSAGE_BYTES
from odradek.protocol.framing import SIZE_BYTES
from odradek.protocol.headers import response_is_flexible, skip_header_tags
from odradek.protocol.schema import Message
from odradek.protocol.types import DecodeError
from odradek.server.work.slices import SMALL_REQUEST_STEPS, Slices, run_first_steps

Response = TypeVar("Response", bound=Message)

MAX_RESPONSE_ELEMENTS: Final = 1_000_000
"""Maximum number of array elements of a response: ten times as many as a request of a client may have."""

_pack_head: Final = struct.Struct(">ihhi").pack
_pack_size_into: Final = struct.Struct(">i").pack_into
_pack_length: Final = struct.Struct(">h").pack
_read_correlation_id: Final = struct.Struct(">i").unpack_from
_BODY_AT: Final = SIZE_BYTES + 4


async def encode_request(
    request: Message, version: int, correlation_id: int, client_id: bytes, slices: Slices
) -> bytes:
    """Return the frame of a request, with its length prefix."""
    out = _begin_request(request, version, correlation_id, client_id)
    splices: list[Splice] = []
    try:
        small_encoder(type(request), version)(request, out, splices)
    except LargeMessageError:
        out = _begin_request(request, version, correlation_id, client_id)
        splices.clear()
        await slices.run(step_encoder(type(request), version)(request, out, splices))
    if splices:
        raise ValueError(f"{type(request).__name__} contains records of a file, which a request cannot have")
    _pack_size_into(out, 0, len(out) - SIZE_BYTES)
    return bytes(out)


def read_correlation_id(frame: bytes | memoryview) -> int:
    """Return the correlation id of a response. Raises DecodeError."""
    if len(frame) < _BODY_AT:
        raise DecodeError(f"response of {len(frame) - SIZE_BYTES} bytes has no correlation id")
    (correlation_id,) = _read_correlation_id(frame, SIZE_BYTES)
    return int(correlation_id)


async def decode_response(
    frame: bytes | memoryview, response_type: type[Response], version: int, slices: Slices
) -> Response:
    """Decode a response. Its records are views of the frame. Raises DecodeError.

    Bytes after the response are ignored, as Kafka ignores them.
    """
    response: Response
    try:
        end = len(frame)
        position = _BODY_AT
        if response_is_flexible(response_type.api_key, response_type.is_flexible(version)):
            position = skip_header_tags(frame, position, end)
        if end - position <= SMALL_MESSAGE_BYTES:
            response, _ = decoder(response_type, version)(frame, position, end)
        else:
            steps = step_decoder(response_type, version)(frame, position, end, MAX_RESPONSE_ELEMENTS)
            # The usual response is that to a fetch, which is large due to its records.
            decoded = run_first_steps(steps, SMALL_REQUEST_STEPS)
            response, _ = await slices.run(steps) if decoded is None else decoded
    except MALFORMED as error:
        raise DecodeError(f"{response_type.__name__} v{version}: {error}") from error
    return response


def _begin_request(request: Message, version: int, correlation_id: int, client_id: bytes) -> bytearray:
    """Return the header of a request, with space for the size."""
    out = bytearray(_pack_head(0, request.api_key, version, correlation_id))
    out += _pack_length(len(client_id))
    out += client_id
    if request.is_flexible(version):
        out.append(0)
    return out
