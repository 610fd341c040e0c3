"""Runs the group coordinators, which besides requests also see transactions end: the offsets in them take effect."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.coordinator.group_shard import GroupShard
from odradek.coordinator.phase import Phase
from odradek.coordinator.settings import GroupSettings
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.topic_names import GROUP_METADATA_TOPIC
from odradek.server.coordinator_runtime import CoordinatorRuntime, is_replicated

if TYPE_CHECKING:
    from odradek.replication.partition import Partition


class GroupCoordinatorRuntime(CoordinatorRuntime[GroupShard]):
    """The group coordinators of this broker."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        reactor: Any,
        now_ms: Callable[[], int],
        random_uuid: Callable[[], str],
        partition_count: Callable[[], int],
        load_buffer_bytes: int,
    ) -> None:
        self._settings = settings
        self._random_uuid = random_uuid
        super().__init__(
            GROUP_METADATA_TOPIC,
            reactor=reactor,
            now_ms=now_ms,
            partition_count=partition_count,
            load_buffer_bytes=load_buffer_bytes,
        )

    def _make_absent(self) -> GroupShard:
        return GroupShard.absent(self._settings)

    def _make_shard(self, partition: "Partition") -> GroupShard:
        return GroupShard(self._settings, self._random_uuid)

    def _replay_marker(self, shard: GroupShard, producer_id: int, is_commit: bool) -> None:
        shard.replay_end_of_transaction(producer_id, is_commit)

    def topics_deleted(self, deleted: list[tuple[str, bytes]]) -> None:
        """Topics, by name and id, are gone: forget their offsets."""
        for led in list(self._led.values()):
            self._carry_out(led, led.shard.topics_deleted(deleted))

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
        """Write a marker to a partition and, once it is replicated, let it take effect on the offsets before it.

        Raises KafkaError: E6 if this broker does not coordinate with it now, else as `Partition.append_as_leader`.
        """
        led = self._led.get(index)
        if led is None or led.shard.phase is not Phase.ACTIVE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{index} is not coordinated here now")

        def written(error: ErrorCode) -> None:
            if not error:
                led.shard.replay_end_of_transaction(producer_id, is_commit)
            done(error)

        info = led.append(marker, self._now_ms(), transaction_version)
        if led.waiting or not is_replicated(led.partition, info.last_offset):
            self.when_replicated(led, info.last_offset, written)
        else:
            written(ErrorCode.NONE)
