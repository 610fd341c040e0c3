"""The run of one seed: set up the world, run clients and faults, repair, read everything, check.

Runs with several brokers have their own phases, in `cluster.run`.
"""

import gc
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.logger import LogLevel, globalLogPublisher

from odradek.log.storage.memory_filesystem import SimulatedCrash
from odradek.simulation import scenario, setup
from odradek.simulation.checks import checker
from odradek.simulation.cluster import scenario as cluster_scenario
from odradek.simulation.cluster.run import ClusterRun
from odradek.simulation.faults import Faults
from odradek.simulation.history import History
from odradek.simulation.machine.wall_clock import ClockSetter
from odradek.simulation.phases import END_LIMIT_S, MakeClients, Phases, topic_settings
from odradek.simulation.reads import final_reads
from odradek.simulation.scenario import Scenario
from odradek.simulation.world import LogWatch, Printer, World

START_LIMIT_S = 60.0
LONGEST_WAIT_S = 40.0
"""Upper bound of the time that a client's request may wait in the broker."""


class Report(NamedTuple):
    """Result of a seed; `failures` is empty if it passed."""

    seed: int
    failures: list[str]
    trace_hash: str
    simulated_s: float
    steps: int


def run_seed(
    seed: int,
    make_clients: MakeClients,
    print_line: Printer | None = None,
    *,
    looks_inside: bool = True,
    broker_count: int = 1,
) -> Report:
    """Run a seed from start to end. `looks_inside`: see `World`."""
    world = World(seed, print_line=print_line, looks_inside=looks_inside, broker_count=broker_count)
    watch = LogWatch(world)
    package, root_handlers = logging.getLogger("odradek"), logging.getLogger().handlers
    old_level, old_propagate = package.level, package.propagate
    package.addHandler(watch)
    package.setLevel(watch.level)
    package.propagate = False
    observer: Any = _observer(world)
    globalLogPublisher.addObserver(observer)
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        run = _Run(world, make_clients) if broker_count == 1 else ClusterRun(world, make_clients)
        run.run()
        for process in world.brokers:
            process.disk.is_down = True
        # Coroutines that end now, in an arbitrary order, may log errors of objects that have ended before.
        watch.is_over = True
        _collect()
    except Exception as error:
        world.fail("the simulation itself failed", error)
    finally:
        globalLogPublisher.removeObserver(observer)
        package.removeHandler(watch)
        package.setLevel(old_level)
        package.propagate = old_propagate
        assert logging.getLogger().handlers is root_handlers
        if gc_was_enabled:
            gc.enable()
    return Report(seed, world.failures, world.trace_hash, world.clock.seconds(), world.clock.steps)


def _collect() -> None:
    """Collect the garbage of the run; ignore exceptions of coroutines that end now, since their process has crashed.

    A coroutine that waits when it is collected cannot clean up.
    """
    old_hook = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not isinstance(error, SimulatedCrash) and not _is_of_collection(error):
            old_hook(unraisable)

    sys.unraisablehook = hook
    try:
        gc.collect()
    finally:
        sys.unraisablehook = old_hook


def _is_of_collection(error: BaseException) -> bool:
    """Return whether the collection of waiting coroutines has raised `error`: the order of their ends is arbitrary."""
    return isinstance(error, RuntimeError) and str(error) in (
        "coroutine ignored GeneratorExit",
        "generator ignored GeneratorExit",
        "cannot reuse already awaited coroutine",
    )


def _observer(world: World) -> Callable[[Any], None]:
    """Return a log observer that fails the run for exceptions that Twisted logs as unhandled."""

    def observe(event: Any) -> None:
        failure = event.get("log_failure")
        if failure is None or event["log_level"] < LogLevel.error:
            return
        if not isinstance(failure.value, SimulatedCrash) and not _is_of_collection(failure.value):
            world.fail(f"twisted: {event.get('log_format')} {failure.value!r}", failure.value)

    return observe


