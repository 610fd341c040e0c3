"""The commands `odradek partition`, except those of reassignments."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from odradek.protocol.errors import ErrorCode
from odradek.tools.cli.cluster.reassignments import reassign_commands
from odradek.tools.cli.cluster.topics import REQUEST_TIMEOUT_MS, add_partitions, lacks_replicas
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.completions import complete_topics
from odradek.tools.cli.terminal.json_files import as_int, as_text, read_json_list
from odradek.tools.cli.terminal.output import JsonValue, Row, Table, count
from odradek.tools.kafka.cluster import RequestError, check
from odradek.tools.kafka.topics.offsets import (
    LATEST,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    TopicPartition,
    check_partitions,
    fetch_log_ranges,
    fetch_offsets,
    find_leaders,
    group_by_leader,
)

_KEYS: Final = ("topic", "partition", "leader", "replicas", "isr", "first_offset", "end_offset", "size_bytes")
_REPLICA_KEYS: Final = ("broker", "role", "in_sync", "log_dir", "size_bytes", "lag", "future")

commands = Commands("partition", "Partitions of topics.")
commands.add_group(reassign_commands)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Name of the topic.")]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]


@commands.command("list")
def list_partitions(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topics (all).")
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica that is not in sync.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only partitions without a leader.")] = False,
    show_internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
) -> int:
    """List partitions with leader, replicas, offsets and the size of the leader's log.

    A leader that does not answer is reported; offsets and sizes are then missing, and the exit code is 1.
    """
    topics = [
        topic
        for topic in session.cluster.fetch_topics(names or None)
        if names or show_internal or not topic.is_internal
    ]
    selected = {
        (topic.name or "", partition.partition_index): partition
        for topic in topics
        for partition in topic.partitions
        if not (under_replicated and len(partition.isr_nodes) == len(partition.replica_nodes))
        and not (unavailable and partition.leader_id >= 0)
    }
    leaders = {key: partition.leader_id for key, partition in selected.items()}
    problems: list[str] = []
    first, end = fetch_log_ranges(session.cluster, leaders, problems)
    sizes = _fetch_sizes(session, {key: leaders[key] for key in first})
    rows = [
        (
            *key,
            leaders[key] if leaders[key] >= 0 else None,
            list(partition.replica_nodes),
            list(partition.isr_nodes),
            first.get(key),
            end.get(key),
            sizes.get(key),
        )
        for key, partition in sorted(selected.items())
    ]
    session.output.show(Table(_KEYS, rows, is_marked=lambda row: lacks_replicas(row[1:])))
    return session.report_problems(problems)


def _fetch_sizes(session: Session, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the size of each leader's log; none if this client must not read the log directories."""
    from odradek.tools.kafka.topics.log_dirs import fetch_log_dirs

    sizes = {}
    try:
        for leader, topics in group_by_leader(leaders, leaders).items():
            for log_dir in fetch_log_dirs(session.cluster, [leader], topics):
                for one in log_dir.replicas:
                    if not one.is_future:
                        sizes[one.topic, one.partition] = one.size_bytes
    except RequestError as error:
        if error.code != "CLUSTER_AUTHORIZATION_FAILED":
            raise
    return sizes


