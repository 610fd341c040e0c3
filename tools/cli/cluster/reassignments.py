"""The commands `odradek partition reassign`. Plans have the format of kafka-reassign-partitions."""

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
    AlterPartitionReassignmentsResponse,
)
from odradek.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.completions import complete_topics
from odradek.tools.cli.terminal.json_files import as_int, as_text, read_json_list
from odradek.tools.cli.terminal.output import JsonValue, Table, count
from odradek.tools.kafka.cluster import RequestError, check
from odradek.tools.kafka.topics.offsets import TopicPartition, check_partitions

REQUEST_TIMEOUT_MS: Final = 60_000

reassign_commands = Commands("reassign", "Move replicas of partitions to other brokers.")

Assignment = dict[TopicPartition, list[int]]


@reassign_commands.command("plan")
def plan(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topics.")],
    brokers: Annotated[str, typer.Option("--brokers", metavar="ID,...", help="Brokers that get the replicas.")],
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, metavar="N", help="New number of replicas.")
    ] = None,
) -> None:
    """Write a plan that distributes the replicas of topics evenly over brokers, for `apply`.

    Brokers on different racks alternate, and a replica stays where it is if that keeps the distribution even.
    """
    ids = _parse_ids(brokers)
    metadata = session.cluster.fetch_metadata([])
    racks = {node.node_id: node.rack for node in metadata.brokers}
    if missing := [each for each in ids if each not in racks]:
        raise CommandError(f"--brokers: there is no live broker {missing[0]}", exit_code=EXIT_USAGE)
    current = _fetch_assignment(session, names)
    if busy := sorted(key for key in _fetch_ongoing(session) if key in current):
        # Its replicas are those before and after the reassignment together.
        raise CommandError(f"{_name(busy[0])} is being reassigned; wait, or cancel it first")
    planned = distribute(current, ids, racks, replication_factor)
    sys.stdout.write(json.dumps(_as_plan(planned), indent=2) + "\n")


@reassign_commands.command("apply", is_destructive=True)
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Plan, as of kafka-reassign-partitions.")],
    throttle_bytes: Annotated[
        int | None, typer.Option("--throttle", min=1, metavar="BYTES", help="Most bytes a second that brokers copy.")
    ] = None,
) -> int:
    """Begin the reassignments of a plan. The replicas before it are written to standard error, as a plan."""
    wanted = read_plan(file)
    current = _fetch_assignment(session, sorted({topic for topic, _ in wanted}))
    check_partitions(wanted, dict.fromkeys(current, 0))
    check_replicas(wanted, current, session.cluster.node_ids())
    ongoing = _fetch_ongoing(session)
    if busy := sorted(key for key in wanted if key in ongoing):
        raise CommandError(f"{_name(busy[0])} is being reassigned; wait, or cancel it first")
    rows = [(*key, current[key], replicas) for key, replicas in sorted(wanted.items()) if current[key] != replicas]
    session.preview(Table(("topic", "partition", "before", "after"), rows))
    session.confirm(f"Reassign {count(len(rows), 'partition')}?")
    moved: Assignment = {(topic, index): replicas for topic, index, _, replicas in rows}
    if session.is_dry_run or not moved:
        return session.finish("partition", "reassigned", [Outcome(_name(key)) for key in moved])
    sys.stderr.write(json.dumps(_as_plan({key: current[key] for key in moved})) + "\n")
    if throttle_bytes is not None:
        _throttle(session, current, moved, throttle_bytes)
    return _alter(session, moved, "being reassigned")


@reassign_commands.command("list")
def list_reassignments(session: Session) -> None:
    """List the reassignments in progress."""
    rows = [(*key, *state) for key, state in sorted(_fetch_ongoing(session).items())]
    session.output.show(Table(("topic", "partition", "replicas", "adding", "removing"), rows))


