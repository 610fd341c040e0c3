"""Spark's analysis of a pipeline: the complete plan is applied to empty frames. No data is read.

It detects what the tokens of a statement do not show: missing columns, type mismatches, invalid schemas, operations
that streams do not support, and plans that combine rows of several partitions.
"""

import re
from collections import Counter
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from odradek.properties import nearest
from odradek.spark_it.definition.guarantees import find_stateful_reason
from odradek.spark_it.definition.problems import Problem
from odradek.spark_it.definition.python_functions import import_function
from odradek.spark_it.definition.settings import TransformSettings
from odradek.spark_it.definition.sink_keys import JdbcSink, TopicSink
from odradek.spark_it.definition.source_keys import JdbcSource
from odradek.spark_it.definition.spec import Expectation, Pipeline
from odradek.spark_it.definition.toml_lines import Path
from odradek.spark_it.formats.format import FormatError
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.interfaces.source import SourceError, Stream
from odradek.spark_it.sinks.topic_records import RecordEncoder
from odradek.spark_it.sources.connectors import make_stream
from odradek.spark_it.spark.errors import describe_error, find_sql_line
from odradek.spark_it.spark.internals import check_streaming, list_physical_nodes, make_empty_stream
from odradek.spark_it.transforms.output_mode import find_output_mode

_EXCHANGE_NODES = re.compile(
    r"\w*Exchange|Union|Coalesce\w*|CartesianProduct|Subquery\w*|ReusedSubquery|CollectLimit\w*"
)


