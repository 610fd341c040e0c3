"""The Spark session of one pipeline: defaults for small local sessions, overridden by `spark.*` keys."""

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
    """Spark does not start; `str()` has the reason."""


def build(
    pipeline: Pipeline, master: str | None = None, log: Path | None = None, *, needs_connectors: bool = True
) -> SparkSession:
    """Start Spark for a pipeline; `master` overrides the key in the file. The JVM's standard error goes to `log`.

    Raises SessionError, and PackagesError for connectors that are not available.
    """
    master = master or pipeline.settings.master
    settings = make_settings(pipeline, master)
    if needs_connectors:
        settings |= make_connector_settings(pipeline, settings)
    _prepare_environment(pipeline, is_local=is_local(master))
    disable_query_context_log()
    builder = SparkSession.builder.appName(pipeline.name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _redirect_stderr(log):
        try:
            session = builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as error:
            raise SessionError(f"Spark does not start: {describe_start_failure(error, log)}") from None
        except Exception as error:
            # py4j's errors, which have no common base class
            raise SessionError(f"Spark does not start: {describe_start_failure(error, log)}") from None
    session.sparkContext.setLogLevel("WARN" if log is not None else "OFF")
    return session


def disable_query_context_log() -> None:
    """Disable PySpark's log of errors with their stack traces; this package reports each error in one line."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def is_local(master: str) -> bool:
    return master.startswith("local")


def make_settings(pipeline: Pipeline, master: str) -> dict[str, str]:
    """Return the session's configuration without connectors. Keys of the file override these defaults."""
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(pipeline.settings.tasks_max),
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Without this, an available-now run of a Python source that repeats a batch reads nothing after it.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
        # Without this, PySpark makes several additional JVM calls for each Column, to record the call site.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # The last of several JSON fields with one name is used, as with a schema. By default a duplicate makes the
        # VARIANT, and so `_rescued`, null.
        "spark.sql.variant.allowDuplicateKeys": "true",
    }
    if any(step.python is not None for step in pipeline.transforms):
        # `transformWithStateInPandas` requires RocksDB; otherwise Spark's default provider starts faster.
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
            # By default Delta Lake reads the table's log with fifty tasks, which takes longer than most local batches.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    if isinstance(sink, JdbcSink):
        # If a speculative copy of a task writes rows, the batch has to be retried.
        settings["spark.speculation"] = "false"
    if isinstance(sink, IcebergSink):
        settings["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    return settings | {f"spark.{key}": value for key, value in pipeline.settings.passed["spark."].items()}


def make_connector_settings(pipeline: Pipeline, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration for the connectors' jars: those of plugin.path, else of spark.jars, else the packages
    that the pipeline needs in addition to spark.jars.packages. Raises PackagesError.
    """
    folder = pipeline.settings.plugin_path
    jars = settings.get("spark.jars", "").split(",") if settings.get("spark.jars") else []
    if folder is not None:
        return {"spark.jars": ",".join([*packages.list_jars(pipeline, folder), *jars])}
    if jars:
        return {}
    given = filter(None, map(str.strip, settings.get("spark.jars.packages", "").split(",")))
    needed = packages.list_packages(pipeline, list(given))
    return {"spark.jars.packages": ",".join(needed)} if needed else {}


def _prepare_environment(pipeline: Pipeline, *, is_local: bool) -> None:
    """Set the environment of the JVM and the Python workers: this Python, and the modules in the file's folder."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    folder = str(pipeline.folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Workers must import the modules in the file's folder, and this package rather than another installation of it.
    package = str(Path(__file__).absolute().parents[2])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([package, folder, *paths]))


@contextlib.contextmanager
def _redirect_stderr(log: Path | None) -> Iterator[None]:
    """Redirect the standard error that child processes inherit to a file, because it is long and only for diagnosis."""
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if log else os.open(os.devnull, os.O_WRONLY)
    saved_stderr = os.dup(2)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(target)


_UNRESOLVED = re.compile(r"unresolved dependency: ([^#\s]+)#([^;\s]+);(\S+): not found")


def describe_start_failure(error: Exception, log: Path | None) -> str:
    """Return the reason why Spark did not start: the last exception in the JVM's log, else the Python error."""
    if log is not None:
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
            if missing := _UNRESOLVED.search("\n".join(lines)):
                group, artifact, version = missing.groups()
                return (
                    f"{group}:{artifact}:{version} was not found in the configured repositories, or they are not "
                    "reachable: put the connectors' jars into a folder and set plugin.path, or set "
                    f"spark.jars.repositories (details in {log})"
                )
            exception_lines = [line for line in lines if "Exception" in line]
            if exception_lines:
                return f"{exception_lines[-1]} (details in {log})"
            if lines:
                return f"{lines[-1]} (details in {log})"
    return str(error).strip().split("\n")[0] or type(error).__name__


def has_ended(session: SparkSession, within_s: float = 0.0) -> bool:
    """Return whether the Spark JVM has exited, for example because it was killed, or exits within `within_s`."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(session: SparkSession) -> None:
    """Stop Spark and its JVM, which would otherwise run until Python exits."""
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
