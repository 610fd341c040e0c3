"""The codecs compared with other libraries, and with bytes that state wrong sizes."""

import gzip
import os
import struct
import subprocess
import sys
import zlib
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from cramjam import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.batches.compression import LEVELS, Codec, CompressionError, compress, decompress

TEXT = b"the quick brown fox " * 20_000
NOISE = os.urandom(150_000)
REAL_CODECS = [codec for codec in Codec if codec]
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def xerial(*blocks):
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def lz4_frame(data, **options):
    settings = {"block_size": lz4.frame.BLOCKSIZE_MAX64KB, "block_linked": False, "store_size": False}
    return lz4.frame.compress(data, **{**settings, **options})


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, NOISE + TEXT], ids=["none", "one", "text", "noise", "both"])
def test_roundtrip_up_to_the_limit_and_not_beyond(codec, data):
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    assert decompress(codec, memoryview(compressed), len(data) + 1000) == data
    if data:
        with pytest.raises(CompressionError):
            decompress(codec, compressed, len(data) - 1)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(REAL_CODECS), st.binary(max_size=300), st.integers(1, 2000))
def test_roundtrip_of_anything(codec, data, times):
    assert decompress(codec, compress(codec, data * times), len(data) * times) == data * times


@pytest.mark.parametrize("codec", LEVELS)
def test_levels(codec):
    levels = LEVELS[codec]
    for level in (levels.minimum, levels.minimum + 1, levels.default, levels.maximum):
        assert decompress(codec, compress(codec, memoryview(TEXT), level), len(TEXT)) == TEXT
    for level in (levels.minimum - 3, levels.maximum + 1):
        with pytest.raises(CompressionError):
            compress(codec, b"x", level)


def test_a_level_changes_the_outcome():
    data = b"".join(b"%d:%d," % (i, i * i) for i in range(20_000))
    assert len(compress(Codec.GZIP, data, 9)) < len(compress(Codec.GZIP, data, 1))
    assert len(compress(Codec.LZ4, data, 12)) < len(compress(Codec.LZ4, data)) == len(compress(Codec.LZ4, data, 9))
    assert len(compress(Codec.ZSTD, data, 19)) < len(compress(Codec.ZSTD, data, -5))
    assert compress(Codec.SNAPPY, data, 3) == compress(Codec.SNAPPY, data)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codec(codec):
    with pytest.raises(CompressionError):
        compress(codec, b"")
    with pytest.raises(CompressionError):
        decompress(codec, b"", 10)


def test_snappy_is_written_in_xerial_framing_and_read_raw_too():
    compressed = compress(Codec.SNAPPY, TEXT)
    assert compressed.startswith(XERIAL)
    size_bytes = struct.unpack_from(">i", compressed, 16)[0]
    assert bytes(snappy.decompress_raw(compressed[20 : 20 + size_bytes])) == TEXT[: 32 * 1024]
    assert decompress(Codec.SNAPPY, bytes(snappy.compress_raw(TEXT)), len(TEXT)) == TEXT


def test_snappy_streams_follow_each_other_and_a_short_tail_is_ignored():
    block = bytes(snappy.compress_raw(b"abc"))
    assert decompress(Codec.SNAPPY, xerial(block) + xerial(block, block) + b"\x00\x00", 100) == b"abc" * 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        xerial(b"\xff\xff\xff\xff\x07abc"),
        xerial(b"abc"),
        XERIAL + struct.pack(">i", -5) + b"abc",
        XERIAL + struct.pack(">i", 4) + b"abc",
        XERIAL[:12] + struct.pack(">i", 0),
        b"\xff" * 20,
    ],
)
def test_bad_snappy(data):
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, data, 2**31)


def test_lz4_is_written_as_java_writes_it():
    for level in (None, 1, 12):
        compressed = compress(Codec.LZ4, NOISE + TEXT, level)
        assert compressed.startswith(b"\x04\x22\x4d\x18\x60\x40\x82")
        assert compressed.endswith(b"\x00\x00\x00\x00")
        assert lz4.frame.decompress(compressed) == NOISE + TEXT


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
        {"store_size": True},
        {"content_checksum": True, "block_checksum": True},
        {"compression_level": 12},
    ],
    ids=str,
)
def test_lz4_frames_of_others(options):
    frame = lz4_frame(NOISE + TEXT, **options)
    assert decompress(Codec.LZ4, frame, len(NOISE + TEXT)) == NOISE + TEXT
    assert decompress(Codec.LZ4, frame + b"ignored, as in Java", len(NOISE + TEXT)) == NOISE + TEXT
    for end in (len(frame) - 1, len(frame) // 2, 8, 6, 0):
        with pytest.raises(CompressionError):
            decompress(Codec.LZ4, frame[:end], 10**6)


def test_bad_lz4():
    frame = bytearray(lz4_frame(TEXT))
    for position, value in ((0, 0), (4, 0x20), (4, 0x40), (4, 0x61), (5, 0x30), (5, 0xC0), (6, 0), (9, 0xFF)):
        bad = bytearray(frame)
        bad[position] = value
        with pytest.raises(CompressionError):
            decompress(Codec.LZ4, bad, 10**6)
    with pytest.raises(CompressionError):
        decompress(Codec.LZ4, lz4_frame(TEXT, block_linked=True), 10**6)


def test_gzip_members_follow_each_other_and_garbage_is_ignored():
    two = gzip.compress(b"abc", mtime=0) + compress(Codec.GZIP, b"def")
    assert decompress(Codec.GZIP, two, 6) == b"abcdef"
    assert decompress(Codec.GZIP, two + b"garbage that is long enough for a header", 6) == b"abcdef"
    assert decompress(Codec.GZIP, two + b"\x1f\x8b\x08", 6) == b"abcdef"
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, two, 5)


