"""The topic sink's code in Spark's tasks, which converts Arrow batches to records and writes transactions.

The columns are those of `topic_records`; after a shuffle also `is_dead`, and `part`, the partition of the record.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.serializers import SpecialLengths

from odradek.spark_it.dead_letters import headers as connect_headers
from odradek.spark_it.dead_letters.headers import DATA_EXCEPTION, Failure, FailureStage, shorten_headers
from odradek.spark_it.exactly_once.slots import SinkTransaction
from odradek.spark_it.exactly_once.transactions import (
    Clients,
    FencedError,
    Headers,
    SinkTransactionOutcome,
    TopicRecords,
    write_transaction,
)
from odradek.spark_it.interfaces.kafka_types import Header
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka.record_sizes import HEADER_FRAME_BYTES, measure_record

if TYPE_CHECKING:
    from io import BufferedReader

OUTCOME_TYPE = "transaction int, rows bigint, dead_letters bigint, is_new boolean, error string, is_retriable boolean"
PACKED_TYPE = "transaction int, exceeds_limit boolean, records binary"


class TopicTarget(NamedTuple):
    """A pipeline's topics for rows and for dead letters. With `has_headers` rows have headers; with
    `has_context_headers` dead letters of this module have Connect's. `largest` is the maximum size of records by topic
    (`record_sizes`); a larger record becomes a dead letter, or an error if `tolerates` is false."""

    pipeline: str
    topic: str
    dead_topic: str | None
    has_headers: bool
    has_context_headers: bool
    tolerates: bool = False
    largest: Mapping[str, int] = {}


class TransactionFailure(NamedTuple):
    """The error of a transaction that was not written, and whether a retry may succeed."""

    error: str
    is_retriable: bool


def write_partition(
    batches: Iterable[pa.RecordBatch],
    transactions: Sequence[SinkTransaction],
    packed: Mapping[int, Sequence[bytes]],
    target: TopicTarget,
    clients: Clients,
) -> Iterator[pa.RecordBatch]:
    """Write transaction i from partition i, after the dead letters that are packed for it; yield a row of OUTCOME_TYPE.

    An error of Kafka is part of the row, so that the driver can retry after a delay. Only a fenced attempt fails its
    task: if Spark has started a later attempt at the task, the row of that attempt is used.
    """
    index = _get_partition_id()
    if index >= len(transactions):
        raise ValueError(f"partition {index} of a batch with {len(transactions)} transactions")
    dead = unpack_dead_letters(packed.get(index, ()), target)
    complete_batches = _check_complete(batches, _find_worker_input())
    records = (part for batch in complete_batches for part in _split_records(batch, index, target))
    yield _make_outcome_row(index, try_to_write(transactions[index], chain(dead, records), clients))


class IncompleteError(Exception):
    """Spark ended the input of a task before all rows."""


def _check_complete(batches: Iterable[pa.RecordBatch], stream: "BufferedReader") -> Iterator[pa.RecordBatch]:
    """Yield all batches of a partition. Raises IncompleteError if the input ends before all rows.

    If rows cannot be computed, or the task is killed, the JVM closes the stream. Python's reader treats that as the
    regular end, and an incomplete transaction would be committed. The JVM writes END_OF_STREAM only after its iterator
    of rows is exhausted, not if the iterator throws, the task is killed or the process exits. Source: Spark 4.0,
    BasePythonRunner.ReaderInputStream.

    A marker row at the end of each partition would show the same, but no Spark plan can add one without changing the
    partitions or losing the observations.
    """
    yield from batches
    # `peek` consumes nothing, because Spark's worker reads the marker next. It may return fewer bytes than requested.
    if not (end_marker := stream.peek(len(_END))[: len(_END)]) or not _END.startswith(end_marker):
        raise IncompleteError("the rows of a task are not complete")


_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)


def _find_worker_input() -> "BufferedReader":
    """Return the stream from the JVM to this worker. Source: pyspark.worker.main, which runs in every worker.

    The stream is a local variable of that function. In a version of Spark without it, the task fails and writes
    nothing.
    """
    frame = sys._getframe()
    while frame.f_code.co_name != "main" or "infile" not in frame.f_locals:
        if frame.f_back is None:
            raise RuntimeError("this version of PySpark is not supported: pyspark.worker.main has no variable infile")
        frame = frame.f_back
    input_stream: BufferedReader = frame.f_locals["infile"]
    return input_stream


def try_to_write(
    transaction: SinkTransaction, records: Iterable[TopicRecords], clients: Clients
) -> SinkTransactionOutcome | TransactionFailure:
    """Write a transaction; return errors of Kafka. Raises FencedError."""
    try:
        return write_transaction(transaction, records, clients)
    except FencedError:
        raise
    except SinkError as error:
        return TransactionFailure(str(error), error.is_retriable)


def _get_partition_id() -> int:
    context = TaskContext.get()
    assert context is not None, "not in a task"
    return context.partitionId()


def _make_outcome_row(index: int, result: SinkTransactionOutcome | TransactionFailure) -> pa.RecordBatch:
    if isinstance(result, SinkTransactionOutcome):
        row: tuple[Any, ...] = (index, *result, None, None)
    else:
        row = (index, None, None, None, *result)
    types = (pa.int32(), pa.int64(), pa.int64(), pa.bool_(), pa.string(), pa.bool_())
    names = [column.split()[0] for column in OUTCOME_TYPE.split(", ")]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], type) for value, type in zip(row, types, strict=True)], names=names
    )


# Dead letters that are passed to other tasks


def pack_dead_letters(batches: Iterable[pa.RecordBatch], transactions: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Pack a partition of dead letters into a row of PACKED_TYPE, without records if they exceed `max_bytes`; yield no
    row if there are none.

    A union of frames has the partitions of all transactions, in order, for each frame.
    """
    transaction = _get_partition_id() % transactions
    stored_batches: list[pa.RecordBatch] = []
    total_bytes = 0
    for batch in batches:
        total_bytes += batch.nbytes
        if total_bytes > max_bytes:
            yield _make_packed_row(transaction, None)
            return
        if batch.num_rows:
            stored_batches.append(batch)
    if stored_batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, stored_batches[0].schema) as stream:
            for batch in stored_batches:
                stream.write_batch(batch)
        yield _make_packed_row(transaction, sink.getvalue().to_pybytes())


