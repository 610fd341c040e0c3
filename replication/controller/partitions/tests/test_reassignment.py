"""Reassignment of partitions, step by step, and its continuation by another controller."""

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
)
from odradek.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestListPartitionReassignmentsTopics,
)
from odradek.replication.controller.admin.reassignments import ReassignmentAdmin
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster, SteppedExecutor

E = ErrorCode


class Stops:
    """Records StopReplica requests as (broker, [(topic, index, leader epoch)]) until they are answered."""

    def __init__(self, executor):
        self.executor, self.requests, self.unanswered = executor, [], []

    def stop(self, broker_id, replicas, answered):
        self.requests.append((broker_id, replicas))
        self.unanswered.append(answered)

    def answer(self):
        while self.unanswered:
            self.unanswered.pop(0)()
        self.executor.finish()


class World:
    """A cluster of five brokers with a topic of one partition, on broker 1 the controller."""

    def __init__(self, replicas, isr=None, leader=None, server=None, partitions=1):
        self.cluster = Cluster(others=[2, 3, 4, 5], server=server)
        self.executor = SteppedExecutor()
        self.controller = self.cluster.controller
        self.controller.run_on(self.executor)
        self.stops = Stops(self.executor)
        self.controller.reassignments.stop_replicas = self.stops.stop
        self.admin = ReassignmentAdmin(self.controller, self.cluster.replicas.applied)
        state = PartitionMetadata(leader or replicas[0], 5, tuple(replicas), tuple(isr or replicas))
        topic = TopicMetadata("t", bytes(15) + b"t", (state,) * partitions)
        assert self.run(self.controller.create_topics([NewTopic(topic, {})])) == {}

    def run(self, coroutine):
        task = self.executor.start(coroutine)
        self.executor.finish()
        return task.outcome()

    def alter(self, *targets, topic="t", **fields):
        """Return (code, message) for each (partition, target)."""
        rows = [
            AlterPartitionReassignmentsRequestReassignablePartition(partition_index=index, replicas=target)
            for index, target in targets
        ]
        topics = [AlterPartitionReassignmentsRequestReassignableTopic(name=topic, partitions=rows)]
        response = self.run(self.admin.alter(AlterPartitionReassignmentsRequest(topics=topics, **fields)))
        [result] = response.responses
        return [(row.error_code, row.error_message) for row in result.partitions]

    def reassign(self, target):
        [result] = self.alter((0, target))
        return result

    def put_isr(self, isr, **fields):
        """Change the ISR as AlterPartition does."""
        topic = self.controller.image.topics["t"]
        changed = topic._replace(partitions=(topic.partitions[0]._replace(isr=tuple(isr), **fields),))
        self.run(self.controller.put_partitions([changed]))

    def list(self, topics=None):
        response = self.run(self.admin.list(ListPartitionReassignmentsRequest(topics=topics)))
        return {
            (topic.name, row.partition_index): (row.replicas, row.adding_replicas, row.removing_replicas)
            for topic in response.topics
            for row in topic.partitions
        }

    @property
    def partition(self):
        """The partition in the cache of the broker."""
        return self.cluster.image.topics["t"].partitions[0]

    @property
    def node(self):
        """The replicas, adding and removing in the topic's node."""
        node = znodes.decode_topic(run_now(self.cluster.store.get(znodes.topic_path("t"))).data)
        return node.replicas[0], node.adding.get(0, ()), node.removing.get(0, ())

    @property
    def shape(self):
        """The replicas, adding, removing, leader, leader epoch and ISR that brokers get."""
        p = self.partition
        return p.replicas, p.adding, p.removing, p.leader, p.leader_epoch, p.isr


def test_a_reassignment_step_by_step():
    world = World([1, 2])
    assert world.reassign([3, 4]) == (E.NONE, None)
    assert world.shape == ((3, 4, 1, 2), (3, 4), (1, 2), 1, 6, (1, 2))
    assert world.node == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert world.list() == {("t", 0): ([3, 4, 1, 2], [3, 4], [1, 2])}

    world.put_isr([1, 2, 4])
    assert world.shape == ((3, 4, 1, 2), (3, 4), (1, 2), 1, 6, (1, 2, 4))
    assert world.stops.requests == []

    world.put_isr([1, 2, 4, 3])
    assert world.shape == ((3, 4), (), (), 3, 7, (4, 3))
    assert sorted(world.stops.requests) == [(1, [("t", 0, 7)]), (2, [("t", 0, 7)])]
    assert world.node == ((3, 4, 1, 2), (), (1, 2))
    assert world.list() == {}

    world.stops.answer()
    assert world.node == ((3, 4), (), ())
    assert world.shape == ((3, 4), (), (), 3, 7, (4, 3))


