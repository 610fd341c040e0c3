"""The commands `odradek topic`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.tools.cli.groups import Commands, split_pairs
from odradek.tools.cli.session import CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.completions import complete_topic_settings, complete_topics
from odradek.tools.cli.terminal.output import JsonValue, Row, Table, count, format_uuid
from odradek.tools.cli.terminal.progress import show_progress
from odradek.tools.kafka.cluster import RequestError, check

REQUEST_TIMEOUT_MS: Final = 60_000
_PARTITION_KEYS: Final = ("partition", "leader", "replicas", "isr", "offline")
_TOPICS_PER_REQUEST: Final = 100
"""Maximum number of topics that a request deletes."""
_ELR_KEYS: Final = ("elr", "last_known_elr")

commands = Commands("topic", "Topics.")

TopicNames = Annotated[
    list[str], typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Names of topics.")
]
ConfigPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="name=value",
        autocompletion=complete_topic_settings,
        help="Set a configuration; repeatable.",
    ),
]


@commands.command("list")
def list_topics(
    session: Session,
    show_internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
) -> None:
    """List the topics."""
    topics = session.cluster.fetch_topics()
    rows = [
        (topic.name, len(topic.partitions), _replication_factor(topic), topic.is_internal)
        for topic in topics
        if show_internal or not topic.is_internal
    ]
    session.output.show(Table(("topic", "partitions", "replication_factor", "internal"), rows))


@commands.command("describe")
def describe(session: Session, names: TopicNames) -> None:
    """Show the partitions of topics, and configurations that differ from the defaults of the cluster."""
    from odradek.tools.kafka.topics.configs import TOPIC, fetch_configs
    from odradek.tools.kafka.topics.eligible_leaders import fetch_eligible_leaders

    topics = session.cluster.fetch_topics(names)
    found = fetch_configs(session.cluster, [(TOPIC, topic.name or "") for topic in topics])
    eligible = fetch_eligible_leaders(session.cluster.any_broker(), names)
    documents: list[JsonValue] = []
    parts: list[Table | Mapping[str, JsonValue]] = []
    for topic in topics:
        configs = {one.name: one.value for one in found[TOPIC, topic.name or ""] if one.is_changed}
        fields: dict[str, JsonValue] = {
            "topic": topic.name,
            "id": format_uuid(topic.topic_id),
            "internal": topic.is_internal,
            "partition_count": len(topic.partitions),
            "replication_factor": _replication_factor(topic),
            "configs": configs,
        }
        elrs = eligible.get(topic.name or "", {})
        rows: list[Row] = [_partition_row(each) for each in topic.partitions]
        if elrs:
            replicas = [elrs.get(each.partition_index, ([], [])) for each in topic.partitions]
            rows = [(*row, *each) for row, each in zip(rows, replicas, strict=True)]
        table = Table((*_PARTITION_KEYS, *(_ELR_KEYS if elrs else ())), rows, is_marked=lacks_replicas)
        documents.append({**fields, "partitions": table.as_json()})
        parts += [fields, table]
    session.output.show_all(documents, *parts)


@commands.command("create", is_change=True)
def create(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of the topics.")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="Partitions (num.partitions).")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, metavar="N", help="Replicas (default.replication.factor)."),
    ] = None,
    config: ConfigPairs = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            metavar="ID:ID,...", help="Brokers of each partition: 1:2,2:3 is two partitions with two replicas."
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if a topic exists.")] = False,
) -> int:
    """Create topics."""
    from odradek.protocol.messages import create_topics as messages

    if replica_assignment is not None and (partitions is not None or replication_factor is not None):
        raise typer.BadParameter("excludes --partitions and --replication-factor", param_hint="--replica-assignment")
    assignments = [] if replica_assignment is None else _parse_assignment(replica_assignment)
    configs = split_pairs(config or [], "--config")
    request = messages.CreateTopicsRequest(
        topics=[
            messages.CreateTopicsRequestCreatableTopic(
                name=name,
                num_partitions=partitions or -1,
                replication_factor=replication_factor or -1,
                assignments=[
                    messages.CreateTopicsRequestCreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                    for index, brokers in enumerate(assignments)
                ],
                configs=[
                    messages.CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
                    for key, value in configs.items()
                ],
            )
            for name in names
        ],
        timeout_ms=REQUEST_TIMEOUT_MS,
        validate_only=session.is_dry_run,
    )
    response = session.cluster.ask_controller(request, messages.CreateTopicsResponse)
    outcomes, details = [], {}
    for topic in response.topics:
        exists = topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists
        code = 0 if exists else topic.error_code
        outcomes.append(_explain_configs(make_outcome(topic.name, code, topic.error_message), configs))
        if topic.num_partitions > 0:
            details[topic.name] = f"with {count(topic.num_partitions, 'partition')}, " + count(
                topic.replication_factor, "replica"
            )
        elif exists:
            details[topic.name] = "before"
    return session.finish("topic", "created", outcomes, details)


def _explain_configs(outcome: Outcome, configs: Mapping[str, str]) -> Outcome:
    """Return a result with the nearest names of a configuration that topics have not."""
    if outcome.error is None or outcome.error.code != ErrorCode.INVALID_CONFIG.name:
        return outcome
    # Imported here because only a mistake needs the declarations.
    from odradek.log.config import LogConfig
    from odradek.tools.kafka.similar_names import find_similar, format_suggestion

    known = LogConfig.declared()
    for name in configs:
        if name not in known and (similar := find_similar(name, known)):
            message = f"{outcome.error}{format_suggestion(similar)}"
            return Outcome(outcome.name, RequestError(outcome.error.code, message, similar))
    return outcome


@commands.command("alter", is_change=True)
def alter(
    session: Session,
    names: TopicNames,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="New, larger number of partitions.")
    ] = None,
    config: ConfigPairs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Return a configuration to its default; repeatable.")
    ] = None,
) -> int:
    """Add partitions to topics, or change their configuration.

    Records with a key may go to another partition after partitions were added.
    """
    from odradek.tools.cli.cluster.config_changes import change_configs
    from odradek.tools.kafka.topics.configs import TOPIC

    changed = split_pairs(config or [], "--config")
    if partitions is None and not changed and not delete_config:
        raise CommandError("nothing to change: specify --partitions, --config or --delete-config", exit_code=2)
    outcomes: list[Outcome] = []
    if changed or delete_config:
        outcomes = change_configs(session, TOPIC, names, changed, delete_config or [])
    if partitions is None or any(outcome.error for outcome in outcomes):
        return session.finish("topic", "altered", outcomes)
    return add_partitions(session, names, partitions)


def add_partitions(session: Session, names: Sequence[str], count: int) -> int:
    """Add partitions to topics, up to a number; return the exit code."""
    from odradek.protocol.messages import create_partitions as messages

    before = {topic.name or "": len(topic.partitions) for topic in session.cluster.fetch_topics(names)}
    request = messages.CreatePartitionsRequest(
        topics=[
            messages.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=None)
            for name in names
        ],
        timeout_ms=REQUEST_TIMEOUT_MS,
        validate_only=session.is_dry_run,
    )
    response = session.cluster.ask_controller(request, messages.CreatePartitionsResponse)
    outcomes = [make_outcome(one.name, one.error_code, one.error_message) for one in response.results]
    details = {name: f"from {before[name]} to {count} partitions" for name in names}
    return session.finish("topic", "altered", outcomes, details)


@commands.command("delete", is_destructive=True)
def delete(
    session: Session,
    names: TopicNames,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if a topic does not exist.")] = False,
) -> int:
    """Delete topics and their records."""
    from odradek.protocol.messages import delete_topics as messages

    existing = {}
    for topic in session.cluster.fetch_metadata(names).topics:
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                check(topic.error_code, None, f"topic {topic.name}")
            existing[topic.name] = topic
    missing = [name for name in names if name not in existing]
    if missing and not if_exists:
        raise session.cluster.unknown_topic(missing[0])
    found = [name for name in names if name in existing]
    partitions = sum(len(existing[name].partitions) for name in found)
    if found:
        what = f"{count(len(found), 'topic')} ({', '.join(found)}) with {count(partitions, 'partition')}"
        session.confirm(f"Delete {what} and all records?")
    if session.is_dry_run or not found:
        return session.finish("topic", "deleted", [Outcome(name) for name in found])
    outcomes = []
    is_long = len(found) > _TOPICS_PER_REQUEST
    with show_progress("deleting topics", len(found), is_wanted=is_long, are_bytes=False) as advance:
        for start in range(0, len(found), _TOPICS_PER_REQUEST):
            some = found[start : start + _TOPICS_PER_REQUEST]
            request = messages.DeleteTopicsRequest(
                topics=[messages.DeleteTopicsRequestDeleteTopicState(name=name) for name in some],
                topic_names=some,
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
            response = session.cluster.ask_controller(request, messages.DeleteTopicsResponse)
            outcomes += [make_outcome(one.name or "", one.error_code, one.error_message) for one in response.responses]
            advance(len(some))
    return session.finish("topic", "deleted", outcomes)


def _parse_assignment(text: str) -> list[list[int]]:
    try:
        return [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text} is not a list such as 1:2,2:3", param_hint="--replica-assignment") from None


def _replication_factor(topic: MetadataResponseTopic) -> int:
    return max((len(partition.replica_nodes) for partition in topic.partitions), default=0)


def _partition_row(partition: MetadataResponsePartition) -> tuple[int, int | None, list[int], list[int], list[int]]:
    return (
        partition.partition_index,
        partition.leader_id if partition.leader_id >= 0 else None,
        list(partition.replica_nodes),
        list(partition.isr_nodes),
        list(partition.offline_replicas),
    )


def lacks_replicas(row: Sequence[JsonValue]) -> bool:
    """True for a row of number, leader, replicas, ISR and others, if leader or replicas are missing."""
    _, leader, replicas, isr, *_ = row
    return leader is None or len(isr) < len(replicas)  # type: ignore[arg-type]
