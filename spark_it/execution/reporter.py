"""Reports after each batch: a log line, `progress.json`, metrics, and the group's offsets."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.execution.batch import BatchFunction, BatchOutcome
from odradek.spark_it.execution.metrics import MetricsServer
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.kafka.requests import ClusterError, ClusterRequests
from odradek.spark_it.spark.errors import describe_error
from odradek.spark_it.spark.events import Event
from odradek.spark_it.state.checkpoint import merge_lowest, parse_topic_offsets
from odradek.spark_it.state.lag import PartitionLag
from odradek.spark_it.state.progress import Progress, write_progress
from odradek.spark_it.transforms.plan import READ

NO_BATCH = -1


class Reporter:
    """Reporter of the progress of one run. `cluster` commits the offsets; it is None if the sink commits them.

    `report_problem` may be called from any thread, the other methods from one thread. An exception that leaves the
    `with` block is recorded, too.
    """

    def __init__(
        self, pipeline: Pipeline, cluster: ClusterRequests | None, log: Callable[[str], None], *, is_stateful: bool
    ) -> None:
        self._pipeline = pipeline
        self._cluster = cluster
        self._log = log
        self._is_stateful = is_stateful
        self._progress = Progress(batch=NO_BATCH, at_ms=_now_ms())
        self._drops = {(e.table, e.name) for e in pipeline.expectations if e.settings.action == "drop"}
        self._lags: list[PartitionLag] = []
        self._metrics: MetricsServer | None = None
        self._progress_lock = threading.Lock()

    @property
    def batch(self) -> int:
        """The newest completed batch of this run; NO_BATCH if there is none."""
        return self._progress.batch

    def __enter__(self) -> Self:
        settings = self._pipeline.settings
        host, port = settings.metrics_host, settings.metrics_port
        if port is not None:
            try:
                self._metrics = MetricsServer(self._pipeline.name, port, host)
            except OSError as error:
                where = f"metrics.host {host}, metrics.port {port}"
                raise OSError(error.errno, error.strerror, where) from None
            self._log(f"metrics on http://{host}:{self._metrics.port}/metrics")
        self._update()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if isinstance(error, Exception):
            with contextlib.suppress(OSError):
                self._record_error(describe_error(error))

    def report_problem(self, message: str) -> None:
        """Report a failure; the pipeline may continue after it."""
        self._log(message)
        self._record_error(message)

    def process_events(self, events: Iterable[Event], batch_function: BatchFunction) -> None:
        """Process Spark's events of batches since the last call."""
        for event in events:
            if event["batchId"] > self._progress.batch and "addBatch" in event["durationMs"]:
                self._report_batch(event, batch_function.take_outcome(event["batchId"]))

    def _report_batch(self, event: Event, outcome: BatchOutcome | None) -> None:
        batch = event["batchId"]
        if outcome is None:
            return
        observed = event.get("observedMetrics") or {}
        reads = [counts[READ] for counts in observed.values() if READ in counts]
        read = outcome.read if outcome.read is not None else sum(reads) if reads else event["numInputRows"]
        broken = Counter(outcome.broken)
        for table, counts in observed.items():
            broken.update({(table, name): count for name, count in counts.items() if name != READ and count})
        seconds = max(event["durationMs"].get("triggerExecution", 0), 1) / 1000
        dropped = sum(count for at, count in broken.items() if at in self._drops)
        if not self._is_stateful:
            # Records that SQL filters out count as dropped. The difference is negative after explode().
            dropped = max(0, read - outcome.written - outcome.dead_lettered)
        lags = _find_lags(event)
        self._commit(_find_reached_offsets(event))
        progress = self._progress
        self._update(
            lags,
            batch=batch,
            read=progress.read + read,
            written=progress.written + outcome.written,
            dead_lettered=progress.dead_lettered + outcome.dead_lettered,
            dropped=progress.dropped + dropped,
            rows_per_second=read / seconds,
        )
        texts = [f"{outcome.written:,} written"]
        other_counts = ((outcome.dead_lettered, "dead letters"), (dropped, "dropped"))
        texts += [f"{count:,} {what}" for count, what in other_counts if count]
        lag_text = f", lag {sum(lag.lag for lag in lags):,}" if lags else ""
        self._log(f"batch {batch}: {read:,} read, {', '.join(texts)} in {seconds:.1f} s{lag_text}")
        for (table, name), count in sorted(broken.items()):
            self._log(f"  {count:,} rows of {table} violate expectation {name}")

    def _commit(self, reached: Mapping[TopicPartition, int]) -> None:
        if self._cluster is None or not reached:
            return
        try:
            self._cluster.commit(self._pipeline.name, reached)
        except ClusterError as error:
            # The next batch commits newer offsets; the pipeline itself continues from its checkpoint.
            self.report_problem(str(error))

    def _record_error(self, message: str) -> None:
        self._update(last_error=message, last_error_at_ms=_now_ms())

    def _update(self, lags: list[PartitionLag] | None = None, **changed: Any) -> None:
        with self._progress_lock:
            self._lags = self._lags if lags is None else lags
            self._progress = replace(self._progress, at_ms=_now_ms(), **changed)
            write_progress(self._pipeline.state_folder, self._progress)
            if self._metrics is not None:
                self._metrics.update(self._progress, self._lags)


def _find_reached_offsets(event: Event) -> dict[TopicPartition, int]:
    """Return the end offset of the batch in each partition; the lowest if several sources read the partition."""
    return merge_lowest(_parse_offsets(source.get("endOffset")) for source in event["sources"])


def _find_lags(event: Event) -> list[PartitionLag]:
    """Return the lag after a batch. Spark does not report the end of a topic for a repeated batch."""
    ends: list[dict[TopicPartition, int]] = []
    latest: dict[TopicPartition, int] = {}
    for source in event["sources"]:
        if latest_offsets := _parse_offsets(source.get("latestOffset")):
            ends.append(_parse_offsets(source.get("endOffset")))
            latest |= latest_offsets
    return [PartitionLag(*at, end, end, 0, latest.get(at, end)) for at, end in sorted(merge_lowest(ends).items())]


def _parse_offsets(offsets: Any) -> dict[TopicPartition, int]:
    try:
        return parse_topic_offsets(json.dumps(offsets))
    except (ValueError, TypeError):
        return {}  # offsets of a source other than a topic


def _now_ms() -> int:
    return int(time.time() * 1000)