def test_the_leader_stays_if_it_is_in_the_target():
    world = World([1, 2], leader=2)
    world.reassign([3, 2])
    world.put_isr([1, 2, 3])
    assert world.shape == ((3, 2), (), (), 2, 7, (2, 3))


def test_only_removing_replicas_completes_at_once():
    world = World([1, 2, 3], leader=3)
    world.reassign([2, 1])
    assert world.shape == ((2, 1), (), (), 2, 6, (1, 2))
    assert world.stops.requests == [(3, [("t", 0, 6)])]
    assert world.node == ((2, 1, 3), (), (3,))
    world.stops.answer()
    assert world.node == ((2, 1), (), ())


def test_a_new_order_of_the_same_replicas():
    world = World([1, 2, 3], isr=[1, 3])
    world.reassign([3, 2, 1])
    assert world.shape == ((3, 2, 1), (), (), 1, 6, (1, 3))
    assert world.node == ((3, 2, 1), (), ())
    assert world.stops.requests == []


def test_the_same_replicas_change_nothing():
    world = World([1, 2])
    before = world.cluster.image.topics["t"]
    assert world.reassign([1, 2]) == (E.NONE, None)
    assert world.cluster.image.topics["t"] is before


def test_a_cancellation_removes_the_added_replicas():
    world = World([1, 2])
    world.reassign([3, 2])
    world.put_isr([1, 2], leader=1)
    assert world.reassign(None) == (E.NONE, None)
    # The target came first in RS, so that the original order is lost, as in Kafka.
    assert world.shape == ((2, 1), (), (), 1, 7, (1, 2))
    assert world.stops.requests == [(3, [("t", 0, 7)])]
    assert world.node == ((2, 1, 3), (), (3,))
    world.stops.answer()
    assert world.node == ((2, 1), (), ())
    assert world.reassign(None) == (E.NO_REASSIGNMENT_IN_PROGRESS, None)


def test_another_target_replaces_a_reassignment():
    world = World([1, 2])
    world.reassign([3, 4])
    world.put_isr([1, 2, 3])
    world.reassign([4, 5])
    assert world.shape == ((4, 5, 1, 2), (4, 5), (1, 2), 1, 7, (1, 2))
    assert world.stops.requests == [(3, [("t", 0, 7)])]
    assert world.node == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3))
    world.stops.answer()
    assert world.node == ((4, 5, 1, 2), (4, 5), (1, 2))


def test_a_replica_may_come_back_while_it_is_stopped():
    world = World([1, 2])
    world.reassign([1])
    world.reassign([1, 2])
    assert world.node == ((1, 2), (2,), ())
    world.stops.answer()
    assert world.node == ((1, 2), (2,), ())
    world.put_isr([1, 2])
    assert world.node == ((1, 2), (), ())
    assert world.shape == ((1, 2), (), (), 1, 8, (1, 2))


def test_partitions_can_be_added_while_removed_replicas_are_stopped():
    world = World([1, 2])
    world.reassign([1])
    topic = world.controller.image.topics["t"]
    grown = topic._replace(partitions=(*topic.partitions, PartitionMetadata(1, 0, (1,), (1,))))
    world.run(world.controller.add_partitions(grown, 1))
    assert world.node == ((1, 2), (), (2,))
    world.stops.answer()
    assert world.node == ((1,), (), ())


def test_a_failed_broker_is_not_waited_for():
    world = World([1, 9])
    world.reassign([1, 2])
    world.put_isr([1, 2])
    assert world.stops.requests == []
    assert world.node == ((1, 2), (), ())


def test_a_broker_that_fails_while_it_deletes_replicas_is_not_waited_for():
    world = World([1, 2, 3])
    world.reassign([1])
    assert world.node == ((1, 2, 3), (), (2, 3))
    world.controller.image.remove_broker(2)
    world.controller.image.publish()
    world.executor.finish()
    assert world.node == ((1, 3), (), (3,))
    world.stops.answer()
    assert world.node == ((1,), (), ())