@commands.command("describe")
def describe(session: Session, topic: Topic, partition: Partition) -> None:
    """Show a partition: offsets, leader epoch, and its replicas with log directory, size and lag."""
    from odradek.tools.kafka.topics.log_dirs import LogReplica, fetch_log_dirs

    [described] = session.cluster.fetch_topics([topic])
    key = (topic, partition)
    leaders = {(topic, one.partition_index): one.leader_id for one in described.partitions}
    check_partitions([key], leaders)
    [state] = [one for one in described.partitions if one.partition_index == partition]
    only = {key: leaders[key]}
    first, end = fetch_log_ranges(session.cluster, only)
    stable = fetch_offsets(session.cluster, {key: LATEST}, only, READ_COMMITTED).get(key)
    newest = fetch_offsets(session.cluster, {key: MAX_TIMESTAMP}, only).get(key)
    live = [broker for broker in state.replica_nodes if broker in session.cluster.node_ids()]
    stored: dict[int, list[LogReplica]] = {}
    for log_dir in fetch_log_dirs(session.cluster, live, {topic: [partition]}):
        for one in log_dir.replicas:
            stored.setdefault(one.broker, []).append(one)
    fields: dict[str, JsonValue] = {
        "topic": topic,
        "partition": partition,
        "leader": state.leader_id if state.leader_id >= 0 else None,
        "leader_epoch": state.leader_epoch,
        "first_offset": first.get(key),
        "end_offset": end.get(key),
        "last_stable_offset": stable.offset if stable else None,
        "newest_timestamp_ms": newest.timestamp_ms if newest and newest.timestamp_ms >= 0 else None,
    }
    rows: list[Row] = []
    for broker in state.replica_nodes:
        role = "leader" if broker == state.leader_id else "follower"
        is_in_sync = broker in state.isr_nodes
        for each in stored.get(broker, []):
            rows.append((broker, role, is_in_sync, each.log_dir, each.size_bytes, each.lag, each.is_future))
        if broker not in stored:
            rows.append((broker, role, is_in_sync, None, None, None, False))
    replicas = Table(_REPLICA_KEYS, rows, is_marked=lambda row: row[2] is False)
    session.output.show_all({**fields, "replicas": replicas.as_json()}, fields, replicas)


@commands.command("create", is_change=True)
def create(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topics.")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, metavar="N", help="New, larger number.")],
) -> int:
    """Add partitions to topics, up to a number."""
    return add_partitions(session, names, partitions)


