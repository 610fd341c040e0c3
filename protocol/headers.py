"""Request and response headers. Source: Kafka protocol guide, "Request and response headers"."""

import struct
from typing import Final

from odradek.protocol.codec_source import Buffer, read_varint_tail, skip_tagged_fields
from odradek.protocol.types import DecodeError

API_VERSIONS_KEY: Final = 18

_FIXED: Final = struct.Struct(">iih")

read_request_prefix: Final = _FIXED.unpack_from
"""Read API code (see `api_code`), correlation id and length of the client id (null: -1)."""
PREFIX_BYTES: Final = _FIXED.size


def api_code(key: int, version: int) -> int:
    """Return API key and version as one int32, as their bytes on the wire form it."""
    return key << 16 | version & 0xFFFF


def split_api_code(code: int) -> tuple[int, int]:
    """Return key and version of an API code, both signed."""
    version = code & 0xFFFF
    return code >> 16, version - 0x10000 if version & 0x8000 else version


def read_client_id(buf: Buffer, position: int, end: int, size: int, flexible: bool) -> tuple[str | None, int]:
    """Return the client id, whose length `read_request_prefix` returned, and the position of the request body.

    Flexible versions keep the two-byte length of the client id; they only add tagged fields after it (KIP-482).
    Raises `DecodeError`, `IndexError` or `UnicodeDecodeError`.
    """
    client_id = None
    if size >= 0:
        after = position + size
        if after > end:
            raise DecodeError("client id runs past the end of the frame")
        client_id = str(buf[position:after], "utf-8")
        position = after
    elif size != -1:
        raise DecodeError("negative length of the client id")
    if flexible:
        position = skip_header_tags(buf, position, end) if buf[position] else position + 1
    return client_id, position


def skip_header_tags(buf: Buffer, position: int, end: int) -> int:
    """Return the position after the tagged fields of a header. Raises `DecodeError` or `IndexError`."""
    count = buf[position]
    position += 1
    if count > 127:
        count, position = read_varint_tail(buf, position, count)
    if count > end - position:
        raise DecodeError("tagged fields run past the end of the frame")
    return skip_tagged_fields(buf, position, end, count)


def response_is_flexible(api_key: int, flexible: bool) -> bool:
    """Return whether the response header has tagged fields.

    The header is flexible if the body is, except for ApiVersions: a client must be able to read that response before
    it has the broker's versions (KIP-511).
    """
    return flexible and api_key != API_VERSIONS_KEY
