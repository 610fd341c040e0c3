"""A real Apache Kafka broker as a context manager: one node that is broker and controller (KRaft).

    with ApacheKafkaBroker({"num.partitions": "3"}) as kafka:
        ...  # clients of kafka.bootstrap_servers

It has the same interface as `odradek.testing.OdradekBroker`, so that a test can use either.
"""

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from compat_tests import limits, processes
from compat_tests.apache_kafka import classes
from compat_tests.apache_kafka.jars import java, kafka_classpath
from odradek.managed_process import ManagedProcess
from odradek.ports import PortReservation

NODE_ID = 1
CLUSTER_ID = "b2RyYWRlay1jb21wYXRAAA"
READY_LINE = "Kafka Server started"

# Half the start-up time of the default, and less memory; for measurements pass jvm_options=().
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "5",
    # A killed broker may register again only when its old session has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

LOGGING = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class BrokerError(RuntimeError):
    """The broker did not start or stop as requested; the message ends with the tail of its log."""


class ApacheKafkaBroker(ManagedProcess):
    """One Apache Kafka broker process on free ports of 127.0.0.1.

    properties      broker properties by Kafka's names, over this class's defaults
    directory       directory of configuration, log and data; by default a temporary one, removed at the end
    heap            the JVM's -Xmx and -Xms
    jvm_options     further JVM flags
    plugins         directories with the classes of plugins
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
        heap: str = "512m",
        jvm_options: Sequence[str] = QUICK_JVM,
        plugins: Sequence[str] = (),
    ) -> None:
        self._plugins = tuple(plugins)
        self._own_properties = dict(properties or {})
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="apache-kafka-")) if directory is None else directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data_dir = self.directory / "data"
        self.log_file = self.directory / "broker.log"
        self._reservations = [PortReservation(), PortReservation()]
        self.port, self._controller_port = (reservation.port for reservation in self._reservations)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerError("The broker is not running.")
        return self._process.pid

    def start(self) -> Self:
        """Format the data directory if necessary, start the process and return when the broker accepts requests."""
        if not (self.data_dir / "meta.properties").exists():
            self._format()
        try:
            self._start_once()
        except BaseException:
            self._reap()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM)."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(limits.BROKER_STOP_S)
        except subprocess.TimeoutExpired:
            self._reap()
            raise BrokerError(f"No clean stop in {limits.BROKER_STOP_S} s\n{self._log_tail()}") from None
        self._reap()

    def kill(self) -> None:
        """Kill the process (SIGKILL), as in a crash."""
        self._reap()

    def restart(self, *, clean: bool = True) -> Self:
        """Stop (or kill) the broker and start it again on the same port and data."""
        if clean:
            self.stop()
        else:
            self.kill()
        return self.start()

    def log_text(self) -> str:
        """Return the broker's log since its last start."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def close(self) -> None:
        """Kill the process and remove the temporary directory."""
        self._reap()
        for reservation in self._reservations:
            reservation.release()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _format(self) -> None:
        shutil.copytree(_formatted_directory(), self.data_dir, dirs_exist_ok=True)

    def _start_once(self) -> None:
        properties = self.directory / "server.properties"
        properties.write_text(_properties_text(self._effective_properties()))
        logging = self.directory / "log4j2.properties"
        logging.write_text(LOGGING)
        options = [*self._jvm_options, *(_class_archive() if self._jvm_options == QUICK_JVM else ())]
        command = [java(), f"-Xmx{self._heap}", f"-Xms{self._heap}", *options]
        command += [
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            os.pathsep.join([kafka_classpath(), *self._plugins]),
            "kafka.Kafka",
            str(properties),
        ]
        with open(self.log_file, "wb") as log:
            self._process = processes.start(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory
            )
        self._wait_until_ready()

    def _effective_properties(self) -> dict[str, str]:
        return {
            **DEFAULTS,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:{self._controller_port}",
            "log.dirs": str(self.data_dir),
            **self._own_properties,
        }

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        give_up_at = time.monotonic() + limits.BROKER_START_S
        while READY_LINE not in self.log_text():
            if self._process.poll() is not None:
                raise BrokerError(f"Apache Kafka ended with {self._process.returncode}\n{self._log_tail()}")
            if time.monotonic() > give_up_at:
                raise BrokerError(f"Apache Kafka not ready in {limits.BROKER_START_S} s\n{self._log_tail()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-40:])

    def _reap(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _class_archive() -> tuple[str, ...]:
    return classes.options("broker", kafka_classpath(), _load_classes)


def _load_classes(options: tuple[str, ...]) -> None:
    with ApacheKafkaBroker(jvm_options=(*QUICK_JVM, *options)) as broker:
        broker.stop()


def _properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


@functools.cache
def _formatted_directory() -> Path:
    """Return a freshly formatted data directory to copy; formatting starts a JVM, so it is done once."""
    work = Path(tempfile.mkdtemp(prefix="apache-kafka-format-"))
    try:
        properties = work / "server.properties"
        settings = {
            **DEFAULTS,
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:9093",
            "log.dirs": str(work / "data"),
        }
        properties.write_text(_properties_text(settings))
        command = [
            java(),
            "-Xmx256m",
            *QUICK_JVM,
            "-cp",
            kafka_classpath(),
            "kafka.tools.StorageTool",
            "format",
        ]
        command += ["-t", CLUSTER_ID, "-c", str(properties)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=limits.TOOL_S)
        if result.returncode != 0:
            raise BrokerError(f"Formatting failed\n{result.stdout}{result.stderr}")
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    atexit.register(shutil.rmtree, work, True)
    return work / "data"
