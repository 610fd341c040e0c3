"""Tasks of the topic sink on Arrow batches, without Spark."""

import io

import pyarrow as pa
import pytest

from odradek.spark_it.exactly_once.slots import OffsetTransaction, TransactionalSlot
from odradek.spark_it.exactly_once.transactions import Clients, FencedError, SinkTransactionOutcome, TopicRecords
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.sinks import topic_tasks
from odradek.spark_it.sinks.topic_tasks import TopicTarget, pack_dead_letters, unpack_dead_letters

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SLOT = TransactionalSlot("shop:orders-0", "shop", "orders", 0)
TRANSACTION = OffsetTransaction(SLOT, end=3, generation=1, batch=0, is_first=True, resets="reset", start=0)
TARGET = TopicTarget("shop", "out", "dead", has_headers=True, has_context_headers=True)


def batch(**columns):
    """A batch of records with these columns, by default of three records."""
    types = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS, "row": pa.binary(), "part": pa.int32()}
    given = {"key": [b"a", None, b"c"], "value": [b"1", b"2", None], **columns}
    arrays = [pa.array(values, types.get(name)) for name, values in given.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(given))


def pairs(*given):
    return [{"key": key, "value": value} for key, value in given]


def made(*batches, target=TARGET, index=0):
    return [some for one in batches for some in topic_tasks._split_records(one, index, target)]


def test_rows():
    headers = [pairs(("a", b"1"), ("a", None)), None, []]
    [records] = made(batch(headers=headers))
    assert records == TopicRecords(
        "out", [b"a", None, b"c"], [b"1", b"2", None], [[("a", b"1"), ("a", None)], None, None], is_dead=False
    )
    plain = TARGET._replace(has_headers=False)
    assert made(batch(), target=plain) == [TopicRecords("out", [b"a", None, b"c"], [b"1", b"2", None], None)]
    assert made(batch(key=[None, None, None], headers=[None, None, None]))[0].keys == [None, None, None]
    assert made(batch(key=[], value=[], headers=[])) == []


def test_headers_of_a_slice():
    """The arrays of an Arrow batch may be slices of larger ones."""
    headers = [pairs(("a", b"1")), pairs(("b", b"2"), ("c", b"3")), pairs(("d", None))]
    [records] = made(batch(headers=headers).slice(1))
    assert records.headers == [[("b", b"2"), ("c", b"3")], [("d", None)]]
    assert (records.keys, records.values) == ([None, b"c"], [b"2", None])


def test_dead_letters_between_rows():
    given = batch(headers=[pairs(("why", b"bad")), None, None], is_dead=[True, False, False])
    assert made(given) == [
        TopicRecords("dead", [b"a"], [b"1"], [[("why", b"bad")]], is_dead=True),
        TopicRecords("out", [None, b"c"], [b"2", None], [None, None]),
    ]


def test_rows_that_the_format_refuses():
    given = batch(error=[None, "value: is null", None], error_class=[None, "avro", None], row=[None, b"{}", None])
    dead, rows = made(given, target=TARGET._replace(has_headers=False), index=4)
    assert rows == TopicRecords("out", [b"a", b"c"], [b"1", None], None)
    assert (dead.topic, dead.keys, dead.values, dead.is_dead) == ("dead", [None], [b"{}"], True)
    assert dict(dead.headers[0]) == {
        "__connect.errors.connector.name": b"shop",
        "__connect.errors.task.id": b"4",
        "__connect.errors.stage": b"TASK_PUT",
        "__connect.errors.class.name": b"avro",
        "__connect.errors.exception.class.name": b"org.apache.kafka.connect.errors.DataException",
        "__connect.errors.exception.message": b"value: is null",
        "__connect.errors.exception.stacktrace": None,
    }
    quiet = TARGET._replace(has_headers=False, has_context_headers=False)
    assert made(given, target=quiet)[0].headers == [None]
    nowhere = TARGET._replace(has_headers=False, dead_topic=None)
    assert made(given, target=nowhere) == [rows]


def large(count):
    return b"x" * count


def test_rows_that_are_too_large_for_the_topic():
    target = TARGET._replace(tolerates=True, largest={"out": 100, "dead": 1000})
    headers = [None, pairs(("h", b"v" * 89)), pairs(("h", large(90)), ("i", None))]
    given = batch(key=[large(51), None, None], value=[large(50), None, large(1)], headers=headers)
    dead, rows = made(given, target=target, index=2)
    assert rows == TopicRecords("out", [None], [None], [[("h", b"v" * 89)]])
    assert (dead.topic, dead.is_dead, dead.keys, dead.values) == (
        "dead",
        True,
        [large(51), None],
        [large(50), large(1)],
    )
    why = dict(dead.headers[0])
    assert why["__connect.errors.stage"] == b"TASK_PUT" and why["__connect.errors.task.id"] == b"2"
    assert why["__connect.errors.exception.message"] == b"a record has 101 bytes, but topic out accepts 100"
    assert dead.headers[1][:2] == [("h", large(90)), ("i", None)]
    [rest] = made(given.slice(1, 1), target=target)
    assert rest == rows
    quiet = target._replace(has_headers=False, has_context_headers=False)
    assert made(given, target=quiet)[0].headers == [None]
    assert [some.is_dead for some in made(given, target=target._replace(dead_topic=None))] == [False]
    with pytest.raises(SinkError, match="a record has 101 bytes, but topic out accepts 100; increase"):
        made(given, target=target._replace(tolerates=False))


