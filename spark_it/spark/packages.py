"""Jars of a pipeline's connectors: Maven coordinates that Spark downloads, or files in a folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

from odradek.spark_it.definition.sink_keys import DeltaSink, IcebergSink, JdbcSink
from odradek.spark_it.definition.source_keys import JdbcSource, TopicSource
from odradek.spark_it.definition.spec import Pipeline

SCALA = "2.13"
DELTA = "4.0.0"
ICEBERG = "1.10.0"
DRIVERS = {
    "postgresql": "org.postgresql:postgresql:42.7.7",
    "sqlite": "org.xerial:sqlite-jdbc:3.50.1.0",
    "mysql": "com.mysql:mysql-connector-j:9.3.0",
    "mariadb": "org.mariadb.jdbc:mariadb-java-client:3.5.3",
    "sqlserver": "com.microsoft.sqlserver:mssql-jdbc:12.10.0.jre11",
}
"""JDBC drivers by the subprotocol of the URL, the word after `jdbc:`."""


class PackagesError(Exception):
    """Jars are not available; `str()` has the remedy."""


def list_packages(pipeline: Pipeline, given: Sequence[str] = ()) -> list[str]:
    """Return the given Maven coordinates and those of the pipeline's connectors, without duplicates. A given
    artifact replaces the default version of it.

    Raises PackagesError for a database without a known driver. With given coordinates the driver is assumed to be
    among them.
    """
    given_artifacts = {_get_artifact(one) for one in given}
    needed = _list_needed_packages(pipeline, may_be_unknown=bool(given))
    return list(dict.fromkeys([*given, *(one for one in needed if _get_artifact(one) not in given_artifacts)]))


def _get_artifact(coordinates: str) -> str:
    return coordinates.strip().rpartition(":")[0]


def _list_needed_packages(pipeline: Pipeline, *, may_be_unknown: bool) -> Iterator[str]:
    spark = pyspark.__version__
    parts = [pipeline.sink, *pipeline.sources.values()]
    if any(isinstance(source, TopicSource) for source in pipeline.sources.values()):
        yield f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{spark}"
    for part in parts:
        if isinstance(part, DeltaSink):
            yield f"io.delta:delta-spark_{SCALA}:{DELTA}"
        if isinstance(part, IcebergSink):
            series = ".".join(spark.split(".")[:2])
            yield f"org.apache.iceberg:iceberg-spark-runtime-{series}_{SCALA}:{ICEBERG}"
        if isinstance(part, JdbcSource | JdbcSink):
            yield from _find_driver(part.connection_url, may_be_unknown=may_be_unknown)


def _find_driver(url: str, *, may_be_unknown: bool) -> list[str]:
    kind = url.removeprefix("jdbc:").partition(":")[0]
    if kind not in DRIVERS:
        if may_be_unknown:
            return []
        raise PackagesError(
            f"no JDBC driver is known for {kind}: put its jar and those of the other connectors into a folder and set "
            "plugin.path, or set spark.jars.packages to its Maven coordinates"
        )
    return [DRIVERS[kind]]


def list_jars(pipeline: Pipeline, folder: str) -> list[str]:
    """Return the paths of the jars in the folder of plugin.path, sorted. Raises PackagesError if there are none."""
    jars = sorted(str(path) for path in Path(pipeline.locate_path(folder)).glob("**/*.jar"))
    if not jars:
        raise PackagesError(f"plugin.path = {folder}: the folder contains no jars")
    return jars
