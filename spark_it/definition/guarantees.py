"""Delivery guarantees of a pipeline: how often a row is written to its sink if processes are killed at any moment."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from odradek.spark_it.definition.problems import Problem
from odradek.spark_it.definition.sink_keys import (
    ConsoleSink,
    DeltaSink,
    FilesSink,
    IcebergSink,
    JdbcSink,
    PythonSink,
    Sink,
    TopicSink,
)
from odradek.spark_it.definition.source_keys import FilesSource, JdbcSource, PythonSource, TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.definition.toml_lines import Path
from odradek.spark_it.sql import deterministic
from odradek.spark_it.sql.tokens import find_stateful_clause, tokenize


class Level(Enum):
    """Number of times that a row is written.

    NOT_IF_REPEATED: a repeated batch may assign a row to a different part than the first attempt did. If the first
    attempt already wrote one of the two parts, the row is written twice or never.
    """

    EXACTLY_ONCE = "exactly once"
    NOT_IF_REPEATED = "once, but twice or never if a batch is repeated after a crash"
    AT_LEAST_ONCE = "at least once"


class TransactionKind(Enum):
    """Content of one transaction of a topic sink.

    OFFSETS: the rows of one source partition; the marker is the group's committed offset of that partition.

    BATCHES: the rows of one of `tasks.max` parts of the batch; the marker is a committed offset that encodes the batch.
    """

    OFFSETS = "offset transactions"
    BATCHES = "batch transactions"


@dataclass(frozen=True)
class DeliveryGuarantee:
    """The guarantee of one pipeline, provided that `conditions` hold.

    `transaction_kind` is None for a sink without Kafka transactions.
    """

    sink: str
    level: Level
    how: str
    transaction_kind: TransactionKind | None
    dead_letters: Level | None
    conditions: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.sink}: {self.level.value}, {self.how}"]
        if self.dead_letters is not None:
            how = "before the batch is done" if self.transaction_kind is None else "in the same transaction"
            lines.append(f"  dead letters: {self.dead_letters.value}, {how}")
        return "\n".join([*lines, *(f"  provided that {condition}" for condition in self.conditions)])


MECHANISMS: dict[type[Sink], str] = {
    FilesSink: "one folder per batch, renamed to its final name when it is complete",
    DeltaSink: "the batch's number is part of the table's commit",
    IcebergSink: "the batch's number is part of the table's commit, which fails if the table contains the batch",
    JdbcSink: "rows and the batch's number in one transaction, from a staging table",
    ConsoleSink: "a repeated batch is shown again",
    PythonSink: "the function is called again for a repeated batch, with the same number",
}
MECHANISMS_BY_KIND = {
    TransactionKind.OFFSETS: "rows and source offsets in one transaction per source partition",
    TransactionKind.BATCHES: "rows and the batch's number in one transaction per part of the batch",
}


def find_stateful_reason(pipeline: Pipeline) -> str | None:
    """Return the reason why the pipeline is stateful; None if each row depends on one record only.

    The reason is derived from the statements. In doubtful cases the pipeline counts as stateful.
    """
    for step in pipeline.list_steps_to(pipeline.sink_input):
        if step.stateful is False:
            continue
        reason = (
            "stateful = true"
            if step.stateful
            else find_stateful_clause(tokenize(step.sql))
            if step.sql
            else "its function"
        )
        if reason is not None:
            return f"{reason} in {step.name}"
    return _find_clock_expression(pipeline)


def _find_clock_expression(pipeline: Pipeline) -> str | None:
    """Return the clock expression, if any, on which the choice between row and dead letter depends.

    A stateless pipeline computes dead letters and rows one after the other. With two different times a record could be
    in both or in neither. A stateful pipeline computes both with the batch's time.
    """
    if pipeline.errors.deadletterqueue_topic_name is None:
        return None
    for expectation in pipeline.expectations:
        if expectation.settings.action == "dead-letter":
            for clock in deterministic.find_clocks(expectation.settings.sql):
                return f"{clock.what} in {expectation.name}"
            for step in pipeline.list_steps_to(expectation.table):
                for clock in deterministic.find_clocks(step.sql) if step.sql and step.stateful is not False else ():
                    return f"{clock.what} in {step.name}"
    return None


def find_transaction_kind(pipeline: Pipeline, stateful: str | None) -> TransactionKind | None:
    """Return the content of the sink's transactions; None for a sink without transactions."""
    if not isinstance(pipeline.sink, TopicSink):
        return None
    sources = list(pipeline.sources.values())
    by_offset = stateful is None and len(sources) == 1 and isinstance(sources[0], TopicSource)
    return TransactionKind.OFFSETS if by_offset else TransactionKind.BATCHES


def needs_stored_responses(pipeline: Pipeline, kind: TransactionKind | None) -> bool:
    """Return whether the responses of a schema registry must be stored for a batch that may be repeated.

    They determine which records are dead letters. Offset transactions do not need them: each is written completely,
    once.
    """
    sources = (source for source in pipeline.sources.values() if isinstance(source, TopicSource))
    return (
        kind is not TransactionKind.OFFSETS
        and pipeline.errors.tolerance == "all"
        and any(
            source.get_part_format(side).registry_url is not None for source in sources for side in ("key", "value")
        )
    )


