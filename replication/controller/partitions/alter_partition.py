"""AlterPartition: a leader changes the ISR of its partitions (KIP-497, KIP-704, KIP-841)."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from odradek.replication.controller.context import ControllerContext
from odradek.replication.controller.topics.changes import TopicChanges
from odradek.replication.metadata.image import (
    NO_BROKER_EPOCH,
    RECOVERED,
    RECOVERING,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.metadata.store import MetadataStoreError

logger = logging.getLogger(__name__)


class _Row(NamedTuple):
    """A partition of the request, and its row in the response. `topic` is the name, None for an unknown id."""

    topic: str | None
    requested: AlterPartitionRequestPartitionData
    result: AlterPartitionResponsePartitionData


class AlterPartitionProcessor:
    """Processes AlterPartition within an event of the controller, a request in as few transactions as possible."""

    def __init__(self, context: ControllerContext, changes: TopicChanges) -> None:
        self._context = context
        self._changes = changes
        self._refused: dict[int, int] = {}

    async def process(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change ISRs; each partition has its own error."""
        if not self._context.is_active:
            return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
        broker = self._context.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            self._log_refusal(request.broker_id, request.broker_epoch)
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        rows, response = self._make_rows(request)
        try:
            await self._changes.change_states(partial(self._choose, rows, request.broker_id))
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code)
        except MetadataStoreError as error:
            logger.error("AlterPartition failed broker=%d: %s", request.broker_id, error)
            return AlterPartitionResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        self._fill(rows)
        return response

    def _log_refusal(self, broker_id: int, broker_epoch: int) -> None:
        """Log a refused broker once: it repeats the request several times a second until it registers again."""
        if self._refused.get(broker_id) != broker_epoch:
            self._refused[broker_id] = broker_epoch
            logger.info(
                "AlterPartition of an unknown broker or epoch is refused broker=%d broker_epoch=%d",
                broker_id, broker_epoch,
            )  # fmt: skip

    def _make_rows(self, request: AlterPartitionRequest) -> tuple[list[_Row], AlterPartitionResponse]:
        rows: list[_Row] = []
        topics = []
        for requested in request.topics:
            topic = self._context.image.topics_by_id.get(requested.topic_id)
            results = []
            for partition in requested.partitions:
                result = AlterPartitionResponsePartitionData(partition_index=partition.partition_index)
                rows.append(_Row(None if topic is None else topic.name, partition, result))
                results.append(result)
            topics.append(AlterPartitionResponseTopicData(topic_id=requested.topic_id, partitions=results))
        return rows, AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics)

    async def _choose(self, rows: Sequence[_Row], leader: int) -> list[TopicMetadata]:
        """Return the topics with the ISRs that are accepted; set the error of each row."""
        image = self._context.image
        states: dict[str, list[PartitionMetadata]] = {}
        for row in rows:
            await self._context.pause()
            if row.topic is None:
                row.result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            index = row.requested.partition_index
            current = image.partition(row.topic, index)
            row.result.error_code, new = self._check(current, row.requested, leader)
            if new is not None:
                if row.topic not in states:
                    states[row.topic] = list(image.topics[row.topic].partitions)
                states[row.topic][index] = new
        return [image.topics[name]._replace(partitions=tuple(partitions)) for name, partitions in states.items()]

    def _check(
        self, current: PartitionMetadata | None, requested: AlterPartitionRequestPartitionData, leader: int
    ) -> tuple[ErrorCode, PartitionMetadata | None]:
        """Return the error of a partition, or its new state. No error and no state: it is in the requested state."""
        if current is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        isr = _requested_isr(requested)
        recovery = requested.leader_recovery_state
        if requested.partition_epoch > current.partition_epoch or requested.leader_epoch > current.leader_epoch:
            # The leader has seen a later controller.
            return ErrorCode.NOT_CONTROLLER, None
        if requested.leader_epoch < current.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, None
        if leader == current.leader and isr == current.isr and recovery == current.leader_recovery_state:
            return ErrorCode.NONE, None
        if requested.partition_epoch < current.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION, None
        if recovery == RECOVERING and (len(isr) > 1 or current.leader_recovery_state == RECOVERED):
            return ErrorCode.INVALID_REQUEST, None
        # Kafka's controller in ZooKeeper mode accepts these; no broker sends them.
        if leader != current.leader or leader not in isr or not set(isr) <= set(current.replicas):
            return ErrorCode.INVALID_REQUEST, None
        stays = self._context.staying_brokers
        if any(replica not in stays for replica in isr) or self._has_old_epoch(requested):
            return ErrorCode.INELIGIBLE_REPLICA, None
        return ErrorCode.NONE, current._replace(
            isr=isr, leader_recovery_state=recovery, controller_epoch=self._context.epoch
        )

    def _has_old_epoch(self, requested: AlterPartitionRequestPartitionData) -> bool:
        """Return whether a member has registered again since the leader proposed it (KIP-903).

        Leaders of Kafka 3.9 send no epochs of members, and no leader sends its own, which the request has.
        """
        brokers = self._context.image.brokers
        return any(
            member.broker_epoch not in (NO_BROKER_EPOCH, brokers[member.broker_id].epoch)
            for member in requested.new_isr_with_epochs
        )

    def _fill(self, rows: Sequence[_Row]) -> None:
        """Set the present state in the rows without an error."""
        for row in rows:
            if row.result.error_code == ErrorCode.NONE and row.topic is not None:
                state = self._context.image.topics[row.topic].partitions[row.requested.partition_index]
                result = row.result
                result.leader_id, result.leader_epoch = state.leader, state.leader_epoch
                result.isr, result.partition_epoch = list(state.isr), state.partition_epoch
                result.leader_recovery_state = state.leader_recovery_state


def _requested_isr(requested: AlterPartitionRequestPartitionData) -> tuple[int, ...]:
    """Return the ISR of a request of any version."""
    if requested.new_isr_with_epochs:
        return tuple([member.broker_id for member in requested.new_isr_with_epochs])
    return tuple(requested.new_isr)
