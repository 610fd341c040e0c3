"""Sources and functions in Python, files as sources, and topics that are created later."""

import gc
import gzip
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet
import pyspark
import pytest

from odradek.spark_it.dead_letters.headers import FILE, LINE, PREFIX
from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.execution.preflight import RefusedError
from odradek.spark_it.execution.runner import RunError
from odradek.spark_it.formats.registry import add_schema_id
from odradek.spark_it.spark.events import Events, read_newest_event
from spark_it.tests.fake_registry import serving
from spark_it.tests.records import values
from spark_it.tests.spark import pieces
from spark_it.tests.spark.engine import Engine, all_records, errors, order, orders, transform

PIECES = pieces.__name__


@pytest.fixture
def engine(spark, broker, tmp_path, unique):
    return Engine(spark, broker.bootstrap_servers, tmp_path, unique)


def function(name, more="", step="step"):
    return f'[[transform]]\nname = "{step}"\npython = "{PIECES}.{name}"\n{more}'


def letters(engine, rows, name="Letters"):
    file = engine.folder / "rows"
    file.write_text(str(rows))
    return f'[source.letters]\nconnector = "python:{PIECES}.{name}"\noptions.rows = "{file}"\n'


def test_modules_that_workers_have_loaded_before_their_first_task(spark):
    def look(_):
        return pyspark.__file__, "odradek.spark_it.sinks.topic_tasks" in sys.modules, gc.get_freeze_count() > 0

    assert spark.sparkContext.parallelize([0], 1).map(look).collect() == [(pyspark.__file__, True, True)]


def test_events_come_once_and_in_order(spark, tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"{number}\n")
    source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path))
    query = source.writeStream.format("noop").trigger(availableNow=True).start()
    events = Events(query)
    found = []
    while not query.awaitTermination(0.05):
        found += events.read_new()
    found += events.read_new()
    assert [(event["batchId"], event["numInputRows"]) for event in found] == [(batch, 1) for batch in range(5)]
    assert events.read_new() == []
    assert read_newest_event(query) == found[-1]


def test_a_data_source_in_python(engine, topics, unique):
    topics.create(unique, 2)
    topics.create(f"{unique}-dead")
    must = '[expect.letters]\nknown = { sql = "letter <> \'c\'", action = "dead-letter" }\n'
    sink = f'[sink]\nconnector = "topic"\ntopic = "{unique}"\nkey.fields = "number"\n'
    engine.run("tasks.max = 2\n" + letters(engine, 5) + must + errors(f"{unique}-dead"), sink)
    assert engine.counters() == (5, 4, 1, 0)
    # The second run repeats the last batch, then continues at the current position.
    engine.run("tasks.max = 2\n" + letters(engine, 7) + must + errors(f"{unique}-dead"), sink, rewinds=True)
    assert sorted(int(key) for key, _, _ in all_records(engine.servers, unique)) == [0, 1, 3, 4, 5, 6]
    [(key, value, _)] = all_records(engine.servers, f"{unique}-dead")
    assert (key, value) == (None, b'{"number":2,"letter":"c"}')


def test_transforms_in_python(engine, topics, unique):
    topics.produce(topics.create(unique), [order(1, 5), order(2, 7)])
    text = orders(unique) + function("doubled", step="doubled")
    kept = engine.run(text + function("both", 'input = "doubled, orders"\n') + transform("SELECT * FROM step", "every"))
    assert sorted((row.id, int(row.amount)) for row in kept.rows) == [(1, 5), (1, 10), (2, 7), (2, 14)]