def determine_guarantee(pipeline: Pipeline, stateful: str | None) -> DeliveryGuarantee:
    """Return the guarantee of a valid pipeline. `stateful` is the result of `find_stateful_reason` or of the Spark
    analysis."""
    sink = pipeline.sink
    kind = find_transaction_kind(pipeline, stateful)
    is_repeatable = not any(True for _ in _find_nonrepeatable(pipeline, kind, stateful))
    if isinstance(sink, ConsoleSink | PythonSink):
        level = Level.AT_LEAST_ONCE
    else:
        level = Level.EXACTLY_ONCE if is_repeatable else Level.NOT_IF_REPEATED
    dead_letters = None
    if pipeline.errors.deadletterqueue_topic_name is not None:
        dead_letters = level if kind is not None else Level.AT_LEAST_ONCE
    return DeliveryGuarantee(
        sink=_describe_sink(sink),
        level=level,
        how=f"{MECHANISMS_BY_KIND[kind]} ({kind.value})" if kind is not None else MECHANISMS[type(sink)],
        transaction_kind=kind,
        dead_letters=dead_letters,
        conditions=tuple(_list_conditions(pipeline, kind, level)),
    )


def find_refusals(pipeline: Pipeline, stateful: str | None) -> Iterator[Problem]:
    """Yield the problems because of which `exactly.once.support` refuses the pipeline."""
    sink = pipeline.sink
    at = ("sink", "exactly", "once", "support")
    if isinstance(sink, ConsoleSink | PythonSink):
        if sink.exactly_once_support == "required":
            yield Problem(pipeline.lines.find_line(at), f"sink: {_describe_sink(sink)} cannot write exactly once")
        return
    if sink.exactly_once_support == "requested":
        return
    why = f"batches are written in parts ({stateful})" if stateful else "batches are written in parts"
    for path, line, message in _find_nonrepeatable(pipeline, find_transaction_kind(pipeline, stateful), stateful):
        hint = f'and {why}; exactly.once.support = "requested" permits {Level.NOT_IF_REPEATED.value}'
        yield Problem(pipeline.lines.find_line_within(path, line), f"{message}, {hint}")


def _describe_sink(sink: Sink) -> str:
    if isinstance(sink, TopicSink):
        return f"topic {sink.topic}"
    if isinstance(sink, JdbcSink):
        return f"jdbc {sink.table_name_format}"
    if isinstance(sink, IcebergSink):
        return f"iceberg {sink.iceberg_tables}"
    if isinstance(sink, FilesSink | DeltaSink):
        return f"{sink.connector} {sink.path}"
    return sink.connector


def _find_nonrepeatable(
    pipeline: Pipeline, kind: TransactionKind | None, stateful: str | None
) -> Iterator[tuple[Path, int, str]]:
    """Yield path, line and message of each expression whose result may differ when a batch is repeated."""
    if kind is not TransactionKind.BATCHES:
        return
    # A stateless plan runs inside foreachBatch, where Spark does not substitute the batch's time for the current time.
    has_batch_time = stateful is not None or len(pipeline.sources) > 1

    def findings(statement: str) -> list[deterministic.Finding]:
        return deterministic.find_expressions(statement, has_batch_time=has_batch_time, has_key=_has_key(pipeline))

    for index, step in enumerate(pipeline.transforms):
        if step.sql is not None and step in list(pipeline.list_steps_to(pipeline.sink_input)):
            for found in findings(step.sql):
                message = f"{step.name}: {found.what} may differ when a batch is repeated: {found.why}"
                yield ("transform", index, "sql"), found.line, message
    for expectation in pipeline.expectations:
        for found in findings(expectation.settings.sql):
            path = ("expect", expectation.table, expectation.name, "sql")
            message = f"{expectation.name}: {found.what} may differ when a batch is repeated: {found.why}"
            yield path, found.line, message


def _list_conditions(pipeline: Pipeline, kind: TransactionKind | None, level: Level) -> Iterator[str]:
    if kind is not None:
        yield "readers use isolation.level=read_committed"
    if needs_stored_responses(pipeline, kind) and not pipeline.settings.master.startswith("local"):
        yield f"{pipeline.state_folder} is a folder shared by all machines that Spark runs on"
    if level is not Level.EXACTLY_ONCE:
        return
    if isinstance(pipeline.sink, FilesSink):
        yield (
            "the file system renames folders atomically, as local file systems and HDFS do, or nothing reads during a "
            "write and no second driver writes"
        )
    if isinstance(pipeline.sink, IcebergSink):
        yield "the pipeline's newest snapshot does not expire while a batch is incomplete"
        if pipeline.sink.passed["iceberg.catalog."].get("type") == "hadoop":
            yield "the hadoop catalog is on HDFS, or no second process writes to the table"
    if isinstance(pipeline.sink, JdbcSink):
        yield "the database supports transactions"
    for name, source in pipeline.sources.items():
        if isinstance(source, JdbcSource):
            column = source.timestamp_column_name or source.incrementing_column_name
            late = "not above" if source.overlap is None else f"more than {source.overlap} below"
            yield f"no row of source {name} commits with {column} null, infinite, or {late} a value already read"
        if isinstance(source, PythonSource):
            yield f"source {name} returns the same rows for the same offsets"
        if isinstance(source, FilesSource) and kind is TransactionKind.BATCHES:
            yield f"files that source {name} has read do not change"
    if kind is TransactionKind.BATCHES:
        for step in pipeline.list_steps_to(pipeline.sink_input):
            if step.python is not None:
                yield f"{step.python} returns the same result for the same rows"
            if step.sql is not None and not _has_key(pipeline):
                for condition in deterministic.list_conditions(step.sql):
                    yield f"{condition} in {step.name}, or key.fields identify each row"


def _has_key(pipeline: Pipeline) -> bool:
    """Return whether rows are assigned to the parts of a batch by their keys, not by all columns."""
    return isinstance(pipeline.sink, TopicSink) and bool(pipeline.sink.key_fields)
