"""Decompression in pieces has the same result as of the whole, also for damaged bytes, and no step is large."""

import random
import tracemalloc

import pytest

from odradek.protocol.batches.compression import (
    Codec,
    CompressionError,
    DecompressedTooLargeError,
    compress,
    decompress,
)
from odradek.protocol.batches.streaming import PIECE_BYTES, ThreadCall, iter_compressed, iter_decompressed, run_steps

COMPRESSED = [codec for codec in Codec if codec]
LARGE = 1 << 24
CONTENTS = {
    "nothing": b"",
    "a byte": b"a",
    "random": random.Random(1).randbytes(150_000),
    "zeros": bytes(1_000_000),
    "text": bytes(random.Random(2).choices(b"abcd", k=150_000)),
}


def pieces_of(pieces):
    """Return the bytes of pieces, running thread calls in place."""
    found = []
    for piece in pieces:
        if isinstance(piece, ThreadCall):
            piece()
        else:
            found.append(piece)
    return found


def outcome(work):
    try:
        return work()
    except CompressionError:
        return CompressionError


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", CONTENTS)
def test_pieces_are_the_whole(codec, name):
    content = CONTENTS[name]
    found = pieces_of(iter_decompressed(codec, compress(codec, content), LARGE))
    assert b"".join(found) == content
    assert all(len(piece) <= 2 * PIECE_BYTES for piece in found)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("name", CONTENTS)
def test_compressed_pieces_can_be_decompressed(codec, name):
    content = CONTENTS[name]
    source = (content[start : start + 10_000] for start in range(0, len(content), 10_000))
    compressed = b"".join(pieces_of(iter_compressed(codec, source, None, len(content))))
    assert decompress(codec, compressed, LARGE) == content


def test_a_level_out_of_range_is_refused():
    with pytest.raises(CompressionError):
        list(iter_compressed(Codec.GZIP, iter([b"a"]), 10, 1))


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("name", ["random", "zeros", "text"])
def test_damage_is_found_as_in_the_whole(codec, name):
    """Checksums of a whole lz4 frame are an exception: Java does not verify them either."""
    source = random.Random(3)
    data = compress(codec, CONTENTS[name])
    for _ in range(60):
        damaged = bytearray(data[: source.randrange(len(data)) if source.random() < 0.3 else None])
        if damaged and source.random() < 0.8:
            # The header of lz4 is not damaged, because it determines which checksums are verified.
            damaged[source.randrange(min(7, len(damaged) - 1), len(damaged))] ^= 1 << source.randrange(8)
        whole = outcome(lambda damaged=damaged: decompress(codec, damaged, LARGE))
        pieces = outcome(lambda damaged=damaged: b"".join(pieces_of(iter_decompressed(codec, damaged, LARGE))))
        assert pieces == whole


@pytest.mark.parametrize("codec", Codec)
def test_decompression_ends_when_the_limit_is_exceeded(codec):
    found = []
    with pytest.raises(DecompressedTooLargeError):
        for piece in iter_decompressed(codec, compress(codec, bytes(3_000_000)), 1_000_000):
            if isinstance(piece, ThreadCall):
                piece()
            else:
                found.append(piece)
    assert sum(map(len, found)) <= 1_000_000


def test_an_unknown_codec_is_refused():
    with pytest.raises(CompressionError):
        list(iter_decompressed(7, b"", LARGE))


def test_a_large_block_of_snappy_is_decompressed_on_a_thread():
    from cramjam import snappy

    content = bytes(5_000_000)
    pieces = iter_decompressed(Codec.SNAPPY, bytes(snappy.compress_raw(content)), LARGE)
    call = next(pieces)
    assert isinstance(call, ThreadCall)
    call()
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == content


def test_a_large_block_of_lz4_is_decompressed_on_a_thread():
    """A call that waits for a thread holds no buffer of 4 MiB, the maximum size of a block."""
    from cramjam import lz4

    content = bytes(5 << 20)
    head = b"\x04\x22\x4d\x18\x60\x70\x73"
    blocks = [bytes(lz4.compress_block(content[:size], store_size=False)) for size in (4 << 20, 1 << 20)]
    frame = head + b"".join(len(block).to_bytes(4, "little") + block for block in blocks) + bytes(4)
    tracemalloc.start()
    pieces = iter_decompressed(Codec.LZ4, frame, LARGE)
    call = next(pieces)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert isinstance(call, ThreadCall)
    assert held_bytes < 1 << 20
    call()
    assert b"".join(pieces_of(pieces)) == content


MANY = 1000
EMPTY = {
    "gzip": (Codec.GZIP, compress(Codec.GZIP, b"") * MANY),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, b"") + b"\0\0\0\1\0" * MANY),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, b"")[:-4] + b"\1\0\0\x80a" * MANY + bytes(4)),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, b"") * MANY),
    "skipped zstd": (Codec.ZSTD, b"\x50\x2a\x4d\x18\0\0\0\0" * MANY),
}


@pytest.mark.parametrize("name", EMPTY)
def test_many_parts_without_bytes_are_many_steps(name):
    codec, data = EMPTY[name]
    found = pieces_of(iter_decompressed(codec, data, LARGE))
    assert b"".join(found) == decompress(codec, data, LARGE)
    assert len(found) >= MANY
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, data, LARGE, max_parts=MANY - 1)


def test_steps_run_in_place():
    call = ThreadCall(lambda: b"a")

    def steps():
        yield None
        yield call
        return call.result

    assert run_steps(steps()) == b"a"


def test_an_error_on_the_thread_is_raised_where_the_result_is_used():
    call = ThreadCall(lambda: b"a"[7:][0])
    call()
    with pytest.raises(IndexError):
        _ = call.result
