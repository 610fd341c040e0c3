"""The controller's context: its role, its epoch and its own image, and writes that only the controller can make."""

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.propagation.propagation import Propagation
from odradek.replication.controller.states.partition_states import change_state, is_unclean_election
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import ClusterMetadata, MetadataDelta, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import (
    Check,
    Delete,
    MetadataStore,
    MetadataStoreError,
    Operation,
    OperationResult,
    SessionExpiredError,
    TransactionError,
    TransactionTooLargeError,
    operation_bytes,
)
from odradek.replication.metadata.updates import MetadataPublisher, full_update, update_from
from odradek.replication.pauses import Pause, run_with_pauses

logger = logging.getLogger(__name__)

MAX_OPERATIONS: Final = 2000
"""Most operations in one transaction of an embedded store, for a change that can be split."""

_MAX_CLUSTER_OPERATIONS: Final = 300
"""The same in a cluster. To encode so many, or their results, takes 1 or 2 ms, without a pause."""

MAX_TRANSACTION_BYTES: Final = 500_000
"""Size from which on states are written in another transaction; ZooKeeper accepts 1 MB. Their order does not matter."""

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"

Stopping = dict[tuple[bytes, int], tuple[int, ...]]
"""Replicas that are being stopped, by topic id and partition."""


class ControllerRole(Enum):
    """A broker's role in the control of its cluster."""

    STANDBY = "standby"
    ACTIVE = "active"
    STOPPED = "stopped"


_ROLE_CHANGES: Final[Mapping[ControllerRole, frozenset[ControllerRole]]] = {
    ControllerRole.STANDBY: frozenset({ControllerRole.ACTIVE, ControllerRole.STOPPED}),
    ControllerRole.ACTIVE: frozenset({ControllerRole.STANDBY, ControllerRole.STOPPED}),
    ControllerRole.STOPPED: frozenset(),
}


