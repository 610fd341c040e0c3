"""Jars of a pipeline's connectors: Maven coordinates that Spark fetches, or files in a folder."""

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
"""JDBC drivers by the word after jdbc: in an address."""


class PackagesError(Exception):
    """Jars that cannot be had; `str()` says what to do."""


def of(pipeline: Pipeline, given: Sequence[str] = ()) -> list[str]:
    """Maven coordinates of what the pipeline's connectors need beside Spark, each once, after those that are given: one
    of these stands for any other version of it.

    Raises PackagesError for a database without a known driver when none are given; else it is taken to be among them.
    """
    there = {_artifact(one) for one in given}
    needed = _needed(pipeline, may_be_unknown=bool(given))
    return list(dict.fromkeys([*given, *(one for one in needed if _artifact(one) not in there)]))


def _artifact(coordinates: str) -> str:
    return coordinates.strip().rpartition(":")[0]


def _needed(pipeline: Pipeline, *, may_be_unknown: bool) -> Iterator[str]:
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
            yield from _driver(part.connection_url, may_be_unknown=may_be_unknown)


def _driver(url: str, *, may_be_unknown: bool) -> list[str]:
    kind = url.removeprefix("jdbc:").partition(":")[0]
    if kind not in DRIVERS:
        if may_be_unknown:
            return []
        raise PackagesError(
            f"no driver is known for {kind} databases: put its jar and those of the other connectors into a folder and "
            "name it with plugin.path, or its Maven coordinates into spark.jars.packages"
        )
    return [DRIVERS[kind]]


def in_folder(pipeline: Pipeline, folder: str) -> list[str]:
    """Paths of the jars in the folder of plugin.path, in order. Raises PackagesError if there is none."""
    jars = sorted(str(path) for path in Path(pipeline.located(folder)).glob("**/*.jar"))
    if not jars:
        raise PackagesError(f"plugin.path = {folder}: there is no jar in this folder")
    return jars
