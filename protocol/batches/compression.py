"""The four compression codecs of record batches, in the framings of Kafka's Java client.

The payload of a batch is one compressed stream:
- gzip: RFC 1952. Further members are read; other bytes after a member are ignored.
- snappy: written in xerial framing (16 byte header, then length-prefixed raw blocks); a single raw block is also read.
- lz4: LZ4 frame with independent 64 KiB blocks. Only the first frame is read; it may have any block size.
- zstd: streamed frame without content size. Further frames are read.

Decompression allocates at most about `max_bytes` for output: before memory is allocated, the size of the output is
bounded from the block headers; otherwise the output is produced in pieces.

Sources: KIP-110 (zstd), KIP-390 (levels), LZ4 frame format 1.6, RFC 8878 (zstd), snappy-java's SnappyOutputStream.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview


class CompressionError(ValueError):
    """Data that is malformed or too large, or a codec or level that does not exist."""


class Codec(IntEnum):
    """Compression codec: bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressedTooLargeError(CompressionError):
    """Decompressed data that exceeds the limit."""


class LevelRange(NamedTuple):
    """The compression levels of a codec (KIP-390); `default` is allowed even outside the range."""

    minimum: int
    maximum: int
    default: int


LEVELS = {
    Codec.GZIP: LevelRange(1, 9, -1),
    Codec.LZ4: LevelRange(1, 17, 9),
    Codec.ZSTD: LevelRange(-131072, 22, 3),
}