@commands.command("elect", is_destructive=True)
def elect(
    session: Session,
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="Topics or partitions.")
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topic-partitions", help="All partitions.")] = False,
    election_type: Annotated[
        Literal["preferred", "unclean"],
        typer.Option(help="preferred: the first replica; unclean: one that may lack records, if there is no other."),
    ] = "preferred",
) -> int:
    """Elect leaders of partitions.

    An unclean election may lose records; it is confirmed first.
    """
    from odradek.protocol.messages import elect_leaders as messages

    if all_topics == bool(partitions):
        raise CommandError("specify either partitions or --all-topic-partitions", exit_code=EXIT_USAGE)
    selected = _select(session, partitions or [])
    if session.is_dry_run:
        return _preview_election(session, selected)
    if election_type == "unclean":
        what = "all partitions without one" if all_topics else count(len(selected), "partition")
        session.confirm(f"Elect leaders of {what} that may lack records, which are then lost?")
    topics = None if all_topics else _group_by_topic(selected)
    request = messages.ElectLeadersRequest(
        election_type={"preferred": 0, "unclean": 1}[election_type],
        topic_partitions=None
        if topics is None
        else [
            messages.ElectLeadersRequestTopicPartitions(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
        ],
        timeout_ms=REQUEST_TIMEOUT_MS,
    )
    response = session.cluster.ask_controller(request, messages.ElectLeadersResponse)
    check(response.error_code)
    outcomes, details = [], {}
    for result in response.replica_election_results:
        for one in result.partition_result:
            name = f"{result.topic}-{one.partition_id}"
            is_unneeded = one.error_code == ErrorCode.ELECTION_NOT_NEEDED
            outcomes.append(Outcome(name) if is_unneeded else make_outcome(name, one.error_code, one.error_message))
            if is_unneeded:
                details[name] = "earlier; there was nothing to do"
    return session.finish("partition", "elected", outcomes, details)


def _preview_election(session: Session, selected: Sequence[TopicPartition]) -> int:
    rows = [
        (topic.name, one.partition_index, one.leader_id, next(iter(one.replica_nodes), None))
        for topic in session.cluster.fetch_topics({name for name, _ in selected} or None)
        for one in topic.partitions
        if not selected or (topic.name, one.partition_index) in selected
    ]
    session.output.show(Table(("topic", "partition", "leader", "preferred_leader"), rows))
    return 0


def _predict_deletion(key: TopicPartition, offset: int, ends: Mapping[TopicPartition, int]) -> Outcome:
    """Return the result of a deletion that is not done: the leader refuses offsets after its high watermark."""
    is_after_end = key in ends and offset > ends[key]
    code, message = (ErrorCode.OFFSET_OUT_OF_RANGE, f"the end is {ends[key]}") if is_after_end else (ErrorCode.NONE, "")
    return make_outcome(f"{key[0]}-{key[1]}", code, message)


@commands.command("delete-records", is_destructive=True)
def delete_records(
    session: Session,
    offsets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC:PARTITION=OFFSET", help="Offset before which records are deleted; -1: all."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--offset-json-file", metavar="FILE", help="A file of kafka-delete-records.")
    ] = None,
) -> int:
    """Delete the records of partitions before an offset."""
    from odradek.protocol.messages import delete_records as messages

    wanted = _read_offsets(offsets or [], file)
    leaders = find_leaders(session.cluster, [topic for topic, _ in wanted])
    check_partitions(wanted, leaders)
    first, end = fetch_log_ranges(session.cluster, {key: leaders[key] for key in wanted})
    rows = [
        (*key, first.get(key), end.get(key) if offset < 0 else max(offset, first.get(key, 0)))
        for key, offset in sorted(wanted.items())
    ]
    session.preview(Table(("topic", "partition", "first_offset", "new_first_offset"), rows))
    session.confirm("Delete the records before these offsets?")
    if session.is_dry_run:
        return session.finish("partition", "trimmed", [_predict_deletion(key, wanted[key], end) for key in wanted])
    outcomes = []
    for leader, topics in group_by_leader(wanted, leaders).items():
        request = messages.DeleteRecordsRequest(
            topics=[
                messages.DeleteRecordsRequestDeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        messages.DeleteRecordsRequestDeleteRecordsPartition(
                            partition_index=index, offset=wanted[topic, index]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in topics.items()
            ],
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        for each in session.cluster.broker(leader).send(request, messages.DeleteRecordsResponse).topics:
            outcomes += [make_outcome(f"{each.name}-{one.partition_index}", one.error_code) for one in each.partitions]
    outcomes += [
        Outcome(f"{topic}-{index}", RequestError("LEADER_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE"))
        for topic, index in wanted
        if leaders[topic, index] < 0
    ]
    return session.finish("partition", "trimmed", outcomes)


def _read_offsets(arguments: Sequence[str], file: Path | None) -> dict[TopicPartition, int]:
    """Return the offsets of the arguments and the file. Raises CommandError."""
    from odradek.tools.kafka.topics.offsets import parse_partition

    wanted: dict[TopicPartition, int] = {}
    for argument in arguments:
        name, _, offset = argument.rpartition("=")
        try:
            wanted[parse_partition(name)] = int(offset)
        except ValueError:
            raise CommandError(f"{argument} is not topic:partition=offset", exit_code=EXIT_USAGE) from None
    if file is not None:
        for entry in read_json_list(file, "partitions"):
            try:
                wanted[as_text(entry["topic"]), as_int(entry["partition"])] = as_int(entry["offset"])
            except (KeyError, TypeError, ValueError):
                text = json.dumps(entry)
                raise CommandError(f"{file}: {text} lacks topic, partition or offset", exit_code=EXIT_USAGE) from None
    if not wanted:
        raise CommandError("specify topic:partition=offset or --offset-json-file", exit_code=EXIT_USAGE)
    if invalid := [offset for offset in wanted.values() if not -1 <= offset < 1 << 63]:
        raise CommandError(f"offset {invalid[0]} is invalid; -1 deletes all records", exit_code=EXIT_USAGE)
    return wanted


def _select(session: Session, texts: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that arguments name: a topic, or topic:partition."""
    topics = {text if not _has_partition(text) else text.rpartition(":")[0] for text in texts}
    leaders = find_leaders(session.cluster, topics) if topics else {}
    selected: list[TopicPartition] = []
    for text in texts:
        if _has_partition(text):
            name, _, index = text.rpartition(":")
            selected.append((name, int(index)))
        else:
            selected += [key for key in leaders if key[0] == text]
    check_partitions(selected, leaders)
    return selected


def _has_partition(text: str) -> bool:
    return text.rpartition(":")[2].isdecimal() and ":" in text


def _group_by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, index in partitions:
        grouped.setdefault(topic, []).append(index)
    return grouped
