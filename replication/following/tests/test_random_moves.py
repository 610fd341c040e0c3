"""Replicas move between log directories during elections, truncations, crashes and deletions: the logs converge."""

import logging

import pytest

from odradek.replication.following.tests.cluster import LogCluster
from odradek.replication.following.tests.test_random_leaders import Chaos

DIRECTORIES = ("/data", "/more")


class MovingChaos(Chaos):
    """Random actions, of which many move a replica, or send it back."""

    def __init__(self, seed):
        super().__init__(seed)
        self.cluster = LogCluster(3, directories=DIRECTORIES, has_threads=True, retention_ms=-1)
        self.cluster.elect(self.random.choice([1, 2, 3]))

    def act(self):
        if self.random.random() < 0.2:
            self.move()
        else:
            super().act()

    def move(self):
        live = [self.cluster.nodes[number] for number in self.live()]
        if live:
            node = self.random.choice(live)
            if 0 in node.partitions:
                node.logs.move_log("t", 0, self.random.choice(DIRECTORIES), self.cluster.world.now_ms)

    def restart(self):
        super().restart()
        for number in self.live():
            self.cluster.nodes[number].logs.run_due(self.cluster.world.now_ms)

    def check(self):
        super().check()
        for node in self.cluster.nodes.values():
            assert node.logs.table.future_logs == {}
            assert node.logs.online_directories == list(DIRECTORIES)
            assert node.log() is node.logs.get("t", 0)


@pytest.mark.parametrize("seed", range(40))
def test_logs_converge_while_they_move(seed, caplog):
    caplog.set_level(logging.INFO, "odradek.log.moves")
    chaos = MovingChaos(seed)
    for _ in range(4):
        for _ in range(chaos.random.randint(5, 60)):
            chaos.act()
        chaos.converge()
        chaos.check()
    assert "please report it" not in caplog.text
    assert "moved replica" in caplog.text
