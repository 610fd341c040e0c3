"""Random faults of brokers, ZooKeeper and the links between them; each ends after some seconds."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from compat_tests.cluster.links import Links
from compat_tests.cluster.proxies import OTHERS, Link
from odradek.testing_cluster import OdradekCluster

MOST_FAULTS = 2
SHORTEST_S, LONGEST_S = 0.5, 7.0
"""Duration of a fault: the sessions of brokers expire during some of the faults only."""
LONGEST_PAUSE_S = 3.0
LEAST_KINDS = 3
CALL_S = 0.1
KILL_ZOOKEEPER_LEADER = "kill the leader of ZooKeeper"
"""Name of a fault of an ensemble, which interrupts all sessions until another server is elected."""


def broker_name(broker_id: int) -> str:
    """Return the name of a broker in links."""
    return f"broker-{broker_id}"


def zookeeper_name(number: int) -> str:
    """Return the name of a server of ZooKeeper in links."""
    return f"zookeeper-{number}"


class Fault(NamedTuple):
    """A fault in progress, of a broker or of a server of ZooKeeper. `end` ends it."""

    node: str
    ends_at: float
    end: Callable[[], object]


class Faults:
    """Faults of all kinds, in a random order; at most MOST_FAULTS at a time, each of another node.

    first: kind of the first fault; None for a random one
    counts: number of faults of each kind
    """

    def __init__(
        self,
        cluster: OdradekCluster,
        links: Links,
        random: Random,
        log: Callable[[str], object],
        first: str | None = None,
    ) -> None:
        assert cluster.zookeeper is not None
        self._cluster = cluster
        self._zookeeper = cluster.zookeeper.servers
        self._links = links
        self._random = random
        self._log = log
        self.counts: Counter[str] = Counter()
        self._active: list[Fault] = []
        self._coming = [] if first is None else [first]
        self._of_brokers: dict[str, Callable[[int], Callable[[], object]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "cut from all": self._cut_from_all,
            "cut from ZooKeeper": self._cut_from_zookeeper,
            "cut from a broker": self._cut_from_broker,
            "cut from clients": self._cut_from_clients,
        }
        self._of_zookeeper: dict[str, Callable[[int], Callable[[], object]]] = {
            "kill ZooKeeper": self._kill_zookeeper,
            "pause ZooKeeper": self._pause_zookeeper,
            KILL_ZOOKEEPER_LEADER: self._kill_zookeeper,
        }

    def run(self, seconds: float, check: Callable[[], object]) -> None:
        """Begin and end faults for some time; none is left at the end. `check` is called several times a second.

        On a slow machine, on which the end of a fault takes long, it takes more time until LEAST_KINDS have occurred.
        """
        ends_at = time.monotonic() + seconds
        next_at = time.monotonic()
        while (now := time.monotonic()) < ends_at or len(self.counts) < LEAST_KINDS:
            check()
            for fault in [fault for fault in self._active if fault.ends_at <= now]:
                if fault in self._active:
                    self._end(fault)
            if now >= next_at and len(self._active) < MOST_FAULTS:
                self._begin_next()
                next_at = time.monotonic() + self._random.uniform(0, LONGEST_PAUSE_S)
            time.sleep(CALL_S)
        self.end_all()

    def end_all(self) -> None:
        """End all faults."""
        while self._active:
            self._end(self._active[-1])

    def _begin_next(self) -> None:
        if not self._coming:
            self._coming = [*self._of_brokers, *self._of_zookeeper]
            self._random.shuffle(self._coming)
        kind = self._coming.pop()
        numbers = range(len(self._zookeeper)) if kind in self._of_zookeeper else sorted(self._cluster.brokers)
        name = zookeeper_name if kind in self._of_zookeeper else broker_name
        busy = {fault.node for fault in self._active}
        free = [number for number in numbers if name(number) not in busy]
        if kind == KILL_ZOOKEEPER_LEADER:
            free = [number for number in free if self._zookeeper[number].is_leader()]
        if not free and kind == KILL_ZOOKEEPER_LEADER:
            # An election is in progress, or the leader did not answer in time: the fault follows later.
            self._coming.insert(0, kind)
        if free:
            number = self._random.choice(free)
            seconds = self._random.uniform(SHORTEST_S, LONGEST_S)
            self._log(f"{kind}: {name(number)} for {seconds:.1f} s")
            end = {**self._of_brokers, **self._of_zookeeper}[kind](number)
            self._active.append(Fault(name(number), time.monotonic() + seconds, end))
            self.counts[kind] += 1

    def _end(self, fault: Fault) -> None:
        self._active.remove(fault)
        fault.end()
        self._log(f"{fault.node} is back")

    def _kill(self, number: int) -> Callable[[], object]:
        self._cluster.kill(number)
        return partial(self._start, number)

    def _stop(self, number: int) -> Callable[[], object]:
        """Stop a broker, which may have to wait until another fault is over."""
        stopping = threading.Thread(target=self._cluster.stop_broker, args=(number,))
        stopping.start()

        def end() -> None:
            self.end_all()
            stopping.join()
            self._start(number)

        return end

    def _start(self, number: int) -> None:
        """Start a broker, which needs ZooKeeper and, after a kill, the end of its session."""
        self.end_all()
        self._cluster.start_broker(number)

    def _pause(self, number: int) -> Callable[[], object]:
        self._cluster.pause(number)
        return partial(self._cluster.resume, number)

    def _kill_zookeeper(self, number: int) -> Callable[[], object]:
        self._zookeeper[number].kill()
        return self._zookeeper[number].start

    def _pause_zookeeper(self, number: int) -> Callable[[], object]:
        self._zookeeper[number].pause()
        return self._zookeeper[number].resume

    def _cut(self, links: set[Link]) -> Callable[[], object]:
        self._links.cut(links)
        return partial(self._links.restore, links)

    def _cut_from_all(self, number: int) -> Callable[[], object]:
        links = self._links_to_brokers(number) | self._links_to_zookeeper(number)
        return self._cut(links | self._link_of_clients(number))

    def _cut_from_zookeeper(self, number: int) -> Callable[[], object]:
        return self._cut(self._links_to_zookeeper(number))

    def _cut_from_clients(self, number: int) -> Callable[[], object]:
        return self._cut(self._link_of_clients(number))

    def _cut_from_broker(self, number: int) -> Callable[[], object]:
        """Cut the connections between two brokers, or those that one of them has opened to the other."""
        other = self._random.choice([other for other in sorted(self._cluster.brokers) if other != number])
        there = (broker_name(number), broker_name(other))
        return self._cut({there, there[::-1]} if self._random.random() < 0.5 else {there})

    def _links_to_brokers(self, number: int) -> set[Link]:
        own = broker_name(number)
        others = {broker_name(other) for other in self._cluster.brokers} - {own}
        return {(own, other) for other in others} | {(other, own) for other in others}

    def _links_to_zookeeper(self, number: int) -> set[Link]:
        return {(broker_name(number), zookeeper_name(server)) for server in range(len(self._zookeeper))}

    def _link_of_clients(self, number: int) -> set[Link]:
        return {(OTHERS, broker_name(number))}
