"""The phases of a run with several brokers."""

from typing import Final

from odradek.simulation import setup
from odradek.simulation.checks import checker
from odradek.simulation.cluster import scenario
from odradek.simulation.cluster.directories import find_move, find_remains
from odradek.simulation.cluster.faults import ClusterFaults
from odradek.simulation.cluster.logs import are_replicated, find_differences
from odradek.simulation.cluster.power import find_incomplete, find_silent_follower
from odradek.simulation.history import History
from odradek.simulation.phases import END_LIMIT_S, MakeClients, Phases, topic_settings
from odradek.simulation.reads import final_reads
from odradek.simulation.world import World

START_LIMIT_S: Final = 120.0
SETTLING_S: Final = 120.0
"""Time after the faults in which sessions expire, brokers restart and replicas rejoin the ISR."""
_LONGEST_WAIT_S: Final = 40.0
_WORK_STEPS: Final = 3_000_000


class ClusterRun:
    """The phases of a run; a failing phase ends the run."""

    def __init__(self, world: World, make_clients: MakeClients) -> None:
        self._world = world
        self._phases = Phases(world)
        self._make_clients = make_clients
        self._scenario = drawn = scenario.draw(world.new_random())
        for process in world.brokers:
            process.properties.update(drawn.properties)
        world.compacted = frozenset(topic.name for topic in drawn.topics if topic.is_compacted)
        world.network.habits = drawn.habits
        world.threads.slow_s = drawn.slow_thread_s
        settings = topic_settings(drawn)
        settings.is_cluster = True
        self._history = History(world.now_ms, settings, world.trace)
        assert world.cluster_invariants is not None
        world.cluster_invariants.unclean = settings.unclean
        world.cluster_invariants.moment = self._history.moment
        self._history.unclean_elections = world.cluster_invariants.branches.elections
        session_s = int(drawn.properties["zookeeper.session.timeout.ms"]) / 1000
        self._faults = ClusterFaults(world, self._history, drawn.faults, session_s, world.new_random())
        self._restarts_all = world.new_random().random() < 0.5
        self._working: dict[str, None] = {}

    def run(self) -> None:
        """Run all phases."""
        world, wait = self._world, self._phases.wait
        world.quiet_s = float("inf")
        world.trace(f"scenario {self._scenario}")
        for process in world.brokers:
            process.start()
        if not wait(self._are_all_up, START_LIMIT_S, "the brokers do not start"):
            return
        self._phases.finish(setup.prepare(world, self._scenario), "setup")
        if world.failures:
            return
        self._work()
        if not self._settle("the cluster does not recover after the faults"):
            return
        if not wait(lambda: not self._working, END_LIMIT_S, "clients are stuck"):
            world.trace(f"still at work: {', '.join(self._working)}")
            return
        for process in world.brokers if self._restarts_all else world.brokers[:1]:
            process.kill()
        if not self._settle("the cluster does not recover from a restart"):
            return
        # A leader that has restarted begins at the high watermark of its checkpoint.
        if not wait(lambda: are_replicated(world), END_LIMIT_S, "a high watermark stays below its log's end"):
            return
        self._check()

    def _work(self) -> None:
        """Run clients and faults for the duration of the scenario."""
        world = self._world
        for client in self._make_clients(world, self._history, self._scenario):
            self._working[client.name] = None
            world.start(client.run(), client.name).addCallback(self._done, client.name)
        self._faults.begin()
        world.run(lambda: bool(world.failures), self._scenario.duration_s, _WORK_STEPS)
        self._faults.end()
        world.is_ending = True

    def _done(self, _: object, name: str) -> None:
        del self._working[name]

    def _are_all_up(self) -> bool:
        return all(process.is_up for process in self._world.brokers)

    def _settle(self, otherwise: str) -> bool:
        """Wait until all brokers run, all replicas are in sync and fetch, and no replica is moved."""
        world = self._world
        begin_s = world.clock.seconds()

        def find_missing() -> str:
            return find_incomplete(world) or find_silent_follower(world, begin_s) or find_move(world.brokers)

        if not world.run(lambda: bool(world.failures) or not find_missing(), SETTLING_S):
            world.fail(f"{otherwise}: {find_missing()}")
        world.quiet_s = world.clock.seconds()
        self._history.settlements.append(self._history.moment())
        return not world.failures

    def _check(self) -> None:
        """Read everything, and check."""
        world, history = self._world, self._history
        groups = dict.fromkeys(commit.group for commit in history.commits)
        state = self._phases.finish(final_reads.read_all(world, self._scenario, history, groups), "final")
        if state is None:
            return
        world.trace("final reads are complete")
        world.run(lambda: False, _LONGEST_WAIT_S)
        groups |= dict.fromkeys(assignment.group for assignment in history.assignments)
        self._phases.finish(final_reads.check_groups(world, groups), "the final check of the groups")
        for process in world.brokers:
            if process.broker is not None:
                world.audit(process.broker)
                world.check_rest(process.broker)
        if world.looks_inside:
            for what in (*find_differences(world.brokers), *find_remains(world.brokers)):
                world.fail(what)
        for violation in checker.check(history, state):
            world.fail(str(violation))