@reassign_commands.command("cancel", is_destructive=True)
def cancel(
    session: Session,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Plan whose reassignments are cancelled.")] = None,
    all_reassignments: Annotated[bool, typer.Option("--all", help="Cancel all reassignments in progress.")] = False,
) -> int:
    """Cancel reassignments in progress; partitions return to their former replicas."""
    if (file is None) is not all_reassignments:
        raise CommandError("specify either a plan or --all", exit_code=EXIT_USAGE)
    ongoing = _fetch_ongoing(session)
    selected = sorted(ongoing if file is None else [key for key in read_plan(file) if key in ongoing])
    session.confirm(f"Cancel the reassignments of {count(len(selected), 'partition')}?")
    if session.is_dry_run or not selected:
        return session.finish("reassignment", "cancelled", [Outcome(_name(key)) for key in selected])
    return _alter(session, dict.fromkeys(selected), "cancelled", kind="reassignment")


@reassign_commands.command("unthrottle", is_change=True)
def unthrottle(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topics.")],
) -> int:
    """Remove the throttles that `apply --throttle` has set, from topics and all brokers."""
    from odradek.tools.cli.cluster.config_changes import change_configs
    from odradek.tools.kafka.topics.configs import BROKER, TOPIC

    changed = change_configs(session, TOPIC, names, {}, _TOPIC_THROTTLES)
    outcomes = [outcome._replace(name=f"topic {outcome.name}") for outcome in changed]
    if all(outcome.error is None for outcome in outcomes):
        brokers = [str(each) for each in session.cluster.node_ids()]
        changed = change_configs(session, BROKER, brokers, {}, _RATES)
        outcomes += [outcome._replace(name=f"broker {outcome.name}") for outcome in changed]
    return session.finish("resource", "unthrottled", outcomes)


_TOPIC_THROTTLES: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def distribute(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    replication_factor: int | None = None,
) -> Assignment:
    """Return replicas for each partition, evenly over brokers, leaders as well as followers. Raises CommandError."""
    order = _alternate_racks(brokers, racks)
    leaders = dict.fromkeys(order, 0)
    loads = dict.fromkeys(order, 0)
    planned: Assignment = {}
    for key, before in sorted(current.items()):
        count = replication_factor or len(before)
        if count > len(order):
            raise CommandError(f"{_name(key)} needs {count} replicas, and --brokers has {len(order)}", exit_code=2)
        chosen: list[int] = []
        for _ in range(count):
            used_racks = {racks[each] for each in chosen}
            counts = loads if chosen else leaders
            # A broker that has the replica already is preferred to others of the same load and rack.
            chosen.append(
                min(
                    (each for each in order if each not in chosen),
                    key=lambda each: (
                        racks[each] in used_racks,
                        counts[each],
                        loads[each],
                        each not in before,
                        order.index(each),
                    ),
                )
            )
        leaders[chosen[0]] += 1
        for each in chosen:
            loads[each] += 1
        planned[key] = chosen
    return planned


def _alternate_racks(brokers: Sequence[int], racks: Mapping[int, str | None]) -> list[int]:
    by_rack: dict[str | None, list[int]] = {}
    for each in sorted(set(brokers)):
        by_rack.setdefault(racks[each], []).append(each)
    order = []
    while any(by_rack.values()):
        order += [members.pop(0) for members in by_rack.values() if members]
    return order


def _alter(
    session: Session, wanted: Mapping[TopicPartition, list[int] | None], verb: str, kind: str = "partition"
) -> int:
    topics: dict[str, list[AlterPartitionReassignmentsRequestReassignablePartition]] = {}
    for (topic, index), replicas in wanted.items():
        topics.setdefault(topic, []).append(
            AlterPartitionReassignmentsRequestReassignablePartition(partition_index=index, replicas=replicas)
        )
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=REQUEST_TIMEOUT_MS,
        topics=[
            AlterPartitionReassignmentsRequestReassignableTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )
    response = session.cluster.ask_controller(request, AlterPartitionReassignmentsResponse)
    check(response.error_code, response.error_message)
    outcomes = [
        make_outcome(f"{each.name}-{one.partition_index}", one.error_code, one.error_message)
        for each in response.responses
        for one in each.partitions
    ]
    return session.finish(kind, verb, outcomes)


