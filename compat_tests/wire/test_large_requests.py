"""Requests that are small on the wire and large in memory: memory is bounded by a multiple of their size."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients.common import wait_until
from odradek.protocol import codec_source
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.server.tests.wire import Wire, request_frame
from odradek.testing import OdradekBroker

COUNT = 10_000_000
METADATA = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[OdradekBroker]:
    with OdradekBroker() as started:
        yield started


def peak_bytes(broker: OdradekBroker) -> int:
    """Return the largest memory size that the process has had."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def metadata_frame(version: int, body: bytes) -> bytes:
    content = struct.pack(">hhih", METADATA, version, 1, 1) + b"c" + body
    return struct.pack(">i", len(content)) + content


def unknown_tags() -> bytes:
    count = bytearray()
    codec_source.write_varint(count, COUNT)
    return metadata_frame(9, bytes(count) + b"\x63\x00" * COUNT)


def empty_names() -> bytes:
    return metadata_frame(1, struct.pack(">i", COUNT) + bytes(2 * COUNT))


@pytest.mark.parametrize(
    ("make_frame", "reason"), [(unknown_tags, "tagged fields in one struct"), (empty_names, "array elements")]
)
def test_twenty_megabytes_of_empty_elements(broker: Any, make_frame: Any, reason: str) -> None:
    before = peak_bytes(broker)
    frame = make_frame()
    with socket.create_connection(("127.0.0.1", broker.port)) as connection, Wire(broker.port) as other:
        connection.settimeout(60)
        connection.sendall(frame)
        assert other.metadata().topics == []
        assert connection.recv(1) == b""
    wait_until(lambda: reason in broker.log_text(), what="a log line")
    assert peak_bytes(broker) - before < 4 * len(frame)


def test_a_hundred_thousand_topics_that_do_not_exist(broker: Any) -> None:
    names = [f"n{number}" for number in range(100_000)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    assert len(request_frame(request, 9)) < 1 << 20
    with Wire(broker.port) as wire:
        answer = wire.ask(request, 9)
    assert [topic.name for topic in answer.topics] == names
    assert {topic.error_code for topic in answer.topics} == {3}
