"""The same stream in every chunking gives the same frames (as h11's fuzzing does for HTTP)."""

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