def test_a_target_without_a_live_leader_waits_for_one():
    world = World([1, 2], isr=[1])
    world.reassign([3])
    world.controller.image.remove_broker(3)
    world.put_isr([1, 3])
    assert world.shape == ((3, 1, 2), (3,), (1, 2), 1, 6, (1, 3))
    world.controller.image.put_broker(world.controller.image.brokers[2]._replace(broker_id=3))
    world.controller.image.publish()
    world.executor.finish()
    assert world.shape == ((3,), (), (), 3, 7, (3,))


def test_a_cancellation_that_needs_an_unclean_election_is_refused():
    world = World([1, 2], isr=[1])
    world.reassign([3, 4])
    world.put_isr([3], leader=3)
    text = "Unable to revert partition assignment for t:0 because it would require an unclean leader election."
    assert world.reassign(None) == (E.INVALID_REPLICA_ASSIGNMENT, text)
    assert world.shape == ((3, 4, 1, 2), (3, 4), (1, 2), 3, 6, (3,))


@pytest.mark.parametrize("stopped", [False, True])
def test_another_controller_continues(stopped):
    server = MemoryMetadataServer(lambda: 0)
    world = World([1, 2], server=server)
    world.reassign([3, 4])
    if stopped:
        world.put_isr([1, 2, 3, 4])
    run_now(world.cluster.controller.close())
    run_now(world.cluster.store.close())
    # Broker 1 starts again; replicas are stopped again, because the outcome of the first requests is not known.
    second = Cluster(server=server)
    executor = SteppedExecutor()
    stops = Stops(executor)
    second.controller.run_on(executor)
    second.controller.reassignments.stop_replicas = stops.stop
    if not stopped:
        assert second.image.topics["t"].partitions[0].adding == (3, 4)
        topic = second.controller.image.topics["t"]
        changed = topic._replace(partitions=(topic.partitions[0]._replace(isr=(1, 2, 3, 4)),))
        executor.start(second.controller.put_partitions([changed]))
        executor.finish()
        assert sorted(request[0] for request in stops.requests) == [1, 2]
        stops.answer()
    partition = second.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.leader) == ((3, 4), 3)
    stored = ClusterMetadata()
    run_now(load_image(second.store, stored))
    assert stored.topics["t"].partitions == (partition,)


def test_errors():
    world = World([1, 2], partitions=2)
    empty = "The manual partition assignment includes an empty replica list."
    unknown = "The manual partition assignment includes broker 9, but no such broker is registered."
    twice = "The manual partition assignment includes the broker 3 more than once."
    assert world.alter((0, [3, 1]), (1, None), (2, [1]), (-1, None), (1, []), (1, [9, 1]), (1, [3, 3])) == [
        (E.NONE, None),
        (E.NO_REASSIGNMENT_IN_PROGRESS, None),
        (E.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:2."),
        (E.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:-1."),
        (E.INVALID_REPLICA_ASSIGNMENT, empty),
        (E.INVALID_REPLICA_ASSIGNMENT, unknown),
        (E.INVALID_REPLICA_ASSIGNMENT, twice),
    ]
    missing = (E.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named none.")
    assert world.alter((0, [1]), (1, None), topic="none") == [missing, missing]
    with pytest.raises(KafkaError) as error:
        world.alter((0, [1]), timeout_ms=0)
    assert error.value.code == E.REQUEST_TIMED_OUT


def test_the_replication_factor_changes_only_if_that_is_allowed():
    world = World([1, 2])
    refused = (E.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 2 to 3")
    assert world.alter((0, [1, 2, 3]), allow_replication_factor_change=False) == [refused]
    assert world.alter((0, [1, 3]), allow_replication_factor_change=False) == [(E.NONE, None)]
    refused = (E.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 2 to 1")
    assert world.alter((0, [4]), allow_replication_factor_change=False) == [refused]
    assert world.alter((0, [1, 2, 3])) == [(E.NONE, None)]


def test_listing_requested_partitions():
    world = World([1, 2])
    world.reassign([3, 2])

    def requested(name, *indexes):
        return ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(
            name=name, partition_indexes=list(indexes)
        )

    expected = {("t", 0): ([3, 2, 1], [3], [1])}
    assert world.list([requested("none", 0), requested("t", 0, 1, -1)]) == expected
    assert world.list([requested("t", 1)]) == {}
    assert world.list([]) == {}


def test_a_deleted_topic_ends_its_reassignments():
    world = World([1, 2])
    world.reassign([3])
    assert world.run(world.controller.delete_topics(["t"])) == {}
    assert world.list() == {}
