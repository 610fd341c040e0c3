"""Mutated frames in the steps of a request: splitter, header, body.

Each frame results in a request or a `DecodeError`, quickly, with memory in proportion to the received bytes.
`ODRADEK_FUZZ_FRAMES` and `ODRADEK_FUZZ_SEED` set number and seed; a failure reports the frame's number and bytes.
"""

import os
import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.protocol import codec
from odradek.protocol.framing import SIZE_BYTES, FrameSplitter
from odradek.protocol.headers import PREFIX_BYTES, read_client_id, read_request_prefix, split_api_code
from odradek.protocol.messages import request_class
from odradek.protocol.schema import ArrayType, Message, Struct, StructType
from odradek.protocol.tests.values import REQUESTS, RandomSource, make, versions_of
from odradek.protocol.types import DecodeError, FixedType

pytestmark = pytest.mark.slow

FRAMES = int(os.environ.get("ODRADEK_FUZZ_FRAMES", "100000"))
SEED = int(os.environ.get("ODRADEK_FUZZ_SEED", "20"))
MAX_FRAME_BYTES = 1 << 20
SLOWEST_ALLOWED_S = 2.0
"""Limit of CPU time for one frame of a few hundred bytes; a loop over a forged count would take minutes."""
ALLOCATION_FACTOR = 128
ALLOCATION_BASE_BYTES = 16384

EDGES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
FORGED_LENGTHS = (
    *(struct.pack(">i", number) for number in (-(2**31), -2, -1, 0, 1, 127, 32767, 2**20, 2**31 - 1)),
    *map(bytes.fromhex, ("ffffffff0f", "ffffffff07", "808080808001", "ff7f", "7fff", "8000")),
)


def frame_of(request: Message, version: int, client_id: bytes | None) -> bytes:
    """Return the request as a client sends it, length prefix first."""
    size = -1 if client_id is None else len(client_id)
    head = struct.pack(">hhih", request.api_key, version, 7, size) + (client_id or b"")
    tags = b"\x00" if request.is_flexible(version) else b""
    content = head + tags + codec.encode(request, version)
    return struct.pack(">i", len(content)) + content


def read_request(frame: bytes | memoryview) -> tuple[str | None, Message]:
    """Decode a frame as the broker does before it calls the handler. Raises `DecodeError` and nothing else.

    Bytes after the request, which the broker ignores as Kafka does, are refused here.
    """
    try:
        code, _, client_id_size = read_request_prefix(frame, SIZE_BYTES)
        key, version = split_api_code(code)
        try:
            cls = request_class(key)
        except KeyError:
            raise DecodeError("unknown API") from None
        if not cls.first_version <= version <= cls.last_version:
            raise DecodeError("unsupported version")
        start = SIZE_BYTES + PREFIX_BYTES
        client_id, start = read_client_id(frame, start, len(frame), client_id_size, cls.is_flexible(version))
    except codec.MALFORMED as error:
        raise DecodeError(str(error)) from error
    return client_id, codec.decode(cls, version, frame, start)


def feed(stream: bytes, rng: random.Random) -> list[bytes | memoryview]:
    """Return the frames of a stream that arrives in pieces."""
    splitter = FrameSplitter(MAX_FRAME_BYTES)
    cuts = sorted(rng.randint(0, len(stream)) for _ in range(rng.choice((0, 0, 1, 3))))
    frames: list[bytes | memoryview] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += splitter.feed(stream[start:end])
    return frames


def seeds(rng: random.Random) -> list[bytes]:
    """Return valid frames of every request and version."""
    found = []
    for cls in REQUESTS:
        for version in versions_of(cls):
            for _ in range(3):
                message = make(cls, version, RandomSource(rng))
                found.append(frame_of(message, version, rng.choice((None, b"", b"fuzz", "ключ".encode()))))
    return found