_BIG_INT32 = Struct(">i")
_LITTLE_UINT32 = Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress a batch's record bytes as Kafka's Java producer does.

    `level` None is the codec's default; codecs without levels ignore `level`. Raises CompressionError for an unknown
    codec or a level out of range.
    """
    if codec == Codec.NONE:
        return bytes(data)
    compressor = _COMPRESSORS.get(codec)
    if compressor is None:
        raise CompressionError(f"unknown compression codec {codec}")
    levels = LEVELS.get(Codec(codec))
    if levels is None:
        return compressor(data, 0)
    if level is None:
        level = levels.default
    if level != levels.default and not levels.minimum <= level <= levels.maximum:
        raise CompressionError(f"{Codec(codec).name.lower()} has no compression level {level}")
    return compressor(data, level)


def decompress(codec: int, data: Buffer, max_bytes: int, max_parts: int = sys.maxsize) -> bytes:
    """Decompress a batch's record bytes. `streaming` does the same in steps.

    Raises CompressionError if the data is corrupt or truncated or the codec is unknown, DecompressedTooLargeError if
    the output would exceed `max_bytes`. lz4 and zstd frames need not state a size: corrupt data whose upper bound
    exceeds `max_bytes` is reported as too large. So is data of more than `max_parts` members, frames and blocks,
    because each takes an iteration of a Python loop.
    """
    if codec == Codec.NONE:
        if len(data) > max_bytes:
            raise too_large(max_bytes)
        return bytes(data)
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise CompressionError(f"unknown compression codec {codec}")
    return decompressor(memoryview(data), max_bytes, max_parts)


def too_many(max_parts: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"compressed records have more than {max_parts} parts")


def too_large(max_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"decompressed records exceed {max_bytes} bytes")


# --- gzip

_GZIP_WINDOW_BITS = 31
_GZIP_MAGIC = b"\x1f\x8b\x08"
# Java reads another member only if more bytes than a member's header remain.
_GZIP_HEADER_BYTES = 18
_GZIP_FIRST_FEED_BYTES = 16 * 1024


def _compress_gzip(data: Buffer, level: int) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()


def _decompress_gzip(data: memoryview, max_bytes: int, max_parts: int) -> bytes:
    pieces: list[bytes] = []
    position = 0
    allowed_bytes = max_bytes
    for _ in range(max_parts):
        position, size_bytes = _inflate_member(data, position, allowed_bytes, pieces)
        allowed_bytes -= size_bytes
        if not is_gzip_member(data, position):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise too_many(max_parts)


def is_gzip_member(data: memoryview, position: int) -> bool:
    """Return whether another member follows the one that ended at `position`."""
    return len(data) - position > _GZIP_HEADER_BYTES and data[position : position + 3] == _GZIP_MAGIC


def _inflate_member(data: memoryview, position: int, allowed_bytes: int, pieces: list[bytes]) -> tuple[int, int]:
    """Decompress one member into `pieces`. Return its end position and decompressed size.

    The input is fed in growing steps because zlib copies the input beyond the member's end. A payload of many tiny
    members would otherwise take quadratic time.
    """
    inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
    feed_bytes = _GZIP_FIRST_FEED_BYTES
    size_bytes = 0
    while not inflater.eof:
        fed = data[position : position + feed_bytes]
        if not fed:
            raise CompressionError("gzip: truncated member")
        try:
            # One byte more than allowed: output of that size is then recognized as too large.
            piece = inflater.decompress(fed, allowed_bytes - size_bytes + 1)
        except zlib.error as error:
            raise CompressionError(f"gzip: {error}") from error
        size_bytes += len(piece)
        if size_bytes > allowed_bytes:
            raise too_large(allowed_bytes)
        pieces.append(piece)
        position += len(fed)
        feed_bytes *= 2
    return position - len(inflater.unused_data), size_bytes


# --- snappy

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEADER_BYTES = 16
XERIAL_BLOCK_BYTES = 32 * 1024
# The densest element of the format is a copy: 3 bytes become 64.
_SNAPPY_MAX_RATIO = 22


def _compress_snappy(data: Buffer, _level: int) -> bytes:
    view = memoryview(data)
    pieces = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        pieces.append(compress_xerial_block(view[start : start + XERIAL_BLOCK_BYTES]))
    return b"".join(pieces)


def compress_xerial_block(plain: memoryview) -> bytes:
    """Return a block of an xerial stream, with its length."""
    from cramjam import snappy

    block = bytes(snappy.compress_raw(plain))
    return _BIG_INT32.pack(len(block)) + block


def _decompress_snappy(data: memoryview, max_bytes: int, max_parts: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        sized_blocks = []
        for parts, block in enumerate(snappy_blocks(data)):
            if parts >= max_parts:
                raise too_many(max_parts)
            if block is not None:
                sized_blocks.append((block, snappy_size(block)))
        total_bytes = sum(size_bytes for _, size_bytes in sized_blocks)
        if total_bytes > max_bytes:
            raise too_large(max_bytes)
        output = bytearray(total_bytes)
        position = 0
        with memoryview(output) as target:
            for block, size_bytes in sized_blocks:
                snappy.decompress_raw_into(block, target[position : position + size_bytes])
                position += size_bytes
    except DecompressionError as error:
        raise CompressionError(f"snappy: {error}") from error
    return bytes(output)


def snappy_size(block: memoryview) -> int:
    """Return the decompressed size that a raw block states. Raises DecompressionError, CompressionError."""
    from cramjam import snappy

    claimed_bytes: int = snappy.decompress_raw_len(block)
    if claimed_bytes > len(block) * _SNAPPY_MAX_RATIO:
        raise CompressionError(f"snappy: a block of {len(block)} bytes cannot decompress to {claimed_bytes} bytes")
    return claimed_bytes


def snappy_blocks(data: memoryview) -> Iterator[memoryview | None]:
    """Iterate over the raw blocks of an xerial stream; None stands for the header of a further stream.

    Without an xerial header, `data` is the only block. A tail that is too short for a length is ignored, as in Java.
    """
    if len(data) < _XERIAL_HEADER_BYTES or data[:8] != _XERIAL_MAGIC:
        yield data
        return
    if _BIG_INT32.unpack_from(data, 12)[0] < 1:
        raise CompressionError("snappy: unsupported stream version")
    position = _XERIAL_HEADER_BYTES
    end = len(data)
    while end - position >= 4:
        if data[position : position + 4] == _XERIAL_MAGIC[:4]:
            # Streams may be concatenated, each with its header.
            position += _XERIAL_HEADER_BYTES
            yield None
            continue
        size_bytes = _BIG_INT32.unpack_from(data, position)[0]
        position += 4
        if not 0 <= size_bytes <= end - position:
            raise CompressionError(f"snappy: block of {size_bytes} bytes, but {end - position} bytes remain")
        yield data[position : position + size_bytes]
        position += size_bytes


# --- lz4

_LZ4_MAGIC = 0x184D2204
# Version 1, independent blocks; 64 KiB blocks; second byte of the xxHash32 of these two bytes.
LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
LZ4_END_MARK = b"\x00\x00\x00\x00"
LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_FLAG_BLOCK_CHECKSUM = 0x10
_LZ4_FLAG_CONTENT_SIZE = 0x08
_LZ4_FLAG_CONTENT_CHECKSUM = 0x04
# Required by Java: version bits 01, independent blocks, reserved bits clear.
_LZ4_FIXED_FLAGS_MASK = 0xE3
_LZ4_FIXED_FLAGS = 0x60
_LZ4_MAX_RATIO = 255
# The library's levels that select the high compressor; lower levels select the fast one.
_LZ4_HIGH_LEVELS = range(3, 13)
# LZ4_HEADER with a checksum after each block.
_LZ4_CHECKED_BLOCKS_HEADER = b"\x04\x22\x4d\x18\x70\x40"


def _compress_lz4(data: Buffer, level: int) -> bytes:
    view = memoryview(data)
    pieces = [LZ4_HEADER]
    for start in range(0, len(view), LZ4_BLOCK_BYTES):
        pieces.append(compress_lz4_block(view[start : start + LZ4_BLOCK_BYTES], level))
    pieces.append(LZ4_END_MARK)
    return b"".join(pieces)


def compress_lz4_block(plain: memoryview, level: int) -> bytes:
    """Return a block of an LZ4 frame, with its size."""
    # The default level is the fast compressor and every other one, level 1 included, the high compressor (KIP-390).
    is_fast = level == LEVELS[Codec.LZ4].default
    block = _fast_lz4_block(plain) if is_fast else _high_lz4_block(plain, level)
    if len(block) < len(plain):
        return _LITTLE_UINT32.pack(len(block)) + block
    return _LITTLE_UINT32.pack(len(plain) | _LZ4_STORED) + bytes(plain)


def _fast_lz4_block(plain: memoryview) -> bytes:
    from cramjam import lz4

    return bytes(lz4.compress_block(plain, store_size=False))


def _high_lz4_block(plain: memoryview, level: int) -> bytes:
    """Compress with the high compressor, which the library offers for whole frames only; return the frame's block."""
    from cramjam import lz4

    library_level = min(max(level, _LZ4_HIGH_LEVELS.start), _LZ4_HIGH_LEVELS[-1])
    compressor = lz4.Compressor(level=library_level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(plain))
    frame = bytes(compressor.finish())
    if frame[:6] != _LZ4_CHECKED_BLOCKS_HEADER:
        raise CompressionError(f"lz4: the library returned an unexpected frame that begins with {frame[:6].hex()}")
    size_bytes = _LITTLE_UINT32.unpack_from(frame, 7)[0] & ~_LZ4_STORED
    return frame[11 : 11 + size_bytes]


