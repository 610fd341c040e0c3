"""Runtime of the transaction coordinators. It also sends the markers of ended transactions to their partitions.

A request whose record is not replicated within `request.timeout.ms` gets COORDINATOR_NOT_AVAILABLE, as in Apache Kafka.
The record stays in the log; until it is replicated, other requests for the transaction get CONCURRENT_TRANSACTIONS.
"""

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Final

from odradek.coordinator.result import CoordinatorResult, TransactionOutcome
from odradek.coordinator.steps import Steps
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard import TransactionShard
from odradek.log.background.tasks import RunInThread
from odradek.protocol.errors import ErrorCode
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from odradek.server.coordinators.context import CoordinatorContext
from odradek.server.coordinators.interfaces import MarkerWriter
from odradek.server.coordinators.marker_sender import TopicPartition
from odradek.server.coordinators.runtime import CoordinatorRuntime, report_failure
from odradek.server.work.clock import Clock
from odradek.server.work.slices import Slices

if TYPE_CHECKING:
    from odradek.replication.metadata.image import MetadataDelta
    from odradek.replication.replicas.partition import Partition

MAX_MARKERS_PER_STEP: Final = 16
"""Markers that are sent in one step; more are sent in slices. The append of each takes some 60 us."""


class TransactionCoordinatorRuntime(CoordinatorRuntime[TransactionShard]):
    """The transaction coordinators of this broker. The leader epoch in which a shard began is its coordinator epoch.

    A coordinator in between, which wrote nothing to the log, may have sent markers with its higher epoch: with the old
    epoch, markers of this broker would be refused. There was none if the next epoch has the same leader, as after the
    failure of a follower.
    """

    begins_again_after_others = True

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        reactor: Clock,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        take_producer_id: Callable[[], int],
        begin_producer_ids_at: Callable[[int], None],
        partition_count: Callable[[], int],
        load_buffer_bytes: int,
        slices: Slices,
        run_in_thread: RunInThread,
        markers: MarkerWriter,
    ) -> None:
        self.settings = settings
        self._take_producer_id = take_producer_id
        self._begin_producer_ids_at = begin_producer_ids_at
        self._markers = markers
        super().__init__(
            TRANSACTION_STATE_TOPIC,
            reactor=reactor,
            now_ms=now_ms,
            monotonic_ms=monotonic_ms,
            partition_count=partition_count,
            write_timeout_ms=settings.write_timeout_ms,
            load_buffer_bytes=load_buffer_bytes,
            slices=slices,
            run_in_thread=run_in_thread,
        )

    def _make_absent(self) -> TransactionShard:
        return TransactionShard.absent(self.settings)

    def _make_shard(self, partition: "Partition") -> TransactionShard:
        return TransactionShard(
            self.settings,
            coordinator_epoch=partition.leader_epoch,
            take_producer_id=self._take_producer_id,
            monotonic_ms=self._monotonic_ms,
            begin_producer_ids_at=self._begin_producer_ids_at,
        )

    def lacks_producer(self, transactional_id: str) -> bool:
        """Return whether this broker coordinates the transactional id, and it has no producer yet."""
        return self.shard(self.index_of(transactional_id)).lacks_producer(transactional_id)

    def _remove_timed_out_replies(self, result: CoordinatorResult) -> CoordinatorResult:
        return result.without_replies(keeps_completions=True)

    def _send(self, context: CoordinatorContext[TransactionShard] | None, result: CoordinatorResult) -> None:
        super()._send(context, result)
        if context is None or not result.outcomes:
            return
        markers = self._send_markers(context, result.outcomes)
        if sum(len(outcome.partitions) for outcome in result.outcomes) <= MAX_MARKERS_PER_STEP:
            for _ in markers:
                pass
        else:
            self._slices.run(markers).addErrback(report_failure)

    def _send_markers(
        self, context: CoordinatorContext[TransactionShard], outcomes: Sequence[TransactionOutcome]
    ) -> Steps[None]:
        """Send markers while this broker is the coordinator; the next coordinator sends the remaining ones.

        A marker that arrives later could end the producer's next transaction. After an unexpected failure the shard is
        loaded again: markers without a result would never be sent again.
        """
        if not self._is_current(context):
            # The first slice was used up, and the leadership ended before the next one.
            return
        with self._reloading_after_failure(context):
            for outcome in outcomes:
                for _ in self._markers.send(outcome, partial(self._on_marker_written, context, outcome)):
                    yield
                    if not self._is_current(context):
                        return

    def metadata_changed(self, delta: "MetadataDelta") -> None:
        """Repeat writes that failed: their partition may have a leader, or enough replicas in sync, now."""
        changed = {*delta.topics, *[topic.name for topic in delta.deleted_topics]}
        if changed or delta.brokers:
            self._slices.run(self._hasten_markers(None if delta.brokers else changed)).addErrback(report_failure)

    def _hasten_markers(self, topics: Set[str] | None) -> Steps[None]:
        for context in list(self._contexts.values()):
            yield from context.shard.hasten_markers(topics)
            self._set_alarm(context)
            yield

    def _on_marker_written(
        self,
        context: CoordinatorContext[TransactionShard],
        outcome: TransactionOutcome,
        partition: TopicPartition,
        error: ErrorCode,
    ) -> None:
        """Pass the result of a marker to the shard; ignored if this broker is no longer the coordinator."""
        if not self._is_current(context):
            return
        with self._reloading_after_failure(context):
            written = context.shard.marker_written(
                outcome.transactional_id,
                outcome.producer_id,
                outcome.producer_epoch,
                partition,
                error,
                self._now_ms(),
            )
            self._carry_out(context, written)
