"""Expiry of committed offsets, and of groups that have neither members nor offsets (KIP-211).

A shard is searched now and then, in steps: each looks at some groups as they are then, and has its own result.
"""

import logging
from collections import deque
from typing import Final

from odradek.coordinator.offsets import expired_partitions
from odradek.coordinator.record_types import group_metadata_tombstone, offset_tombstones
from odradek.coordinator.result import Effects
from odradek.coordinator.shard_state import EXPIRY_KEY, ShardState

logger = logging.getLogger(__name__)

OFFSETS_PER_STEP: Final = 1_000
"""Most offsets that a step looks at, each group counting as one too, and most tombstones that it writes."""


def schedule_expiry(state: ShardState) -> None:
    """Set the time of the next search for expired offsets."""
    delay_ms = state.settings.offsets_retention_check_interval_ms
    state.timers.schedule(
        EXPIRY_KEY, delay_ms, lambda effects, now_ms: _Search(state, now_ms).take_step(effects, now_ms)
    )


class _Search:
    """One search through a shard. What it finds is expired as of its begin."""

    __slots__ = ("_count", "_now_ms", "_remaining", "_state")

    def __init__(self, state: ShardState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._remaining: deque[tuple[str, int]] = deque((group_id, 0) for group_id in state.groups)
        """Group id, and how many more steps it may take after the next one; 0 if that is not known yet."""
        self._count = 0

    def take_step(self, effects: Effects, now_ms: int) -> None:
        """Delete what is found, and schedule what follows: the next step, or the next search."""
        state = self._state
        effects.is_atomic = False
        visited = 0
        while self._remaining and visited < OFFSETS_PER_STEP and len(effects.records) < OFFSETS_PER_STEP:
            visited += self._visit(*self._remaining.popleft(), effects)
        self._count += len(effects.records)
        if self._remaining:
            state.timers.schedule(EXPIRY_KEY, 0, self.take_step)
            return
        if self._count:
            logger.info("expired offsets and groups tombstones=%d", self._count)
        schedule_expiry(state)

    def _visit(self, group_id: str, steps_left: int, effects: Effects) -> int:
        """Look at one group, and return how many offsets that took. A large one is come back to in the next step."""
        state = self._state
        group = state.groups.get(group_id)
        if group is None:
            return 1
        retention_ms = state.settings.offsets_retention_ms
        expired, is_all = expired_partitions(state.offsets, group, retention_ms, self._now_ms)
        effects.records.extend(offset_tombstones(group_id, expired[:OFFSETS_PER_STEP]))
        if len(expired) > OFFSETS_PER_STEP:
            # As often as its size asks for, and no more: tombstones may be refused.
            steps_left = (steps_left or 1 + len(expired) // OFFSETS_PER_STEP) - 1
            if steps_left:
                self._remaining.appendleft((group_id, steps_left))
        elif is_all and group.is_empty:
            effects.records.append(group_metadata_tombstone(group_id))
        return 1 + state.offsets.count(group_id)
