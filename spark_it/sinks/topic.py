"""The topic sink: rows become records, and each transaction of the batch is written exactly once (`transactions`).

**Offset transactions.** Partition i of the frame is made of `batch.ranges[i]`, so a task writes what it computes,
without a shuffle. Dead letters belong to the same transactions. Few dead letters are computed first and passed to the
tasks; many are brought together with the rows by a shuffle that keeps their order.

**Batch transactions.** The part of a record follows from its key, or from its value if it has none. Within a part
records keep the order of the frame, if it has one; the content of a transaction does not depend on it.
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

from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, Stage
from odradek.spark_it.definition.guarantees import TransactionKind
from odradek.spark_it.definition.sink_keys import TopicSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.markers import MarkerRenewal, Markers
from odradek.spark_it.exactly_once.slots import SinkTransaction
from odradek.spark_it.exactly_once.transactions import (
    TRANSACTION_MS,
    Clients,
    FencedError,
    TransactionOutcome,
    fence,
    is_passing,
)
from odradek.spark_it.interfaces.sink import Batch, Claim, SinkError, Written
from odradek.spark_it.kafka.record_sizes import sizes
from odradek.spark_it.sinks.topic_origin import too_large
from odradek.spark_it.sinks.topic_records import HEADERS, OPTIONAL, RecordMaker
from odradek.spark_it.sinks.topic_tasks import (
    OUTCOME_TYPE,
    PACKED_TYPE,
    TOO_LARGE,
    WHAT_HELPS,
    TopicTarget,
    TransactionFailure,
    attempt,
    pack,
    unpacked,
    write_partition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.spark_it.dead_letters.writer import DeadLetterWriter

T = TypeVar("T")
R = TypeVar("R")

TRANSACTIONS_MS = (TRANSACTION_MS, 300_000, 900_000)
"""What a transaction may take, longer after each time that one was overtaken, as it is when it takes too long. The last
is Kafka's default of `transaction.max.timeout.ms`. What producer.override says goes before it."""
OVERTAKEN_MOST = len(TRANSACTIONS_MS)
"""A batch that is overtaken as often in a row stops the pipeline, as a second copy of it may run. Before that it may be
a task of an earlier try that Spark has yet to end."""
FEW_BYTES = 8 << 20
"""As many dead letters go over the driver to the tasks of a batch."""
_THREADS = 8
_FENCE_S = 5.0
_WORKER_IS_GONE = ("Python worker exited unexpectedly", "ExecutorLostFailure", "IncompleteError: ")


def make(
    pipeline: Pipeline, kind: TransactionKind | None, spark: SparkSession, dead_letters: "DeadLetterWriter | None"
) -> "TopicWriter":
    assert kind is not None
    return TopicWriter(pipeline, kind, spark)


