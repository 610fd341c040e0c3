"""A simulated world: a clock, a network, and one or more brokers with their disks, determined by one seed."""

import hashlib
import logging
import traceback
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, cast

from twisted.internet.defer import Deferred

from odradek.log.storage.memory_filesystem import SimulatedCrash
from odradek.protocol.schema import Message
from odradek.replication.metadata.store import StoreUnavailableError
from odradek.server.broker import Broker
from odradek.simulation.api import ClientConnection
from odradek.simulation.audits import invariants, log_audit
from odradek.simulation.clients.cluster_connection import connect_to_cluster
from odradek.simulation.cluster.invariants import ClusterInvariants
from odradek.simulation.cluster.power import IntactReplicas
from odradek.simulation.cluster.tree import StoredPartition
from odradek.simulation.history import Partition
from odradek.simulation.machine.broker_process import BrokerProcess, Tempo
from odradek.simulation.machine.client_connection import REQUEST_TIMEOUT_S, SimulatedConnection
from odradek.simulation.machine.clock import SimulatedClock
from odradek.simulation.machine.disk import EPOCH_MS, SimulatedDisk
from odradek.simulation.machine.metadata import SimulatedMetadata
from odradek.simulation.machine.network import Network, NetworkHabits
from odradek.simulation.machine.pipes import ByteStream
from odradek.simulation.machine.threads import SimulatedThreads
from odradek.simulation.machine.wall_clock import WallClock
from odradek.simulation.machine.zookeeper import ZOOKEEPER_HOST, ZooKeeper
from odradek.simulation.tracing import describe

Printer = Callable[[str], None]

ADDRESS = ("broker-0", 9092)
_CLUSTER_REQUEST_TIMEOUT_S: Final = 5.0
"""Shorter than a client's default, so that clients find the next leader during the run."""
_UNCLEAN_ELECTION: Final = "unclean leader election: "
"""The beginning of the controller's log lines about unclean elections."""


