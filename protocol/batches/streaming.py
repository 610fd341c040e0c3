"""Decompression and compression of a batch's records in pieces; time per step and memory do not depend on their size.

A step takes well below a millisecond. Work that a codec cannot divide (a large block, any compression) is a
`ThreadCall`: the caller runs it on a thread, where the C library releases the interpreter's lock, and then continues
the iteration. `run_steps` runs it in the calling thread.

Memory is one piece of input and output, a block of lz4 (up to 4 MiB) or of snappy (up to `max_bytes`), and the window
of a zstd frame (up to `max_bytes`).

Sources: as in `compression`; xxHash specification (checksum of lz4 headers).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, Generic, TypeVar

from odradek.protocol.batches.compression import (
    LEVELS,
    LZ4_BLOCK_BYTES,
    LZ4_END_MARK,
    LZ4_HEADER,
    XERIAL_BLOCK_BYTES,
    XERIAL_HEADER,
    Buffer,
    Codec,
    CompressionError,
    compress_lz4_block,
    compress_xerial_block,
    is_gzip_member,
    lz4_blocks,
    read_lz4_header,
    skip_zstd_frame,
    snappy_blocks,
    snappy_size,
    too_large,
    zstd_blocks,
)

T = TypeVar("T")

PIECE_BYTES: Final = 64 * 1024
"""Usual size of a piece; a piece may be larger by a block of its codec."""
_GZIP_WINDOW_BITS: Final = 31
_GZIP_FEED_BYTES: Final = 16 * 1024
_THREAD_BLOCK_BYTES: Final = 1024 * 1024
"""Snappy and lz4 blocks above this size are decompressed on a thread; this size takes about half a millisecond."""
_ZSTD_FEED_BLOCKS: Final = 64


class ThreadCall(Generic[T]):
    """A long call that should not run on the reactor thread."""

    __slots__ = ("_error", "_result", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._error: Exception | None = None

    def __call__(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error

    @property
    def result(self) -> T:
        """The result of the call. Raises the exception that the call raised."""
        if self._error is not None:
            raise self._error
        return self._result


Step = ThreadCall[bytes] | None
"""Value that a generator of long work yields after each step: None, or a call to run before the next step."""
StreamPiece = bytes | ThreadCall[bytes]
"""A piece of record bytes, or a call to run before the next piece."""


def run_steps(steps: Generator[Step, None, T], after_each: Callable[[], None] = lambda: None) -> T:
    """Run all steps in the calling thread, `after_each` after each of them, and return the result."""
    try:
        while True:
            call = next(steps)
            if call is not None:
                call()
            after_each()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


# --- decompression


def iter_decompressed(codec: int, data: Buffer, max_bytes: int) -> Iterator[StreamPiece]:
    """Decompress a batch's record bytes in pieces of up to 128 KiB; an empty piece is a step without output.

    A `ThreadCall` has to be run before the iteration continues.

    Raises, possibly after some pieces: CompressionError if the data is corrupt or truncated or the codec unknown,
    DecompressedTooLargeError once the output exceeds `max_bytes`.
    """
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise CompressionError(f"unknown compression codec {codec}")
    remaining_bytes = max_bytes
    for piece in decompressor(memoryview(data), max_bytes):
        if isinstance(piece, ThreadCall):
            yield piece
            piece = piece.result
        remaining_bytes -= len(piece)
        if remaining_bytes < 0:
            raise too_large(max_bytes)
        if len(piece) <= 2 * PIECE_BYTES:
            yield piece
        else:
            for start in range(0, len(piece), PIECE_BYTES):
                yield piece[start : start + PIECE_BYTES]


def _plain_pieces(data: memoryview, _max_bytes: int) -> Iterator[StreamPiece]:
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(data[start : start + PIECE_BYTES])


def _gzip_pieces(data: memoryview, _max_bytes: int) -> Iterator[StreamPiece]:
    position = 0
    try:
        while True:
            inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
            is_full = False
            while not inflater.eof:
                fed: Buffer = inflater.unconsumed_tail
                if not fed and not is_full:
                    fed = data[position : position + _GZIP_FEED_BYTES]
                    position += len(fed)
                    if not fed:
                        raise CompressionError("gzip: truncated member")
                piece = inflater.decompress(fed, PIECE_BYTES)
                # zlib may hold further output even without input.
                is_full = len(piece) == PIECE_BYTES
                yield piece
            position -= len(inflater.unused_data)
            if not is_gzip_member(data, position):
                return
    except zlib.error as error:
        raise CompressionError(f"gzip: {error}") from error


def _snappy_pieces(data: memoryview, max_bytes: int) -> Iterator[StreamPiece]:
    from cramjam import DecompressionError, snappy

    def decompressed(block: memoryview) -> bytes:
        try:
            return bytes(snappy.decompress_raw(block))
        except DecompressionError as error:
            raise CompressionError(f"snappy: {error}") from error

    for block in snappy_blocks(data):
        if block is None:
            yield b""
            continue
        try:
            size_bytes = snappy_size(block)
        except DecompressionError as error:
            raise CompressionError(f"snappy: {error}") from error
        if size_bytes > max_bytes:
            raise too_large(max_bytes)
        if size_bytes > _THREAD_BLOCK_BYTES:
            yield ThreadCall(partial(decompressed, block))
        else:
            yield decompressed(block)


def _lz4_pieces(data: memoryview, _max_bytes: int) -> Iterator[StreamPiece]:
    """Decompress each block as a separate frame, so that the library verifies the block's checksum.

    As in Java, the checksum and the size of the whole content are not verified.
    """
    from cramjam import DecompressionError, lz4

    max_block_bytes, position = read_lz4_header(data)
    if len(data) < position or _xxhash_32(bytes(data[4 : position - 1])) >> 8 & 0xFF != data[position - 1]:
        raise CompressionError("lz4: the checksum of the frame's header does not match")
    flags = bytes((data[4] & 0x70, data[5]))
    head = bytes(data[:4]) + flags + bytes((_xxhash_32(flags) >> 8 & 0xFF,))
    output = bytearray()

    def decompressed(block: memoryview) -> bytes:
        if not output:
            # Allocated here, so that calls that wait for a thread hold no buffer.
            output.extend(bytes(max_block_bytes))
        try:
            size_bytes = lz4.decompress_into(b"".join((head, block, LZ4_END_MARK)), output)
        except DecompressionError as error:
            raise CompressionError(f"lz4: {error}") from error
        with memoryview(output) as view:
            return bytes(view[:size_bytes])

    for start, end in lz4_blocks(data, max_block_bytes, position):
        if end - start == len(LZ4_END_MARK):
            return
        if max_block_bytes > _THREAD_BLOCK_BYTES:
            yield ThreadCall(partial(decompressed, data[start:end]))
        else:
            yield decompressed(data[start:end])


def _xxhash_32(data: bytes) -> int:
    """Return the xxHash32 of fewer than 16 bytes, with seed 0."""
    mask = 0xFFFFFFFF
    value = 0x165667B1 + len(data)
    words = len(data) // 4 * 4
    for start in range(0, words, 4):
        value = value + int.from_bytes(data[start : start + 4], "little") * 0xC2B2AE3D & mask
        value = (value << 17 | value >> 15) * 0x27D4EB2F & mask
    for byte in data[words:]:
        value = value + byte * 0x165667B1 & mask
        value = (value << 11 | value >> 21) * 0x9E3779B1 & mask
    value = (value ^ value >> 15) * 0x85EBCA77 & mask
    value = (value ^ value >> 13) * 0xC2B2AE3D & mask
    return value ^ value >> 16


def _zstd_pieces(data: memoryview, max_bytes: int) -> Iterator[StreamPiece]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    position = 0
    try:
        while position < len(data):
            skipped = skip_zstd_frame(data, position)
            if skipped is not None:
                position = skipped
                yield b""
                continue
            frame = decompressor.decompressobj()
            bound_bytes = blocks = 0
            start = position
            for position, block_bytes, _ in zstd_blocks(data, start):
                bound_bytes += block_bytes
                blocks += 1
                if bound_bytes >= 2 * PIECE_BYTES or blocks == _ZSTD_FEED_BLOCKS:
                    yield frame.decompress(data[start:position])
                    start = position
                    bound_bytes = blocks = 0
            if start < position:
                yield frame.decompress(data[start:position])
            if not frame.eof:
                raise CompressionError("zstd: truncated frame")
    except zstandard.ZstdError as error:
        raise CompressionError(f"zstd: {error}") from error


_DECOMPRESSORS: dict[int, Callable[[memoryview, int], Iterator[StreamPiece]]] = {
    Codec.NONE: _plain_pieces,
    Codec.GZIP: _gzip_pieces,
    Codec.SNAPPY: _snappy_pieces,
    Codec.LZ4: _lz4_pieces,
    Codec.ZSTD: _zstd_pieces,
}


# --- compression


def iter_compressed(
    codec: int, pieces: Iterator[StreamPiece], level: int | None, size_bytes: int
) -> Iterator[StreamPiece]:
    """Compress pieces of record bytes, `size_bytes` or slightly more in total, as `compression.compress` does at once.

    A `ThreadCall` has to be run before the iteration continues. Raises CompressionError for a level out of range.
    """
    if codec == Codec.NONE:
        yield from pieces
        return
    begin, block_bytes = _COMPRESSORS[codec]
    levels = LEVELS.get(Codec(codec))
    if levels is not None:
        level = levels.default if level is None else level
        if level != levels.default and not levels.minimum <= level <= levels.maximum:
            raise CompressionError(f"{Codec(codec).name.lower()} has no compression level {level}")
    header, compress, finish = begin(level or 0, size_bytes)
    yield header
    gathered = bytearray()
    for piece in pieces:
        if isinstance(piece, ThreadCall):
            yield piece
            continue
        gathered += piece
        yield b""
        while len(gathered) >= block_bytes:
            call = ThreadCall(partial(compress, bytes(gathered[:block_bytes])))
            del gathered[:block_bytes]
            yield call
            yield call.result
    calls = [ThreadCall(partial(compress, bytes(gathered)))] if gathered else []
    for call in (*calls, ThreadCall(finish)):
        yield call
        yield call.result


_Compressor = tuple[bytes, Callable[[bytes], bytes], Callable[[], bytes]]
"""Header bytes, a function that compresses a piece, and a function that returns the final bytes."""


def _begin_gzip(level: int, _size_bytes: int) -> _Compressor:
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return b"", compressor.compress, compressor.flush


def _begin_snappy(_level: int, _size_bytes: int) -> _Compressor:
    return XERIAL_HEADER, lambda block: compress_xerial_block(memoryview(block)), bytes


def _begin_lz4(level: int, _size_bytes: int) -> _Compressor:
    return LZ4_HEADER, lambda block: compress_lz4_block(memoryview(block), level), lambda: LZ4_END_MARK


def _begin_zstd(level: int, size_bytes: int) -> _Compressor:
    import zstandard

    # Without `source_size` the highest levels allocate hundreds of megabytes.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=size_bytes, write_content_size=False
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return b"", compressor.compress, compressor.flush


_COMPRESSORS: dict[int, tuple[Callable[[int, int], _Compressor], int]] = {
    Codec.GZIP: (_begin_gzip, PIECE_BYTES),
    Codec.SNAPPY: (_begin_snappy, XERIAL_BLOCK_BYTES),
    Codec.LZ4: (_begin_lz4, LZ4_BLOCK_BYTES),
    Codec.ZSTD: (_begin_zstd, PIECE_BYTES),
}
