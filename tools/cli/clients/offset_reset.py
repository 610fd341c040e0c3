"""The command `odradek group reset`: where to, a table of the offsets before and after it, and the commit."""

import csv
import io
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Session, make_outcome
from odradek.tools.cli.terminal.completions import complete_groups, complete_topics
from odradek.tools.cli.terminal.output import Table, count
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.groups.description import commit_offsets, describe_groups, fetch_committed
from odradek.tools.kafka.groups.group_types import SHARE, Group
from odradek.tools.kafka.topics.offsets import (
    TopicPartition,
    check_partitions,
    fetch_log_ranges,
    fetch_offsets,
    find_leaders,
)

_KEYS: Final = ("topic", "partition", "before", "after", "first_offset", "end_offset")


class _Ranges(NamedTuple):
    """Committed, first and end offsets of the selected partitions."""

    committed: Mapping[TopicPartition, int]
    first: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


_FindOffsets = Callable[[Cluster, Sequence[TopicPartition], _Ranges], dict[TopicPartition, int]]


def declare_reset(commands: Commands) -> None:
    """Add the command to those of groups."""
    commands.command("reset", is_destructive=True)(reset)


def reset(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_groups, help="Group.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:N,...]", autocompletion=complete_topics, help="Topic, or partitions; repeatable."
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics with committed offsets.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="After the last record.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To the committed one, or after the last.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, metavar="N", help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="N records forward, or back if negative.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record at or after 2026-01-31T12:00."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="DURATION", help="To the time before now (90m, 2h, P1DT2H).")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="To offsets in CSV: topic,partition,offset.")
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="Write the new offsets as CSV, with --dry-run.")] = False,
) -> int:
    """Set the committed offsets of a group that has no members.

    --dry-run shows the offsets before and after the reset.
    """
    find_offsets = _choose(to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, by_duration, from_file)
    file_offsets = {} if from_file is None else _read_csv(from_file)
    if from_file is not None and (topics or all_topics):
        raise CommandError("--from-file excludes --topic and --all-topics", exit_code=EXIT_USAGE)
    if from_file is None and bool(topics) is all_topics:
        raise CommandError("specify either --topic or --all-topics", exit_code=EXIT_USAGE)
    if export and not session.is_dry_run:
        raise CommandError("--export requires --dry-run", exit_code=EXIT_USAGE)
    _check_is_inactive(session.cluster, name)
    committed = fetch_committed(session.cluster, [name])[name]
    selected = list(file_offsets) or _select(session.cluster, topics or [], committed)
    leaders = find_leaders(session.cluster, [topic for topic, _ in selected])
    check_partitions(selected, leaders)
    if offline := [key for key in selected if leaders[key] < 0]:
        raise CommandError(f"{offline[0][0]}-{offline[0][1]} has no leader")
    first, end = fetch_log_ranges(session.cluster, {key: leaders[key] for key in selected})
    _check_found(selected, first, end)
    ranges = _Ranges(committed, first, end)
    wanted = file_offsets or find_offsets(session.cluster, selected, ranges)
    after = {key: min(max(offset, first[key]), end[key]) for key, offset in wanted.items()}
    if export:
        _write_csv(after)
        return 0
    rows = [(*key, committed.get(key), after[key], first[key], end[key]) for key in sorted(after)]
    table = Table(_KEYS, rows)
    if session.output.is_json and session.is_dry_run:
        session.output.show(table)
        return 0
    session.preview(table)
    for key in sorted(after):
        if after[key] != wanted[key]:
            session.warn(f"{key[0]}-{key[1]} has no offset {wanted[key]}, {after[key]} is the nearest")
    if session.is_dry_run:
        return 0
    session.confirm(f"Set {count(len(after), 'offset')} of {name}?")
    return session.finish(
        "offset",
        "reset",
        [
            make_outcome(f"{topic}-{partition}", code)
            for (topic, partition), code in commit_offsets(session.cluster, name, after).items()
        ],
    )


