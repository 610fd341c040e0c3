"""The commands `odradek group`, except `reset`."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from odradek.protocol.errors import ErrorCode
from odradek.tools.cli.clients.offset_reset import check_is_no_share_group, declare_reset
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.choices import GROUP_STATES, GROUP_TYPES, find_choices
from odradek.tools.cli.terminal.completions import complete_group_states, complete_group_types, complete_groups
from odradek.tools.cli.terminal.output import JsonValue, Row, Table, count
from odradek.tools.kafka.cluster import check
from odradek.tools.kafka.groups.description import (
    GROUP_KEY,
    Group,
    PartitionLag,
    compute_lags,
    describe_groups,
    exists,
    fetch_committed,
    list_groups,
    unknown_group,
)
from odradek.tools.kafka.groups.group_types import SHARE
from odradek.tools.kafka.similar_names import find_similar, format_suggestion
from odradek.tools.kafka.topics.offsets import TopicPartition, parse_partition

_LAG_KEYS: Final = ("topic", "partition", "committed", "end_offset", "lag", "member", "client", "host")
_SHARE_KEYS: Final = ("topic", "partition", "start_offset", "end_offset", "lag")
_MEMBER_KEYS: Final = ("member", "instance", "client", "host", "partitions")
_WATCH_KEYS: Final = ("group", "state", "members", "topic", "partitions", "lag")
_READER_KEYS: Final = ("client_id", "topic", "partition", "offset", "lag", "since_fetch_s")
_MAX_INTERVAL_S: Final = 86_400
_CLEAR: Final = "\x1b[H\x1b[2J"

commands = Commands("group", "Consumer groups.")
declare_reset(commands)

GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP", autocompletion=complete_groups, help="Groups.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_groups, help="Group.")]


@commands.command("list")
def list_all(
    session: Session,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            autocompletion=complete_group_states,
            help="Only groups in this state, such as Empty.",
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            autocompletion=complete_group_types,
            help="Only groups of this type, such as classic.",
        ),
    ] = None,
) -> int:
    """List the groups."""
    problems: list[str] = []
    wanted_states = find_choices("group state", states or [], GROUP_STATES)
    wanted_types = find_choices("group type", types or [], GROUP_TYPES)
    rows = list_groups(session.cluster, wanted_states, wanted_types, problems)
    session.output.show(Table(("group", "state", "type", "protocol_type", "coordinator"), rows))
    return session.report_problems(problems)


@commands.command("describe")
def describe(session: Session, names: GroupNames) -> int:
    """Show groups with their members, committed offsets (of share groups start offsets) and lag."""
    groups = describe_groups(session.cluster, names)
    problems: list[str] = []
    lags = compute_lags(session.cluster, groups, problems)
    for group in groups:
        if not exists(group) and not lags[group.group]:
            raise unknown_group(session.cluster, group.group)
    documents: list[JsonValue] = []
    parts: list[Table | Mapping[str, JsonValue]] = []
    for group in groups:
        fields: dict[str, JsonValue] = {
            "group": group.group,
            "state": group.state,
            "type": group.type,
            "assignor": group.assignor,
            "coordinator": group.coordinator,
            "lag": _total(lags[group.group]),
        }
        members = Table(
            _MEMBER_KEYS,
            [
                (one.member_id, one.instance_id, one.client_id, one.host, _format_partitions(one.partitions))
                for one in group.members
            ],
        )
        offsets = _make_offset_table(group, lags[group.group])
        documents.append({**fields, "members": members.as_json(), "offsets": offsets.as_json()})
        parts += [fields, members, offsets]
    session.output.show_all(documents, *parts)
    return session.report_problems(problems)


@commands.command("lag")
def show_lag(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", autocompletion=complete_groups, help="Groups (all).")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C, in JSON line by line.")] = False,
    interval_s: Annotated[
        float,
        typer.Option("--interval", min=0, max=_MAX_INTERVAL_S, metavar="SECONDS", help="Time between repetitions."),
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Number of repetitions with --watch.")
    ] = None,
    readers: Annotated[
        bool, typer.Option("--readers", help="Show clients that fetch, also without commits, in place of groups.")
    ] = False,
    metrics_urls: Annotated[
        list[str] | None,
        typer.Option("--metrics-url", metavar="URL", help="Metrics of a broker, if DescribeConfigs does not tell."),
    ] = None,
) -> int:
    """Show the lag of groups in each topic: records that were not consumed and committed.

    With --readers it is the lag of each client in each partition that it fetches, which the metrics of Odradek's
    brokers have (metrics.listener); GROUP is then a client id.
    """
    if math.isnan(interval_s):
        raise typer.BadParameter("is no number", param_hint="--interval")
    shown = 0
    while True:
        problems: list[str] = []
        if readers:
            table = Table(_READER_KEYS, _list_readers(session, names, metrics_urls or ()))
        else:
            table = Table(_WATCH_KEYS, _compute_rows(session, names, problems))
        if not watch:
            session.output.show(table)
            return session.report_problems(problems)
        if session.output.is_json:
            session.output.write_json_line(table.as_json())
        else:
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            session.output.write_table(table)
        sys.stdout.flush()
        exit_code = session.report_problems(problems)
        shown += 1
        if shown == count:
            return exit_code
        time.sleep(interval_s)


def _list_readers(session: Session, client_ids: list[str] | None, urls: Sequence[str]) -> list[Row]:
    # Imported here because most commands need no HTTP.
    from odradek.tools.kafka.groups.readers import fetch_readers

    now_s = time.time()
    return [
        (one.client_id, one.topic, one.partition, one.offset, one.lag, round(max(0.0, now_s - one.fetched_s), 1))
        for one in fetch_readers(session.cluster, urls)
        if not client_ids or one.client_id in client_ids
    ]


def _compute_rows(session: Session, names: list[str] | None, problems: list[str]) -> list[Row]:
    found = names or [one.group for one in list_groups(session.cluster, problems=problems)]
    groups = describe_groups(session.cluster, found) if found else []
    lags = compute_lags(session.cluster, groups, problems)
    rows: list[Row] = []
    for group in groups:
        if names and not exists(group) and not lags[group.group]:
            raise unknown_group(session.cluster, group.group)
        rows += _make_lag_rows(group.group, group.state, len(group.members), lags[group.group])
    return rows


def _make_lag_rows(group: str, state: str, members: int, lags: list[PartitionLag]) -> list[Row]:
    topics: dict[str, list[PartitionLag]] = {}
    for one in lags:
        topics.setdefault(one.topic, []).append(one)
    return [(group, state, members, topic, len(each), _total(each)) for topic, each in topics.items()]


@commands.command("delete", is_destructive=True)
def delete(session: Session, names: GroupNames) -> int:
    """Delete groups without members, and their offsets."""
    from odradek.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

    groups = describe_groups(session.cluster, names)
    for group in groups:
        if not exists(group):
            raise unknown_group(session.cluster, group.group)
    session.confirm(f"Delete {', '.join(names)} and all their offsets?")
    if session.is_dry_run:
        return session.finish("group", "deleted", [_preview_deletion(group) for group in groups])
    outcomes = []
    for name in names:
        request = DeleteGroupsRequest(groups_names=[name])
        response = session.cluster.ask_coordinator(name, GROUP_KEY, request, DeleteGroupsResponse)
        outcomes += [make_outcome(one.group_id, one.error_code) for one in response.results]
    return session.finish("group", "deleted", outcomes)


def _preview_deletion(group: Group) -> Outcome:
    code = ErrorCode.NON_EMPTY_GROUP if group.members else ErrorCode.NONE
    return make_outcome(group.group, code)


@commands.command("delete-offsets", is_destructive=True)
def delete_offsets(
    session: Session,
    name: GroupName,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC[:PARTITION]", help="Topics or partitions.")],
) -> int:
    """Delete committed offsets of a group, in topics to which no member is subscribed."""
    from odradek.protocol.messages import offset_delete as messages

    committed = fetch_committed(session.cluster, [name])[name]
    if not committed:
        [group] = describe_groups(session.cluster, [name])
        check_is_no_share_group(group)
        if not exists(group):
            raise unknown_group(session.cluster, name)
    selected = select_partitions(name, topics, committed)
    if missing := [f"{topic}-{index}" for topic, index in selected if (topic, index) not in committed]:
        raise CommandError(f"group {name} has no offset in {missing[0]}")
    session.confirm(f"Delete the offsets of {name} in {count(len(selected), 'partition')}?")
    if session.is_dry_run:
        return session.finish("offset", "deleted", [Outcome(f"{topic}-{index}") for topic, index in selected])
    by_topic: dict[str, list[int]] = {}
    for topic, index in selected:
        by_topic.setdefault(topic, []).append(index)
    request = messages.OffsetDeleteRequest(
        group_id=name,
        topics=[
            messages.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[messages.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
            )
            for topic, indexes in by_topic.items()
        ],
    )
    response = session.cluster.ask_coordinator(name, GROUP_KEY, request, messages.OffsetDeleteResponse)
    if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise unknown_group(session.cluster, name)
    check(response.error_code, None, f"group {name}")
    outcomes = [
        make_outcome(f"{topic.name}-{one.partition_index}", one.error_code)
        for topic in response.topics
        for one in topic.partitions
    ]
    return session.finish("offset", "deleted", outcomes)


def select_partitions(group: str, texts: list[str], committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions that arguments name; those of a topic are the committed ones. Raises CommandError."""
    selected: list[TopicPartition] = []
    for text in texts:
        in_topic = [key for key in committed if key[0] == text]
        if in_topic:
            selected += in_topic
            continue
        if ":" not in text:
            similar = find_similar(text, {topic for topic, _ in committed})
            message = f"group {group} has no offset in topic {text}{format_suggestion(similar)}"
            raise CommandError(message, similar=similar)
        try:
            selected.append(parse_partition(text))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="TOPIC[:PARTITION]") from None
    return selected


def _make_offset_table(group: Group, lags: Sequence[PartitionLag]) -> Table:
    if group.type == SHARE:
        return Table(_SHARE_KEYS, [(one.topic, one.partition, one.committed, one.end_offset, one.lag) for one in lags])
    return Table(_LAG_KEYS, [_make_row(one) for one in lags])


def _make_row(one: PartitionLag) -> Row:
    member = one.member
    owner = (None, None, None) if member is None else (member.member_id, member.client_id, member.host)
    return (one.topic, one.partition, one.committed, one.end_offset, one.lag, *owner)


def _total(lags: list[PartitionLag]) -> int | None:
    """Return the lag of partitions; None if none of them has a committed offset whose lag is known."""
    known = [one.lag for one in lags if one.lag is not None]
    return sum(known) if known else None


def _format_partitions(partitions: list[TopicPartition]) -> list[str]:
    return [f"{topic}:{index}" for topic, index in sorted(partitions)]
