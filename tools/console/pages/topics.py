"""Topics, partitions and configurations."""

from typing import Any, NamedTuple

from flask import Blueprint

from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.tools.console.console import get_arguments, get_console, render
from odradek.tools.console.pages.overview import read_disks, read_summary
from odradek.tools.console.paging import read_view, select
from odradek.tools.console.summaries import Disks, Topic, fetch_disks, is_under_replicated
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.configs import TOPIC, ConfigValue, fetch_configs
from odradek.tools.kafka.offsets import TopicPartition, fetch_log_ranges

topics = Blueprint("topics", __name__)

_COLUMNS = ("name", "partitions", "replicas", "size", "state")


class Partition(NamedTuple):
    """A partition with its offsets and the size of its largest replica; None if they are not reported."""

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    first_offset: int | None
    end_offset: int | None
    size_bytes: int | None
    is_under_replicated: bool

    @property
    def records(self) -> int | None:
        """Return the number of offsets between the first record and the end."""
        return None if self.first_offset is None or self.end_offset is None else self.end_offset - self.first_offset


class TopicDetails(NamedTuple):
    """A topic with its partitions and configuration. `problems` are the reasons for which offsets are missing."""

    name: str
    is_internal: bool
    partitions: list[Partition]
    configs: list[ConfigValue]
    problems: list[str]


@topics.get("/topics")
def show_list() -> str:
    """List the topics."""
    console = get_console()
    arguments = get_arguments()
    summary = read_summary(console)
    view = read_view(arguments, _COLUMNS)
    disks = read_disks(console) if view.sort == "size" else None
    all_sizes = {} if disks is None else disks.sum_sizes()
    shows_internal = arguments.get("internal") == "1"
    rows = [topic for topic in summary.topics if shows_internal or not topic.is_internal]
    keys: dict[str, Any] = {
        "name": lambda topic: topic.name,
        "partitions": lambda topic: topic.partitions,
        "replicas": lambda topic: topic.replication_factor,
        "size": lambda topic: all_sizes.get(topic.name),
        "state": lambda topic: (topic.offline, topic.under_replicated),
    }
    shown = select(rows, view, keys, _get_name)
    if disks is None:
        # Sizes of one page are quick also in a large cluster.
        partitions = {topic.name: list(range(topic.partitions)) for topic in shown.rows}
        disks = read_disks(console, partitions)
    hidden = len(summary.topics) - len(rows)
    return render(
        "topics.html",
        shown=shown,
        sizes=disks.sum_sizes(),
        shows_internal=shows_internal,
        hidden=hidden,
        problems=disks.problems,
    )


def _get_name(topic: Topic) -> str:
    return topic.name


@topics.get("/topics/<name>")
def show_topic(name: str) -> str:
    """Show a topic."""
    topic = get_console().read(("topic", name), lambda cluster: fetch_details(cluster, name))
    return render("topic.html", topic=topic)


def fetch_details(cluster: Cluster, name: str) -> TopicDetails:
    """Read a topic. Raises RequestError if it does not exist."""
    [topic] = cluster.fetch_topics([name])
    leaders: dict[TopicPartition, int] = {(name, one.partition_index): one.leader_id for one in topic.partitions}
    problems: list[str] = []
    first, end = fetch_log_ranges(cluster, leaders, problems)
    disks = fetch_disks(cluster, {name: [one.partition_index for one in topic.partitions]})
    problems += disks.problems
    configs = fetch_configs(cluster, [(TOPIC, name)])[TOPIC, name]
    return TopicDetails(name, topic.is_internal, _make_partitions(topic, first, end, disks), configs, problems)


def _make_partitions(
    topic: MetadataResponseTopic, first: dict[TopicPartition, int], end: dict[TopicPartition, int], disks: Disks
) -> list[Partition]:
    sizes: dict[int, int] = {}
    for log_dir in disks.log_dirs:
        for replica in log_dir.replicas:
            if not replica.is_future:
                sizes[replica.partition] = max(sizes.get(replica.partition, 0), replica.size_bytes)

    def make(one: MetadataResponsePartition) -> Partition:
        key = (topic.name or "", one.partition_index)
        return Partition(
            one.partition_index,
            one.leader_id if one.leader_id >= 0 else None,
            list(one.replica_nodes),
            list(one.isr_nodes),
            first.get(key),
            end.get(key),
            sizes.get(one.partition_index),
            is_under_replicated(one),
        )

    return sorted(map(make, topic.partitions))
