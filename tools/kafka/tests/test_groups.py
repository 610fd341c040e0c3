import struct

import pytest

from odradek.tools.kafka.groups.description import decode_assignment


def encode_assignment(topics, version=0):
    content = struct.pack(">hi", version, len(topics))
    for name, partitions in topics.items():
        content += struct.pack(">h", len(name)) + name.encode()
        content += struct.pack(f">{len(partitions) + 1}i", len(partitions), *partitions)
    return content + struct.pack(">i", -1)


@pytest.mark.parametrize("version", [0, 3, 99])
def test_assignments(version):
    data = encode_assignment({"a": [0, 2], "b": [1]}, version)
    assert decode_assignment(data) == [("a", 0), ("a", 2), ("b", 1)]


@pytest.mark.parametrize("data", [b"", b"\0", b"something else", b"\0\0\xff\xff\xff\xff", encode_assignment({})])
def test_other_bytes_are_no_assignment(data):
    assert decode_assignment(data) == []


def test_a_negative_length_does_not_move_back():
    # The length of the second name moves back to the four numbers before it, which would be added for each topic.
    first = struct.pack(">h20s5i", 36, b"", 4, 7, 7, 7, 0)
    data = struct.pack(">hi", 0, 1_000) + first + struct.pack(">h", -6 - 4 * 4)
    assert decode_assignment(data) == []
