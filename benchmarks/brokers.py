"""The two brokers under test, each with its own defaults, and the measurement of a start up to the first response."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

from benchmarks import wire
from benchmarks.procfs import TICKS_PER_SECOND

START_TIMEOUT_S = 60.0

# Kafka's defaults instead of the tests' values, and fast deletion of a finished measurement's data.
PROPERTIES: Mapping[str, str] = {
    "offsets.topic.num.partitions": "50",
    "group.initial.rebalance.delay.ms": "3000",
    "transaction.state.log.num.partitions": "50",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.segment.delete.delay.ms": "200",
}

# The options of Apache Kafka's own start script.
KAFKA_JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
KAFKA_HEAP = "1g"
NONE: Mapping[str, str] = MappingProxyType({})
KAFKA_PROPERTIES: Mapping[str, str] = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}


class RunningBroker(Protocol):
    """A measured broker."""

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def data_dir(self) -> Path: ...


class RestartableBroker(RunningBroker, Protocol):
    """The interface of both wrappers."""

    def start(self) -> Self: ...

    def kill(self) -> None: ...

    def restart(self, *, clean: bool = True) -> Self: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def apache_kafka(properties: Mapping[str, str] = NONE) -> RestartableBroker:
    from compat_tests.apache_kafka.broker import ApacheKafkaBroker

    given = {**PROPERTIES, **KAFKA_PROPERTIES, **properties}
    return ApacheKafkaBroker(given, heap=KAFKA_HEAP, jvm_options=KAFKA_JVM_OPTIONS)


def odradek(properties: Mapping[str, str] = NONE) -> RestartableBroker:
    from odradek.testing import OdradekBroker

    return OdradekBroker({**PROPERTIES, **properties})


BROKERS: dict[str, Callable[..., RestartableBroker]] = {"kafka": apache_kafka, "odradek": odradek}
TITLES = {
    "kafka": "Apache Kafka",
    "odradek": "Odradek",
    "baseline": "Baseline",
    "open": "without",
    "few-acls": "a few ACLs",
}


def add_baseline(directory: Path) -> None:
    """Add the Odradek of another checkout under the name `baseline`."""
    from odradek.testing import OdradekBroker

    class Baseline(OdradekBroker):
        def start(self) -> Self:
            # A process imports packages in its working directory first.
            with contextlib.chdir(directory):
                return super().start()

    if not (directory / "odradek" / "__main__.py").exists():
        raise FileNotFoundError(f"{directory} is not a checkout of Odradek")
    BROKERS["baseline"] = lambda properties=NONE: Baseline({**PROPERTIES, **properties})


def free_ports(count: int) -> list[int]:
    """Return unused ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _listening_on(name: str) -> tuple[int, dict[str, str]]:
    """Return a port and the properties to listen on it: requests can then be sent before the broker logs its start."""
    port, controller = free_ports(2)
    listener = f"PLAINTEXT://127.0.0.1:{port}"
    if name != "kafka":
        return port, {"listeners": listener}
    listeners = f"{listener},CONTROLLER://127.0.0.1:{controller}"
    return port, {"listeners": listeners, "controller.quorum.voters": f"1@127.0.0.1:{controller}"}


def process_start_s(pid: int) -> float:
    """Return the start time of a process, in seconds since boot (resolution: one tick, 10 ms, rounded down)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / TICKS_PER_SECOND


def answers_metadata(port: int) -> bool:
    with contextlib.suppress(OSError, wire.WireError), wire.Admin(port, timeout_s=5) as admin:
        return len(admin.metadata([])) > 0
    return False


class _FirstAnswer(threading.Thread):
    """Sends a Metadata request every 2 ms until the first response."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._give_up = time.monotonic() + START_TIMEOUT_S
        self.answered_s = 0.0

    def run(self) -> None:
        while time.monotonic() < self._give_up:
            if answers_metadata(self._port):
                self.answered_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                return
            time.sleep(0.002)


def start_seconds(name: str) -> float:
    """Return the time from the start of a new broker's process to its first Metadata response; then stop the broker."""
    port, properties = _listening_on(name)
    watcher = _FirstAnswer(port)
    watcher.start()
    with BROKERS[name](properties) as broker:
        watcher.join(START_TIMEOUT_S)
        if not watcher.answered_s:
            raise wire.WireError(f"no Metadata response in {START_TIMEOUT_S:.0f} s")
        return watcher.answered_s - process_start_s(broker.pid)


def wait_until_gone(broker: RunningBroker, topic: str, timeout_s: float = 20.0) -> None:
    """Wait until a deleted topic's directories are gone, so that their write-back does not disturb the next row."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if not any(broker.data_dir.rglob(f"{topic}-*")):
            return
        time.sleep(0.05)
