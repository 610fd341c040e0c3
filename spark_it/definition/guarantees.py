"""Guarantees of a pipeline: how often a row is written to its sink if processes are killed at any moment."""

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
from odradek.spark_it.sql.tokens import keeps_state, tokens


class Level(Enum):
    """Number of times that a row is written.

    NOT_IF_REPEATED: in a repeated batch a row may belong to another part than before, whose rows are already written.
    """

    EXACTLY_ONCE = "exactly once"
    NOT_IF_REPEATED = "once, but twice or never where a batch is repeated after a crash"
    AT_LEAST_ONCE = "at least once"


class TransactionKind(Enum):
    """Content of one transaction of a topic sink.

    OFFSETS: the rows of one source partition; the marker is the group's committed offset of that partition.

    BATCHES: the rows of one of `tasks.max` parts of the batch; the marker is an offset that stands for the batch.
    """

    OFFSETS = "offset transactions"
    BATCHES = "batch transactions"


@dataclass(frozen=True)
class Guarantee:
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


HOW: dict[type[Sink], str] = {
    FilesSink: "a folder for each batch, put in place when it is whole",
    DeltaSink: "the batch's number is part of the table's commit",
    IcebergSink: "the batch's number is part of the table's commit, which fails if it has the batch",
    JdbcSink: "rows and the batch's number in one transaction, from a staging table",
    ConsoleSink: "a repeated batch is shown again",
    PythonSink: "a repeated batch is given to the function again, with its number",
}
HOW_BY_KIND = {
    TransactionKind.OFFSETS: "rows and progress in one transaction for each source partition",
    TransactionKind.BATCHES: "rows and the batch's number in one transaction for each part of the batch",
}


def why_stateful(pipeline: Pipeline) -> str | None:
    """Return the reason why the pipeline brings rows together or remembers them; None if rows are independent.

    Derived from the statements; errs on the stateful side.
    """
    for step in pipeline.steps_to(pipeline.sink_input):
        if step.stateful is False:
            continue
        why = "stateful = true" if step.stateful else keeps_state(tokens(step.sql)) if step.sql else "its function"
        if why is not None:
            return f"{why} in {step.name}"
    return _by_the_clock(pipeline)


def _by_the_clock(pipeline: Pipeline) -> str | None:
    """What parts dead letters from rows by the clock. Without state the two are computed one after the other, and a
    record between the two times would be in both or in neither; as a stream both have the batch's time."""
    if pipeline.errors.deadletterqueue_topic_name is None:
        return None
    for one in pipeline.expectations:
        if one.settings.action == "dead-letter":
            for found in deterministic.clocks(one.settings.sql):
                return f"{found.what} in {one.name}"
            for step in pipeline.steps_to(one.table):
                for found in deterministic.clocks(step.sql) if step.sql and step.stateful is not False else ():
                    return f"{found.what} in {step.name}"
    return None


def transaction_kind(pipeline: Pipeline, stateful: str | None) -> TransactionKind | None:
    """Return the content of the sink's transactions; None for a sink without transactions."""
    if not isinstance(pipeline.sink, TopicSink):
        return None
    sources = list(pipeline.sources.values())
    by_offset = stateful is None and len(sources) == 1 and isinstance(sources[0], TopicSource)
    return TransactionKind.OFFSETS if by_offset else TransactionKind.BATCHES


def decides_by_registry(pipeline: Pipeline, of: TransactionKind | None) -> bool:
    """Return whether answers of a schema registry must be kept for a batch that is repeated.

    They decide which records are dead letters. Offset transactions need none: each is written once as a whole.
    """
    sources = (source for source in pipeline.sources.values() if isinstance(source, TopicSource))
    return (
        of is not TransactionKind.OFFSETS
        and pipeline.errors.tolerance == "all"
        and any(source.part(side).registry_url is not None for source in sources for side in ("key", "value"))
    )


def guarantee(pipeline: Pipeline, stateful: str | None) -> Guarantee:
    """Return the guarantee of a pipeline without problems. `stateful` is the result of `why_stateful` or of Spark's
    analysis.
    """
    sink = pipeline.sink
    of = transaction_kind(pipeline, stateful)
    doubts = [message for _, _, message in _doubts(pipeline, of, stateful)]
    can = not isinstance(sink, ConsoleSink | PythonSink)
    level = Level.AT_LEAST_ONCE if not can else Level.NOT_IF_REPEATED if doubts else Level.EXACTLY_ONCE
    dead_letters = None
    if pipeline.errors.deadletterqueue_topic_name is not None:
        dead_letters = level if of is not None else Level.AT_LEAST_ONCE
    return Guarantee(
        sink=_title(sink),
        level=level,
        how=f"{HOW_BY_KIND[of]} ({of.value})" if of is not None else HOW[type(sink)],
        transaction_kind=of,
        dead_letters=dead_letters,
        conditions=tuple(_conditions(pipeline, of, level)),
    )


