"""A simulated broker process: start, stop, kill, restart.

Each start makes a new process, with its own reactor and environment. A process that has ended has no further effect:
its scheduled calls do not run, its sockets and files cannot be used, and unfinished work of its threads is discarded.
"""

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from twisted.internet.defer import Deferred, succeed

from odradek.log.background.tasks import Done
from odradek.log.storage.filesystem import File
from odradek.log.storage.memory_filesystem import SimulatedCrash
from odradek.replication.metadata.store import MetadataStore
from odradek.server.broker import Broker, BrokerStartError
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.network.scheduler import RequestScheduler
from odradek.server.network.writers.write_coalescer import WriteCoalescer
from odradek.server.stores.zookeeper.client import SessionStates, ThreadedReactor
from odradek.server.stores.zookeeper.settings import ZooKeeperSettings
from odradek.server.stores.zookeeper.store import ZooKeeperStore
from odradek.server.work.clock import Reactor
from odradek.simulation.machine.broker_sockets import Connector, Port
from odradek.simulation.machine.clock import Call
from odradek.simulation.machine.disk import SimulatedDisk
from odradek.simulation.machine.wall_clock import WallClock
from odradek.simulation.machine.zookeeper_session import SimulatedKazoo, SimulatedZooKeeperClient

if TYPE_CHECKING:
    from odradek.simulation.world import World

logger = logging.getLogger(__name__)


class Tempo(NamedTuple):
    """The monotonic clock of a machine: its time at the start of the simulation, and its rate."""

    start_s: float = 0.0
    rate: float = 1.0


EXACT: Final = Tempo()


class ProcessCall:
    """A scheduled call of a process whose monotonic clock differs from simulated time."""

    __slots__ = ("_call", "_tempo")

    def __init__(self, call: Call, tempo: Tempo) -> None:
        self._call = call
        self._tempo = tempo

    def active(self) -> bool:
        """Return whether the call is pending."""
        return self._call.active()

    def cancel(self) -> None:
        """Cancel the call. Raises AlreadyCancelled, AlreadyCalled."""
        self._call.cancel()

    def reset(self, delay: float) -> None:
        """Reschedule the call to `delay` seconds from now. Raises as `cancel`."""
        self._call.reset(delay / self._tempo.rate)

    def getTime(self) -> float:  # noqa: N802 - Twisted's name
        """Return the time of the call on the process's clock."""
        return self._tempo.start_s + self._call.time * self._tempo.rate


