"""Metrics of the process: CPU, memory, descriptors (prometheus-client), the state and the version of the broker."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from odradek import __version__
from odradek.server.metrics.declaration import COUNTER, GAUGE, Collected, Family, Metric, gauge, labels, own_gauge

STATE: Final = gauge(
    "kafka.server:type=KafkaServer,name=BrokerState", "1 while the broker starts, 3 while it runs, 7 while it stops."
)
VERSION: Final = own_gauge("build_info", "1, with the version as a label.")

DISK_READ: Final = gauge("kafka.server:type=KafkaServer,name=linux-disk-read-bytes", "Bytes read from disks.")
DISK_WRITTEN: Final = gauge("kafka.server:type=KafkaServer,name=linux-disk-write-bytes", "Bytes written to disks.")

MEMORY: Final = Metric("jvm_memory_used_bytes", GAUGE, "Resident memory of the process, by the name of the JVM's.")
OLD_MEMORY: Final = Metric("jvm_memory_bytes_used", GAUGE, "The same, by the name in older versions of the exporter.")
THREADS: Final = Metric("jvm_threads_current", GAUGE, "Threads of the process, by the name of the JVM's.")
GC_SECONDS: Final = Metric("jvm_gc_collection_seconds_sum", COUNTER, "Time of garbage collections.")
GC_COUNT: Final = Metric("jvm_gc_collection_seconds_count", COUNTER, "Number of garbage collections.")

METRICS: Final = (
    STATE,
    VERSION,
    DISK_READ,
    DISK_WRITTEN,
    MEMORY,
    OLD_MEMORY,
    THREADS,
    GC_SECONDS,
    GC_COUNT,
)

_REGISTRY: Final = CollectorRegistry()
_COLLECTORS: Final = (ProcessCollector(registry=_REGISTRY), PlatformCollector(registry=_REGISTRY))


class CollectionTimes:
    """The time of the garbage collections since `start`."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.count = 0
        self.total_s = 0.0
        self._monotonic = monotonic
        self._began_s = 0.0

    def start(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._measure)

    def stop(self) -> None:
        """Measure no more. A broker whose start has failed is stopped twice."""
        if self._measure in gc.callbacks:
            gc.callbacks.remove(self._measure)

    def _measure(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = self._monotonic()
        else:
            self.count += 1
            self.total_s += self._monotonic() - self._began_s


def collect_process(broker_state: int, collections: CollectionTimes) -> Collected:
    """Return the metrics of the process."""
    area, collector_name = labels(area="heap"), labels(gc="python")
    yield Family(GC_SECONDS, [(collector_name, round(collections.total_s, 6))])
    yield Family(GC_COUNT, [(collector_name, collections.count)])
    yield Family(THREADS, [("", threading.active_count())])
    yield Family(STATE, [("", broker_state)])
    yield Family(VERSION, [(labels(version=__version__), 1)])
    for metric, name in ((DISK_READ, "read_bytes"), (DISK_WRITTEN, "write_bytes")):
        yield Family(metric, [("", value) for value in _read_io(name)])
    for collector in _COLLECTORS:
        for found in collector.collect():
            by_name: dict[str, list[tuple[str, float]]] = {}
            for sample in found.samples:
                names = labels(**sample.labels) if sample.labels else ""
                by_name.setdefault(sample.name, []).append((names, sample.value))
            if found.name == "process_resident_memory_bytes":
                for metric in (MEMORY, OLD_MEMORY):
                    yield Family(metric, [(area, sample.value) for sample in found.samples])
            for name, samples in by_name.items():
                yield Family(Metric(name, found.type, found.documentation), samples)


def _read_io(name: str) -> list[int]:
    """Return a counter of /proc/self/io; empty if the system has no such file."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return []
    return [int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}:")]
