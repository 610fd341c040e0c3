"""The succession of controllers whose addresses refuse the connections of others."""

from odradek.replication.controller import controller as controllers
from odradek.replication.tests.cluster_support import World


def refuse_each_other(world, now_ms):
    """Each broker is refused by the address of every controller that is elected."""
    for node in world.nodes.values():
        node.controller.context.now_ms = lambda: now_ms
    for _ in range(10):
        elected = world.active.controller.broker_id
        for node in world.nodes.values():
            node.controller.on_controller_refused(elected)
        world.executor.finish()
    return world.active.controller.epoch


def test_brokers_that_cannot_reach_each_other_do_not_replace_controllers_all_the_time():
    """Connections that are rejected on the way look like those of a process that has ended."""
    world = World()
    epoch = refuse_each_other(world, 5)
    assert epoch <= 1 + len(world.nodes)
    assert refuse_each_other(world, 5 + controllers.REMOVAL_INTERVAL_MS - 1) == epoch
    assert refuse_each_other(world, 5 + controllers.REMOVAL_INTERVAL_MS) > epoch


def test_a_clock_that_was_set_back_does_not_prevent_a_replacement():
    world = World()
    epoch = refuse_each_other(world, 50_000)
    assert refuse_each_other(world, 40_000) > epoch
