"""What stands before every request and response. Source: Kafka protocol guide, "Request and response headers"."""

import struct
from typing import Final

from odradek.protocol.codec import Buffer, read_varint_tail, skip_tagged_fields
from odradek.protocol.types import DecodeError

API_VERSIONS_KEY: Final = 18

_FIXED: Final = struct.Struct(">iih")

read_request_prefix: Final = _FIXED.unpack_from
"""API code (see `api_code`), correlation id and the length of the client id (null: -1)."""
PREFIX_BYTES: Final = _FIXED.size


def api_code(key: int, version: int) -> int:
    """API key and version as the one number that they make together on the wire."""
    return key << 16 | version & 0xFFFF


def split_api_code(code: int) -> tuple[int, int]:
    """Key and version of an API code, both signed."""
    version = code & 0xFFFF
    return code >> 16, version - 0x10000 if version & 0x8000 else version


def read_client_id(buf: Buffer, position: int, end: int, size: int, flexible: bool) -> tuple[str | None, int]:
    """The client id, whose length `read_request_prefix` gave, and the position of the request's body.

    The id keeps its two-byte length in flexible versions too; only the tagged fields after it are new (KIP-482).
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
        count = buf[position]
        position += 1
        if count:
            if count > 127:
                count, position = read_varint_tail(buf, position, count)
            if count > end - position:
                raise DecodeError("tagged fields run past the end of the frame")
            position = skip_tagged_fields(buf, position, end, count)
    return client_id, position


def response_is_flexible(api_key: int, flexible: bool) -> bool:
    """Whether the response header has tagged fields: as the body, except that ApiVersions never has them.

    A client that does not know the broker yet has to be able to read that one (KIP-511).
    """
    return flexible and api_key != API_VERSIONS_KEY