class World:
    """The simulated world. `api.World` is its interface for clients.

    failures: descriptions of all failures of the run
    is_ending: true once there are no more faults
    compacted: topics whose logs may have gaps, regardless of their current configuration
    depth: number of nested calls of broker code in progress
    quiet_s: time from which on a request over an intact connection must get a response
    brokers: all brokers; `broker` is the first one
    zookeeper: the ensemble of a cluster, None for a single broker with an embedded store
    cluster_invariants: the invariants of a cluster, None for a single broker
    intact: the rule for the faults of a cluster, and for reassignments

    With `looks_inside` the brokers' memory and files are checked after each step; otherwise only the clients' histories
    are checked.
    """

    def __init__(
        self,
        seed: int,
        properties: dict[str, str] | None = None,
        habits: NetworkHabits | None = None,
        print_line: Printer | None = None,
        looks_inside: bool = True,
        broker_count: int = 1,
    ) -> None:
        self.seed = seed
        self.looks_inside = looks_inside
        self.failures: list[str] = []
        self.is_ending = False
        self.compacted: frozenset[str] = frozenset()
        self.depth = 0
        self._random = Random(seed)
        self.random = self.new_random()
        self.clock = SimulatedClock()
        self.threads = SimulatedThreads(self.clock, self.new_random())
        self.wall_clock = WallClock(self.clock)
        disk = SimulatedDisk(self.wall_clock.now_ms, self.new_random(), lambda: self.broker.crashed())
        self.network = Network(self.clock, self.new_random(), habits or NetworkHabits())
        self.network.note_bytes = self._note_bytes
        self.metadata = SimulatedMetadata(self, self.new_random())
        given = {"log.dirs": "/data", **(properties or {})}
        self.zookeeper: ZooKeeper | None = None
        if broker_count == 1:
            self.brokers = [BrokerProcess(self, ADDRESS, given, disk, self.wall_clock)]
        else:
            chance = Random(f"cluster {seed}")
            self.zookeeper = ZooKeeper(
                self.clock, self.network, Random(chance.getrandbits(64)), self.now_ms, self.trace
            )
            self.brokers = [self._make_broker(number, given, chance) for number in range(1, broker_count + 1)]
        self.broker = self.brokers[0]
        self.cluster_invariants: ClusterInvariants | None = None
        if self.zookeeper is not None:
            self.cluster_invariants = ClusterInvariants(self.zookeeper, self.brokers)
            self.zookeeper.on_change = self._check_tree
        self.intact = IntactReplicas(self)
        self.quiet_s = 0.0
        self._router_random = Random(f"router {seed}")
        self._client_timeout_s = REQUEST_TIMEOUT_S if broker_count == 1 else _CLUSTER_REQUEST_TIMEOUT_S
        self._print_line = print_line
        self._hash = hashlib.blake2b(digest_size=16)

    def _make_broker(self, number: int, properties: Mapping[str, str], chance: Random) -> BrokerProcess:
        """Return a broker of a cluster on its own machine, whose monotonic clock runs up to 1 % fast or slow."""
        wall_clock = WallClock(self.clock)
        name = f"broker-{number}"
        own = {"node.id": str(number), "zookeeper.connect": f"{ZOOKEEPER_HOST}:2181", **properties}
        disk = SimulatedDisk(wall_clock.now_ms, Random(chance.getrandbits(64)), lambda: process.crashed())
        tempo = Tempo(chance.choice((0.0, chance.uniform(0, 1e6))), chance.choice((1.0, chance.uniform(0.99, 1.01))))
        process = BrokerProcess(self, (name, 9092), own, disk, wall_clock, name=name, tempo=tempo)
        return process

    # Interface for clients

    def now_ms(self) -> int:
        """The clients' wall clock, in ms since 1970. The broker's machine has `wall_clock`."""
        return EPOCH_MS + int(self.clock.seconds() * 1000)

    def sleep(self, seconds: float) -> "Deferred[None]":
        """Return a Deferred that fires after `seconds` of simulated time."""
        deferred: Deferred[None] = Deferred()
        self.clock.callLater(seconds, deferred.callback, None)
        return deferred

    def connect(self, address: tuple[str, int] | None = None) -> "Deferred[ClientConnection]":
        """Connect to the broker at `address`, or to the cluster. Fails with ConnectionLost."""
        if address is None and self.zookeeper is not None:
            return Deferred.fromCoroutine(connect_to_cluster(self, self._router_random))

        def connected(stream: ByteStream) -> ClientConnection:
            return SimulatedConnection(self, stream, self._client_timeout_s)

        return self.network.connect(address or ADDRESS).addCallback(connected)

    def trace(self, text: str) -> None:
        """Add a line to the trace, with the time."""
        self._hash.update(f"{self.clock.seconds():.9f} {text}\n".encode())
        self.note(text)

    def note(self, text: str) -> None:
        """Print a line that is not a part of the trace's hash."""
        if self._print_line is not None:
            self._print_line(f"{self.clock.seconds():10.4f} {text}")

    # Interface for the parts of the world

    def new_random(self) -> Random:
        """Return a separate source of random numbers, so that draws of one part do not affect the others."""
        return Random(self._random.getrandbits(64))

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Record a failure of the run."""
        if error is not None:
            what += "\n" + "".join(traceback.format_exception(error))
        self.failures.append(f"at {self.clock.seconds():.4f} s: {what}")
        self.trace(f"FAILURE {what}")

    def trace_message(
        self, arrow: str, client_id: str, correlation_id: int, message: Message, version: int
    ) -> None:
        """Print a request or a response; its bytes are hashed when they arrive."""
        if self._print_line is not None:
            self.note(f"{client_id} {arrow} {correlation_id} {describe(message, version)}")

    @property
    def is_printing(self) -> bool:
        """True if the trace is printed."""
        return self._print_line is not None

    @property
    def trace_hash(self) -> str:
        """Hash of all events; equal for all runs of a seed."""
        return self._hash.hexdigest()

    def _note_bytes(self, data: bytes) -> None:
        self._hash.update(f"{self.clock.seconds():.9f}".encode())
        self._hash.update(data)

    def check_invariants(self, process: BrokerProcess) -> None:
        """Check the invariants of a running broker after a step."""
        if process.broker is None:
            return
        if not self.looks_inside:
            if self.cluster_invariants is not None:
                self.cluster_invariants.note_committed(process)
            return
        if self.cluster_invariants is not None:
            for what in self.cluster_invariants.check(process):
                self.fail(what)
        elif not process.is_stopping:
            for what in invariants.find_violations(process.broker):
                self.fail(what)

    def _check_tree(self) -> None:
        """Check the invariants of ZooKeeper after each change, so that no state is omitted."""
        assert self.cluster_invariants is not None
        for what in self.cluster_invariants.check_tree():
            if self.looks_inside:
                self.fail(what)

    def committed_end(self, topic_id: bytes, index: int) -> int:
        """Return the highest high watermark that a leader of a partition has had, since the last unclean election."""
        assert self.cluster_invariants is not None
        invariants = self.cluster_invariants
        return invariants.committed.end(invariants.branches.latest((topic_id, index)))

    def stored_partitions(self) -> dict[Partition, StoredPartition]:
        """Return the partitions in ZooKeeper."""
        assert self.cluster_invariants is not None
        return self.cluster_invariants.partitions.read()

    def audit(self, broker: Broker) -> None:
        """Read all logs of a broker, except for those on a broken disk, and compare indexes and state with them."""
        if not self.looks_inside:
            return
        partitions = broker.services.replicas.partitions
        [disk] = [process.disk for process in self.brokers if process.broker is broker]
        for log in broker.services.logs.all_logs():
            if log.log_directory in disk.broken:
                continue
            has_gaps = log.topic in self.compacted or self.metadata.was_lost
            partition = partitions.get((log.topic, log.partition))
            leader_epoch = partition.leader_epoch if partition is not None and partition.is_leader else None
            for what in log_audit.find_faults(log, has_gaps=has_gaps, leader_epoch=leader_epoch):
                self.fail(what)
        for what in invariants.find_fenced_coordinators(broker):
            self.fail(what)

    def check_start(self, broker: Broker) -> None:
        """Check the conditions that hold when a broker has just started.

        In a cluster the epochs of coordinators differ, as each partition has its own elections.
        """
        if self.looks_inside and self.zookeeper is None:
            for what in invariants.find_coordinators_behind_markers(broker):
                self.fail(what)

    def check_rest(self, broker: Broker) -> None:
        """Check the conditions that hold when all clients have ended long ago."""
        if self.looks_inside:
            for what in invariants.find_waiting_requests(broker):
                self.fail(what)

    # Running

    def start(self, coroutine: Any, name: str) -> "Deferred[Any]":
        """Start a client's coroutine; an uncaught exception in it fails the run."""

        def failed(failure: Any) -> None:
            self.fail(f"client {name} failed: {failure.value!r}", failure.value)

        deferred: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        return deferred.addErrback(failed)

    def run(self, until: Callable[[], bool], limit_s: float, most_steps: int = 1_000_000) -> bool:
        """Advance time until a condition holds (True), by at most `limit_s` seconds."""
        end_s = self.clock.seconds() + limit_s
        last_step = self.clock.steps + most_steps
        while not until():
            if self.clock.seconds() > end_s or not self.clock.step():
                return False
            if self.clock.steps > last_step:
                self.fail(f"the condition does not hold after {most_steps} steps")
                return False
        return True


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether a log record has an unexpected exception or the text "please report it".

    A process that crashes in the middle of a request continues until the request's handler has ended.
    """
    if record.exc_info and isinstance(record.exc_info[1], StoreUnavailableError | SimulatedCrash):
        return False
    return bool(record.exc_info) or "please report it" in record.msg


class LogWatch(logging.Handler):
    """Log handler that adds the broker's log lines to the trace; unexpected errors fail the run.

    is_over: nothing is handled any more, because the run has ended
    """

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.is_printing else logging.WARNING)
        self.is_over = False
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a log record."""
        world = self._world
        if self.is_over or not any(broker.is_alive for broker in world.brokers):
            return
        if world.cluster_invariants is not None and record.msg.startswith(_UNCLEAN_ELECTION):
            topic, index, _, leader_epoch, *_ = cast(tuple[Any, ...], record.args)
            world.cluster_invariants.logged.add((topic, index, leader_epoch))
        if record.levelno < logging.WARNING:
            # Not a part of the trace, whose hash must not depend on printing.
            world.note(f"log: {record.getMessage()}")
        elif world.looks_inside and record.levelno >= logging.ERROR and _is_unexpected(record):
            error = record.exc_info[1] if record.exc_info else None
            world.fail(f"log: {record.getMessage()}", error)
        else:
            world.trace(f"log {record.levelname}: {record.getMessage()}")
