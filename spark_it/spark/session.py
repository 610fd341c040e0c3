"""The Spark session of one pipeline: small and quiet on this machine, and configured by `spark.*` keys."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from odradek.spark_it.definition.sink_keys import DeltaSink, IcebergSink, JdbcSink
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.spark import daemon, packages


class SessionError(Exception):
    """A Spark that does not start; `str()` says why."""


def build(
    pipeline: Pipeline, master: str | None = None, log: Path | None = None, *, needs_connectors: bool = True
) -> SparkSession:
    """Starts Spark for a pipeline; `master` goes before the file's. What Java says goes to `log`.

    Raises SessionError, and PackagesError for connectors that cannot be had.
    """
    master = master or pipeline.settings.master
    settings = settings_of(pipeline, master)
    if needs_connectors:
        settings |= connectors_of(pipeline, settings)
    _prepare_environment(pipeline, is_local=is_local(master))
    quieten()
    builder = SparkSession.builder.appName(pipeline.name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _errors_into(log):
        try:
            session = builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as error:
            raise SessionError(f"Spark does not start: {why(error, log)}") from None
        except Exception as error:
            # py4j's errors, of which Java's message is a part
            raise SessionError(f"Spark does not start: {why(error, log)}") from None
    session.sparkContext.setLogLevel("WARN" if log is not None else "OFF")
    return session


def quieten() -> None:
    """PySpark would print what is said in a line, with Java's stack."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def is_local(master: str) -> bool:
    return master.startswith("local")


def settings_of(pipeline: Pipeline, master: str) -> dict[str, str]:
    """Configuration of the session but for connectors. What the file says goes before what is said here."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(pipeline.settings.tasks_max),
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Else a source in Python that repeats a batch takes nothing more before it ends.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
        # Else Python tells Java where it is for each column it makes, by several calls more.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # The last field of a name counts, as in an object with a schema. By default a repeated name makes VARIANT, and
        # with it `_rescued`, null.
        "spark.sql.variant.allowDuplicateKeys": "true",
    }
    if any(step.python is not None for step in pipeline.transforms):
        # What `transformWithStateInPandas` asks for; for other state Spark's default begins faster.
        settings["spark.sql.streaming.stateStore.providerClass"] = (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.python.daemon.module": daemon.MODULE,
        }
    sink = pipeline.sink
    if isinstance(sink, DeltaSink):
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Its fifty tasks for reading the table's log take longer here than most batches.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    if isinstance(sink, JdbcSink):
        # What two copies of a task write makes the batch be written again.
        settings["spark.speculation"] = "false"
    if isinstance(sink, IcebergSink):
        settings["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    return settings | {f"spark.{key}": value for key, value in pipeline.settings.passed["spark."].items()}


def connectors_of(pipeline: Pipeline, settings: Mapping[str, str]) -> dict[str, str]:
    """Configuration that brings the jars of connectors: those of plugin.path, else those of spark.jars, else what the
    pipeline needs beside what spark.jars.packages names. Raises PackagesError.
    """
    folder = pipeline.settings.plugin_path
    more = settings.get("spark.jars", "").split(",") if settings.get("spark.jars") else []
    if folder is not None:
        return {"spark.jars": ",".join([*packages.in_folder(pipeline, folder), *more])}
    if more:
        return {}
    given = filter(None, map(str.strip, settings.get("spark.jars.packages", "").split(",")))
    needed = packages.of(pipeline, list(given))
    return {"spark.jars.packages": ",".join(needed)} if needed else {}


def _prepare_environment(pipeline: Pipeline, *, is_local: bool) -> None:
    """What Java and Python's workers take from the environment: this Python, and modules beside the file."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    folder = str(pipeline.folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Workers are to find the modules beside the file, and this package rather than another installation of it.
    package = str(Path(__file__).absolute().parents[2])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([package, folder, *paths]))


@contextlib.contextmanager
def _errors_into(log: Path | None) -> Iterator[None]:
    """Gives processes that are started meanwhile another standard error: what they say is for experts."""
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if log else os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(2)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


_NOT_FOUND = re.compile(r"unresolved dependency: ([^#\s]+)#([^;\s]+);(\S+): not found")


def why(error: Exception, log: Path | None) -> str:
    """Why Spark did not start: the line of Java's own that tells most, else what Python says."""
    if log is not None:
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
            if missing := _NOT_FOUND.search("\n".join(lines)):
                group, artifact, version = missing.groups()
                return (
                    f"{group}:{artifact}:{version} is in none of the repositories that Spark asks, or none answers: "
                    "put the connectors' jars into a folder and name it with plugin.path, or name a repository with "
                    f"spark.jars.repositories (more in {log})"
                )
            telling = [line for line in lines if "Exception" in line]
            if telling:
                return f"{telling[-1]} (more in {log})"
            if lines:
                return f"{lines[-1]} (more in {log})"
    return str(error).strip().split("\n")[0] or type(error).__name__


def has_ended(session: SparkSession, within_s: float = 0.0) -> bool:
    """Whether Spark's Java process has ended by itself, or does so soon: the system may have killed it."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(session: SparkSession) -> None:
    """Stops Spark and ends its Java process, which otherwise stays until Python ends."""
    if has_ended(session):
        return
    context = session.sparkContext
    gateway = context._gateway
    session.stop()
    if gateway is not None and hasattr(gateway, "proc"):
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)
        type(context)._gateway = None
        type(context)._jvm = None
