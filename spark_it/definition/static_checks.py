"""Static checks of a pipeline: names, references, and keys that depend on each other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Literal

from odradek.properties import nearest
from odradek.spark_it.definition.problems import Problem
from odradek.spark_it.definition.settings import RecordFormat
from odradek.spark_it.definition.sink_keys import IcebergSink, JdbcSink, TopicSink
from odradek.spark_it.definition.source_keys import FilesSource, JdbcSource, TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.definition.toml_lines import Path
from odradek.spark_it.sql import tokens


def find_problems(pipeline: Pipeline) -> list[Problem]:
    """Return all problems of a pipeline whose tables are valid by themselves."""
    problems = find_name_problems(pipeline)
    if any(True for _ in _check_texts(pipeline)):
        return problems  # the other checks parse the statements
    for check in (_check_sources, _check_sink, _check_errors, _check_cases):
        problems += check(pipeline)
    return problems


def find_name_problems(pipeline: Pipeline) -> list[Problem]:
    """Return the problems of names and references. The pipeline may have other problems."""
    return [*_check_texts(pipeline)] or [*_check_names(pipeline), *_check_references(pipeline)]


def _make_problem(pipeline: Pipeline, path: Path, message: str) -> Problem:
    return Problem(pipeline.lines.find_line(path), message)


def _join_path(path: Path, key: str) -> Path:
    return (*path, *key.split("."))


def _check_texts(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield problems of unterminated statements, and of steps that are not queries."""
    texts: list[tuple[Path, str, str | None]] = [
        (("transform", index, "sql"), step.name, step.sql) for index, step in enumerate(pipeline.transforms)
    ]
    texts += [(("expect", e.table, e.name, "sql"), e.name, e.settings.sql) for e in pipeline.expectations]
    for path, name, text in texts:
        try:
            statement_kind = tokens.find_other_statement(tokens.tokenize(text or ""))
        except tokens.SqlError as error:
            yield Problem(pipeline.lines.find_line_within(path, error.line), f"{name}: {error}")
            continue
        if path[0] == "transform" and text is not None and statement_kind is not None:
            message = f"transform {name}: sql must be a SELECT" + (f", not {statement_kind}" if statement_kind else "")
            yield Problem(pipeline.lines.find_line_within(path, 0), message)


def _check_names(pipeline: Pipeline) -> Iterator[Problem]:
    kind_by_name: dict[str, str] = {}
    for name in pipeline.sources:
        if name.casefold() in kind_by_name:
            yield _make_problem(
                pipeline, ("source", name), f"source {name}: {kind_by_name[name.casefold()]} exists already"
            )
        kind_by_name.setdefault(name.casefold(), f"source {name}")
    for index, step in enumerate(pipeline.transforms):
        path: Path = ("transform", index)
        if step.name.casefold() in kind_by_name:
            existing = kind_by_name[step.name.casefold()]
            yield _make_problem(pipeline, (*path, "name"), f"transform {step.name}: {existing} exists already")
        kind_by_name.setdefault(step.name.casefold(), f"transform {step.name}")
        if (step.sql is None) == (step.python is None):
            yield _make_problem(pipeline, path, f"transform {step.name}: write either sql or python")
        if step.sql is not None and step.input:
            message = f"transform {step.name}: input is only for python; SQL names the tables that it reads"
            yield _make_problem(pipeline, (*path, "input"), message)


