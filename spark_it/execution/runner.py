"""Runs a pipeline: preflight, one streaming query with foreachBatch, restarts, reports."""

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
from odradek.spark_it.definition.guarantees import TransactionKind, decides_by_registry
from odradek.spark_it.definition.settings import AVAILABLE_NOW
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.execution import shared_folders
from odradek.spark_it.execution.backoff import Backoff
from odradek.spark_it.execution.batch import (
    BatchFunction,
    BatchOutcome,
    BatchWriter,
    RawBatches,
    StoppedError,
    StreamBatches,
)
from odradek.spark_it.execution.preflight import RefusedError, Start, begin, check_topics, settle, take
from odradek.spark_it.execution.reporter import Reporter
from odradek.spark_it.formats.decisions import begin as begin_decisions
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.kafka.cluster import Cluster
from odradek.spark_it.kafka.group import ClusterError
from odradek.spark_it.sinks.connectors import sink_of
from odradek.spark_it.sources.connectors import stream_of
from odradek.spark_it.sources.file_lines import locator
from odradek.spark_it.spark import session
from odradek.spark_it.spark.errors import is_broker_away, readable
from odradek.spark_it.spark.events import Events
from odradek.spark_it.spark.packages import PackagesError
from odradek.spark_it.spark.session import SessionError
from odradek.spark_it.state import checkpoint, new_partitions, pid_lock
from odradek.spark_it.state.lock import checkpoint_folder, read_lock
from odradek.spark_it.transforms.output_mode import output_mode
from odradek.spark_it.transforms.plan import Plan
from odradek.spark_it.validation import report
from odradek.spark_it.validation.spark_analysis import Analysis

LOG = "spark.log"
_POLL_S = 0.2
_BOUNDARY_S = 30.0
_ENDS_S = 2.0


class RunError(Exception):
    """The reason why a pipeline stopped, in one line."""


FAILURES: tuple[type[Exception], ...] = (
    RunError,
    ClusterError,
    PackagesError,
    RefusedError,
    SessionError,
    SinkError,
    SourceError,
)
"""What keeps a pipeline from running or stops it, beside what `cli` knows without Spark."""


@dataclass(frozen=True)
class Options:
    """Options of the command line. `master` overrides the file's."""

    is_available_now: bool = False
    master: str | None = None
    rewinds: bool = False


