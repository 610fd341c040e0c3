"""Reassignments and elections that operators write into the metadata store."""

from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster

REASSIGN, ELECT = znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_ELECTION


def start(*partitions, server=None):
    """A cluster of brokers 1 to 4 with a topic, whose partitions are (leader, replicas, isr)."""
    cluster = Cluster(others=[2, 3, 4], server=server)
    states = tuple(PartitionMetadata(leader, 5, replicas, isr) for leader, replicas, isr in partitions)
    topic = TopicMetadata("t", bytes(15) + b"t", states)
    assert run_now(cluster.controller.create_topics([NewTopic(topic, {})])) == {}
    return cluster


def write(cluster, path, *rows):
    """An operator's tool writes a node."""
    tool = cluster.server.connect()
    run_now(tool.create(path, znodes.encode({"version": 1, "partitions": list(rows)})))
    run_now(tool.close())


def row(index, *replicas, topic="t"):
    return {"topic": topic, "partition": index, **({"replicas": list(replicas)} if replicas else {})}


def requested(cluster):
    """The reassignments in the node, None without one."""
    if run_now(cluster.store.exists(REASSIGN)) is None:
        return None
    return znodes.decode_reassignments(run_now(cluster.store.get(REASSIGN)).data)


def put_isr(cluster, index, isr):
    topic = cluster.controller.image.topics["t"]
    partitions = list(topic.partitions)
    partitions[index] = partitions[index]._replace(isr=isr)
    run_now(cluster.controller.put_partitions([topic._replace(partitions=tuple(partitions))]))


def assignments(cluster):
    return [(p.replicas, p.adding, p.removing) for p in cluster.image.topics["t"].partitions]


def test_reassignments_are_removed_from_the_node_when_they_are_finished():
    cluster = start((1, (1, 2), (1, 2)), (1, (1, 2), (1, 2)))
    write(cluster, REASSIGN, row(0, 1, 3), row(1, 1, 4), row(0, 1, topic="none"), row(7, 1))
    assert requested(cluster) == {("t", 0): (1, 3), ("t", 1): (1, 4)}
    assert assignments(cluster) == [((1, 3, 2), (3,), (2,)), ((1, 4, 2), (4,), (2,))]
    put_isr(cluster, 0, (1, 2, 3))
    assert requested(cluster) == {("t", 1): (1, 4)}
    put_isr(cluster, 1, (1, 2, 4))
    assert requested(cluster) is None
    assert assignments(cluster) == [((1, 3), (), ()), ((1, 4), (), ())]
    # The node can be written again.
    write(cluster, REASSIGN, row(0, 3, 1))
    assert requested(cluster) is None
    assert assignments(cluster)[0] == ((3, 1), (), ())


def test_a_later_reassignment_replaces_that_of_the_node():
    cluster = start((1, (1, 2), (1, 2)))
    write(cluster, REASSIGN, row(0, 1, 3))
    run_now(cluster.controller.request("reassign", lambda: cluster.controller.reassignments.begin("t", {0: [1, 4]})))
    assert requested(cluster) is None
    assert assignments(cluster) == [((1, 4, 2), (4,), (2,))]


def test_invalid_reassignments_are_refused(caplog):
    cluster = start((1, (1, 2), (1, 2)))
    write(cluster, REASSIGN, row(0, 9))
    assert requested(cluster) is None
    assert assignments(cluster) == [((1, 2), (), ())]
    assert "refused reassignment topic=t partition=0" in caplog.text
    run_now(cluster.server.connect().create(REASSIGN, b"{"))
    assert requested(cluster) is None


def test_the_next_controller_executes_requests():
    server = MemoryMetadataServer(lambda: 0)
    first = start((1, (1, 2), (1, 2)), server=server)
    run_now(first.controller.close())
    run_now(first.store.close())
    tool = server.connect()
    run_now(tool.create(REASSIGN, znodes.encode_reassignments({("t", 0): (1, 3)})))
    second = Cluster(server=server)
    assert assignments(second) == [((1, 3, 2), (3,), (2,))]
    assert requested(second) == {("t", 0): (1, 3)}


def test_elections_of_preferred_leaders():
    cluster = start((2, (1, 2), (2, 1)), (2, (1, 2), (2,)), (1, (1, 2), (1, 2)))
    write(cluster, ELECT, row(0), row(1), row(2), row(9), row(0, topic="none"))
    assert run_now(cluster.store.exists(ELECT)) is None
    assert [(p.leader, p.leader_epoch) for p in cluster.image.topics["t"].partitions] == [(1, 6), (2, 5), (1, 5)]
    run_now(cluster.server.connect().create(ELECT, b"{"))
    assert run_now(cluster.store.exists(ELECT)) is None