def test_errors_of_sources_and_transforms_in_python(engine, topics, unique):
    topics.create(unique)
    source = orders(unique)
    for text, said in (
        (source + function("broken"), "transform step: A column, variable, or function parameter with name `idd`"),
        (source + function("nothing"), f"transform step: {PIECES}.nothing returns NoneType, not a data frame"),
        (source + function("ends"), f"transform step: {PIECES}.ends: ValueError: no more"),
        (source + function("missing"), f"transform step: {PIECES}.missing: AttributeError: "),
        (letters(engine, 1, "missing"), f"source.letters: {PIECES}.missing: "),
        (letters(engine, 1, "doubled"), f"source.letters: {PIECES}.doubled is not a pyspark.sql.datasource."),
    ):
        with pytest.raises(PipelineError) as wrong:
            engine.run(text)
        message = str(wrong.value)
        assert message.partition(": ")[2].startswith(said) and "\n" not in message
    with pytest.raises(RunError) as failed:
        engine.run(letters(engine, 1, "Silent"))
    assert "nothing to read" in str(failed.value) and "\n" not in str(failed.value)


def files(form, schema="", more=""):
    schema = f'schema = "{schema}"\n' if schema else ""
    return f'[source.rows]\nconnector = "files"\npath = "in"\nformat = "{form}"\n{schema}{more}'


def test_files_of_json_and_text_and_parquet(engine, topics, unique):
    """One pipeline for each format, in a folder of its own."""
    topics.create(f"{unique}-dead")
    found = {}
    for form, schema in (("json", "id INT, name STRING"), ("text", ""), ("parquet", "id INT, name STRING")):
        place = engine.folder / form
        (place / "in").mkdir(parents=True)
        one = Engine(engine.spark, engine.servers, place, f"{unique}-{form}")
        text = files(form, schema, "max.files.per.trigger = 1\n") + errors(f"{unique}-dead")
        for number in (1, 2):
            into = place / "in" / f"{number}.{form}"
            if form == "parquet":
                pa.parquet.write_table(pa.table({"id": pa.array([number], pa.int32()), "name": ["x"]}), into)
            else:
                two = '\n{"id": 8}{"id": 9}\n' if form == "json" else ""
                into.write_text(f'{{"id": {number}, "name": "x"}}\nno row\n{two}', "utf-8")
            kept = one.run(text)
        found[form] = (sorted(map(tuple, kept.rows)), one.counters())
    assert found == {
        "json": ([(1, "x"), (2, "x")], (3, 1, 2, 0)),
        "text": ([("no row",), ("no row",), ('{"id": 1, "name": "x"}',), ('{"id": 2, "name": "x"}',)], (2, 2, 0, 0)),
        "parquet": ([(1, "x"), (2, "x")], (1, 1, 0, 0)),
    }
    dead = all_records(engine.servers, f"{unique}-dead")
    assert [value for _, value, _ in dead] == [b"no row", b'{"id": 8}{"id": 9}'] * 2
    assert [dict(headers)[LINE] for _, _, headers in dead] == [b"2", b"4"] * 2


def test_dead_letters_name_file_and_line(engine, topics, unique):
    """Lines are numbered from 1, in whatever blocks Spark reads a file."""
    topics.create(f"{unique}-dead")
    folder = engine.folder / "in"
    folder.mkdir()
    many = [f"{n},{'y' * (n % 7)}" for n in range(2, 301)]
    for at in (17, 150, 299):
        many[at - 2] = f"bad {at},y"
    files_ = {
        # Blocks of 400 bytes, blank lines before and after the header, and a name that is escaped in a URI.
        "a b%20#x.csv": "\n".join(["", "id,name", "", *many[2:], ""]).encode(),
        # Equal lines, and the header a second time.
        "same.csv": b"id,name\r\nx,y\r\nid,name\r\nx,y\r\n1,\r\n\xff,y\r\n",
        "often.csv": b"id,name\n" + b"x,y\n" * 12,
        "packed.csv.gz": gzip.compress(b"id,name\n1,\nz,y"),
        "odd.csv": b"id,name\n-1,\n-2,x\n",
    }
    for name, content in files_.items():
        (folder / name).write_bytes(content)
    text = files("csv", "id INT, name STRING") + errors(f"{unique}-dead")
    text += '[expect.rows]\nis_positive = { sql = "id > 0", action = "dead-letter" }\n'
    size = "spark.sql.files.maxPartitionBytes"
    engine.spark.conf.set(size, "400b")
    try:
        engine.run(text)
    finally:
        engine.spark.conf.unset(size)
    found = Counter()
    for _, value, headers in all_records(engine.servers, f"{unique}-dead"):
        assert all(name.startswith(PREFIX) for name, _ in headers)
        file, line = (dict(headers).get(name) for name in (FILE, LINE))
        found[unquote(Path(file.decode()).name), value.decode(errors="replace"), line and line.decode()] += 1
    expected: dict[tuple[str, str, str | None], int] = {
        **{("a b%20#x.csv", f"bad {at},y", str(at)): 1 for at in (17, 150, 299)},
        ("same.csv", "x,y", "2,4"): 2,
        ("same.csv", "id,name", "3"): 1,
        ("same.csv", "\ufffd,y", "6"): 1,
        ("often.csv", "x,y", "2,3,4,5,6,7,8,9,10,11,..."): 12,
        ("packed.csv.gz", "z,y", "3"): 1,
        ("odd.csv", '{"id":-1}', None): 1,
        ("odd.csv", '{"id":-2,"name":"x"}', None): 1,
    }
    assert found == expected


