"""Changes of topics and partitions by the controller: the store first, then the controller's image, then brokers.

Each method is called within an event of the controller, so that nothing else changes the image while it waits.
"""

import logging
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.context import (
    MAX_OPERATIONS,
    MAX_TRANSACTION_BYTES,
    ControllerContext,
    as_kafka_error,
    split_operations,
)
from odradek.replication.controller.states.epoch_floor import LeastEpoch, no_floor
from odradek.replication.controller.states.partition_states import (
    PartitionState,
    begin_leader_epoch,
    determine_state,
    elect_leader,
    new_partition,
)
from odradek.replication.controller.states.replica_states import (
    begin_epoch_if_changed,
    is_online,
    keep_only_returned,
    remove_dead_from_isr,
    remove_restarted,
    without_offline,
)
from odradek.replication.controller.topics.deletion import TopicDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.loader import StateWrites, load_topic
from odradek.replication.metadata.store import (
    BadVersionError,
    Create,
    MetadataStoreError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    StoreDamagedError,
    TransactionError,
    TransactionTooLargeError,
    operation_bytes,
)
from odradek.replication.pauses import in_slices, run_with_pauses

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PARTITIONS_PER_PAUSE: Final = 100
"""For this many partitions, creating operations takes 0.5 ms, and so do elections or state changes."""


Choose = Callable[[], Coroutine[Any, Any, Sequence[TopicMetadata]]]
"""Returns topics with new states of their partitions, computed from the controller's image."""


