"""The cluster and its brokers."""

from typing import Final

from flask import Blueprint

from odradek.tools.console.cluster_pool import STALE_S
from odradek.tools.console.console import Console, get_console, render
from odradek.tools.console.summaries import ClusterSummary, Disks, fetch_disks, fetch_summary
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.topics.configs import BROKER, fetch_configs

_DISKS_TTL_S: Final = 10.0
_DISKS_STALE_S: Final = 50.0

overview = Blueprint("overview", __name__)


def read_summary(console: Console) -> ClusterSummary:
    """Return brokers and topics, for all pages from one metadata request."""
    return console.read("summary", fetch_summary, stale_s=STALE_S)


def read_disks(console: Console, partitions: dict[str, list[int]] | None = None) -> Disks:
    """Return the log directories, with the replicas of some partitions or of all; they may be a minute old."""
    key = "disks" if partitions is None else ("disks", tuple(partitions))
    return console.read(key, lambda cluster: fetch_disks(cluster, partitions), _DISKS_TTL_S, _DISKS_STALE_S)


@overview.get("/")
def show() -> str:
    """Show the state of the cluster."""
    console = get_console()
    summary = read_summary(console)
    # Replicas in log directories are on the pages of brokers: their number grows with that of topics.
    disks = read_disks(console, {})
    unhealthy = [topic for topic in summary.topics if topic.offline or topic.under_replicated]
    unhealthy.sort(key=lambda topic: (-topic.offline, -topic.under_replicated, topic.name))
    return render("overview.html", summary=summary, disks=disks, unhealthy=unhealthy, shows_replicas=False)


@overview.get("/brokers/<int:broker_id>")
def show_broker(broker_id: int) -> str:
    """Show a broker, its disks and its configuration."""
    console = get_console()
    summary = read_summary(console)
    found = [broker for broker in summary.brokers if broker.id == broker_id and broker.address is not None]
    if not found:
        ids = ", ".join(str(broker.id) for broker in summary.brokers if broker.address is not None)
        raise RequestError("BROKER_NOT_AVAILABLE", f"there is no live broker {broker_id}; live brokers are {ids}")
    resource = (BROKER, str(broker_id))
    configs = console.read(resource, lambda cluster: fetch_configs(cluster, [resource])[resource])
    disks = read_disks(console)
    log_dirs = [log_dir for log_dir in disks.log_dirs if log_dir.broker == broker_id]
    errors = {node: error for node, error in disks.errors.items() if node == broker_id}
    return render("broker.html", broker=found[0], disks=Disks(log_dirs, errors), configs=configs, shows_replicas=True)