def run(
    pipeline: Pipeline,
    options: Options,
    said: Callable[[str], None],
    *,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a pipeline until `stop` is set, by a signal or by the caller, or all available records are processed.

    `said` gets lines for people. A session that the caller passes is neither started nor stopped. Raises FAILURES,
    PipelineError, AlreadyRunningError, CheckpointError, LockError, OSError.
    """
    report.validate(pipeline)
    stop = stop or threading.Event()
    with pid_lock.exclusively(pipeline.state_folder), contextlib.ExitStack() as stack:
        cluster = Cluster(pipeline.settings)
        check_topics(pipeline, cluster)
        if options.rewinds:
            _rewind(pipeline, said)
        stack.enter_context(_stopped_by_signals(stop))
        if spark is None:
            spark = session.build(pipeline, options.master, pipeline.state_folder / LOG)
            stack.callback(session.end, spark)
            # Spark's context has put itself in the way of SIGINT.
            stack.enter_context(_stopped_by_signals(stop))
        try:
            _Run(pipeline, options, spark, cluster, stop, said).run()
        except (PySparkException, Py4JError, ConnectionError) as error:
            is_gone = isinstance(error, Py4JNetworkError | ConnectionError)
            if session.has_ended(spark, within_s=_ENDS_S if is_gone else 0):
                log = pipeline.state_folder / LOG
                raise RunError(f"Java, which Spark runs in, has ended by itself; what it said is in {log}") from error
            raise RunError(_readable(error)) from error


def _rewind(pipeline: Pipeline, said: Callable[[str], None]) -> None:
    lock = read_lock(pipeline.state_folder)
    if lock is None:
        raise checkpoint.CheckpointError(f"{pipeline.name} has never run, so there is no batch to repeat")
    said(f"batch {checkpoint.rewind(checkpoint_folder(pipeline.state_folder, lock))} is repeated")


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask the pipeline to stop; only the main thread of a process hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """One run on a session that is there."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: Options,
        spark: SparkSession,
        cluster: Cluster,
        stop: threading.Event,
        said: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline.with_available_now() if options.is_available_now else pipeline
        self._is_available_now = self._pipeline.settings.trigger == AVAILABLE_NOW
        self._spark = spark
        self._cluster = cluster
        self._stop = stop
        self._said = said

    def run(self) -> None:
        pipeline = self._pipeline
        look = Analysis(self._spark)
        found = look(pipeline)
        guaranteed = report.validate(pipeline, lambda _: found)
        stateful, of = found[0], guaranteed.transaction_kind
        if not session.is_local(self._spark.sparkContext.master or ""):
            shared_folders.check(pipeline, stateful, self._spark)
        began = begin(pipeline, stateful, self._cluster, int(time.time() * 1000))
        dead_letters = None
        if pipeline.errors.deadletterqueue_topic_name is not None:
            dead_letters = DeadLetterWriter(pipeline)
            if dead_letter_topic.create_if_missing(pipeline, self._cluster):
                self._said(f"dead-letter topic {dead_letters.topic} is created")
        with contextlib.ExitStack() as stack:
            sink = sink_of(pipeline, of, self._spark, dead_letters)
            stack.callback(sink.close)
            group = None if of is TransactionKind.OFFSETS else self._cluster
            reporter = stack.enter_context(Reporter(pipeline, group, self._said, is_stateful=stateful is not None))
            lock, errors, located = began.lock, pipeline.errors, locator(pipeline)
            writer = BatchWriter(
                sink, dead_letters, errors, lock.generation, reporter.problem, self._stop, lock.state, located
            )
            try:
                writer.until_done(lambda: sink.prepare(look.schema))
                owners = writer.until_done(sink.owners)
                claim = take(pipeline, began, writer.until_done(sink.recorded), owners)
                writer.until_done(lambda: sink.claim(claim))
            except StoppedError:
                return
            settle(pipeline, began)
            self._said("runs")
            self._until_ended(lambda streams: self._started(writer, began, stateful, of, streams), reporter, began)

    def _started(
        self,
        writer: BatchWriter,
        began: Start,
        stateful: str | None,
        of: TransactionKind | None,
        closing: contextlib.ExitStack,
    ) -> tuple[StreamingQuery, BatchFunction]:
        """Starts the query; `closing` ends what its sources do beside it."""
        pipeline, plan = self._pipeline, Plan(self._pipeline)
        decisions = began.folder / "decisions" if decides_by_registry(pipeline, of) else None
        streams = {name: stream_of(name, pipeline, decisions) for name in pipeline.sources}
        for stream in streams.values():
            closing.callback(stream.close)
        raw = {name: stream.raw(self._spark, began.starts.get(name)) for name, stream in streams.items()}
        if stateful is None and len(streams) == 1:
            [(name, stream)] = streams.items()
            batches: Batches = RawBatches(name, stream, plan, writer, has_ranges=of is TransactionKind.OFFSETS)
            frame, mode = raw[name], "append"
        else:
            batches = streamed = StreamBatches(plan, writer)
            frame = streamed.frame(self._spark, {name: stream.decoded(raw[name]) for name, stream in streams.items()})
            mode = output_mode(pipeline, frame)
        guarded = BatchFunction(batches, self._stop, lambda batch_id: begin_decisions(decisions, batch_id))
        query = frame.writeStream.queryName(pipeline.name).outputMode(mode).foreachBatch(guarded)
        # Where this process looks as well, whatever Hadoop's default file system is.
        query = query.option("checkpointLocation", f"file:{began.folder.absolute()}")
        if self._is_available_now:
            query = query.trigger(availableNow=True)
        else:
            query = query.trigger(processingTime=f"{pipeline.settings.trigger_ms} milliseconds")
        run = query.start()
        for stream in streams.values():
            stream.started(run)
        return run, guarded

    def _until_ended(
        self,
        start: Callable[[contextlib.ExitStack], tuple[StreamingQuery, BatchFunction]],
        reporter: Reporter,
        began: Start,
    ) -> None:
        """Follow a query, and restart it from its checkpoint after a topic's broker was away or Spark refused a new
        partition. Raises RunError."""
        patience = Backoff(self._pipeline.errors)
        while True:
            before = reporter.batch
            with contextlib.ExitStack() as streams:
                failure = self._followed(*start(streams), reporter)
            if failure is None:
                return
            if new_partitions.is_refused(failure) and self._admits_new_partitions(began):
                continue
            if reporter.batch > before:
                patience.renew()
            why = str(failure) if isinstance(failure, _OWN) else _readable(failure)
            is_away = not isinstance(failure, _OWN) and is_broker_away(failure)
            delay_s = patience.delay_s() if is_away else None
            if delay_s is None:
                reporter.problem(why)
                raise RunError(why) from failure
            reporter.problem(f"a source's broker does not answer: {why}; tried again in {delay_s:g} s")
            if self._stop.wait(delay_s):
                return

    def _admits_new_partitions(self, began: Start) -> bool:
        committing = (
            self._pipeline.name if began.lock.transaction_kind == TransactionKind.OFFSETS.name.lower() else None
        )
        admitted = new_partitions.admit(began.folder, self._cluster, committing)
        for (topic, partition), offset in sorted(admitted.items()):
            self._said(f"{topic}-{partition} is new and begins at offset {offset}")
        return bool(admitted)

    def _followed(self, query: StreamingQuery, guarded: BatchFunction, reporter: Reporter) -> BaseException | None:
        """Takes in batches until the query ends; what it failed with, if it did."""
        failure: BaseException | None = None
        events = Events(query)
        try:
            try:
                while not self._stop.is_set() and not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                    reporter.take(events.new(), guarded)
            except PySparkException as error:
                failure = error
            if self._stop.is_set() and failure is None:
                failure = self._stopped(query, guarded)
            reporter.take(events.new(), guarded)
        except Exception:
            # Such as a full disk. The query must not go on by itself.
            self._stop.set()
            if not session.has_ended(self._spark):
                with contextlib.suppress(PySparkException, Py4JError):
                    self._stopped(query, guarded)
            raise
        failure = failure and (guarded.failure or failure)
        return None if isinstance(failure, StoppedError) else failure

    def _stopped(self, query: StreamingQuery, guarded: BatchFunction) -> BaseException | None:
        """Ends the query where no batch is half done, and says what went wrong if something did."""
        guarded.wait_until_idle()
        give_up_at = time.monotonic() + _BOUNDARY_S
        # The batch is written; Spark has yet to put down that it is done.
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < give_up_at:
            time.sleep(_POLL_S / 10)
        query.stop()
        return guarded.failure


Batches = Callable[[DataFrame, int], BatchOutcome]
_OWN = (SinkError, BadRecordError)


def _readable(error: BaseException) -> str:
    if isinstance(error, PySparkException | Py4JError):
        return readable(error)
    return f"{type(error).__name__}: {error}"
