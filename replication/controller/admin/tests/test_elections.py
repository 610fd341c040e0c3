"""Elections on request (ElectLeaders), by configuration, and of preferred leaders."""

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from odradek.replication.controller.admin.elections import PREFERRED, UNCLEAN, ElectionAdmin
from odradek.replication.controller.leader_rebalance import LeaderRebalance
from odradek.replication.controller.states.partition_states import change_state
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata.image import NO_LEADER, ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster

E = ErrorCode


def start(*partitions, name="t"):
    """A cluster of the brokers 1 to 3 with a topic, whose partitions are (leader, replicas, isr)."""
    cluster = Cluster(others=[2, 3])
    add_topic(cluster, name, *partitions)
    return cluster


def add_topic(cluster, name, *partitions):
    states = tuple(PartitionMetadata(leader, 5, replicas, isr) for leader, replicas, isr in partitions)
    topic = TopicMetadata(name, name.encode().ljust(16), states)
    assert run_now(cluster.controller.create_topics([NewTopic(topic, {})])) == {}


def elect(cluster, kind, partitions):
    """Return (code, message) by partition."""
    rows = None
    if partitions is not None:
        rows = [ElectLeadersRequestTopicPartitions(topic=name, partitions=indexes) for name, indexes in partitions]
    admin = ElectionAdmin(cluster.controller, cluster.replicas.applied)
    response = run_now(admin.elect(ElectLeadersRequest(election_type=kind, topic_partitions=rows)))
    return {
        (result.topic, row.partition_id): (row.error_code, row.error_message)
        for result in response.replica_election_results
        for row in result.partition_result
    }


def leaders(cluster, name="t"):
    """The leader, leader epoch and ISR of each partition, which are the same in the cache and in the store."""
    stored = ClusterMetadata()
    run_now(load_image(cluster.store, stored))
    assert stored.topics[name] == cluster.image.topics[name]
    return [(p.leader, p.leader_epoch, p.isr) for p in stored.topics[name].partitions]


