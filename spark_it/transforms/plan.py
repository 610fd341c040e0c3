"""The plan of a pipeline, from decoded records to the rows of the sink: expectations of sources, transforms, and
expectations of transforms.

Between two steps a frame has exactly the columns that are visible in SQL. Bad records become dead letters with the
original record. The dead letter of a row that was computed from several records has the row as JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters import headers as connect_headers
from odradek.spark_it.dead_letters.bad_records import raise_bad_record
from odradek.spark_it.dead_letters.headers import DATA_EXCEPTION, FailureStage
from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.definition.python_functions import import_function
from odradek.spark_it.definition.settings import TransformSettings
from odradek.spark_it.definition.spec import Expectation, Pipeline
from odradek.spark_it.spark.columns import ERROR_TYPE, HEADERS_TYPE, ORIGIN_TYPE, column
from odradek.spark_it.spark.internals import add_source_columns, is_one_of_several, union_without_observations
from odradek.spark_it.transforms.bypass import is_bypassed

_RECORD = ("origin", "key", "value", "headers")
_ENGINE = ("error", *_RECORD)
_PREFIX = "__odradek_"
READ = "__odradek_read"
"""The name of the count of a source's records, valid or not."""

Observe = Callable[[DataFrame, str, Sequence[Column]], DataFrame]
"""Adds an observation with a name to a frame: Spark computes these columns (counts) together with the frame."""


def observe_nothing(frame: DataFrame, name: str, counts: Sequence[Column]) -> DataFrame:
    """Return the frame without an observation."""
    return frame


@dataclass(frozen=True)
class _SourceExpressions:
    """Column expressions of a source, created once for all batches, because each takes several calls of the JVM.

    `error` is None if no expectation makes an error; `passes` is None if no bad record stops the pipeline.
    """

    engine: list[Column]
    counts: list[Column]
    error: Column | None
    passes: Column | None
    is_good: Column
    drops: list[Column]

    def check(self, flat: DataFrame) -> DataFrame:
        """Add errors to rows that violate an expectation. The computation of the frame fails at a bad record that
        stops the pipeline.
        """
        if self.error is not None:
            flat = flat.withColumn(f"{_PREFIX}error", self.error)
        return flat if self.passes is None else flat.filter(self.passes)


@dataclass
class PlanResult:
    """The results of a plan. `dead` has frames with `key`, `value` and `headers`, `steps` the frames by name."""

    rows: DataFrame
    dead: list[DataFrame]
    steps: dict[str, DataFrame] = field(default_factory=dict)


