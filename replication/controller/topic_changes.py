"""Changes of topics and partitions by the controller: the store first, then the controller's image, then brokers.

Each method is called within an event of the controller, so that nothing else changes the image while it waits.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.context import MAX_OPERATIONS, ControllerContext, as_kafka_error
from odradek.replication.controller.epoch_floor import LeastEpoch, no_floor
from odradek.replication.controller.partition_states import (
    PartitionState,
    change_state,
    determine_state,
    elect_leader,
    new_partition,
)
from odradek.replication.controller.topic_deletion import TopicDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import (
    Create,
    MetadataStoreError,
    NodeExistsError,
    Operation,
    SetData,
    TransactionError,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PARTITIONS_PER_PAUSE: Final = 500
"""For this many partitions, creating operations takes about 1 ms; elections or state changes take a few."""


class NewTopic(NamedTuple):
    """A topic to be created: its metadata, with leaders and ISR, and its explicit configuration."""

    topic: TopicMetadata
    configs: Mapping[str, str]


class TopicChanges:
    """Creates topics, adds partitions, elects leaders."""

    def __init__(self, context: ControllerContext, deletion: TopicDeletion) -> None:
        self._context = context
        self._deletion = deletion

    async def create(self, topics: Sequence[NewTopic]) -> dict[str, KafkaError]:
        """Create a batch of topics and publish them together; return the errors of those that were not created."""
        image = self._context.image
        names = [new.topic.name for new in topics]
        await self._deletion.finish(names)
        errors = {name: error for name in names if (error := self._deletion.obstacle(name)) is not None}
        batch = [new for new in topics if new.topic.name not in errors]
        if batch:
            errors |= await self._create(batch)
        for new in batch:
            if new.topic.name in errors:
                continue
            image.put_topic(new.topic)
            if new.configs:
                image.put_topic_config(new.topic.name, new.configs)
        image.publish()
        return errors

    async def _create(self, batch: Sequence[NewTopic]) -> dict[str, KafkaError]:
        """Write new topics, all in one transaction if the store accepts it; return the errors of those refused."""
        try:
            await self._context.write([operation for new in batch for operation in await self._creation(new)])
        except TransactionError as error:
            if len(batch) == 1:
                return {batch[0].topic.name: _creation_error(batch[0].topic.name, error)}
            errors: dict[str, KafkaError] = {}
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                await self._context.pause()
                errors |= await self._create(half)
            return errors
        except (KafkaError, MetadataStoreError) as error:
            return {new.topic.name: as_kafka_error(error) for new in batch}
        return {}

    async def _creation(self, new: NewTopic) -> list[Operation]:
        topic = new.topic
        return [
            Create(znodes.topic_config_path(topic.name), znodes.encode_config(dict(new.configs))),
            Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, topic.partitions)),
            Create(znodes.partitions_path(topic.name)),
            *await self._partition_creations(topic, 0),
        ]

    async def _partition_creations(self, topic: TopicMetadata, first: int) -> list[Operation]:
        operations: list[Operation] = []
        for index in range(first, len(topic.partitions)):
            if index % _PARTITIONS_PER_PAUSE == 0:
                await self._context.pause()
            state = znodes.encode_state(topic.partitions[index])
            operations.append(Create(znodes.partition_path(topic.name, index)))
            operations.append(Create(znodes.state_path(topic.name, index), state))
        return operations

    async def begin_partitions(self, topic: TopicMetadata) -> TopicMetadata:
        """Write the first states of the partitions of a topic that another broker created, unless they exist."""
        if any(determine_state(partition) is not PartitionState.NEW for partition in topic.partitions):
            return topic
        context = self._context
        started = topic._replace(
            partitions=tuple(new_partition(p.replicas, context.image.brokers, context.epoch) for p in topic.partitions)
        )
        await context.write([Create(znodes.partitions_path(topic.name)), *await self._partition_creations(started, 0)])
        return started

    async def add_partitions(self, grown: TopicMetadata, old_count: int) -> None:
        """Write and publish a topic that has more partitions than before. Raises KafkaError."""
        current = self._current(grown)
        if current is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{grown.name}' was deleted.")
        operations: list[Operation] = [
            SetData(znodes.topic_path(grown.name), znodes.encode_topic(grown.topic_id, grown.partitions))
        ]
        operations += await self._partition_creations(grown, old_count)
        await self._context.change(operations)
        # The old partitions may have other leaders than when the change was requested.
        partitions = current.partitions[:old_count] + grown.partitions[old_count:]
        self._context.image.put_topic(grown._replace(partitions=partitions))
        self._context.image.publish()

    def _current(self, topic: TopicMetadata) -> TopicMetadata | None:
        """Return the current state of a topic; None if it was deleted since the change was requested."""
        current = self._context.image.topics.get(topic.name)
        return current if current is not None and current.topic_id == topic.topic_id else None

    async def elect_leaders(
        self, why: str, *, fenced: int | None = None, least_epoch: LeastEpoch = no_floor
    ) -> None:
        """Elect leaders for partitions without a live one.

        Those that the `fenced` broker leads, and those below their `least_epoch`, begin a new leader epoch. Raises
        KafkaError, MetadataStoreError.
        """
        image = self._context.image
        changed = []
        # A topic whose removal was interrupted may lack nodes.
        deleted = set(await self._context.store.get_children(znodes.DELETE_TOPICS))
        for topic in list(image.topics.values()):
            if topic.name in deleted:
                continue
            partitions = []
            for index, one in enumerate(topic.partitions):
                if index % _PARTITIONS_PER_PAUSE == 0:
                    await self._context.pause()
                partitions.append(self._elect(topic.name, index, one, why, fenced, least_epoch(topic.name, index)))
            if tuple(partitions) != topic.partitions:
                changed.append(topic._replace(partitions=tuple(partitions)))
        await self.put_partitions(changed)

    def _elect(
        self, topic: str, index: int, partition: PartitionMetadata, why: str, fenced: int | None, least_epoch: int
    ) -> PartitionMetadata:
        brokers, epoch = self._context.image.brokers, self._context.epoch
        elected = elect_leader(partition, brokers, epoch, fenced=fenced, least_epoch=least_epoch)
        return partition if elected is partition else change_state(partition, elected, topic, index, why)

    async def put_partitions(self, topics: Iterable[TopicMetadata]) -> None:
        """Write and publish new leaders and ISRs; each state must still have the partition epoch of the image.

        A transaction contains many topics, because a commit is slow; a topic is never split. If a transaction fails,
        the topics of earlier transactions are changed and published.
        """
        try:
            await self._put_partitions(topics)
        finally:
            self._context.image.publish()

    async def _put_partitions(self, topics: Iterable[TopicMetadata]) -> None:
        operations: list[Operation] = []
        written: list[TopicMetadata] = []
        for changed in topics:
            current = self._current(changed)
            if current is None:
                continue
            partitions = list(current.partitions)
            for index, partition in enumerate(changed.partitions):
                if index % _PARTITIONS_PER_PAUSE == 0:
                    await self._context.pause()
                if partition != current.partitions[index]:
                    partitions[index] = partition._replace(partition_epoch=partition.partition_epoch + 1)
                    path = znodes.state_path(changed.name, index)
                    operations.append(SetData(path, znodes.encode_state(partition), partition.partition_epoch))
            written.append(current._replace(partitions=tuple(partitions)))
            if len(operations) >= MAX_OPERATIONS:
                await self._write_topics(operations, written)
                operations, written = [], []
        if operations:
            await self._write_topics(operations, written)

    async def _write_topics(self, operations: list[Operation], written: list[TopicMetadata]) -> None:
        await self._context.write(operations)
        for topic in written:
            self._context.image.put_topic(topic)

    async def take_offline(self, failed: Sequence[tuple[str, int]]) -> None:
        """Record that this broker's replicas of these partitions (topic, index) lost their log directory (KIP-112).

        Another member of the ISR is elected; if there is none, the partition has no leader. If the store cannot write
        the change (it may be on the same disk), the change is published nevertheless.
        """
        changed = await self._mark_offline(failed)
        if not changed:
            return
        try:
            await self.put_partitions(changed)
        except (KafkaError, MetadataStoreError) as error:
            logger.error("cannot write offline partitions to the metadata store topics=%d: %s", len(changed), error)
            # Topics that an earlier transaction wrote are in the image already.
            for topic in await self._mark_offline(failed):
                self._context.image.put_topic(topic)
            self._context.image.publish()

    async def _mark_offline(self, failed: Sequence[tuple[str, int]]) -> list[TopicMetadata]:
        """Return the topics that change if the failed replicas go offline, with the changes made."""
        context = self._context
        me, image = context.broker_id, context.image
        changed: dict[str, list[PartitionMetadata]] = {}
        for number, (name, index) in enumerate(failed):
            if number % _PARTITIONS_PER_PAUSE == 0:
                await context.pause()
            partition = image.partition(name, index)
            if partition is not None and me in partition.replicas and me not in partition.offline:
                offline = partition._replace(offline=(*partition.offline, me))
                elected = elect_leader(offline, image.brokers, context.epoch)
                if name not in changed:
                    changed[name] = list(image.topics[name].partitions)
                changed[name][index] = change_state(partition, elected, name, index, "its log directory failed")
        return [image.topics[name]._replace(partitions=tuple(partitions)) for name, partitions in changed.items()]


def _creation_error(name: str, error: TransactionError) -> KafkaError:
    if isinstance(error.cause, NodeExistsError):
        return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def split_into_batches(topics: Iterable[T], count_partitions: Callable[[T], int]) -> Iterator[list[T]]:
    """Split topics to be created into batches, each of which one transaction creates."""
    batch: list[T] = []
    size = 0
    for topic in topics:
        operations = 3 + 2 * count_partitions(topic)
        if batch and size + operations > MAX_OPERATIONS:
            yield batch
            batch, size = [], 0
        batch.append(topic)
        size += operations
    if batch:
        yield batch
