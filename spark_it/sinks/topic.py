"""The topic sink: rows become records, and each transaction of the batch is written exactly once (`transactions`).

**Offset transactions.** Partition i of the frame is computed from `batch.ranges[i]`, so a task writes the records that
it computes, without a shuffle. Dead letters belong to the same transactions. Few dead letters are computed first and
passed to the tasks; many are combined with the rows by a shuffle that preserves their order.

**Batch transactions.** The part of a record is determined by its key, or by its value if it has none. Within a part
records keep the order of the frame, if it has one; the content of a transaction does not depend on the order.
"""

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, FailureStage
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import TopicSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.markers import MarkerRenewal, Markers
from odradek.spark_it.exactly_once.slots import SinkTransaction
from odradek.spark_it.exactly_once.transactions import (
    TRANSACTION_TIMEOUT_MS,
    Clients,
    FencedError,
    SinkTransactionOutcome,
    fence_slot,
    is_transient,
)
from odradek.spark_it.interfaces.sink import Claim, SinkBatch, SinkError, WrittenCounts
from odradek.spark_it.kafka.record_sizes import find_size_limits
from odradek.spark_it.sinks.topic_origin import find_too_large_record
from odradek.spark_it.sinks.topic_records import HEADERS, OPTIONAL, RecordEncoder
from odradek.spark_it.sinks.topic_tasks import (
    OUTCOME_TYPE,
    PACKED_TYPE,
    TOO_LARGE_CLASS,
    TOO_LARGE_REMEDY,
    TopicTarget,
    TransactionFailure,
    pack_dead_letters,
    try_to_write,
    unpack_dead_letters,
    write_partition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.spark_it.dead_letters.writer import DeadLetterWriter

T = TypeVar("T")
R = TypeVar("R")

TRANSACTIONS_MS = (TRANSACTION_TIMEOUT_MS, 300_000, 900_000)
"""Values of transaction.timeout.ms, increased whenever a transaction is fenced, as it is after a timeout. The last one
is Kafka's default of transaction.max.timeout.ms. producer.override takes precedence."""
MAX_FENCED = len(TRANSACTIONS_MS)
"""A batch that is fenced this many times in a row stops the pipeline, because a second copy of it may run. A single
time may be caused by a task of an earlier attempt that Spark has not ended yet."""
MAX_PACKED_BYTES = 8 << 20
"""Maximum size of dead letters that are passed through the driver to the tasks of a batch."""
_THREADS = 8
_FENCE_S = 5.0
_WORKER_EXITED = ("Python worker exited unexpectedly", "ExecutorLostFailure", "IncompleteError: ")


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: "DeadLetterWriter | None"
) -> "TopicWriter":
    assert kind is not None
    return TopicWriter(pipeline, kind, spark)