def test_many_tiny_gzip_members_take_linear_time():
    assert decompress(Codec.GZIP, gzip.compress(b"a", mtime=0) * 20_000, 20_000) == b"a" * 20_000


ABC = gzip.compress(b"abc", mtime=0)


@pytest.mark.parametrize("data", [b"", ABC[:-1], ABC[:4], zlib.compress(b"abc")])
def test_bad_gzip(data):
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, data, 100)


def test_zstd_is_streamed_and_others_frames_are_read():
    assert zstandard.frame_content_size(compress(Codec.ZSTD, TEXT)) == -1
    assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(Codec.ZSTD, TEXT)) == TEXT
    for options in ({}, {"write_content_size": False}, {"write_checksum": True}, {"level": 22}):
        frame = zstandard.ZstdCompressor(**options).compress(NOISE + TEXT)
        skippable = struct.pack("<II", 0x184D2A53, 3) + b"abc"
        assert decompress(Codec.ZSTD, skippable + frame + frame, 2 * len(NOISE + TEXT)) == (NOISE + TEXT) * 2
        for end in (len(frame) - 1, len(frame) // 2, 8, 7, 4, 1):
            with pytest.raises(CompressionError):
                decompress(Codec.ZSTD, frame[:end], 10**6)
        with pytest.raises(CompressionError):
            decompress(Codec.ZSTD, frame + b"more", 10**6)
    assert decompress(Codec.ZSTD, b"", 10) == b""


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(REAL_CODECS),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.integers(0, 10_000),
)
def test_damaged_bytes_give_bytes_or_the_declared_error(codec, changes, cut):
    damaged = bytearray(compress(codec, TEXT[:5000] + NOISE[:2000]))
    for position, value in changes:
        damaged[position % len(damaged)] = value
    if cut % 3 == 0:
        del damaged[cut % len(damaged) :]
    with suppress(CompressionError):
        assert len(decompress(codec, damaged, 20_000)) <= 20_000


BOMBS = """
import resource, struct, sys, zlib
from cramjam import lz4
from odradek.protocol.batches.compression import Codec, CompressionError, compress, decompress

MIB = 1 << 20
deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
gzip_bomb = b"".join(deflater.compress(bytes(MIB)) for _ in range(512)) + deflater.flush()
block = bytes(lz4.compress_block(bytes(65536), store_size=False))
lz4_block = struct.pack("<I", len(block)) + block
lz4_bomb = b"\\x04\\x22\\x4d\\x18\\x60\\x40\\x82" + lz4_block * 8192 + bytes(4)
zstd_rle = (131071 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
zstd_bomb = bytes.fromhex("28b52ffd0058") + zstd_rle * 4096 + b"\\x01\\x00\\x00"
frame = compress(Codec.ZSTD, bytes(128 * 1024))
header = b"\\x82SNAPPY\\x00" + struct.pack(">ii", 1, 1)
# Half a gigabyte stated by a block that could not hold it, and stated by blocks that could.
lying = b"\\x80\\x80\\x80\\x80\\x02" + b"abc"
filled = compress(Codec.SNAPPY, bytes(MIB))[16:]
bombs = [
    (Codec.GZIP, gzip_bomb),
    (Codec.LZ4, lz4_bomb),
    (Codec.ZSTD, zstd_bomb),
    (Codec.ZSTD, frame * 4096),
    (Codec.SNAPPY, header + struct.pack(">i", len(lying)) + lying),
    (Codec.SNAPPY, lying),
    (Codec.SNAPPY, header + filled * 512),
]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, bomb in bombs:
    try:
        decompress(codec, bomb, MIB)
    except CompressionError:
        continue
    sys.exit(f"{codec.name}: no error")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_bomb_takes_no_more_memory_than_allowed():
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 12 * 1024
