"""The faults of a run with several brokers, and the operator who restarts brokers and repairs disks.

A fault is a method of `ClusterFaults`, chosen by weight. A fault that the rule in `power` does not permit is omitted.
"""

from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER
from odradek.simulation.cluster.directories import has_lost_directory
from odradek.simulation.cluster.tree import read_data
from odradek.simulation.fault_schedule import FaultSchedule
from odradek.simulation.history import CrashKind, History
from odradek.simulation.machine.broker_process import BrokerProcess
from odradek.simulation.machine.network import CLIENT_HOST
from odradek.simulation.machine.pipes import Route
from odradek.simulation.machine.zookeeper import ZOOKEEPER_HOST
from odradek.simulation.scenario import FaultPlan

if TYPE_CHECKING:
    from odradek.simulation.world import World

_CLOCK_ERRORS_MS: Final = (-60_000, -3_000, -500, 500, 3_000, 60_000)
_LONGEST_TAKEOVER_S: Final = 2.0
_ZOOKEEPER_LAGS: Final = (0.05, 0.15, 0.3, 1.0)
"""Longest delays of a message while ZooKeeper is slow, in session timeouts."""
_LATE_REPORTS_S: Final = 20
"""The failure of work on a slow thread takes a log directory offline when it is reported, even after a repair. A broker
that lost its disk refuses roles until other replicas lead, whose brokers may start later."""


