"""One turn of a pipeline: by the engine, as in `odradek pipeline run`, or by plain PySpark with Spark's own sinks.

Both are one query in one session, from the same topic by the same SQL, with the same trigger.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.measure import Contestant, MeasurementError, Values
from benchmarks.pipeline_data import PARTITIONS, SCHEMA, SQL, TABLE, count_in_files, count_records, kept, produce
from odradek.spark_it.definition.reader import parse
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.execution import runner
from odradek.spark_it.spark import session
from spark_it.tests.postgres import PostgreSQL

QUERY_TIMEOUT_S = 300
_SAID_S = 20
NONE: Mapping[str, str] = {}
REWRITING = {"reWriteBatchedInserts": "true"}


class BatchProgress(StreamingQueryListener):
    """The batches of the running query, as reported by Spark; there is one query at a time."""

    def __init__(self) -> None:
        self._batches: list[dict[str, Any]] = []
        self._ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        made = json.loads(event.progress.json)
        if made["numInputRows"]:
            self._batches.append(made)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._ended.set()

    def of(self, run: Callable[[], None]) -> list[dict[str, Any]]:
        """Return the batches of the query that `run` starts and waits for. Raises MeasurementError."""
        self._batches = []
        self._ended.clear()
        run()
        if not self._ended.wait(_SAID_S):
            raise MeasurementError("Spark does not report the end of the query")
        return self._batches


def compute_values(batches: list[dict[str, Any]], wall_s: float) -> Values:
    """Return rows per second from the end of the first batch to that of the last. Raises MeasurementError."""
    if len(batches) < 2:
        raise MeasurementError(f"the query has done {len(batches)} batches")
    first, *others = sorted(batches, key=lambda made: int(made["batchId"]))
    seconds = _end_s(others[-1]) - _end_s(first)
    return {
        "rows_per_s": sum(made["numInputRows"] for made in others) / seconds,
        "first_batch_s": first["durationMs"]["triggerExecution"] / 1000,
        "in_sink_s": sum(made["durationMs"]["addBatch"] for made in others) / 1000,
        "measured_s": seconds,
        "wall_s": wall_s,
        "load": os.getloadavg()[0],
    }


def _end_s(made: Mapping[str, Any]) -> float:
    began = datetime.fromisoformat(made["timestamp"])
    return began.timestamp() + float(made["durationMs"]["triggerExecution"]) / 1000


class PipelineSetup:
    """Spark, brokers with the records to read, a database and a folder, for all turns of a run."""

    def __init__(self, folder: Path, records: int, batches: int) -> None:
        self.folder = folder
        self.records = records
        self.per_batch = records // batches
        self.expected = kept(records)
        self.sources: dict[str, str] = {}
        self.contestants: dict[str, Contestant] = {}
        self.database: PostgreSQL | None = None
        self.spark: SparkSession
        self.progress = BatchProgress()
        self._turns = 0

    @contextlib.contextmanager
    def with_broker(self, name: str, contestant: Contestant) -> Iterator[None]:
        with contestant.topic(PARTITIONS) as topic:
            produce(contestant.broker.bootstrap_servers, topic, self.records)
            self.sources[name], self.contestants[name] = topic, contestant
            yield

    @contextlib.contextmanager
    def with_spark(self, jars: list[Path], java_home: Path) -> Iterator[None]:
        """Build the engine's session for a pipeline, with the connectors of all."""
        os.environ |= {"JAVA_HOME": str(java_home), "SPARK_LOCAL_DIRS": str(self.folder / "local")}
        for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"):
            os.environ.pop(name, None)
        settings = f'spark.jars = "{",".join(map(str, jars))}"\nspark.sql.warehouse.dir = "{self.folder}/warehouse"\n'
        any_broker = next(iter(self.sources))
        self.spark = session.build(
            self.pipeline("session", any_broker, 'connector = "console"', settings), log=self.folder / "spark.log"
        )
        try:
            self.spark.streams.addListener(self.progress)
            yield
        finally:
            session.end(self.spark)

    def pipeline(self, name: str, broker: str, sink: str, settings: str = "") -> Pipeline:
        text = f"""
name = "{name}"
bootstrap.servers = "{self.servers(broker)}"
trigger = "available-now"
{settings}
[source.orders]
connector = "topic"
topics = "{self.sources[broker]}"
value.schema = "{SCHEMA}"
max.offsets.per.trigger = {self.per_batch}

[[transform]]
name = "large"
sql = "{SQL}"

[sink]
{sink}
"""
        return parse(text, {}, file="benchmark.toml", folder=self.folder)

    def servers(self, broker: str) -> str:
        return self.contestants[broker].broker.bootstrap_servers

    def turn(self, work: str, broker: str, plain: Mapping[str, str] | None) -> Values:
        """Run one turn. `plain` are options of plain PySpark's sink; None is the engine. Raises MeasurementError."""
        self._turns += 1
        name = f"turn-{self._turns:03d}"
        with PLACES[work](self, name, broker) as place:
            if plain is None:
                run = self._engine(self.pipeline(name, broker, place.sink))
            else:
                run = self._plain(name, broker, lambda rows: place.write(rows, plain))
            began = time.monotonic()
            batches = self.progress.of(run)
            values = compute_values(batches, time.monotonic() - began)
            read, found = sum(made["numInputRows"] for made in batches), place.count()
        if (read, found) != (self.records, self.expected):
            raise MeasurementError(f"{read} records read and {found} rows written, not {self.records}, {self.expected}")
        return values

    def _engine(self, pipeline: Pipeline) -> Callable[[], None]:
        def report(line: str) -> None:
            if not line.startswith(("runs", "batch ")):
                print(f"           {line}", file=sys.stderr)

        def run() -> None:
            stop = threading.Event()
            runner.run(pipeline, runner.Options(), report, spark=self.spark, stop=stop)
            if stop.is_set():
                raise KeyboardInterrupt  # during the run a signal was interpreted as a request to stop it

        return run

    def _plain(self, name: str, broker: str, write: Callable[[DataFrame], Any]) -> Callable[[], None]:
        def run() -> None:
            reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers(broker))
            reader = reader.option("subscribe", self.sources[broker]).option("startingOffsets", "earliest")
            raw = reader.option("maxOffsetsPerTrigger", self.per_batch).load()
            orders = raw.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")
            orders.createOrReplaceTempView("orders")
            writer = write(self.spark.sql(SQL)).option("checkpointLocation", str(self.folder / name / "checkpoint"))
            query: StreamingQuery = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(QUERY_TIMEOUT_S):
                query.stop()
                raise MeasurementError(f"the query does not end in {QUERY_TIMEOUT_S} s")

        return run


