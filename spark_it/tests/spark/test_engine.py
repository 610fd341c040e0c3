"""Pipelines from topics through SQL to a sink, on a broker."""

import json
import threading

import pytest
from confluent_kafka import Consumer, TopicPartition

from odradek.spark_it.dead_letters.headers import FILE, LINE, RecordOrigin, find_origin
from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.execution.preflight import RefusedError
from odradek.spark_it.execution.runner import RunError
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.state.pid_lock import AlreadyRunningError, hold_lock
from spark_it.tests.spark.engine import Engine, all_records, errors, order, orders, transform


@pytest.fixture
def engine(spark, broker, tmp_path, unique):
    return Engine(spark, broker.bootstrap_servers, tmp_path, unique)


def committed(engine, topic, partitions):
    wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer = Consumer({"bootstrap.servers": engine.servers, "group.id": engine.name, "enable.auto.commit": False})
    try:
        return [one.offset for one in consumer.committed(wanted, 10)]
    finally:
        consumer.close()


def test_rows_of_a_topic_go_through_sql_to_the_sink(engine, topics, unique):
    topics.produce(topics.create(unique, 2), [order(n) for n in range(100)])
    some = transform("SELECT id, _offset FROM orders WHERE id % 10 <> 0")
    text = orders(unique, "max.offsets.per.trigger = 40") + some
    kept = engine.run(text)
    assert sorted(row.id for row in kept.rows) == [n for n in range(100) if n % 10]
    assert [number for number, _ in kept.batches] == [0, 1, 2]
    assert engine.progress().batch == 2
    assert engine.counters() == (100, 90, 0, 10)
    assert sum(committed(engine, unique, 2)) == 100
    assert any(line.startswith("batch 2: ") and line.endswith("lag 0") for line in engine.said)
    # The next run continues at the current position.
    topics.produce(unique, [order(n) for n in range(100, 110)])
    engine.run(text)
    assert sorted(row.id for row in kept.rows)[90:] == list(range(101, 110))
    # A batch that is repeated, as after a crash, has the same number and, in any order, the same rows.
    engine.run(text, rewinds=True)
    *_, (number, before), (again, rows) = kept.batches
    assert (number, again) == (3, 3) and sorted(before) == sorted(rows) and len(kept.batches) == 5


