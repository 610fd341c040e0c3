"""Metrics of the process: CPU, memory, descriptors (prometheus-client), the state and the version of the broker."""

from pathlib import Path
from typing import Final

from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from odradek import __version__
from odradek.server.metrics.declaration import Collected, Family, Metric, gauge, labels, own_gauge

STATE: Final = gauge(
    "kafka.server:type=KafkaServer,name=BrokerState", "1 while the broker starts, 3 while it runs, 7 while it stops."
)
VERSION: Final = own_gauge("build_info", "1, with the version as a label.")

DISK_READ: Final = gauge("kafka.server:type=KafkaServer,name=linux-disk-read-bytes", "Bytes read from disks.")
DISK_WRITTEN: Final = gauge("kafka.server:type=KafkaServer,name=linux-disk-write-bytes", "Bytes written to disks.")

METRICS: Final = (STATE, VERSION, DISK_READ, DISK_WRITTEN)

_REGISTRY: Final = CollectorRegistry()
_COLLECTORS: Final = (ProcessCollector(registry=_REGISTRY), PlatformCollector(registry=_REGISTRY))


def collect_process(broker_state: int) -> Collected:
    """Return the metrics of the process."""
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
            for name, samples in by_name.items():
                yield Family(Metric(name, found.type, found.documentation), samples)


def _read_io(name: str) -> list[int]:
    """Return a counter of /proc/self/io; empty if the system has no such file."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return []
    return [int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}:")]
