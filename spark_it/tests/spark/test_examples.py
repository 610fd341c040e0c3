"""The shipped examples: their own tests pass, and their output, read without Spark, equals what plain Python computes
from the same data."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pyarrow.parquet
import pytest

from compat_tests import limits, processes
from compat_tests.apache_kafka import jars
from odradek.spark_it.cases import runner as cases
from odradek.spark_it.dead_letters.headers import CLASS_NAME, EXCEPTION_MESSAGE, STAGE
from odradek.spark_it.definition.reader import load
from odradek.spark_it.examples import edits_data, orders_data, sensors_data
from odradek.spark_it.examples.__main__ import EXAMPLES, copy_example
from odradek.spark_it.examples.topics import ExampleBroker
from odradek.spark_it.execution import runner
from odradek.spark_it.state.progress import read_progress
from odradek.spark_it.validation.spark_analysis import SparkAnalysis
from spark_it.tests.fake_registry import serving
from spark_it.tests.tables import iceberg_files

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "pipelines.md"
PROGRAM = """
import os, sys, pathlib
from odradek.spark_it.cases import runner as cases
from odradek.spark_it.definition.reader import load
from odradek.spark_it.execution import runner
from odradek.spark_it.spark import session
from odradek.spark_it.validation.spark_analysis import SparkAnalysis
pipeline = load(pathlib.Path(sys.argv[1]), os.environ)
spark = session.build(pipeline, "local[2]")
stateful, problems = SparkAnalysis(spark)(pipeline)
failed = [one for one in cases.run(pipeline, spark, stateful) if one.problems]
if failed or problems:
    sys.exit(f"{failed} {problems}")
runner.run(pipeline, runner.Options(True), print, spark=spark)
runner.run(pipeline, runner.Options(True, rewinds=True), print, spark=spark)
session.end(spark)
"""
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Runs:
    """Pipelines of a folder, on the tests' broker and in a session of their own."""

    def __init__(self, spark, broker, folder, environment):
        self.broker = ExampleBroker(broker.bootstrap_servers)
        self.folder = folder
        self.environment = {"BROKERS": broker.bootstrap_servers, **environment}
        self.said = []
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)

    def pipeline(self, file):
        return load(self.folder / file, self.environment)

    def run(self, file, **options):
        pipeline = self.pipeline(file)
        runner.run(pipeline, runner.Options(True, **options), self.said.append, spark=self._spark)
        return read_progress(pipeline.state_folder)

    def failed_cases(self, file):
        pipeline = self.pipeline(file)
        stateful, problems = SparkAnalysis(self._spark)(pipeline)
        assert problems == [] and pipeline.cases
        return [result for result in cases.run(pipeline, self._spark, stateful) if result.problems]

    def dead_letters(self, topic):
        """The value and the headers, by name, of each dead letter."""
        found = []
        for message in self.broker.read_records(topic):
            headers = message.headers()
            assert isinstance(headers, list)
            found.append((message.value(), dict(headers)))
        return found


@pytest.fixture
def example(spark, broker, tmp_path):
    """Copy an example to a folder and produce its data: example(name, VARIABLE=value)."""

    def made(name, **environment):
        found = Runs(spark, broker, copy_example(name, tmp_path), environment)
        assert EXAMPLES[name].fill(found.broker, found.folder)
        return found

    return made


def test_the_first_pipeline_of_the_page(spark, broker, tmp_path):
    _, _, text = PAGE.read_text("utf-8").partition("## A first pipeline")
    [python], [toml] = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[:1] for kind in ("python", "toml"))
    here = broker.bootstrap_servers
    exec(python.replace("localhost:9092", here), {})
    (tmp_path / "visits.toml").write_text(toml.replace("localhost:9092", here), "utf-8")
    visits = Runs(spark, broker, tmp_path, {})
    assert visits.failed_cases("visits.toml") == []
    progress = visits.run("visits.toml")
    assert (progress.read, progress.written, progress.dead_lettered, progress.dropped) == (4, 2, 1, 1)
    rows = [json.loads(line) for file in tmp_path.glob("slow/batch=*/*.json") for line in file.read_text().splitlines()]
    assert sorted(rows, key=str) == [{"page": "/cart", "seconds": 1.7}, {"page": "/pay", "seconds": 2.9}]
    assert [value for value, _ in visits.dead_letters("visits.bad")] == [b"oops"]


@pytest.mark.timeout(limits.LONG_TEST_S)
def test_orders_have_the_revenue_that_python_computes(spark, broker, postgres, tmp_path):
    orders = Runs(spark, broker, copy_example("orders", tmp_path), {})
    assert orders.failed_cases("orders.toml") == []
    access = {"URL": postgres.jdbc_url, "USER": postgres.user, "PASSWORD": postgres.password}
    named = {f"ODRADEK_DEMO_JDBC_{name}": value for name, value in access.items()}
    said = output_of(["-m", "demo"], {"ODRADEK_DEMO_BROKERS": broker.bootstrap_servers, **named})
    assert "source orders: lag 0" in said
    made = orders_data.make_orders()
    assert min(made.bad, made.late, made.too_late) > 50
    rows = postgres.rows("SELECT minute, country, orders, revenue FROM example_revenue")
    assert {(in_utc(minute), country): of for minute, country, *of in rows} == {
        at: list(of) for at, of in orders_data.compute_revenue(made.records).items()
    }
    assert len(rows) == len(orders_data.compute_revenue(made.records))
    dead = orders.dead_letters(orders_data.DEAD_LETTERS)
    bad = [value for _, value in made.records if orders_data.parse_order(value) is None]
    assert Counter(value for value, _ in dead) == Counter(bad)
    assert len(bad) == made.bad
    assert {headers[STAGE] for _, headers in dead} == {b"VALUE_CONVERTER", b"TRANSFORMATION"}
    assert {headers[CLASS_NAME] for _, headers in dead} == {b"json", b"complete", b"positive"}
    assert all(headers[EXCEPTION_MESSAGE] for _, headers in dead)


