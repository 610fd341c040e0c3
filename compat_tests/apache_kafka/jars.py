"""The jars of Apache Kafka and of Spark's Kafka connector, downloaded once into a cache.

Apache Ivy downloads them; its jar is part of the pyspark wheel and its default settings use Maven Central, so nothing
else has to be installed. Every set has exact versions, is downloaded into a temporary directory and moved into place
when complete, so that an existing directory is complete.

        python -m compat_tests.apache_kafka.jars        downloads all sets and prints their directories
"""

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from odradek.server.cluster_tools.zookeeper_server import find_class_path

KAFKA_VERSION = "4.3.0"
SPARK_VERSION = "4.0.0"
SCALA_VERSION = "2.13"
OLDEST_JAVA = 17
FETCH_TIMEOUT_SECONDS = 900


class JarsError(RuntimeError):
    """Java or the jars are not available; the message contains the action to take."""


class Module(NamedTuple):
    """A Maven artifact, and the (group, artifact) pairs that are excluded from its dependencies."""

    group: str
    artifact: str
    version: str
    without: tuple[tuple[str, str], ...] = ()


class JarSet(NamedTuple):
    """Modules that are resolved together into one directory."""

    name: str
    modules: tuple[Module, ...]

    @property
    def directory_name(self) -> str:
        """Return a name that differs for other modules or versions, so that a cached set is not used for another."""
        digest = hashlib.sha256(repr(self.modules).encode()).hexdigest()[:10]
        return f"{self.name}-{digest}"


# Kafka Connect is not needed by the tools used here and would add a web server.
WITHOUT_CONNECT = (("org.apache.kafka", "connect-runtime"),)

