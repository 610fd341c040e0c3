"""Consumer groups."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flask import Blueprint, request

from odradek.tools.console.console import Console, get_arguments, get_console, render
from odradek.tools.console.paging import Shown, read_view, select
from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.groups.description import (
    Group,
    ListedGroup,
    Member,
    PartitionLag,
    compute_lags,
    describe_groups,
    exists,
    list_groups,
    unknown_group,
)

groups = Blueprint("groups", __name__)

_COLUMNS = ("name", "state", "type", "coordinator")
_PARTITION_COLUMNS = ("topic", "committed", "end", "lag")
_MEMBER_COLUMNS = ("client", "host", "partitions")


class GroupLag(NamedTuple):
    """A group with its partitions. `problems` are the reasons for which offsets are missing.

    is_described: False if only the state and the type of the group are known
    """

    group: Group
    partitions: list[PartitionLag]
    problems: Sequence[str] = ()
    is_described: bool = True

    @property
    def lag(self) -> int | None:
        """Return the records that the group has not consumed; None without committed offsets."""
        lags = [one.lag for one in self.partitions if one.lag is not None]
        return sum(lags) if lags else None

    @property
    def shared_client_ids(self) -> set[str]:
        """Return the client ids that several members have."""
        counts = Counter(member.client_id for member in self.group.members)
        return {client_id for client_id, count in counts.items() if count > 1}


class GroupList(NamedTuple):
    """All groups, except those of the brokers that do not answer, which `problems` names."""

    groups: list[ListedGroup]
    problems: list[str]


@groups.get("/groups")
def show_list() -> str:
    """List the groups, with the lag of those on the page."""
    console = get_console()
    listed = console.read("groups", fetch_list)
    keys: dict[str, Any] = {
        "name": lambda one: one.group,
        "state": lambda one: one.state,
        "type": lambda one: one.type,
        "coordinator": lambda one: one.coordinator,
    }
    shown = select(listed.groups, read_view(get_arguments(), _COLUMNS), keys, _get_name)
    names = tuple(one.group for one in shown.rows)
    lags: Mapping[str, GroupLag] = {}
    problems = [*listed.problems]
    if names:
        try:
            lags = console.read(("lags", names), lambda cluster: fetch_groups(cluster, names))
            problems += lags[names[0]].problems
        except RequestError as error:
            problems.append(f"members and lag of the groups: {error}")
    described = {name: one for name, one in lags.items() if exists(one.group)}
    return render("groups.html", shown=shown, described=described, problems=problems)


def _get_name(group: ListedGroup) -> str:
    return group.group


@groups.get("/group")
def show_group() -> str:
    """Show a group. Its name is an argument, because it may contain any characters."""
    name = request.args.get("name", "")
    console = get_console()
    found = console.read(("group", name), lambda cluster: find_group(cluster, name))
    console.lag_history.mark_opened(name)
    keys: dict[str, Any] = {
        "topic": lambda one: (one.topic, one.partition),
        "committed": lambda one: one.committed,
        "end": lambda one: one.end_offset,
        "lag": lambda one: one.lag,
    }
    view = read_view(get_arguments(), _PARTITION_COLUMNS)
    shown = select(found.partitions, view, keys, lambda one: f"{one.topic}-{one.partition}")
    members = _select_members(found.group.members)
    return render("group.html", found=found, shown=shown, members=members, chart=console.lag_history.draw(name))


def _select_members(members: Sequence[Member]) -> Shown[Member]:
    keys: dict[str, Any] = {
        "client": lambda one: (one.client_id, one.instance_id or one.member_id),
        "host": lambda one: one.host,
        "partitions": lambda one: len(one.partitions),
    }
    view = read_view(get_arguments(), _MEMBER_COLUMNS, "member_")
    return select(
        members, view, keys, lambda one: " ".join((one.client_id, one.host, one.member_id, one.instance_id or ""))
    )


def sample_lag(console: Console) -> None:
    """Add a sample to the history of the lag."""
    names = console.lag_history.select([one.group for one in console.read("groups", fetch_list).groups])
    found = console.read_now(lambda cluster: fetch_groups(cluster, names)) if names else {}
    # A sum without some of the partitions would look like records that were consumed.
    known = {name: one.lag for name, one in found.items() if not one.problems}
    console.lag_history.add(console.now_ms(), known)


def fetch_list(cluster: Cluster) -> GroupList:
    """Return all groups."""
    problems: list[str] = []
    return GroupList(list_groups(cluster, problems=problems), problems)


def find_group(cluster: Cluster, name: str) -> GroupLag:
    """Return a group, or its state and type alone if it can only be listed. Raises RequestError if there is none."""
    try:
        found = fetch_groups(cluster, [name])[name]
        if exists(found.group):
            return found
        error = None
    except RequestError as refused:
        error = refused
    listed = next((one for one in fetch_list(cluster).groups if one.group == name), None)
    if listed is None:
        raise error or unknown_group(cluster, name)
    group = Group(name, listed.state, listed.type, "", listed.coordinator, [])
    reason = "" if error is None else f": {error}"
    return GroupLag(group, [], [f"members and offsets, which the broker does not describe{reason}"], False)


def fetch_groups(cluster: Cluster, names: Any) -> dict[str, GroupLag]:
    """Return groups by name."""
    described = describe_groups(cluster, list(names))
    problems: list[str] = []
    lags = compute_lags(cluster, described, problems)
    return {group.group: GroupLag(group, lags[group.group], problems) for group in described}