def test_bad_records_become_dead_letters(engine, topics, unique):
    topics.create(unique)
    topics.create(f"{unique}-dead")
    topics.produce(unique, [order(1), order(2, -1), order(3)], headers=[("trace", b"x"), ("none", None)])
    topics.produce(unique, [(b"k", b"{garbage"), (None, b"[1]"), (b"t", None), (b"u", b'{"id": "x"}'), (b"e", b"")])
    text = (
        orders(unique)
        + transform("SELECT id, amount FROM orders WHERE id < 3 OR id IS NULL")
        + '[expect.orders]\npositive = { sql = "amount IS NULL OR amount > 0", action = "dead-letter" }\n'
        + errors(f"{unique}-dead")
    )
    kept = engine.run(text)
    assert sorted((row.id for row in kept.rows), key=str) == [1, None]
    assert engine.counters() == (8, 2, 5, 1)
    dead = all_records(engine.servers, f"{unique}-dead")
    by_value = {value: (key, dict(headers), headers) for key, value, headers in dead}
    assert set(by_value) == {order(2, -1)[1], b"{garbage", b"[1]", b'{"id": "x"}', b""}
    key, said, headers = by_value[order(2, -1)[1]]
    assert key == b"2" and headers[:2] == [("trace", b"x"), ("none", None)]
    assert said["__connect.errors.stage"] == b"TRANSFORMATION"
    assert said["__connect.errors.class.name"] == b"positive"
    key, said, headers = by_value[b"{garbage"]
    assert said["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert said["__connect.errors.connector.name"] == engine.name.encode()
    assert find_origin(headers) == RecordOrigin(unique, 0, 3)


def test_a_bad_record_stops_a_pipeline_that_tolerates_none(engine, topics, unique):
    topics.produce(topics.create(unique), [order(1), (b"k", b"{garbage"), order(2)])
    with pytest.raises(RunError) as stopped:
        engine.run(orders(unique))
    said = str(stopped.value)
    assert said.startswith(f"record {unique}-0 at offset 1: value is not a JSON object with id BIGINT, ")
    assert said.endswith("(VALUE_CONVERTER in json)")
    assert engine.kept.rows == [] and engine.progress().last_error == said
    # A dead-letter topic has no effect without tolerance = all.
    topics.create(f"{unique}-dead")
    with pytest.raises(RunError, match="at offset 1"):
        engine.run(orders(unique) + errors(f"{unique}-dead", tolerance="none"))
    assert engine.run(orders(unique) + errors(f"{unique}-dead")).rows != []
    assert engine.counters() == (3, 2, 1, 0)


def test_expectations(engine, topics, unique):
    topics.produce(topics.create(unique), [order(n, n - 2) for n in range(10)])
    topics.create(f"{unique}-dead")
    steps = transform("SELECT id, amount, amount * 2 AS twice FROM orders")
    rules = """
[expect.orders]
not_five = { sql = "id <> 5" }
even = { sql = "id % 2 = 0 OR id > 6", action = "drop" }
[expect.step]
positive = { sql = "twice > 0", action = "dead-letter" }
nine = { sql = "id < 9", action = "dead-letter" }
"""
    kept = engine.run(orders(unique) + steps + rules + errors(f"{unique}-dead", tolerance="none"))
    assert sorted(row.id for row in kept.rows) == [4, 6, 7, 8]
    assert engine.counters() == (10, 4, 3, 3)
    said = [line.strip() for line in engine.said if "violate expectation" in line]
    assert "1 rows of orders violate expectation not_five" in said
    assert "3 rows of orders violate expectation even" in said
    assert "2 rows of step violate expectation positive" in said
    dead = all_records(engine.servers, f"{unique}-dead")
    assert sorted((key, value) for key, value, _ in dead) == [order(0, -2), order(2, 0), order(9, 7)]
    assert sorted(find_origin(headers).offset for _, _, headers in dead) == [0, 2, 9]
    must = '[expect.step]\nsmall = { sql = "id < 9", action = "fail" }\n'
    topics.produce(unique, [order(9)])
    with pytest.raises(RunError, match=r"-0 at offset 10: step violates id < 9 \(TRANSFORMATION in small\)"):
        engine.run(orders(unique) + steps + must)


def test_a_sink_that_is_down_is_retried(engine, topics, unique):
    topics.produce(topics.create(unique), [order(n) for n in range(10)] + [(None, b"bad")])
    topics.create(f"{unique}-dead")
    engine.kept.failures = [SinkError("down", is_retriable=True), SinkError("still down", is_retriable=True)]
    kept = engine.run(orders(unique) + errors(f"{unique}-dead"))
    assert len(kept.rows) == 10 and engine.counters() == (11, 10, 1, 0)
    assert [line for line in engine.said if "down" in line] == [
        "down; retrying in 0.01 s",
        "still down; retrying in 0.01 s",
    ]
    assert len(all_records(engine.servers, f"{unique}-dead")) == 1
    # Permanent errors are not retried, and no error is retried for longer than retry.timeout.
    topics.produce(unique, [order(11)])
    engine.kept.failures = [SinkError("no such table")]
    with pytest.raises(RunError, match=r"^no such table$"):
        engine.run(orders(unique) + errors(f"{unique}-dead"))
    engine.kept.failures = [SinkError("down", is_retriable=True)] * 3
    with pytest.raises(RunError, match=r"^down$"):
        engine.run(orders(unique) + errors(f"{unique}-dead") + "retry.timeout = 5\n")
    engine.kept.failures = []
    assert len(engine.run(orders(unique) + errors(f"{unique}-dead")).rows) == 11


def test_a_running_pipeline_stops_at_the_end_of_a_batch(engine, topics, unique):
    topics.produce(topics.create(unique), [order(n) for n in range(100)])
    stop = threading.Event()

    def during(batch_id):
        if batch_id == 0:
            stop.set()

    engine.kept.during = during
    text = 'trigger = "10 milliseconds"\n' + orders(unique, "max.offsets.per.trigger = 30")
    kept = engine.run(text, stop=stop, now=False)
    assert [number for number, _ in kept.batches] == [0] and engine.progress().batch == 0
    assert committed(engine, unique, 1) == [30]
    engine.run(text)
    assert [number for number, _ in kept.batches] == [0, 1, 2, 3] and len(kept.rows) == 100


def test_windows_are_written_when_the_watermark_passes_them(engine, topics, unique):
    topics.create(f"{unique}-dead")
    topics.produce(topics.create(unique), [order(n) for n in range(200)] + [(None, b"bad")])
    text = (
        orders(unique, 'watermark = "placed 0 seconds"')
        + transform("SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(placed, '1 minute')")
        + '[expect.step]\nnot_first = { sql = "minute > TIMESTAMP \'2026-01-01T00:00:00Z\'", action = "dead-letter" }\n'
        + errors(f"{unique}-dead")
    )
    kept = engine.run(text)
    assert sorted((row.minute.minute, row.n) for row in kept.rows) == [(1, 60), (2, 60)]
    dead = all_records(engine.servers, f"{unique}-dead")
    assert sorted(value for _, value, _ in dead) == [b"bad", b'{"minute":"2026-01-01T00:00:00.000000Z","n":60}']
    of = engine.progress()
    assert (of.read, of.written, of.dead_lettered) == (201, 2, 2)
    topics.produce(unique, [order(n) for n in range(200, 260)])
    engine.run(text)
    assert sorted((row.minute.minute, row.n) for row in kept.rows) == [(1, 60), (2, 60), (3, 60)]


def test_two_topics_are_joined(engine, topics, unique):
    topics.produce(topics.create(unique), [order(n) for n in range(5)])
    topics.produce(topics.create(f"{unique}-more"), [order(n, 7) for n in range(3, 8)])
    more = orders(f"{unique}-more").replace("source.orders", "source.others")
    text = orders(unique) + more + transform("SELECT o.id, x.amount FROM orders o JOIN others x ON o.id = x.id")
    kept = engine.run(text)
    assert sorted((row.id, int(row.amount)) for row in kept.rows) == [(3, 7), (4, 7)]
    assert engine.counters()[:2] == (10, 2)
    assert committed(engine, unique, 1) + committed(engine, f"{unique}-more", 1) == [5, 5]


def test_start_offsets_of_a_topic(engine, topics, unique):
    topics.create(unique, 2)
    for n in range(10):
        topics.produce(unique, [order(n)], partition=n % 2, timestamp_ms=1_700_000_000_000 + n)
    found = {}
    for name, more in {
        "time": 'start.timestamp = "1700000000006"',
        "offsets": f'start.offsets = "{unique}:1:3"\nauto.offset.reset = "latest"',
        "latest": 'auto.offset.reset = "latest"',
    }.items():
        one = Engine(engine.spark, engine.servers, engine.folder, f"{unique}-{name}")
        found[name] = sorted(row.id for row in one.run(orders(unique, more)).rows)
    assert found == {"time": [6, 7, 8, 9], "offsets": [7, 9], "latest": []}


def test_formats_of_keys_headers_and_unknown_fields(engine, topics, unique):
    topics.create(f"{unique}-1")
    topics.produce(f"{unique}-1", [(b'{"k": 1}', b'{"id": 1, "new": {"a": [1]}, "b": null}')], headers=[("h", b"v")])
    topics.produce(f"{unique}-1", [(b'{"k": 2}', b'{"id": 2}')])
    kept = engine.run(f"""
[source.orders]
connector = "topic"
topics.regex = "{unique}-.*"
value.schema = "id BIGINT"
key.format = "json"
key.schema = "k INT"
include.headers = true
keep.unknown.fields = true
""")
    one, two = sorted(kept.rows)
    assert (one.id, one._key.k, json.loads(one._rescued)) == (1, 1, {"b": None, "new": {"a": [1]}})
    assert (one._topic, one._partition, one._offset) == (f"{unique}-1", 0, 0)
    assert [(header.key, bytes(header.value)) for header in one._headers] == [("h", b"v")]
    assert two._rescued is None


def test_text_and_bytes(engine, topics, unique):
    topics.produce(topics.create(unique), [(b"\xff", b"caf\xc3\xa9 \xff")])
    text = orders(unique, 'value.format = "string"\nkey.format = "bytes"').replace("value.schema", "# value.schema")
    [row] = engine.run(text).rows
    assert row.value == "café �" and bytes(row._key) == b"\xff"


def test_a_second_copy_is_refused(engine, topics, unique):
    topics.create(unique)
    with hold_lock(engine.pipeline(orders(unique)).state_folder), pytest.raises(AlreadyRunningError):
        engine.run(orders(unique))


def test_a_changed_pipeline_is_refused_before_it_reads(engine, topics, unique):
    topics.produce(topics.create(unique), [order(1)])
    engine.run(orders(unique))
    other = topics.create(f"{unique}-other")
    with pytest.raises(RefusedError, match=r"source orders reads from another place: .*reset --to committed"):
        engine.run(orders(other))


def test_a_missing_topic(engine, unique):
    with pytest.raises(Exception, match=f"^topic {unique} does not exist; create it$"):
        engine.run(orders(unique))


def test_errors_of_spark_analysis(engine, topics, unique):
    topics.create(unique)
    no_column = "A column, variable, or function parameter with name"
    ranked = "SELECT id, row_number() OVER (PARTITION BY id ORDER BY placed) n FROM orders"
    for text, line, said in (
        (transform("SELECT\n  idd FROM orders"), 13, f"transform step: {no_column} `idd` cannot be resolved."),
        (transform("SELECT id id id FROM orders"), 12, "transform step: Syntax error at or near"),
        (transform("SELECT id, id FROM orders"), 10, "transform step: duplicate column name id; rename"),
        ('[expect.orders]\nx = { sql = "no > 1" }\n', 11, f"expect x of orders: {no_column} `no` cannot be resolved."),
        (transform(ranked), 10, "transform step: Window function is not supported in ROW_NUMBER() (as column `n`)"),
        (transform("SELECT count(*) n FROM orders"), 10, "transform step: Invalid streaming output mode: append"),
    ):
        with pytest.raises(PipelineError) as wrong:
            engine.run(orders(unique) + text)
        assert str(wrong.value).startswith(f"p.toml:{line}: {said}") and "\n" not in str(wrong.value)
    with pytest.raises(PipelineError, match=r"p.toml:\d+: source.orders: value.schema is not a schema such as"):
        engine.run(orders(unique).replace("id BIGINT", "id BIGINTT"))
    with pytest.raises(PipelineError, match=r"watermark: unknown column plced, did you mean placed\?"):
        engine.run(orders(unique, 'watermark = "plced 1 minute"'))


def test_a_runtime_error_of_sql_is_one_line(engine, topics, unique):
    topics.produce(topics.create(unique), [order(1)])
    with pytest.raises(RunError) as failed:
        engine.run(orders(unique) + transform("SELECT 1 / (id - 1) AS x FROM orders"))
    assert str(failed.value).startswith("Division by zero.") and "\n" not in str(failed.value)


def test_generated_rows(engine):
    text = '[source.numbers]\nconnector = "generator"\niterations = 2500\ninterval.ms = 1000\n'
    kept = engine.run(text + transform("SELECT value, timestamp FROM numbers"))
    assert sorted(row.value for row in kept.rows) == list(range(2500))
    assert max(row.timestamp for row in kept.rows).isoformat() == "2026-01-01T00:41:39"
    engine.run(text + transform("SELECT value, timestamp FROM numbers"))
    assert len(kept.rows) == 2500


def test_files_of_a_folder(engine, topics, unique):
    topics.create(f"{unique}-dead")
    folder = engine.folder / "in"
    folder.mkdir()
    (folder / "a.csv").write_text('id,name\n1,"a, b ""c"" \\"\nx,c\n', "utf-8")
    (folder / "b.txt").write_text("no\n", "utf-8")
    text = """
[source.lines]
connector = "files"
path = "in"
format = "csv"
schema = "id INT, name STRING"
file.pattern = "*.csv"
"""
    kept = engine.run(text + errors(f"{unique}-dead"))
    assert [(row.id, row.name) for row in kept.rows] == [(1, 'a, b "c" \\')]
    (folder / "c.csv").write_text("id,name\n2,d\n", "utf-8")
    engine.run(text + errors(f"{unique}-dead"))
    assert [(row.id, row.name) for row in kept.rows] == [(1, 'a, b "c" \\'), (2, "d")]
    [(_, value, headers)] = all_records(engine.servers, f"{unique}-dead")
    assert value == b"x,c" and b"a.csv" in dict(headers)["__connect.errors.exception.message"]
    assert dict(headers)[FILE].decode().endswith(f"{folder}/a.csv") and dict(headers)[LINE] == b"3"


def test_a_topic_sink_has_rows_dead_letters_and_progress_in_its_transactions(engine, topics, unique):
    topics.create(unique, 3)
    for partition in (0, 1):
        given = [order(n) for n in range(10 * partition, 10 * partition + 10)] + [(None, b"bad")]
        topics.produce(unique, given, partition=partition)
    topics.create(f"{unique}-out", 2)
    topics.create(f"{unique}-dead")
    text = (
        orders(unique, "max.offsets.per.trigger = 8")
        + transform("SELECT id, _partition FROM orders WHERE id <> 4")
        + '[expect.orders]\nnot_seven = { sql = "id <> 7", action = "dead-letter" }\n'
        + '[expect.step]\nnot_twelve = { sql = "id <> 12", action = "dead-letter" }\n'
        + errors(f"{unique}-dead")
    )
    sink = f'[sink]\nconnector = "topic"\ntopic = "{unique}-out"\nkey.fields = "id"\n'
    engine.run(text, sink)
    for _ in range(2):
        written = sorted(int(key) for key, _, _ in all_records(engine.servers, f"{unique}-out"))
        assert written == [n for n in range(20) if n not in (4, 7, 12)]
        dead = all_records(engine.servers, f"{unique}-dead")
        assert sorted(value for _, value, _ in dead) == sorted([b"bad", b"bad", order(7)[1], order(12)[1]])
        origins = [origin for _, _, headers in dead if (origin := find_origin(headers)) is not None]
        assert sorted(origins) == [
            (unique, 0, 7),
            (unique, 0, 10),
            (unique, 1, 2),
            (unique, 1, 10),
        ]
        assert committed(engine, unique, 2) == [11, 11]
        # The last batch is repeated, as after a crash: nothing is written twice.
        engine.run(text, sink, rewinds=True)


def test_counts_are_written_to_a_topic_in_batch_transactions(engine, topics, unique):
    topics.produce(topics.create(unique), [order(n) for n in range(200)])
    topics.create(f"{unique}-out", 2)
    windows = "SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(placed, '1 minute')"
    text = "tasks.max = 2\n" + orders(unique, 'watermark = "placed 0 seconds"') + transform(windows)
    sink = f'[sink]\nconnector = "topic"\ntopic = "{unique}-out"\nkey.fields = "minute"\n'
    engine.run(text, sink)
    engine.run(text, sink, rewinds=True)
    assert sorted(value for _, value, _ in all_records(engine.servers, f"{unique}-out")) == [
        b'{"minute":"2026-01-01T00:%02d:00.000000Z","n":60}' % minute for minute in range(3)
    ]
    assert committed(engine, unique, 1) == [200]
