"""The faults of a run with several brokers, and the operator who restarts brokers and repairs disks.

A fault is a method of `ClusterFaults`, chosen by weight. Faults that lose unsynced data follow the rule in `power`.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from odradek.replication.metadata import znodes
from odradek.simulation.cluster.power import find_incomplete, may_lose_unsynced
from odradek.simulation.cluster.tree import read_data
from odradek.simulation.history import CrashKind, History
from odradek.simulation.machine.broker_process import BrokerProcess
from odradek.simulation.machine.network import CLIENT_HOST, Route
from odradek.simulation.machine.zookeeper import ZOOKEEPER_HOST
from odradek.simulation.scenario import FaultPlan

if TYPE_CHECKING:
    from odradek.simulation.world import World

_CLOCK_ERRORS_MS: Final = (-60_000, -3_000, -500, 500, 3_000, 60_000)


class ClusterFaults:
    """Injects faults until `end`, which repairs everything."""

    def __init__(self, world: "World", history: History, plan: FaultPlan, session_s: float, random: Random) -> None:
        assert world.zookeeper is not None
        self._world = world
        self._zookeeper = world.zookeeper
        self._network = world.network
        self._history = history
        self._plan = plan
        self._session_s = session_s
        self._random = random
        self._is_over = False
        for process in world.brokers:
            process.on_end = self._when_ended(process)
            process.on_start_failure = lambda why: None

    def begin(self) -> None:
        """Schedule the first fault."""
        if self._plan.weights:
            self._next()

    def end(self) -> None:
        """Stop injecting faults and repair everything."""
        self._is_over = True
        world = self._world
        self._zookeeper.slow_share = 0.0
        if self._zookeeper.is_down:
            self._zookeeper.start()
        self._network.heal()
        self._network.habits = self._network.habits._replace(slow_share=0.0)
        for process in world.brokers:
            process.disk.repair()
            self._restart_without_directory(process)
        world.trace("all faults are over")

    def _next(self) -> None:
        self._world.clock.callLater(self._random.expovariate(1 / self._plan.interval_s), self._inject)

    def _inject(self) -> None:
        if self._is_over:
            return
        names = list(self._plan.weights)
        (name,) = self._random.choices(names, list(self._plan.weights.values()))
        self._world.trace(f"fault: {name}")
        fault: Callable[[], None] = getattr(self, name)
        fault()
        self._next()

    def _later(self, action: Callable[[], None], least: float = 0.3, most: float = 3.0) -> None:
        """Call `action` after some part or multiple of the session timeout."""
        self._world.clock.callLater(self._random.uniform(least, most) * self._session_s, action)

    def _any(self) -> BrokerProcess:
        return self._random.choice(self._world.brokers)

    # Processes

    def kill(self) -> None:
        """Kill a process (SIGKILL)."""
        self._any().kill()

    def kill_controller(self) -> None:
        """Kill the process of the controller."""
        data = read_data(self._zookeeper, znodes.CONTROLLER)
        if data:
            self._world.brokers[znodes.decode_controller(data) - 1].kill()

    def kill_while_writing(self) -> None:
        """Kill a process between two disk operations, or during a write."""
        self._any().disk.crash_at(self._random.randint(1, 60))

    def stop(self) -> None:
        """Stop a broker cleanly, with a controlled shutdown."""
        self._any().stop()

    def pause(self) -> None:
        """Pause a process, longer or shorter than its session timeout."""
        self._any().pause(self._random.uniform(0.1, 2.0) * self._session_s)

    def lose_power(self) -> None:
        """Power off a machine, unless another replica may have lost the same data."""
        if may_lose_unsynced(self._world):
            process = self._any()
            process.lose_power(lose_names=self._random.random() < 0.5, is_silent=self._random.random() < 0.5)
        else:
            self._world.trace(f"no power loss: {find_incomplete(self._world)}")

    # Network

    def _cut(self, routes: list[Route]) -> None:
        self._world.trace(f"cut {', '.join(f'{source}>{target}' for source, target in routes)}")
        self._network.cut(routes)
        self._later(lambda: self._network.heal(routes))

    def cut_brokers(self) -> None:
        """Separate some brokers from the others, in both directions."""
        hosts = [process.host for process in self._world.brokers]
        some = self._random.sample(hosts, self._random.randint(1, len(hosts) - 1))
        others = [host for host in hosts if host not in some]
        self._cut([route for one in some for two in others for route in ((one, two), (two, one))])

    def cut_one_way(self) -> None:
        """Stop everything from one broker to another one."""
        one, two = self._random.sample(self._world.brokers, 2)
        self._cut([(one.host, two.host)])

    def isolate(self) -> None:
        """Separate a broker from the other brokers and ZooKeeper, sometimes also from clients."""
        host = self._any().host
        others = [process.host for process in self._world.brokers if process.host != host]
        others.append(ZOOKEEPER_HOST)
        if self._random.random() < 0.3:
            others.append(CLIENT_HOST)
        self._cut([route for other in others for route in ((host, other), (other, host))])

    def cut_from_zookeeper(self) -> None:
        """Separate a broker from ZooKeeper, in one or both directions."""
        host = self._any().host
        routes = [(host, ZOOKEEPER_HOST), (ZOOKEEPER_HOST, host)]
        self._cut(self._random.choice((routes, routes, routes[:1], routes[1:])))

    def cut_from_clients(self) -> None:
        """Separate a broker from the clients."""
        host = self._any().host
        self._cut([(host, CLIENT_HOST), (CLIENT_HOST, host)])

    def break_connections(self) -> None:
        """Break some connections, also those between brokers."""
        share = self._random.choice((0.1, 0.5, 1.0))
        for link in list(self._network.links):
            if self._random.random() < share:
                link.break_off(self._random)

    def slow_network(self) -> None:
        """Delay a share of the deliveries for some time."""
        habits = self._network.habits
        self._network.habits = habits._replace(slow_share=0.3, slow_s=0.3)

        def restore() -> None:
            if not self._is_over:
                self._network.habits = habits

        self._later(restore)

    # ZooKeeper

    def expire_session(self) -> None:
        """Expire the session of a broker at once."""
        self._zookeeper.expire(self._any().host)

    def break_zookeeper_connections(self) -> None:
        """Break the connections of a broker with ZooKeeper."""
        self._zookeeper.break_connections(self._any().host)

    def stop_zookeeper(self) -> None:
        """Stop ZooKeeper for some time."""
        if not self._zookeeper.is_down:
            self._zookeeper.stop()
            self._later(self._start_zookeeper)

    def _start_zookeeper(self) -> None:
        if self._zookeeper.is_down:
            self._zookeeper.start()

    # Disks and clocks

    def fail_disk(self) -> None:
        """Fail the disk of a machine, unless another replica may have lost the same data."""
        if may_lose_unsynced(self._world):
            process = self._any()
            process.disk.broken.update(dict.fromkeys(process.directories))
            self._later(lambda: self._repair(process))

    def fill_disk(self) -> None:
        """Fill the disk of a machine for some time."""
        process = self._any()
        process.disk.is_full = True
        self._later(lambda: self._repair(process))

    def set_clock(self) -> None:
        """Set the wall clock of a machine."""
        self._any().wall_clock.wrong_by_ms = self._random.choice(_CLOCK_ERRORS_MS)

    # The operator

    def _repair(self, process: BrokerProcess) -> None:
        process.disk.repair()
        self._restart_without_directory(process)

    def _restart_without_directory(self, process: BrokerProcess) -> None:
        broker = process.broker
        if process.is_up and broker is not None and not broker.services.logs.online_directories:
            process.stop()

    def _when_ended(self, process: BrokerProcess) -> Callable[[str], None]:
        def ended(how: str) -> None:
            self._history.has_unfinished_end |= process.disk.has_refused
            if how == "died while writing":
                process.disk.come_down(is_power_loss=False)
            if how in ("killed", "died while writing", "power lost"):
                self._history.crash(CrashKind.PROCESS_KILL)
            process.disk.forget_unsynced()
            delay_s = self._random.choice((0.05, 0.5, 2.0)) * (1.0 if self._is_over else self._session_s)
            self._world.clock.callLater(delay_s, self._start, process)

        return ended

    def _start(self, process: BrokerProcess) -> None:
        if process.is_alive:
            return
        if self._is_over:
            process.disk.repair()
        process.start()
