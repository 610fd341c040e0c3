"""Moves of a broker's leaderships to others: before it stops (ControlledShutdown), and when its process has ended.

The end of a process is noticed long before its session expires (`Controller.on_broker_refused`). Should the broker be
alive, nothing is lost: the members of the ISR that follow the next leader have all acknowledged records, and without
them the broker cannot acknowledge others.
"""

import logging
from collections.abc import Sequence
from functools import partial

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlledShutdownResponseRemainingPartition,
)
from odradek.replication.controller.context import ControllerContext
from odradek.replication.controller.propagation.requests import ReplicaToStop
from odradek.replication.controller.states.partition_states import elect_leader_for_shutdown
from odradek.replication.controller.states.replica_states import remove_from_isr
from odradek.replication.controller.topics.changes import TopicChanges
from odradek.replication.metadata.image import NO_BROKER_EPOCH, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import MetadataStoreError

logger = logging.getLogger(__name__)


class ControlledShutdownProcessor:
    """Moves leaderships, and processes ControlledShutdown, within an event of the controller.

    Registrations must have been followed: another member of an ISR may have restarted without its last records.
    Partitions with one replica are skipped, as in Kafka.
    """

    def __init__(self, context: ControllerContext, changes: TopicChanges) -> None:
        self._context = context
        self._changes = changes

    async def process(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Move leaderships and shrink ISRs; return the partitions that the broker still leads."""
        context = self._context
        if not context.is_active:
            return ControlledShutdownResponse(error_code=ErrorCode.NOT_CONTROLLER)
        broker = context.image.brokers.get(request.broker_id)
        if broker is None:
            return ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        if request.broker_epoch != NO_BROKER_EPOCH and request.broker_epoch < broker.epoch:
            return ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        logger.info("a broker is shutting down broker=%d", request.broker_id)
        context.shutting_down.add(request.broker_id)
        try:
            await self.evacuate(request.broker_id, "controlled shutdown")
            followed, led = await self._find_replicas(request.broker_id)
        except KafkaError as error:
            return ControlledShutdownResponse(error_code=error.code)
        except MetadataStoreError as error:
            logger.error("controlled shutdown failed broker=%d: %s", request.broker_id, error)
            return ControlledShutdownResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        if context.propagation is not None and followed:
            context.propagation.stop_replicas(request.broker_id, followed)
        return ControlledShutdownResponse(error_code=ErrorCode.NONE, remaining_partitions=led)

    async def evacuate(self, broker_id: int, why: str) -> None:
        """Move leaderships and shrink ISRs. Raises KafkaError, MetadataStoreError."""
        await self._changes.change_states(partial(self._choose, broker_id, why))

    async def _choose(self, broker_id: int, why: str) -> Sequence[TopicMetadata]:
        context = self._context
        brokers, leaving = context.image.brokers, context.shutting_down | {broker_id}

        def leave(name: str, index: int, partition: PartitionMetadata) -> PartitionMetadata:
            if broker_id not in partition.replicas or len(partition.replicas) == 1:
                return partition
            if partition.leader == broker_id:
                return elect_leader_for_shutdown(partition, brokers, leaving, context.epoch) or partition
            return remove_from_isr(partition, [broker_id], context.epoch)

        return await self._changes.map_partitions(leave, why)

    async def _find_replicas(
        self, broker_id: int
    ) -> tuple[list[ReplicaToStop], list[ControlledShutdownResponseRemainingPartition]]:
        """Return the broker's replicas that follow others, and the partitions that it leads."""
        followed, led = [], []
        for topic in list(self._context.image.topics.values()):
            await self._context.pause()
            for index, partition in enumerate(topic.partitions):
                if broker_id not in partition.replicas or len(partition.replicas) == 1:
                    continue
                if partition.leader == broker_id:
                    row = ControlledShutdownResponseRemainingPartition(topic_name=topic.name, partition_index=index)
                    led.append(row)
                else:
                    followed.append(ReplicaToStop(topic.name, index, partition.leader_epoch, False))
        return followed, led