def _throttle(session: Session, current: Assignment, moved: Assignment, rate_bytes: int) -> None:
    """Limit what brokers copy for the moved partitions, as kafka-reassign-partitions --throttle does."""
    from odradek.tools.kafka.topics.config_changes import set_configs
    from odradek.tools.kafka.topics.configs import BROKER, TOPIC, fetch_configs

    topics = sorted({topic for topic, _ in moved})
    configs = fetch_configs(session.cluster, [(TOPIC, topic) for topic in topics])
    for topic in topics:
        sources, targets = [], []
        for (name, index), replicas in sorted(moved.items()):
            if name == topic:
                sources += [f"{index}:{each}" for each in current[name, index]]
                targets += [f"{index}:{each}" for each in replicas if each not in current[name, index]]
        before = {one.name: one.value or "" for one in configs[TOPIC, topic]}
        values = {
            name: merge_throttled(before.get(name, ""), added)
            for name, added in zip(_TOPIC_THROTTLES, (sources, targets), strict=True)
        }
        set_configs(session.cluster, TOPIC, topic, values)
    involved = {each for key, replicas in moved.items() for each in (*replicas, *current[key])}
    for broker in sorted(involved & set(session.cluster.node_ids())):
        set_configs(session.cluster, BROKER, str(broker), dict.fromkeys(_RATES, str(rate_bytes)))


def merge_throttled(before: str, added: Sequence[str]) -> str:
    """Return a list of throttled replicas with others; those of earlier reassignments stay throttled."""
    if before == "*":
        return before
    return ",".join(dict.fromkeys([*filter(None, before.split(",")), *added]))


def _fetch_assignment(session: Session, names: Sequence[str]) -> Assignment:
    return {
        (topic.name or "", one.partition_index): list(one.replica_nodes)
        for topic in session.cluster.fetch_topics(names)
        for one in topic.partitions
    }


def _fetch_ongoing(session: Session) -> dict[TopicPartition, tuple[list[int], list[int], list[int]]]:
    request = ListPartitionReassignmentsRequest(timeout_ms=REQUEST_TIMEOUT_MS, topics=None)
    response = session.cluster.ask_controller(request, ListPartitionReassignmentsResponse)
    check(response.error_code, response.error_message)
    return {
        (topic.name, one.partition_index): (
            list(one.replicas),
            list(one.adding_replicas),
            list(one.removing_replicas),
        )
        for topic in response.topics
        for one in topic.partitions
    }


def read_plan(file: Path) -> Assignment:
    """Return the replicas in a plan. Raises CommandError."""
    planned: Assignment = {}
    for key, replicas in _iter_plan(file):
        if key in planned:
            raise CommandError(f"{file} has {_name(key)} twice", exit_code=EXIT_USAGE)
        planned[key] = replicas
    return planned


def check_replicas(planned: Assignment, current: Assignment, live: Collection[int]) -> None:
    """Raise RequestError for replicas that the controller would refuse, after throttles were set."""
    for key, replicas in planned.items():
        unknown = [each for each in replicas if each not in live and each not in current[key]]
        if not replicas:
            problem = "there are no replicas"
        elif len(set(replicas)) < len(replicas):
            problem = f"replicas {','.join(map(str, replicas))} contain a broker twice"
        elif unknown:
            problem = f"there is no live broker {unknown[0]}"
        else:
            continue
        raise RequestError("INVALID_REPLICA_ASSIGNMENT", f"{_name(key)}: INVALID_REPLICA_ASSIGNMENT: {problem}")


def _iter_plan(file: Path) -> Iterator[tuple[TopicPartition, list[int]]]:
    for entry in read_json_list(file, "partitions"):
        try:
            key = as_text(entry["topic"]), as_int(entry["partition"])
            replicas, log_dirs = [as_int(each) for each in entry["replicas"]], entry.get("log_dirs") or []
        except (AttributeError, KeyError, TypeError, ValueError):
            text = json.dumps(entry)
            raise CommandError(f"{file}: {text} lacks topic, partition or replicas", exit_code=EXIT_USAGE) from None
        if any(each != "any" for each in log_dirs):
            message = f"{file}: log_dirs of {_name(key)}: this command moves no replicas between log directories"
            raise CommandError(message, exit_code=EXIT_USAGE)
        yield key, replicas


def _as_plan(assignment: Assignment) -> JsonValue:
    entries: list[Any] = [
        {"topic": topic, "partition": index, "replicas": replicas}
        for (topic, index), replicas in sorted(assignment.items())
    ]
    return {"version": 1, "partitions": entries}


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CommandError(f"--brokers: {text} is not a list of ids", exit_code=EXIT_USAGE) from None


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
