"""Deletion of the offsets of deleted topics, which a later topic with the same name must not have."""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from odradek.coordinator.groups.records import offset_tombstones
from odradek.coordinator.groups.shard_state import TOPIC_DELETION_KIND, DeletedTopics, ShardState
from odradek.coordinator.result import Completion, CoordinatorResult
from odradek.coordinator.timers import DeadlineKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

RETRY_PAUSE_MS: Final = 1_000
MAX_RETRY_PAUSE_MS: Final = 60_000
OFFSETS_PER_STEP: Final = 1_000
"""Limit of the offsets that a step visits, where each group and each pending offset counts as one."""


def delete_offsets(state: ShardState, deleted: DeletedTopics, result: CoordinatorResult, now_ms: int) -> None:
    """Delete the visible and pending offsets of deleted topics.

    Offsets without a topic id are matched by name and record offset. The groups are searched in steps; the first step
    is done here, the others in `tick`.
    """
    search = _Search(state, deleted)
    state.deletions[search.key] = deleted
    search.take_step(result, now_ms)


class _Search:
    """One search of all groups for offsets of deleted topics. The writes of `failures` earlier searches failed."""

    __slots__ = ("_candidates", "_deleted", "_end_offsets", "_failures", "_ids", "_state", "key")

    def __init__(self, state: ShardState, deleted: DeletedTopics, failures: int = 0) -> None:
        self.key: DeadlineKey = (TOPIC_DELETION_KIND, *deleted)
        self._state = state
        self._deleted = deleted
        self._failures = failures
        self._ids: dict[str, set[bytes]] = {}
        self._end_offsets: dict[str, int] = {}
        for name, topic_id, end_offset in deleted:
            self._ids.setdefault(name, set()).add(topic_id)
            self._end_offsets[name] = max(end_offset, self._end_offsets.get(name, -1))
        self._candidates = self._iter_candidates()

    def take_step(self, result: CoordinatorResult, now_ms: int) -> None:
        """Add the tombstones of one step, and schedule the next step."""
        result.is_atomic = False
        state = self._state
        candidates = list(islice(self._candidates, OFFSETS_PER_STEP))
        to_delete: dict[str, dict[tuple[str, int], None]] = {}
        for candidate in candidates:
            if candidate is not None and self._belongs_to_deleted(*candidate):
                group_id, topic, partition = candidate
                to_delete.setdefault(group_id, {})[topic, partition] = None
        for group_id, partitions in to_delete.items():
            result.records.extend(offset_tombstones(group_id, partitions))
        if result.records:
            result.completions.append(OffsetDeletion(state, self._deleted, self._failures))
        if len(candidates) == OFFSETS_PER_STEP:
            state.timers.schedule(self.key, 0, self.take_step)
        else:
            state.deletions.pop(self.key, None)

    def _iter_candidates(self) -> Iterator[tuple[str, str, int] | None]:
        """Yield group, topic and partition of offsets with the names of the topics; None for other visited items.

        The state may change between two steps. Offsets that are committed after the deletion belong to a later topic.
        Pending offsets come first, because they become visible offsets when their transaction commits.
        """
        offsets, ids = self._state.offsets, self._ids
        for group_id in offsets.group_ids():
            yield None
            for topic, partition in offsets.pending_of_group(group_id):
                yield (group_id, topic, partition) if topic in ids else None
            for topic in sorted(ids.keys() & offsets.visible.of_group(group_id).keys()):
                for partition in list(offsets.visible.of_group(group_id).get(topic, ())):
                    yield group_id, topic, partition

    def _belongs_to_deleted(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether a partition has offsets, and all of them belong to the deleted topics.

        A tombstone deletes the visible and all pending offsets of its partition. If one of them belongs to a later
        topic, no tombstone is written; OffsetFetch does not return the others, because their topic id differs.
        """
        offsets = self._state.offsets.all_of_partition(group_id, topic, partition)
        ids, end_offset = self._ids[topic], self._end_offsets[topic]
        return bool(offsets) and all(
            offset.record_offset < end_offset if offset.value.topic_id == ZERO_UUID else offset.value.topic_id in ids
            for offset in offsets
        )


class OffsetDeletion(Completion):
    """Retries a deletion whose records were not written; no client would request it again.

    The pause doubles with every attempt. If the shard has resigned, because a part of the records was written, the
    coordinator runtime passes the deletion to the next shard.
    """

    __slots__ = ("_failures", "deleted", "state")

    def __init__(self, state: ShardState, deleted: DeletedTopics, failures: int) -> None:
        self.state = state
        self.deleted = deleted
        self._failures = failures

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        pass

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        pause_ms = min(RETRY_PAUSE_MS << min(self._failures, 16), MAX_RETRY_PAUSE_MS)
        logger.warning(
            "cannot delete offsets of deleted topics topics=%s retry_in_ms=%d error=%s",
            ",".join(topic.name for topic in self.deleted), pause_ms, error.name,
        )  # fmt: skip
        search = _Search(self.state, self.deleted, self._failures + 1)
        self.state.deletions[search.key] = self.deleted
        self.state.timers.schedule(search.key, pause_ms, search.take_step)