def draw_scenario(seed: int, broker_count: int = 1) -> Scenario:
    """Return the scenario of a seed without its run."""
    world = World(seed, broker_count=broker_count)
    return _draw(world) if broker_count == 1 else cluster_scenario.draw(world.new_random())


def _draw(world: World) -> Scenario:
    """Draw the scenario of a run, before anything else is drawn from the world."""
    return scenario.draw(world.new_random())


class _Run:
    """The phases of a run; a failing phase ends the run."""

    def __init__(self, world: World, make_clients: MakeClients) -> None:
        self._world = world
        self._phases = Phases(world)
        self._make_clients = make_clients
        self._scenario = _draw(world)
        world.broker.properties.update(self._scenario.properties)
        world.compacted = frozenset(topic.name for topic in self._scenario.topics if topic.is_compacted)
        world.network.habits = self._scenario.habits
        world.threads.slow_s = self._scenario.slow_thread_s
        self._history = History(world.now_ms, topic_settings(self._scenario), world.trace)
        self._clock_setter = ClockSetter(world, self._history)
        self._faults = Faults(world, self._history, self._scenario.faults, world.new_random())
        chance = world.new_random()
        self._restarts_at_end = chance.random() < 0.7
        self._restarts_cleanly = chance.random() < 0.5
        self._working: dict[str, None] = {}

    def run(self) -> None:
        """Run all phases."""
        world = self._world
        world.trace(f"scenario {self._scenario}")
        world.broker.start()
        if not self._phases.wait(lambda: world.broker.is_up, START_LIMIT_S, "the broker does not start"):
            return
        self._phases.finish(setup.prepare(world, self._scenario), "setup")
        if world.failures:
            return
        self._work()
        if not self._phases.wait(lambda: not self._working, END_LIMIT_S, "clients are stuck"):
            world.trace(f"still at work: {', '.join(self._working)}")
            return
        if not self._phases.wait(lambda: world.broker.is_up, START_LIMIT_S, "the broker does not come back"):
            return
        if self._restarts_at_end and not self._restart():
            return
        # A sync of the last records may be slow; their requests have timed out.
        if not self._phases.wait(self._is_replicated, END_LIMIT_S, "a high watermark stays below its log's end"):
            return
        groups = dict.fromkeys(commit.group for commit in self._history.commits)
        state = self._phases.finish(final_reads.read_all(world, self._scenario, self._history, groups), "final")
        if state is None:
            return
        world.trace("final reads are complete")
        world.run(lambda: False, LONGEST_WAIT_S)
        groups |= dict.fromkeys(assignment.group for assignment in self._history.assignments)
        self._phases.finish(final_reads.check_groups(world, groups), "the final check of the groups")
        if world.broker.broker is not None:
            world.audit(world.broker.broker)
            world.check_rest(world.broker.broker)
        self._faults.check()
        for violation in checker.check(self._history, state):
            world.fail(str(violation))

    def _work(self) -> None:
        """Run clients and faults for the duration of the scenario."""
        world = self._world
        for client in self._make_clients(world, self._history, self._scenario):
            self._working[client.name] = None
            world.start(client.run(), client.name).addCallback(self._done, client.name)
        self._faults.begin()
        self._clock_setter.begin()
        world.run(lambda: bool(world.failures), self._scenario.duration_s)
        world.is_ending = True
        self._faults.end()
        self._clock_setter.end()

    def _done(self, _: object, name: str) -> None:
        del self._working[name]

    def _restart(self) -> bool:
        """Stop or kill the broker once more, so that the final reads see recovered logs."""
        world = self._world
        start_count = world.broker.start_count
        if self._restarts_cleanly:
            world.broker.stop()
        else:
            world.broker.kill()
        return self._phases.wait(
            lambda: world.broker.is_up and world.broker.start_count > start_count,
            START_LIMIT_S,
            "the broker does not come back",
        )

    def _is_replicated(self) -> bool:
        """Return whether consumers can read all that was appended."""
        broker = self._world.broker.broker
        logs = [] if broker is None else broker.services.logs.all_logs()
        return all(log.failure is not None or log.high_watermark >= log.log_end_offset for log in logs)