def _decompress_lz4(data: memoryview, max_bytes: int, max_parts: int) -> bytes:
    from cramjam import DecompressionError, lz4

    end, bound_bytes = _walk_lz4_frame(data, max_parts)
    output = bytearray(min(bound_bytes, max_bytes))
    try:
        size_bytes = lz4.decompress_into(data[:end], output)
    except DecompressionError as error:
        kind = DecompressedTooLargeError if bound_bytes > max_bytes else CompressionError
        raise kind(f"lz4: {error}, at most {max_bytes} bytes allowed") from error
    with memoryview(output) as view:
        return bytes(view[:size_bytes])


def _walk_lz4_frame(data: memoryview, max_parts: int) -> tuple[int, int]:
    """Return the end position of the first frame and an upper bound of its decompressed size."""
    max_block_bytes, position = read_lz4_header(data)
    bound_bytes = 0
    end = position
    for parts, (start, end) in enumerate(lz4_blocks(data, max_block_bytes, position)):  # noqa: B007
        if parts >= max_parts:
            raise too_many(max_parts)
        word = _LITTLE_UINT32.unpack_from(data, start)[0]
        size_bytes = word & ~_LZ4_STORED
        bound_bytes += size_bytes if word & _LZ4_STORED else min(max_block_bytes, size_bytes * _LZ4_MAX_RATIO)
    return end + (4 if data[4] & _LZ4_FLAG_CONTENT_CHECKSUM else 0), bound_bytes


def read_lz4_header(data: memoryview) -> tuple[int, int]:
    """Return the maximum size of a block and the position of the first block."""
    if len(data) < 7 or _LITTLE_UINT32.unpack_from(data)[0] != _LZ4_MAGIC:
        raise CompressionError("lz4: no frame")
    flags, block_descriptor = data[4], data[5]
    if flags & _LZ4_FIXED_FLAGS_MASK != _LZ4_FIXED_FLAGS:
        raise CompressionError(f"lz4: unsupported frame flags {flags:#x}")
    if block_descriptor & 0x8F or block_descriptor < 0x40:
        raise CompressionError(f"lz4: unsupported block descriptor {block_descriptor:#x}")
    return 1 << (8 + 2 * (block_descriptor >> 4)), 15 if flags & _LZ4_FLAG_CONTENT_SIZE else 7


