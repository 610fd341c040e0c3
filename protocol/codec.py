"""Compiled decoders and encoders, one for each message class and version.

The generated source has no loop over fields: successive fields of fixed size become one `struct` call, nested structs
and arrays are inlined. It is compiled on first use and cached. `interpreter` is a slow implementation of the same
declarations; the tests compare the two.

Sizes read from the wire are compared with the remaining bytes before memory is allocated for them. Malformed bytes
raise `DecodeError`.

Large messages are decoded and encoded in steps, by generators compiled from the same declarations: `step_decoder` and
`step_encoder`. `decoder` is for messages of up to `SMALL_MESSAGE_BYTES`, and `small_encoder` stops at a larger one.
"""

import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Final, TypeVar

from odradek.protocol.codec_source import Buffer, Splice
from odradek.protocol.decoder_source import STEP_BYTES, DecoderSource
from odradek.protocol.encoder_source import EncoderSource
from odradek.protocol.schema import Message
from odradek.protocol.types import DecodeError

M = TypeVar("M", bound=Message)
Decoder = Callable[[Buffer, int, int], tuple[Any, int]]
Encoder = Callable[[Any, bytearray, list[Splice]], None]
StepDecoder = Callable[[Buffer, int, int, int], Generator[None, None, tuple[Any, int]]]
StepEncoder = Callable[[Any, bytearray, list[Splice]], Generator[None, None, None]]

MAX_ELEMENTS: Final = 100_000
"""Maximum number of array elements of one request, all arrays together. More are rejected before memory is allocated.

A Fetch request for 50,000 partitions of as many topics has 100,000 elements. An element of 2 bytes becomes an object of
100 to 250 bytes, so that this limit bounds the memory of a request. It also bounds the time to sort or free a list of
all elements, which is one step.
"""


@cache
def decoder(cls: type[Message], version: int) -> Decoder:
    """Return the decoder `(buffer, position, end) -> (message, position after it)`, compiled on first use.

    The decoder may raise `struct.error`, `IndexError` or `ValueError` besides `DecodeError`; `decode` converts all of
    them to DecodeError. Hot paths that call it directly catch `MALFORMED`.
    """
    compiled: Decoder = _compile_decoder(cls, version, in_steps=False)
    return compiled


@cache
def step_decoder(cls: type[Message], version: int) -> StepDecoder:
    """Return a decoder with the result of `decoder`, as a generator that yields after each step.

    Its fourth parameter is the maximum number of array elements of the message, usually `MAX_ELEMENTS`.
    """
    compiled: StepDecoder = _compile_decoder(cls, version, in_steps=True)
    return compiled


@cache
def encoder(cls: type[Message], version: int) -> Encoder:
    """Return the encoder `(message, out, splices)`, which appends bytes to `out` and file regions to `splices`."""
    compiled: Encoder = _compile_encoder(cls, version)
    return compiled


@cache
def small_encoder(cls: type[Message], version: int) -> Encoder:
    """Return an encoder that raises `LargeMessageError` within 1 ms if the message is large.

    The caller then discards the incomplete output.
    """
    compiled: Encoder = _compile_encoder(cls, version, only_small=True)
    return compiled


@cache
def step_encoder(cls: type[Message], version: int) -> StepEncoder:
    """Return an encoder with the output of `encoder`, as a generator that yields after each step."""
    compiled: StepEncoder = _compile_encoder(cls, version, in_steps=True)
    return compiled


MALFORMED: Final = (struct.error, IndexError, ValueError)
"""Exceptions that a decoder may raise for malformed bytes. `DecodeError` is a ValueError."""


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Decode a message that occupies all of `buffer` from `position` on.

    Raises DecodeError for malformed bytes and for bytes after the message.
    """
    end = len(buffer)
    try:
        message, position = decoder(cls, version)(buffer, position, end)
    except DecodeError:
        raise
    except MALFORMED as error:
        raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
    if position != end:
        raise DecodeError(f"{cls.__name__} v{version}: {end - position} bytes left over")
    decoded: M = message
    return decoded


def encode(message: Message, version: int) -> bytes:
    """Encode a message as one bytes object, with the contents of its file regions."""
    out = bytearray()
    splices: list[Splice] = []
    encoder(type(message), version)(message, out, splices)
    if not splices:
        return bytes(out)
    pieces: list[bytes | bytearray] = []
    start = 0
    for splice in splices:
        pieces += (out[start : splice.position], splice.region.read())
        start = splice.position
    pieces.append(out[start:])
    return b"".join(pieces)


def _compile_decoder(cls: type[Message], version: int, in_steps: bool) -> Any:
    _check_version(cls, version)
    source = DecoderSource(version, cls.is_flexible(version), in_steps)
    source.scope["new"] = object.__new__
    name, parameters = f"decode_{cls.__name__}_v{version}", "buf, pos, end"
    if in_steps:
        name, parameters = f"{name}_in_steps", f"{parameters}, max_elements"
        # The `yield` makes the decoder of a message without arrays a generator.
        source.add(1, "elements = 0", f"pause = pos + {STEP_BYTES}", "if 0: yield")
    source.struct(1, "o", cls)
    source.add(1, "return o, pos")
    return source.compile(parameters, name)


def _compile_encoder(
    cls: type[Message], version: int, *, in_steps: bool = False, only_small: bool = False
) -> Any:
    _check_version(cls, version)
    source = EncoderSource(version, cls.is_flexible(version), in_steps, only_small)
    if in_steps:
        source.add(1, "elements = 0", "if 0: yield")
    source.struct(1, "o", cls)
    suffix = "_in_steps" if in_steps else "_if_small" if only_small else ""
    return source.compile("o, out, splices", f"encode_{cls.__name__}_v{version}{suffix}")


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.first_version <= version <= cls.last_version:
        raise ValueError(f"{cls.__name__} has no version {version}")
