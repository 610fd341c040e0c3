"""Metrics of the process: CPU, memory, descriptors (prometheus-client), the state and the version of the broker."""

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

METRICS: Final = (STATE, VERSION)

_REGISTRY: Final = CollectorRegistry()
_COLLECTORS: Final = (ProcessCollector(registry=_REGISTRY), PlatformCollector(registry=_REGISTRY))


def collect_process(broker_state: int) -> Collected:
    """Return the metrics of the process."""
    yield Family(STATE, [("", broker_state)])
    yield Family(VERSION, [(labels(version=__version__), 1)])
    for collector in _COLLECTORS:
        for found in collector.collect():
            by_name: dict[str, list[tuple[str, float]]] = {}
            for sample in found.samples:
                names = labels(**sample.labels) if sample.labels else ""
                by_name.setdefault(sample.name, []).append((names, sample.value))
            for name, samples in by_name.items():
                yield Family(Metric(name, found.type, found.documentation), samples)
