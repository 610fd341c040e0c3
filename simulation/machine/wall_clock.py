"""The wall clock of a machine, and its steps back and forward while a single broker runs.

The clients' wall clocks are always correct.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from odradek.simulation.machine.disk import EPOCH_MS

if TYPE_CHECKING:
    from odradek.simulation.history import History
    from odradek.simulation.machine.clock import SimulatedClock
    from odradek.simulation.world import World

_MINUTE_MS: Final = 60_000
_WRONG_BY_MS: Final = (
    -50 * _MINUTE_MS, -50 * _MINUTE_MS, -_MINUTE_MS, -3_000, -500, 0, 500, 3_000, _MINUTE_MS, 60 * _MINUTE_MS,
    240 * _MINUTE_MS,
)  # fmt: skip
"""Bounds of the clock's error. Within these bounds no step violates a guarantee for clients:
`message.timestamp.after.max.ms` is an hour, so records with the correct time are accepted; `scenario.RETENTION_MS` is
larger than the whole range, so that retention deletes old records only."""

_SHARE_OF_SEEDS: Final = 0.2


class WallClock:
    """A wall clock that is correct until it is set."""

    def __init__(self, clock: "SimulatedClock") -> None:
        self.wrong_by_ms = 0
        self._clock = clock

    def now_ms(self) -> int:
        """The time in ms since 1970."""
        return EPOCH_MS + int(self._clock.seconds() * 1000) + self.wrong_by_ms


class ClockSetter:
    """Sets the wall clock at random times, in some of the seeds, until `end`.

    It has its own random numbers: a seed in which it does nothing runs as if it did not exist.
    """

    def __init__(self, world: "World", history: "History") -> None:
        self._world = world
        self._history = history
        self._random = Random(f"wall clock {world.seed}")
        self._interval_s = self._random.choice((0.1, 0.3, 1.0))
        self._is_active = self._random.random() < _SHARE_OF_SEEDS

    def begin(self) -> None:
        """Schedule the first step."""
        if self._is_active:
            self._world.clock.callLater(self._random.expovariate(1 / self._interval_s), self._set)

    def end(self) -> None:
        """Make no further steps."""
        self._is_active = False

    def _set(self) -> None:
        if not self._is_active:
            return
        clock = self._world.wall_clock
        step_ms = self._random.choice(_WRONG_BY_MS) - clock.wrong_by_ms
        clock.wrong_by_ms += step_ms
        self._history.set_clock(step_ms)
        self.begin()