def _choose(
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: Path | None,
) -> _FindOffsets:
    """Return the function that finds the offsets of the one option given. Raises CommandError."""
    from odradek.tools.kafka.times import parse_duration_ms, parse_time_ms

    chosen: list[_FindOffsets] = []
    if to_earliest:
        chosen.append(lambda cluster, selected, ranges: {key: ranges.first[key] for key in selected})
    if to_latest:
        chosen.append(lambda cluster, selected, ranges: {key: ranges.end[key] for key in selected})
    if to_current:
        chosen.append(
            lambda cluster, selected, ranges: {key: ranges.committed.get(key, ranges.end[key]) for key in selected}
        )
    if to_offset is not None:
        chosen.append(lambda cluster, selected, ranges: dict.fromkeys(selected, to_offset))
    if shift_by is not None:
        chosen.append(lambda cluster, selected, ranges: _shift(selected, ranges, shift_by))
    try:
        if to_datetime is not None:
            time_ms = parse_time_ms(to_datetime)
            chosen.append(lambda cluster, selected, ranges: _find_by_time(cluster, selected, ranges, time_ms))
        if by_duration is not None:
            before_ms = max(int(time.time() * 1000) - parse_duration_ms(by_duration), 0)
            chosen.append(lambda cluster, selected, ranges: _find_by_time(cluster, selected, ranges, before_ms))
    except ValueError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
    if from_file is not None:
        chosen.append(lambda cluster, selected, ranges: {})
    if len(chosen) != 1:
        options = "--to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, --by-duration"
        raise CommandError(f"specify exactly one of {options} and --from-file", exit_code=EXIT_USAGE)
    return chosen[0]


def _shift(selected: Sequence[TopicPartition], ranges: _Ranges, count: int) -> dict[TopicPartition, int]:
    if missing := [key for key in selected if key not in ranges.committed]:
        topic, index = missing[0]
        raise CommandError(f"--shift-by: the group has no committed offset in {topic}-{index}")
    return {key: ranges.committed[key] + count for key in selected}


def _find_by_time(
    cluster: Cluster, selected: Sequence[TopicPartition], ranges: _Ranges, time_ms: int
) -> dict[TopicPartition, int]:
    found = fetch_offsets(cluster, dict.fromkeys(selected, time_ms))
    _check_found(selected, found)
    return {key: found[key].offset if found[key].offset >= 0 else ranges.end[key] for key in selected}


def _check_found(selected: Sequence[TopicPartition], *found: Collection[TopicPartition]) -> None:
    """Raise CommandError for the first partition whose leader has changed meanwhile."""
    for topic, index in selected:
        if not all((topic, index) in each for each in found):
            raise CommandError(f"the leader of {topic}-{index} is changing; repeat the command")


def _check_is_inactive(cluster: Cluster, name: str) -> None:
    [group] = describe_groups(cluster, [name])
    check_is_no_share_group(group)
    if group.members:
        them = "it" if len(group.members) == 1 else "them"
        raise CommandError(f"group {name} has {count(len(group.members), 'member')}; stop {them} before a reset")


def check_is_no_share_group(group: Group) -> None:
    """Raise CommandError if a group has start offsets, which these commands do not change, and no committed ones."""
    if group.type == SHARE:
        raise CommandError(
            f"group {group.group} is a share group, which has no committed offsets; kafka-share-groups.sh changes "
            "its start offsets"
        )


def _select(cluster: Cluster, topics: Sequence[str], committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions that options name; those with committed offsets without any."""
    if not topics:
        if not committed:
            raise CommandError("--all-topics: the group has no committed offsets")
        return sorted(committed)
    selected = []
    for text in topics:
        name, colon, indexes = text.rpartition(":")
        if colon and all(part.isdecimal() for part in indexes.split(",")):
            selected += [(name, int(part)) for part in indexes.split(",")]
        else:
            selected += sorted(find_leaders(cluster, [text]))
    return selected


def _read_csv(file: Path) -> dict[TopicPartition, int]:
    """Return the offsets in a file of `topic,partition,offset`, as kafka-consumer-groups --export writes it."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--from-file {file}: {getattr(error, 'strerror', None) or error}", exit_code=2) from None
    offsets = {}
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise CommandError(f"--from-file {file}: {error}", exit_code=EXIT_USAGE) from None
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        try:
            topic, partition, offset = row
            offsets[topic.strip(), int(partition)] = int(offset)
        except ValueError:
            message = f"{file}, line {number}: {','.join(row)} is not topic,partition,offset"
            raise CommandError(message, exit_code=EXIT_USAGE) from None
    if not offsets:
        raise CommandError(f"--from-file {file} has no offsets", exit_code=EXIT_USAGE)
    return offsets


def _write_csv(offsets: Mapping[TopicPartition, int]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows((*key, offsets[key]) for key in sorted(offsets))