class TopicWriter:
    """Writes batches to a topic, and their dead letters to another in the same transactions."""

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
            says_why=errors.deadletterqueue_context_headers_enable,
            tolerates=errors.tolerance == "all",
        )
        self._clients = Clients.of(pipeline.settings)
        self._markers = Markers(pipeline, kind, self._clients)
        self._lock = threading.Lock()
        self._keeper = MarkerRenewal(self._markers, self._clients, self._lock)
        self._records: RecordMaker | None = None
        self._overtaken = 0
        self._override = pipeline.settings.passed["producer.override."]
        self._transaction_ms = TRANSACTION_MS

    def prepare(self, schema: StructType) -> None:
        records = RecordMaker(self._pipeline, self._sink, schema)
        records.check(self._spark, schema)
        self._check_topics()
        self._measure_topics()
        self._markers.prepare()
        self._records = records

    def _check_topics(self) -> None:
        """Each topic is there: producing to one that is not would wait for it."""
        try:
            consumer = self._clients.consumer(self._pipeline.name)
            try:
                for topic in filter(None, (self._target.topic, self._target.dead_topic)):
                    error = consumer.list_topics(topic, self._clients.timeout_s).topics[topic].error
                    if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise SinkError(f"topic {topic} does not exist ({error.str()}); create it")
                    if error is not None:
                        raise SinkError(f"cannot write topic {topic}: {error.str()}", is_retriable=is_passing(error))
            finally:
                consumer.close()
        except KafkaException as error:
            what = f"cannot look up topics at {self._clients.bootstrap_servers}: {error.args[0].str()}"
            raise SinkError(what, is_retriable=True) from None

    def _measure_topics(self) -> None:
        topics = [topic for topic in (self._target.topic, self._target.dead_topic) if topic is not None]
        clients, override = self._clients, self._pipeline.settings.passed["producer.override."]
        admin = {"bootstrap.servers": clients.bootstrap_servers, **clients.consumer_configuration}
        found = sizes(topics, admin, override)
        self._target = self._target._replace(largest=found.largest)
        self._clients = replace(clients, producer_configuration=found.configuration)

    def recorded(self) -> int:
        return self._markers.newest()

    def owners(self) -> set[str]:
        return self._markers.owners()

    def claim(self, claim: Claim) -> None:
        self._markers.claim(claim)
        # Not earlier: renewing a marker would interrupt the copy that it belongs to.
        self._keeper.start()

    def write(self, rows: DataFrame, dead: DataFrame | None, batch: Batch) -> Written:
        assert self._records is not None, "not prepared"
        records = self._records(rows)
        transactions = self._markers.transactions(batch)
        if not transactions:
            return Written(0)
        # Renewing a marker is an attempt too, and must not overtake one of these.
        with self._lock:
            try:
                if self._kind is TransactionKind.OFFSETS:
                    results = self._write_ranges(records, dead, transactions)
                else:
                    results = self._run(_by_hash(records, dead, len(transactions)), transactions, {})
            except FencedError as error:
                self._overtaken += 1
                self._give_longer()
                raise SinkError(str(error), is_retriable=self._overtaken < OVERTAKEN_MOST) from None
        self._overtaken = 0
        if any(isinstance(result, TransactionFailure) and not result.is_retriable for result in results.values()):
            self._blame(records)
        return _sum(results)

    def _blame(self, records: DataFrame) -> None:
        """Raises BadRecordError if it is a record of the source that stops the pipeline."""
        target = self._target
        most_bytes = target.largest.get(target.topic)
        if target.tolerates or most_bytes is None:
            return
        found = None
        with contextlib.suppress(PySparkException):  # what there is to say has been said
            found = too_large(records, most_bytes)
        if found is not None:
            origin, size = found
            about = f"becomes one of {size} bytes, and topic {target.topic} takes {most_bytes}; {WHAT_HELPS}"
            raise BadRecordError(origin, Failure(Stage.TASK_PUT, "topic", TOO_LARGE, about))

    def _give_longer(self) -> None:
        """TransactionKind that are large stay so: the next ones get as long."""
        self._transaction_ms = next((ms for ms in TRANSACTIONS_MS if ms > self._transaction_ms), self._transaction_ms)
        said = {**self._clients.producer_configuration, "transaction.timeout.ms": str(self._transaction_ms)}
        self._clients = replace(self._clients, producer_configuration=said | self._override)

    def close(self) -> None:
        self._keeper.close()

    # Offset transactions

    def _write_ranges(
        self, records: DataFrame, dead: DataFrame | None, transactions: Sequence[SinkTransaction]
    ) -> "_Results":
        packed: _Packed | None = {}
        if dead is not None:
            packed = _packed(dead.select("key", "value", HEADERS), len(transactions))
        if packed is None:
            assert dead is not None
            return self._run(_by_range(records, dead, len(transactions)), transactions, {})
        return self._run(records, transactions, packed, is_narrow=True)

    # Every transaction

    def _run(
        self, records: DataFrame, transactions: Sequence[SinkTransaction], packed: "_Packed", *, is_narrow: bool = False
    ) -> "_Results":
        target, clients = self._target, self._clients

        def task(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            return write_partition(batches, transactions, packed, target, clients)

        written = records.mapInArrow(task, OUTCOME_TYPE)
        try:
            rows = _collected(written) if not is_narrow or _times(written, records, len(transactions)) else []
        except BaseException:
            # Tasks end without a word; readers would wait for their transactions.
            brief = replace(clients, timeout_s=_FENCE_S)
            _each(transactions, lambda transaction: _try_to_fence(transaction, brief))
            raise
        found: _Results = {
            row.transaction: TransactionOutcome(row.rows, row.dead_letters, row.is_new)
            if row.error is None
            else TransactionFailure(row.error, row.is_retriable)
            for row in rows
        }
        # Spark has no task for a transaction when it knows that there are no rows at all.
        missing = [index for index in range(len(transactions)) if index not in found]
        if missing and found:
            raise SinkError(
                f"Spark has computed some transactions of a batch, and not {missing}; nothing is known of those"
            )
        results = _each(missing, lambda i: attempt(transactions[i], unpacked(packed.get(i, ()), target), clients))
        return found | dict(zip(missing, results, strict=True))


_Results = dict[int, TransactionOutcome | TransactionFailure]
_Packed = Mapping[int, Sequence[bytes]]


def _try_to_fence(transaction: SinkTransaction, clients: Clients) -> None:
    """What keeps it from that is not said: the next attempt fences too."""
    with contextlib.suppress(SinkError):
        fence(transaction.slot, clients)


def _each(of: Sequence[T], do: Callable[[T], R]) -> list[R]:
    if not of:
        return []
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(do, of))


