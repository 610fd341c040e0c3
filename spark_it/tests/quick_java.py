"""JVM options with which the Java processes of Spark start sooner.

python -m spark_it.tests.quick_java               creates the archive of classes, if it does not exist
python -m spark_it.tests.quick_java OPTION...     starts and ends a Spark with these JVM options
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from compat_tests import limits
from compat_tests.apache_kafka import classes, jars

ROOT = Path(__file__).parents[2]
QUICK = "-XX:TieredStopAtLevel=1"


def options():
    """JVM options for tests: their processes are too short for the C2 compiler, which takes half of the CPU time."""
    of_spark = Path(pyspark.__file__).parent / "jars"
    # A JVM ignores an archive whose jars have changed.
    classpath = f"{pyspark.__version__} {of_spark} {of_spark.stat().st_mtime_ns}"
    return " ".join([QUICK, *classes.options("spark", classpath, start_and_end)])


def start_and_end(of_java):
    java_home = str(Path(jars.java()).resolve().parent.parent)
    environment = {**os.environ, "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "spark_it.tests.quick_java", *of_java]
    subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=limits.SPARK_ARCHIVE_S)


def main(of_java):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", " ".join([QUICK, *of_java])).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        spark.range(9).selectExpr("id % 2 AS n").groupBy("n").count().write.parquet(f"{folder}/rows")
        stream = spark.readStream.schema("n BIGINT").parquet(f"{folder}/rows").writeStream.format("noop")
        query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(limits.SPARK_ARCHIVE_S)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1:])
    else:
        options()
