"""Responses with regions of log files: small ones are copied, others are sent from the file."""

import pytest

from odradek.log.storage.filesystem import FileRegion
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.codec_source import Splice
from odradek.server.network.request_pipeline import _COPIED_RESPONSE_BYTES, _make_pieces


@pytest.fixture
def file():
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    created = fs.open("/data/file", create=True)
    content = bytes(range(256)) * 1024
    created.write_pieces(0, [content], len(content))
    return created


def whole(pieces):
    return b"".join(bytes(piece.read()) if isinstance(piece, FileRegion) else bytes(piece) for piece in pieces)


def response(file, size_bytes):
    """A response with two regions, of which the second one is at its end, and its bytes."""
    first, second = FileRegion(file, 5, size_bytes), FileRegion(file, 9, 3)
    out = bytearray(b"SIZEheadtail")
    expected = b"head" + first.read() + b"tail" + second.read()
    return out, [Splice(8, first), Splice(12, second)], len(expected).to_bytes(4, "big") + expected


def test_a_small_response_is_one_piece(file):
    out, splices, expected = response(file, 1000)
    pieces = _make_pieces(out, splices)
    assert isinstance(pieces, bytearray)
    assert pieces == expected


def test_a_large_response_has_the_regions_of_the_file(file):
    out, splices, expected = response(file, _COPIED_RESPONSE_BYTES)
    pieces = _make_pieces(out, splices)
    assert [type(piece) for piece in pieces] == [memoryview, FileRegion, memoryview, FileRegion]
    assert whole(pieces) == expected


def test_a_file_that_is_too_short_is_left_to_the_transport(file):
    out, splices, _ = response(file, 1000)
    file.truncate(500)
    assert isinstance(_make_pieces(out, splices), list)


def test_a_file_that_cannot_be_read_is_left_to_the_transport(file, monkeypatch):
    def fail(position, size_bytes):
        raise OSError("EIO")

    out, splices, _ = response(file, 1000)
    monkeypatch.setattr(type(file), "pread", lambda self, *arguments: fail(*arguments))
    assert isinstance(_make_pieces(out, splices), list)


def test_records_that_are_on_the_disk_only_are_left_to_the_transport(file, monkeypatch):
    out, splices, _ = response(file, 1000)
    monkeypatch.setattr(type(file), "read_cached", lambda self, position, size_bytes: None)
    assert isinstance(_make_pieces(out, splices), list)


def test_responses_can_be_appended_to_a_small_one(file):
    out, splices, expected = response(file, 1000)
    pieces = _make_pieces(out, splices)
    assert isinstance(pieces, bytearray)
    pieces += b"next"
    assert pieces == expected + b"next"
