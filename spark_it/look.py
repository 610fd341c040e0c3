"""`validate` with Spark: a small session of its own, without the connectors."""

from collections.abc import Callable

from odradek.spark_it import session, validation
from odradek.spark_it.analysis import Analysis
from odradek.spark_it.guarantees import Guarantee
from odradek.spark_it.packages import PackagesError
from odradek.spark_it.session import SessionError
from odradek.spark_it.source_settings import JdbcSource
from odradek.spark_it.sources import SourceError
from odradek.spark_it.spec import Pipeline


def validate(pipeline: Pipeline, say: Callable[[str], None]) -> Guarantee:
    """What a pipeline guarantees, with all that Spark knows; `say` hears why Spark could not look.

    The columns of a database's table are nowhere but there, so such a source is asked for them. Raises PipelineError.
    """
    asks = any(isinstance(source, JdbcSource) for source in pipeline.sources.values())
    try:
        spark = session.build(pipeline, "local[1]", needs_connectors=asks)
    except (SessionError, PackagesError) as error:
        say(f"Spark has not looked at it: {error}")
        return validation.validate(pipeline)
    try:
        return validation.validate(pipeline, Analysis(spark))
    except SourceError as error:
        say(f"Spark has not looked at it: {error}")
        return validation.validate(pipeline)
    finally:
        session.end(spark)