def refusals(pipeline: Pipeline, stateful: str | None) -> Iterator[Problem]:
    """Return the problems that `exactly.once.support` requires to be refused."""
    sink = pipeline.sink
    at = ("sink", "exactly", "once", "support")
    if isinstance(sink, ConsoleSink | PythonSink):
        if sink.exactly_once_support == "required":
            yield Problem(pipeline.lines.of(at), f"sink: {_title(sink)} cannot write exactly once")
        return
    if sink.exactly_once_support == "requested":
        return
    why = f"batches are written in parts ({stateful})" if stateful else "batches are written in parts"
    for path, line, message in _doubts(pipeline, transaction_kind(pipeline, stateful), stateful):
        hint = f'since {why}; exactly.once.support = "requested" runs it {Level.NOT_IF_REPEATED.value}'
        yield Problem(pipeline.lines.within(path, line), f"{message}, {hint}")


def _title(sink: Sink) -> str:
    if isinstance(sink, TopicSink):
        return f"topic {sink.topic}"
    if isinstance(sink, JdbcSink):
        return f"jdbc {sink.table_name_format}"
    if isinstance(sink, IcebergSink):
        return f"iceberg {sink.iceberg_tables}"
    if isinstance(sink, FilesSink | DeltaSink):
        return f"{sink.connector} {sink.path}"
    return sink.connector


def _doubts(pipeline: Pipeline, of: TransactionKind | None, stateful: str | None) -> Iterator[tuple[Path, int, str]]:
    """What does not come out the same when a batch is repeated, where that matters: path, line in it, message."""
    if of is not TransactionKind.BATCHES:
        return
    # What keeps no state is computed within the batch, where Spark does not know the batch's time.
    has_batch_time = stateful is not None or len(pipeline.sources) > 1

    def findings(statement: str) -> list[deterministic.Finding]:
        return deterministic.findings(statement, has_batch_time=has_batch_time, has_key=_has_key(pipeline))

    for index, step in enumerate(pipeline.transforms):
        if step.sql is not None and step in list(pipeline.steps_to(pipeline.sink_input)):
            for found in findings(step.sql):
                yield ("transform", index, "sql"), found.line, f"{step.name}: {found.what} may differ: {found.why}"
    for expectation in pipeline.expectations:
        for found in findings(expectation.settings.sql):
            path = ("expect", expectation.table, expectation.name, "sql")
            yield path, found.line, f"{expectation.name}: {found.what} may differ: {found.why}"


def _conditions(pipeline: Pipeline, of: TransactionKind | None, level: Level) -> Iterator[str]:
    if of is not None:
        yield "readers use isolation.level=read_committed"
    if decides_by_registry(pipeline, of) and not pipeline.settings.master.startswith("local"):
        yield f"{pipeline.state_folder} is one folder for all machines that Spark runs on"
    if level is not Level.EXACTLY_ONCE:
        return
    if isinstance(pipeline.sink, FilesSink):
        yield (
            "the file system renames a folder in one step, as local ones and HDFS do, or nobody reads meanwhile and no "
            "second driver writes"
        )
    if isinstance(pipeline.sink, IcebergSink):
        yield "the pipeline's newest snapshot does not expire while a batch is half done"
        if pipeline.sink.passed["iceberg.catalog."].get("type") == "hadoop":
            yield "the catalog, of type hadoop, is on HDFS, or no second process writes to the table"
    if isinstance(pipeline.sink, JdbcSink):
        yield "the database has transactions"
    for name, source in pipeline.sources.items():
        if isinstance(source, JdbcSource):
            column = source.timestamp_column_name or source.incrementing_column_name
            late = "not above" if source.overlap is None else f"more than {source.overlap} below"
            yield f"no row of source {name} comes with {column} null, infinite, or {late} what was read before"
        if isinstance(source, PythonSource):
            yield f"source {name} gives the same rows for the same offsets"
        if isinstance(source, FilesSource) and of is TransactionKind.BATCHES:
            yield f"files that source {name} has read do not change"
    if of is TransactionKind.BATCHES:
        for step in pipeline.steps_to(pipeline.sink_input):
            if step.python is not None:
                yield f"{step.python} makes the same of the same rows"
            if step.sql is not None and not _has_key(pipeline):
                for condition in deterministic.conditions(step.sql):
                    yield f"{condition} in {step.name}, or key.fields say which row is which"


def _has_key(pipeline: Pipeline) -> bool:
    """Whether rows fall to their parts by their keys; those without fall by all that they have."""
    return isinstance(pipeline.sink, TopicSink) and bool(pipeline.sink.key_fields)