class Files:
    """Parquet files in a folder."""

    def __init__(self, setup: PipelineSetup, name: str, broker: str) -> None:
        self._path = setup.folder / name / "out"
        self._state = setup.folder / "pipelines" / name
        self.sink = f'connector = "files"\npath = "{self._path}"\nformat = "parquet"'

    def write(self, rows: DataFrame, options: Mapping[str, str]) -> Any:
        return rows.writeStream.format("parquet").option("path", str(self._path))

    def count(self) -> int:
        return count_in_files(self._path)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in (self._path.parent, self._state):
            shutil.rmtree(folder, ignore_errors=True)


class Topic:
    """A topic of the broker that the pipeline reads from."""

    def __init__(self, setup: PipelineSetup, name: str, broker: str) -> None:
        self._servers = setup.servers(broker)
        self._created = setup.contestants[broker].topic(PARTITIONS)
        self._files = Files(setup, name, broker)

    def write(self, rows: DataFrame, options: Mapping[str, str]) -> Any:
        writer = rows.select(f.to_json(f.struct("*")).alias("value")).writeStream.format("kafka")
        return writer.option("kafka.bootstrap.servers", self._servers).option("topic", self._topic)

    def count(self) -> int:
        return count_records(self._servers, self._topic)

    def __enter__(self) -> Topic:
        self._topic = self._created.__enter__()
        self.sink = f'connector = "topic"\ntopic = "{self._topic}"'
        return self

    def __exit__(self, *_: object) -> None:
        self._files.__exit__()
        self._created.__exit__(None, None, None)


class Table:
    """A table of PostgreSQL."""

    def __init__(self, setup: PipelineSetup, name: str, broker: str) -> None:
        assert setup.database is not None
        self._database = setup.database
        self._table = name.replace("-", "_")
        self._files = Files(setup, name, broker)
        self.sink = (
            f'connector = "jdbc"\nconnection.url = "{self._database.jdbc_url}"\n'
            f'connection.user = "{self._database.user}"\nconnection.password = "{self._database.password}"\n'
            f'table.name.format = "{self._table}"'
        )

    def write(self, rows: DataFrame, options: Mapping[str, str]) -> Any:
        database = self._database
        all_options = {
            "url": database.jdbc_url,
            "user": database.user,
            "password": database.password,
            "driver": "org.postgresql.Driver",
            "dbtable": self._table,
            **options,
        }

        def append(batch: DataFrame, _: int) -> None:
            batch.write.format("jdbc").mode("append").options(**all_options).save()

        return rows.writeStream.foreachBatch(append)

    def count(self) -> int:
        return int(self._database.value(f"SELECT count(*) FROM {self._table}"))

    def __enter__(self) -> Table:
        self._database.execute(f"CREATE TABLE {self._table} {TABLE}")
        return self

    def __exit__(self, *_: object) -> None:
        self._files.__exit__()
        self._database.execute(f"DROP TABLE {self._table}")


PLACES: Mapping[str, Callable[[PipelineSetup, str, str], Any]] = {"files": Files, "topic": Topic, "jdbc": Table}
