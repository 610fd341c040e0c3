"""Parts of the phases of all runs: waits with a limit, and the settings of topics for the checker."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from odradek.simulation import scenario
from odradek.simulation.api import Client
from odradek.simulation.history import History, TopicSettings
from odradek.simulation.scenario import Scenario
from odradek.simulation.world import World

END_LIMIT_S: Final = 240.0

MakeClients = Callable[[World, History, Scenario], Sequence[Client]]


class Phases:
    """Advances the time of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def finish(self, coroutine: Any, name: str) -> Any:
        """Advance time until a coroutine has returned; return its result, None if it does not return."""
        results: list[Any] = []
        self._world.start(coroutine, name).addCallback(results.append)
        self.wait(lambda: bool(results), END_LIMIT_S, f"{name} is stuck")
        return results[0] if results else None

    def wait(self, until: Callable[[], bool], limit_s: float, otherwise: str) -> bool:
        """Advance time until a condition holds; if it does not hold in time, fail the run and return False."""
        world = self._world
        if not world.run(lambda: until() or bool(world.failures), limit_s):
            world.fail(otherwise)
        return not world.failures


def topic_settings(drawn: Scenario) -> TopicSettings:
    return TopicSettings(
        flush_before_acks=drawn.properties["flush.before.acks"] == "true",
        overrides={topic.name: topic.flush_before_acks for topic in (*drawn.topics, *drawn.owned)},
        log_append_time=frozenset(topic.name for topic in drawn.topics if topic.has_append_time),
        compacted=frozenset(topic.name for topic in drawn.topics if topic.is_compacted),
        aged=frozenset(topic.name for topic in drawn.topics if topic.is_aged and not topic.keeps_all),
        retention_ms=scenario.RETENTION_MS,
        groups_expire=drawn.groups_expire,
        unclean=frozenset(topic.name for topic in drawn.topics if topic.is_unclean),
    )
