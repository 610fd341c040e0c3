"""A running cluster in the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import brokers, wire
from benchmarks.cluster.clusters import SIZE, BenchmarkCluster
from benchmarks.cluster.topics import View, describe, wait_until
from benchmarks.procfs import cpu_seconds


class ClusterContestant:
    """A cluster, all of whose brokers run at the begin and end of a turn."""

    def __init__(self, cluster: BenchmarkCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.topics = 0

    @property
    def ports(self) -> dict[int, int]:
        """The ports of all brokers, by id."""
        return {broker_id: broker.port for broker_id, broker in self.cluster.brokers.items()}

    @property
    def broker_pids(self) -> list[int]:
        return [broker.pid for broker in self.cluster.brokers.values()]

    @property
    def pids(self) -> list[int]:
        """All processes of the cluster."""
        return [*self.broker_pids, *self.cluster.coordinator_pids]

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes so far."""
        return sum(cpu_seconds(pid) for pid in self.pids)

    def next_name(self) -> str:
        """Return the name of a new topic; equally long on both sides, and so are the frames."""
        self.topics += 1
        return f"bench-{self.topics:05d}"

    @contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """Create a topic, wait until all its replicas are in sync, and delete it from all disks afterwards."""
        name = self.next_name()
        self.create(name, partitions)
        try:
            self.await_whole(name, partitions)
            yield name
        finally:
            self.delete(name)

    def create(self, topic: str, partitions: int) -> None:
        """Request a topic's creation from the controller; its partitions may have no leaders yet afterwards."""
        with wire.Admin(self.controller_port, timeout_s=120) as admin:
            admin.send_creation(topic, partitions, replicas=SIZE)

    @property
    def any_port(self) -> int:
        return next(iter(self.ports.values()))

    @property
    def controller_port(self) -> int:
        """The port of the broker that takes changes of topics."""
        return self.ports[self.view("").controller]

    def view(self, topic: str) -> View:
        """Return the state of a topic as the first broker that answers and has a controller reports it.

        Raises WireError.
        """
        for port in self.ports.values():
            try:
                view = describe(port, topic)
                if view.controller in view.ports:
                    return view
            except (OSError, wire.WireError):
                continue
        raise wire.WireError("no broker answers")

    def await_whole(self, topic: str, partitions: int, timeout_s: float = 120.0) -> None:
        """Wait until all brokers report all partitions with leaders and all replicas in sync."""

        def is_whole() -> bool:
            views = [describe(port, topic) for port in self.ports.values()]
            return all(
                len(view.partitions) == partitions
                and len(view.ports) == SIZE
                and all(state.is_whole for state in view.partitions.values())
                for view in views
            )

        wait_until(is_whole, f"all replicas of {topic} in sync", timeout_s)

    def delete(self, topic: str) -> None:
        with wire.Admin(self.controller_port) as admin:
            admin.delete_topic(topic)
        for broker in self.cluster.brokers.values():
            brokers.wait_until_gone(broker, topic, 60.0)

    def leader_ports(self, topic: str, partitions: int) -> list[int]:
        """Return the ports of the leaders, in the order of the partitions."""
        view, ports = self.view(topic), self.ports
        return [ports[view.partitions[index].leader] for index in range(partitions)]

    def end_offsets(self, topic: str, partitions: int) -> int:
        """Return the sum of the log ends that consumers see."""
        total = 0
        for index, port in enumerate(self.leader_ports(topic, partitions)):
            with wire.Admin(port) as admin:
                total += admin.end_offset(topic, index)
        return total
