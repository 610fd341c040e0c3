"""Threads of a simulated process: work runs at a random time, and its completion is reported later."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from odradek.log.background.tasks import Done
from odradek.log.storage.memory_filesystem import SimulatedCrash

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import ProcessReactor
    from odradek.simulation.machine.clock import SimulatedClock


class SimulatedThreads:
    """Runs each piece of work as a whole at a random time, so that all orders occur.

    usual_s: maximum wait of work for its thread, and of its completion for the reactor; rarely up to slow_s
    """

    def __init__(self, clock: "SimulatedClock", random: Random, usual_s: float = 0.002, slow_s: float = 0.3) -> None:
        self.random = random
        self.usual_s = usual_s
        self.slow_s = slow_s
        self._clock = clock

    def run(self, reactor: "ProcessReactor", work: Callable[[], None], done: Done) -> None:
        """Run work on a thread. If the process dies, work that has not begun and completions are dropped."""

        def do() -> None:
            if not reactor.is_alive:
                return
            if reactor.resumes_s is not None:
                self._clock.callLater(reactor.resumes_s - self._clock.seconds() + self._delay_s(), do)
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
