"""The two brokers under test, each with its own defaults, and when a fresh one first answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks import wire
from benchmarks.procfs import TICKS_PER_SECOND

START_TIMEOUT_S = 60.0

# Only so that the data of a finished measurement is off the disk before the next one begins.
PROPERTIES = {"log.segment.delete.delay.ms": "200"}

# What Apache Kafka's own start script passes to the JVM.
KAFKA_JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
KAFKA_HEAP = "1g"
# The tests' broker shortens these; a measurement takes Kafka's defaults.
KAFKA_DEFAULTS = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}


class Broker(Protocol):
    """What both wrappers offer."""

    port: int

    @property
    def pid(self) -> int: ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def data_dir(self) -> Path: ...

    def stop(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def apache_kafka() -> Broker:
    from compat_tests.apache_kafka.broker import ApacheKafkaBroker

    return ApacheKafkaBroker({**KAFKA_DEFAULTS, **PROPERTIES}, heap=KAFKA_HEAP, jvm_options=KAFKA_JVM_OPTIONS)


def odradek() -> Broker:
    from odradek.testing import OdradekBroker

    return OdradekBroker(PROPERTIES)


BROKERS: Mapping[str, Callable[[], Broker]] = {"kafka": apache_kafka, "odradek": odradek}
TITLES = {"kafka": "Apache Kafka", "odradek": "Odradek"}


def _process_start_s(pid: int) -> float:
    """When the process began, in seconds since boot (resolution: one tick, 10 ms, rounded down)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / TICKS_PER_SECOND


def _answers_metadata(port: int) -> bool:
    with contextlib.suppress(OSError, wire.WireError), wire.Admin(port, timeout_s=5) as admin:
        return len(admin.metadata([])) > 0
    return False


class _FirstAnswer(threading.Thread):
    """Asks for Metadata from the moment the port is known until the first answer."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._give_up = time.monotonic() + START_TIMEOUT_S
        self.answered_s = 0.0

    def run(self) -> None:
        while time.monotonic() < self._give_up:
            if self._broker.port and _answers_metadata(self._broker.port):
                self.answered_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                return
            time.sleep(0.002)


def start_seconds(make: Callable[[], Broker]) -> float:
    """From the start of a fresh broker's process to its first answer to Metadata; the broker is ended again."""
    broker = make()
    watcher = _FirstAnswer(broker)
    watcher.start()
    with broker:
        watcher.join(START_TIMEOUT_S)
        if not watcher.answered_s:
            raise wire.WireError(f"no Metadata answer in {START_TIMEOUT_S:.0f} s")
        return watcher.answered_s - _process_start_s(broker.pid)


def wait_until_gone(broker: Broker, topic: str, timeout_s: float = 20.0) -> None:
    """Waits until a deleted topic's directories are off the disk, so that no write-back runs into the next row."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if not any(broker.data_dir.rglob(f"{topic}-*")):
            return
        time.sleep(0.05)
