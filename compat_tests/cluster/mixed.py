"""A cluster of Odradek's and Apache Kafka's brokers, in which a broker is replaced by one of the other kind."""

import contextlib
import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from compat_tests import processes
from compat_tests.apache_kafka.broker import BrokerError
from compat_tests.apache_kafka.zookeeper_mode import ZooKeeperModeBroker
from compat_tests.clients.common import wait_until
from compat_tests.pages import read_examples
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.testing import BrokerFailedError, OdradekBroker
from odradek.testing_cluster import CLUSTER_PROPERTIES

ODRADEK = "odradek"
KAFKA = "kafka"
SESSION_TIMEOUT_MS = 10_000
"""Longer than a JVM on a busy machine, or a broker that `elect_controller` pauses, is silent."""
IDS_IN_USE = ("is in use by another broker", "NodeExists")
START_TIMEOUT_S = 60
ELECTIONS = 50

PROPERTIES: Mapping[str, str] = {
    **CLUSTER_PROPERTIES,
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.leader.rebalance.enable": "false",
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
}

KAFKA_PROPERTIES: Mapping[str, str] = dict(line.split("=") for line in read_examples("cluster.md")[-1].split())
"""Properties of Apache Kafka's brokers only, as in docs/cluster.md."""


class MixedCluster:
    """Brokers by id, each of the kind ODRADEK or KAFKA. Both kinds use the same port and directories for an id.

    properties: of all brokers, in addition to PROPERTIES
    protocol: security protocol of the listener
    host: its host name
    """

    def __init__(
        self,
        kinds: Mapping[int, str],
        directory: Path,
        properties: Mapping[str, str] | None = None,
        protocol: str = "PLAINTEXT",
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self.directory = directory
        self.zookeeper = ZooKeeperEnsemble(1, directory=directory / "zookeeper")
        self.kinds = dict(kinds)
        self._protocol = protocol
        self._properties = {**PROPERTIES, **(properties or {})}
        self._ports = {number: processes.lasting_port() for number in kinds}
        self.brokers = {number: self._make(number) for number in kinds}

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, separated by commas."""
        return ",".join(f"{self._host}:{port}" for port in self._ports.values())

    def port(self, number: int) -> int:
        """Return the port of a broker."""
        return self._ports[number]

    @property
    def data_directories(self) -> dict[int, Path]:
        """The log directory of each broker."""
        return {number: broker.data_dir for number, broker in self.brokers.items()}

    def of_kind(self, kind: str) -> list[int]:
        """Return the ids of the brokers of a kind."""
        return [number for number, found in self.kinds.items() if found == kind]

    def _make(self, number: int) -> OdradekBroker | ZooKeeperModeBroker:
        directory = self.directory / f"broker-{number}"
        properties = {**self._properties, "listeners": f"{self._protocol}://{self._host}:{self._ports[number]}"}
        if self.kinds[number] == KAFKA:
            quick = {**properties, **KAFKA_PROPERTIES, "controlled.shutdown.retry.backoff.ms": "500"}
            return ZooKeeperModeBroker(number, self.zookeeper.connect, directory, quick)
        own = {"broker.id": str(number), "zookeeper.connect": self.zookeeper.connect}
        return OdradekBroker({**properties, **own}, directory=directory, log_level="info")

    def start(self, number: int) -> None:
        """Start a broker. After a kill its id is free when its session has expired."""

        def is_started() -> bool:
            try:
                self.brokers[number].start()
            except (BrokerError, BrokerFailedError) as error:
                if not any(text in str(error) for text in IDS_IN_USE):
                    raise
                return False
            return True

        wait_until(is_started, timeout_s=START_TIMEOUT_S)

    def stop(self, number: int) -> None:
        """Stop a broker with SIGTERM: a controlled shutdown."""
        self.brokers[number].stop()

    def kill(self, number: int) -> None:
        """Kill a broker with SIGKILL."""
        self.brokers[number].kill()

    def replace(self, number: int, kind: str) -> None:
        """Start a broker of a kind with the id and the directory of a broker that was stopped or killed."""
        self.kinds[number] = kind
        self.brokers[number] = self._make(number)
        self.start(number)

    @contextlib.contextmanager
    def connect(self) -> Iterator[KazooClient]:
        """Connect to ZooKeeper."""
        client = KazooClient(self.zookeeper.connect)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def elect_controller(self, *candidates: int) -> int:
        """Make controllers resign until one of the brokers is elected; return its id.

        The others are paused during an election, because a JVM may lose each of them to a broker of Odradek.
        """
        with self.connect() as zookeeper:
            for _ in range(ELECTIONS):
                found = wait_until(lambda: self._read_controller(zookeeper))
                if found in candidates:
                    return found
                with self._paused_except(candidates), contextlib.suppress(NoNodeError):
                    zookeeper.delete("/controller")
                    wait_until(lambda: self._read_controller(zookeeper))
        raise AssertionError(f"none of {candidates} was elected in {ELECTIONS} elections")

    @contextlib.contextmanager
    def _paused_except(self, candidates: Collection[int]) -> Iterator[None]:
        paused = []
        try:
            for number, broker in self.brokers.items():
                if number not in candidates:
                    with contextlib.suppress(BrokerError, BrokerFailedError):
                        pid = broker.pid
                        processes.freeze(pid)
                        paused.append(pid)
            yield
        finally:
            for pid in paused:
                os.kill(pid, signal.SIGCONT)

    @staticmethod
    def _read_controller(zookeeper: KazooClient) -> int | None:
        try:
            return json.loads(zookeeper.get("/controller")[0])["brokerid"]
        except NoNodeError:
            return None

    def log_text(self) -> str:
        """Return the logs of all brokers, one after the other."""
        return "\n".join(f"broker {number}:\n{broker.log_text()}" for number, broker in self.brokers.items())

    def __enter__(self) -> Self:
        self.zookeeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for broker in self.brokers.values():
                broker.close()
        finally:
            self.zookeeper.close()