def lz4_blocks(data: memoryview, max_block_bytes: int, position: int) -> Iterator[tuple[int, int]]:
    """Iterate over (start, end) of the blocks of the first frame, size and checksum included, and of its end mark."""
    trailer_bytes = 4 if data[4] & _LZ4_FLAG_BLOCK_CHECKSUM else 0
    end = len(data)
    while end - position >= 4:
        start = position
        size_bytes = _LITTLE_UINT32.unpack_from(data, position)[0] & ~_LZ4_STORED
        position += 4
        if size_bytes == 0:
            yield start, position
            return
        if size_bytes > max_block_bytes:
            raise CompressionError(f"lz4: block of {size_bytes} bytes exceeds {max_block_bytes}")
        position += size_bytes + trailer_bytes
        yield start, position
    raise CompressionError("lz4: truncated frame")


# --- zstd

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50
_ZSTD_SKIPPABLE_MASK = 0xFFFFFFF0
_ZSTD_MAX_BLOCK_BYTES = 128 * 1024
_ZSTD_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_ZSTD_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_ZSTD_COMPRESSED_BLOCK = 2
_ZSTD_RLE_BLOCK = 1


def _compress_zstd(data: Buffer, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_content_size=False).compress(data)


def _decompress_zstd(data: memoryview, max_bytes: int, max_parts: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    pieces: list[bytes] = []
    remaining_bytes = max_bytes
    may_exceed = False
    try:
        for frame, bound_bytes in _zstd_frames(data, max_bytes, max_parts):
            # The library would allocate the size that the frame states.
            stated = zstandard.get_frame_parameters(frame).content_size
            if stated != zstandard.CONTENTSIZE_UNKNOWN and stated > min(bound_bytes, remaining_bytes):
                raise too_large(max_bytes)
            may_exceed = bound_bytes > remaining_bytes
            piece = decompressor.decompress(frame, max_output_size=max(1, min(bound_bytes, remaining_bytes)))
            remaining_bytes -= len(piece)
            pieces.append(piece)
    except zstandard.ZstdError as error:
        kind = DecompressedTooLargeError if may_exceed else CompressionError
        raise kind(f"zstd: {error}, at most {max_bytes} bytes allowed") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _zstd_frames(data: memoryview, max_bytes: int, max_parts: int) -> Iterator[tuple[memoryview, int]]:
    """Iterate over the frames that are not skippable, each with an upper bound of its decompressed size.

    Raises CompressionError if the blocks with a stated size already exceed `max_bytes`, and for bytes that are no
    frame. Other errors are left to the library.
    """
    position = parts = 0
    while position < len(data):
        parts += 1
        if parts > max_parts:
            raise too_many(max_parts)
        skipped = skip_zstd_frame(data, position)
        if skipped is not None:
            position = skipped
            continue
        start = position
        bound_bytes = stated_bytes = 0
        for position, block_bytes, is_stated in zstd_blocks(data, start):  # noqa: B007 - the end of the last block
            parts += 1
            if parts > max_parts:
                raise too_many(max_parts)
            bound_bytes += block_bytes
            if is_stated:
                stated_bytes += block_bytes
                if stated_bytes > max_bytes:
                    raise too_large(max_bytes)
        yield data[start:position], bound_bytes


def skip_zstd_frame(data: memoryview, position: int) -> int | None:
    """Return the end of the skippable frame at `position`; None for a frame that is not skippable."""
    if len(data) - position < 8:
        raise CompressionError("zstd: truncated frame")
    magic = _LITTLE_UINT32.unpack_from(data, position)[0]
    if magic & _ZSTD_SKIPPABLE_MASK == _ZSTD_SKIPPABLE_MAGIC:
        return position + 8 + int(_LITTLE_UINT32.unpack_from(data, position + 4)[0])
    if magic != _ZSTD_MAGIC:
        raise CompressionError("zstd: no frame")
    return None


def zstd_blocks(data: memoryview, position: int) -> Iterator[tuple[int, int, bool]]:
    """Iterate over (end, maximum decompressed size, whether that size is exact) of the blocks of a frame."""
    descriptor = data[position + 4]
    single_segment = descriptor >> 5 & 1
    content_size_bytes = _ZSTD_CONTENT_SIZE_BYTES[descriptor >> 6] or single_segment
    position += 5 + (not single_segment) + _ZSTD_DICTIONARY_ID_BYTES[descriptor & 3] + content_size_bytes
    last = 0
    while not last:
        if len(data) - position < 3:
            raise CompressionError("zstd: truncated frame")
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last, kind, size_bytes = header & 1, header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size_bytes)
        if last and descriptor & 4:
            position += 4
        is_stated = kind != _ZSTD_COMPRESSED_BLOCK
        yield position, size_bytes if is_stated else _ZSTD_MAX_BLOCK_BYTES, is_stated


_COMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: dict[int, Callable[[memoryview, int, int], bytes]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
