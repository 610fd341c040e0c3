"""Reassignment of partitions to other replicas (KIP-455): a state machine for each partition.

The topic's node contains the replicas RS, and which of them are being added or removed. With target T and origin O:

1. ADDING: RS = T + (O - T), and a new leader epoch, with which the new replicas begin to fetch.
2. REMOVING, once the ISR contains T: brokers get RS = T, a leader from T and an ISR without the removed replicas. The
   node still has the old RS until each live removed replica is stopped and deleted.
3. IDLE: RS = T is written.

Each step follows from the nodes alone, so that another controller continues where this one stopped (`resume`). A
cancellation is a reassignment with the target O.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.context import ControllerContext, as_kafka_error
from odradek.replication.controller.events import EventKind, Work
from odradek.replication.controller.states.assignment import invalid_assignment
from odradek.replication.controller.states.partition_states import (
    begin_leader_epoch,
    elect_leader,
    elect_target_leader,
    list_online_replicas,
)
from odradek.replication.controller.topics.changes import StateConflictError, TopicChanges
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, MetadataDelta, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import (
    BadVersionError,
    MetadataStoreError,
    NoNodeError,
    Operation,
    SetData,
    TransactionError,
    TransactionTooLargeError,
    operation_bytes,
)
from odradek.replication.pauses import in_slices

logger = logging.getLogger(__name__)

Post = Callable[[EventKind, str, Work[None]], None]
StopReplicas = Callable[[int, Sequence[tuple[str, int, int]], Callable[[], None]], None]
"""Stop and delete replicas (topic, index, leader epoch) of a broker, after the publications before it.

The last argument is called when the broker has responded, and not called if it fails or refuses the request.
"""

_PARTITIONS_PER_PAUSE: Final = 100

_MAX_STEPS: Final = 1000
"""Most steps in one transaction, which also has the topic's node. With a large node there are fewer."""

_ROOM_BYTES: Final = 100_000
"""Room for states beside the topic's node, without which many steps would take very many transactions."""


def stop_no_replicas(broker_id: int, partitions: Sequence[tuple[str, int, int]], done: Callable[[], None]) -> None:
    """Do nothing: without a cluster no other broker has replicas."""
    done()


FollowBrokers = Callable[[], Coroutine[Any, Any, None]]
"""Follows the registrations of brokers. Raises KafkaError, MetadataStoreError."""


async def follow_no_brokers() -> None:
    """Do nothing: without a cluster there are no other brokers."""


class ReassignmentState(Enum):
    """State of a partition's reassignment, see the module."""

    IDLE = "idle"
    ADDING = "adding"
    REMOVING = "removing"


class ReassignmentStep(NamedTuple):
    """The next state of a partition, and the replicas that it no longer has."""

    partition: PartitionMetadata
    removed: tuple[int, ...] = ()


def is_reassigning(partition: PartitionMetadata) -> bool:
    """Return whether replicas are being added or removed."""
    return bool(partition.adding or partition.removing)


def find_origin(partition: PartitionMetadata) -> tuple[int, ...]:
    """Return the replicas before the reassignment."""
    return _subtract(partition.replicas, partition.adding)


def find_target(partition: PartitionMetadata) -> tuple[int, ...]:
    """Return the replicas after the reassignment."""
    return _subtract(partition.replicas, partition.removing)


def _subtract(replicas: Sequence[int], others: Iterable[int]) -> tuple[int, ...]:
    excluded = set(others)
    return tuple(replica for replica in replicas if replica not in excluded)


