"""A broker process of Apache Kafka 3.9 in ZooKeeper mode, for clusters of both kinds of brokers."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from compat_tests import limits, processes
from compat_tests.apache_kafka import classes
from compat_tests.apache_kafka.broker import QUICK_JVM, BrokerError
from compat_tests.apache_kafka.jars import java, zookeeper_mode_jars
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperServer

STARTED_TEXT = "started (kafka.server.KafkaServer)"

LOGGING = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.org.apache.zookeeper=WARN
log4j.logger.kafka.server.KafkaConfig=WARN
log4j.logger.state.change.logger=INFO
"""


class ZooKeeperModeBroker:
    """One broker. It has the interface of the brokers in `odradek.testing_cluster.OdradekCluster`."""

    def __init__(
        self, broker_id: int, zookeeper_connect: str, directory: Path, properties: Mapping[str, str] | None = None
    ) -> None:
        self.broker_id = broker_id
        self.directory = directory
        self.data_dir = directory / "data"
        self.log_file = directory / "broker.log"
        self.port = processes.lasting_port()
        self.properties = {
            "broker.id": str(broker_id),
            "zookeeper.connect": zookeeper_connect,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.data_dir),
            "inter.broker.protocol.version": "3.9",
            **(properties or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerError("The broker is not running.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> "ZooKeeperModeBroker":
        """Start the process and return when the broker accepts requests."""
        return self._start(classes.options("zookeeper-mode", _class_path(), _load_classes))

    def _start(self, jvm_options: classes.Options) -> "ZooKeeperModeBroker":
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        logging = self.directory / "log4j.properties"
        logging.write_text(LOGGING)
        command = [java(), "-Xmx512m", "-Xms256m", *QUICK_JVM, *jvm_options]
        command += [f"-Dlog4j.configuration=file:{logging}", "-cp", _class_path(), "kafka.Kafka", str(properties)]
        with open(self.log_file, "ab") as log:
            position = log.tell()
            self._process = processes.start(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory
            )
        deadline = time.monotonic() + limits.BROKER_START_S
        while STARTED_TEXT not in self.log_text()[position:]:
            if self._process.poll() is not None:
                raise BrokerError(f"Apache Kafka ended with {self._process.returncode}\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"Apache Kafka is not ready after {limits.BROKER_START_S} s\n{self._log_tail()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        return self

    def stop(self) -> None:
        """Stop the broker with SIGTERM: a controlled shutdown."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(limits.BROKER_STOP_S)
            except subprocess.TimeoutExpired:
                raise BrokerError(f"No clean stop in {limits.BROKER_STOP_S} s\n{self._log_tail()}") from None
            finally:
                self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Suspend the process with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill the process."""
        self.kill()

    def log_text(self) -> str:
        """Return the log of all starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-40:])


def _class_path() -> str:
    return os.pathsep.join(map(str, zookeeper_mode_jars()))


def _load_classes(jvm_options: classes.Options) -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = ZooKeeperServer(Path(directory, "zookeeper")).start()
        try:
            broker = ZooKeeperModeBroker(1, server.connect, Path(directory, "broker"))
            broker._start(jvm_options)
            broker.stop()
        finally:
            server.kill()
