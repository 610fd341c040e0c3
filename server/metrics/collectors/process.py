"""Metrics of the process: CPU, memory, descriptors, garbage collections, and the state and version of the broker."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from odradek import __version__
from odradek.log.storage import descriptors
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
DAEMONS: Final = Metric("jvm_threads_daemon", GAUGE, "Threads that do not prevent the end of the process.")
GC_SECONDS: Final = Metric("jvm_gc_collection_seconds_sum", COUNTER, "Time of garbage collections.")
GC_COUNT: Final = Metric("jvm_gc_collection_seconds_count", COUNTER, "Number of garbage collections.")

CPU: Final = Metric("process_cpu_seconds_total", COUNTER, "CPU time of the process.")
VIRTUAL: Final = Metric("process_virtual_memory_bytes", GAUGE, "Virtual memory of the process.")
RESIDENT: Final = Metric("process_resident_memory_bytes", GAUGE, "Resident memory of the process.")
STARTED: Final = Metric("process_start_time_seconds", GAUGE, "Time at which the process was started.")
OPEN_FDS: Final = Metric("process_open_fds", GAUGE, "Open file descriptors.")
MAX_FDS: Final = Metric("process_max_fds", GAUGE, "Limit of open file descriptors.")

METRICS: Final = (
    STATE,
    VERSION,
    DISK_READ,
    DISK_WRITTEN,
    MEMORY,
    OLD_MEMORY,
    THREADS,
    DAEMONS,
    GC_SECONDS,
    GC_COUNT,
    CPU,
    VIRTUAL,
    RESIDENT,
    STARTED,
    OPEN_FDS,
    MAX_FDS,
)


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
    yield Family(DAEMONS, [("", sum(thread.daemon for thread in threading.enumerate()))])
    yield Family(STATE, [("", broker_state)])
    yield Family(VERSION, [(labels(version=__version__), 1)])
    for metric, name in ((DISK_READ, "read_bytes"), (DISK_WRITTEN, "write_bytes")):
        yield Family(metric, [("", value) for value in _read_io(name)])
    for metric, value in _read_process():
        yield Family(metric, [(area if metric in (MEMORY, OLD_MEMORY) else "", value)])


def _read_process() -> Iterator[tuple[Metric, float]]:
    """Return the metrics that prometheus-client has for a process, and the memory by its other names.

    The library lists the open descriptors one by one, which takes 17 ms with 5,000 segments.
    """
    try:
        # The name of the process is in parentheses and may contain anything.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot_s = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")
        )
    except (OSError, StopIteration):
        return
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    resident_bytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    yield CPU, (int(fields[11]) + int(fields[12])) / ticks_per_s
    yield VIRTUAL, int(fields[20])
    yield RESIDENT, resident_bytes
    yield MEMORY, resident_bytes
    yield OLD_MEMORY, resident_bytes
    yield STARTED, boot_s + int(fields[19]) / ticks_per_s
    yield OPEN_FDS, descriptors.count_open()
    yield MAX_FDS, descriptors.limit()


def _read_io(name: str) -> list[int]:
    """Return a counter of /proc/self/io; empty if the system has no such file."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return []
    return [int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}:")]
