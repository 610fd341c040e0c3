"""One Spark session for all tests, and the brokers they run against."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compat_tests import limits
from compat_tests.apache_kafka import jars
from compat_tests.backends import BROKERS
from odradek.spark_it.spark import daemon
from spark_it.tests import quick_java
from spark_it.tests.data import Topics
from spark_it.tests.kafka_frames import KafkaFrames
from spark_it.tests.postgres import PostgreSQL, PostgreSQLError

KEEPS_ALL = {"log.retention.ms": "-1"}
"""Records of the tests have timestamps of years ago. The default retention would delete them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limits.TEST_S))


@pytest.fixture(scope="module", autouse=True)
def short_lived_java(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set JVM options for processes that the tests of a module start, except unit tests. Java prints a note on them."""
    with pytest.MonkeyPatch.context() as patch:
        if "unit" not in request.path.parts:
            patch.setenv("JDK_JAVA_OPTIONS", quick_java.options())
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with all connectors, small enough to share two cores with a broker."""
    try:
        databases = [*jars.postgresql_jars(), *jars.sqlite_jars()]
        connectors = [*jars.spark_connector_jars(), *databases, *jars.delta_jars(), *jars.iceberg_jars()]
        java_home = str(Path(jars.java()).resolve().parent.parent)
    except jars.JarsError as error:
        pytest.exit(f"The Spark tests need the jars of Spark's connectors. {error}", returncode=1)
    work = tmp_path_factory.mktemp("spark")
    before = dict(os.environ)
    os.environ |= {
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Workers import the tested package from this checkout.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), before.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(work / "local"),
    }
    # These would select another installation of Spark, or its settings.
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"):
        os.environ.pop(name, None)
    settings = {
        "spark.jars": ",".join(map(str, connectors)),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC {quick_java.options()} -Dderby.system.home={work}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # With so little data compilation takes longer than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.python.daemon.module": daemon.MODULE,
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("spark_it")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        end_gateway(session)
        os.environ.clear()
        os.environ.update(before)


def end_gateway(session: SparkSession) -> None:
    """End the JVM, which would otherwise run until Python exits."""
    gateway = session.sparkContext._gateway
    if gateway is not None:
        process = gateway.proc
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=120)
        type(session.sparkContext)._gateway = None
        type(session.sparkContext)._jvm = None


@pytest.fixture(scope="session")
def broker(backend: str) -> Iterator[Any]:
    """One broker for all tests that share it. Each test uses its own topic names."""
    with BROKERS[backend](KEEPS_ALL) as started:
        yield started


@pytest.fixture
def start_broker(backend: str) -> Iterator[Callable[..., Any]]:
    """Start a broker for one test, which may restart or kill it: start_broker({name: value})."""
    with ExitStack() as stack:

        def start(properties: Mapping[str, str] | None = None) -> Any:
            return stack.enter_context(BROKERS[backend](properties))

        yield start


@pytest.fixture
def topics(broker: Any) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture
def kafka(spark: SparkSession, broker: Any, tmp_path: Path) -> Iterator[KafkaFrames]:
    """Spark's reader and writer on the shared broker."""
    with KafkaFrames(spark, broker.bootstrap_servers, tmp_path) as frames:
        yield frames


@pytest.fixture
def own_kafka(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[Any], KafkaFrames]]:
    """Spark's reader and writer on a broker of the test's own."""
    with ExitStack() as stack:
        yield lambda broker: stack.enter_context(KafkaFrames(spark, broker.bootstrap_servers, tmp_path))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    """One database for all tests that share it. Each test uses its own table names."""
    try:
        server = PostgreSQL()
    except PostgreSQLError as error:
        pytest.exit(str(error), returncode=1)
    with server:
        yield server
