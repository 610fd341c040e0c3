"""The wall clock of the broker's machine, which somebody sets back or forward while the broker runs.

The clients' machines have the right time all along.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from odradek.simulation.disk import EPOCH_MS

if TYPE_CHECKING:
    from odradek.simulation.clock import SimulatedClock
    from odradek.simulation.history import History
    from odradek.simulation.world import World

_MINUTE_MS: Final = 60_000
_WRONG_BY_MS: Final = (
    -50 * _MINUTE_MS, -50 * _MINUTE_MS, -_MINUTE_MS, -3_000, -500, 0, 500, 3_000, _MINUTE_MS, 60 * _MINUTE_MS,
    240 * _MINUTE_MS,
)  # fmt: skip
"""By how much the clock may be wrong. Within these bounds no step has a consequence that a client would call a fault:
`message.timestamp.after.max.ms` is an hour, so records with the right time are accepted; `scenario.RETENTION_MS` is
more than the whole range, so that nothing but old records grows too old."""

_SHARE_OF_SEEDS: Final = 0.2


class WallClock:
    """Shows the right time until it is set."""

    def __init__(self, clock: "SimulatedClock") -> None:
        self.wrong_by_ms = 0
        self._clock = clock

    def now_ms(self) -> int:
        """Ms since 1970."""
        return EPOCH_MS + int(self._clock.seconds() * 1000) + self.wrong_by_ms


class ClockSetter:
    """Sets the wall clock now and then, in some of the seeds, until `end`.

    Its chance is its own: a seed in which it does nothing is the run that it would be without it.
    """

    def __init__(self, world: "World", history: "History") -> None:
        self._world = world
        self._history = history
        self._random = Random(f"wall clock {world.seed}")
        self._interval_s = self._random.choice((0.1, 0.3, 1.0))
        self._is_active = self._random.random() < _SHARE_OF_SEEDS

    def begin(self) -> None:
        """The first step comes in a while."""
        if self._is_active:
            self._world.clock.callLater(self._random.expovariate(1 / self._interval_s), self._set)

    def end(self) -> None:
        """The clock stays as it is."""
        self._is_active = False

    def _set(self) -> None:
        if not self._is_active:
            return
        clock = self._world.wall_clock
        step_ms = self._random.choice(_WRONG_BY_MS) - clock.wrong_by_ms
        clock.wrong_by_ms += step_ms
        self._history.set_clock(step_ms)
        self.begin()
