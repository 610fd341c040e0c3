"""Deletion of the offsets of deleted topics. A topic created later under the same name must not inherit them."""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from odradek.coordinator.groups.records import offset_tombstones
from odradek.coordinator.groups.shard_state import TOPIC_DELETION_KIND, DeletedTopics, ShardState
from odradek.coordinator.result import Completion, CoordinatorResult
from odradek.coordinator.timers import Key
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

RETRY_PAUSE_MS: Final = 1_000
MAX_RETRY_PAUSE_MS: Final = 60_000
OFFSETS_PER_STEP: Final = 1_000
"""Offsets of the topics that a step looks at, each group and each partition in a transaction counting as one too."""


def delete_offsets(state: ShardState, deleted: DeletedTopics, result: CoordinatorResult, now_ms: int) -> None:
    """Delete the offsets of deleted topics, pending ones too; those stored without an id go by name and age.

    The groups are searched in steps; the first is taken here, the others in `tick`.
    """
    search = _Search(state, deleted)
    state.deletions[search.key] = deleted
    search.take_step(result, now_ms)


class _Search:
    """One search of all groups for the offsets of deleted topics. `failures` searches before it were not written."""

    __slots__ = ("_deleted", "_end_offsets", "_failures", "_held", "_ids", "_state", "key")

    def __init__(self, state: ShardState, deleted: DeletedTopics, failures: int = 0) -> None:
        self.key: Key = (TOPIC_DELETION_KIND, *deleted)
        self._state = state
        self._deleted = deleted
        self._failures = failures
        self._ids: dict[str, set[bytes]] = {}
        self._end_offsets: dict[str, int] = {}
        for name, topic_id, end_offset in deleted:
            self._ids.setdefault(name, set()).add(topic_id)
            self._end_offsets[name] = max(end_offset, self._end_offsets.get(name, -1))
        self._held = self._find()

    def take_step(self, result: CoordinatorResult, now_ms: int) -> None:
        result.is_atomic = False
        state = self._state
        found = list(islice(self._held, OFFSETS_PER_STEP))
        doomed: dict[str, dict[tuple[str, int], None]] = {}
        for held in found:
            if held is not None and self._belongs_to_deleted(*held):
                group_id, topic, partition = held
                doomed.setdefault(group_id, {})[topic, partition] = None
        for group_id, partitions in doomed.items():
            result.records.extend(offset_tombstones(group_id, partitions))
        if result.records:
            result.completions.append(OffsetDeletion(state, self._deleted, self._failures))
        if len(found) == OFFSETS_PER_STEP:
            state.timers.schedule(self.key, 0, self.take_step)
        else:
            state.deletions.pop(self.key, None)

    def _find(self) -> Iterator[tuple[str, str, int] | None]:
        """Group, topic and partition of what may be held of the topics; None for anything else that is looked at.

        Between two steps anything may change. What is committed after the deletion belongs to a later topic. What a
        transaction holds may become a committed offset, and is therefore listed first.
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
        """Return whether there is something to delete for a partition, and nothing of a later topic of that name.

        A tombstone takes away the committed and all pending offsets of its partition. None is written where one of
        them belongs to a later topic: OffsetFetch does not return the others.
        """
        held = self._state.offsets.all_of_partition(group_id, topic, partition)
        ids, end_offset = self._ids[topic], self._end_offsets[topic]
        return bool(held) and all(
            offset.record_offset < end_offset if offset.value.topic_id == ZERO_UUID else offset.value.topic_id in ids
            for offset in held
        )


class OffsetDeletion(Completion):
    """Deletes again what could not be deleted: nobody else asks for it a second time.

    The pause doubles with every attempt. If the shard has resigned, because a part was written, its runtime has the
    next one delete the rest.
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
            "offsets of deleted topics not deleted topics=%s next_attempt_ms=%d error=%s",
            ",".join(topic.name for topic in self.deleted), pause_ms, error.name,
        )  # fmt: skip
        search = _Search(self.state, self.deleted, self._failures + 1)
        self.state.deletions[search.key] = self.deleted
        self.state.timers.schedule(search.key, pause_ms, search.take_step)