def test_a_file_name_that_is_a_pattern_is_refused(engine):
    """In a batch of several files Spark expands a name with such characters, and would read other files twice."""
    folder = engine.folder / "in"
    folder.mkdir()
    (folder / "a.text").write_text("a\n", "utf-8")
    (folder / "b[1].text").write_text("b\n", "utf-8")
    with pytest.raises(RunError, match=r"source rows: a file or folder name contains one of .*/in/b%5B1%5D.text"):
        engine.run(files("text"))
    assert engine.kept.rows == []
    (folder / "b[1].text").rename(folder / "b.text")
    again = Engine(engine.spark, engine.servers, engine.folder, f"{engine.name}-again")
    assert sorted(row.value for row in again.run(files("text")).rows) == ["a", "b"]


def test_a_new_file_with_an_old_modification_time(engine):
    """`mv` and `rsync` keep the modification time of a file."""
    folder = engine.folder / "in"
    folder.mkdir()
    for name, age_days in (("new", 0), ("old", 400)):
        (folder / f"{name}.text").write_text(f"{name}\n", "utf-8")
        os.utime(folder / f"{name}.text", times=(time.time() - age_days * 86_400,) * 2)
        kept = engine.run(files("text"))
    assert [row.value for row in kept.rows] == ["new", "old"]
    engine.run(files("text"))
    assert len(kept.rows) == 2


def test_folders_that_are_named_like_a_partition_column(engine):
    inner = engine.folder / "in" / "day=2026-01-01"
    inner.mkdir(parents=True)
    (inner / "a.json").write_text('{"n": 1}\n', "utf-8")
    # The schema alone determines the columns, whatever folders exist when a run starts.
    kept = engine.run(files("json", "n INT"))
    assert [row.asDict() for row in kept.rows] == [{"n": 1}]
    other = Engine(engine.spark, engine.servers, engine.folder, f"{engine.name}-day")
    kept = other.run(files("json", "n INT, day STRING"))
    assert [row.asDict() for row in kept.rows] == [{"n": 1, "day": "2026-01-01"}]


