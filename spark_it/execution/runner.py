"""The `run` command: preflight, one streaming query with foreachBatch, restarts, reports."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odradek.spark_it.dead_letters import topic as dead_letter_topic
from odradek.spark_it.dead_letters.headers import BadRecordError
from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.definition.guarantees import TransactionKind, needs_stored_responses
from odradek.spark_it.definition.settings import AVAILABLE_NOW
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.execution import shared_folders
from odradek.spark_it.execution.backoff import Backoff
from odradek.spark_it.execution.batch import (
    BatchFunction,
    BatchOutcome,
    BatchWriter,
    StatefulBatches,
    StatelessBatches,
    StoppedError,
)
from odradek.spark_it.execution.preflight import (
    RefusedError,
    RunStart,
    check_topics,
    make_claim,
    plan_start,
    record_claim,
)
from odradek.spark_it.execution.reporter import Reporter
from odradek.spark_it.formats.stored_responses import begin_batch as begin_responses
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.kafka.requests import ClusterError
from odradek.spark_it.sinks.connectors import make_sink
from odradek.spark_it.sources.connectors import make_stream
from odradek.spark_it.sources.file_lines import make_locator
from odradek.spark_it.spark import session
from odradek.spark_it.spark.errors import describe_error, is_broker_unavailable, is_worker_not_started
from odradek.spark_it.spark.events import Events
from odradek.spark_it.spark.packages import PackagesError
from odradek.spark_it.spark.session import SessionError
from odradek.spark_it.state import checkpoint, new_partitions, pid_lock
from odradek.spark_it.state.lock import get_checkpoint_folder, read_lock
from odradek.spark_it.transforms.output_mode import find_output_mode
from odradek.spark_it.transforms.plan import Plan
from odradek.spark_it.validation import report
from odradek.spark_it.validation.spark_analysis import SparkAnalysis

LOG = "spark.log"
_POLL_S = 0.2
_STOP_TIMEOUT_S = 30.0
_EXIT_TIMEOUT_S = 2.0


class RunError(Exception):
    """A pipeline stopped; `str()` has the reason in one line."""


FAILURES: tuple[type[Exception], ...] = (
    RunError,
    ClusterError,
    PackagesError,
    RefusedError,
    SessionError,
    SinkError,
    SourceError,
)
"""Exceptions of a run that is refused or stops. `cli` also handles exceptions that it can import without Spark."""


@dataclass(frozen=True)
class Options:
    """Options of the command line. `master` overrides the key `master` of the pipeline's file; with `rewinds` the last
    batch is repeated."""

    is_available_now: bool = False
    master: str | None = None
    rewinds: bool = False


def run(
    pipeline: Pipeline,
    options: Options,
    log: Callable[[str], None],
    *,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a pipeline until `stop` is set by a signal or by the caller, or until all available records are processed.

    `log` is called with each line to print. A session that the caller passes is neither started nor stopped. Raises
    FAILURES, PipelineError, AlreadyRunningError, CheckpointError, LockError, OSError.
    """
    report.validate(pipeline)
    stop = stop or threading.Event()
    with pid_lock.hold_lock(pipeline.state_folder), contextlib.ExitStack() as stack:
        cluster = KafkaCluster(pipeline.settings)
        check_topics(pipeline, cluster)
        if options.rewinds:
            _rewind(pipeline, log)
        stack.enter_context(_stop_on_signals(stop))
        if spark is None:
            spark = session.build(pipeline, options.master, pipeline.state_folder / LOG)
            stack.callback(session.end, spark)
            # SparkContext installs its own handler for SIGINT.
            stack.enter_context(_stop_on_signals(stop))
        try:
            _PipelineRun(pipeline, options, spark, cluster, stop, log).run()
        except (PySparkException, Py4JError, ConnectionError) as error:
            is_gone = isinstance(error, Py4JNetworkError | ConnectionError)
            if session.has_ended(spark, within_s=_EXIT_TIMEOUT_S if is_gone else 0):
                log_file = pipeline.state_folder / LOG
                raise RunError(f"the Spark JVM exited unexpectedly; see {log_file}") from error
            raise RunError(_describe_error(error)) from error