def _make_packed_row(transaction: int, records: bytes | None) -> pa.RecordBatch:
    arrays = [pa.array([transaction], pa.int32()), pa.array([records is None]), pa.array([records], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["transaction", "exceeds_limit", "records"])


def unpack_dead_letters(packed: Iterable[bytes], target: TopicTarget) -> Iterator[TopicRecords]:
    """Yield the dead letters that `pack_dead_letters` has packed."""
    for records in packed:
        assert target.dead_topic is not None
        with pa.ipc.open_stream(records) as stream:
            for batch in stream:
                yield _limit_size(_to_records(batch, target.dead_topic, has_headers=True, is_dead=True), target)


# From Arrow to Python


def _split_records(batch: pa.RecordBatch, index: int, target: TopicTarget) -> Iterator[TopicRecords]:
    """Yield the records of a batch. Raises ValueError for records in the wrong transaction's partition."""
    names = batch.schema.names
    if "part" in names and batch.num_rows:
        parts = pc.min_max(batch.column("part")).as_py()
        if parts != {"min": index, "max": index}:
            raise ValueError(f"partition {index} has records of parts {parts['min']} to {parts['max']}")
    if "is_dead" in names:
        is_dead = batch.column("is_dead")
        dead = batch.filter(is_dead)
        if dead.num_rows:
            assert target.dead_topic is not None
            yield _limit_size(_to_records(dead, target.dead_topic, has_headers=True, is_dead=True), target)
            batch = batch.filter(pc.invert(is_dead))
    if "error" in names and batch.column("error").null_count < batch.num_rows:
        is_bad = pc.is_valid(batch.column("error"))
        # Without a dead-letter topic these records are dropped.
        if target.dead_topic is not None:
            yield _limit_size(
                _make_dead_letters_of_errors(batch.filter(is_bad), target, target.dead_topic, index), target
            )
        batch = batch.filter(pc.invert(is_bad))
    max_bytes = target.largest.get(target.topic)
    if max_bytes is not None and batch.num_rows:
        is_large = pa.array(_measure_records(batch, has_headers=target.has_headers) > max_bytes)
        if pc.any(is_large).as_py():
            large = _make_dead_letters_of_large_records(batch.filter(is_large), target, max_bytes, index)
            if large is not None:
                yield _limit_size(large, target)
            batch = batch.filter(pc.invert(is_large))
    if batch.num_rows:
        yield _to_records(batch, target.topic, has_headers=target.has_headers, is_dead=False)


def _make_dead_letters_of_errors(batch: pa.RecordBatch, target: TopicTarget, topic: str, index: int) -> TopicRecords:
    """Return the dead letters of rows that could not be encoded."""
    errors = zip(*(batch.column(name).to_pylist() for name in ("error_class", "error")), strict=True)
    put = FailureStage.TASK_PUT
    failures = [Failure(put, class_name, DATA_EXCEPTION, message) for class_name, message in errors]
    headers = _make_context_headers(failures, target, index)
    return TopicRecords(topic, [None] * batch.num_rows, _to_objects(batch.column("row")), headers, is_dead=True)


def _measure_records(batch: pa.RecordBatch, *, has_headers: bool) -> "np.ndarray[Any, Any]":
    """Return the size of each record, as `record_sizes.measure_record` does."""
    key, value = (_measure_lengths(batch.column(name)) for name in ("key", "value"))
    sizes: np.ndarray[Any, Any] = key + value
    if has_headers:
        column = batch.column("headers")
        flat = column.flatten()
        of_headers = _measure_lengths(flat.field("key")) + _measure_lengths(flat.field("value")) + HEADER_FRAME_BYTES
        of_records = np.bincount(pc.list_parent_indices(column).to_numpy(), of_headers, batch.num_rows)
        sizes = sizes + of_records.astype(np.int64)
    return sizes


def _measure_lengths(column: pa.Array) -> "np.ndarray[Any, Any]":
    lengths: np.ndarray[Any, Any] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _make_dead_letters_of_large_records(
    batch: pa.RecordBatch, target: TopicTarget, max_bytes: int, index: int
) -> TopicRecords | None:
    """Return the dead letters of records that are too large; None without a dead-letter topic. Raises SinkError unless
    bad records are tolerated."""
    sizes = _measure_records(batch, has_headers=target.has_headers).tolist()
    messages = [f"a record has {bytes_} bytes, but topic {target.topic} accepts {max_bytes}" for bytes_ in sizes]
    if not target.tolerates:
        raise SinkError(f"{messages[0]}; {TOO_LARGE_REMEDY}")
    if target.dead_topic is None:
        return None
    records = _to_records(batch, target.dead_topic, has_headers=target.has_headers, is_dead=True)
    failures = [Failure(FailureStage.TASK_PUT, "topic", TOO_LARGE_CLASS, message) for message in messages]
    added = _make_context_headers(failures, target, index)
    headers = [
        None if new is None and not old else connect_headers.replace_error_headers(old or (), new or ())
        for old, new in zip(records.headers or [None] * len(added), added, strict=True)
    ]
    return records._replace(headers=headers)


TOO_LARGE_CLASS = "org.apache.kafka.common.errors.RecordTooLargeException"
TOO_LARGE_REMEDY = (
    "increase the topic's max.message.bytes or producer.override.message.max.bytes, or set errors.tolerance = all"
)
"""The remedy for a record that is too large."""


def _make_context_headers(failures: Iterable[Failure], target: TopicTarget, index: int) -> list[list[Header] | None]:
    """Return Connect's headers of dead letters; None if they are disabled."""
    name = target.pipeline
    return [
        connect_headers.make_error_headers(None, one, connector_name=name, task_id=index)
        if target.has_context_headers
        else None
        for one in failures
    ]


def _limit_size(dead: TopicRecords, target: TopicTarget) -> TopicRecords:
    """Remove key and value of dead letters that are too large for their topic."""
    max_bytes = target.largest.get(dead.topic)
    if max_bytes is None:
        return dead
    headers = dead.headers or [None] * len(dead.values)
    records = [
        record
        if measure_record(record[0], record[1], record[2] or ()) <= max_bytes
        else (None, None, shorten_headers(record[2] or ()))
        for record in zip(dead.keys, dead.values, headers, strict=True)
    ]
    if not records:
        return dead
    keys, values, kept = map(list, zip(*records, strict=True))
    return dead._replace(keys=keys, values=values, headers=kept)


def _to_records(batch: pa.RecordBatch, topic: str, *, has_headers: bool, is_dead: bool) -> TopicRecords:
    headers = _to_headers(batch.column("headers")) if has_headers else None
    return TopicRecords(topic, _to_objects(batch.column("key")), _to_objects(batch.column("value")), headers, is_dead)


def _to_objects(column: pa.Array) -> Sequence[bytes | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    made: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return made


def _to_headers(column: pa.Array) -> list[Headers | None]:
    """Return the headers of each record as pairs; None for a record without headers."""
    if column.null_count == len(column):
        return [None] * len(column)
    flat = column.flatten()
    pairs = list(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    found: list[Headers | None] = []
    at = 0
    for length in column.value_lengths().to_pylist():
        found.append(pairs[at : at + length] if length else None)
        at += length or 0
    return found
