"""The clusters under test: three brokers, replication factor 3, min.insync.replicas 2.

Apache Kafka has a separate controller as Odradek has a separate ZooKeeper server: on both sides four processes, and one
of them holds the only copy of the metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from benchmarks import brokers
from benchmarks.brokers import RunningBroker

SIZE: Final = 3
SESSION_TIMEOUT_MS: Final = 9_000
"""Kafka's default of broker.session.timeout.ms."""

REPLICATION: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "30000",
}


class BenchmarkCluster(Protocol):
    """A running cluster. `coordinator_pids` are the processes that are no broker."""

    @property
    def brokers(self) -> Mapping[int, RunningBroker]: ...

    @property
    def coordinator_pids(self) -> list[int]: ...

    def kill(self, broker_id: int) -> None: ...

    def stop_broker(self, broker_id: int) -> object: ...

    def start_broker(self, broker_id: int) -> object: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def apache_kafka() -> BenchmarkCluster:
    """Return a cluster of Apache Kafka with its defaults."""
    from compat_tests.apache_kafka.cluster import ApacheKafkaCluster

    class Measured(ApacheKafkaCluster):
        @property
        def coordinator_pids(self) -> list[int]:
            return [self.controller.pid]

    properties = {
        **brokers.PROPERTIES,
        **REPLICATION,
        **brokers.KAFKA_PROPERTIES,
        "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    }
    return Measured(properties, size=SIZE, heap=brokers.KAFKA_HEAP, jvm_options=brokers.KAFKA_JVM_OPTIONS)


def odradek(checkout: Path | None = None) -> BenchmarkCluster:
    """Return a cluster of Odradek with its defaults, of another checkout if that is given."""
    from odradek.testing import OdradekBroker
    from odradek.testing_cluster import OdradekCluster

    class Measured(OdradekCluster):
        @property
        def coordinator_pids(self) -> list[int]:
            assert self.zookeeper is not None
            return [server.pid for server in self.zookeeper.servers]

        def start(self) -> Self:
            with _working_in(checkout):
                return super().start()

        def start_broker(self, broker_id: int) -> OdradekBroker:
            with _working_in(checkout):
                return super().start_broker(broker_id)

    return Measured({**brokers.PROPERTIES, **REPLICATION}, size=SIZE, session_timeout_ms=SESSION_TIMEOUT_MS)


@contextlib.contextmanager
def _working_in(directory: Path | None) -> Iterator[None]:
    """A process imports packages in its working directory first."""
    with contextlib.nullcontext() if directory is None else contextlib.chdir(directory):
        yield


def make_factories(baseline: Path | None) -> dict[str, Callable[[], BenchmarkCluster]]:
    """Return what starts each contestant; Apache Kafka is replaced by `baseline` if that is given."""
    if baseline is None:
        return {"kafka": apache_kafka, "odradek": odradek}
    if not (baseline / "odradek" / "__main__.py").exists():
        raise FileNotFoundError(f"{baseline} is not a checkout of Odradek")
    return {"baseline": lambda: odradek(baseline), "odradek": odradek}