KAFKA = JarSet(
    f"kafka-{KAFKA_VERSION}",
    (
        Module("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION, WITHOUT_CONNECT),
        Module("org.apache.kafka", "kafka-tools", KAFKA_VERSION, WITHOUT_CONNECT),
        Module("org.apache.logging.log4j", "log4j-core", "2.25.4"),
        Module("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)

# The last release with ZooKeeper mode: the partner of mixed clusters, and the source of the messages of that mode.
KAFKA_WITH_ZOOKEEPER = JarSet(
    "kafka-3.9.1",
    (
        Module("org.apache.kafka", f"kafka_{SCALA_VERSION}", "3.9.1", WITHOUT_CONNECT),
        Module("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ),
)

# Connect with MirrorMaker 2, and the examples of Kafka Streams.
KAFKA_APPLICATIONS = JarSet(
    f"kafka-applications-{KAFKA_VERSION}",
    (
        Module("org.apache.kafka", "kafka-streams-examples", KAFKA_VERSION),
        Module("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
        Module("org.apache.kafka", "connect-file", KAFKA_VERSION),
        Module("org.apache.kafka", "connect-mirror", KAFKA_VERSION),
        Module("org.apache.logging.log4j", "log4j-core", "2.25.4"),
        Module("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)

# Servers of an ensemble that loses no transaction when its leaders are killed. Version 3.9.3, which is in the pyspark
# wheel, does (ZOOKEEPER-4925). The other jars that a server needs are in the wheel.
ZOOKEEPER = JarSet(
    "zookeeper-3.9.5",
    (
        Module(
            "org.apache.zookeeper",
            "zookeeper",
            "3.9.5",
            tuple((group, "*") for group in ("io.netty", "ch.qos.logback", "org.slf4j", "commons-io", "commons-cli")),
        ),
    ),
)

# The last series whose names are those of the example rules; later ones add suffixes to counters.
JMX_EXPORTER = JarSet("jmx-exporter-0.20.0", (Module("io.prometheus.jmx", "jmx_prometheus_javaagent", "0.20.0"),))

# Jars in the pyspark wheel are not downloaded again.
IN_PYSPARK = (
    ("org.apache.hadoop", "hadoop-client-api"),
    ("org.apache.hadoop", "hadoop-client-runtime"),
    ("org.scala-lang", "scala-library"),
    ("org.scala-lang.modules", f"scala-parallel-collections_{SCALA_VERSION}"),
    ("org.apache.spark", f"spark-tags_{SCALA_VERSION}"),
    ("org.slf4j", "slf4j-api"),
    ("org.lz4", "lz4-java"),
    ("org.xerial.snappy", "snappy-java"),
    ("com.google.code.findbugs", "jsr305"),
)
SPARK_KAFKA = JarSet(
    f"spark-sql-kafka-{SPARK_VERSION}",
    (Module("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", SPARK_VERSION, IN_PYSPARK),),
)

POSTGRESQL = JarSet("postgresql-42.7.7", (Module("org.postgresql", "postgresql", "42.7.7"),))
SQLITE = JarSet("sqlite-3.50.1.0", (Module("org.xerial", "sqlite-jdbc", "3.50.1.0", IN_PYSPARK),))
DELTA = JarSet("delta-spark-4.0.0", (Module("io.delta", f"delta-spark_{SCALA_VERSION}", "4.0.0", IN_PYSPARK),))
ICEBERG = JarSet(
    "iceberg-spark-1.10.0",
    (Module("org.apache.iceberg", f"iceberg-spark-runtime-4.0_{SCALA_VERSION}", "1.10.0", IN_PYSPARK),),
)

ALL = (
    KAFKA, KAFKA_WITH_ZOOKEEPER, KAFKA_APPLICATIONS, ZOOKEEPER,
    JMX_EXPORTER, SPARK_KAFKA, POSTGRESQL, SQLITE, DELTA, ICEBERG,
)  # fmt: skip


def cache_directory() -> Path:
    """Return the directory of the sets: `$XDG_CACHE_HOME/odradek/jars`, or below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "odradek" / "jars"


@functools.cache
def java() -> str:
    """Return the path of a Java 17 or later. Raises JarsError if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        where = "JAVA_HOME" if home else "PATH"
        raise JarsError(f"No java in {where}: install Java {OLDEST_JAVA} or later (a headless JRE is enough).")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < OLDEST_JAVA:
        reported = (answer.stderr + answer.stdout).strip().splitlines()
        raise JarsError(f"Java {OLDEST_JAVA} or later is needed; {found} is: {reported[0] if reported else 'unknown'}")
    return found


def ivy_jar() -> Path:
    """Return the path of Ivy's jar in the installed pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(root, "jars").glob("ivy-*.jar")):
            return jar
    raise JarsError("The pyspark package is not installed: run `make install`, it brings Ivy, which fetches the jars.")


def kafka_jars() -> list[Path]:
    """Return the jars of Apache Kafka's broker and tools, with all runtime dependencies."""
    return ensure(KAFKA)


def kafka_classpath() -> str:
    """Return the class path of Apache Kafka's broker and tools."""
    return os.pathsep.join(map(str, kafka_jars()))


def applications_classpath() -> str:
    """Return the class path of Connect, MirrorMaker 2 and the examples of Kafka Streams."""
    return os.pathsep.join(map(str, ensure(KAFKA_APPLICATIONS)))


def zookeeper_mode_jars() -> list[Path]:
    """Return the jars of Apache Kafka 3.9's broker with its ZooKeeper client and server."""
    return ensure(KAFKA_WITH_ZOOKEEPER)


def zookeeper_classpath() -> str:
    """Return the class path of servers of an ensemble of ZooKeeper."""
    return os.pathsep.join([*map(str, ensure(ZOOKEEPER)), find_class_path()])


def jmx_exporter_jar() -> Path:
    """Return the Java agent that exports JMX to Prometheus."""
    (jar,) = ensure(JMX_EXPORTER)
    return jar


def spark_connector_jars() -> list[Path]:
    """Return Spark's Kafka connector and its dependencies that Spark lacks (for `spark.jars`)."""
    return ensure(SPARK_KAFKA)


def postgresql_jars() -> list[Path]:
    """Return PostgreSQL's JDBC driver."""
    return ensure(POSTGRESQL)


def sqlite_jars() -> list[Path]:
    """Return SQLite with its JDBC driver."""
    return ensure(SQLITE)


def delta_jars() -> list[Path]:
    """Return the jars for Delta tables in Spark."""
    return ensure(DELTA)


def iceberg_jars() -> list[Path]:
    """Return the jars for Iceberg tables in Spark."""
    return ensure(ICEBERG)


def ensure(jar_set: JarSet) -> list[Path]:
    """Return the jars of a set in a fixed order; download missing ones first. Raises JarsError."""
    directory = cache_directory() / jar_set.directory_name
    if not directory.is_dir():
        with locked(cache_directory()):
            if not directory.is_dir():
                _fetch(jar_set, directory)
    return sorted(directory.glob("*.jar"))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory, so that one process at a time downloads; the kernel releases the lock of a dead process."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jar_set: JarSet, directory: Path) -> None:
    for left_over in directory.parent.glob(f"{jar_set.name}-*.part"):
        shutil.rmtree(left_over, ignore_errors=True)
    print(f"Fetching {jar_set.name} and what it needs from Maven Central ...", file=sys.stderr, flush=True)
    temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{jar_set.name}-", suffix=".part"))
    try:
        _run_ivy(jar_set, temporary)
        have = {jar.name for jar in temporary.glob("*.jar")}
        missing = [m for m in jar_set.modules if f"{m.artifact}-{m.version}.jar" not in have]
        if missing:
            names = ", ".join(f"{m.group}:{m.artifact}:{m.version}" for m in missing)
            raise JarsError(f"Ivy ended well but brought no jar for {names}.")
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_ivy(jar_set: JarSet, into: Path) -> None:
    home = into.parent / "ivy"
    description = into / "ivy.xml"
    description.write_text(_ivy_description(jar_set))
    command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Divy.default.ivy.user.dir={home}"]
    command += [f"-Duser.home={home}", "-cp", str(ivy_jar()), "org.apache.ivy.Main", "-ivy", str(description)]
    command += ["-cache", str(home / "cache"), "-confs", "default", "-types", "jar", "bundle", "maven-plugin"]
    command += ["-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise JarsError(f"Fetching {jar_set.name} took longer than {FETCH_TIMEOUT_SECONDS} s.") from None
    if result.returncode != 0 or "UNRESOLVED DEPENDENCIES" in result.stdout:
        lines = (result.stdout + result.stderr).splitlines()
        telling = [x.strip() for x in lines if re.search(r"unresolved|not found|Exception|ERROR|timed out", x)]
        raise JarsError(
            f"Fetching {jar_set.name} failed. Is Maven Central reachable from here? Ivy printed:\n  "
            + "\n  ".join((telling or lines)[-15:])
        )


def _ivy_description(jar_set: JarSet) -> str:
    def dependency(module: Module) -> str:
        excludes = "".join(f'<exclude org="{org}" module="{name}"/>' for org, name in module.without)
        return (
            f'<dependency org="{module.group}" name="{module.artifact}" rev="{module.version}"'
            f' force="true" conf="default->default">{excludes}</dependency>'
        )

    return (
        '<ivy-module version="2.0"><info organisation="odradek" module="tests"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(map(dependency, jar_set.modules))}</dependencies></ivy-module>"
    )


def main() -> int:
    try:
        java()
        for jar_set in ALL:
            jars = ensure(jar_set)
            print(f"{jar_set.name}: {len(jars)} jars in {jars[0].parent}")
    except JarsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
