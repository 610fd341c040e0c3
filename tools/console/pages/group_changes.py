"""Reset of the committed offsets of a group."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from flask import Blueprint, redirect, request
from werkzeug.wrappers import Response

from odradek.tools.console.console import get_console, render
from odradek.tools.console.formats import format_count
from odradek.tools.console.inputs import APPLY, InputError, read_text, require_number, restrict_to_changes
from odradek.tools.console.pages.groups import GroupLag, find_group
from odradek.tools.console.pages.records import parse_time
from odradek.tools.kafka.cluster import Cluster, check
from odradek.tools.kafka.groups.description import commit_offsets
from odradek.tools.kafka.topics.offsets import TopicPartition, fetch_log_ranges, fetch_offsets, find_leaders

group_changes = Blueprint("group_changes", __name__)
restrict_to_changes(group_changes)

SHARE: Final = "share"
"""The type of groups that have no committed offsets."""

Returned = str | Response | tuple[str, int]


class OffsetChange(NamedTuple):
    """A row of a preview."""

    topic: str
    partition: int
    before: int | None
    after: int
    first: int
    end: int


@group_changes.get("/group/reset")
def show() -> str:
    """Show the form."""
    name = request.args.get("name", "")
    return _render(get_console().read_now(lambda cluster: find_group(cluster, name)))


@group_changes.post("/group/reset")
def reset() -> Returned:
    """Preview a reset, or commit the offsets of the preview."""
    console, name = get_console(), request.args.get("name", "")
    found = console.read_now(lambda cluster: find_group(cluster, name))
    try:
        if found.group.type == SHARE:
            raise InputError("The offsets of a share group are not committed offsets; use kafka-share-groups.sh.")
        if found.group.members:
            raise InputError(
                f"The group has {format_count(len(found.group.members), 'member')}; stop all before a reset."
            )
        if request.form.get("step") != APPLY:
            return _render(found, console.read_now(lambda cluster: _plan(cluster, found)))
        offsets = _read_offsets()
        console.change(lambda cluster: _commit(cluster, name, offsets))
        moved = ", ".join(f"{topic}-{partition} to {offset}" for (topic, partition), offset in offsets.items())
        console.log_change(f"reset group {name!a}: {moved}")
    except InputError as error:
        return _render(found, error=str(error)), 400
    return redirect(f"/group?{request.query_string.decode()}&done=reset", 303)


def _render(found: GroupLag, changes: list[OffsetChange] | None = None, error: str | None = None) -> str:
    topics = sorted({one.topic for one in found.partitions})
    return render("group_reset.html", found=found, topics=topics, changes=changes, form=request.form, error=error)


def _plan(cluster: Cluster, found: GroupLag) -> list[OffsetChange]:
    """Return the offsets that the form selects, moved into the logs. Raises InputError."""
    committed = {(one.topic, one.partition): one.committed for one in found.partitions}
    topic, target, at = read_text("topic"), read_text("target"), read_text("at").strip()
    leaders = find_leaders(cluster, [topic] if topic else {one.topic for one in found.partitions})
    selected = {key: leader for key, leader in leaders.items() if (topic or key in committed) and leader >= 0}
    first, end = fetch_log_ranges(cluster, selected)
    wanted: dict[TopicPartition, int]
    if target == "earliest":
        wanted = first
    elif target == "latest":
        wanted = end
    elif target == "offset":
        wanted = dict.fromkeys(selected, require_number("at", "Offset"))
    elif target == "shift":
        count = require_number("at", "Number of records", -(10**18))
        wanted = shift_offsets(committed, first, count)
    else:
        times = fetch_offsets(cluster, dict.fromkeys(selected, parse_time(at)), selected)
        wanted = {key: one.offset if one.offset >= 0 else end[key] for key, one in times.items()}
    changes = [
        OffsetChange(*key, committed.get(key), min(max(wanted[key], first[key]), end[key]), first[key], end[key])
        for key in sorted(wanted.keys() & first.keys() & end.keys())
    ]
    if not changes:
        raise InputError("No partition is selected.")
    return changes


def shift_offsets(
    committed: Mapping[TopicPartition, int | None], first: Mapping[TopicPartition, int], count: int
) -> dict[TopicPartition, int]:
    """Return the committed offsets, or without one the first of the log, plus `count`."""
    bases = {key: committed.get(key) for key in first}
    return {key: (first[key] if base is None else base) + count for key, base in bases.items()}


def _read_offsets() -> dict[TopicPartition, int]:
    """Return the offsets of the preview. Raises InputError."""
    offsets = {}
    for line in read_text("offsets").split():
        topic, partition, offset = (*line.rsplit(":", 2), "", "")[:3]
        if not (partition.isdecimal() and offset.isdecimal() and len(partition) < 10 and len(offset) <= 18):
            raise InputError("The preview is incomplete.")
        offsets[topic, int(partition)] = int(offset)
    return offsets


def _commit(cluster: Cluster, name: str, offsets: dict[TopicPartition, int]) -> None:
    for (topic, partition), code in commit_offsets(cluster, name, offsets).items():
        check(code, None, f"{topic}-{partition}")
