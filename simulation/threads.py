"""Threads of a simulated process: work that happens at some moment, and is known to be done at a later one."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from odradek.log.background.tasks import Done
from odradek.log.storage.memory_filesystem import SimulatedCrash

if TYPE_CHECKING:
    from odradek.simulation.broker_process import ProcessReactor
    from odradek.simulation.clock import SimulatedClock


class SimulatedThreads:
    """Runs each piece of work whole, at a time that chance decides, so that any order of them comes about.

    usual_s: how long work waits for its thread, and its end for the reactor, at most; now and then slow_s
    """

    def __init__(self, clock: "SimulatedClock", random: Random, usual_s: float = 0.002, slow_s: float = 0.3) -> None:
        self.random = random
        self.usual_s = usual_s
        self.slow_s = slow_s
        self._clock = clock

    def run(self, reactor: "ProcessReactor", work: Callable[[], None], done: Done) -> None:
        """What dies with the process is dropped: work not begun, and the news of work that is done."""

        def do() -> None:
            if not reactor.is_alive:
                return
            error: Exception | None = None
            try:
                work()
            except SimulatedCrash:
                return
            except Exception as failure:
                error = failure
            if reactor.is_alive:
                self._clock.callLater(self._delay_s(), reactor.run, done, error)

        self._clock.callLater(self._delay_s(), do)

    def _delay_s(self) -> float:
        longest_s = self.slow_s if self.random.random() < 0.05 else self.usual_s
        return self.random.random() * longest_s