class Plan:
    """The plan of one pipeline; `apply` may be called for each batch, or once for a stream."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._has_dead_letters = pipeline.errors.deadletterqueue_topic_name is not None
        self._tolerates = pipeline.errors.tolerance == "all"
        self._columns: dict[str, _SourceExpressions] = {}
        self._are_parts: dict[str, bool] = {}
        self._functions = {
            step.name: import_function(step.python) for step in pipeline.transforms if step.python is not None
        }

    @property
    def has_dead_letters(self) -> bool:
        """True if records or rows may become dead letters."""
        by_expectation = any(one.settings.action == "dead-letter" for one in self._pipeline.expectations)
        return self._has_dead_letters and (self._tolerates or by_expectation)

    def apply(
        self, spark: SparkSession, decoded: Mapping[str, DataFrame], observe: Observe = observe_nothing
    ) -> PlanResult:
        """Return the results for the decoded frames of all sources. Views of all tables are created in `spark`."""
        frames: dict[str, DataFrame] = {}
        dead: list[DataFrame] = []
        for name, frame in decoded.items():
            rows, bad = self._apply_source(name, frame, observe)
            frames[name.casefold()] = rows
            dead += bad
            rows.createOrReplaceTempView(name)
        for step in self._pipeline.transforms:
            made = self._apply_transform(spark, step, frames)
            rows, bad = self._apply_expectations(step.name, made, observe)
            frames[step.name.casefold()] = rows
            dead += bad
            rows.createOrReplaceTempView(step.name)
        written = self._pipeline.sink_input
        assert written is not None  # static_checks requires it
        return PlanResult(frames[written.casefold()], dead, frames)

    def _apply_source(self, name: str, decoded: DataFrame, observe: Observe) -> tuple[DataFrame, list[DataFrame]]:
        """Return rows and dead letters of a source. Only the plan of the rows has the observation, so each record is
        counted once."""
        source = self._pipeline.sources[name]
        if name not in self._columns:
            self._columns[name] = self._make_source_expressions(self._get_expectations(name))
        columns = self._columns[name]
        flat = decoded.select("row.*", *columns.engine)
        rows = columns.check(observe(flat, name, columns.counts)).filter(columns.is_good)
        dead = []
        if self.has_dead_letters:
            dead.append(self._make_dead_letters(columns.check(flat).filter(_get_error().isNotNull())))
        for holds in columns.drops:
            rows = rows.filter(holds)
        rows = rows.drop(*(_PREFIX + one for one in _ENGINE))
        if source.watermark_column is not None and rows.isStreaming:
            rows = rows.withWatermark(source.watermark_column, f"{source.watermark_ms} milliseconds")
        return rows, dead

    def _make_source_expressions(self, expectations: Sequence[Expectation]) -> _SourceExpressions:
        stops = self._make_stop_condition(expectations)
        stop = raise_bad_record(f.col(f"{_PREFIX}origin"), _get_error())
        return _SourceExpressions(
            engine=[f.col(one).alias(_PREFIX + one) for one in _ENGINE],
            counts=[_count_read(), *_make_violation_counts(expectations, _get_error().isNull())],
            error=_make_error(expectations),
            passes=None if stops is None else f.when(stops, stop).otherwise(True),
            is_good=_get_error().isNull(),
            drops=[_make_condition(one) for one in expectations if one.settings.action == "drop"],
        )

    def _make_stop_condition(self, expectations: Sequence[Expectation]) -> Column | None:
        """Return the condition for bad records that stop the pipeline: records that violate an expectation with action
        fail, and, with errors.tolerance none, records that cannot be decoded."""
        fails = [one.name for one in expectations if one.settings.action == "fail"]
        by_expectation = _get_error()["stage"] == FailureStage.TRANSFORMATION.value
        if self._tolerates and not fails:
            return None
        must_hold = by_expectation & _get_error()["class_name"].isin(fails)
        return _get_error().isNotNull() & (must_hold if self._tolerates else must_hold | ~by_expectation)

    def _apply_transform(
        self, spark: SparkSession, step: TransformSettings, frames: Mapping[str, DataFrame]
    ) -> DataFrame:
        if step.sql is not None:
            return spark.sql(step.sql)
        inputs = [frames[name.casefold()] for name in self._pipeline.list_inputs(step)]
        result = self._functions[step.name](*inputs)
        if not isinstance(result, DataFrame):
            raise TypeError(f"{step.python} returned {type(result).__name__}, not a data frame")
        return result

    def _apply_expectations(self, name: str, frame: DataFrame, observe: Observe) -> tuple[DataFrame, list[DataFrame]]:
        expectations = self._get_expectations(name)
        if not expectations:
            return frame, []
        plain, columns = frame, frame.columns
        frame = observe(frame, name, _make_violation_counts(expectations, f.lit(True)))
        dead: list[DataFrame] = []
        for expectation in expectations:
            match expectation.settings.action:
                case "fail":
                    stop = raise_bad_record(f.col(f"{_PREFIX}origin"), _make_expectation_error(expectation))
                    checked = _add_record(frame).filter(f.when(_make_condition(expectation), True).otherwise(stop))
                    frame = checked.select(*(column(name) for name in columns))
                case "dead-letter":
                    bad = plain.filter(~_make_condition(expectation))
                    broken = _add_record(bad).withColumn(f"{_PREFIX}error", _make_expectation_error(expectation))
                    dead.append(self._make_dead_letters(broken, is_part=self._is_part_of_record(name, bad)))
                    plain, frame = (
                        plain.filter(_make_condition(expectation)),
                        frame.filter(_make_condition(expectation)),
                    )
                case "drop":
                    plain, frame = (
                        plain.filter(_make_condition(expectation)),
                        frame.filter(_make_condition(expectation)),
                    )
        return frame, dead

    def _is_part_of_record(self, name: str, frame: DataFrame) -> bool:
        """Return whether a row of a transform may be one of several rows of a record, others of which are written."""
        if name not in self._are_parts:
            engine = [_PREFIX + one for one in _RECORD]
            self._are_parts[name] = is_bypassed(self._pipeline, name) or is_one_of_several(frame, engine)
        return self._are_parts[name]

    def _get_expectations(self, table: str) -> list[Expectation]:
        return [one for one in self._pipeline.expectations if one.table.casefold() == table.casefold()]

    def _make_dead_letters(self, bad: DataFrame, *, is_part: bool = False) -> DataFrame:
        """Return the dead letters of bad rows, which have the engine's columns. With `is_part` a row may be one of
        several of its record, and the others may be valid."""
        origin, error, headers = (f.col(_PREFIX + one) for one in ("origin", "error", "headers"))
        return bad.select(
            f.col(f"{_PREFIX}key").alias("key"),
            f.col(f"{_PREFIX}value").alias("value"),
            self.make_headers(headers, origin, error, is_part=is_part).alias("headers"),
        )

    def make_headers(self, headers: Column, origin: Column, error: Column, *, is_part: bool) -> Column:
        """Return the headers of a dead letter as a column, as `headers.make_error_headers` returns them."""
        empty = f.array().cast(HEADERS_TYPE)
        kept = f.filter(f.coalesce(headers, empty), lambda one: ~one["key"].startswith(connect_headers.PREFIX))
        if not self._pipeline.errors.deadletterqueue_context_headers_enable:
            return kept
        error_headers = [
            (connect_headers.CONNECTOR_NAME, f.lit(self._pipeline.name)),
            (connect_headers.TASK_ID, f.spark_partition_id().cast("string")),
            (connect_headers.STAGE, error["stage"]),
            (connect_headers.CLASS_NAME, error["class_name"]),
            (connect_headers.EXCEPTION_CLASS_NAME, error["exception_class_name"]),
            (connect_headers.EXCEPTION_MESSAGE, error["message"]),
            (connect_headers.EXCEPTION_STACKTRACE, f.lit(None).cast("string")),
        ]
        if is_part:
            error_headers.append((connect_headers.PART_WRITTEN, f.lit("true")))
        origin_headers = [
            (connect_headers.TOPIC, origin["topic"]),
            (connect_headers.PARTITION, origin["partition"].cast("string")),
            (connect_headers.OFFSET, origin["offset"].cast("string")),
        ]
        origin_part = f.when(origin.isNull(), empty).otherwise(_make_header_array(origin_headers))
        return f.concat(kept, origin_part, _make_header_array(error_headers))


def union_dead_letters(parts: PlanResult) -> DataFrame | None:
    """Return all dead letters of a batch or a stream. In a batch the frames' partitions are concatenated."""
    if not parts.dead:
        return None
    if len(parts.dead) == 1:
        return parts.dead[0]
    if parts.rows.isStreaming:
        return reduce(DataFrame.unionAll, parts.dead)
    return union_without_observations(parts.dead)


