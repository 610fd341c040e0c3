"""Changes of configurations of a cluster under load."""

from random import Random

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.simulation.clients import topic_admin
from odradek.simulation.clients.config_changer import _BROKER_VALUES, _COMPACTION_VALUES, _TOPIC_VALUES, ConfigChanger
from odradek.simulation.history import History
from odradek.simulation.tests.test_cluster import Cluster, log_of

_VALUES = [
    (topic_admin.TOPIC_RESOURCE, "t", {**_TOPIC_VALUES, **_COMPACTION_VALUES}),
    *((topic_admin.BROKER_RESOURCE, name, {**_BROKER_VALUES}) for name in ("", "2")),
]


@pytest.fixture
def cluster():
    # The smallest dedupe buffer that a change of a broker's configuration permits for two threads.
    return Cluster(**{"log.cleaner.dedupe.buffer.size": "4194304"})


def changer_of(cluster):
    world = cluster.world
    addresses = {str(number): process.address for number, process in enumerate(world.brokers, 1)}
    return ConfigChanger(world, History(world.now_ms), Random(1), ["t"], [], addresses, may_flush_late=True)


def test_it_changes_topics_and_brokers_and_removes_throttles_at_the_end(cluster):
    changer = changer_of(cluster)
    done = []
    cluster.world.start(changer.run(), "changer").addCallback(done.append)
    for _ in range(50):
        cluster.ask(cluster.produce)
        cluster.world.run(lambda: False, 0.1)
    assert changer._throttled
    cluster.world.is_ending = True
    cluster.wait(lambda: bool(done))
    cluster.settle()
    assert not changer._throttled
    assert changer._history.odd == []
    assert log_of(cluster.leader).config.min_insync_replicas >= 2


@pytest.mark.parametrize(("resource_type", "name", "values"), _VALUES)
def test_brokers_accept_all_values(cluster, resource_type, name, values):
    changer = changer_of(cluster)
    for key, choices in values.items():
        for value in choices:
            assert cluster.ask(lambda key=key, value=value: changer._alter(resource_type, name, {key: value})) == 0


def test_a_refused_value_is_reported(cluster):
    changer = changer_of(cluster)
    code = cluster.ask(lambda: changer._alter(topic_admin.TOPIC_RESOURCE, "t", {"segment.ms": "x"}))
    assert code == ErrorCode.INVALID_CONFIG
    ((_, client, text),) = changer._history.odd
    assert (client, text) == ("config-changer", "configure topic 't' with {'segment.ms': 'x'}: INVALID_CONFIG")
