"""Runs the `[[test]]` cases of a pipeline file as streaming queries with the pipeline's plan, without its sources and
sink.

Given rows are lines of files that Spark's file source reads. In a stateful pipeline a row that is older than the
watermark of the preceding rows starts a new batch, after an empty one; therefore lateness depends only on the order of
the rows. After all rows follows a batch without rows whose watermark is the year 9999, so that all windows close. It is
written into the checkpoint as if Spark had planned it.
"""

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.cases.inputs import CaseError, CaseInput
from odradek.spark_it.cases.rows import find_differences
from odradek.spark_it.dead_letters.bad_records import find_bad_record
from odradek.spark_it.dead_letters.headers import BadRecordError
from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.spec import Case, Pipeline
from odradek.spark_it.formats.format import FormatError
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.spark.columns import column
from odradek.spark_it.spark.errors import describe_error, is_worker_not_started
from odradek.spark_it.spark.internals import has_logical_node
from odradek.spark_it.transforms.output_mode import find_output_mode
from odradek.spark_it.transforms.plan import Plan, PlanResult, union_dead_letters

_TIMEOUT_S = 300
_STARTS = 3
_END_OF_TIME_MS = 253_402_300_799_000


@dataclass(frozen=True)
class CaseResult:
    """The result of a case; `problems` is empty if it passed."""

    name: str
    problems: tuple[str, ...]


def run(pipeline: Pipeline, spark: SparkSession, stateful: str | None) -> Iterator[CaseResult]:
    """Run the cases one after the other, each in a new session of the same SparkContext.

    `stateful` is the reason why the pipeline is stateful, as returned by `SparkAnalysis`.
    """
    for case in pipeline.cases:
        folder = Path(tempfile.mkdtemp(prefix=f"odradek-test-{pipeline.name}-"))
        try:
            problems: tuple[str, ...] = tuple(
                _CaseRun(pipeline, case, _make_session(spark), folder, stateful).find_problems()
            )
        except (CaseError, FormatError, SourceError) as error:
            problems = (str(error),)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        yield CaseResult(case.name, problems)


def _make_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    return session


class _CaseRun:
    """One run of a case; all of its files are in `folder`."""

    def __init__(self, pipeline: Pipeline, case: Case, spark: SparkSession, folder: Path, stateful: str | None) -> None:
        self._pipeline = pipeline
        self._case = case
        self._spark = spark
        self._folder = folder
        self._is_streaming = stateful is not None or len(pipeline.sources) > 1
        self._has_watermark = self._is_streaming and any(
            source.watermark_column is not None for source in pipeline.sources.values()
        )
        self._given = {name.casefold(): rows for name, rows in case.given.items()}
        # Without a dead-letter topic a bad record stops the pipeline, and therefore the case.
        self._plan = Plan(pipeline)

    def find_problems(self) -> Iterator[str]:
        inputs = {name: CaseInput(self._pipeline, name, self._spark, self._folder) for name in self._pipeline.sources}
        for name, case_input in inputs.items():
            case_input.write(self._given.get(name.casefold(), ()), separates_late_rows=self._is_streaming)
        try:
            outputs = self._run_stateful(inputs) if self._is_streaming else self._run_stateless(inputs)
        except BadRecordError as error:
            yield f"the pipeline stops: {error}"
            return
        except PySparkException as error:
            bad = find_bad_record(error)
            yield f"the pipeline stops: {bad or describe_error(error)}"
            return
        for table, expected in self._case.expect.items():
            rows, schema = outputs.rows[table]
            lines_ = [*find_differences(expected, rows, schema)]
            if lines_:
                yield f"{table or 'input of the sink'}: {lines_[0]}"
                yield from lines_[1:]
        if self._case.dead_letters is not None and outputs.dead != self._case.dead_letters:
            yield f"dead letters: {self._case.dead_letters} expected, got {outputs.dead}"

    def _run_stateless(self, inputs: Mapping[str, CaseInput]) -> "_Outputs":
        """Run the case as `execution.batch.StatelessBatches` runs a stateless pipeline."""
        [(name, case_input)] = inputs.items()
        outputs = _Outputs()

        def collect(raw: DataFrame, _: int) -> None:
            parts = self._plan.apply(raw.sparkSession, {name: case_input.decode(raw)})
            self._collect_outputs(parts, outputs)

        self._run_query(case_input.read_stream(), "append", collect, "all")
        if not outputs.rows:
            # Without a batch there are no rows, but the columns are still compared.
            nothing: list[tuple[str]] = []
            frame = case_input.decode(self._spark.createDataFrame(nothing, "value STRING"))
            self._collect_outputs(self._plan.apply(self._spark, {name: frame}), outputs)
        return outputs

    def _collect_outputs(self, parts: PlanResult, outputs: "_Outputs") -> None:
        for name in self._case.expect:
            frame = _get_frame(parts, name)
            outputs.add(name, _collect_json(frame), frame.schema)
        dead = union_dead_letters(parts)
        if dead is not None and self._case.dead_letters is not None:
            outputs.dead += dead.count()

    def _run_stateful(self, inputs: Mapping[str, CaseInput]) -> "_Outputs":
        """Run the case as `execution.batch.StatefulBatches` runs a stateful pipeline, with a query per compared
        table."""
        outputs = _Outputs()
        decoded = {name: case_input.decode(case_input.read_stream()) for name, case_input in inputs.items()}
        parts = self._plan.apply(self._spark, decoded)
        for name in self._case.expect:
            frame = _get_frame(parts, name)
            is_sink_input = name is None or name.casefold() == (self._pipeline.sink_input or "").casefold()
            mode = find_output_mode(self._pipeline, frame) if is_sink_input else _find_mode(frame)
            batches: list[list[str]] = []

            def collect(batch: DataFrame, _: int, batches: list[list[str]] = batches) -> None:
                batches.append(_collect_json(batch))

            self._run_query(frame, mode, collect, f"of-{name or ''}")
            sink = self._pipeline.sink
            keys = sink.pk_fields if isinstance(sink, JdbcSink) else ()
            outputs.add(
                name, merge_by_keys(batches, keys) if mode == "update" else [*itertools.chain(*batches)], frame.schema
            )
        dead = union_dead_letters(parts)
        if dead is not None and self._case.dead_letters is not None:

            def count(batch: DataFrame, _: int) -> None:
                outputs.dead += batch.count()

            self._run_query(dead, find_output_mode(self._pipeline, dead), count, "dead")
        return outputs

    def _run_query(self, frame: DataFrame, mode: str, take: Callable[[DataFrame, int], None], name: str) -> None:
        failures: list[BaseException] = []

        def guarded(batch: DataFrame, batch_id: int) -> None:
            try:
                take(batch, batch_id)
            except BaseException as error:
                failures.append(find_bad_record(error) or error)
                raise RuntimeError(f"batch {batch_id} failed") from None

        def run_to_end() -> None:
            for starts_left in range(_STARTS - 1, -1, -1):
                try:
                    self._run_to_end(frame, mode, guarded, checkpoint)
                    break
                except PySparkException as error:
                    # The query continues at its checkpoint. A batch that `take` has received is not repeated.
                    if failures or not starts_left or not is_worker_not_started(error):
                        raise

        checkpoint = self._folder / "checkpoint" / name
        try:
            run_to_end()
            if self._has_watermark and _close_windows(checkpoint):
                run_to_end()
        except PySparkException as error:
            failure = failures[0] if failures else error
            if isinstance(failure, Exception):
                raise failure from None
            raise

    def _run_to_end(
        self, frame: DataFrame, mode: str, take: Callable[[DataFrame, int], None], checkpoint: Path
    ) -> None:
        writer = frame.writeStream.outputMode(mode).foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            if not query.awaitTermination(_TIMEOUT_S):
                raise CaseError(f"the case did not finish within {_TIMEOUT_S} s")
        finally:
            query.stop()