# Frames of records and dead letters


def _with_order(frame: DataFrame, parts: int, *, is_dead: bool) -> DataFrame:
    """With the range that a record belongs to; of several frames together, each has all ranges in their order."""
    missing = {name: f.lit(None).cast(kind) for name, kind in OPTIONAL.items() if name not in frame.columns}
    return frame.withColumns(missing).select(
        "key",
        "value",
        *OPTIONAL,
        f.lit(is_dead).alias("is_dead"),
        (f.spark_partition_id() % parts).alias("part"),
        f.monotonically_increasing_id().alias("order"),
    )


def _by_range(records: DataFrame, dead: DataFrame, parts: int) -> DataFrame:
    """Partition i has the records and the dead letters of both frames' partition i, each in order."""
    both = _with_order(records, parts, is_dead=False).unionByName(_with_order(dead, parts, is_dead=True))
    numbers = f.array(*map(f.lit, numbers_for_parts(parts)))
    return both.repartition(parts, f.get(numbers, f.col("part"))).sortWithinPartitions("order").drop("order")


def _by_hash(records: DataFrame, dead: DataFrame | None, parts: int) -> DataFrame:
    """Partition i has the records whose key, or else value, has hash i; it is the same whenever it is computed."""
    both = _with_order(records, parts, is_dead=False)
    if dead is not None:
        both = both.unionByName(_with_order(dead, parts, is_dead=True))
    said = f.coalesce("key", "value")
    # What repartition does, once more as a column: a task sees whether it has what is its own.
    parted = both.withColumn("part", f.pmod(f.hash(said), f.lit(parts)))
    return parted.repartition(parts, said).sortWithinPartitions("order").drop("order")


def numbers_for_parts(parts: int) -> list[int]:
    """Number i is one that Spark's `repartition(parts, column)` puts into partition i."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_murmur3(number) % parts, number)
        if len(found) == parts:
            return [found[part] for part in range(parts)]
    raise AssertionError("unreachable")


def _murmur3(number: int) -> int:
    """Spark's hash of an int that is not negative. Source: org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt."""
    mask = 0xFFFFFFFF

    def rotated(bits: int, by: int) -> int:
        return (bits << by | bits >> 32 - by) & mask

    mixed = rotated(number * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    mixed = (rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & mask) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & mask
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & mask
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _packed(dead: DataFrame, parts: int) -> "_Packed | None":
    """Dead letters by range; None if they are too many to go over the driver."""
    most_bytes = FEW_BYTES // max(parts, dead.rdd.getNumPartitions())

    def task(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return pack(batches, parts, most_bytes)

    packed = dead.mapInArrow(task, PACKED_TYPE)
    found = defaultdict(list)
    for row in _collected(packed) if _times(packed, dead, parts) else []:
        if row.is_too_much:
            return None
        found[row.transaction].append(bytes(row.records))
    return found


def _times(made: DataFrame, of: DataFrame, parts: int) -> int:
    """How many frames a frame is a union of that each have a partition for every range; 0 if there are no rows.

    Raises SinkError for any other.
    """
    times, left = divmod(made.rdd.getNumPartitions(), parts)
    if times and not left:
        return times
    if of.isEmpty():
        return 0
    raise SinkError("the rows of a batch are not computed range by range; stateful = true on a transform helps")


def _collected(frame: DataFrame) -> list[Row]:
    try:
        return frame.collect()
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        if found := re.search(r"FencedError: (.*)", text):
            raise FencedError(found[1]) from None
        if any(sign in text for sign in _WORKER_IS_GONE):
            raise SinkError("a worker process has ended while it wrote", is_retriable=True) from None
        raise


def _sum(results: "_Results") -> Written:
    failures = [result for result in results.values() if isinstance(result, TransactionFailure)]
    if failures:
        worst = min(failures, key=lambda failure: failure.is_retriable)
        raise SinkError(worst.error, is_retriable=worst.is_retriable)
    outcomes = [result for result in results.values() if isinstance(result, TransactionOutcome)]
    return Written(sum(one.rows for one in outcomes), sum(one.dead_letters for one in outcomes))