def _make_header_array(texts: Sequence[tuple[str, Column]]) -> Column:
    pairs = (f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts)
    return f.array(*pairs).cast(HEADERS_TYPE)


def _add_record(frame: DataFrame) -> DataFrame:
    """Add the source record to each row of a transform; a row without a single source record is added as JSON."""
    result = add_source_columns(frame, [_PREFIX + one for one in _RECORD])
    if result is not None:
        return result
    null_types = {"origin": ORIGIN_TYPE, "key": "binary", "headers": HEADERS_TYPE}
    record = {_PREFIX + name: f.lit(None).cast(data_type) for name, data_type in null_types.items()}
    row = f.to_json(f.struct(*(column(name) for name in frame.columns)), TIMESTAMP_OPTIONS)
    return frame.withColumns(record | {f"{_PREFIX}value": row.cast("binary")})


def _get_error() -> Column:
    return f.col(f"{_PREFIX}error")


def _count_read() -> Column:
    return f.count(f.lit(1)).alias(READ)


def _make_error(expectations: Sequence[Expectation]) -> Column | None:
    """Return the error of a row: its decoding error, or that of a violated expectation with action dead-letter or fail.

    None if there are no such expectations.
    """
    relevant = [expectation for expectation in expectations if expectation.settings.action in ("dead-letter", "fail")]
    if not relevant:
        return None
    error = f.lit(None).cast(ERROR_TYPE)
    for expectation in reversed(relevant):
        error = f.when(~_make_condition(expectation), _make_expectation_error(expectation)).otherwise(error)
    return f.when(_get_error().isNull(), error).otherwise(_get_error())


def _make_condition(expectation: Expectation) -> Column:
    """Return the condition that a row meets an expectation; null counts as false."""
    return f.coalesce(f.expr(expectation.settings.sql), f.lit(False))


def _make_expectation_error(expectation: Expectation) -> Column:
    """Return the error of a row that violates an expectation."""
    return f.struct(
        f.lit(FailureStage.TRANSFORMATION.value).alias("stage"),
        f.lit(expectation.name).alias("class_name"),
        f.lit(DATA_EXCEPTION).alias("exception_class_name"),
        f.lit(f"{expectation.table} violates {' '.join(expectation.settings.sql.split())}").alias("message"),
    ).cast(ERROR_TYPE)


def _make_violation_counts(expectations: Sequence[Expectation], of_rows: Column) -> list[Column]:
    """Return the counts of rows that violate each expectation."""
    return [f.count_if(of_rows & f.when(of_rows, ~_make_condition(one))).alias(one.name) for one in expectations]
