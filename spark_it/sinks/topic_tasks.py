"""What tasks do for the topic sink: records come from Spark as Arrow, in a batch's columns, and go to `transactions`.

Columns are those of `topic_records`; after a shuffle also `is_dead`, and `part`, the partition that a record is for.
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
from odradek.spark_it.dead_letters.headers import DATA_EXCEPTION, Failure, Stage, brief
from odradek.spark_it.exactly_once.slots import SinkTransaction
from odradek.spark_it.exactly_once.transactions import Clients, FencedError, Headers, Records, TransactionOutcome, write
from odradek.spark_it.interfaces.kafka_types import Header
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka.record_sizes import HEADER_FRAME_BYTES, size

if TYPE_CHECKING:
    from io import BufferedReader

OUTCOME_TYPE = "transaction int, rows bigint, dead_letters bigint, is_new boolean, error string, is_retriable boolean"
PACKED_TYPE = "transaction int, is_too_much boolean, records binary"


class TopicTarget(NamedTuple):
    """A pipeline's topics for rows and for dead letters. `has_headers` says whether rows have any, `says_why` whether
    dead letters made here have Connect's. `largest` is how large records may be, by topic (`record_sizes`); one of a
    row that is larger is a dead letter, or with `tolerates` false an error."""

    pipeline: str
    topic: str
    dead_topic: str | None
    has_headers: bool
    says_why: bool
    tolerates: bool = False
    largest: Mapping[str, int] = {}


class TransactionFailure(NamedTuple):
    """A transaction that was not written, and whether it may be the next time."""

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

    What Kafka refuses is part of the row, for the driver to wait and try again. Only an attempt that was overtaken
    fails: if Spark itself has started the other one, that one's row counts.
    """
    index = _partition()
    if index >= len(transactions):
        raise ValueError(f"partition {index} of a batch that has {len(transactions)} transactions")
    dead = unpacked(packed.get(index, ()), target)
    whole = _whole(batches, _worker_input())
    records = (some for batch in whole for some in _records(batch, index, target))
    yield _row(index, attempt(transactions[index], chain(dead, records), clients))


class IncompleteError(Exception):
    """Spark has ended a task in the middle of its rows."""


def _whole(batches: Iterable[pa.RecordBatch], stream: "BufferedReader") -> Iterator[pa.RecordBatch]:
    """All batches of a partition. Raises IncompleteError where they end before they are all there.

    When rows cannot be computed, or a task is ended, Java closes the stream. That looks like its end, and what there is
    would be committed for the whole. Java writes END_OF_STREAM when its iterator of rows has come to its end and at no
    other time: what the iterator throws passes by the place that writes it, and a task that is killed or a process that
    dies does not come there. Source: Spark 4.0, BasePythonRunner.ReaderInputStream.

    A last row made by the plan would say the same, but no plan of Spark's has one that keeps partitions as they are and
    the counts that are taken by the way.
    """
    yield from batches
    # Nothing is taken away: Spark's worker reads it next. What is there may be less than all of it.
    if not (said := stream.peek(len(_END))[: len(_END)]) or not _END.startswith(said):
        raise IncompleteError("the rows of a task are not complete")


_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)


def _worker_input() -> "BufferedReader":
    """What Java writes to this process. Source: pyspark.worker.main, which all ways of starting a worker come through.

    Spark has no other name for it. In a version that has it elsewhere nothing is written at all.
    """
    frame = sys._getframe()
    while frame.f_code.co_name != "main" or "infile" not in frame.f_locals:
        if frame.f_back is None:
            raise RuntimeError("this version of Spark does not say when rows are complete")
        frame = frame.f_back
    found: BufferedReader = frame.f_locals["infile"]
    return found


def attempt(
    transaction: SinkTransaction, records: Iterable[Records], clients: Clients
) -> TransactionOutcome | TransactionFailure:
    """Writes a transaction; Kafka's refusals are returned. Raises FencedError."""
    try:
        return write(transaction, records, clients)
    except FencedError:
        raise
    except SinkError as error:
        return TransactionFailure(str(error), error.is_retriable)


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "not in a task"
    return context.partitionId()


def _row(index: int, result: TransactionOutcome | TransactionFailure) -> pa.RecordBatch:
    if isinstance(result, TransactionOutcome):
        row: tuple[Any, ...] = (index, *result, None, None)
    else:
        row = (index, None, None, None, *result)
    types = (pa.int32(), pa.int64(), pa.int64(), pa.bool_(), pa.string(), pa.bool_())
    names = [column.split()[0] for column in OUTCOME_TYPE.split(", ")]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], type) for value, type in zip(row, types, strict=True)], names=names
    )


# Dead letters that are handed to other tasks


