"""Topics, partitions and configurations."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from flask import Blueprint

from odradek.protocol.messages.metadata import MetadataResponsePartition
from odradek.tools.console.console import get_arguments, get_console, render
from odradek.tools.console.pages.overview import read_disks, read_summary
from odradek.tools.console.paging import read_view, select
from odradek.tools.console.summaries import NO_LEADER, Topic, fetch_disks, is_under_replicated
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.topics.configs import TOPIC, ConfigValue, fetch_configs
from odradek.tools.kafka.topics.offsets import fetch_log_ranges

topics = Blueprint("topics", __name__)

_COLUMNS = ("name", "partitions", "replicas", "size", "state")
_PARTITION_COLUMNS = ("partition", "leader", "state")
_MEASURED_COLUMNS = (*_PARTITION_COLUMNS, "records", "size")

MOST_MEASURED: Final = 1_000
"""Partitions of a topic whose offsets and sizes are all read. Of more only those on the page are."""


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
    def state(self) -> tuple[bool, bool]:
        """Return the order by state: partitions without a leader are last, after under-replicated ones."""
        return self.leader is None, self.is_under_replicated

    @property
    def size(self) -> int | None:
        """Return the size, by the name of the column."""
        return self.size_bytes

    @property
    def records(self) -> int | None:
        """Return the number of offsets between the first record and the end."""
        return None if self.first_offset is None or self.end_offset is None else self.end_offset - self.first_offset


class TopicDetails(NamedTuple):
    """A topic with its partitions and configuration. `problems` are the reasons for which offsets are missing.

    is_measured: False if the partitions have neither offsets nor sizes, because there are too many (MOST_MEASURED)
    """

    name: str
    is_internal: bool
    partitions: list[Partition]
    configs: list[ConfigValue]
    problems: list[str]
    is_measured: bool


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
    """Show a topic with a page of its partitions."""
    console = get_console()
    topic = console.read(("topic", name), lambda cluster: fetch_details(cluster, name))
    view = read_view(get_arguments(), _MEASURED_COLUMNS if topic.is_measured else _PARTITION_COLUMNS)
    keys: dict[str, Any] = {column: attrgetter(column) for column in _MEASURED_COLUMNS}
    shown = select(topic.partitions, view, keys, lambda one: str(one.partition))
    problems = topic.problems
    if not topic.is_measured:
        key = ("partitions", name, tuple(one.partition for one in shown.rows))
        rows, problems = console.read(key, lambda cluster: measure_partitions(cluster, name, shown.rows))
        shown = shown._replace(rows=rows)
    return render("topic.html", topic=topic, shown=shown, problems=problems)


def fetch_details(cluster: Cluster, name: str) -> TopicDetails:
    """Read a topic. Raises RequestError if it does not exist."""
    [topic] = cluster.fetch_topics([name])
    partitions = sorted(map(_make_partition, topic.partitions))
    is_measured = len(partitions) <= MOST_MEASURED
    problems: list[str] = []
    if is_measured:
        partitions, problems = measure_partitions(cluster, name, partitions)
    configs = fetch_configs(cluster, [(TOPIC, name)])[TOPIC, name]
    return TopicDetails(name, topic.is_internal, partitions, configs, problems, is_measured)


def measure_partitions(
    cluster: Cluster, name: str, partitions: Sequence[Partition]
) -> tuple[list[Partition], list[str]]:
    """Return partitions of a topic with their offsets and sizes, and the reasons for which some are missing."""
    leaders = {(name, one.partition): NO_LEADER if one.leader is None else one.leader for one in partitions}
    problems: list[str] = []
    first, end = fetch_log_ranges(cluster, leaders, problems)
    disks = fetch_disks(cluster, {name: [one.partition for one in partitions]})
    sizes: dict[int, int] = {}
    for log_dir in disks.log_dirs:
        for replica in log_dir.replicas:
            if not replica.is_future:
                sizes[replica.partition] = max(sizes.get(replica.partition, 0), replica.size_bytes)
    measured = [
        one._replace(
            first_offset=first.get((name, one.partition)),
            end_offset=end.get((name, one.partition)),
            size_bytes=sizes.get(one.partition),
        )
        for one in partitions
    ]
    return measured, problems + disks.problems


def _make_partition(one: MetadataResponsePartition) -> Partition:
    return Partition(
        one.partition_index,
        one.leader_id if one.leader_id >= 0 else None,
        list(one.replica_nodes),
        list(one.isr_nodes),
        None,
        None,
        None,
        is_under_replicated(one),
    )
