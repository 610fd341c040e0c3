"""Expiry of committed offsets, and of groups that have neither members nor offsets (KIP-211).

A shard is searched periodically, in steps. Each step visits some groups in their current state and has its own result.
"""

import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from odradek.coordinator.groups.classic.group import Group
from odradek.coordinator.groups.offsets import can_expire, expired_partitions
from odradek.coordinator.groups.records import group_metadata_tombstone, offset_tombstones
from odradek.coordinator.groups.shard_state import EXPIRY_KEY, ShardState
from odradek.coordinator.result import CoordinatorResult

logger = logging.getLogger(__name__)

OFFSETS_PER_STEP: Final = 1_000
"""Maximum number of offsets that a step visits, in which each group counts as one."""


def schedule_expiry(state: ShardState) -> None:
    """Schedule the next search for expired offsets."""
    delay_ms = state.settings.offsets_retention_check_interval_ms
    state.timers.schedule(
        EXPIRY_KEY, delay_ms, lambda result, now_ms: _Search(state, now_ms).take_step(result, now_ms)
    )


class _Search:
    """One search through a shard. It deletes the offsets and groups that were expired when it began."""

    __slots__ = ("_are_all_expired", "_count", "_now_ms", "_partitions", "_remaining", "_state")

    def __init__(self, state: ShardState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._remaining = deque(state.groups)
        self._partitions: Iterator[tuple[str, int]] | None = None
        """The remaining partitions of the first remaining group; None before its first step."""
        self._are_all_expired = True
        """All offsets of that group that were checked so far are expired."""
        self._count = 0

    def take_step(self, result: CoordinatorResult, now_ms: int) -> None:
        """Delete expired offsets and groups, and schedule the next step or the next search."""
        state = self._state
        result.is_atomic = False
        budget = OFFSETS_PER_STEP
        while self._remaining and budget > 0:
            budget -= self._visit(self._remaining[0], budget, result)
        self._count += len(result.records)
        if self._remaining:
            state.timers.schedule(EXPIRY_KEY, 0, self.take_step)
            return
        if self._count:
            logger.info("expired offsets and groups tombstones=%d", self._count)
        schedule_expiry(state)

    def _visit(self, group_id: str, budget: int, result: CoordinatorResult) -> int:
        """Check up to `budget` offsets of one group. Return their number, plus one for the group.

        The next step continues with the group if it has more offsets.
        """
        state = self._state
        group = state.groups.get(group_id)
        if group is None or not can_expire(group):
            self._next_group()
            return 1
        if self._partitions is None:
            self._partitions = state.offsets.visible.partitions_of_group(group_id)
        checked = list(islice(self._partitions, budget))
        expired = expired_partitions(state.offsets, group, checked, state.settings.offsets_retention_ms, self._now_ms)
        result.records.extend(offset_tombstones(group_id, expired))
        self._are_all_expired = self._are_all_expired and len(expired) == len(checked)
        if len(checked) < budget:
            if self._are_all_expired and self._has_only_expired(group, len(expired)):
                result.records.append(group_metadata_tombstone(group_id))
            self._next_group()
        return 1 + len(checked)

    def _has_only_expired(self, group: Group, expired_count: int) -> bool:
        """Return whether a group has no members and no offsets except the `expired_count` that are being deleted."""
        offsets, group_id = self._state.offsets, group.group_id
        return group.is_empty and not offsets.has_pending(group_id) and offsets.count(group_id) == expired_count

    def _next_group(self) -> None:
        self._remaining.popleft()
        self._partitions = None
        self._are_all_expired = True
