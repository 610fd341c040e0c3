"""Check that the workers of a cluster share the driver's folders.

A path such as /data/out is a different folder on each machine, unless a network file system is mounted there. Spark
does not detect this: every worker writes to its own disk, the driver finds no files, and the rows are lost. So before a
run on a cluster the driver writes probe files into the folders, and tasks check that they exist.
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

_MIN_TASKS, _MAX_TASKS = 2, 32
"""Limits of the number of tasks that check. For 33 or more paths, the workers would list the files."""
_PROBE_CONTENT = b"1"
"""The content of a probe file. It is not empty, so that Spark reads each file in a separate task."""


def check(pipeline: Pipeline, stateful: str | None, spark: SparkSession) -> None:
    """Raise RefusedError for a folder that a worker does not share, OSError for one that cannot be written.

    Workers that are added later are not checked.
    """
    jvm: Any = spark._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    default = str(jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(configuration).getScheme())
    for key, path in list_written_folders(pipeline, stateful).items():
        folder = to_local_path(path, default)
        if folder is not None:
            with _create_probes(folder, _count_tasks(spark)) as probes:
                _check_visible(probes, key, folder, spark)
    for key, path in list_read_folders(pipeline).items():
        folder = to_local_path(path, default)
        file = None if folder is None else _find_file(folder)
        if folder is not None and file is not None:
            _check_visible(file, key, folder, spark)


def list_written_folders(pipeline: Pipeline, stateful: str | None) -> dict[str, str]:
    """Return, by key, the folders to which tasks write, or from which they read files that the driver has written."""
    folders = {}
    has_spool = any(isinstance(source, JdbcSource) for source in pipeline.sources.values())
    if stateful is not None or has_spool:
        folders["home"] = f"file:{pipeline.state_folder.absolute()}"
    sink = pipeline.sink
    if isinstance(sink, FilesSink | DeltaSink):
        folders["sink.path"] = pipeline.locate_path(sink.path)
    if isinstance(sink, IcebergSink):
        catalog = sink.passed["iceberg.catalog."]
        # In a REST catalog the warehouse is a name, not a path.
        if "warehouse" in catalog and catalog.get("type") != "rest":
            folders["sink.iceberg.catalog.warehouse"] = pipeline.locate_path(catalog["warehouse"])
    return folders


def list_read_folders(pipeline: Pipeline) -> dict[str, str]:
    """Return, by key, the folders of files sources, which tasks read."""
    sources = pipeline.sources.items()
    return {
        f"source.{name}.path": pipeline.locate_path(one.path) for name, one in sources if isinstance(one, FilesSource)
    }


def to_local_path(path: str, default_scheme: str) -> Path | None:
    """Return the path if its scheme is that of the local file system; None for other file systems.

    `default_scheme` is Hadoop's default, for paths without scheme.
    """
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path or default_scheme != "file" else Path(path)


def _count_tasks(spark: SparkSession) -> int:
    """Return the number of tasks that the currently registered workers run in parallel, within the limits."""
    return min(max(spark.sparkContext.defaultParallelism, _MIN_TASKS), _MAX_TASKS)


@contextlib.contextmanager
def _create_probes(folder: Path, count: int) -> Iterator[Path]:
    """Create a subfolder with probe files. Readers of `folder` ignore it because of its name."""
    probes = folder / f".odradek-{secrets.token_hex(4)}"
    probes.mkdir(parents=True)
    try:
        for number in range(count):
            (probes / f"probe-{number}").write_bytes(_PROBE_CONTENT)
        yield probes
    finally:
        shutil.rmtree(probes, ignore_errors=True)


def _find_file(folder: Path) -> Path | None:
    """Return a file that Spark would read; None if there is none, or the folder does not exist."""
    with contextlib.suppress(OSError):
        return next((path for path in folder.iterdir() if path.name[0] not in "._" and path.is_file()), None)
    return None


def _list_files(path: Path, spark: SparkSession) -> DataFrame:
    """Return a frame of the files at a path, as listed by the driver."""
    return spark.read.format("binaryFile").load(f"file:{path}")


def _check_visible(path: Path, key: str, folder: Path, spark: SparkSession) -> None:
    files = _list_files(path, spark)
    try:
        # If only the length is selected, a task looks up the file but does not read it.
        files.agg(f.sum("length")).collect()
    except (PySparkException, Py4JJavaError) as error:
        if "FILE_NOT_EXIST" not in str(error) and "FileNotFoundException" not in str(error):
            raise
        master = spark.sparkContext.master
        raise RefusedError(
            f"{key}: a worker of {master} does not share {folder} with this machine, so rows would be lost; use a "
            "folder on a network file system, or an address such as hdfs:// or s3a://"
        ) from None