def mutate(frame: bytes, corpus: list[bytes], rng: random.Random) -> bytes:
    """Return the frame with one to four changes; its length prefix is usually corrected."""
    out = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(SIZE_BYTES, len(out)) if len(out) > SIZE_BYTES else 0
        match rng.randrange(8):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice(EDGES)
            case 2:
                forged = rng.choice(FORGED_LENGTHS)
                out[at : at + len(forged)] = forged
            case 3:
                del out[at:]
            case 4:
                del out[at : at + rng.randint(1, 8)]
            case 5:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
            case 6:
                other = rng.choice(corpus)
                out[at:] = other[rng.randrange(len(other)) :]
            case 7:
                # Another API, or another version of this one.
                key = rng.choice(REQUESTS).api_key if rng.random() < 0.5 else frame[5]
                out[SIZE_BYTES : SIZE_BYTES + 4] = struct.pack(">hh", key, rng.randint(-1, 20))
        if not out:
            out = bytearray(SIZE_BYTES)
    if rng.random() < 0.9:
        out[:SIZE_BYTES] = struct.pack(">i", max(len(out) - SIZE_BYTES, 0))
    return bytes(out)


def mutants(count: int) -> Iterator[tuple[int, bytes, random.Random]]:
    rng = random.Random(SEED)
    corpus = seeds(rng)
    for number in range(count):
        yield number, mutate(rng.choice(corpus), corpus, rng), rng


def outcome(stream: bytes, rng: random.Random) -> str:
    try:
        frames = feed(stream, rng)
        for frame in frames:
            read_request(frame)
    except DecodeError:
        return "refused"
    return "read" if frames else "incomplete"


def test_a_valid_frame_is_read():
    rng = random.Random(SEED)
    assert {outcome(frame, rng) for frame in seeds(rng)} == {"read"}


def test_mutated_frames_are_read_or_refused():
    outcomes: Counter[str] = Counter()
    for number, stream, rng in mutants(FRAMES):
        start = time.thread_time()
        try:
            outcomes[outcome(stream, rng)] += 1
        except Exception as error:
            pytest.fail(f"frame {number} of seed {SEED} raised {error!r}: {stream.hex()}")
        took_s = time.thread_time() - start
        assert took_s < SLOWEST_ALLOWED_S, f"frame {number} of seed {SEED} took {took_s:.1f} s: {stream.hex()}"
    # If all mutants were refused, or none, the test would show little.
    assert outcomes["read"] > FRAMES / 50
    assert outcomes["refused"] > FRAMES / 3


@pytest.fixture
def allocations():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak_bytes(decode: Any) -> int:
    """Return the largest amount of memory that `decode` held at a time."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    decode()
    return tracemalloc.get_traced_memory()[1] - before


def test_a_mutated_frame_allocates_in_proportion_to_its_size(allocations):
    compile_all()
    for number, stream, rng in mutants(min(FRAMES, 5000)):
        peak = peak_bytes(lambda stream=stream, rng=rng: outcome(stream, rng))
        limit = ALLOCATION_BASE_BYTES + ALLOCATION_FACTOR * len(stream)
        assert peak <= limit, f"frame {number} of seed {SEED}, {len(stream)} bytes, held {peak}: {stream.hex()}"


def compile_all() -> None:
    """Compile every decoder now, so that the memory for it does not count as allocated by a frame."""
    for cls in REQUESTS:
        for version in versions_of(cls):
            codec.decoder(cls, version)


def fill_arrays(message: Struct, version: int, count: int) -> None:
    """Fill every array with `count` elements of minimum size, one level deep; inner arrays stay empty."""
    for item in message.fields:
        if not item.is_in(version):
            continue
        if isinstance(item.wire, StructType) and getattr(message, item.name) is not None:
            fill_arrays(getattr(message, item.name), version, count)
        elif isinstance(item.wire, ArrayType):
            element = item.wire.element
            if isinstance(element, StructType):
                value: list[Any] = [element.cls() for _ in range(count)]
            elif isinstance(element, FixedType):
                value = [2**31 - 1 if element.size_bytes >= 4 else 1] * count
            else:
                value = [bytes(16) if element.name == "uuid" else ""] * count
            setattr(message, item.name, value)


@pytest.mark.parametrize("cls", REQUESTS, ids=[cls.__name__ for cls in REQUESTS])
def test_the_densest_request_allocates_in_proportion_to_its_size(cls, allocations):
    """Arrays of minimum-size elements have the largest number of objects per byte."""
    for version in {cls.first_version, cls.last_version}:
        message = cls()
        fill_arrays(message, version, 5000)
        frame = frame_of(message, version, b"dense")
        del message
        codec.decoder(cls, version)
        peak = peak_bytes(lambda frame=frame: read_request(frame))
        assert peak <= ALLOCATION_BASE_BYTES + ALLOCATION_FACTOR * len(frame), f"{peak / len(frame):.0f} times"
