"""AlterPartitionReassignments and ListPartitionReassignments: validation and results (KIP-455, KIP-860).

Messages are those of Apache Kafka 4.3's controller. As in ZooKeeper mode, a replica that is already assigned may be in
the target although its broker is not live.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponseReassignablePartitionResponse,
    AlterPartitionReassignmentsResponseReassignableTopicResponse,
)
from odradek.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponseOngoingPartitionReassignment,
    ListPartitionReassignmentsResponseOngoingTopicReassignment,
)
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.partitions.reassignment import find_target, is_reassigning
from odradek.replication.controller.states.assignment import check_replicas
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.pauses import in_slices

_PARTITIONS_PER_PAUSE: Final = 100


class ReassignmentAdmin:
    """Reassignments that clients request. `applied` returns when this broker's replicas have applied changes."""

    def __init__(self, controller: Controller, applied: Callable[[], Awaitable[None]]) -> None:
        self._controller = controller
        self._image = controller.image
        self._applied = applied

    async def alter(self, request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
        """Begin, change or cancel reassignments. Raises KafkaError NOT_CONTROLLER, REQUEST_TIMED_OUT."""
        self._controller.check_active()
        allows_change = request.allow_replication_factor_change
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allows_change, error_message=None if request.topics else ""
        )
        if not request.topics:
            return response
        if request.timeout_ms <= 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        for topic in request.topics:
            await self._controller.pause()
            errors = await self._alter_topic(topic.name, topic.partitions, allows_change)
            row = AlterPartitionReassignmentsResponseReassignableTopicResponse(name=topic.name)
            outcomes = zip(topic.partitions, errors, strict=True)
            async for partition, error in in_slices(outcomes, _PARTITIONS_PER_PAUSE, self._controller.pause):
                row.partitions.append(
                    AlterPartitionReassignmentsResponseReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.NONE if error is None else error.code,
                        error_message=None if error is None else error.message,
                    )
                )
            response.responses.append(row)
        await self._applied()
        return response

    async def _alter_topic(
        self,
        name: str,
        partitions: Sequence[AlterPartitionReassignmentsRequestReassignablePartition],
        allows_change: bool,
    ) -> list[KafkaError | None]:
        """Alter a topic's partitions in one event; return the error of each, None if there was none."""
        try:
            return await self._controller.request(
                "alter reassignments", lambda: self._alter_in_event(name, partitions, allows_change)
            )
        except KafkaError as error:
            return [error] * len(partitions)

    async def _alter_in_event(
        self,
        name: str,
        partitions: Sequence[AlterPartitionReassignmentsRequestReassignablePartition],
        allows_change: bool,
    ) -> list[KafkaError | None]:
        errors: list[KafkaError | None] = []
        targets: dict[int, Sequence[int] | None] = {}
        async for requested in in_slices(partitions, _PARTITIONS_PER_PAUSE, self._controller.pause):
            try:
                self._check(name, requested.partition_index, requested.replicas, allows_change)
            except KafkaError as error:
                errors.append(error)
            else:
                errors.append(None)
                targets[requested.partition_index] = requested.replicas
        if targets:
            results = await self._controller.reassignments.begin(name, targets)
            errors = [
                results.get(requested.partition_index) if error is None else error
                for requested, error in zip(partitions, errors, strict=True)
            ]
        return errors

    def _check(self, name: str, index: int, target: Sequence[int] | None, allows_change: bool) -> None:
        """Raise the KafkaError of an invalid request for one partition."""
        if name not in self._image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        partition = self._image.partition(name, index)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
        if target is None:
            if not is_reassigning(partition):
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            return
        brokers = self._image.brokers
        check_replicas(target, lambda broker: broker in brokers or broker in partition.replicas)
        present = len(find_target(partition))
        if not allows_change and present != len(target):
            text = f"The replication factor is changed from {present} to {len(target)}"
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)

    async def list(self, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
        """Return the reassignments in progress, of all topics or of the requested partitions.

        Raises KafkaError NOT_CONTROLLER.
        """
        self._controller.check_active()
        response = ListPartitionReassignmentsResponse(error_message=None)
        if request.topics is None:
            for topic in list(self._image.topics.values()):
                await self._controller.pause()
                await self._add_topic(response, topic, range(len(topic.partitions)))
            return response
        for requested in request.topics:
            await self._controller.pause()
            found = self._image.topics.get(requested.name)
            if found is not None:
                await self._add_topic(response, found, requested.partition_indexes)
        return response

    async def _add_topic(
        self, response: ListPartitionReassignmentsResponse, topic: TopicMetadata, indexes: Iterable[int]
    ) -> None:
        rows = []
        async for index in in_slices(indexes, _PARTITIONS_PER_PAUSE, self._controller.pause):
            if not 0 <= index < len(topic.partitions):
                continue
            partition = topic.partitions[index]
            if is_reassigning(partition):
                rows.append(
                    ListPartitionReassignmentsResponseOngoingPartitionReassignment(
                        partition_index=index,
                        replicas=[*partition.replicas],
                        adding_replicas=[*partition.adding],
                        removing_replicas=[*partition.removing],
                    )
                )
        if rows:
            response.topics.append(
                ListPartitionReassignmentsResponseOngoingTopicReassignment(name=topic.name, partitions=rows)
            )
