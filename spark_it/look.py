"""`validate` with Spark, and `test`: a small session of its own, without the connectors."""

import contextlib
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession

from odradek.spark_it import cases, session, validation
from odradek.spark_it.analysis import Analysis
from odradek.spark_it.guarantees import Guarantee
from odradek.spark_it.packages import PackagesError
from odradek.spark_it.session import SessionError
from odradek.spark_it.source_settings import JdbcSource
from odradek.spark_it.sources import SourceError
from odradek.spark_it.spec import Pipeline

FAILURES = (SessionError, PackagesError, SourceError)


@contextlib.contextmanager
def _session(pipeline: Pipeline, master: str) -> Iterator[SparkSession]:
    """The columns of a database's table are nowhere but there, so such a source is asked for them."""
    asks = any(isinstance(source, JdbcSource) for source in pipeline.sources.values())
    spark = session.build(pipeline, master, needs_connectors=asks)
    try:
        yield spark
    finally:
        session.end(spark)


def validate(pipeline: Pipeline, say: Callable[[str], None]) -> Guarantee:
    """What a pipeline guarantees, with all that Spark knows; `say` hears why Spark could not look.

    Raises PipelineError.
    """
    try:
        with _session(pipeline, "local[1]") as spark:
            return validation.validate(pipeline, Analysis(spark))
    except FAILURES as error:
        say(f"Spark has not looked at it: {error}")
        return validation.validate(pipeline)


def test(pipeline: Pipeline, say: Callable[[str], None]) -> bool:
    """Runs the cases of the file, and whether all passed. Raises PipelineError, and FAILURES."""
    with _session(pipeline, "local[2]") as spark:
        found = Analysis(spark)(pipeline)
        validation.validate(pipeline, lambda _: found)
        results = list(cases.run(pipeline, spark, found[0]))
    for line in cases.lines(results):
        say(line)
    return not any(result.problems for result in results)