class TopicWriter:
    """A `BatchSink` that writes batches to a topic, and their dead letters to another one in the same transactions."""

    takes_dead_letters = True

    def __init__(self, pipeline: Pipeline, kind: TransactionKind, spark: SparkSession) -> None:
        sink = pipeline.sink
        assert isinstance(sink, TopicSink)
        self._pipeline = pipeline
        self._sink = sink
        self._kind = kind
        self._spark = spark
        errors = pipeline.errors
        self._target = TopicTarget(
            pipeline.name,
            sink.topic,
            errors.deadletterqueue_topic_name,
            has_headers=sink.include_headers,
            has_context_headers=errors.deadletterqueue_context_headers_enable,
            tolerates=errors.tolerance == "all",
        )
        self._clients = Clients.of(pipeline.settings)
        self._markers = Markers(pipeline, kind, self._clients)
        self._lock = threading.Lock()
        self._renewal = MarkerRenewal(self._markers, self._clients, self._lock)
        self._records: RecordEncoder | None = None
        self._fenced_count = 0
        self._override = pipeline.settings.passed["producer.override."]
        self._transaction_ms = TRANSACTION_TIMEOUT_MS

    def prepare(self, schema: StructType) -> None:
        records = RecordEncoder(self._pipeline, self._sink, schema)
        records.check(self._spark, schema)
        self._check_topics()
        self._measure_topics()
        self._markers.prepare()
        self._records = records

    def _check_topics(self) -> None:
        """Raise SinkError for a missing topic, for which a producer would wait until a timeout."""
        try:
            consumer = self._clients.make_consumer(self._pipeline.name)
            try:
                for topic in filter(None, (self._target.topic, self._target.dead_topic)):
                    error = consumer.list_topics(topic, self._clients.timeout_s).topics[topic].error
                    if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise SinkError(f"topic {topic} does not exist ({error.str()}); create it")
                    if error is not None:
                        raise SinkError(f"cannot write topic {topic}: {error.str()}", is_retriable=is_transient(error))
            finally:
                consumer.close()
        except KafkaException as error:
            what = f"cannot look up topics at {self._clients.bootstrap_servers}: {error.args[0].str()}"
            raise SinkError(what, is_retriable=True) from None

    def _measure_topics(self) -> None:
        topics = [topic for topic in (self._target.topic, self._target.dead_topic) if topic is not None]
        clients, override = self._clients, self._pipeline.settings.passed["producer.override."]
        admin = {"bootstrap.servers": clients.bootstrap_servers, **clients.consumer_configuration}
        found = find_size_limits(topics, admin, override)
        self._target = self._target._replace(largest=found.largest)
        self._clients = replace(clients, producer_configuration=found.configuration)

    def read_marker(self) -> int:
        return self._markers.read_newest()

    def read_owners(self) -> set[str]:
        return self._markers.read_owners()

    def claim(self, claim: Claim) -> None:
        self._markers.claim(claim)
        # Not before the claim, because renewing a marker fences the copy of the pipeline that owns it.
        self._renewal.start()

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: SinkBatch) -> WrittenCounts:
        assert self._records is not None, "not prepared"
        records = self._records(rows)
        transactions = self._markers.make_transactions(batch)
        if not transactions:
            return WrittenCounts(0)
        # Renewing a marker fences the slot, so it must not run during these transactions.
        with self._lock:
            try:
                if self._kind is TransactionKind.OFFSETS:
                    results = self._write_ranges(records, dead, transactions)
                else:
                    results = self._write_transactions(
                        _partition_by_hash(records, dead, len(transactions)), transactions, {}
                    )
            except FencedError as error:
                self._fenced_count += 1
                self._increase_timeout()
                raise SinkError(str(error), is_retriable=self._fenced_count < MAX_FENCED) from None
        self._fenced_count = 0
        if any(isinstance(result, TransactionFailure) and not result.is_retriable for result in results.values()):
            self._raise_bad_record(records)
        return _sum_results(results)

    def _raise_bad_record(self, records: DataFrame) -> None:
        """Raise BadRecordError, with the source record, if a record is too large."""
        target = self._target
        max_bytes = target.largest.get(target.topic)
        if target.tolerates or max_bytes is None:
            return
        too_large_record = None
        with contextlib.suppress(PySparkException):  # the original error is raised instead
            too_large_record = find_too_large_record(records, max_bytes)
        if too_large_record is not None:
            origin, size = too_large_record
            message = (
                f"becomes a record of {size} bytes, but topic {target.topic} accepts {max_bytes}; {TOO_LARGE_REMEDY}"
            )
            raise BadRecordError(origin, Failure(FailureStage.TASK_PUT, "topic", TOO_LARGE_CLASS, message))

    def _increase_timeout(self) -> None:
        """Increase the transaction timeout for this batch and all later ones, which may be as large."""
        self._transaction_ms = next((ms for ms in TRANSACTIONS_MS if ms > self._transaction_ms), self._transaction_ms)
        configuration = {**self._clients.producer_configuration, "transaction.timeout.ms": str(self._transaction_ms)}
        self._clients = replace(self._clients, producer_configuration=configuration | self._override)

    def close(self) -> None:
        self._renewal.close()

    # Offset transactions

    def _write_ranges(
        self, records: DataFrame, dead: DataFrame | None, transactions: Sequence[SinkTransaction]
    ) -> "_Results":
        packed: _Packed | None = {}
        if dead is not None:
            packed = _pack_dead_letters(dead.select("key", "value", HEADERS), len(transactions))
        if packed is None:
            assert dead is not None
            return self._write_transactions(_partition_by_range(records, dead, len(transactions)), transactions, {})
        return self._write_transactions(records, transactions, packed, has_same_partitions=True)

    # Every transaction

    def _write_transactions(
        self,
        records: DataFrame,
        transactions: Sequence[SinkTransaction],
        packed: "_Packed",
        *,
        has_same_partitions: bool = False,
    ) -> "_Results":
        target, clients = self._target, self._clients

        def task(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            return write_partition(batches, transactions, packed, target, clients)

        written = records.mapInArrow(task, OUTCOME_TYPE)
        try:
            rows = (
                _collect(written)
                if not has_same_partitions or _count_partitions_per_range(written, records, len(transactions))
                else []
            )
        except BaseException:
            # Spark kills the other tasks without cleanup, and readers would wait for their open transactions.
            short_timeout_clients = replace(clients, timeout_s=_FENCE_S)
            _map_in_threads(transactions, lambda transaction: _try_to_fence(transaction, short_timeout_clients))
            raise
        outcomes: _Results = {
            row.transaction: SinkTransactionOutcome(row.rows, row.dead_letters, row.is_new)
            if row.error is None
            else TransactionFailure(row.error, row.is_retriable)
            for row in rows
        }
        # If Spark's optimizer detects an empty frame, it runs no tasks.
        missing = [index for index in range(len(transactions)) if index not in outcomes]
        if missing and outcomes:
            raise SinkError(f"Spark has run no tasks for transactions {missing} of the batch, but for others")
        results = _map_in_threads(
            missing, lambda i: try_to_write(transactions[i], unpack_dead_letters(packed.get(i, ()), target), clients)
        )
        return outcomes | dict(zip(missing, results, strict=True))


_Results = dict[int, SinkTransactionOutcome | TransactionFailure]
_Packed = Mapping[int, Sequence[bytes]]


def _try_to_fence(transaction: SinkTransaction, clients: Clients) -> None:
    """Fence a transaction's slot; ignore failures, because the next attempt fences, too."""
    with contextlib.suppress(SinkError):
        fence_slot(transaction.slot, clients)


def _map_in_threads(items: Sequence[T], function: Callable[[T], R]) -> list[R]:
    if not items:
        return []
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))