def _check_references(pipeline: Pipeline) -> Iterator[Problem]:
    names = {name.casefold(): name for name in pipeline.sources}
    later = {step.name.casefold() for step in pipeline.transforms}
    used: set[str] = set()
    for index, step in enumerate(pipeline.transforms):
        if step.sql is not None:
            path: Path = ("transform", index, "sql")
            for table in tokens.find_tables(tokens.tokenize(step.sql)):
                used.add(table.text.casefold())
                if table.text.casefold() not in names:
                    message = _describe_missing_table(table.text, names, later)
                    yield Problem(
                        pipeline.lines.find_line_within(path, table.line), f"transform {step.name}: {message}"
                    )
        else:
            inputs = pipeline.list_inputs(step)
            used.update(name.casefold() for name in inputs)
            if not inputs:
                message = f"transform {step.name}: set input to the source that it reads"
                yield _make_problem(pipeline, ("transform", index), message)
            for name in inputs:
                if name.casefold() not in names:
                    message = _describe_missing_table(name, names, later)
                    yield _make_problem(pipeline, ("transform", index, "input"), f"transform {step.name}: {message}")
        names[step.name.casefold()] = step.name
    sink_input = pipeline.sink_input
    if sink_input is None:
        yield _make_problem(
            pipeline, ("sink",), f"sink: set input to the source to write: {', '.join(pipeline.sources)}"
        )
    elif sink_input.casefold() not in names:
        yield _make_problem(pipeline, ("sink", "input"), f"sink: {_describe_missing_table(sink_input, names, set())}")
    else:
        used.add(sink_input.casefold())
    for name in pipeline.sources:
        if name.casefold() not in used:
            yield _make_problem(pipeline, ("source", name), f"source {name} is not used")
    for index, step in enumerate(pipeline.transforms):
        if step.name.casefold() not in used:
            yield _make_problem(pipeline, ("transform", index), f"transform {step.name} is not used")
    for expectation in pipeline.expectations:
        if expectation.table.casefold() not in names:
            yield _make_problem(
                pipeline,
                ("expect", expectation.table),
                f"expect: {_describe_missing_table(expectation.table, names, set())}",
            )
        for table in tokens.find_tables(tokens.tokenize(expectation.settings.sql)):
            message = f"expect {expectation.name}: a condition on one row cannot read {table.text}; use a transform"
            path = ("expect", expectation.table, expectation.name, "sql")
            yield Problem(pipeline.lines.find_line_within(path, table.line), message)


def _describe_missing_table(name: str, names: dict[str, str], later: set[str]) -> str:
    if name.casefold() in later:
        return f"{name} is defined only later"
    near = nearest(name.casefold(), names)
    return f"no source or transform has the name {name}" + (f", did you mean {names[near]}?" if near else "")


def _check_sources(pipeline: Pipeline) -> Iterator[Problem]:
    for name, source in pipeline.sources.items():
        path: Path = ("source", name)
        problems: Iterator[tuple[str, str]] = iter(())
        if isinstance(source, TopicSource):
            problems = _check_topic_source(source, pipeline)
        elif isinstance(source, FilesSource):
            problems = _check_files_source(source)
        elif isinstance(source, JdbcSource):
            problems = _check_jdbc_source(source)
        for key, message in problems:
            yield _make_problem(pipeline, _join_path(path, key), f"source {name}: {message}")


