"""Creation, configuration and deletion of topics, and production of a record."""

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flask import Blueprint, redirect, request
from werkzeug.wrappers import Response

from odradek.tools.console.console import get_console, render
from odradek.tools.console.inputs import (
    APPLY,
    MOST_PARTITION,
    MOST_REPLICAS,
    InputError,
    read_bytes,
    read_number,
    read_pairs,
    read_text,
    restrict_to_changes,
)
from odradek.tools.console.pages.records import fetch_ranges
from odradek.tools.kafka.cluster import Cluster, RequestError, check
from odradek.tools.kafka.topics.config_changes import DELETE, SET, Operation, send_config_changes
from odradek.tools.kafka.topics.configs import TOPIC, ConfigValue, fetch_configs
from odradek.tools.kafka.topics.offsets import find_leaders
from odradek.tools.kafka.topics.record_production import choose_partition, produce_record
from odradek.tools.kafka.topics.topic_changes import create_topic, delete_topic

topic_changes = Blueprint("topic_changes", __name__)
restrict_to_changes(topic_changes)

Returned = str | Response | tuple[str, int]


class ConfigChange(NamedTuple):
    """A row of a preview; `after` is None if the default will apply and is not reported."""

    name: str
    before: str | None
    after: str | None
    operation: Operation


@topic_changes.get("/new-topic")
def show_creation() -> str:
    """Show the form of a new topic."""
    return _render_creation()


@topic_changes.post("/new-topic")
def create() -> Returned:
    """Validate a new topic, or create it."""
    name = read_text("name").strip()
    try:
        partitions = read_number("partitions", "Partitions", 1, MOST_PARTITION)
        replicas = read_number("replicas", "Replicas", 1, MOST_REPLICAS)
        configs = dict(read_pairs("configs", "="))
        is_dry_run = request.form.get("step") != APPLY
        created = get_console().change(
            lambda cluster: create_topic(cluster, name, partitions, replicas, configs, is_dry_run=is_dry_run)
        )
    except (InputError, RequestError) as error:
        return _render_creation(error=str(error)), 400
    if is_dry_run:
        return _render_creation(checked=created)
    get_console().log_change(f"created topic {name}")
    return redirect(f"/topics?search={name}&done=created", 303)


def _render_creation(checked: tuple[int, int] | None = None, error: str | None = None) -> str:
    return render("topic_new.html", form=request.form, checked=checked, error=error)


@topic_changes.get("/topics/<name>/config")
def show_config(name: str) -> str:
    """Show the form of the configuration."""
    return _render_config(name, fetch_topic_configs(name))


@topic_changes.post("/topics/<name>/config")
def change_config(name: str) -> Returned:
    """Preview a change of the configuration, or apply it."""
    configs = fetch_topic_configs(name)
    changes = find_config_changes(configs, request.form, request.form.getlist("reset"))
    if not changes:
        return _render_config(name, configs, error="No value differs from the current one."), 400
    is_dry_run = request.form.get("step") != APPLY

    def work(cluster: Cluster) -> None:
        operations = [change.operation for change in changes]
        for _, code, message in send_config_changes(cluster, [(TOPIC, name)], operations, is_dry_run=is_dry_run):
            check(code, message)

    try:
        get_console().change(work)
    except RequestError as error:
        return _render_config(name, configs, error=str(error)), 400
    if is_dry_run:
        return render("topic_config_preview.html", name=name, changes=changes)
    operations = [
        f"{key}={'default' if code == DELETE else value}" for key, code, value in (one.operation for one in changes)
    ]
    get_console().log_change(f"configured topic {name}: {', '.join(operations)}")
    return redirect(f"/topics/{name}?done=configured", 303)


def fetch_topic_configs(name: str) -> list[ConfigValue]:
    """Return the configuration of a topic."""
    return get_console().read_now(lambda cluster: fetch_configs(cluster, [(TOPIC, name)])[TOPIC, name])


def find_config_changes(
    configs: Sequence[ConfigValue], values: Mapping[str, str], resets: Sequence[str]
) -> list[ConfigChange]:
    """Return the differences between a configuration and the fields `value.<name>` of a form."""
    changes = []
    for one in configs:
        value = values.get(f"value.{one.name}")
        if one.name in resets:
            if one.is_changed:
                changes.append(ConfigChange(one.name, one.value, one.default, (one.name, DELETE, None)))
        elif value is not None and value.strip() != (one.value or ""):
            changes.append(ConfigChange(one.name, one.value, value.strip(), (one.name, SET, value.strip())))
    return changes


def _render_config(name: str, configs: Sequence[ConfigValue], error: str | None = None) -> str:
    return render("topic_config.html", name=name, configs=configs, form=request.form, error=error)


@topic_changes.get("/topics/<name>/delete")
def show_deletion(name: str) -> str:
    """Ask for the confirmation of a deletion."""
    return _render_deletion(name)


@topic_changes.post("/topics/<name>/delete")
def delete(name: str) -> Returned:
    """Delete a topic, if its name was entered."""
    if read_text("confirmed").strip() != name:
        return _render_deletion(name, error="The name that was entered is not that of the topic."), 400
    get_console().change(lambda cluster: delete_topic(cluster, name))
    get_console().log_change(f"deleted topic {name}")
    return redirect("/topics?done=deleted", 303)


def _render_deletion(name: str, error: str | None = None) -> str:
    ranges = get_console().read_now(lambda cluster: fetch_ranges(cluster, name))
    count = sum(ranges.end[one] - ranges.first[one] for one in ranges.end)
    return render("topic_delete.html", name=name, partitions=len(ranges.end), records=count, error=error)


@topic_changes.get("/topics/<name>/produce")
def show_production(name: str) -> str:
    """Show the form of a record."""
    return _render_production(name)


@topic_changes.post("/topics/<name>/produce")
def produce(name: str) -> Returned:
    """Produce a record."""
    console = get_console()
    try:
        chosen = read_number("partition", "Partition")
        key, value = read_bytes("key", "The key") or None, read_bytes("value", "The value")
        headers = [(header, text.encode()) for header, text in read_pairs("headers", ":")]

        def work(cluster: Cluster) -> tuple[int, int]:
            [topic] = cluster.fetch_topics([name])
            partition = chosen
            if partition is None and key is not None:
                partition = choose_partition(key, len(topic.partitions))
            elif partition is None:
                partition = secrets.randbelow(len(topic.partitions))
            return partition, produce_record(cluster, name, partition, key, value, headers, console.now_ms())

        partition, offset = console.change(work)
    except (InputError, RequestError) as error:
        return _render_production(name, error=str(error)), 400
    console.log_change(f"produced {name}-{partition} offset {offset}")
    return redirect(f"/topics/{name}/records/{partition}/{offset}?done=produced", 303)


def _render_production(name: str, error: str | None = None) -> str:
    leaders = get_console().read(("leaders", name), lambda cluster: find_leaders(cluster, [name]))
    partitions = sorted(partition for (_, partition), leader in leaders.items() if leader >= 0)
    return render("produce.html", name=name, partitions=partitions, form=request.form, error=error)
