"""The parent process of local Python workers, set as `spark.python.daemon.module` instead of `pyspark.daemon`.

Each Python worker is a fork of it. Before the first fork it imports the modules that every worker of a pipeline needs.
By default Python loads PySpark from a zip archive without .pyc files, which takes more than a second in each worker;
this process loads the installed package instead. The imported objects are frozen (`gc.freeze`), because a worker
collects garbage after every task.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

MODULE = "odradek.spark_it.spark.daemon"
PRELOADED_MODULES = ("pyspark.worker", "pyspark.sql.pandas.serializers", "pandas", "odradek.spark_it.sinks.topic_tasks")


def remove_pyspark_archives(paths: Sequence[str], packages: Path) -> list[str]:
    """Remove the archives of the PySpark that is installed in `packages` from a module search path."""
    archives = packages / "pyspark" / "python" / "lib"
    return [path for path in paths if not Path(path).is_relative_to(archives)]


def main() -> None:
    """Fork workers until Spark closes standard input. A command-line argument names the workers' module."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        # A Python installation other than the pipeline's may have PySpark only as the archive.
        packages = importlib.metadata.distribution("pyspark").locate_file("")
        sys.path[:] = remove_pyspark_archives(sys.path, Path(str(packages)))
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
