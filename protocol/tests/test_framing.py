"""The same stream in every chunking gives the same frames (as h11's fuzzing does for HTTP)."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.framing import FrameError, FrameSplitter


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def split(pieces, limit=100_000):
    splitter = FrameSplitter(limit)
    return [bytes(found) for piece in pieces for found in splitter.feed(piece)]


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_every_chunking_gives_the_same_frames(contents, data):
    stream = b"".join(frame(content) for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    assert split(pieces) == [frame(content) for content in contents]


def test_byte_by_byte_and_large_frames():
    stream = frame(b"x" * 70_000) + frame(b"") + frame(b"abc")
    assert split([stream[i : i + 1] for i in range(len(stream))]) == split([stream])
    assert [len(found) for found in split([stream])] == [70_004, 4, 7]


def test_a_single_whole_frame_is_not_copied():
    data = frame(b"abc")
    assert FrameSplitter(10).feed(data)[0] is data


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x0b", b"\x7f\xff\xff\xff"])
def test_sizes_out_of_range_are_refused_at_once(size):
    with pytest.raises(FrameError):
        split([size], limit=10)
    with pytest.raises(FrameError):
        split([size[:2], size[2:]], limit=10)
    with pytest.raises(FrameError):
        split([frame(b"ok") + size], limit=10)


def test_a_frame_in_tiny_pieces_costs_little_more_than_its_size():
    content_bytes = 200_000
    data = frame(bytes(content_bytes))
    splitter = FrameSplitter(content_bytes)
    pieces = [data[at : at + 3] for at in range(0, len(data), 3)]
    tracemalloc.start()
    try:
        found = [whole for piece in pieces for whole in splitter.feed(piece)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [bytes(whole) for whole in found] == [data]
    assert peak_bytes < 1.5 * content_bytes


def test_a_size_alone_allocates_nothing():
    splitter = FrameSplitter(1 << 30)
    tracemalloc.start()
    try:
        assert splitter.feed((1 << 30).to_bytes(4, "big") + bytes(1000)) == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert splitter.missing_bytes == (1 << 30) - 1000
    assert peak_bytes < 10_000


def test_a_large_frame_in_pieces_and_what_follows_it():
    first, second = frame(b"x" * 200_000), frame(b"y" * 300)
    for cut in (1, 3, 4, 5, 70_000, len(first) - 1, len(first), len(first) + 2):
        stream = first + second + first
        assert split([stream[:cut], stream[cut:]], 200_000) == [first, second, first]


@pytest.mark.parametrize(
    "data, what",
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "received an HTTP request"),
        (b"POST /topics HTTP/1.1\r\n", "received an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "received an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "received a TLS handshake"),
        (b"\x7f\xff\xff\xff", "frame of 2147483647 bytes, at most 104857600 are allowed"),
    ],
)
def test_another_protocol_is_named(data, what):
    with pytest.raises(FrameError, match=what):
        split([data], 104_857_600)
    with pytest.raises(FrameError, match=what):
        split([data[at : at + 1] for at in range(len(data))], 104_857_600)
