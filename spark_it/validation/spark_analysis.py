"""Spark's analysis of a pipeline: the complete plan on empty frames. No data is read.

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
from odradek.spark_it.definition.guarantees import why_stateful
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
from odradek.spark_it.spark.errors import line_in_sql, readable
from odradek.spark_it.spark.internals import check_streaming, empty_stream, physical_nodes
from odradek.spark_it.transforms.output_mode import find_output_mode

_EXCHANGE_NODES = re.compile(
    r"\w*Exchange|Union|Coalesce\w*|CartesianProduct|Subquery\w*|ReusedSubquery|CollectLimit\w*"
)


class Analysis:
    """Analyses pipelines with one session. `schema` is the schema of the sink's input after an analysis without
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
            schema = self._schema_of(pipeline, name, problems)
            if schema is not None:
                schemas[name] = schema
        stateful = why_stateful(pipeline)
        if not problems:
            stateful = self._look(pipeline, schemas, stateful, problems)
        return stateful, problems

    def _schema_of(self, pipeline: Pipeline, name: str, problems: list[Problem]) -> StructType | None:
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
            problems.append(Problem(pipeline.lines.of((*path, *key.split("."))), f"source.{name}: {message}"))
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
                problems.append(Problem(pipeline.lines.of((*path, "watermark")), message))
        return schema

    def _look(
        self, pipeline: Pipeline, schemas: dict[str, StructType], stateful: str | None, problems: list[Problem]
    ) -> str | None:
        is_streaming = stateful is not None or len(schemas) > 1
        frames: dict[str, DataFrame] = {}
        for name, schema in schemas.items():
            frame = self._empty(schema, is_streaming=is_streaming)
            source = pipeline.sources[name]
            if is_streaming and source.watermark_column is not None:
                frame = frame.withWatermark(source.watermark_column, f"{source.watermark_ms} milliseconds")
            self._add(pipeline, frames, name, frame, problems)
        for index, step in enumerate(pipeline.transforms):
            made = self._made(pipeline, index, step, frames, problems)
            if made is None:
                return stateful  # transforms that read it cannot be analysed
            self._add(pipeline, frames, step.name, made, problems)
            if stateful is None:
                together = exchange_node(made)
                stateful = None if together is None else f"{together} in {step.name}"
        if stateful is not None and not is_streaming and not problems:
            # A stateful pipeline runs as a stream, and streams do not support all operations.
            return self._look(pipeline, schemas, stateful, problems)
        if not problems and is_streaming:
            problems += self._unsupported(pipeline, frames)
        if not problems and pipeline.sink_input is not None:
            self.schema = frames[pipeline.sink_input.casefold()].schema
            problems += self._unwritable(pipeline)
        return stateful

    def _empty(self, schema: StructType, *, is_streaming: bool) -> DataFrame:
        """Return an empty frame that Spark's optimizer does not recognize as empty and so does not optimize away."""
        frame = self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), schema)
        if not is_streaming:
            return frame
        return empty_stream(frame)

    def _add(
        self, pipeline: Pipeline, frames: dict[str, DataFrame], name: str, frame: DataFrame, problems: list[Problem]
    ) -> None:
        frames[name.casefold()] = frame
        frame.createOrReplaceTempView(name)
        for one in pipeline.expectations:
            if one.table.casefold() == name.casefold():
                problems += _expectation(pipeline, one, frame)

    def _made(
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
                problems.append(_in_sql(pipeline, (*path, "sql"), f"transform {step.name}", error))
                return None
        else:
            assert step.python is not None
            line = pipeline.lines.of((*path, "python"))
            try:
                called = import_function(step.python)
                found = called(*(frames[name.casefold()] for name in pipeline.inputs(step)))
            except PySparkException as error:
                problems.append(Problem(line, f"transform {step.name}: {readable(error)}"))
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
            problems.append(Problem(pipeline.lines.of(path), message))
            return None
        return made

    def _unsupported(self, pipeline: Pipeline, frames: dict[str, DataFrame]) -> Iterator[Problem]:
        """Yield a problem for an operation that streams do not support; Spark would report it when the query starts."""
        assert pipeline.sink_input is not None
        frame = frames[pipeline.sink_input.casefold()]
        try:
            check_streaming(frame, find_output_mode(pipeline, frame))
        except PySparkException as error:
            step = list(pipeline.steps_to(pipeline.sink_input))[-1:]
            path: Path = ("transform", pipeline.transforms.index(step[0])) if step else ("sink",)
            where = f"transform {step[0].name}" if step else "sink"
            yield Problem(pipeline.lines.of(path), f"{where}: {readable(error)}")

    def _unwritable(self, pipeline: Pipeline) -> Iterator[Problem]:
        """Yield problems of the sink's columns that can be detected without a connection."""
        sink = pipeline.sink
        if isinstance(sink, TopicSink) and sink.schema_registry_url is None:
            # With a registry this check would register the schema.
            try:
                RecordEncoder(pipeline, sink, self.schema).check(self._spark, self.schema)
            except SinkError as error:
                yield Problem(pipeline.lines.of(("sink",)), str(error))
        if isinstance(sink, JdbcSink):
            known = {name.casefold(): name for name in self.schema.names}
            named = [(("sink", "pk", "fields"), key) for key in sink.pk_fields]
            for path, key in [*named, *((("sink", "cast"), key) for key in sink.cast)]:
                if key.casefold() not in known:
                    near = nearest(key.casefold(), known)
                    columns = ", ".join(self.schema.names)
                    hint = f", did you mean {known[near]}?" if near else f"; the columns are {columns}"
                    yield Problem(pipeline.lines.of(path), f"sink: unknown column {key}{hint}")


def exchange_node(frame: DataFrame) -> str | None:
    """Return the plan node that combines rows of several partitions; None if there is none."""
    return next((node for node in physical_nodes(frame) if _EXCHANGE_NODES.fullmatch(node)), None)


def _expectation(pipeline: Pipeline, expectation: Expectation, frame: DataFrame) -> Iterator[Problem]:
    path: Path = ("expect", expectation.table, expectation.name, "sql")
    try:
        frame.filter(f.expr(expectation.settings.sql))
    except PySparkException as error:
        yield _in_sql(pipeline, path, f"expect {expectation.name} of {expectation.table}", error)


def _in_sql(pipeline: Pipeline, path: Path, where: str, error: PySparkException) -> Problem:
    line = pipeline.lines.within(path, line_in_sql(error))
    return Problem(line, f"{where}: {readable(error)}")