class ProcessReactor:
    """Twisted's reactor of one process: IReactorTime, listenTCP, connectTCP, resolve and stop.

    While the process is paused (SIGSTOP), its input waits, and its timers are due when it resumes, after the input.
    """

    running = True

    def __init__(self, world: "World", process: "BrokerProcess", random: Random) -> None:
        self._world = world
        self._process = process
        self._random = random
        self._tempo = process.tempo
        self._input: list[Callable[[], None]] = []
        self.is_alive = True
        self.resumes_s: float | None = None
        self.write_coalescer = WriteCoalescer()
        # Each request is processed in a separate iteration, so that other events interleave.
        self.scheduler = RequestScheduler(
            self.seconds, self.write_coalescer, wake=lambda: self.callLater(0, self.scheduler.serve), iteration_s=0.0
        )

    def seconds(self) -> float:
        """IReactorTime."""
        tempo = self._tempo
        return tempo.start_s + self._world.clock.seconds() * tempo.rate

    def callLater(  # noqa: N802
        self, delay: float, callable: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Call | ProcessCall:
        """IReactorTime. Timers run slightly late, as real ones do."""
        if delay > 0:
            delay += self._random.random() * 0.001
        if self._tempo is EXACT:
            return self._world.clock.callLater(delay, self.run, callable, *args, **kwargs)
        call = self._world.clock.callLater(delay / self._tempo.rate, self.run, callable, *args, **kwargs)
        return ProcessCall(call, self._tempo)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Port:  # noqa: N802
        """IReactorTCP."""
        return self._world.network.listen(self, (interface, port), factory)

    def connectTCP(  # noqa: N802
        self,
        host: str,
        port: int,
        factory: Any,
        timeout: float = 30,
        bindAddress: object = None,  # noqa: N803 - Twisted's name
    ) -> Connector:
        """IReactorTCP."""
        return self._world.network.connect_broker(self, self._process.host, (host, port), factory, timeout)

    def resolve(self, host: str) -> "Deferred[str]":
        """IReactorCore: host names are addresses."""
        return succeed(host)

    def stop(self) -> None:
        """Stop the broker on its own request. As in Twisted, the shutdown begins after the running function returns."""
        self.callLater(0, self._process.gave_up)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a function of the process. All its code runs through here; a simulated crash ends here."""
        if not self.is_alive:
            return
        if self.resumes_s is not None:
            self._input.append(lambda: self.run(function, *args, **kwargs))
            return
        world = self._world
        world.depth += 1
        try:
            if world.depth == 1:
                self.scheduler.begin_iteration(self.seconds())
            function(*args, **kwargs)
            if world.depth == 1 and self.is_alive:
                self.write_coalescer.flush()
        except SimulatedCrash:
            pass
        except Exception as error:
            world.fail(f"exception in the reactor: {error!r}", error)
        world.depth -= 1
        if self.is_alive:
            self._process.check()

    def pause(self, seconds: float) -> None:
        """Stop the process for a time (SIGSTOP, SIGCONT)."""
        clock = self._world.clock
        self.resumes_s = clock.seconds() + seconds
        clock.callLater(seconds, self._resume)
        clock.postpone(self.run, self.resumes_s)

    def _resume(self) -> None:
        self.resumes_s = None
        waiting, self._input = self._input, []
        for process_input in waiting:
            process_input()


class SimulatedEnvironment(Environment):
    """Environment of one process."""

    slice_s = 0.0

    def __init__(self, world: "World", process: "BrokerProcess", reactor: ProcessReactor, random: Random) -> None:
        # It implements the parts of a reactor that a broker in simulated time uses.
        self.reactor = cast(Reactor, reactor)
        self._process_reactor = reactor
        self.random_source = random
        self.fs = self._disk = process.disk
        self._process = process
        self._world = world

    def now_ms(self) -> int:
        return self._process.wall_clock.now_ms()

    def monotonic(self) -> float:
        return self._process_reactor.seconds()

    def monotonic_ms(self) -> int:
        return int(self._process_reactor.seconds() * 1000)

    def sleep(self, seconds: float) -> None:
        pass

    def run_in_thread(self, work: Callable[[], None], done: Done) -> None:
        self._world.threads.run(self._process_reactor, work, done)

    run_request = run_compaction = run_read = run_drop_behind = run_in_thread

    def run_all(self, actions: Sequence[Callable[[], None]], thread_count: int) -> None:
        """Simulate concurrent threads: run the actions one after the other in random order."""
        shuffled = list(actions)
        if thread_count > 1:
            self._world.threads.random.shuffle(shuffled)
        for action in shuffled:
            action()

    def has_metadata_store(self, directory: str) -> bool:
        self._disk.before_read(directory)
        return self._world.metadata.is_in(directory)

    def open_metadata_store(self, directory: str) -> MetadataStore:
        return self._world.metadata.open(directory, self._process_reactor)

    def make_zookeeper_store(self, config: BrokerConfig) -> ZooKeeperStore:
        ensemble, reactor, host = self._world.zookeeper, self._process_reactor, self._process.host
        assert ensemble is not None

        def make_client(settings: ZooKeeperSettings, _: object, states: SessionStates, /) -> Any:
            kazoo = SimulatedKazoo(ensemble, reactor, host, settings.session_timeout_ms / 1000)
            return SimulatedZooKeeperClient(kazoo, states)

        return ZooKeeperStore(ZooKeeperSettings.of(config), cast(ThreadedReactor, reactor), make_client)

    def absolute_path(self, path: str) -> str:
        return path

    def is_writable(self, directory: str) -> bool:
        return self._disk.is_writable(directory)

    def host_name(self) -> str:
        return self._process.host

    def send_file(self, connection: Any, file: File, position: int, size_bytes: int) -> int:
        sent: int = connection.send_file(file, position, size_bytes)
        return sent


class BrokerProcess:
    """A machine with one broker: its address, disk and clocks, and its process while there is one.

    broker: the running broker, None if there is none
    is_up: true once the broker has started and accepts clients
    start_count: number of starts
    tempo: the monotonic clock
    on_up, on_end, on_start_failure: called when the broker has started, when a process ends, when a start fails
    """

    def __init__(
        self,
        world: "World",
        address: tuple[str, int],
        properties: dict[str, str],
        disk: SimulatedDisk,
        wall_clock: WallClock,
        *,
        name: str = "broker",
        tempo: Tempo = EXACT,
    ) -> None:
        self.name = name
        self.address = address
        self.properties = properties
        self.disk = disk
        self.wall_clock = wall_clock
        self.tempo = tempo
        self.on_up: Callable[[], None] = lambda: None
        self.on_end: Callable[[str], None] = lambda how: None
        self.on_start_failure: Callable[[str], None] = world.fail
        self.broker: Broker | None = None
        self.is_up = False
        self.is_stopping = False
        self.start_count = 0
        self._world = world
        self._reactor: ProcessReactor | None = None
        self._ended_processes: list[Any] = []

    @property
    def host(self) -> str:
        """The name of the machine."""
        return self.address[0]

    @property
    def directories(self) -> list[str]:
        """The log directories."""
        return self.properties["log.dirs"].split(",")

    @property
    def is_alive(self) -> bool:
        """True if the process exists, even if the broker has not started yet."""
        return self._reactor is not None and self._reactor.is_alive

    def start(self) -> None:
        """Begin the start of the broker; `is_up` becomes true when it is complete."""
        assert not self.is_alive
        world = self._world
        self.start_count += 1
        self.is_stopping = False
        world.trace(f"{self.name} starts, process {self.start_count}")
        self.disk.come_up()
        world.network.machine_up(self.host)
        reactor = self._reactor = ProcessReactor(world, self, world.new_random())
        environment = SimulatedEnvironment(world, self, reactor, world.new_random())
        host, port = self.address
        properties = {"listeners": f"PLAINTEXT://{host}:{port}", **self.properties}
        self.broker = broker = Broker(BrokerConfig(properties), environment)

        def started(_: object) -> None:
            if reactor.is_alive:
                self.is_up = True
                world.trace(f"{self.name} is up")
                self.on_up()
                world.audit(broker)
                world.check_start(broker)

        def failed(failure: Any) -> None:
            if not reactor.is_alive or failure.check(SimulatedCrash):
                return
            if failure.check(BrokerStartError):
                world.trace(f"{self.name} cannot start: {failure.value}")
                self.on_start_failure(str(failure.value))
                self._end("could not start")
            else:
                world.fail(f"start of {self.name} failed: {failure.value!r}", failure.value)
                self._end("could not start")

        reactor.run(lambda: Deferred.fromCoroutine(broker.start()).addCallbacks(started, failed))

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM)."""
        broker, reactor = self.broker, self._reactor
        if broker is None or reactor is None or not self.is_up or self.is_stopping:
            return
        self.is_stopping = True
        self._world.trace(f"{self.name} stops")

        def stopped(result: Any) -> None:
            if reactor.is_alive:
                self._end("stopped")
            if hasattr(result, "value") and not result.check(SimulatedCrash):
                self._world.fail(f"stop of {self.name} failed: {result.value!r}", result.value)

        reactor.run(lambda: Deferred.fromCoroutine(broker.stop()).addBoth(stopped))

    def kill(self) -> None:
        """Kill the process (SIGKILL): memory is lost, files are unchanged."""
        if self.is_alive:
            self._end("killed")
            self.disk.come_down(is_power_loss=False)

    def pause(self, seconds: float) -> None:
        """Stop the process for a time, without its end."""
        if self._reactor is not None and self.is_alive and self._reactor.resumes_s is None:
            self._world.trace(f"{self.name} is paused for {seconds:.3f} s")
            self._reactor.pause(seconds)

    @property
    def is_paused(self) -> bool:
        """True while the process is stopped by `pause`."""
        return self._reactor is not None and self.is_alive and self._reactor.resumes_s is not None

    def lose_power(self, *, lose_names: bool, is_silent: bool = False) -> None:
        """Power off the machine: a part of the unsynced data is lost.

        With `is_silent` the connections of other machines end when this one is up again.
        """
        if self.is_alive:
            self._end("power lost", is_silent=is_silent)
        self.disk.come_down(is_power_loss=True, lose_names=lose_names)

    def crashed(self) -> None:
        """Called by the disk when the process dies during a write."""
        self._end("died while writing")

    def gave_up(self) -> None:
        """Called when no log directory is left: the broker stops itself, as far as the disk permits."""
        self._world.trace(f"{self.name} stops itself")
        self.stop()

    def check(self) -> None:
        """Check the invariants after an action of the broker."""
        if self.is_up and self.broker is not None:
            self._world.check_invariants(self)

    def _end(self, how: str, *, is_silent: bool = False) -> None:
        reactor = self._reactor
        assert reactor is not None
        self._world.trace(f"{self.name} {how}")
        reactor.is_alive = False
        self.is_up = False
        # Kept alive: suspended coroutines must not be collected, and thereby resumed, during the run.
        self._ended_processes.append((self.broker, reactor))
        self.broker = None
        self._world.network.process_died(reactor, is_silent=is_silent)
        if how in ("stopped", "could not start"):
            self.disk.come_down(is_power_loss=False)
        self.on_end(how)
