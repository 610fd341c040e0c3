"""The `validate` and `test` commands with Spark, in a small session with only the connectors of databases."""

import contextlib
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it.cases import runner
from odradek.spark_it.databases.dialects import find_dialect
from odradek.spark_it.databases.jdbc import Database, DatabaseError, NoDriverError
from odradek.spark_it.definition.guarantees import DeliveryGuarantee, find_stateful_reason
from odradek.spark_it.definition.passwords import hide_passwords
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.source_keys import JdbcSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.interfaces.source import SourceError
from odradek.spark_it.sinks.jdbc_target import Preparation
from odradek.spark_it.sources.connectors import make_stream
from odradek.spark_it.spark import session
from odradek.spark_it.spark.packages import PackagesError
from odradek.spark_it.spark.session import SessionError
from odradek.spark_it.validation import report
from odradek.spark_it.validation.spark_analysis import SparkAnalysis

FAILURES = (SessionError, PackagesError, SourceError, SinkError)


@contextlib.contextmanager
def _open_session(pipeline: Pipeline, master: str, *, connects_sink: bool = False) -> Iterator[SparkSession]:
    """Start and end a session. It has JDBC drivers if a source is a database, whose columns only the database has."""
    needs_connectors = any(isinstance(source, JdbcSource) for source in pipeline.sources.values())
    needs_connectors = needs_connectors or (connects_sink and isinstance(pipeline.sink, JdbcSink))
    spark = session.build(pipeline, master, needs_connectors=needs_connectors)
    try:
        yield spark
    finally:
        session.end(spark)


def validate(pipeline: Pipeline, log: Callable[[str], None]) -> DeliveryGuarantee:
    """Return the guarantee of a pipeline after Spark's analysis. If that fails, call `log` with the reason.

    Raises PipelineError.
    """
    try:
        with _open_session(pipeline, "local[1]") as spark:
            return report.validate(pipeline, SparkAnalysis(spark))
    except FAILURES as error:
        log(f"Spark analysis failed: {error}")
        return report.validate(pipeline)


def validate_with_tables(pipeline: Pipeline, log: Callable[[str], None]) -> tuple[DeliveryGuarantee, list[str]]:
    """Do the same as `validate`, and return lines about the database tables that the pipeline reads and writes.

    Raises PipelineError, and FAILURES for a database or table that does not exist or does not match.
    """
    if not any(isinstance(part, JdbcSource | JdbcSink) for part in (pipeline.sink, *pipeline.sources.values())):
        return validate(pipeline, log), []
    with _open_session(pipeline, "local[1]", connects_sink=True) as spark:
        analysis = SparkAnalysis(spark)
        pipeline_guarantee = report.validate(pipeline, analysis)
        return pipeline_guarantee, [*_describe_tables(pipeline, spark, analysis.schema)]


def _describe_tables(pipeline: Pipeline, spark: SparkSession, rows: StructType) -> Iterator[str]:
    for name, source in pipeline.sources.items():
        if isinstance(source, JdbcSource):
            columns = len(make_stream(name, pipeline).schema(spark))
            what = f"table {source.table_whitelist}" if source.table_whitelist else "query"
            yield f"  source {name}: {what} exists, {_format_count(columns)}"
    sink = pipeline.sink
    if isinstance(sink, JdbcSink):
        column_count = _check_sink_table(pipeline.name, sink, spark, rows)
        what = (
            "does not exist yet; the pipeline creates it"
            if column_count is None
            else f"exists, {_format_count(column_count)}"
        )
        yield f"  sink: table {sink.table_name_format} {what}"


def _check_sink_table(name: str, sink: JdbcSink, spark: SparkSession, rows: StructType) -> int | None:
    """Return the number of columns of the sink's table; None if it does not exist. Raises SinkError if the table cannot
    store the rows."""
    dialect = find_dialect(sink.connection_url)
    try:
        database = Database(spark, sink.connection_url, sink.connection_user, sink.connection_password)
        with database.connect() as connection:
            return Preparation(sink, database, dialect, connection, name).check(rows)
    except (NoDriverError, SinkError) as error:
        raise SinkError(f"sink: {error}") from None
    except DatabaseError as error:
        raise SinkError(f"sink: database {hide_passwords(sink.connection_url)}: {error}") from None


def _format_count(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def run_tests(pipeline: Pipeline, log: Callable[[str], None]) -> bool:
    """Run the cases of the file, and return whether all passed. Raises PipelineError, and FAILURES.

    If a database is unavailable, its columns are inferred from the given rows.
    """
    with _open_session(pipeline, "local[2]") as spark:
        try:
            stateful, problems = SparkAnalysis(spark)(pipeline)
        except SourceError as error:
            log(f"Spark analysis failed: {error}")
            stateful, problems = find_stateful_reason(pipeline), []
        report.validate(pipeline, lambda _: (stateful, problems))
        results = list(runner.run(pipeline, spark, stateful))
    for line in runner.make_report(results):
        log(line)
    return not any(result.problems for result in results)