# Frames of records and dead letters


def _add_order(frame: DataFrame, parts: int, *, is_dead: bool) -> DataFrame:
    """Add columns with the range of each record and its order. A union of frames has all ranges, in order, for each
    frame."""
    missing = {name: f.lit(None).cast(kind) for name, kind in OPTIONAL.items() if name not in frame.columns}
    return frame.withColumns(missing).select(
        "key",
        "value",
        *OPTIONAL,
        f.lit(is_dead).alias("is_dead"),
        (f.spark_partition_id() % parts).alias("part"),
        f.monotonically_increasing_id().alias("order"),
    )


def _partition_by_range(records: DataFrame, dead: DataFrame, parts: int) -> DataFrame:
    """Return a frame whose partition i has the rows of partition i of both frames, in their order."""
    union = _add_order(records, parts, is_dead=False).unionByName(_add_order(dead, parts, is_dead=True))
    numbers = f.array(*map(f.lit, find_numbers_for_parts(parts)))
    return union.repartition(parts, f.get(numbers, f.col("part"))).sortWithinPartitions("order").drop("order")


def _partition_by_hash(records: DataFrame, dead: DataFrame | None, parts: int) -> DataFrame:
    """Return a frame whose partition i has the records whose key (value, if there is no key) has hash i."""
    union = _add_order(records, parts, is_dead=False)
    if dead is not None:
        union = union.unionByName(_add_order(dead, parts, is_dead=True))
    hash_column = f.coalesce("key", "value")
    # The same hash as `repartition` uses, as a column, so that a task can verify its partition.
    partitioned = union.withColumn("part", f.pmod(f.hash(hash_column), f.lit(parts)))
    return partitioned.repartition(parts, hash_column).sortWithinPartitions("order").drop("order")


def find_numbers_for_parts(parts: int) -> list[int]:
    """Return a number for each partition: Spark's `repartition(parts, column)` puts the i-th into partition i."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_murmur3(number) % parts, number)
        if len(found) == parts:
            return [found[part] for part in range(parts)]
    raise AssertionError("unreachable")


def _murmur3(number: int) -> int:
    """Return Spark's hash of a non-negative int. Source: org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt."""
    mask = 0xFFFFFFFF

    def rotate(bits: int, by: int) -> int:
        return (bits << by | bits >> 32 - by) & mask

    mixed = rotate(number * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    mixed = (rotate(42 ^ mixed, 13) * 5 + 0xE6546B64 & mask) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & mask
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & mask
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _pack_dead_letters(dead: DataFrame, parts: int) -> "_Packed | None":
    """Return packed dead letters by range; None if there are too many to pass them through the driver."""
    max_bytes = MAX_PACKED_BYTES // max(parts, dead.rdd.getNumPartitions())

    def task(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return pack_dead_letters(batches, parts, max_bytes)

    packed = dead.mapInArrow(task, PACKED_TYPE)
    found = defaultdict(list)
    for row in _collect(packed) if _count_partitions_per_range(packed, dead, parts) else []:
        if row.exceeds_limit:
            return None
        found[row.transaction].append(bytes(row.records))
    return found


def _count_partitions_per_range(made: DataFrame, of: DataFrame, parts: int) -> int:
    """Return the number of partitions per range, which is the number of frames in a union; 0 if there are no rows.

    Raises SinkError if the number of partitions is not a multiple of the number of ranges.
    """
    times, left = divmod(made.rdd.getNumPartitions(), parts)
    if times and not left:
        return times
    if of.isEmpty():
        return 0
    raise SinkError("the partitions of the rows do not match the source partitions; set stateful = true in a transform")


def _collect(frame: DataFrame) -> list[Row]:
    try:
        return frame.collect()
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        if found := re.search(r"FencedError: (.*)", text):
            raise FencedError(found[1]) from None
        if any(sign in text for sign in _WORKER_EXITED):
            raise SinkError("a worker process exited during a write", is_retriable=True) from None
        raise


def _sum_results(results: "_Results") -> WrittenCounts:
    failures = [result for result in results.values() if isinstance(result, TransactionFailure)]
    if failures:
        worst = min(failures, key=lambda failure: failure.is_retriable)
        raise SinkError(worst.error, is_retriable=worst.is_retriable)
    outcomes = [result for result in results.values() if isinstance(result, SinkTransactionOutcome)]
    return WrittenCounts(sum(one.rows for one in outcomes), sum(one.dead_letters for one in outcomes))