class ControllerContext:
    """State that the controller's parts share.

    image: the controller's own image; each publication of it goes to `publisher` as an update
    role, epoch: this broker's role, and the last epoch in which it was the controller
    pause: awaited repeatedly in changes of many topics or partitions, to let other work run
    propagation: the publisher in a cluster, None with an embedded store
    shutting_down: live brokers that announced their stop
    restarted: brokers that have registered again, are still in ISRs of their earlier process, and may lack records
    lost: those of them that lost logs with a disk: the others are preferred to them
    first_epochs: the epoch of the first registration of the process, of each broker that has registered again without a
        restart
    failed_in_term: brokers that have failed or restarted since the takeover, for topics that could not be read then
    offline_brokers: brokers that may have replicas in `PartitionMetadata.offline`
    unclean_elections: leaders that this controller has elected from outside the ISR, or has tried to
    on_resigned: called when a write or a state shows that there is a later controller epoch
    stopping: replicas that a reassignment removed and that are being stopped, by topic id and partition; they are in
        the topic's node, but no longer in the image
    is_unclean_default: unclean election is allowed for topics without a dynamic configuration of it
    """

    def __init__(
        self,
        store: MetadataStore,
        publisher: MetadataPublisher,
        broker_id: int,
        now_ms: Callable[[], int],
        pause: Pause,
        propagation: Propagation | None = None,
    ) -> None:
        self.store = store
        self.image = ClusterMetadata()
        self.broker_id = broker_id
        self.now_ms = now_ms
        self.pause = pause
        self.role = ControllerRole.STANDBY
        self.epoch = 0
        self.on_resigned: Callable[[], None] = lambda: None
        self.is_unclean_default = False
        self.stopping: Stopping = {}
        self._epoch_version = 0
        self.propagation = propagation
        self.shutting_down: set[int] = set()
        self.restarted: set[int] = set()
        self.lost: set[int] = set()
        self.first_epochs: dict[int, int] = {}
        self.failed_in_term: set[int] = set()
        self.offline_brokers: set[int] = set()
        self.unclean_elections = 0
        self._publisher = publisher
        self._publishes_all = False
        self.image.listeners.append(self._publish)

    def _publish(self, delta: MetadataDelta) -> None:
        publishes_all, self._publishes_all = self._publishes_all, False
        self._publisher.publish((full_update if publishes_all else update_from)(self.image, delta))

    def change_state(
        self, old: PartitionMetadata, new: PartitionMetadata, topic: str, index: int, why: str
    ) -> PartitionMetadata:
        """Check, log and count the change of a partition's state, before it is written; return the new one."""
        self.unclean_elections += is_unclean_election(old, new)
        return change_state(old, new, topic, index, why)

    @property
    def in_cluster(self) -> bool:
        """True for a member of a cluster, False with an embedded store."""
        return self.propagation is not None

    @property
    def staying_brokers(self) -> Container[int]:
        """The live brokers that are not shutting down."""
        return self.image.brokers.keys() - self.shutting_down if self.shutting_down else self.image.brokers

    @property
    def max_operations(self) -> int:
        """Most operations in one transaction, for a change that can be split."""
        return _MAX_CLUSTER_OPERATIONS if self.in_cluster else MAX_OPERATIONS

    @property
    def is_active(self) -> bool:
        """True while this broker is the controller."""
        return self.role is ControllerRole.ACTIVE

    def begin_epoch(self, epoch: int, epoch_version: int) -> None:
        """Become the controller in `epoch`; `epoch_version` is the version of its node."""
        self.epoch = epoch
        self._epoch_version = epoch_version
        self.stopping = {}
        self._change_role(ControllerRole.ACTIVE, "elected")
        self.shutting_down.clear()
        for broker_ids in (self.restarted, self.lost, self.first_epochs, self.failed_in_term):
            broker_ids.clear()
        self.begin_publications()

    def begin_publications(self) -> None:
        """Let the next publication contain everything: the brokers' metadata may differ from the last one.

        Requests that wait to be sent are dropped, so that those to delete replicas have to be repeated.
        """
        if self.propagation is not None:
            self.propagation.begin(self.epoch)
            self._publishes_all = True

    def publish_all(self) -> None:
        """Publish everything to all brokers."""
        self.begin_publications()
        self.image.publish()

    def resign(self, why: str) -> None:
        """Stop acting as the controller."""
        if self.is_active:
            self._change_role(ControllerRole.STANDBY, why)

    def stop(self) -> None:
        """Stop acting as the controller permanently."""
        if self.role is not ControllerRole.STOPPED:
            self._change_role(ControllerRole.STOPPED, "the broker stops")

    def _change_role(self, role: ControllerRole, why: str) -> None:
        if role not in _ROLE_CHANGES[self.role]:
            raise AssertionError(f"a controller cannot change from {self.role.value} to {role.value}: {why}")
        logger.log(
            logging.WARNING if role is ControllerRole.STANDBY else logging.INFO,
            "controller role old=%s new=%s broker=%d epoch=%d reason=%s",
            self.role.value,
            role.value,
            self.broker_id,
            self.epoch,
            why,
        )
        self.role = role
        if self.propagation is not None and role is not ControllerRole.ACTIVE:
            self.propagation.end()
            self._publishes_all = False

    def allows_unclean_election(self, topic: str) -> bool:
        """Return the topic's `unclean.leader.election.enable`, of which the controller's broker has the default."""
        image = self.image
        brokers = image.broker_configs
        for configs in (image.topic_configs.get(topic), brokers.get(self.broker_id), brokers.get(None)):
            if configs and UNCLEAN_ELECTION in configs:
                return configs[UNCLEAN_ELECTION].strip().lower() == "true"
        return self.is_unclean_default

    async def encode_topic(self, topic: TopicMetadata, stopping: Stopping | None = None) -> bytes:
        """Encode a topic's node in steps, with `stopping` instead of the replicas that are being stopped now."""
        partitions = _iter_with_stopping(topic, self.stopping if stopping is None else stopping)
        return await run_with_pauses(znodes.encode_topic_in_steps(topic.topic_id, partitions), self.pause)

    def with_stopping(self, topic: TopicMetadata) -> TopicMetadata:
        """Return a topic of the image with the replicas that are being stopped."""
        if not self.stopping:
            return topic
        return topic._replace(partitions=tuple(_iter_with_stopping(topic, self.stopping)))

    def without_stopping(self, topic: TopicMetadata) -> TopicMetadata:
        """Return a topic of the store without the replicas that are being stopped."""
        if not self.stopping:
            return topic
        partitions = tuple(
            _remove_stopping(partition, self.stopping.get((topic.topic_id, index), ()))
            for index, partition in enumerate(topic.partitions)
        )
        return topic._replace(partitions=partitions)

    def check_active(self) -> None:
        """Raise KafkaError NOT_CONTROLLER unless this broker is the controller."""
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")

    async def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Write a change as the controller, all of it or nothing.

        Raises KafkaError NOT_CONTROLLER if this broker is not the controller (any more), TransactionError as the
        store does; its index counts the given operations.
        """
        self.check_active()
        try:
            results = await self.store.transaction([self._fence, *operations])
        except TransactionError as error:
            if error.index == 0:
                self.resign("another broker became the controller")
                self.on_resigned()
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker became the controller") from error
            raise TransactionError(error.index - 1, error.cause) from error
        return results[1:]

    @property
    def _fence(self) -> Operation:
        return Check(znodes.CONTROLLER_EPOCH, self._epoch_version)

    def check_size(self, operations: Sequence[Operation], room_bytes: int = 0) -> None:
        """Raise TransactionTooLargeError if the store would not accept these operations and further `room_bytes`."""
        self.store.check_size([self._fence, *operations], room_bytes)

    async def delete_nodes(self, deletions: Iterable[Delete]) -> None:
        """Delete nodes, each in a transaction, except those that were deleted or changed. Else it raises as `write`."""
        for deletion in deletions:
            try:
                await self.write([deletion])
            except TransactionError as error:
                logger.debug("a node was deleted or changed already path=%s: %s", deletion.path, error)

    async def change(self, operations: Sequence[Operation]) -> None:
        """Write a client's change, all of it or nothing. Raises KafkaError for each error of the store."""
        try:
            await self.write(operations)
        except MetadataStoreError as error:
            raise as_kafka_error(error) from error


