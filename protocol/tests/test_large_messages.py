"""Large messages: decoded and encoded in bounded steps, to the same result as in one step."""

import random

import pytest

from odradek.protocol import codec, codec_source, interpreter
from odradek.protocol.codec import MAX_ELEMENTS
from odradek.protocol.codec_source import MAX_TAGGED_FIELDS
from odradek.protocol.decoder_source import STEP_BYTES
from odradek.protocol.encoder_source import SMALL_MESSAGE_BYTES, STEP_ELEMENTS
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.heartbeat import HeartbeatResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.schema import Message, Struct, rows
from odradek.protocol.tests.values import MESSAGE_IDS, MESSAGES, RandomSource, make, version_in_failure, versions_of
from odradek.protocol.types import DecodeError, Int32


def run(steps):
    """Run a generator; return the number of its steps and its result."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def decode_in_steps(cls, version, data, most=MAX_ELEMENTS):
    count, (message, position) = run(codec.step_decoder(cls, version)(data, 0, len(data), most))
    assert position == len(data)
    return count, message


def encode_in_steps(message: Message, version: int) -> tuple[int, bytes]:
    out = bytearray()
    count, _ = run(codec.step_encoder(type(message), version)(message, out, []))
    return count, bytes(out)


@pytest.mark.parametrize("cls", MESSAGES, ids=MESSAGE_IDS)
def test_steps_agree_with_one_step(cls):
    for version in versions_of(cls):
        with version_in_failure(cls, version):
            message = make(cls, version, RandomSource(random.Random(version), long_array_first=True))
            encoded = codec.encode(message, version)
            assert encode_in_steps(message, version)[1] == encoded
            assert decode_in_steps(cls, version, encoded)[1] == codec.decode(cls, version, encoded)


class Row(Struct):
    name: str
    counts: list[Int32]


class Table(Message, versions="0-1", flexible=1):
    rows: list[Row]
    numbers: list[Int32]


class Empty(Struct):
    pass


class Nothing(Message, versions="0-0"):
    items: list[Empty]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "table",
    [
        Table(rows=[Row(name="") for _ in range(20_000)]),
        Table(rows=[Row(name="r", counts=[1, 2]) for _ in range(5_000)]),
        Table(rows=[Row(name="", counts=[7] * 20_000), Row(name="")]),
        Table(numbers=list(range(30_000))),
    ],
)
def test_a_step_is_bounded(table, version):
    encoded = codec.encode(table, version)
    count, decoded = decode_in_steps(Table, version, encoded)
    assert decoded == table
    assert count >= len(encoded) / STEP_BYTES / 5
    assert encode_in_steps(table, version)[1] == encoded
    assert encode_in_steps(table, version)[0] >= len(table.rows) // STEP_ELEMENTS


def test_elements_are_bounded_over_all_arrays_before_anything_is_allocated():
    table = Table(rows=[Row(name="", counts=[1] * 10) for _ in range(9)], numbers=[1])
    encoded = codec.encode(table, 0)
    assert decode_in_steps(Table, 0, encoded, most=100)[1] == table
    for most in (99, 98, 8):
        with pytest.raises(DecodeError, match="array elements in one request"):
            decode_in_steps(Table, 0, encoded, most)


def test_a_count_is_bounded_by_the_least_size_of_its_element():
    data = codec.encode(Table(rows=[Row(name="")] * 10), 0)
    room = len(data) - 4 - 4
    assert room == 60
    for decode in (lambda data: codec.decode(Table, 0, data), lambda data: decode_in_steps(Table, 0, data)):
        with pytest.raises(DecodeError, match="rows runs past the end"):
            decode((11).to_bytes(4, "big") + data[4:])
    # An element without fields counts as a byte.
    with pytest.raises(DecodeError, match="items runs past the end"):
        codec.decode(Nothing, 0, b"\x7f\xff\xff\xff" + bytes(100))


@pytest.mark.parametrize("cls", [FetchRequest, HeartbeatResponse])
def test_tagged_fields_are_bounded(cls):
    version = cls.last_version
    bare = codec.encode(cls(), version)
    assert bare[-1] == 0

    def tags(count):
        tail = bytearray(bare[:-1])
        codec_source.write_varint(tail, count)
        return bytes(tail) + b"\x63\x00" * count

    assert codec.decode(cls, version, tags(MAX_TAGGED_FIELDS)) == cls()
    for decode in (lambda data: codec.decode(cls, version, data), lambda data: decode_in_steps(cls, version, data)):
        with pytest.raises(DecodeError, match="tagged fields in one struct"):
            decode(tags(MAX_TAGGED_FIELDS + 1))


@pytest.mark.parametrize(
    "large",
    [
        Table(numbers=[0] * 101),
        Table(rows=[Row(name="", counts=[0] * 90) for _ in range(90)]),
        Table(rows=[Row(name="n" * 500) for _ in range(90)]),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_a_large_message_is_refused_by_the_encoder_of_small_ones(large, version):
    encode = codec.small_encoder(Table, version)
    with pytest.raises(codec_source.LargeMessageError):
        encode(large, out := bytearray(), [])
    assert len(out) < SMALL_MESSAGE_BYTES + 1000
    small = Table(rows=[Row(name="a", counts=[1] * 10)] * 9, numbers=[2] * 100)
    encode(small, out := bytearray(), [])
    assert out == codec.encode(small, version)


def test_rows_are_made_when_they_are_encoded():
    made = []

    def row(name):
        made.append(name)
        return Row(name=name)

    names = [f"t{number}" for number in range(200)]
    table = Table(rows=rows(row, names))
    assert len(table.rows) == 200
    assert not made
    assert encode_in_steps(table, 1)[1] == interpreter.encode(Table(rows=[Row(name=name) for name in names]), 1)


def test_empty_names_in_metadata_1_are_refused():
    data = (10_000_000).to_bytes(4, "big") + bytes(20_000_000)
    with pytest.raises(DecodeError, match="array elements"):
        decode_in_steps(MetadataRequest, 1, data)
    most = codec.encode(MetadataRequest(topics=[MetadataRequestTopic(name="")] * 1_000), 1)
    assert len(decode_in_steps(MetadataRequest, 1, most)[1].topics) == 1_000