def test_preferred_leaders():
    cluster = start((2, (1, 2), (2, 1)), (3, (3, 1), (3, 1)), (2, (1, 2), (2,)))
    assert elect(cluster, PREFERRED, [("t", [0, 1, 2, 3]), ("none", [0])]) == {
        ("t", 0): (E.NONE, None),
        ("t", 1): (E.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."),
        ("t", 2): (E.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
        ("t", 3): (E.UNKNOWN_TOPIC_OR_PARTITION, "No such partition as t-3"),
        ("none", 0): (E.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as none"),
    }
    assert leaders(cluster) == [(1, 6, (2, 1)), (3, 5, (3, 1)), (2, 5, (2,))]


def test_all_partitions():
    cluster = start((2, (1, 2), (2, 1)), (3, (3, 1), (3, 1)), (2, (1, 2), (2,)))
    add_topic(cluster, "u", (3, (2, 3), (2, 3)))
    assert elect(cluster, PREFERRED, None) == {
        ("t", 0): (E.NONE, None),
        ("t", 2): (E.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
        ("u", 0): (E.NONE, None),
    }
    assert leaders(cluster, "u") == [(2, 6, (2, 3))]


def test_unclean_elections(caplog):
    cluster = start((NO_LEADER, (9, 2, 3), (9,)), (1, (1, 2), (1,)), (NO_LEADER, (9, 8), (9,)))
    assert elect(cluster, UNCLEAN, [("t", [0, 1, 2])]) == {
        ("t", 0): (E.NONE, None),
        ("t", 1): (E.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."),
        ("t", 2): (E.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."),
    }
    assert leaders(cluster) == [(2, 6, (2,)), (1, 5, (1,)), (NO_LEADER, 5, (9,))]
    assert [p.leader_recovery_state for p in cluster.image.topics["t"].partitions] == [1, 0, 0]
    assert warnings(caplog) == [
        "unclean leader election: records that the new leader does not have are lost topic=t partition=0 leader=2 "
        "leader_epoch=6 old_isr=(9,) reason=requested"
    ]


def test_the_leader_of_an_unclean_election_that_leads_again_loses_nothing(caplog):
    cluster = start((NO_LEADER, (9, 2, 3), (9,)))
    elect(cluster, UNCLEAN, [("t", [0])])
    caplog.clear()
    for change, reason in (({"leader": NO_LEADER}, "failed"), ({"leader": 2, "leader_epoch": 7}, "is back")):
        old = cluster.image.partition("t", 0)
        new = change_state(old, old._replace(**change), "t", 0, reason)
        cluster.image.put_topic(cluster.image.topics["t"]._replace(partitions=(new,)))
    assert warnings(caplog) == []


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("fields", "code"), [({"election_type": 2}, E.INVALID_REQUEST), ({"timeout_ms": 0}, E.REQUEST_TIMED_OUT)]
)
def test_invalid_requests(fields, code):
    cluster = start((2, (1, 2), (2, 1)))
    admin = ElectionAdmin(cluster.controller, cluster.replicas.applied)
    with pytest.raises(KafkaError) as error:
        run_now(admin.elect(ElectLeadersRequest(topic_partitions=None, **fields)))
    assert error.value.code == code
    assert leaders(cluster) == [(2, 5, (2, 1))]


def test_enabling_unclean_election_for_a_topic_elects_at_once(caplog):
    cluster = start((NO_LEADER, (9, 2), (9,)))
    add_topic(cluster, "u", (NO_LEADER, (9, 2), (9,)))
    run_now(cluster.controller.put_topic_config("t", {"unclean.leader.election.enable": "true"}))
    assert leaders(cluster) == [(2, 6, (2,))]
    assert [warning.rpartition(" reason=")[2] for warning in warnings(caplog)] == ["unclean election was enabled"]
    assert leaders(cluster, "u") == [(NO_LEADER, 5, (9,))]


def test_enabling_unclean_election_for_the_cluster_elects_except_where_a_topic_forbids_it():
    cluster = start((NO_LEADER, (9, 2), (9,)))
    add_topic(cluster, "u", (NO_LEADER, (9, 2), (9,)))
    run_now(cluster.controller.put_topic_config("u", {"unclean.leader.election.enable": "false"}))
    run_now(cluster.controller.put_broker_config(None, {"unclean.leader.election.enable": "true"}))
    assert leaders(cluster) == [(2, 6, (2,))]
    assert leaders(cluster, "u") == [(NO_LEADER, 5, (9,))]


def test_brokers_with_too_few_leaderships_get_theirs_back():
    displaced = (2, (1, 2), (2, 1))
    cluster = start(*[(1, (1, 2), (1, 2))] * 8, displaced, displaced)
    run_now(cluster.controller.rebalance_leaders(20))
    assert leaders(cluster)[8:] == [(2, 5, (2, 1))] * 2
    run_now(cluster.controller.rebalance_leaders(19))
    assert leaders(cluster)[8:] == [(1, 6, (2, 1))] * 2


def test_a_rebalance_leaves_partitions_whose_preferred_leader_is_not_in_sync():
    cluster = start((2, (1, 2), (2,)), (2, (1, 2), (2, 1)))
    run_now(cluster.controller.rebalance_leaders(10))
    assert leaders(cluster) == [(2, 5, (2,)), (1, 6, (2, 1))]


class Delays:
    """A delay that ends the test after a number of ms."""

    def __init__(self, cluster, end_ms):
        self.cluster, self.end_ms, self.now_ms = cluster, end_ms, 0

    async def __call__(self, delay_ms):
        self.now_ms += delay_ms
        if self.now_ms > self.end_ms:
            self.cluster.controller.context.stop()


@pytest.mark.parametrize(
    ("end_ms", "properties", "leader"),
    [
        (4999, {}, 2),
        (5000, {}, 1),
        (5000, {"auto.leader.rebalance.enable": "false"}, 2),
        (5000, {"leader.imbalance.per.broker.percentage": "100"}, 2),
    ],
)
def test_the_first_check_is_after_five_seconds(end_ms, properties, leader):
    cluster = Cluster(others=[2], static=properties)
    add_topic(cluster, "t", (2, (1, 2), (2, 1)))
    run_now(LeaderRebalance(cluster.controller, cluster.configs, Delays(cluster, end_ms)).run())
    assert cluster.image.topics["t"].partitions[0].leader == leader


def test_later_checks_have_the_configured_interval(monkeypatch):
    cluster = Cluster(static={"leader.imbalance.check.interval.seconds": "30"})
    delays = Delays(cluster, 70_000)
    checks = []

    async def rebalance(max_imbalance_percent):
        checks.append((delays.now_ms, max_imbalance_percent))

    monkeypatch.setattr(cluster.controller, "rebalance_leaders", rebalance)
    run_now(LeaderRebalance(cluster.controller, cluster.configs, delays).run())
    assert checks == [(5000, 10), (35_000, 10), (65_000, 10)]