def _intersect(replicas: Iterable[int], others: Sequence[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if replica in others)


def _write_state(name: str, index: int, partition: PartitionMetadata) -> Operation:
    """Return the change of a partition's state, which must still have the partition epoch."""
    return SetData(znodes.state_path(name, index), znodes.encode_state(partition), partition.partition_epoch)


def assign(partition: PartitionMetadata, target: Sequence[int]) -> PartitionMetadata:
    """Return the partition with the replicas of its origin and of the target."""
    origin = find_origin(partition)
    replicas = (*target, *_subtract(origin, target))
    return partition._replace(
        replicas=replicas,
        adding=_subtract(replicas, origin),
        removing=_subtract(replicas, target),
        # A replica that is added again later is a new one, perhaps on another log directory.
        offline=_intersect(partition.offline, replicas),
    )


def reassign(
    old: PartitionMetadata, target: Sequence[int], live: Container[int], controller_epoch: int
) -> ReassignmentStep:
    """Begin a reassignment, or replace the one in progress; complete it if the target is in sync.

    Raises KafkaError INVALID_REPLICA_ASSIGNMENT if only replicas that would be removed are in sync.
    """
    new = assign(old, target)
    if new == old:
        return ReassignmentStep(old)
    dropped = _subtract(old.replicas, new.replicas)
    isr = _subtract(old.isr, dropped)
    if not isr:
        raise invalid_assignment("it would require an unclean leader election.")
    new = new._replace(isr=isr)
    if new.leader in new.replicas:
        new = begin_leader_epoch(new, new.leader, controller_epoch)
    else:
        new = elect_leader(new._replace(leader=NO_LEADER), live, controller_epoch)
        if new.leader == NO_LEADER:
            new = begin_leader_epoch(new, NO_LEADER, controller_epoch)
    completed = complete(new, live, controller_epoch)
    if completed is None:
        return ReassignmentStep(new, dropped)
    # One leader epoch is enough for both steps.
    partition = completed.partition._replace(leader_epoch=old.leader_epoch + 1)
    return ReassignmentStep(partition, (*dropped, *completed.removed))


def complete(partition: PartitionMetadata, live: Container[int], controller_epoch: int) -> ReassignmentStep | None:
    """Return the partition with the target's replicas only, None while they are not all in sync or none is live."""
    target = find_target(partition)
    if is_reassigning(partition) and not set(target) <= set(partition.isr):
        return None
    if partition.leader in target and partition.leader in list_online_replicas(partition, live):
        elected: PartitionMetadata | None = begin_leader_epoch(partition, partition.leader, controller_epoch)
    elif is_reassigning(partition):
        elected = elect_target_leader(partition, target, live, controller_epoch)
    else:
        elected = partition
    if elected is None:
        return None
    isr = tuple(replica for replica in elected.isr if replica in target)
    offline = _intersect(partition.offline, target)
    new = elected._replace(replicas=target, isr=isr, adding=(), removing=(), offline=offline)
    return ReassignmentStep(new, partition.removing)


class Reassignments:
    """Reassignments in progress on the controller. Public methods are called within an event of the controller.

    stop_replicas: stops and deletes removed replicas
    follow_brokers: removes replicas from ISRs that have restarted without their last records, before others are removed
    on_failure: called after reassignments could not be completed; it schedules `repeat`
    on_finished: called after steps of reassignments, within an event
    post: submits an event
    """

    def __init__(self, context: ControllerContext, changes: TopicChanges, post: Post) -> None:
        self.stop_replicas: StopReplicas = stop_no_replicas
        self.follow_brokers: FollowBrokers = follow_no_brokers
        self.on_failure: Callable[[], None] = lambda: None
        self.on_finished: list[Callable[[], None]] = []
        self._context = context
        self._changes = changes
        self._post = post
        # The partitions in state ADDING, by topic.
        self._pending: dict[str, set[int]] = {}
        # Topics with pending reassignments, of which a partition or the live brokers have changed.
        self._due: set[str] = set()
        # The partitions of the other topics, as they were when `_continue` checked them last.
        self._checked: dict[str, tuple[PartitionMetadata, ...]] = {}
        # The epochs of the live brokers at the last publication.
        self._broker_epochs: dict[int, int] = {}
        context.image.listeners.append(self._on_metadata)

    # Beginning

    async def begin(
        self, name: str, targets: Mapping[int, Sequence[int] | None]
    ) -> dict[int, KafkaError | None]:
        """Reassign partitions that exist; a target None cancels. Return the error of each, None if there was none.

        Raises KafkaError if the store refuses the change; POLICY_VIOLATION, before anything is changed, if the topic's
        node would be too large.
        """
        try:
            await self.follow_brokers()
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error
        while True:
            try:
                return await self._begin(name, targets)
            except StateConflictError:
                # The write may have been made although its outcome was unknown: then the states that were read again
                # are the wanted ones, and nothing else publishes them or continues the reassignment.
                self.find_pending(name)
                self._context.image.publish()

    def find_pending(self, name: str) -> None:
        """Find the pending partitions of a topic whose states were read from the store.

        It takes about 1.5 ms for 10,000 partitions.
        """
        topic = self._context.image.topics.get(name)
        partitions = () if topic is None else topic.partitions
        self._pending.pop(name, None)
        if indexes := {index for index, partition in enumerate(partitions) if is_reassigning(partition)}:
            self._pending[name] = indexes

    async def _begin(
        self, name: str, targets: Mapping[int, Sequence[int] | None]
    ) -> dict[int, KafkaError | None]:
        context = self._context
        topic = context.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        steps: dict[int, ReassignmentStep] = {}
        results: dict[int, KafkaError | None] = {}
        async for index, target in in_slices(targets.items(), _PARTITIONS_PER_PAUSE, context.pause):
            old = topic.partitions[index]
            wanted = find_origin(old) if target is None else target
            try:
                steps[index] = reassign(old, wanted, context.staying_brokers, context.epoch)
                results[index] = None
            except KafkaError as error:
                text = f"Unable to revert partition assignment for {name}:{index} because {error.message}"
                results[index] = KafkaError(error.code, text)
        await self._check_size(topic, steps)
        await self._make(topic, steps, "requested")
        return results

    async def _check_size(self, topic: TopicMetadata, steps: Mapping[int, ReassignmentStep]) -> None:
        """Check that the store accepts the topic's node after these steps. Their completion makes the node smaller.

        Raises KafkaError POLICY_VIOLATION.
        """
        context = self._context
        if not context.in_cluster:
            return
        partitions = list(topic.partitions)
        stopping = dict(context.stopping)
        states_bytes = 0
        async for index, step in in_slices(steps.items(), _PARTITIONS_PER_PAUSE, context.pause):
            partitions[index] = step.partition
            states_bytes += operation_bytes(_write_state(topic.name, index, step.partition))
            self._note_stopping(stopping, topic.topic_id, index, step.partition, step.removed)
        node = await context.encode_topic(topic._replace(partitions=tuple(partitions)), stopping)
        try:
            context.check_size([SetData(znodes.topic_path(topic.name), node)], min(states_bytes, _ROOM_BYTES))
        except TransactionTooLargeError as error:
            raise as_kafka_error(error) from error

    def is_in_progress(self, name: str, index: int, target: Sequence[int]) -> bool:
        """Return whether a reassignment to `target` is in progress."""
        topic, partition = self._context.image.topics.get(name), self._context.image.partition(name, index)
        if topic is None or partition is None or find_target(partition) != tuple(target):
            return False
        return is_reassigning(partition) or (topic.topic_id, index) in self._context.stopping

    # Continuation

    def _on_metadata(self, delta: MetadataDelta) -> None:
        """Continue reassignments after a change of their ISR, or of the live brokers."""
        started = self._find_started(delta.brokers)
        if delta.brokers and self._context.stopping:
            self._post(EventKind.REPLICAS, "stop removed replicas again", partial(self._follow_brokers, started))
        pending = self._pending.keys()
        if delta.brokers:
            self._checked.clear()
        is_posted = bool(self._due)
        self._due |= pending if delta.brokers else pending & delta.topics.keys()
        if self._due and not is_posted:
            self._post(EventKind.REPLICAS, "continue reassignments", self._continue)

    def _find_started(self, changed: Iterable[int]) -> set[int]:
        """Return those of the changed brokers that have registered since the last publication."""
        started = set()
        for broker_id in changed:
            broker = self._context.image.brokers.get(broker_id)
            if broker is None:
                self._broker_epochs.pop(broker_id, None)
            elif self._broker_epochs.get(broker_id) != broker.epoch:
                self._broker_epochs[broker_id] = broker.epoch
                started.add(broker_id)
        return started

    async def resume(self) -> None:
        """Continue all reassignments of the image, after it was loaded by the controller."""
        context = self._context
        if not context.is_active:
            return
        context.stopping.clear()
        self._pending.clear()
        self._checked.clear()
        for name in list(context.image.topics):
            await context.pause()
            self.find_pending(name)
        if self._pending:
            logger.info("resuming reassignments topics=%d", len(self._pending))
        self._due = set(self._pending)
        await self._continue()

    async def repeat(self) -> None:
        """Continue all reassignments, and stop all removed replicas again, after an event has failed."""
        self._checked.clear()
        self._due = set(self._pending)
        await self._continue()
        await self._follow_brokers(self._context.image.brokers)

    async def _continue(self) -> None:
        """Complete the pending reassignments of the due topics whose target is in sync."""
        context = self._context
        due, self._due = self._due, set()
        if not context.is_active or not due:
            return
        if context.restarted:
            # An election has failed, and its repetition includes `repeat`.
            return
        await self.follow_brokers()
        for name in due:
            topic = context.image.topics.get(name)
            if topic is None:
                self._pending.pop(name, None)
                continue
            try:
                await self._make(topic, await self._choose_completed(topic), "the target is in sync")
            except StateConflictError:
                # The publication of the states that were read again continues the reassignment.
                context.image.publish()
                continue
            except KafkaError as error:
                logger.error("reassignments were not completed topic=%s error=%s", name, error)
                self.on_failure()
                continue
            if name in self._pending:
                self._checked[name] = context.image.topics[name].partitions
            else:
                self._checked.pop(name, None)

    async def _choose_completed(self, topic: TopicMetadata) -> dict[int, ReassignmentStep]:
        """Return the steps of a topic's partitions that have changed since the last check, and can be completed."""
        context, checked = self._context, self._checked.get(topic.name, ())
        steps: dict[int, ReassignmentStep] = {}
        async for index in in_slices(tuple(self._pending.get(topic.name, ())), _PARTITIONS_PER_PAUSE, context.pause):
            if index >= len(topic.partitions) or not is_reassigning(topic.partitions[index]):
                self._set_pending(topic.name, index, False)
            elif index >= len(checked) or checked[index] is not topic.partitions[index]:
                step = complete(topic.partitions[index], context.staying_brokers, context.epoch)
                if step is not None:
                    steps[index] = step
        return steps

    def _set_pending(self, topic: str, index: int, is_pending: bool) -> None:
        indexes = self._pending.setdefault(topic, set())
        if is_pending:
            indexes.add(index)
        else:
            indexes.discard(index)
        if not indexes:
            del self._pending[topic]

    async def _make(self, topic: TopicMetadata, steps: Mapping[int, ReassignmentStep], why: str) -> None:
        """Write and publish steps of a topic's partitions, many in each transaction."""
        changed = [index for index, step in steps.items() if step.partition != topic.partitions[index]]
        first, count = 0, _MAX_STEPS
        while first < len(changed):
            some = {index: steps[index] for index in changed[first : first + count]}
            try:
                topic = await self._make_some(topic, some, why)
            except TransactionTooLargeError as error:
                if len(some) == 1:
                    raise as_kafka_error(error) from error
                count = len(some) // 2
            else:
                first += len(some)

    async def _make_some(
        self, topic: TopicMetadata, changed: Mapping[int, ReassignmentStep], why: str
    ) -> TopicMetadata:
        """Make steps in one transaction, then stop the removed replicas; return the topic with them.

        Raises TransactionTooLargeError, StateConflictError, KafkaError.
        """
        context = self._context
        partitions = list(topic.partitions)
        operations: list[Operation] = []
        stopping = dict(context.stopping)
        async for index, step in in_slices(changed.items(), _PARTITIONS_PER_PAUSE, context.pause):
            old, new = topic.partitions[index], step.partition
            operations.append(_write_state(topic.name, index, new))
            new = new._replace(partition_epoch=old.partition_epoch + 1)
            partitions[index] = context.change_state(old, new, topic.name, index, why)
            self._note_stopping(stopping, topic.topic_id, index, new, step.removed)
        new_topic = topic._replace(partitions=tuple(partitions))
        before = context.stopping
        context.stopping = stopping
        try:
            node = SetData(znodes.topic_path(topic.name), await context.encode_topic(new_topic))
            await context.write([node, *operations])
        except (KafkaError, MetadataStoreError) as error:
            context.stopping = before
            if isinstance(error, TransactionError) and isinstance(error.cause, BadVersionError | NoNodeError):
                await self._changes.read_again([topic.name])
                raise StateConflictError from error
            if isinstance(error, TransactionTooLargeError):
                raise
            raise as_kafka_error(error) from error
        context.image.put_topic(new_topic)
        await self._follow_states(topic, new_topic, changed, why)
        context.image.publish()
        self._stop(new_topic, [index for index in changed if (topic.topic_id, index) in stopping])
        for listener in self.on_finished:
            listener()
        return new_topic

    def _note_stopping(
        self,
        stopping: dict[tuple[bytes, int], tuple[int, ...]],
        topic_id: bytes,
        index: int,
        partition: PartitionMetadata,
        removed: Sequence[int],
    ) -> None:
        """Update the replicas that are being stopped. Failed brokers are not waited for, as in Kafka."""
        brokers = self._context.image.brokers
        live = [replica for replica in removed if replica in brokers]
        replicas = (*stopping.pop((topic_id, index), ()), *live)
        if remaining := _subtract(tuple(dict.fromkeys(replicas)), partition.replicas):
            stopping[topic_id, index] = remaining

    async def _follow_states(self, old: TopicMetadata, new: TopicMetadata, changed: Iterable[int], why: str) -> None:
        """Update the pending partitions of a topic from the states of the changed ones, and log these."""
        counts: Counter[ReassignmentState] = Counter()
        async for index in in_slices(changed, _PARTITIONS_PER_PAUSE, self._context.pause):
            before, after = self._state(old, index), self._state(new, index)
            counts[after] += 1
            self._set_pending(new.name, index, after is ReassignmentState.ADDING)
            partition = new.partitions[index]
            logger.debug(
                "reassignment topic=%s partition=%d old=%s new=%s replicas=%s adding=%s removing=%s reason=%s",
                new.name,
                index,
                before.value,
                after.value,
                partition.replicas,
                partition.adding,
                partition.removing or self._context.stopping.get((new.topic_id, index), ()),
                why,
            )
        summary = " ".join(f"{state.value}={count}" for state, count in counts.items())
        logger.info("reassignments topic=%s %s reason=%s", new.name, summary, why)

    def _state(self, topic: TopicMetadata, index: int) -> ReassignmentState:
        if is_reassigning(topic.partitions[index]):
            return ReassignmentState.ADDING
        is_stopping = (topic.topic_id, index) in self._context.stopping
        return ReassignmentState.REMOVING if is_stopping else ReassignmentState.IDLE

    # Removed replicas

    def _stop(self, topic: TopicMetadata, indexes: Iterable[int], only_on: Container[int] | None = None) -> None:
        by_broker: dict[int, list[int]] = {}
        for index in indexes:
            for replica in self._context.stopping[topic.topic_id, index]:
                if only_on is None or replica in only_on:
                    by_broker.setdefault(replica, []).append(index)
        for broker_id, stopped in by_broker.items():
            replicas = [(topic.name, index, topic.partitions[index].leader_epoch) for index in stopped]
            self.stop_replicas(broker_id, replicas, partial(self._on_stopped, topic.topic_id, broker_id, stopped))

    def _on_stopped(self, topic_id: bytes, broker_id: int, indexes: Sequence[int]) -> None:
        keys = [(topic_id, index) for index in indexes]
        self._post(EventKind.REPLICAS, "removed replicas are deleted", lambda: self._forget(keys, {broker_id}))

    async def _follow_brokers(self, started: Container[int]) -> None:
        """Stop replicas again on brokers that have started, and wait no longer for brokers that failed.

        A broker that restarted has no request of the time before.
        """
        stopping, brokers = self._context.stopping, self._context.image.brokers
        by_topic: dict[bytes, list[int]] = {}
        for (topic_id, index), replicas in stopping.items():
            if any(replica in started for replica in replicas):
                by_topic.setdefault(topic_id, []).append(index)
        for topic_id, indexes in by_topic.items():
            for first in range(0, len(indexes), _PARTITIONS_PER_PAUSE):
                await self._context.pause()
                topic = self._context.image.topics_by_id.get(topic_id)
                if topic is not None and self._context.is_active:
                    self._stop(topic, indexes[first : first + _PARTITIONS_PER_PAUSE], only_on=started)
        failed = {replica for replicas in stopping.values() for replica in replicas if replica not in brokers}
        if failed:
            await self._forget([*stopping], failed)

    async def _forget(self, keys: Iterable[tuple[bytes, int]], broker_ids: set[int]) -> None:
        """Write the replicas of partitions whose removed replicas on these brokers are deleted."""
        stopping = self._context.stopping
        by_topic: dict[bytes, list[tuple[bytes, int]]] = {}
        for key in keys:
            if not broker_ids.isdisjoint(stopping.get(key, ())):
                by_topic.setdefault(key[0], []).append(key)
        if not by_topic or not self._context.is_active:
            return
        for topic_id, changed in by_topic.items():
            before = {key: stopping[key] for key in changed}
            for key in changed:
                if remaining := _subtract(stopping.pop(key), broker_ids):
                    stopping[key] = remaining
            # A topic may have been deleted.
            if (topic := self._context.image.topics_by_id.get(topic_id)) is None:
                continue
            try:
                await self._write_node(topic)
            except (KafkaError, MetadataStoreError):
                stopping.update(before)
                raise
            logger.info("removed replicas are deleted topic=%s brokers=%s", topic.name, sorted(broker_ids))
        for listener in self.on_finished:
            listener()

    async def _write_node(self, topic: TopicMetadata) -> None:
        try:
            node = SetData(znodes.topic_path(topic.name), await self._context.encode_topic(topic))
            await self._context.write([node])
        except TransactionError as error:
            logger.error("the node of a topic cannot be written topic=%s: %s", topic.name, error)