class StateConflictError(Exception):
    """The store has another state of a partition than the image; the image has been corrected."""


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
            # A late notice may have put the configuration of a deleted topic into the image.
            if new.configs or new.topic.name in image.topic_configs:
                image.put_topic_config(new.topic.name, new.configs)
        image.publish()
        return errors

    async def _create(self, batch: Sequence[NewTopic], *, replaces_config: bool = False) -> dict[str, KafkaError]:
        """Write new topics, all in one transaction if the store accepts it; return the errors of those refused."""
        try:
            operations = [one for new in batch for one in await self._creation(new, replaces_config=replaces_config)]
            # Of several topics all or none are created; `split_into_batches` limits their size.
            await (self._write_all if len(batch) == 1 else self._context.write)(operations)
        except (TransactionError, TransactionTooLargeError) as error:
            if len(batch) == 1:
                name = batch[0].topic.name
                if isinstance(error, TransactionTooLargeError):
                    return {name: as_kafka_error(error)}
                if error.index == 0 and not replaces_config and await self._has_only_config(name):
                    return await self._create(batch, replaces_config=True)
                return {name: _creation_error(name, error)}
            errors: dict[str, KafkaError] = {}
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                await self._context.pause()
                errors |= await self._create(half)
            return errors
        except (KafkaError, MetadataStoreError) as error:
            return {new.topic.name: as_kafka_error(error) for new in batch}
        return {}

    async def _has_only_config(self, name: str) -> bool:
        """Return whether a configuration is left without its topic: a broker crashed between the two nodes."""
        store = self._context.store
        paths = (znodes.topic_config_path(name), znodes.topic_path(name))
        has_config, has_topic = [await store.exists(path) is not None for path in paths]
        return has_config and not has_topic

    async def _creation(self, new: NewTopic, *, replaces_config: bool) -> list[Operation]:
        topic = new.topic
        node = await run_with_pauses(
            znodes.encode_topic_in_steps(topic.topic_id, topic.partitions), self._context.pause
        )
        path, configs = znodes.topic_config_path(topic.name), znodes.encode_config(dict(new.configs))
        return [
            SetData(path, configs) if replaces_config else Create(path, configs),
            Create(znodes.topic_path(topic.name), node),
            Create(znodes.partitions_path(topic.name)),
            *await self._partition_creations(topic, 0),
        ]

    async def _partition_creations(self, topic: TopicMetadata, first: int) -> list[Operation]:
        """Return the creations of partitions. In a cluster one without a live replica has no state yet, as in Kafka."""
        operations: list[Operation] = []
        in_cluster = self._context.in_cluster
        indexes = range(first, len(topic.partitions))
        async for index in in_slices(indexes, _PARTITIONS_PER_PAUSE, self._context.pause):
            partition = topic.partitions[index]
            if in_cluster and determine_state(partition) is PartitionState.NEW:
                continue
            operations.append(Create(znodes.partition_path(topic.name, index)))
            operations.append(Create(znodes.state_path(topic.name, index), znodes.encode_state(partition)))
        return operations

    async def _write_all(self, operations: Sequence[Operation]) -> None:
        """Write a creation, a large one in several transactions, in a cluster.

        If this broker fails between them, the next controller begins the remaining partitions. Raises as
        `ControllerContext.write`; the index of a TransactionError counts all operations. Nothing is written if a
        topic's node is too large.
        """
        context, first = self._context, 0
        for operation in operations:
            if isinstance(operation, Create | SetData) and len(operation.data or b"") > MAX_TRANSACTION_BYTES:
                context.check_size([operation])
        split = split_operations(operations, context.max_operations) if context.in_cluster else (operations,)
        for some in split:
            try:
                await context.write(some)
            except TransactionError as error:
                raise TransactionError(first + error.index, error.cause) from error
            first += len(some)

    async def _begin_partitions(self, topic: TopicMetadata) -> TopicMetadata:
        """Write the first states of the partitions of a topic that another broker created, unless they exist."""
        if self._context.in_cluster:
            return await self._begin_in_cluster(topic)
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
            SetData(znodes.topic_path(grown.name), await self._context.encode_topic(grown))
        ]
        operations += await self._partition_creations(grown, old_count)
        try:
            await self._write_all(operations)
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error
        # The old partitions may have other leaders than when the change was requested.
        partitions = current.partitions[:old_count] + grown.partitions[old_count:]
        self._context.image.put_topic(grown._replace(partitions=partitions))
        self._context.image.publish()

    def _current(self, topic: TopicMetadata) -> TopicMetadata | None:
        """Return the current state of a topic; None if it was deleted since the change was requested."""
        current = self._context.image.topics.get(topic.name)
        return current if current is not None and current.topic_id == topic.topic_id else None

    async def elect_leaders(
        self,
        why: str,
        *,
        topics: Sequence[str] | None = None,
        fenced: int | None = None,
        least_epoch: LeastEpoch = no_floor,
    ) -> None:
        """Elect leaders for partitions without a live one. In a cluster, remove dead replicas from the other ISRs.

        Brokers that have restarted are removed from ISRs first (`ControllerContext.restarted`). Partitions that the
        `fenced` broker leads, and those below their `least_epoch`, begin a new leader epoch. `topics` are the names of
        the topics concerned, None if all are. Raises KafkaError, MetadataStoreError.
        """
        try:
            if self._context.in_cluster or topics is not None:
                await self._begin_new_partitions(topics)
            await self._change_states(partial(self._choose_leaders, why, topics, fenced, least_epoch))
            if topics is None:
                self._context.restarted.clear()
                self._context.lost.clear()
        except Exception:
            self._withdraw_restarted()
            raise
        finally:
            self._context.image.publish()

    def _withdraw_restarted(self) -> None:
        """Remove brokers that have restarted from the image, until `follow_brokers` adds them for another election.

        They are still in ISRs. They must neither be elected nor get the roles of their earlier processes: their logs
        may lack records that the other members have.
        """
        for broker_id in self._context.restarted:
            self._context.image.remove_broker(broker_id)

    async def remove_failed(self, why: str, writes: StateWrites, topics: Sequence[str] | None = None) -> None:
        """Remove failed replicas from ISRs, and failed leaders without electing others; do not publish it.

        A new controller in Kafka's ZooKeeper mode writes this before it elects leaders, for brokers that are not
        registered. Here a broker has failed also if it may lack records after a restart that no controller has noticed:
        it is in `ControllerContext.restarted`, or its process has registered after the last write of the partition's
        state, of which `writes` has the transaction. Of `topics`, which could not be read until now, it has failed also
        if it is in `failed_in_term`, unless all others may lack records; and all their partitions begin a new leader
        epoch. Raises KafkaError, MetadataStoreError.
        """
        await self._change_states(partial(self._choose_without_failed, why, writes, topics))

    async def change_states(self, choose: Choose) -> None:
        """Write and publish the states that `choose` returns. It is called again if the store had other states.

        Raises KafkaError, MetadataStoreError.
        """
        try:
            await self._change_states(choose)
        finally:
            self._context.image.publish()

    async def _change_states(self, choose: Choose) -> None:
        while True:
            try:
                await self._put_partitions(await choose())
            except StateConflictError:
                continue
            return

    async def _choose_without_failed(
        self, why: str, writes: StateWrites, topics: Sequence[str] | None
    ) -> list[TopicMetadata]:
        context = self._context
        brokers, first_epochs = context.image.brokers, context.first_epochs

        def remove_failed(name: str, index: int, partition: PartitionMetadata) -> PartitionMetadata:
            written = writes.get((name, index), 0)
            later = {one for one, broker in brokers.items() if first_epochs.get(one, broker.epoch) > written}
            lossy = later | context.restarted
            remaining = remove_restarted(partition, context.lost)
            remaining = remove_restarted(keep_only_returned(remaining, lossy, brokers), lossy)
            if topics is not None:
                # Later: of these brokers those that are dead have all records of the ISR.
                remaining = remove_restarted(remaining, context.failed_in_term)
            remaining = remove_dead_from_isr(remaining, brokers, context.epoch)
            new = begin_epoch_if_changed(partition, remaining, context.epoch)
            if topics is not None and new is partition and partition.leader != NO_LEADER:
                # A change of the ISR that was refused, because the topic was unknown, is pending in the leader's epoch.
                return begin_leader_epoch(partition, partition.leader, context.epoch)
            return new

        return await self.map_partitions(remove_failed, why, topics)

    async def _choose_leaders(
        self, why: str, topics: Sequence[str] | None, fenced: int | None, least_epoch: LeastEpoch
    ) -> list[TopicMetadata]:
        brokers, epoch, in_cluster = self._context.image.brokers, self._context.epoch, self._context.in_cluster
        stays, restarted, lost = self._context.staying_brokers, self._context.restarted, self._context.lost

        def elect(name: str, index: int, partition: PartitionMetadata) -> PartitionMetadata:
            least = least_epoch(name, index)
            unclean = self._context.allows_unclean_election(name)
            if not in_cluster:
                return elect_leader(
                    partition, brokers, epoch, fenced=fenced, least_epoch=least, allows_unclean=unclean
                )
            if determine_state(partition) is PartitionState.NEW:
                return partition
            remaining = remove_restarted(remove_restarted(partition, lost), restarted)
            leads = remaining.leader != NO_LEADER and is_online(remaining.leader, remaining, brokers)
            eligible = brokers if leads else stays
            elected = elect_leader(
                remaining, eligible, epoch, fenced=fenced, least_epoch=least, allows_unclean=unclean
            )
            # Without another leader, brokers that shut down remain in the ISR. Dead brokers do not: they may return
            # without the last records.
            has_changed = elected is not remaining and elected.leader != NO_LEADER
            remaining = elected if has_changed else remove_dead_from_isr(remaining, brokers, epoch)
            return begin_epoch_if_changed(partition, remaining, epoch)

        return await self.map_partitions(elect, why, topics)

    def _find_topics(self, names: Sequence[str] | None) -> list[TopicMetadata]:
        """Return topics of the image, all of them for None."""
        topics = self._context.image.topics
        return list(topics.values()) if names is None else [topics[name] for name in names if name in topics]

    async def map_partitions(
        self,
        change: Callable[[str, int, PartitionMetadata], PartitionMetadata],
        why: str,
        topics: Sequence[str] | None = None,
    ) -> list[TopicMetadata]:
        """Return the topics in which `change` returns another state of a partition, with these states."""
        changed = []
        # A topic whose removal was interrupted may lack nodes. One that is being reassigned needs leaders until that is
        # complete; its deletion begins afterwards. A mark that is about to be refused deletes nothing.
        marked = await self._context.store.get_children(znodes.DELETE_TOPICS)
        deleted = set(marked) if self._deletion.is_enabled() else set()
        for topic in self._find_topics(topics):
            if topic.name in deleted and not (self._context.in_cluster and topic.is_reassigned):
                continue
            partitions = []
            async for index, one in in_slices(enumerate(topic.partitions), _PARTITIONS_PER_PAUSE, self._context.pause):
                new = change(topic.name, index, one)
                partitions.append(one if new is one else self._context.change_state(one, new, topic.name, index, why))
            if tuple(partitions) != topic.partitions:
                changed.append(topic._replace(partitions=tuple(partitions)))
        return changed

    async def put_partitions(self, topics: Iterable[TopicMetadata]) -> None:
        """Write and publish new leaders and ISRs; each state must still have the partition epoch of the image.

        A transaction contains many topics, because a commit is slow; a topic is split in a cluster only. If a
        transaction fails, the states of earlier transactions are changed and published.
        """
        try:
            await self._put_partitions(topics)
        except StateConflictError as error:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "the state of a partition has changed") from error
        finally:
            self._context.image.publish()

    async def _put_partitions(self, topics: Iterable[TopicMetadata]) -> None:
        operations: list[Operation] = []
        written: list[TopicMetadata] = []
        size_bytes = 0
        for changed in topics:
            current = self._current(changed)
            if current is None:
                continue
            partitions = list(current.partitions)
            indexed = enumerate(changed.partitions)
            async for index, partition in in_slices(indexed, _PARTITIONS_PER_PAUSE, self._context.pause):
                if partition != current.partitions[index]:
                    partitions[index] = partition._replace(partition_epoch=partition.partition_epoch + 1)
                    path, data = znodes.state_path(changed.name, index), znodes.encode_state(partition)
                    operation = SetData(path, data, partition.partition_epoch)
                    operations.append(operation)
                    size_bytes += operation_bytes(operation)
                    is_full = size_bytes >= MAX_TRANSACTION_BYTES or len(operations) >= self._context.max_operations
                    if is_full and self._context.in_cluster:
                        written.append(current._replace(partitions=tuple(partitions)))
                        await self._write_topics(operations, written)
                        operations, written, size_bytes = [], [], 0
            written.append(current._replace(partitions=tuple(partitions)))
            if len(operations) >= self._context.max_operations:
                await self._write_topics(operations, written)
                operations, written, size_bytes = [], [], 0
        if operations:
            await self._write_topics(operations, written)

    async def _write_topics(self, operations: list[Operation], written: list[TopicMetadata]) -> None:
        try:
            await self._context.write(operations)
        except TransactionError as error:
            if not self._context.in_cluster or not isinstance(error.cause, BadVersionError | NoNodeError):
                raise
            # An earlier attempt of the store may have succeeded, or brokers of an old version wrote an ISR.
            logger.warning("states of partitions differ from those in the metadata store and are read again: %s", error)
            await self.read_again([topic.name for topic in written])
            raise StateConflictError from error
        for topic in written:
            self._context.image.put_topic(topic)

    async def read_again(self, names: Iterable[str]) -> None:
        """Bring topics of the image up to date.

        Raises KafkaError NOT_CONTROLLER if a later controller wrote a state; this one has resigned then.
        """
        context = self._context
        for name in names:
            current = context.image.topics.get(name)
            if current is None:
                continue
            try:
                stored = await load_topic(context.store, name, context.pause)
            except NoNodeError as error:
                logger.error("a topic of the metadata store cannot be read again topic=%s: %s", name, error)
                context.image.remove_topic(name)
                continue
            except StoreDamagedError as error:
                logger.error("a topic of the metadata store cannot be read again topic=%s: %s", name, error)
                context.image.forget_topic(name)
                continue
            if stored.topic_id == ZERO_UUID:
                # A tool has removed it, and it is about to be restored.
                stored = stored._replace(topic_id=current.topic_id)
            stored = context.without_stopping(stored)
            if any(partition.controller_epoch > context.epoch for partition in stored.partitions):
                context.resign("a later controller wrote the state of a partition")
                context.on_resigned()
                context.check_active()
            if stored.topic_id != current.topic_id:
                context.image.remove_topic(name)
                context.image.put_topic(stored)
            else:
                context.image.put_topic(_with_offline_of(current, stored))

    async def _begin_new_partitions(self, names: Sequence[str] | None) -> None:
        """Begin the partitions that have a live replica and no state in the store."""
        for topic in self._find_topics(names):
            await self._context.pause()
            if any(determine_state(partition) is PartitionState.NEW for partition in topic.partitions):
                try:
                    self._context.image.put_topic(await self._begin_partitions(topic))
                except (TransactionError, NoNodeError) as error:
                    # Another tool removes the topic's nodes. It must not prevent the elections of other topics.
                    logger.error("partitions cannot begin topic=%s: %s", topic.name, error)

    async def _begin_in_cluster(self, topic: TopicMetadata) -> TopicMetadata:
        """Write the first states of the partitions that have none, except of those without a live replica.

        A partition whose state exists, but cannot be decoded, remains as it is.
        """
        undecodable: set[int] = set()
        while True:
            started, states = await self._choose_first_states(topic, undecodable)
            if not states:
                return topic
            operations = await self._first_state_creations(topic.name, states)
            try:
                await self._write_all(operations)
            except TransactionError as error:
                if not isinstance(error.cause, NodeExistsError):
                    raise
                # An earlier attempt of the store succeeded, or another controller began the partitions.
                logger.warning("a partition was begun already topic=%s: %s", topic.name, error)
                stored = await load_topic(self._context.store, topic.name, self._context.pause)
                topic = _with_offline_of(topic, self._context.without_stopping(stored))
                paths = {znodes.state_path(topic.name, index): index for index in states}
                index = paths.get(operations[error.index].path)
                if index is not None and determine_state(topic.partitions[index]) is PartitionState.NEW:
                    undecodable.add(index)
            else:
                return started

    async def _choose_first_states(
        self, topic: TopicMetadata, excluded: Container[int]
    ) -> tuple[TopicMetadata, dict[int, PartitionMetadata]]:
        """Return the topic with the first states of new partitions, and these states. Brokers that stop do not lead."""
        context = self._context
        states: dict[int, PartitionMetadata] = {}
        async for index, partition in in_slices(enumerate(topic.partitions), _PARTITIONS_PER_PAUSE, context.pause):
            if index in excluded or determine_state(partition) is not PartitionState.NEW:
                continue
            started = new_partition(partition.replicas, context.staying_brokers, context.epoch)
            if started.isr:
                states[index] = started._replace(adding=partition.adding, removing=partition.removing)
            else:
                logger.warning("a new partition has no live replica topic=%s partition=%d", topic.name, index)
        partitions = tuple([states.get(index, partition) for index, partition in enumerate(topic.partitions)])
        return topic._replace(partitions=partitions), states

    async def _first_state_creations(self, name: str, states: Mapping[int, PartitionMetadata]) -> list[Operation]:
        """Return the creations of first states, and of the nodes above them that do not exist."""
        store, path = self._context.store, znodes.partitions_path(name)
        operations: list[Operation] = []
        existing: set[str] = set()
        if await store.exists(path) is None:
            operations.append(Create(path))
        else:
            existing.update(await store.get_children(path))
        async for index, state in in_slices(states.items(), _PARTITIONS_PER_PAUSE, self._context.pause):
            if str(index) not in existing:
                operations.append(Create(znodes.partition_path(name, index)))
            operations.append(Create(znodes.state_path(name, index), znodes.encode_state(state)))
        return operations

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

    async def take_offline_on(self, broker_id: int, failed: Iterable[tuple[str, int]]) -> None:
        """Record that a broker's replicas of these partitions (topic, index) lost their log directory, in a cluster.

        Other leaders are elected, and the replicas are removed from ISRs.
        """
        image = self._context.image
        changed: dict[str, list[PartitionMetadata]] = {}
        async for name, index in in_slices(failed, _PARTITIONS_PER_PAUSE, self._context.pause):
            partition = image.partition(name, index)
            if partition is None or broker_id not in partition.replicas or broker_id in partition.offline:
                continue
            if name not in changed:
                changed[name] = list(image.topics[name].partitions)
            changed[name][index] = partition._replace(offline=(*partition.offline, broker_id))
        if changed:
            logger.warning("replicas lost their log directory broker=%d topics=%d", broker_id, len(changed))
            for name, partitions in changed.items():
                image.put_topic(image.topics[name]._replace(partitions=tuple(partitions)))
            await self.elect_leaders("log directories failed")

    async def take_online_on(self, broker_id: int, working: Iterable[tuple[str, int]]) -> None:
        """Count a broker's replicas of these partitions (topic, index) as online, in a cluster.

        As in Kafka, a replica is online again when its broker has accepted a role for it. Partitions without a leader
        get one.
        """
        image = self._context.image
        changed: dict[str, list[PartitionMetadata]] = {}
        async for name, index in in_slices(working, _PARTITIONS_PER_PAUSE, self._context.pause):
            partition = image.partition(name, index)
            if partition is not None and broker_id in partition.offline:
                if name not in changed:
                    changed[name] = list(image.topics[name].partitions)
                changed[name][index] = without_offline(partition, (broker_id,))
        if changed:
            logger.info("replicas are online again broker=%d topics=%d", broker_id, len(changed))
            for name, partitions in changed.items():
                image.put_topic(image.topics[name]._replace(partitions=tuple(partitions)))
            await self.elect_leaders("replicas are online again")

    async def forget_offline(self, broker_ids: Collection[int]) -> None:
        """Drop the offline replicas of brokers that failed or started: their log directories may work again."""
        image = self._context.image
        if self._context.offline_brokers.isdisjoint(broker_ids):
            return
        self._context.offline_brokers.difference_update(broker_ids)
        for topic in list(image.topics.values()):
            partitions = []
            async for one in in_slices(topic.partitions, _PARTITIONS_PER_PAUSE, self._context.pause):
                partitions.append(without_offline(one, broker_ids))
            if tuple(partitions) != topic.partitions:
                image.put_topic(topic._replace(partitions=tuple(partitions)))

    async def _mark_offline(self, failed: Sequence[tuple[str, int]]) -> list[TopicMetadata]:
        """Return the topics that change if the failed replicas go offline, with the changes made."""
        context = self._context
        me, image = context.broker_id, context.image
        context.offline_brokers.add(me)
        changed: dict[str, list[PartitionMetadata]] = {}
        async for name, index in in_slices(failed, _PARTITIONS_PER_PAUSE, context.pause):
            partition = image.partition(name, index)
            if partition is not None and me in partition.replicas and me not in partition.offline:
                offline = partition._replace(offline=(*partition.offline, me))
                allows_unclean = context.allows_unclean_election(name)
                elected = elect_leader(offline, image.brokers, context.epoch, allows_unclean=allows_unclean)
                if name not in changed:
                    changed[name] = list(image.topics[name].partitions)
                changed[name][index] = context.change_state(partition, elected, name, index, "its log directory failed")
        return [image.topics[name]._replace(partitions=tuple(partitions)) for name, partitions in changed.items()]


def _with_offline_of(current: TopicMetadata, stored: TopicMetadata) -> TopicMetadata:
    """Return the stored topic with the offline replicas of the current one."""
    known = len(current.partitions)
    partitions = [
        partition._replace(offline=current.partitions[index].offline) if index < known else partition
        for index, partition in enumerate(stored.partitions)
    ]
    return stored._replace(partitions=tuple(partitions))


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
