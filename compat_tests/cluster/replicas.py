"""State of partitions as a cluster reports it, and the comparison of the logs of all replicas."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from compat_tests import limits
from compat_tests.clients.common import wait_until
from odradek.server.tests.wire import Wire
from odradek.testing_cluster import OdradekCluster

SEGMENT = re.compile(r"\d{20}\.log")

T = TypeVar("T")


class PartitionState(NamedTuple):
    """A partition as in Metadata."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


def describe(admin: KafkaAdminClient, topic: str) -> dict[int, PartitionState]:
    """Return the state of each partition of a topic."""
    [described] = admin.describe_topics([topic])
    return {
        row["partition_index"]: PartitionState(
            row["leader_id"], row["leader_epoch"], tuple(row["replica_nodes"]), frozenset(row["isr_nodes"])
        )
        for row in described["partitions"]
    }


def ask_repeatedly(call: Callable[[], T]) -> T:
    """Return the result of a call of kafka-python, which fails if the client selects a broker that has just ended."""
    results: list[T] = []

    def is_answered() -> bool:
        with contextlib.suppress(KafkaConnectionError):
            results.append(call())
        return bool(results)

    wait_until(is_answered)
    return results[0]


def wait_until_in_sync(admin: KafkaAdminClient, topic: str, timeout_s: float = 60) -> dict[int, PartitionState]:
    """Wait until each partition has a leader and all its replicas are in the ISR; return the state."""
    state: dict[int, PartitionState] = {}

    def is_in_sync() -> bool:
        state.clear()
        state.update(describe(admin, topic))
        # A broker that does not have the topic in its metadata yet, or has just started, reports no partitions.
        return bool(state) and all(one.leader >= 0 and one.isr == set(one.replicas) for one in state.values())

    wait_until(is_in_sync, timeout_s=timeout_s)
    return state


def wait_until_described(cluster: OdradekCluster, topic: str) -> None:
    """Wait until each broker has a topic and its leaders in its metadata: CreateTopics awaits those of one broker."""

    def is_described(port: int) -> bool:
        with Wire(port) as wire:
            [found] = wire.metadata(topic).topics
        return bool(found.partitions) and all(row.leader_id >= 0 for row in found.partitions)

    for broker in cluster.brokers.values():
        wait_until(partial(is_described, broker.port), what=f"{topic} at {broker.bootstrap_servers}")


def read_log(directory: Path) -> bytes:
    """Return the batches of a partition's directory, without the unwritten space at the end of a segment."""
    segments = sorted(path for path in directory.iterdir() if SEGMENT.fullmatch(path.name))
    return b"".join(path.read_bytes().rstrip(b"\0") for path in segments)


def compare_logs(data_directories: Mapping[int, Path], topic: str, states: Mapping[int, PartitionState]) -> None:
    """The logs of all replicas of each partition are equal, byte for byte."""
    for index, state in states.items():
        logs = {broker: read_log(data_directories[broker] / f"{topic}-{index}") for broker in state.replicas}
        assert len(set(logs.values())) == 1, f"{topic}-{index}: {_sizes(logs.items())}"


def _sizes(logs: Iterable[tuple[int, bytes]]) -> str:
    return ", ".join(f"broker {broker}: {len(log)} bytes" for broker, log in logs)


def wait_until_equal(data_directories: Mapping[int, Path], topic: str, states: Mapping[int, PartitionState]) -> None:
    """Wait until the logs of all replicas are equal, byte for byte: the last batch may not be on all of them yet."""

    def find_difference() -> str:
        try:
            compare_logs(data_directories, topic, states)
        except AssertionError as error:
            return str(error)
        return ""

    wait_until(lambda: not find_difference(), timeout_s=limits.CONDITION_S, what=find_difference)