def test_a_topic_that_is_created_later(engine, topics, unique):
    topics.produce(topics.create(f"{unique}-in1"), [order(n) for n in range(5)])
    out = topics.create(f"{unique}-out")
    text = orders(unique).replace(f'topics = "{unique}"', f'topics.regex = "{unique}-in.*"')
    sink = f'[sink]\nconnector = "topic"\ntopic = "{out}"\n'
    together = Engine(engine.spark, engine.servers, engine.folder, f"{unique}-together")
    step = transform("SELECT id FROM orders") + "stateful = true\n"
    engine.run(text, sink)
    kept = together.run(text + step)
    topics.produce(topics.create(f"{unique}-in2"), [order(n) for n in range(5, 8)])
    topics.add_partitions(f"{unique}-in1", 2)
    topics.produce(f"{unique}-in1", [order(n) for n in range(8, 10)], partition=1)
    engine.run(text, sink)
    engine.run(text, sink, rewinds=True)
    written = values(engine.servers, out)
    assert len(written) == len(set(written)) == 10
    # The first records of this topic were deleted before the pipeline could read them.
    topics.produce(topics.create(f"{unique}-in3"), [order(n) for n in range(10, 15)])
    topics.delete_records_before(f"{unique}-in3", 0, 2)
    engine.run(text, sink)
    together.run(text + step)
    for one in (engine, together):
        assert one.said.count(f"{unique}-in3-0 is new and starts at offset 2") == 1
    engine.run(text, sink, rewinds=True)
    numbers = [*range(10), *range(12, 15)]
    assert sorted(json.loads(value)["id"] for value in values(engine.servers, out)) == numbers
    assert sorted(row.id for row in kept.rows) == numbers
    # From now on deleted records are lost.
    topics.produce(f"{unique}-in3", [order(n) for n in range(15, 20)])
    topics.delete_records_before(f"{unique}-in3", 0, 7)
    with pytest.raises(RefusedError, match=f"records 5 to 6 of {unique}-in3-0 were deleted before they were read"):
        engine.run(text, sink)


def test_a_topic_that_is_created_later_with_all_records_deleted(engine, topics, unique):
    """The first records of the topic are in a batch after the one that first planned it."""
    topics.produce(topics.create(f"{unique}-in1"), [order(n) for n in range(5)])
    out = topics.create(f"{unique}-out")
    text = orders(unique).replace(f'topics = "{unique}"', f'topics.regex = "{unique}-in.*"\nfail.on.data.loss = false')
    sink = f'[sink]\nconnector = "topic"\ntopic = "{out}"\n'
    engine.run(text, sink)
    topics.produce(topics.create(f"{unique}-in2"), [order(n) for n in range(5, 10)])
    topics.delete_records_before(f"{unique}-in2", 0, 5)
    topics.produce(f"{unique}-in1", [order(n) for n in range(10, 12)])
    engine.run(text, sink)
    topics.produce(f"{unique}-in2", [order(n) for n in range(12, 15)])
    engine.run(text, sink)
    engine.run(text, sink, rewinds=True)
    numbers = [*range(5), *range(10, 15)]
    assert sorted(json.loads(value)["id"] for value in values(engine.servers, out)) == numbers


def test_a_schema_that_appears_and_disappears_during_a_batch(engine, topics, unique):
    """Rows and dead letters are decoded separately, here by new workers, which have no schema in their cache."""
    topics.create(f"{unique}-dead")
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})
    environment = engine.spark._jvm.org.apache.spark.SparkEnv.get().conf()
    environment.set("spark.python.worker.reuse", "false")
    try:
        with serving() as registry:
            record = add_schema_id(registry.add(schema), b"\x0a")
            topics.produce(topics.create(unique), [(None, record)])
            text = f"""
[source.records]
connector = "topic"
topics = "{unique}"
value.format = "avro"
value.schema = '''{schema}'''
schema.registry.url = "{registry.url}"
{transform("SELECT a FROM records")}
stateful = true
{errors(f"{unique}-dead")}
"""

            def counts():
                rows = engine.kept.rows
                assert {row.a for row in rows} <= {5}
                return len(rows) + len(all_records(engine.servers, f"{unique}-dead"))

            registry.fails = [404]
            engine.run(text)
            assert counts() == 1
            topics.produce(unique, [(None, record)])
            engine.run(text)
            assert counts() == 2 and [row.a for row in engine.kept.batches[-1][1]] == [5]
            registry.schemas.clear()
            engine.run(text, rewinds=True)
            first, again = engine.kept.batches[-2:]
            assert first == again and len(all_records(engine.servers, f"{unique}-dead")) <= 1
    finally:
        environment.remove("spark.python.worker.reuse")