def _rewind(pipeline: Pipeline, log: Callable[[str], None]) -> None:
    lock = read_lock(pipeline.state_folder)
    if lock is None:
        raise checkpoint.CheckpointError(f"{pipeline.name} has never run, so there is no batch to repeat")
    log(f"repeating batch {checkpoint.rewind(get_checkpoint_folder(pipeline.state_folder, lock))}")


@contextlib.contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT. Handlers can be installed only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


class _PipelineRun:
    """One run of a pipeline on an existing session."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: Options,
        spark: SparkSession,
        cluster: KafkaCluster,
        stop: threading.Event,
        log: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline.with_available_now() if options.is_available_now else pipeline
        self._is_available_now = self._pipeline.settings.trigger == AVAILABLE_NOW
        self._spark = spark
        self._cluster = cluster
        self._stop = stop
        self._log = log

    def run(self) -> None:
        pipeline = self._pipeline
        analysis = SparkAnalysis(self._spark)
        result = analysis(pipeline)
        pipeline_guarantee = report.validate(pipeline, lambda _: result)
        stateful, kind = result[0], pipeline_guarantee.transaction_kind
        if not session.is_local(self._spark.sparkContext.master or ""):
            shared_folders.check(pipeline, stateful, self._spark)
        start = plan_start(pipeline, stateful, self._cluster, int(time.time() * 1000))
        dead_letters = None
        if pipeline.errors.deadletterqueue_topic_name is not None:
            dead_letters = DeadLetterWriter(pipeline)
            if dead_letter_topic.create_if_missing(pipeline, self._cluster):
                self._log(f"dead-letter topic {dead_letters.topic} created")
        with contextlib.ExitStack() as stack:
            sink = make_sink(pipeline, kind, self._spark, dead_letters)
            stack.callback(sink.close)
            committing_cluster = None if kind is TransactionKind.OFFSETS else self._cluster
            reporter = stack.enter_context(
                Reporter(pipeline, committing_cluster, self._log, is_stateful=stateful is not None)
            )
            lock, errors, add_locations = start.lock, pipeline.errors, make_locator(pipeline)
            writer = BatchWriter(
                sink,
                dead_letters,
                errors,
                lock.generation,
                reporter.report_problem,
                self._stop,
                lock.state,
                add_locations,
            )
            try:
                writer.retry_until_done(lambda: sink.prepare(analysis.schema))
                owners = writer.retry_until_done(sink.read_owners)
                claim = make_claim(pipeline, start, writer.retry_until_done(sink.read_marker), owners)
                writer.retry_until_done(lambda: sink.claim(claim))
            except StoppedError:
                return
            record_claim(pipeline, start)
            self._log("started")
            self._run_until_end(
                lambda closing: self._start_query(writer, start, stateful, kind, closing), reporter, start
            )

    def _start_query(
        self,
        writer: BatchWriter,
        start: RunStart,
        stateful: str | None,
        kind: TransactionKind | None,
        closing: contextlib.ExitStack,
    ) -> tuple[StreamingQuery, BatchFunction]:
        """Start the query. `closing` gets the close functions of its sources, some of which work in the background."""
        pipeline, plan = self._pipeline, Plan(self._pipeline)
        responses = start.folder / "decisions" if needs_stored_responses(pipeline, kind) else None
        streams = {name: make_stream(name, pipeline, responses) for name in pipeline.sources}
        for stream in streams.values():
            closing.callback(stream.close)
        raw = {name: stream.read_stream(self._spark, start.starts.get(name)) for name, stream in streams.items()}
        if stateful is None and len(streams) == 1:
            [(name, stream)] = streams.items()
            batches: Batches = StatelessBatches(name, stream, plan, writer, has_ranges=kind is TransactionKind.OFFSETS)
            frame, mode = raw[name], "append"
        else:
            batches = streamed = StatefulBatches(plan, writer)
            frame = streamed.make_frame(
                self._spark, {name: stream.decode(raw[name]) for name, stream in streams.items()}
            )
            mode = find_output_mode(pipeline, frame)
        batch_function = BatchFunction(batches, self._stop, lambda batch_id: begin_responses(responses, batch_id))
        stream_writer = frame.writeStream.queryName(pipeline.name).outputMode(mode).foreachBatch(batch_function)
        # The state package reads the checkpoint from the local file system, whatever Hadoop's default file system is.
        stream_writer = stream_writer.option("checkpointLocation", f"file:{start.folder.absolute()}")
        if self._is_available_now:
            stream_writer = stream_writer.trigger(availableNow=True)
        else:
            stream_writer = stream_writer.trigger(processingTime=f"{pipeline.settings.trigger_ms} milliseconds")
        query = stream_writer.start()
        for stream in streams.values():
            stream.start_background_work(query)
        return query, batch_function

    def _run_until_end(
        self,
        start_query: Callable[[contextlib.ExitStack], tuple[StreamingQuery, BatchFunction]],
        reporter: Reporter,
        start: RunStart,
    ) -> None:
        """Run the query until it ends. Restart it from its checkpoint if the broker of a source is unavailable, if a
        Python worker does not start in time, or if Spark refuses a new partition. Raises RunError."""
        backoff = Backoff(self._pipeline.errors)
        while True:
            last_batch = reporter.batch
            with contextlib.ExitStack() as closing:
                failure = self._process_batches(*start_query(closing), reporter)
            if failure is None:
                return
            if new_partitions.is_refused(failure) and self._admit_new_partitions(start):
                continue
            if reporter.batch > last_batch:
                backoff.reset()
            reason = str(failure) if isinstance(failure, _KNOWN_FAILURES) else _describe_error(failure)
            transient = None if isinstance(failure, _KNOWN_FAILURES) else _find_transient_cause(failure)
            delay_s = backoff.next_delay_s() if transient else None
            if delay_s is None:
                reporter.report_problem(reason)
                raise RunError(reason) from failure
            reporter.report_problem(f"{transient}: {reason}; retrying in {delay_s:g} s")
            if self._stop.wait(delay_s):
                return

    def _admit_new_partitions(self, start: RunStart) -> bool:
        committing = (
            self._pipeline.name if start.lock.transaction_kind == TransactionKind.OFFSETS.name.lower() else None
        )
        admitted = new_partitions.admit(start.folder, self._cluster, committing)
        for (topic, partition), offset in sorted(admitted.items()):
            self._log(f"{topic}-{partition} is new and starts at offset {offset}")
        return bool(admitted)

    def _process_batches(
        self, query: StreamingQuery, batch_function: BatchFunction, reporter: Reporter
    ) -> BaseException | None:
        """Report batches until the query ends or `stop` is set; return the failure, if any."""
        failure: BaseException | None = None
        events = Events(query)
        try:
            try:
                while not self._stop.is_set() and not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                    reporter.process_events(events.read_new(), batch_function)
            except PySparkException as error:
                failure = error
            if self._stop.is_set() and failure is None:
                failure = self._stop_query(query, batch_function)
            reporter.process_events(events.read_new(), batch_function)
        except Exception:
            # The reporter failed, for example because the disk is full. The query must not continue without it.
            self._stop.set()
            if not session.has_ended(self._spark):
                with contextlib.suppress(PySparkException, Py4JError):
                    self._stop_query(query, batch_function)
            raise
        failure = failure and (batch_function.failure or failure)
        return None if isinstance(failure, StoppedError) else failure

    def _stop_query(self, query: StreamingQuery, batch_function: BatchFunction) -> BaseException | None:
        """Stop the query between two batches, and return the failure of the last batch, if any."""
        batch_function.wait_until_idle()
        give_up_at = time.monotonic() + _STOP_TIMEOUT_S
        # The sink has written the batch, but Spark has not yet committed it to the checkpoint.
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < give_up_at:
            time.sleep(_POLL_S / 10)
        query.stop()
        return batch_function.failure


def _find_transient_cause(failure: BaseException) -> str | None:
    """Return why a query failed that may succeed when it is started again; None if it would fail again."""
    if is_broker_unavailable(failure):
        return "a source's broker is unavailable"
    if is_worker_not_started(failure):
        return "a Python worker did not start within Spark's 10 s"
    return None


Batches = Callable[[DataFrame, int], BatchOutcome]
_KNOWN_FAILURES = (SinkError, BadRecordError)


def _describe_error(error: BaseException) -> str:
    if isinstance(error, PySparkException | Py4JError):
        return describe_error(error)
    return f"{type(error).__name__}: {error}"
