"""Deletion of the offsets of deleted topics. A topic created later under the same name must not inherit them."""

import logging
from functools import partial
from typing import Final

from odradek.coordinator.record_types import offset_commit_tombstone
from odradek.coordinator.result import Completion, Effects
from odradek.coordinator.shard_state import TOPIC_DELETION_KIND, ShardState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

RETRY_PAUSE_MS: Final = 1_000

DeletedTopics = list[tuple[str, bytes]]
"""Name and id of each."""


def delete_offsets(state: ShardState, deleted: DeletedTopics, effects: Effects, now_ms: int) -> None:
    """Delete the offsets of deleted topics, pending ones too; those stored without an id go by name.

    A tombstone takes away the committed and all pending offsets of its partition. None is written where one of them
    belongs to a later topic of that name: OffsetFetch does not return the others.
    """
    effects.is_atomic = False
    ids: dict[str, set[bytes]] = {}
    for name, topic_id in deleted:
        ids.setdefault(name, {ZERO_UUID}).add(topic_id)
    partitions: dict[tuple[str, str, int], None] = {}
    spared: set[tuple[str, str, int]] = set()
    for table in (state.offsets.visible, *state.offsets.pending.values()):
        for group_id, topics in table.groups.items():
            for name, deleted_ids in ids.items():
                for index, offset in topics.get(name, {}).items():
                    if offset.value.topic_id in deleted_ids:
                        partitions[group_id, name, index] = None
                    else:
                        spared.add((group_id, name, index))
    for key in spared:
        partitions.pop(key, None)
    if partitions:
        effects.records.extend(offset_commit_tombstone(*key) for key in partitions)
        effects.completions.append(OffsetDeletion(state, deleted))


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
        self.state.timers.schedule(key, RETRY_PAUSE_MS, partial(delete_offsets, self.state, self.deleted))
