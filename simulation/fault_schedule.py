"""The schedule of a run's faults: which one is injected when."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from odradek.simulation.scenario import FaultPlan

if TYPE_CHECKING:
    from odradek.simulation.world import World


class FaultSchedule:
    """Calls methods of `faults`, chosen by the weights of the plan, at random intervals until `end`."""

    def __init__(self, world: "World", plan: FaultPlan, random: Random, faults: object) -> None:
        self._world = world
        self._plan = plan
        self._random = random
        self._faults = faults
        self.is_over = False

    def begin(self) -> None:
        """Schedule the first fault."""
        if self._plan.weights:
            self._next()

    def end(self) -> None:
        """Call no more faults."""
        self.is_over = True

    def _next(self) -> None:
        self._world.clock.callLater(self._random.expovariate(1 / self._plan.interval_s), self._inject)

    def _inject(self) -> None:
        if self.is_over:
            return
        names = list(self._plan.weights)
        (name,) = self._random.choices(names, list(self._plan.weights.values()))
        self._world.trace(f"fault: {name}")
        fault: Callable[[], None] = getattr(self._faults, name)
        fault()
        self._next()