def merge_by_keys(batches: Sequence[Sequence[str]], keys: Sequence[str]) -> list[str]:
    """Return the final rows of a sink that replaces rows by key; rows are JSON."""
    folded = [key.casefold() for key in keys]
    rows: dict[str, str] = {}
    for row in itertools.chain(*batches):
        read = {name.casefold(): value for name, value in json.loads(row).items()}
        rows[json.dumps([read.get(key) for key in folded]) if keys else row] = row
    return list(rows.values())


class _Outputs:
    """Rows as JSON and their schema, by table as in `Case.expect`."""

    def __init__(self) -> None:
        self.rows: dict[str | None, tuple[list[str], t.StructType]] = {}
        self.dead = 0

    def add(self, name: str | None, rows: Sequence[str], schema: t.StructType) -> None:
        before = self.rows[name][0] if name in self.rows else []
        self.rows[name] = ([*before, *rows], schema)


def _get_frame(parts: PlanResult, name: str | None) -> DataFrame:
    return parts.rows if name is None else parts.steps[name.casefold()]


def _find_mode(frame: DataFrame) -> str:
    """Return the output mode for a table other than the sink's input: aggregates without watermark need update."""
    has_aggregates, has_watermark = (has_logical_node(frame, node) for node in ("Aggregate", "EventTimeWatermark"))
    return "update" if has_aggregates and not has_watermark else "append"


def _collect_json(frame: DataFrame) -> list[str]:
    row = f.to_json(f.struct(*(column(name) for name in frame.columns)), TIMESTAMP_OPTIONS)
    return [text for (text,) in frame.select(row).collect()]


def _close_windows(checkpoint: Path) -> bool:
    """Plan another batch, without rows and with a watermark in the year 9999; return false if there was no batch."""
    offsets = checkpoint / "offsets"
    planned = sorted(int(path.name) for path in offsets.iterdir() if path.name.isdigit()) if offsets.is_dir() else []
    if not planned:
        return False
    version, metadata, *source_lines = (offsets / str(planned[-1])).read_text("utf-8").split("\n")
    batch = json.loads(metadata)
    batch["batchWatermarkMs"] = _END_OF_TIME_MS
    (offsets / str(planned[-1] + 1)).write_text("\n".join([version, json.dumps(batch), *source_lines]), "utf-8")
    return True


def make_report(results: Sequence[CaseResult]) -> Iterator[str]:
    """Yield the lines of the report about the cases."""
    for result in results:
        yield f"test {result.name}: {'failed' if result.problems else 'passed'}"
        yield from (f"  {line}" for line in result.problems)
    if not results:
        yield "the file has no tests"
        return
    failed = sum(1 for result in results if result.problems)
    yield f"{len(results) - failed} of {len(results)} {'test' if len(results) == 1 else 'tests'} passed"