def _check_topic_source(source: TopicSource, pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    if bool(source.topics) == (source.topics_regex is not None):
        yield "topics", "write either topics or topics.regex"
    if source.start_timestamp is not None and source.start_offsets:
        yield "start.offsets", "write either start.timestamp or start.offsets, not both"
    for topic, _ in source.start_offsets_by_partition:
        if source.topics and topic not in source.topics:
            yield "start.offsets", f"start.offsets has topic {topic}, which is missing in topics"
    if source.keep_unknown_fields and source.value_format != "json":
        yield "keep.unknown.fields", "keep.unknown.fields is for value.format = json"
    yield from _check_record_format(source, pipeline, is_read=True)


def _check_files_source(source: FilesSource) -> Iterator[tuple[str, str]]:
    if source.format != "text" and source.schema is None:
        yield "schema", f"format {source.format} needs schema"
    if source.format == "text" and source.schema is not None:
        yield "schema", "format text has no schema: its only column is value"
    for key in ("csv.header", "csv.delimiter"):
        if source.format != "csv" and key in source.explicit:
            yield key, f"{key} is for format csv"


def _check_jdbc_source(source: JdbcSource) -> Iterator[tuple[str, str]]:
    if (source.table_whitelist is None) == (source.query is None):
        yield "query", "write either table.whitelist or query"
    if source.table_whitelist is not None and "," in source.table_whitelist:
        yield "table.whitelist", "table.whitelist names one table; write a source for each"
    columns = {"incrementing": source.incrementing_column_name, "timestamp": source.timestamp_column_name}
    for mode, column in columns.items():
        if (column is not None) != (mode == source.mode):
            key = f"{mode}.column.name"
            yield key, f"mode {source.mode} needs {key}" if mode == source.mode else f"{key} is for mode {mode}"
    if source.overlap is not None:
        if not source.pk_fields:
            yield "overlap", "overlap needs pk.fields, to recognize rows that were already read"
        if source.overlap.isdigit() != (source.mode == "incrementing"):
            expected = "a number" if source.mode == "incrementing" else "a duration"
            yield "overlap", f"overlap = {source.overlap}: mode {source.mode} needs {expected}"


def _check_record_format(settings: RecordFormat, pipeline: Pipeline, *, is_read: bool) -> Iterator[tuple[str, str]]:
    sides: tuple[Literal["value", "key"], ...] = ("value", "key")
    for side in sides:
        part = settings.get_part_format(side)
        schema, key = part.schema, f"{side}.schema"
        match part.format:
            case "json":
                if is_read and schema is None:
                    yield key, f"{side}.format json needs {key}, the columns as Spark DDL"
                if not is_read and schema is not None:
                    yield key, f"{key} is not allowed: {side}.format json is written without a schema"
            case "avro":
                if is_read and schema is None and part.registry_url is None:
                    yield key, f"{side}.format avro needs {key} or schema.registry.url"
                if schema is not None:
                    yield from ((key, message) for message in _check_avro_schema(schema, pipeline))
            case "protobuf":
                if schema is None or not schema.endswith(".desc"):
                    yield key, f"{side}.format protobuf needs {key}, the .desc file of a descriptor set"
                elif not _exists(schema, pipeline):
                    yield key, f"{key} = {schema}: there is no such file"
                if part.message is None:
                    yield f"{side}.message", f"{side}.format protobuf needs {side}.message"
            case _:
                if schema is not None:
                    yield key, f"{side}.format {part.format} has no schema"
        if part.message is not None and part.format != "protobuf":
            yield f"{side}.message", f"{side}.message is for {side}.format protobuf"
        if part.subject is not None and part.registry_url is None:
            yield f"{side}.subject", f"{side}.subject needs {side}.format avro and schema.registry.url"
    if settings.schema_registry_url is None and settings.basic_auth_user_info is not None:
        yield "basic.auth.user.info", "basic.auth.user.info is for schema.registry.url"
    if settings.schema_registry_url is not None and "avro" not in (settings.value_format, settings.key_format):
        yield "schema.registry.url", "schema.registry.url is for format avro"


def _check_avro_schema(schema: str, pipeline: Pipeline) -> Iterator[str]:
    name = "the schema"
    if schema.endswith(".avsc"):
        name = schema
        try:
            schema = FilePath(pipeline.locate_path(schema)).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            yield f"cannot read {name}: {reason}"
            return
    try:
        json.loads(schema)
    except json.JSONDecodeError as error:
        yield f"{name} is not an Avro schema in JSON: {error}"


def _exists(path: str, pipeline: Pipeline) -> bool:
    return "://" in path or FilePath(pipeline.locate_path(path)).is_file()


def _check_sink(pipeline: Pipeline) -> Iterator[Problem]:
    sink = pipeline.sink
    problems: list[tuple[str, str]] = []
    if isinstance(sink, JdbcSink) and sink.insert_mode == "upsert" and not sink.pk_fields:
        problems.append(("insert.mode", "insert.mode upsert needs pk.fields"))
    is_speculative = pipeline.settings.passed["spark."].get("speculation", "false").lower() != "false"
    if isinstance(sink, JdbcSink) and is_speculative:
        message = "sink: a batch is retried whenever a speculative copy of a task has written rows"
        yield _make_problem(pipeline, ("spark", "speculation"), f"{message}; remove spark.speculation")
    if isinstance(sink, JdbcSink):
        keys = {name.casefold() for name in sink.pk_fields}
        rounded = [name for name in sink.cast if name.casefold() in keys]
        if rounded:
            problems.append(("cast", f"cast: {', '.join(rounded)} is in pk.fields; keys must not be rounded"))
    if isinstance(sink, TopicSink):
        problems += _check_record_format(sink, pipeline, is_read=False)
        if not sink.key_fields and any(key.startswith("key.") for key in sink.explicit):
            problems.append(("key", "key.format and other keys key.* need key.fields"))
        if any(_reads_topic(source, sink.topic) for source in pipeline.sources.values()):
            problems.append(("topic", f"topic {sink.topic} is read by the pipeline that writes it"))
    if isinstance(sink, IcebergSink):
        if "," in sink.iceberg_tables or not all(sink.iceberg_tables.partition(".")):
            problems.append(
                ("iceberg.tables", f"iceberg.tables = {sink.iceberg_tables}: write one table, as namespace.table")
            )
        if not sink.passed["iceberg.catalog."]:
            problems.append(("iceberg", "no catalog; set iceberg.catalog.type and iceberg.catalog.warehouse"))
        if any(key.startswith("wap.") for key in pipeline.settings.passed["spark."]):
            problems.append(
                ("iceberg", "rows are written to the table's main branch; remove spark.wap.id and spark.wap.branch")
            )
    for key, message in problems:
        yield _make_problem(pipeline, _join_path(("sink",), key), f"sink: {message}")


def _reads_topic(source: object, topic: str) -> bool:
    if not isinstance(source, TopicSource):
        return False
    return topic in source.topics or bool(source.topics_regex and re.fullmatch(source.topics_regex, topic))


def _check_errors(pipeline: Pipeline) -> Iterator[Problem]:
    dead_letters = pipeline.errors.deadletterqueue_topic_name
    path: Path = ("errors", "deadletterqueue", "topic", "name")
    if dead_letters is None:
        if pipeline.errors.tolerance == "all":
            message = "errors: tolerance all needs deadletterqueue.topic.name, since bad records are never dropped"
            yield _make_problem(pipeline, ("errors", "tolerance"), message)
        for expectation in pipeline.expectations:
            if expectation.settings.action == "dead-letter":
                message = f"expect: {expectation.name}: action dead-letter needs errors.deadletterqueue.topic.name"
                yield _make_problem(pipeline, ("expect", expectation.table, expectation.name), message)
        return
    if any(_reads_topic(source, dead_letters) for source in pipeline.sources.values()):
        yield _make_problem(pipeline, path, f"errors: topic {dead_letters} is read by the pipeline that writes it")
    if isinstance(pipeline.sink, TopicSink) and pipeline.sink.topic == dead_letters:
        yield _make_problem(pipeline, path, f"errors: topic {dead_letters} is also the sink's topic")


def _check_cases(pipeline: Pipeline) -> Iterator[Problem]:
    sources = {name.casefold(): name for name in pipeline.sources}
    transforms = {step.name.casefold(): step.name for step in pipeline.transforms}
    used_names: set[str] = set()
    for index, case in enumerate(pipeline.cases):
        path: Path = ("test", index)
        if case.name in used_names:
            yield _make_problem(pipeline, (*path, "name"), f"test {case.name}: another test has the same name")
        used_names.add(case.name)
        for name in case.given:
            if name.casefold() not in sources:
                near = nearest(name.casefold(), sources)
                hint = f", did you mean {sources[near]}?" if near else ""
                yield _make_problem(
                    pipeline, (*path, "given", name), f"test {case.name}: no source has the name {name}{hint}"
                )
        for expected in case.expect:
            if expected is not None and expected.casefold() not in transforms:
                near = nearest(expected.casefold(), transforms)
                hint = f", did you mean {transforms[near]}?" if near else ""
                message = f"test {case.name}: no transform has the name {expected}{hint}"
                yield _make_problem(pipeline, (*path, "expect", expected), message)
        if not case.expect and case.dead_letters is None:
            yield _make_problem(pipeline, path, f"test {case.name} expects nothing; write expect or dead.letters")