def _iter_with_stopping(topic: TopicMetadata, stopping: Stopping) -> Iterator[PartitionMetadata]:
    for index, partition in enumerate(topic.partitions):
        further = stopping.get((topic.topic_id, index))
        yield partition if further is None else _add_stopping(partition, further)


def _add_stopping(partition: PartitionMetadata, stopping: Sequence[int]) -> PartitionMetadata:
    further = tuple(replica for replica in stopping if replica not in partition.replicas)
    return partition._replace(replicas=partition.replicas + further, removing=partition.removing + further)


def _remove_stopping(partition: PartitionMetadata, stopping: Sequence[int]) -> PartitionMetadata:
    if not stopping:
        return partition
    replicas = tuple(replica for replica in partition.replicas if replica not in stopping)
    removing = tuple(replica for replica in partition.removing if replica not in stopping)
    return partition._replace(replicas=replicas, removing=removing)


def as_kafka_error(error: KafkaError | MetadataStoreError) -> KafkaError:
    """Return the error for a client whose change the store refused.

    REQUEST_TIMED_OUT if the session has ended: it is unknown whether the change was made, and the client may repeat it.
    POLICY_VIOLATION, as in Apache Kafka's KRaft mode, for a change that is too large. In ZooKeeper mode Kafka's
    controller repeats such a request for ever.
    """
    if isinstance(error, SessionExpiredError):
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))
    if isinstance(error, TransactionTooLargeError):
        text = f"The change is too large for the metadata store; use fewer partitions or replicas: {error}"
        return KafkaError(ErrorCode.POLICY_VIOLATION, text)
    return error if isinstance(error, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def split_operations(operations: Sequence[Operation], max_operations: int) -> Iterator[Sequence[Operation]]:
    """Split operations into transactions that ZooKeeper accepts."""
    first, size_bytes = 0, 0
    for number, operation in enumerate(operations):
        added_bytes = operation_bytes(operation)
        is_full = number - first >= max_operations or size_bytes + added_bytes > MAX_TRANSACTION_BYTES
        if number > first and is_full:
            yield operations[first:number]
            first, size_bytes = number, 0
        size_bytes += added_bytes
    if operations:
        yield operations[first:]
