"""Writing of COMMIT and ABORT markers to the partitions of transactions (KIP-98).

Partitions that this broker leads are written immediately. A marker for a partition of `__consumer_offsets` is passed to
its group coordinator, which also applies it to the pending offsets. A partition with another leader fails with
NOT_LEADER_OR_FOLLOWER, and the transaction coordinator retries.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from twisted.internet.defer import DeferredLock

from odradek.coordinator.result import TransactionOutcome
from odradek.coordinator.steps import Steps
from odradek.log.validation.batch import Origin
from odradek.protocol.batches.control_records import ControlType, build_control_batch
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC
from odradek.server.coordinators.context import is_replicated

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime

OnWritten = Callable[[ErrorCode], None]
"""Called with NONE when a marker is replicated, or with the error."""

TopicPartition = tuple[str, int]
_NO_VERSION: Final = 0


class TransactionMarker(NamedTuple):
    """The content of a marker, and the transaction version whose rules apply to its validation."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = _NO_VERSION

    @classmethod
    def of(cls, outcome: TransactionOutcome) -> "TransactionMarker":
        """Return the marker of a transaction's outcome."""
        return cls(
            outcome.producer_id,
            outcome.producer_epoch,
            outcome.coordinator_epoch,
            outcome.is_commit,
            outcome.transaction_version,
        )

    def encode(self, now_ms: int) -> bytes:
        return build_control_batch(
            ControlType.COMMIT if self.is_commit else ControlType.ABORT,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            timestamp_ms=now_ms,
        )


class RequestedMarkers:
    """The markers of WriteTxnMarkers requests in progress, which are written in slices.

    last: the last request that contains a marker of a producer for a partition, by producer id, topic and index, until
        it has begun to write the marker
    order: held by the request that adds its markers, in the order of arrival
    """

    __slots__ = ("last", "order")

    def __init__(self) -> None:
        self.last: dict[tuple[int, str, int], object] = {}
        self.order = DeferredLock()


class MarkerSenderServices(Protocol):
    """The parts of a broker that the marker sender uses."""

    metadata: "ClusterMetadata"
    now_ms: Callable[[], int]
    replicas: "ReplicaManager"

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...


class MarkerSender:
    """Writes markers to the partitions of this broker."""

    def __init__(self, services: MarkerSenderServices) -> None:
        self._services = services
        self.requested = RequestedMarkers()

    def send(self, outcome: TransactionOutcome, done: Callable[[TopicPartition, ErrorCode], None]) -> Steps[None]:
        """Write a marker of the outcome to one partition per step; call `done` for each, immediately or later.

        A deleted partition needs no marker: its error is NONE, as for one that is written.
        """
        marker = TransactionMarker.of(outcome)
        metadata = self._services.metadata
        for name in outcome.partitions:
            if metadata.partition(*name) is None:
                done(name, ErrorCode.NONE)
            else:
                self.write(name, marker, lambda error, name=name: done(name, error))  # type: ignore[misc]
            yield

    def write(self, name: TopicPartition, marker: TransactionMarker, done: OnWritten) -> None:
        """Write a marker to one partition; call `done` with NONE when it is replicated, or with the error."""
        services = self._services
        topic, index = name
        batch = marker.encode(services.now_ms())
        try:
            if topic == GROUP_METADATA_TOPIC:
                services.groups.end_transaction(
                    index,
                    batch,
                    producer_id=marker.producer_id,
                    is_commit=marker.is_commit,
                    transaction_version=marker.transaction_version,
                    done=done,
                )
                return
            partition = services.replicas.get(topic, index)
            info = partition.append_as_leader(
                memoryview(batch),
                required_acks=-1,
                now_ms=services.now_ms(),
                origin=Origin.COORDINATOR,
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            done(error.code)
            return
        if is_replicated(partition, info.last_offset):
            done(ErrorCode.NONE)
        else:
            waiting = _MarkerReplication(partition, info.last_offset + 1, done)
            partition.watchers[waiting] = None
            # A watcher that the append has woken may have discovered a disk failure.
            waiting.wake()


class _MarkerReplication:
    """Watcher of the high watermark, for a marker that is not replicated yet."""

    __slots__ = ("_done", "_end_offset", "_partition")

    def __init__(self, partition: "Partition", end_offset: int, done: OnWritten) -> None:
        self._partition = partition
        self._end_offset = end_offset
        self._done = done

    def wake(self) -> None:
        """Call `done` if the marker is replicated, or if this broker is no longer the leader."""
        if self not in self._partition.watchers:
            return
        error = ErrorCode.NONE
        try:
            if not self._partition.has_reached(self._end_offset):
                return
        except KafkaError as failure:
            error = failure.code
        self._partition.watchers.pop(self, None)
        self._done(error)