def test_dead_letters_that_are_too_large_themselves(monkeypatch):
    monkeypatch.setattr(topic_tasks, "_get_partition_id", lambda: 0)
    target = TARGET._replace(tolerates=True, largest={"out": 100, "dead": 500})
    said = pairs(("mine", b"1"), ("__connect.errors.offset", b"7"), ("__connect.errors.stage", None))
    left = [("__connect.errors.offset", b"7"), ("__connect.errors.stage", None)]
    given = batch(
        key=[b"k", b"l", None],
        value=[large(470), large(10), large(501)],
        headers=[said, None, None],
        is_dead=[True] * 3,
    )
    [dead] = made(given, target=target)
    assert (dead.keys, dead.values) == ([None, b"l", None], [None, large(10), None])
    is_left_out = ("__connect.errors.record.left.out", b"true")
    assert dead.headers == [[*left, is_left_out], None, [is_left_out]]
    packed = next(pack_dead_letters([given.drop_columns("is_dead")], 1, 10_000))
    [again] = unpack_dead_letters(packed.column("records").to_pylist(), target)
    assert again == dead
    # A row may be too large for both topics.
    [row] = made(batch(value=[large(501), None, None], headers=[None] * 3).slice(0, 1), target=target)
    assert (row.keys, row.values) == ([None], [None])
    assert dict(row.headers[0])["__connect.errors.exception.message"].startswith(b"a record has 502 bytes")


def test_records_of_another_part():
    plain = TARGET._replace(has_headers=False)
    assert len(made(batch(part=[2, 2, 2]), target=plain, index=2)) == 1
    with pytest.raises(ValueError, match="partition 2 has records of parts 1 to 2"):
        made(batch(part=[2, 1, 2]), target=plain, index=2)


@pytest.mark.parametrize(("partition", "transaction"), [(0, 0), (2, 2), (5, 2)])
def test_dead_letters_packed(monkeypatch, partition, transaction):
    monkeypatch.setattr(topic_tasks, "_get_partition_id", lambda: partition)
    some, more = batch(headers=[None, [], pairs(("a", b"1"))]), batch(headers=[None, None, None])
    [row] = pack_dead_letters([some, some.slice(0, 0), more], 3, 10_000)
    assert row.column("transaction").to_pylist() == [transaction] and row.column("exceeds_limit").to_pylist() == [False]
    found = list(unpack_dead_letters(row.column("records").to_pylist(), TARGET))
    assert [(one.topic, one.is_dead, one.headers) for one in found] == [
        ("dead", True, [None, None, [("a", b"1")]]),
        ("dead", True, [None, None, None]),
    ]
    assert list(pack_dead_letters([some.slice(0, 0)], 3, 10_000)) == []
    [row] = pack_dead_letters([some, more], 3, some.nbytes)
    assert row.to_pylist() == [{"transaction": transaction, "exceeds_limit": True, "records": None}]


END = b"\xff\xff\xff\xfc"


@pytest.mark.parametrize("rest", [END, END + b"more", END[:1]])
def test_rows_that_are_complete(rest):
    stream: io.BufferedReader = io.BufferedReader(io.BytesIO(rest))
    assert list(topic_tasks._check_complete([1, 2], stream)) == [1, 2]
    assert stream.read() == rest


@pytest.mark.parametrize("rest", [b"", b"\xff\xff\xff\xff\0\0\0\0", b"\0"])
def test_rows_that_end_too_soon(rest):
    """Java closes the stream with or without the end that Arrow writes."""
    taken = topic_tasks._check_complete([1, 2], io.BufferedReader(io.BytesIO(rest)))
    assert (next(taken), next(taken)) == (1, 2)
    with pytest.raises(topic_tasks.IncompleteError):
        next(taken)


def test_the_input_of_a_worker():
    def main(infile):
        return [topic_tasks._find_worker_input() for _ in range(1)]

    assert main("stream") == ["stream"]


def test_a_partition_without_a_transaction(monkeypatch):
    monkeypatch.setattr(topic_tasks, "_get_partition_id", lambda: 3)
    with pytest.raises(ValueError, match="partition 3 of a batch with 1 transactions"):
        list(topic_tasks.write_partition([], [TRANSACTION], {}, TARGET, Clients("")))


def test_the_result_of_a_task(monkeypatch):
    monkeypatch.setattr(topic_tasks, "_get_partition_id", lambda: 0)
    monkeypatch.setattr(topic_tasks, "_find_worker_input", lambda: io.BufferedReader(io.BytesIO(END)))
    dead = batch(headers=[None, None, None])
    packed = {0: [bytes(next(pack_dead_letters([dead], 1, 10_000)).column("records")[0].as_py())]}
    taken = []

    def written(transaction, records, clients):
        taken.extend(records)
        return SinkTransactionOutcome(3, 3, True)

    monkeypatch.setattr(topic_tasks, "write_transaction", written)
    plain = TARGET._replace(has_headers=False)
    [row] = topic_tasks.write_partition([batch()], [TRANSACTION], packed, plain, Clients(""))
    assert row.to_pylist() == [
        {"transaction": 0, "rows": 3, "dead_letters": 3, "is_new": True, "error": None, "is_retriable": None}
    ]
    assert [some.is_dead for some in taken] == [True, False]

    def refused(transaction, records, clients):
        raise SinkError("down", is_retriable=True)

    monkeypatch.setattr(topic_tasks, "write_transaction", refused)
    [row] = topic_tasks.write_partition([batch()], [TRANSACTION], {}, plain, Clients(""))
    assert (row.to_pylist()[0]["error"], row.to_pylist()[0]["is_retriable"]) == ("down", True)

    def overtaken(transaction, records, clients):
        raise FencedError("overtaken")

    monkeypatch.setattr(topic_tasks, "write_transaction", overtaken)
    with pytest.raises(FencedError):
        list(topic_tasks.write_partition([batch()], [TRANSACTION], {}, plain, Clients("")))
