"""Safeguards of the broker that can be disabled one at a time, to show that the checker detects their absence.

A safeguard is some functions of the broker, which are replaced during a run by functions that do less. The world's
invariants and audits are disabled as well, unless the safeguard states otherwise: the fault must be detected from the
clients' history alone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from odradek.simulation.checks.checker import ViolationKind
from odradek.simulation.run import draw_scenario
from odradek.simulation.scenario import Scenario

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""Owner, attribute name, and a function that returns the replacement for the old value."""


class Safeguard(NamedTuple):
    """A safeguard.

    finds: the expected violations, by kind or text
    seed: a seed that shows one of them
    permits: returns False for scenarios that hardly lead to one of them; their seeds are not tried. None tries all
    broker_count: number of brokers with which the seeds run
    looks_inside: the invariants of a cluster are checked as well, because other safeguards prevent that clients notice
    """

    name: str
    what: str
    replacements: tuple[Replacement, ...]
    finds: tuple[ViolationKind | str, ...]
    seed: int
    permits: Callable[[Scenario], bool] | None = None
    broker_count: int = 1
    looks_inside: bool = False

    def seeds(self, candidates: Iterable[int]) -> Iterator[int]:
        """Return the candidates whose scenario permits a violation."""
        permits = self.permits
        if permits is None:
            return iter(candidates)
        return (seed for seed in candidates if permits(draw_scenario(seed, self.broker_count)))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable the safeguard within the context."""
        with ExitStack() as stack:
            for owner, name, make in self.replacements:
                old = owner.__dict__[name]
                setattr(owner, name, make(old))
                stack.callback(setattr, owner, name, old)
            yield


def nothing(*arguments: Any, **keywords: Any) -> None:
    """Do nothing."""


def replaced_by(new: Any) -> Callable[[Any], Any]:
    """Return a function that replaces any value by `new`."""
    return lambda old: new
