"""Runtime of the group coordinators. It also appends transaction markers, which make pending offsets visible.

A request whose records are not replicated within `offsets.commit.timeout.ms` gets COORDINATOR_NOT_AVAILABLE, as in
Apache Kafka. Its records stay in the log and are visible to clients when they are replicated.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.groups.shard_state import DeletedTopic, DeletedTopics
from odradek.coordinator.groups.topic_deletion import OffsetDeletion
from odradek.coordinator.result import CoordinatorResult
from odradek.coordinator.steps import Steps
from odradek.log.background.tasks import RunInThread
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import Codec
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC
from odradek.server.coordinators.context import CoordinatorContext, is_replicated
from odradek.server.coordinators.runtime import CoordinatorRuntime, confirm_none, report_failure
from odradek.server.work.clock import Clock
from odradek.server.work.slices import Slices

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition


class GroupCoordinatorRuntime(CoordinatorRuntime[GroupShard]):
    """The group coordinators of this broker."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        reactor: Clock,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        random_uuid: Callable[[], str],
        partition_count: Callable[[], int],
        load_buffer_bytes: int,
        slices: Slices,
        run_in_thread: RunInThread,
        codec: Codec = Codec.NONE,
        confirm_leadership: Callable[["Partition"], Awaitable[bool]] = confirm_none,
    ) -> None:
        self._settings = settings
        self.codec = codec
        self._random_uuid = random_uuid
        self._deleted_before_loaded: dict[int, DeletedTopics] = {}
        """Deleted topics, by partition, whose offsets a shard is to delete when it is loaded."""
        super().__init__(
            GROUP_METADATA_TOPIC,
            reactor=reactor,
            now_ms=now_ms,
            monotonic_ms=monotonic_ms,
            partition_count=partition_count,
            write_timeout_ms=settings.commit_timeout_ms,
            load_buffer_bytes=load_buffer_bytes,
            slices=slices,
            run_in_thread=run_in_thread,
            confirm_leadership=confirm_leadership,
        )

    def _make_absent(self) -> GroupShard:
        return GroupShard.absent(self._settings)

    def _make_shard(self, partition: "Partition") -> GroupShard:
        return GroupShard(self._settings, self._random_uuid, self._monotonic_ms)

    def _replay_marker(self, shard: GroupShard, producer_id: int, is_commit: bool, offset: int) -> None:
        shard.replay_end_of_transaction(producer_id, is_commit, offset)

    def _remove_timed_out_replies(self, result: CoordinatorResult) -> CoordinatorResult:
        return result.without_replies(keeps_completions=False)

    def topics_deleted(self, topics: Sequence[tuple[str, bytes]]) -> None:
        """Delete the offsets of deleted topics, given by name and id; shards that are loading do it when loaded."""
        end_offsets = {index: context.log_end_offset for index, context in self._contexts.items()}

        def steps() -> Steps[None]:
            for index, end_offset in end_offsets.items():
                self._delete_offsets(index, [DeletedTopic(name, topic_id, end_offset) for name, topic_id in topics])
                yield

        self._slices.run(steps()).addErrback(report_failure)

    def _delete_offsets(self, index: int, deleted: DeletedTopics) -> None:
        context = self._contexts.get(index)
        if context is None:
            return
        if context.shard.coordinator_state is CoordinatorState.ACTIVE:
            self._carry_out(context, context.shard.topics_deleted(deleted, self._now_ms()))
        else:
            self._deleted_before_loaded.setdefault(index, []).extend(deleted)

    def _reload(self, context: CoordinatorContext[GroupShard]) -> None:
        index = context.partition.index
        unfinished = context.shard.topics_being_deleted() + self._deleted_before_loaded.get(index, [])
        super()._reload(context)
        if unfinished:
            self._deleted_before_loaded[index] = unfinished

    def _on_partly_written(self, index: int, result: CoordinatorResult) -> None:
        for completion in result.completions:
            if isinstance(completion, OffsetDeletion):
                self._deleted_before_loaded.setdefault(index, []).extend(completion.deleted)

    def _on_loaded(self, context: CoordinatorContext[GroupShard]) -> None:
        index = context.partition.index
        deleted = self._deleted_before_loaded.pop(index, None)
        if deleted:
            self._delete_offsets(index, deleted)

    def resign(self, index: int) -> None:
        self._deleted_before_loaded.pop(index, None)
        super().resign(index)

    def end_transaction(
        self,
        index: int,
        marker: bytes,
        *,
        producer_id: int,
        is_commit: bool,
        transaction_version: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Write a marker to a partition and apply it to the pending offsets; call `done` when it is replicated.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER if this broker has no active shard for the partition; otherwise like
        `Partition.append_as_leader`.
        """
        context = self._contexts.get(index)
        if context is None or context.shard.coordinator_state is not CoordinatorState.ACTIVE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not coordinate {self.topic}-{index}")

        try:
            info = context.append(marker, self._now_ms(), transaction_version)
        except KafkaError:
            context.wake()
            raise
        is_done = not context.waiting and is_replicated(context.partition, info.last_offset)
        context.shard.on_marker_appended(producer_id, is_commit, info.last_offset, is_replicated=is_done)

        def written(error: ErrorCode) -> None:
            if not error:
                context.shard.on_replicated(info.last_offset + 1)
            done(error)

        if is_done:
            written(ErrorCode.NONE)
        else:
            self.when_replicated(context, info.last_offset, written)