class ClusterFaults:
    """Injects faults until `end`, which repairs everything."""

    def __init__(self, world: "World", history: History, plan: FaultPlan, session_s: float, random: Random) -> None:
        assert world.zookeeper is not None
        self._world = world
        self._zookeeper = world.zookeeper
        self._network = world.network
        self._history = history
        self._session_s = session_s
        self._random = random
        self._schedule = FaultSchedule(world, plan, random, self)
        self._intact = world.intact
        self._pauses: dict[str, float] = {}
        self._dies_by_power_loss: BrokerProcess | None = None
        self._zookeeper.on_write = self._when_written
        for process in world.brokers:
            process.on_end = self._when_ended(process)
            process.on_start_failure = lambda why: None

    def begin(self) -> None:
        """Schedule the first fault."""
        self._schedule.begin()

    def end(self) -> None:
        """Stop injecting faults and repair everything."""
        self._schedule.end()
        world = self._world
        self._zookeeper.slow_share = self._zookeeper.lag_s = 0.0
        if self._zookeeper.is_down:
            self._zookeeper.start()
        self._network.heal()
        self._network.habits = self._network.habits._replace(slow_share=0.0)
        for process in world.brokers:
            process.disk.repair()
        for seconds in range(_LATE_REPORTS_S):
            world.clock.callLater(seconds, self._restart_without_directories)
        world.trace("all faults are over")

    def _later(self, action: Callable[[], None], least: float = 0.3, most: float = 3.0) -> None:
        """Call `action` after some part or multiple of the session timeout."""
        self._world.clock.callLater(self._random.uniform(least, most) * self._session_s, action)

    def _any(self) -> BrokerProcess:
        return self._random.choice(self._world.brokers)

    def _may_disturb(self, processes: Collection[BrokerProcess]) -> bool:
        """Return whether brokers may leave ISRs now."""
        is_permitted = self._intact.may_disturb([process.name for process in processes])
        if not is_permitted:
            self._world.trace("no fault: another replica has lost data")
        return is_permitted

    def _disturb(self, processes: Iterable[BrokerProcess]) -> None:
        """Count a disturbance of brokers, until `_leave` is called."""
        disturbed = self._intact.disturbed
        for process in processes:
            disturbed[process.name] = disturbed.get(process.name, 0) + 1

    def _leave(self, processes: Iterable[BrokerProcess]) -> None:
        for process in processes:
            self._intact.disturbed[process.name] -= 1

    # Processes

    def kill(self) -> None:
        """Kill a process (SIGKILL)."""
        process = self._any()
        if self._may_disturb([process]):
            process.kill()

    def fail_controller(self) -> None:
        """Kill the process of the controller, or pause it when ZooKeeper has made its next change.

        It resumes with the response to the change, before it is notified that another controller has been elected.
        """
        data = read_data(self._zookeeper, znodes.CONTROLLER)
        if not data:
            return
        process = self._world.brokers[znodes.decode_controller(data) - 1]
        if self._random.random() < 0.5:
            self._pauses[process.host] = self._session_s + self._random.uniform(0.0, _LONGEST_TAKEOVER_S)
        elif self._may_disturb([process]):
            process.kill()

    def _when_written(self, host: str) -> None:
        seconds = self._pauses.pop(host, None)
        if seconds is not None and not self._schedule.is_over:
            [process] = [one for one in self._world.brokers if one.host == host]
            if self._may_disturb([process]):
                process.pause(seconds)

    def kill_while_writing(self) -> None:
        """Kill a process between two disk operations, or during a write."""
        process = self._any()
        if self._may_disturb([process]):
            self._disturb([process])
            process.disk.crash_at(self._random.randint(1, 60))
            self._later(lambda: self._end_crash(process))

    def _end_crash(self, process: BrokerProcess) -> None:
        self._leave([process])
        if self._dies_by_power_loss is process:
            self._dies_by_power_loss = None
        process.disk.cancel_crash()

    def stop(self) -> None:
        """Stop a broker cleanly, with a controlled shutdown."""
        process = self._any()
        if self._may_disturb([process]):
            process.stop()

    def pause(self) -> None:
        """Pause a process, longer or shorter than its session timeout."""
        process, seconds = self._any(), self._random.uniform(0.1, 2.0) * self._session_s
        if self._may_disturb([process]):
            process.pause(seconds)

    def lose_power(self) -> None:
        """Power off a machine."""
        process = self._any()
        if not self._intact.may_lose(process):
            self._world.trace("no power loss: no other replica is intact")
            return
        self._intact.lose_data(process)
        process.lose_power(lose_names=self._random.random() < 0.5, is_silent=self._random.random() < 0.5)

    def end_all(self) -> None:
        """Kill all processes at the same time, and expire their sessions. Sometimes one machine loses its disk."""
        brokers = self._world.brokers
        if not self._may_disturb(brokers):
            return
        victim = self._any()
        loses_disk = self._random.random() < 0.5 and self._intact.may_lose_disk(victim)
        for process in brokers:
            process.kill()
            self._zookeeper.expire(process.host)
        if loses_disk:
            self._world.trace(f"{victim.name} has lost its disk")
            self._intact.lose_data(victim)
            victim.disk.replace_disk()

    def lose_all_power(self) -> None:
        """Power off all machines at the same time, or all but one; sometimes ZooKeeper stops as well.

        All topics have flush.before.acks: committed records are on the disks of all members of the ISR. A machine that
        has lost records in another way must not be the only one that returns.
        """
        if not self._may_disturb(self._world.brokers):
            return
        if self._random.random() < 0.4:
            self._power_off_while_writing(self._any())
        else:
            self._power_off(None if self._random.random() < 0.7 else self._any())

    def _power_off_while_writing(self, process: BrokerProcess) -> None:
        """Cut the power between two disk operations of a broker, or during a write."""
        self._disturb([process])
        self._dies_by_power_loss = process
        process.disk.crash_at(self._random.randint(1, 60))
        self._later(lambda: self._end_crash(process))

    def _power_off(self, spared: BrokerProcess | None) -> None:
        random = self._random
        is_silent, are_expired, stops_zookeeper = random.random() < 0.5, random.random() < 0.5, random.random() < 0.3
        for process in self._world.brokers:
            if process is not spared:
                process.lose_power(lose_names=random.random() < 0.5, is_silent=is_silent)
                if are_expired:
                    self._zookeeper.expire(process.host)
        if stops_zookeeper:
            self.stop_zookeeper()

    # Network

    def _cut(
        self, routes: list[Route], victims: list[BrokerProcess], least: float = 0.3, most: float = 3.0
    ) -> None:
        """Cut routes for some time, as in `_later`. `victims`: the brokers that may leave ISRs."""
        if not self._may_disturb(victims):
            return
        self._world.trace(f"cut {', '.join(f'{source}>{target}' for source, target in routes)}")
        self._network.cut(routes)
        self._disturb(victims)

        def heal() -> None:
            self._network.heal(routes)
            self._leave(victims)

        self._later(heal, least, most)

    def cut_brokers(self) -> None:
        """Separate some brokers from the others, in both directions."""
        brokers = self._world.brokers
        hosts = [process.host for process in brokers]
        some = self._random.sample(hosts, self._random.randint(1, len(hosts) - 1))
        others = [host for host in hosts if host not in some]
        self._cut([route for one in some for two in others for route in ((one, two), (two, one))], brokers)

    def cut_one_way(self) -> None:
        """Stop everything from one broker to another one."""
        one, two = self._random.sample(self._world.brokers, 2)
        self._cut([(one.host, two.host)], [one, two])

    def isolate(self) -> None:
        """Separate a broker from the other brokers and ZooKeeper, sometimes also from clients."""
        victim = self._any()
        others = [process.host for process in self._world.brokers if process is not victim]
        others.append(ZOOKEEPER_HOST)
        if self._random.random() < 0.3:
            others.append(CLIENT_HOST)
        host = victim.host
        self._cut([route for other in others for route in ((host, other), (other, host))], [victim])

    def leave_one_behind(self) -> None:
        """Keep a broker from replicating, and then separate the others, the members of the ISRs, from ZooKeeper."""
        brokers = self._world.brokers
        last = self._any()
        if not self._may_disturb(brokers):
            return
        others = [process.host for process in brokers if process is not last]
        self._cut([route for host in others for route in ((last.host, host), (host, last.host))], brokers, 3.0, 6.0)
        last.kill()
        self._later(lambda: self._cut_all_from_zookeeper(others), 1.0, 2.5)

    def _cut_all_from_zookeeper(self, hosts: list[str]) -> None:
        if not self._schedule.is_over:
            routes = [route for host in hosts for route in ((host, ZOOKEEPER_HOST), (ZOOKEEPER_HOST, host))]
            self._cut(routes, self._world.brokers, 1.0, 3.0)

    def cut_from_zookeeper(self) -> None:
        """Separate a broker from ZooKeeper, in one or both directions."""
        victim = self._any()
        routes = [(victim.host, ZOOKEEPER_HOST), (ZOOKEEPER_HOST, victim.host)]
        self._cut(self._random.choice((routes, routes, routes[:1], routes[1:])), [victim])

    def cut_from_clients(self) -> None:
        """Separate a broker from the clients."""
        host = self._any().host
        self._cut([(host, CLIENT_HOST), (CLIENT_HOST, host)], [])

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
            if not self._schedule.is_over:
                self._network.habits = habits

        self._later(restore)

    # ZooKeeper

    def expire_session(self) -> None:
        """Expire the session of a broker at once."""
        process = self._any()
        if self._may_disturb([process]):
            self._disturb([process])
            self._zookeeper.expire(process.host)
            self._later(lambda: self._leave([process]), 1.0, 3.0)

    def break_zookeeper_connections(self) -> None:
        """Break the connections of a broker with ZooKeeper."""
        self._zookeeper.break_connections(self._any().host)

    def stop_zookeeper(self) -> None:
        """Stop ZooKeeper for some time."""
        if not self._zookeeper.is_down:
            self._zookeeper.stop()
            self._later(self._start_zookeeper)

    def slow_zookeeper(self) -> None:
        """Delay all requests, responses and events of ZooKeeper for some time.

        Sessions live as long as heartbeats pass, even late. With the longest delays clients give up connections, and
        sessions expire.
        """
        brokers = self._world.brokers
        if self._zookeeper.lag_s or not self._may_disturb(brokers):
            return
        self._disturb(brokers)
        self._zookeeper.lag_s = lag_s = self._random.choice(_ZOOKEEPER_LAGS) * self._session_s
        self._world.trace(f"each message of ZooKeeper takes up to {lag_s:.3f} s")
        self._later(self._end_lag, 0.5, 5.0)

    def _end_lag(self) -> None:
        self._zookeeper.lag_s = 0.0
        # A session may still expire because of a heartbeat that is late.
        self._later(lambda: self._leave(self._world.brokers), 1.0, 2.0)

    def _start_zookeeper(self) -> None:
        if self._zookeeper.is_down:
            self._zookeeper.start()

    # Disks and clocks

    def fail_disk(self) -> None:
        """Fail the disk of a machine."""
        process = self._any()
        self._fail_directories(process, process.directories)

    def fail_directory(self) -> None:
        """Fail one of the log directories of a machine."""
        process = self._any()
        self._fail_directories(process, [self._random.choice(process.directories)])

    def _fail_directories(self, process: BrokerProcess, paths: Iterable[str]) -> None:
        if self._intact.may_lose(process):
            self._intact.lose_data(process)
            process.disk.broken.update(dict.fromkeys(paths))
            self._later(lambda: self._repair(process))

    def fill_disk(self) -> None:
        """Fill the disk of a machine for some time."""
        process = self._any()
        if self._may_disturb([process]):
            self._disturb([process])
            process.disk.is_full = True
            self._later(lambda: self._end_shortage(process))

    def set_clock(self) -> None:
        """Set the wall clock of a machine."""
        self._any().wall_clock.wrong_by_ms = self._random.choice(_CLOCK_ERRORS_MS)

    # The operator

    def _repair(self, process: BrokerProcess) -> None:
        process.disk.repair()
        self._restart_without_directory(process)

    def _end_shortage(self, process: BrokerProcess) -> None:
        self._leave([process])
        self._repair(process)

    def _restart_without_directories(self) -> None:
        for process in self._world.brokers:
            self._restart_without_directory(process)

    def _restart_without_directory(self, process: BrokerProcess) -> None:
        """Restart a broker that has lost a log directory, or a log of which another replica leads now."""
        if process.is_up and (has_lost_directory(process) or self._refuses_to_begin_empty(process)):
            process.stop()

    def _refuses_to_begin_empty(self, process: BrokerProcess) -> bool:
        assert process.broker is not None
        replicas, stored = process.broker.services.replicas, self._world.stored_partitions()
        number = self._world.brokers.index(process) + 1
        lost = [key for key in replicas.lost_logs if key in stored and replicas.is_offline(*key)]
        return any(stored[key].state.leader not in (NO_LEADER, number) for key in lost)

    def _when_ended(self, process: BrokerProcess) -> Callable[[str], None]:
        def ended(how: str) -> None:
            self._history.has_unfinished_end |= process.disk.has_refused
            if how == "died while writing":
                self._end_disk(process)
            if how in ("killed", "died while writing", "power lost"):
                self._history.crash(CrashKind.PROCESS_KILL)
            process.disk.forget_unsynced()
            delay_s = self._random.choice((0.05, 0.5, 2.0)) * (1.0 if self._schedule.is_over else self._session_s)
            self._world.clock.callLater(delay_s, self._start, process)

        return ended

    def _end_disk(self, process: BrokerProcess) -> None:
        """End the disk operations of a process that died during one of them, perhaps because of a power loss of all."""
        random = self._random
        if self._dies_by_power_loss is process and self._may_disturb(self._world.brokers):
            self._world.trace("the power of all machines is lost")
            process.disk.come_down(is_power_loss=True, lose_names=random.random() < 0.5)
            self._world.clock.callLater(0, self._power_off, None)
        else:
            process.disk.come_down(is_power_loss=False)

    def _start(self, process: BrokerProcess) -> None:
        if process.is_alive:
            return
        if self._schedule.is_over:
            process.disk.repair()
        process.start()