def pack(batches: Iterable[pa.RecordBatch], transactions: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Packs a partition of dead letters into a row of PACKED_TYPE, unless it is too much; no row if there are none.

    Of several frames together, each has a partition for every transaction in their order.
    """
    transaction = _partition() % transactions
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > most_bytes:
            yield _packed(transaction, None)
            return
        if batch.num_rows:
            kept.append(batch)
    if kept:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, kept[0].schema) as stream:
            for batch in kept:
                stream.write_batch(batch)
        yield _packed(transaction, sink.getvalue().to_pybytes())


def _packed(transaction: int, records: bytes | None) -> pa.RecordBatch:
    arrays = [pa.array([transaction], pa.int32()), pa.array([records is None]), pa.array([records], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["transaction", "is_too_much", "records"])


def unpacked(packed: Iterable[bytes], target: TopicTarget) -> Iterator[Records]:
    """The dead letters that `pack` has packed."""
    for records in packed:
        assert target.dead_topic is not None
        with pa.ipc.open_stream(records) as stream:
            for batch in stream:
                yield _fitting(_of(batch, target.dead_topic, has_headers=True, is_dead=True), target)


# From Arrow to Python


def _records(batch: pa.RecordBatch, index: int, target: TopicTarget) -> Iterator[Records]:
    """The records of a batch. Raises ValueError for some that Spark has put into another transaction's partition."""
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
            yield _fitting(_of(dead, target.dead_topic, has_headers=True, is_dead=True), target)
            batch = batch.filter(pc.invert(is_dead))
    if "error" in names and batch.column("error").null_count < batch.num_rows:
        is_bad = pc.is_valid(batch.column("error"))
        # Without a topic for them they are left out.
        if target.dead_topic is not None:
            yield _fitting(_refused(batch.filter(is_bad), target, target.dead_topic, index), target)
        batch = batch.filter(pc.invert(is_bad))
    most_bytes = target.largest.get(target.topic)
    if most_bytes is not None and batch.num_rows:
        is_large = pa.array(_sizes(batch, has_headers=target.has_headers) > most_bytes)
        if pc.any(is_large).as_py():
            large = _too_large(batch.filter(is_large), target, most_bytes, index)
            if large is not None:
                yield _fitting(large, target)
            batch = batch.filter(pc.invert(is_large))
    if batch.num_rows:
        yield _of(batch, target.topic, has_headers=target.has_headers, is_dead=False)


def _refused(batch: pa.RecordBatch, target: TopicTarget, topic: str, index: int) -> Records:
    """Dead letters of rows that their format refuses."""
    said = zip(*(batch.column(name).to_pylist() for name in ("error_class", "error")), strict=True)
    put = Stage.TASK_PUT
    failures = [Failure(put, class_name, DATA_EXCEPTION, message) for class_name, message in said]
    headers = _why(failures, target, index)
    return Records(topic, [None] * batch.num_rows, _objects(batch.column("row")), headers, is_dead=True)


def _sizes(batch: pa.RecordBatch, *, has_headers: bool) -> "np.ndarray[Any, Any]":
    """What `record_sizes.size` says of each record."""
    key, value = (_lengths(batch.column(name)) for name in ("key", "value"))
    found: np.ndarray[Any, Any] = key + value
    if has_headers:
        column = batch.column("headers")
        flat = column.flatten()
        of_headers = _lengths(flat.field("key")) + _lengths(flat.field("value")) + HEADER_FRAME_BYTES
        of_records = np.bincount(pc.list_parent_indices(column).to_numpy(), of_headers, batch.num_rows)
        found = found + of_records.astype(np.int64)
    return found


def _lengths(column: pa.Array) -> "np.ndarray[Any, Any]":
    lengths: np.ndarray[Any, Any] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _too_large(batch: pa.RecordBatch, target: TopicTarget, most_bytes: int, index: int) -> Records | None:
    """Dead letters of records that the topic does not take; None without a topic for them. Raises SinkError if they are
    an error."""
    sizes = _sizes(batch, has_headers=target.has_headers).tolist()
    about = [f"a record has {size} bytes, and topic {target.topic} takes {most_bytes}" for size in sizes]
    if not target.tolerates:
        raise SinkError(f"{about[0]}; {WHAT_HELPS}")
    if target.dead_topic is None:
        return None
    records = _of(batch, target.dead_topic, has_headers=target.has_headers, is_dead=True)
    failures = [Failure(Stage.TASK_PUT, "topic", TOO_LARGE, message) for message in about]
    added = _why(failures, target, index)
    headers = [
        None if new is None and not old else connect_headers.headers(old or (), new or ())
        for old, new in zip(records.headers or [None] * len(added), added, strict=True)
    ]
    return records._replace(headers=headers)


TOO_LARGE = "org.apache.kafka.common.errors.RecordTooLargeException"
WHAT_HELPS = "see the topic's max.message.bytes and producer.override.message.max.bytes, or let errors.tolerance be all"
"""Against a record that is too large."""


def _why(failures: Iterable[Failure], target: TopicTarget, index: int) -> list[list[Header] | None]:
    """Connect's headers of dead letters, if they have any."""
    name = target.pipeline
    return [
        connect_headers.error_headers(None, one, connector_name=name, task_id=index) if target.says_why else None
        for one in failures
    ]


def _fitting(dead: Records, target: TopicTarget) -> Records:
    """Dead letters; one that is too large itself without its key and value."""
    most_bytes = target.largest.get(dead.topic)
    if most_bytes is None:
        return dead
    headers = dead.headers or [None] * len(dead.values)
    records = [
        record if size(record[0], record[1], record[2] or ()) <= most_bytes else (None, None, brief(record[2] or ()))
        for record in zip(dead.keys, dead.values, headers, strict=True)
    ]
    if not records:
        return dead
    keys, values, kept = map(list, zip(*records, strict=True))
    return dead._replace(keys=keys, values=values, headers=kept)


def _of(batch: pa.RecordBatch, topic: str, *, has_headers: bool, is_dead: bool) -> Records:
    headers = _headers(batch.column("headers")) if has_headers else None
    return Records(topic, _objects(batch.column("key")), _objects(batch.column("value")), headers, is_dead)


def _objects(column: pa.Array) -> Sequence[bytes | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    made: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return made


def _headers(column: pa.Array) -> list[Headers | None]:
    """Lists of pairs; None where there are none."""
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