def in_utc(at):
    """Return a timestamp in UTC; one without a zone is in UTC already."""
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


@pytest.mark.timeout(limits.LONG_TEST_S)
def test_page_edits_become_sessions_exactly_once(example):
    edits = example("page_edits")
    made = edits_data.make_edits()
    in_its_own_process(edits, "page_edits.toml", jars.spark_connector_jars())
    messages = list(edits.broker.read_records(edits_data.SESSIONS))
    found = [json.loads(message.value()) for message in messages]
    assert [message.key().decode() for message in messages] == [one["user"] for one in found]
    times = ("began", "ended")
    sessions = [one | {name: datetime.fromisoformat(one[name]) for name in times} for one in found]
    assert sorted(edits_data.EditSession(**one) for one in sessions) == edits_data.compute_sessions(made.records)
    bad = [value for _, value in made.records if not is_json(value)]
    assert Counter(value for value, _ in edits.dead_letters(edits_data.DEAD_LETTERS)) == Counter(bad)
    assert len(bad) == made.bad > 10


def in_its_own_process(example, file, connectors):
    """Run an example with the jars of a folder and the modules beside its file: its tests, a run, and the last batch a
    second time, as after a crash between sink and checkpoint."""
    path = example.folder / file
    plugins = example.folder / "jars"
    plugins.mkdir()
    for jar in connectors:
        (plugins / jar.name).symlink_to(jar)
    path.write_text(f'plugin.path = "jars"\nspark.sql.codegen.wholeStage = "false"\n{path.read_text("utf-8")}', "utf-8")
    assert "repeating batch" in output_of(["-c", PROGRAM, str(path)], example.environment)


def output_of(arguments, environment):
    """Run Python with these arguments; it must succeed. Return its output."""
    options = {"cwd": ROOT, "env": os.environ | environment, "text": True, "start_new_session": True}
    command = [sys.executable, *arguments]
    process = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    try:
        said, _ = process.communicate(timeout=limits.SPARK_PROCESS_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return said


def is_json(value):
    try:
        return bool(json.loads(value))
    except ValueError:
        return False


@pytest.mark.timeout(limits.LONG_TEST_S)
def test_sensor_readings_continue_with_one_more_column(example):
    with serving() as registry:
        sensors = example("sensors", SCHEMA_REGISTRY_URL=registry.url)
        for file in ("files_to_topic.toml", "files_to_topic_2.toml"):
            assert sensors.failed_cases(file) == []
        made = sensors_data.make_readings()
        sensors.run("files_to_topic.toml")
        sensors.run("topic_to_table.toml")
        assert in_table(sensors) == sorted(made.first.readings)
        for later in (sensors.folder / sensors_data.LATER_FOLDER).iterdir():
            later.rename(sensors.folder / sensors_data.READ_FOLDER / later.name)
        sensors.run("files_to_topic_2.toml")
        sensors.run("topic_to_table.toml")
        expected = sorted(made.first.readings + made.second.readings, key=by_time)
        assert sorted(in_table(sensors), key=by_time) == expected
        assert sorted(in_topic(sensors, registry), key=by_time) == expected
        versions = registry.subjects[f"{sensors_data.TOPIC}-value"]
        assert len(versions) == 2
    bad = {tuple(line.split(",")[:2]) for half in (made.first, made.second) for line in half.bad}
    assert len(bad) == len(made.first.bad) + len(made.second.bad) > 10
    dead = [value.decode() for value, _ in sensors.dead_letters(sensors_data.DEAD_LETTERS)]
    assert len(dead) == len(bad)


def by_time(reading):
    return reading.at, reading.sensor


def in_table(sensors):
    """Rows of the Iceberg table, by pyarrow."""
    rows = []
    for file in iceberg_files(sensors.folder / "warehouse" / "example" / "readings"):
        for row in pyarrow.parquet.ParquetFile(file).read().to_pylist():
            rows.append(sensors_data.Reading(row["sensor"], in_utc(row["at"]), row["celsius"], row.get("humidity")))
    return sorted(rows)


def in_topic(sensors, registry):
    """Readings in the topic, by fastavro and the registry's schemas."""
    for message in sensors.broker.read_records(sensors_data.TOPIC):
        framed = message.value()
        assert framed[0] == 0
        schema = json.loads(registry.schemas[int.from_bytes(framed[1:5]) - 1]["schema"])
        row = fastavro.schemaless_reader(io.BytesIO(framed[5:]), schema)
        assert isinstance(row, dict) and message.key().decode() == row["sensor"]
        yield sensors_data.Reading(row["sensor"], row["at"], row["celsius"], row.get("humidity"))
