"""The parent process of Python workers on this machine, as `spark.python.daemon.module` in place of `pyspark.daemon`.

Each Python worker is a fork of it. It imports before the first fork what every worker of a pipeline needs. Spark makes
Python load PySpark from an archive without compiled modules, which takes a second, and more in each worker; this
process loads the compiled modules of the installed package instead. The imported objects are frozen, since a worker
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
LOADED = ("pyspark.worker", "pyspark.sql.pandas.serializers", "pandas", "odradek.spark_it.sinks.topic_tasks")


def without_archives(paths: Sequence[str], packages: Path) -> list[str]:
    """The path of modules without the archives of the PySpark that is installed in `packages`."""
    archives = packages / "pyspark" / "python" / "lib"
    return [path for path in paths if not Path(path).is_relative_to(archives)]


def main() -> None:
    """Serves Spark until that closes standard input. Spark gives an argument if workers have another module to run."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        # Another Python than the pipeline's may have PySpark from the archive alone.
        packages = importlib.metadata.distribution("pyspark").locate_file("")
        sys.path[:] = without_archives(sys.path, Path(str(packages)))
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
