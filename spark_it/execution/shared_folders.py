"""Checks that the workers of a cluster share the driver's folders.

A path such as /data/out is another folder on each machine, unless a network file system is mounted there. Spark does
not detect that: every worker writes to its own disk, the driver finds no files, and the rows are lost. So before a run
on a cluster the driver puts files into the folders, and tasks look for them.
"""

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from odradek.spark_it.definition.sink_keys import DeltaSink, FilesSink, IcebergSink
from odradek.spark_it.definition.source_keys import FilesSource, JdbcSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.execution.preflight import RefusedError

_FEWEST, _MOST = 2, 32
"""Tasks that look; from 33 folders and files on Spark would have the workers list them."""
_BYTES = b"1"
"""In each file, so that Spark reads each in a task of its own."""


def check(pipeline: Pipeline, stateful: str | None, spark: SparkSession) -> None:
    """Raise RefusedError for a folder that a worker does not see, OSError for one that cannot be written.

    Workers that are added later are not checked.
    """
    jvm: Any = spark._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    default = str(jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(configuration).getScheme())
    for key, path in written(pipeline, stateful).items():
        folder = local_path(path, default)
        if folder is not None:
            with _probes(folder, _tasks(spark)) as probes:
                _look_for(probes, key, folder, spark)
    for key, path in read(pipeline).items():
        folder = local_path(path, default)
        file = None if folder is None else _any_file(folder)
        if folder is not None and file is not None:
            _look_for(file, key, folder, spark)


def written(pipeline: Pipeline, stateful: str | None) -> dict[str, str]:
    """Return folders that tasks write, or in which they read what the driver has written, by their keys."""
    found = {}
    has_spool = any(isinstance(source, JdbcSource) for source in pipeline.sources.values())
    if stateful is not None or has_spool:
        found["home"] = f"file:{pipeline.state_folder.absolute()}"
    sink = pipeline.sink
    if isinstance(sink, FilesSink | DeltaSink):
        found["sink.path"] = pipeline.located(sink.path)
    if isinstance(sink, IcebergSink):
        catalog = sink.passed["iceberg.catalog."]
        # To a catalog of type rest it is a name.
        if "warehouse" in catalog and catalog.get("type") != "rest":
            found["sink.iceberg.catalog.warehouse"] = pipeline.located(catalog["warehouse"])
    return found


def read(pipeline: Pipeline) -> dict[str, str]:
    """Return folders of others that tasks read, by their keys."""
    sources = pipeline.sources.items()
    return {f"source.{name}.path": pipeline.located(one.path) for name, one in sources if isinstance(one, FilesSource)}


def local_path(path: str, default_scheme: str) -> Path | None:
    """Return the path on the machine's own file system, judged by its name; None for one that is elsewhere.

    `default_scheme` is Hadoop's, for paths that have none.
    """
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path or default_scheme != "file" else Path(path)


def _tasks(spark: SparkSession) -> int:
    """As many as the workers take at once, as far as they have come."""
    return min(max(spark.sparkContext.defaultParallelism, _FEWEST), _MOST)


@contextlib.contextmanager
def _probes(folder: Path, count: int) -> Iterator[Path]:
    """A folder of files within another one, which readers of that leave out."""
    probes = folder / f".odradek-{secrets.token_hex(4)}"
    probes.mkdir(parents=True)
    try:
        for number in range(count):
            (probes / f"probe-{number}").write_bytes(_BYTES)
        yield probes
    finally:
        shutil.rmtree(probes, ignore_errors=True)


def _any_file(folder: Path) -> Path | None:
    """A file that Spark would read; None if there is none yet, or no folder."""
    with contextlib.suppress(OSError):
        return next((path for path in folder.iterdir() if path.name[0] not in "._" and path.is_file()), None)
    return None


def _listed(path: Path, spark: SparkSession) -> DataFrame:
    """The files at a path, as the driver sees them."""
    return spark.read.format("binaryFile").load(f"file:{path}")


def _look_for(path: Path, key: str, folder: Path, spark: SparkSession) -> None:
    files = _listed(path, spark)
    try:
        # For the length alone a task looks the file up and does not read it.
        files.agg(f.sum("length")).collect()
    except (PySparkException, Py4JJavaError) as error:
        if "FILE_NOT_EXIST" not in str(error) and "FileNotFoundException" not in str(error):
            raise
        master = spark.sparkContext.master
        raise RefusedError(
            f"{key}: a worker of {master} does not see what this machine has in {folder}, so rows would be lost; use a "
            "folder that all machines share, or an address such as hdfs:// or s3a://"
        ) from None