class SparkAnalysis:
    """Analysis of pipelines with one session. `schema` is the schema of the sink's input after an analysis without
    problems.
    """

    def __init__(self, spark: SparkSession) -> None:
        # Temporary views belong to a session, and the analysis must not overwrite those of the caller.
        self._spark = spark.newSession()
        self.schema = StructType()

    def __call__(self, pipeline: Pipeline) -> tuple[str | None, list[Problem]]:
        """Return the reason why the pipeline is stateful, None if it is not, and its problems.

        Raises SourceError if the columns of a database source cannot be read.
        """
        problems: list[Problem] = []
        schemas = {}
        for name in pipeline.sources:
            schema = self._find_schema(pipeline, name, problems)
            if schema is not None:
                schemas[name] = schema
        stateful = find_stateful_reason(pipeline)
        if not problems:
            stateful = self._analyse_plan(pipeline, schemas, stateful, problems)
        return stateful, problems

    def _find_schema(self, pipeline: Pipeline, name: str, problems: list[Problem]) -> StructType | None:
        """Return the columns of a source; None after a problem."""
        source = pipeline.sources[name]
        path: Path = ("source", name)
        try:
            stream: Stream = make_stream(name, pipeline)
            schema = stream.schema(self._spark)
        except (FormatError, ImportError, AttributeError, SourceError) as error:
            if isinstance(source, JdbcSource):
                raise  # an unavailable database is not a mistake in the file
            message = str(error).removeprefix(f"source {name}: ")
            keys = ("key.schema", "value.schema", "schema")
            key = next((key for key in keys if message.startswith(key)), "connector")
            problems.append(Problem(pipeline.lines.find_line((*path, *key.split("."))), f"source.{name}: {message}"))
            return None
        column = source.watermark_column
        if column is not None:
            fields = {field.name.casefold(): field for field in schema.fields}
            field = fields.get(column.casefold())
            if field is None or not isinstance(field.dataType, TimestampType | TimestampNTZType):
                near = nearest(column.casefold(), fields)
                hint = f", did you mean {fields[near].name}?" if field is None and near else ""
                what = f"unknown column {column}" if field is None else f"column {column} is not a TIMESTAMP"
                message = f"source.{name}: watermark: {what}{hint}"
                problems.append(Problem(pipeline.lines.find_line((*path, "watermark")), message))
        return schema

    def _analyse_plan(
        self, pipeline: Pipeline, schemas: dict[str, StructType], stateful: str | None, problems: list[Problem]
    ) -> str | None:
        is_streaming = stateful is not None or len(schemas) > 1
        frames: dict[str, DataFrame] = {}
        for name, schema in schemas.items():
            frame = self._make_empty_frame(schema, is_streaming=is_streaming)
            source = pipeline.sources[name]
            if is_streaming and source.watermark_column is not None:
                frame = frame.withWatermark(source.watermark_column, f"{source.watermark_ms} milliseconds")
            self._add_table(pipeline, frames, name, frame, problems)
        for index, step in enumerate(pipeline.transforms):
            made = self._analyse_transform(pipeline, index, step, frames, problems)
            if made is None:
                return stateful  # transforms that read it cannot be analysed
            self._add_table(pipeline, frames, step.name, made, problems)
            if stateful is None:
                exchange = find_exchange_node(made)
                stateful = None if exchange is None else f"{exchange} in {step.name}"
        if stateful is not None and not is_streaming and not problems:
            # A stateful pipeline runs as a stream, and streams do not support all operations.
            return self._analyse_plan(pipeline, schemas, stateful, problems)
        if not problems and is_streaming:
            problems += self._check_streaming(pipeline, frames)
        if not problems and pipeline.sink_input is not None:
            self.schema = frames[pipeline.sink_input.casefold()].schema
            problems += self._check_sink(pipeline)
        return stateful

    def _make_empty_frame(self, schema: StructType, *, is_streaming: bool) -> DataFrame:
        """Return an empty frame that Spark's optimizer does not recognize as empty, so that the plan keeps its
        nodes."""
        frame = self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), schema)
        if not is_streaming:
            return frame
        return make_empty_stream(frame)

    def _add_table(
        self, pipeline: Pipeline, frames: dict[str, DataFrame], name: str, frame: DataFrame, problems: list[Problem]
    ) -> None:
        frames[name.casefold()] = frame
        frame.createOrReplaceTempView(name)
        for one in pipeline.expectations:
            if one.table.casefold() == name.casefold():
                problems += _check_expectation(pipeline, one, frame)

    def _analyse_transform(
        self,
        pipeline: Pipeline,
        index: int,
        step: TransformSettings,
        frames: dict[str, DataFrame],
        problems: list[Problem],
    ) -> DataFrame | None:
        path: Path = ("transform", index)
        if step.sql is not None:
            try:
                made = self._spark.sql(step.sql)
            except PySparkException as error:
                problems.append(_make_sql_problem(pipeline, (*path, "sql"), f"transform {step.name}", error))
                return None
        else:
            assert step.python is not None
            line = pipeline.lines.find_line((*path, "python"))
            try:
                called = import_function(step.python)
                found = called(*(frames[name.casefold()] for name in pipeline.list_inputs(step)))
            except PySparkException as error:
                problems.append(Problem(line, f"transform {step.name}: {describe_error(error)}"))
                return None
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                problems.append(Problem(line, f"transform {step.name}: {step.python}: {what}"))
                return None
            if not isinstance(found, DataFrame):
                what = type(found).__name__
                problems.append(Problem(line, f"transform {step.name}: {step.python} returns {what}, not a data frame"))
                return None
            made = found
        counted = Counter(name.casefold() for name in made.columns)
        twice = sorted(name for name, count in counted.items() if count > 1)
        if twice:
            message = f"transform {step.name}: duplicate column name {', '.join(twice)}; rename columns with AS"
            problems.append(Problem(pipeline.lines.find_line(path), message))
            return None
        return made

    def _check_streaming(self, pipeline: Pipeline, frames: dict[str, DataFrame]) -> Iterator[Problem]:
        """Yield a problem for an operation that streams do not support; Spark would report it when the query starts."""
        assert pipeline.sink_input is not None
        frame = frames[pipeline.sink_input.casefold()]
        try:
            check_streaming(frame, find_output_mode(pipeline, frame))
        except PySparkException as error:
            step = list(pipeline.list_steps_to(pipeline.sink_input))[-1:]
            path: Path = ("transform", pipeline.transforms.index(step[0])) if step else ("sink",)
            where = f"transform {step[0].name}" if step else "sink"
            yield Problem(pipeline.lines.find_line(path), f"{where}: {describe_error(error)}")

    def _check_sink(self, pipeline: Pipeline) -> Iterator[Problem]:
        """Yield problems of the sink's columns that can be detected without a connection."""
        sink = pipeline.sink
        if isinstance(sink, TopicSink) and sink.schema_registry_url is None:
            # With a registry this check would register the schema.
            try:
                RecordEncoder(pipeline, sink, self.schema).check(self._spark, self.schema)
            except SinkError as error:
                yield Problem(pipeline.lines.find_line(("sink",)), str(error))
        if isinstance(sink, JdbcSink):
            known = {name.casefold(): name for name in self.schema.names}
            named = [(("sink", "pk", "fields"), key) for key in sink.pk_fields]
            for path, key in [*named, *((("sink", "cast"), key) for key in sink.cast)]:
                if key.casefold() not in known:
                    near = nearest(key.casefold(), known)
                    columns = ", ".join(self.schema.names)
                    hint = f", did you mean {known[near]}?" if near else f"; the columns are {columns}"
                    yield Problem(pipeline.lines.find_line(path), f"sink: unknown column {key}{hint}")


def find_exchange_node(frame: DataFrame) -> str | None:
    """Return the first plan node that combines rows of several partitions; None if there is none."""
    return next((node for node in list_physical_nodes(frame) if _EXCHANGE_NODES.fullmatch(node)), None)


def _check_expectation(pipeline: Pipeline, expectation: Expectation, frame: DataFrame) -> Iterator[Problem]:
    path: Path = ("expect", expectation.table, expectation.name, "sql")
    try:
        frame.filter(f.expr(expectation.settings.sql))
    except PySparkException as error:
        yield _make_sql_problem(pipeline, path, f"expect {expectation.name} of {expectation.table}", error)


def _make_sql_problem(pipeline: Pipeline, path: Path, where: str, error: PySparkException) -> Problem:
    line = pipeline.lines.find_line_within(path, find_sql_line(error))
    return Problem(line, f"{where}: {describe_error(error)}")
