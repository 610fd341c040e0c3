"""A cluster of real brokers for tests: broker processes, and a ZooKeeper server from the jars in the pyspark wheel.

    from odradek.testing_cluster import OdradekCluster

    with OdradekCluster({"min.insync.replicas": "2"}) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all")
        cluster.kill(1)

It needs Java 17 or later and `odradek[spark]`, unless it is given the address of a ZooKeeper. With pytest, use the
fixture `odradek_cluster` of `odradek.pytest_plugin`.
"""

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from odradek.broker_log import ID_IN_USE
from odradek.managed_process import ManagedProcess
from odradek.ports import PortReservation
from odradek.server.cluster_tools.local_directory import replication_properties
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble, find_ports
from odradek.testing import START_TIMEOUT_S, BrokerFailedError, OdradekBroker

CLUSTER_PROPERTIES: Final[Mapping[str, str]] = {
    **replication_properties(3),
    "transaction.state.log.num.partitions": "4",
    # Kafka's default of 30 s is too long for a test that waits until a follower has left the ISR.
    "replica.lag.time.max.ms": "4000",
    # The default is the session timeout, which is too short on a busy machine.
    "zookeeper.connection.timeout.ms": "60000",
}
"""Properties of every broker, in addition to `odradek.testing.TEST_PROPERTIES`. The replication properties are for a
cluster of three brokers; `OdradekCluster` replaces them for another size."""

DEFAULT_SESSION_TIMEOUT_MS: Final = 3000
_RETRY_S: Final = 0.2
_POLL_S: Final = 0.01


