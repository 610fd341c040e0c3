"""The commands `odradek transaction`."""

import time
from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session, make_outcome
from odradek.tools.cli.terminal.choices import TRANSACTION_STATES, find_choices
from odradek.tools.cli.terminal.completions import (
    complete_topics,
    complete_transaction_states,
    complete_transactional_ids,
)
from odradek.tools.cli.terminal.output import JsonValue, Table, count
from odradek.tools.cli.terminal.progress import show_progress
from odradek.tools.kafka.cluster import RequestError, unknown_name
from odradek.tools.kafka.topics.offsets import check_partitions, find_leaders
from odradek.tools.kafka.transactions import (
    TRANSACTION_KEY,
    describe_transactions,
    find_hanging_transactions,
    iter_producers,
    list_known_transactions,
)

_LIST_KEYS: Final = ("transactional_id", "coordinator", "producer_id", "state")
_PRODUCER_KEYS: Final = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_timestamp_ms",
    "coordinator_epoch",
    "transaction_start_offset",
)
_HANGING_KEYS: Final = ("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch", "start_offset")
_DEFAULT_TIMEOUT_MS: Final = 900_000
"""Kafka's transaction.max.timeout.ms."""

_ONGOING: Final = "Ongoing"

commands = Commands("transaction", "Transactions.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topic.")]
TransactionalId = Annotated[
    str, typer.Argument(metavar="ID", autocompletion=complete_transactional_ids, help="Transactional id.")
]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]


@commands.command("list")
def list_transactions(
    session: Session,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            autocompletion=complete_transaction_states,
            help="Only in this state, such as Ongoing.",
        ),
    ] = None,
    producer_ids: Annotated[
        list[int] | None, typer.Option("--producer-id", metavar="N", help="Only of this producer; repeatable.")
    ] = None,
    duration_ms: Annotated[
        int | None, typer.Option("--duration-filter", min=0, metavar="MS", help="Only those open for longer.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--transactional-id-pattern", metavar="REGEX", help="Only matching ids.")
    ] = None,
) -> int:
    """List the transactional ids."""
    problems: list[str] = []
    wanted = find_choices("transaction state", states or [], TRANSACTION_STATES)
    try:
        found = list_known_transactions(session.cluster, wanted, producer_ids, duration_ms, pattern, problems)
    except ValueError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from None
    session.output.show(Table(_LIST_KEYS, found))
    return session.report_problems(problems)


@commands.command("describe")
def describe(
    session: Session,
    transactional_id: TransactionalId,
) -> None:
    """Show the state of a transactional id, and the partitions in its transaction."""
    found = describe_transactions(session.cluster, [transactional_id])
    if transactional_id not in found:
        raise _unknown_id(session, transactional_id)
    state = found[transactional_id]
    started_ms = state.start_time_ms
    fields: dict[str, JsonValue] = {
        "transactional_id": state.transactional_id,
        "coordinator": session.cluster.find_coordinators([transactional_id], TRANSACTION_KEY)[transactional_id],
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.state,
        "timeout_ms": state.timeout_ms,
        "start_time_ms": started_ms,
        "duration_ms": None if started_ms is None else int(time.time() * 1000) - started_ms,
        "partitions": [f"{topic}-{index}" for topic, index in state.partitions],
    }
    session.output.show_all(fields, fields)


@commands.command("describe-producers")
def describe_producers(session: Session, topic: Topic, partition: Partition) -> None:
    """Show the producers of a partition, and where their open transactions begin."""
    key = (topic, partition)
    leaders = find_leaders(session.cluster, [topic])
    check_partitions([key], leaders)
    rows = [
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.last_timestamp,
            one.coordinator_epoch,
            one.current_txn_start_offset if one.current_txn_start_offset >= 0 else None,
        )
        for _, one in iter_producers(session.cluster, {key: leaders[key]})
    ]
    session.output.show(Table(_PRODUCER_KEYS, rows))


