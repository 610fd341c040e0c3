"""Requests of administrators to the controller of a mixed cluster, and the metadata of all its brokers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from compat_tests.clients.common import wait_until
from compat_tests.cluster.mixed import MixedCluster
from compat_tests.cluster.replicas import PartitionState
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
)
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsAssignment,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableReplicaAssignment,
    CreateTopicsRequestCreatableTopic,
)
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from odradek.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestListPartitionReassignmentsTopics,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.server.tests.wire import Wire

NO_TOPIC_ID = bytes(16)
Assignment = Sequence[Sequence[int]]
"""The replicas of each partition."""
Reassignment = tuple[list[int], list[int], list[int]]
"""Replicas, and those of them that are added and removed."""


class Topic(NamedTuple):
    """A topic as in Metadata."""

    error_code: int
    topic_id: bytes
    partitions: Mapping[int, PartitionState]


class Controller:
    """Requests to the controller of a cluster."""

    def __init__(self, cluster: MixedCluster, kind: str) -> None:
        """Elect a broker of a kind as the controller; return when the metadata of all brokers contain it."""
        running = find_running(cluster)
        self.number = cluster.elect_controller(*(each for each in cluster.of_kind(kind) if each in running))
        self._port = cluster.port(self.number)

        def is_known(number: int) -> bool:
            return ask(cluster.port(number), MetadataRequest(), 9).controller_id == self.number

        wait_for_all(cluster, is_known, f"controller {self.number}")

    def _ask(self, request: Any, version: int) -> Any:
        return ask(self._port, request, version)

    def create_topic(self, name: str, assignment: Assignment) -> tuple[int, bytes]:
        """Return the error code and the id of the topic."""
        rows = [
            CreateTopicsRequestCreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(assignment)
        ]
        topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows)
        [result] = self._ask(CreateTopicsRequest(topics=[topic]), 7).topics
        return result.error_code, result.topic_id

    def create_partitions(self, name: str, count: int, added: Assignment) -> int:
        """Grow a topic to a number of partitions; return the error code."""
        rows = [CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in added]
        topic = CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=rows)
        [result] = self._ask(CreatePartitionsRequest(topics=[topic], timeout_ms=60_000), 3).results
        return result.error_code

    def delete_topic(self, name: str) -> int:
        """Return the error code."""
        topic = DeleteTopicsRequestDeleteTopicState(name=name, topic_id=NO_TOPIC_ID)
        [result] = self._ask(DeleteTopicsRequest(topics=[topic], timeout_ms=60_000), 6).responses
        return result.error_code

    def elect_preferred(self, name: str, partitions: list[int]) -> list[int]:
        """Return the error code of each partition."""
        asked = ElectLeadersRequestTopicPartitions(topic=name, partitions=partitions)
        response = self._ask(ElectLeadersRequest(topic_partitions=[asked]), 2)
        assert response.error_code == 0
        [result] = response.replica_election_results
        codes = {row.partition_id: row.error_code for row in result.partition_result}
        return [codes[index] for index in partitions]

    def reassign(self, name: str, targets: Mapping[int, Sequence[int] | None]) -> list[int]:
        """Begin the reassignments of partitions, or cancel those without a target; return their error codes."""
        rows = [
            AlterPartitionReassignmentsRequestReassignablePartition(
                partition_index=index, replicas=None if replicas is None else list(replicas)
            )
            for index, replicas in targets.items()
        ]
        topic = AlterPartitionReassignmentsRequestReassignableTopic(name=name, partitions=rows)
        response = self._ask(AlterPartitionReassignmentsRequest(topics=[topic]), 0)
        assert response.error_code == 0, response.error_message
        [result] = response.responses
        codes = {row.partition_index: row.error_code for row in result.partitions}
        return [codes[index] for index in targets]

    def list_reassignments(self, name: str, count: int) -> dict[int, Reassignment]:
        """Return the reassignments in progress of a topic with a number of partitions."""
        asked = ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(
            name=name, partition_indexes=list(range(count))
        )
        response = self._ask(ListPartitionReassignmentsRequest(topics=[asked]), 0)
        assert response.error_code == 0, response.error_message
        return {
            row.partition_index: (row.replicas, row.adding_replicas, row.removing_replicas)
            for topic in response.topics
            for row in topic.partitions
        }


def find_running(cluster: MixedCluster) -> list[int]:
    """Return the ids of the brokers that run."""
    return [number for number, broker in cluster.brokers.items() if broker.is_running]


def ask(port: int, request: Any, version: int) -> Any:
    """Send a request over a connection of its own, and return the response."""
    with Wire(port) as wire:
        return wire.ask(request, version)


def describe_topic(port: int, name: str | None, topic_id: bytes = NO_TOPIC_ID) -> Topic:
    """Return a topic as in the metadata of a broker, by its name or, without a name, by its id."""
    asked = MetadataRequestTopic(name=name, topic_id=topic_id)
    [found] = ask(port, MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 12).topics
    partitions = {
        row.partition_index: PartitionState(
            row.leader_id, row.leader_epoch, tuple(row.replica_nodes), frozenset(row.isr_nodes)
        )
        for row in found.partitions
    }
    return Topic(found.error_code, found.topic_id, partitions)


def wait_for_topic(cluster: MixedCluster, name: str, assignment: Assignment, topic_id: bytes | None = None) -> Topic:
    """Wait until all brokers describe a topic with these replicas, all in sync, and with the same leaders and epochs.

    topic_id: the id that it has; None for any
    """
    found: list[Topic] = []

    def is_described() -> bool:
        found[:] = [describe_topic(cluster.port(number), name) for number in cluster.kinds]
        replicas = [state.replicas for _, state in sorted(found[0].partitions.items())]
        return (
            all(topic == found[0] for topic in found)
            and topic_id in (None, found[0].topic_id)
            and replicas == [tuple(row) for row in assignment]
            and all(state.leader >= 0 and state.isr == set(state.replicas) for state in found[0].partitions.values())
        )

    wait_until(is_described, what=lambda: f"{name} with {assignment}: {found}")
    return found[0]


def wait_for_all(cluster: MixedCluster, condition: Callable[[int], bool], what: str) -> None:
    """Wait until a condition is true for the id of each broker that runs."""
    for number in find_running(cluster):
        wait_until(lambda number=number: condition(number), what=f"{what}, broker {number}")  # type: ignore[misc]
