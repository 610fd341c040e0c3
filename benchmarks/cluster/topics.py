"""Topics of a cluster, and the state of their partitions as a broker reports it (Metadata 1)."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import wire

POLL_S = 0.01


class ReportedPartition(NamedTuple):
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """True if the partition has a leader and all replicas are in sync."""
        return self.leader >= 0 and len(self.isr) == len(self.replicas)


class View(NamedTuple):
    """A broker's report: ports of live brokers, the controller, and the topic's partitions by index, if it exists.

    KRaft brokers report any broker as the controller.
    """

    ports: dict[int, int]
    controller: int
    partitions: dict[int, ReportedPartition]


class _MetadataReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, form: str) -> int:
        value: int
        (value,) = struct.unpack_from(f">{form}", self._data, self._position)
        self._position += struct.calcsize(f">{form}")
        return value

    def skip_string(self) -> None:
        length = self.read("h")
        self._position += max(0, length)

    def read_ids(self) -> tuple[int, ...]:
        return tuple([self.read("i") for _ in range(self.read("i"))])


def parse_metadata(answer: bytes) -> View:
    """Read a Metadata 1 response about one topic."""
    reader = _MetadataReader(answer)
    ports: dict[int, int] = {}
    for _ in range(reader.read("i")):
        broker = reader.read("i")
        reader.skip_string()
        ports[broker] = reader.read("i")
        reader.skip_string()
    view = View(ports, reader.read("i"), {})
    for _ in range(reader.read("i")):
        reader.read("h")
        reader.skip_string()
        reader.read("b")
        for _ in range(reader.read("i")):
            reader.read("h")
            index, leader = reader.read("i"), reader.read("i")
            view.partitions[index] = ReportedPartition(leader, reader.read_ids(), reader.read_ids())
    return view


def describe(port: int, topic: str, timeout_s: float = 5.0) -> View:
    """Ask one broker; without a topic only for brokers. Raises OSError, WireError."""
    with wire.Admin(port, timeout_s=timeout_s) as admin:
        return parse_metadata(admin.metadata([topic] if topic else []))


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = 60.0, poll_s: float = POLL_S) -> None:
    """Poll until the condition holds; an unavailable broker counts as false. Raises WireError."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        try:
            if is_true():
                return
        except (OSError, wire.WireError):
            pass
        time.sleep(poll_s)
    raise wire.WireError(f"{what}: not after {timeout_s:.0f} s")