class OdradekCluster(ManagedProcess):
    """Broker processes 1 to `size` and their ZooKeeper, started on entering the context and stopped on leaving it.

    properties: override those of all brokers, by Kafka's names; by default topics have three replicas, or `size` if
        that is less, and min.insync.replicas permits the loss of one
    zookeeper_connect: address of an existing ZooKeeper; None starts one
    zookeeper_servers: size of the ensemble that is started
    zookeeper_class_path: class path of its servers; None for the jars in the pyspark wheel, of version 3.9.3, of which
        an ensemble may lose transactions when its leaders are killed (ZOOKEEPER-4925)
    session_timeout_ms: zookeeper.session.timeout.ms, after which a broker that hangs is removed from the cluster
    awaits_all: `start` returns when each broker has all brokers in its metadata, so that replicas can be assigned; else
        when each accepts connections, also if brokers cannot connect to each other
    directory: holds data and logs of all processes; by default a temporary directory, which is removed at the end
    brokers: the processes by broker id
    zookeeper: the ensemble that was started; None with `zookeeper_connect`

    On Linux no process outlives the test process, even if that is killed.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        size: int = 3,
        zookeeper_connect: str | None = None,
        zookeeper_servers: int = 1,
        zookeeper_class_path: str | None = None,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        awaits_all: bool = True,
        directory: str | os.PathLike[str] | None = None,
        log_level: str = "info",
    ) -> None:
        self._is_temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="odradek-cluster-") if directory is None else directory)
        self.zookeeper: ZooKeeperEnsemble | None = None
        if zookeeper_connect is None:
            self.zookeeper = ZooKeeperEnsemble(
                zookeeper_servers, directory=self.directory / "zookeeper", class_path=zookeeper_class_path
            )
            zookeeper_connect = self.zookeeper.connect
        self.zookeeper_connect = zookeeper_connect
        self._session_timeout_ms = session_timeout_ms
        self._awaits_all = awaits_all
        self._log_level = log_level
        self._properties = {**CLUSTER_PROPERTIES, **replication_properties(size), **(properties or {})}
        self._last_log = ""
        self._reservations: list[PortReservation] = []
        self.brokers: dict[int, OdradekBroker] = {}
        for broker_id, port in enumerate(find_ports(size), 1):
            self.brokers[broker_id] = self._make_broker(broker_id, port)

    def _make_broker(self, broker_id: int, port: int) -> OdradekBroker:
        # Another cluster that looks for ports before this broker listens, or while it is down, gets others.
        self._reservations.append(PortReservation(port))
        properties = {
            # Outside of the range of outgoing connections: no other process gets the port while the broker is down.
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            **self._properties,
            "broker.id": str(broker_id),
            "zookeeper.connect": self.zookeeper_connect,
            "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
        }
        directory = self.directory / f"broker-{broker_id}"
        return OdradekBroker(properties, directory=directory, log_level=self._log_level)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, separated by commas."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start(self) -> Self:
        """Start ZooKeeper, then all brokers at the same time; return as `awaits_all` requires."""
        if self._is_temporary:
            atexit.register(self._close_at_exit, os.getpid())
        if self.zookeeper is not None:
            self.zookeeper.start()
        self._each(self.start_broker)
        if self._awaits_all:
            self._await_metadata()
        return self

    def _await_metadata(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for broker_id, broker in self.brokers.items():
            while not broker.live_brokers >= self.brokers.keys():
                if time.monotonic() > deadline or not broker.is_running:
                    raise BrokerFailedError(
                        f"broker {broker_id} has only brokers {sorted(broker.live_brokers)} in its metadata, of "
                        f"{sorted(self.brokers)}; see {broker.directory / 'broker.log'}"
                    )
                time.sleep(_POLL_S)

    def add_broker(self, broker_id: int) -> OdradekBroker:
        """Start a further broker."""
        self.brokers[broker_id] = self._make_broker(broker_id, find_ports(1)[0])
        return self.start_broker(broker_id)

    def start_broker(self, broker_id: int) -> OdradekBroker:
        """Start a broker that is not running. After a kill its id is free when its session has expired."""
        broker = self.brokers[broker_id]
        deadline = time.monotonic() + 10 * self._session_timeout_ms / 1000
        while True:
            try:
                return broker.start()
            except BrokerFailedError as error:
                if ID_IN_USE not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_S)

    def stop_broker(self, broker_id: int) -> int:
        """Stop a broker with SIGTERM, also if it is paused; return its exit code."""
        self.resume(broker_id)
        return self.brokers[broker_id].stop()

    def kill(self, broker_id: int) -> None:
        """Kill a broker with SIGKILL, as in a crash. Its session expires after `session_timeout_ms`."""
        self.brokers[broker_id].kill()

    def pause(self, broker_id: int) -> None:
        """Suspend a broker with SIGSTOP: its connections stay open without responses, and its session may expire."""
        pid = self.brokers[broker_id].pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, broker_id: int) -> None:
        """Continue a paused broker; without effect on any other."""
        broker = self.brokers[broker_id]
        if broker.is_running:
            # The broker may end between the check and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker.pid, signal.SIGCONT)

    def restart(self, broker_id: int, *, clean: bool = True) -> OdradekBroker:
        """Stop (`clean`) or kill a broker, and start it again with the same ports and data."""
        if clean:
            self.stop_broker(broker_id)
        else:
            self.kill(broker_id)
        return self.start_broker(broker_id)

    def log_text(self) -> str:
        """Return the logs of all brokers, one after the other."""
        if not self.directory.exists():
            return self._last_log
        return "\n".join(f"broker {number}:\n{broker.log_text()}" for number, broker in self.brokers.items())

    def close(self) -> None:
        """Stop all processes, and remove a temporary directory. Brokers with temporary data are killed."""
        atexit.unregister(self._close_at_exit)
        try:
            self._end_brokers()
        finally:
            if self.zookeeper is not None:
                self.zookeeper.close()
            for reservation in self._reservations:
                reservation.release()
            if self._is_temporary:
                self._last_log = self.log_text()
                shutil.rmtree(self.directory, ignore_errors=True)

    def _close_at_exit(self, owner_pid: int) -> None:
        if os.getpid() == owner_pid:
            # Not in a fork of the test process, which does not own its brokers.
            self.close()

    def _end_brokers(self) -> None:
        if self._is_temporary:
            for broker_id in self.brokers:
                self.kill(broker_id)
            return
        try:
            # One after the other, so that each can hand over its leaderships.
            for broker_id in self.brokers:
                self.stop_broker(broker_id)
        finally:
            for broker_id in self.brokers:
                self.kill(broker_id)

    def _each(self, action: Callable[[int], object]) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for outcome in [pool.submit(action, broker_id) for broker_id in self.brokers]:
                outcome.result()
