"""A simulated world: one clock, one network, one disk, one broker, and a seed that decides everything."""

import hashlib
import logging
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from odradek.protocol.schema import Message
from odradek.replication.metadata.store import StoreUnavailableError
from odradek.server.broker import Broker
from odradek.simulation import invariants, log_audit
from odradek.simulation.broker_process import BrokerProcess
from odradek.simulation.client_connection import SimulatedConnection
from odradek.simulation.clock import SimulatedClock
from odradek.simulation.disk import EPOCH_MS, SimulatedDisk
from odradek.simulation.metadata import SimulatedMetadata
from odradek.simulation.network import ByteStream, Network, NetworkHabits
from odradek.simulation.threads import SimulatedThreads
from odradek.simulation.tracing import describe
from odradek.simulation.wall_clock import WallClock

Printer = Callable[[str], None]

ADDRESS = ("broker-0", 9092)


class World:
    """See `api.World` for what clients see of it. Made, `start`ed, then `run` until something.

    failures: what must not have happened and did
    is_ending: the faults are over
    compacted: topics whose logs may have gaps, whatever their configuration is by now

    With `looks_inside` the broker's memory and files are examined as it goes; without, only clients judge it.
    """

    def __init__(
        self,
        seed: int,
        properties: dict[str, str] | None = None,
        habits: NetworkHabits | None = None,
        print_line: Printer | None = None,
        looks_inside: bool = True,
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
        self.disk = SimulatedDisk(self.wall_clock.now_ms, self.new_random(), self._crashed)
        self.network = Network(self.clock, self.new_random(), habits or NetworkHabits())
        self.network.note_bytes = self._note_bytes
        self.metadata = SimulatedMetadata(self, self.new_random())
        self.broker = BrokerProcess(self, ADDRESS, {"log.dirs": "/data", **(properties or {})})
        self.on_broker_up: Callable[[], None] = lambda: None
        self.on_broker_end: Callable[[str], None] = lambda how: None
        self.on_start_failure: Callable[[str], None] = self.fail
        self._print_line = print_line
        self._hash = hashlib.blake2b(digest_size=16)

    # What clients may touch

    def now_ms(self) -> int:
        """The right time, ms since 1970, which the clients' clocks show. The broker's machine has `wall_clock`."""
        return EPOCH_MS + int(self.clock.seconds() * 1000)

    def sleep(self, seconds: float) -> "Deferred[None]":
        """Fires after so many simulated seconds."""
        deferred: Deferred[None] = Deferred()
        self.clock.callLater(seconds, deferred.callback, None)
        return deferred

    def connect(self, address: tuple[str, int] | None = None) -> "Deferred[SimulatedConnection]":
        """Connect to a broker. Errs with ConnectionLost."""

        def connected(stream: ByteStream) -> SimulatedConnection:
            return SimulatedConnection(self, stream)

        return self.network.connect(address or ADDRESS).addCallback(connected)

    def trace(self, text: str) -> None:
        """Note a line, with the time."""
        self._hash.update(f"{self.clock.seconds():.9f} {text}\n".encode())
        self.note(text)

    def note(self, text: str) -> None:
        """A line for who reads along."""
        if self._print_line is not None:
            self._print_line(f"{self.clock.seconds():10.4f} {text}")

    # What the parts of the world use

    def new_random(self) -> Random:
        """A source of chance of one's own, so that what one part draws does not change what the others do."""
        return Random(self._random.getrandbits(64))

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """The run has failed."""
        if error is not None:
            what += "\n" + "".join(traceback.format_exception(error))
        self.failures.append(f"at {self.clock.seconds():.4f} s: {what}")
        self.trace(f"FAILURE {what}")

    def trace_message(
        self, arrow: str, client_id: str, correlation_id: int, message: Message, version: int
    ) -> None:
        """Note a request or a response; the bytes themselves are noted when they arrive."""
        if self._print_line is not None:
            self.note(f"{client_id} {arrow} {correlation_id} {describe(message, version)}")

    @property
    def is_printing(self) -> bool:
        """Whether anybody reads the trace."""
        return self._print_line is not None

    @property
    def trace_hash(self) -> str:
        """Of everything that has happened; two runs of a seed have the same."""
        return self._hash.hexdigest()

    def _note_bytes(self, data: bytes) -> None:
        self._hash.update(f"{self.clock.seconds():.9f}".encode())
        self._hash.update(data)

    def check_invariants(self, broker: Broker) -> None:
        """What must hold after each step of a running broker."""
        if not self.looks_inside:
            return
        for what in invariants.violated(broker):
            self.fail(what)

    def audit(self, broker: Broker) -> None:
        """Read every log of a broker and hold all else against it."""
        if not self.looks_inside:
            return
        for log in broker.services.logs.all_logs():
            has_gaps = log.topic in self.compacted or self.metadata.was_lost
            for what in log_audit.faults_of(log, has_gaps=has_gaps):
                self.fail(what)

    def check_rest(self, broker: Broker) -> None:
        """What must hold when all clients are long gone."""
        if self.looks_inside:
            for what in invariants.left_waiting(broker):
                self.fail(what)

    def process_ended(self, how: str) -> None:
        """A life of the broker is over."""
        self.on_broker_end(how)

    def start_failed(self, why: str) -> None:
        """The broker refuses to start."""
        self.on_start_failure(why)

    def _crashed(self) -> None:
        self.broker.crashed()

    # Running

    def start(self, coroutine: Any, name: str) -> "Deferred[Any]":
        """Start a client's coroutine; an exception out of it is a failure of the run."""

        def failed(failure: Any) -> None:
            self.fail(f"client {name} failed: {failure.value!r}", failure.value)

        deferred: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        return deferred.addErrback(failed)

    def run(self, until: Callable[[], bool], limit_s: float, most_steps: int = 1_000_000) -> bool:
        """Let time pass until something holds (True), or for `limit_s` seconds more at most."""
        end_s = self.clock.seconds() + limit_s
        last_step = self.clock.steps + most_steps
        while not until():
            if self.clock.seconds() > end_s or not self.clock.step():
                return False
            if self.clock.steps > last_step:
                self.fail(f"no end in sight after {most_steps} steps")
                return False
        return True


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether a line of the log has an exception that nobody brought about, or asks for a report."""
    if record.exc_info and isinstance(record.exc_info[1], StoreUnavailableError):
        return False
    return bool(record.exc_info) or "please report it" in record.msg


class LogWatch(logging.Handler):
    """What the broker logs goes into the trace; what it calls unexpected fails the run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.is_printing else logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the log."""
        world = self._world
        if not world.broker.is_alive:
            return
        if record.levelno < logging.WARNING:
            # Not a part of the trace proper: it must be the same when nobody reads along.
            world.note(f"log: {record.getMessage()}")
        elif world.looks_inside and record.levelno >= logging.ERROR and _is_unexpected(record):
            error = record.exc_info[1] if record.exc_info else None
            world.fail(f"log: {record.getMessage()}", error)
        else:
            world.trace(f"log {record.levelname}: {record.getMessage()}")
