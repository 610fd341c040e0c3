"""All metrics, and the table of docs/metrics.md."""

from typing import Final

from odradek.server.metrics.collectors import (
    clients,
    controller,
    coordinators,
    followers,
    logs,
    network,
    partitions,
    process,
    readers,
    requests,
    security,
    sockets,
    traffic,
    zookeeper,
)
from odradek.server.metrics.declaration import Metric

_SECTIONS: Final = (
    ("Requests", requests.METRICS),
    ("Records", traffic.METRICS),
    ("Partitions and replicas", (*partitions.METRICS, *followers.METRICS)),
    ("Controller", controller.METRICS),
    ("ZooKeeper", zookeeper.METRICS),
    ("Log directories", logs.METRICS),
    ("Groups and transactions", coordinators.METRICS),
    ("Metrics of clients", clients.METRICS),
    ("Readers", readers.METRICS),
    ("Connections and threads", network.METRICS),
    ("Sockets, by listener", sockets.METRICS),
    ("Sessions and quotas", security.METRICS),
    ("Process", process.METRICS),
)

METRICS: Final[tuple[Metric, ...]] = tuple(metric for _, section in _SECTIONS for metric in section)


def format_tables() -> str:
    """Return the tables of docs/metrics.md."""
    parts = []
    for title, metrics in _SECTIONS:
        rows = "".join(_format_row(metric) for metric in metrics)
        parts.append(f"### {title}\n\n| metric | type | MBean of Kafka | meaning |\n|---|---|---|---|\n{rows}")
    return "\n".join(parts)


def _format_row(metric: Metric) -> str:
    mbean = f"`{metric.mbean}`" if metric.mbean else ""
    return f"| `{metric.name}` | {metric.kind} | {mbean} | {metric.help} |\n"