@commands.command("find-hanging")
def find_hanging(
    session: Session,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", autocompletion=complete_topics, help="Only this topic.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, metavar="N", help="Only this one.")] = None,
    broker: Annotated[int | None, typer.Option("--broker-id", metavar="ID", help="Only partitions it leads.")] = None,
    max_timeout_ms: Annotated[
        int,
        typer.Option("--max-transaction-timeout", min=0, metavar="MS", help="Ignore transactions that are younger."),
    ] = _DEFAULT_TIMEOUT_MS,
) -> None:
    """Find transactions that are open in partitions although their coordinator does not have them."""
    if partition is not None and topic is None:
        raise CommandError("--partition requires --topic", exit_code=EXIT_USAGE)
    names = None if topic is None else [topic]
    leaders = {
        (found.name or "", one.partition_index): one.leader_id
        for found in session.cluster.fetch_topics(names)
        for one in found.partitions
        if partition in (None, one.partition_index) and broker in (None, one.leader_id)
    }
    if topic is not None and partition is not None and broker is None:
        check_partitions([(topic, partition)], leaders)
    before_ms = int(time.time() * 1000) - max_timeout_ms
    with show_progress("reading producers of partitions", len(leaders), are_bytes=False) as advance:
        rows = find_hanging_transactions(session.cluster, leaders, before_ms, advance)
    session.output.show(Table(_HANGING_KEYS, rows, is_marked=lambda row: True))


@commands.command("terminate", is_destructive=True)
def terminate(session: Session, transactional_id: TransactionalId) -> int:
    """Abort the open transaction of a transactional id, also a prepared one, and fence its producer."""
    from odradek.tools.kafka.transaction_changes import terminate_transaction

    found = describe_transactions(session.cluster, [transactional_id])
    if transactional_id not in found:
        raise _unknown_id(session, transactional_id)
    state = found[transactional_id]
    if state.start_time_ms is None:
        raise CommandError(f"transactional id {transactional_id} has no open transaction; its state is {state.state}")
    if state.state != _ONGOING:
        ending = "committed" if state.state == "PrepareCommit" else "aborted"
        raise CommandError(f"the transaction of {transactional_id} is being {ending}; its state is {state.state}")
    partitions = count(len(state.partitions), "partition")
    session.confirm(f"Abort the transaction of {transactional_id} in {partitions} and fence its producer?")
    if session.is_dry_run:
        return session.finish("transaction", "terminated", [Outcome(transactional_id)])
    try:
        terminate_transaction(session.cluster, state)
    except RequestError as error:
        return session.finish("transaction", "terminated", [Outcome(transactional_id, error)])
    return session.finish("transaction", "terminated", [Outcome(transactional_id)])


def _unknown_id(session: Session, transactional_id: str) -> RequestError:
    names = [one.transactional_id for one in list_known_transactions(session.cluster)]
    message = f"transactional id {transactional_id} does not exist"
    return unknown_name("TRANSACTIONAL_ID_NOT_FOUND", message, transactional_id, names)


@commands.command("abort", is_destructive=True)
def abort(
    session: Session,
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int, typer.Option("--start-offset", min=0, metavar="N", help="First offset of the transaction.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Abort it although its coordinator may still commit it.")
    ] = False,
) -> int:
    """Abort a hanging transaction in a partition, which find-hanging has found."""
    from odradek.protocol.messages import write_txn_markers as messages

    key = (topic, partition)
    leaders = find_leaders(session.cluster, [topic])
    check_partitions([key], leaders)
    found = [
        one
        for _, one in iter_producers(session.cluster, {key: leaders[key]})
        if one.current_txn_start_offset == start_offset
    ]
    if not found:
        raise CommandError(f"no transaction that is open in {topic}-{partition} begins at offset {start_offset}")
    [producer] = found
    if not force:
        hanging = find_hanging_transactions(session.cluster, {key: leaders[key]}, int(time.time() * 1000))
        if start_offset not in [one.start_offset for one in hanging]:
            raise CommandError(
                f"the transaction in {topic}-{partition} at offset {start_offset} is not hanging: its coordinator may "
                "still commit it; --force aborts it nevertheless"
            )
    session.confirm(f"Abort the transaction of producer {producer.producer_id} in {topic}-{partition}?")
    name = f"{topic}-{partition}"
    if session.is_dry_run:
        return session.finish("transaction", "aborted", [Outcome(name)])
    marker = messages.WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[messages.WriteTxnMarkersRequestWritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    request = messages.WriteTxnMarkersRequest(markers=[marker])
    response = session.cluster.broker(leaders[key]).send(request, messages.WriteTxnMarkersResponse)
    outcomes = [
        make_outcome(f"{each.name}-{one.partition_index}", one.error_code)
        for result in response.markers
        for each in result.topics
        for one in each.partitions
    ]
    return session.finish("transaction", "aborted", outcomes)
