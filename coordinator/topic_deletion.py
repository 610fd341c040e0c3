"""Deletion of the offsets of deleted topics. A topic created later under the same name must not inherit them."""

import logging
from collections import deque
from functools import partial
from typing import Final

from odradek.coordinator.record_types import offset_tombstones
from odradek.coordinator.result import Completion, Effects
from odradek.coordinator.shard_state import TOPIC_DELETION_KIND, ShardState
from odradek.coordinator.timers import Key
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

RETRY_PAUSE_MS: Final = 1_000
OFFSETS_PER_STEP: Final = 1_000
"""Offsets that a step looks at, each group counting as one too, before it begins no other group."""

DeletedTopics = list[tuple[str, bytes]]
"""Name and id of each."""


def delete_offsets(state: ShardState, deleted: DeletedTopics, effects: Effects, now_ms: int) -> None:
    """Delete the offsets of deleted topics, pending ones too; those stored without an id go by name.

    The groups are searched in steps; the first is taken here, the others in `tick`.
    """
    search = _Search(state, deleted)
    state.deletions[search.key] = deleted
    search.take_step(effects, now_ms)


class _Search:
    """One search of all groups for the offsets of deleted topics."""

    __slots__ = ("_deleted", "_ids", "_remaining", "_state", "key")

    def __init__(self, state: ShardState, deleted: DeletedTopics) -> None:
        self.key: Key = (TOPIC_DELETION_KIND, *deleted)
        self._state = state
        self._deleted = deleted
        self._remaining = deque(state.offsets.group_ids())
        self._ids: dict[str, set[bytes]] = {}
        for name, topic_id in deleted:
            self._ids.setdefault(name, {ZERO_UUID}).add(topic_id)

    def take_step(self, effects: Effects, now_ms: int) -> None:
        effects.is_atomic = False
        state, visited = self._state, 0
        while self._remaining and visited < OFFSETS_PER_STEP:
            visited += self._visit(self._remaining.popleft(), effects)
        if effects.records:
            effects.completions.append(OffsetDeletion(state, self._deleted))
        if self._remaining:
            state.timers.schedule(self.key, 0, self.take_step)
        else:
            state.deletions.pop(self.key, None)

    def _visit(self, group_id: str, effects: Effects) -> int:
        """Delete what one group has of the topics; how much that was to look at.

        A tombstone takes away the committed and all pending offsets of its partition. None is written where one of
        them belongs to a later topic of that name: OffsetFetch does not return the others.
        """
        offsets = self._state.offsets
        stored = offsets.topic_ids(group_id, self._ids)
        partitions = [key for key, ids in stored.items() if ids <= self._ids[key[0]]]
        effects.records.extend(offset_tombstones(group_id, partitions))
        return 1 + offsets.count(group_id)


class OffsetDeletion(Completion):
    """Deletes again what could not be deleted: nobody else asks for it a second time.

    If the shard has resigned, because a part was written, its runtime has the next one delete the rest.
    """

    __slots__ = ("deleted", "state")

    def __init__(self, state: ShardState, deleted: DeletedTopics) -> None:
        self.state = state
        self.deleted = deleted

    def written(self, effects: Effects, now_ms: int) -> None:
        pass

    def failed(self, effects: Effects, error: ErrorCode, now_ms: int) -> None:
        logger.warning(
            "offsets of deleted topics not deleted; it is tried again topics=%s error=%s",
            ",".join(name for name, _ in self.deleted), error.name,
        )  # fmt: skip
        key = (TOPIC_DELETION_KIND, *self.deleted)
        self.state.deletions[key] = self.deleted
        self.state.timers.schedule(key, RETRY_PAUSE_MS, partial(delete_offsets, self.state, self.deleted))
