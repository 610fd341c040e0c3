"""Expiry of committed offsets, and of groups that have neither members nor offsets (KIP-211).

A shard is searched now and then, in steps: each looks at some groups as they are then, and has its own result.
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
"""Most offsets that a step looks at, each group counting as one too, and most tombstones that it writes."""


def schedule_expiry(state: ShardState) -> None:
    """Set the time of the next search for expired offsets."""
    delay_ms = state.settings.offsets_retention_check_interval_ms
    state.timers.schedule(
        EXPIRY_KEY, delay_ms, lambda result, now_ms: _Search(state, now_ms).take_step(result, now_ms)
    )


class _Search:
    """One search through a shard. What it finds is expired as of its begin."""

    __slots__ = ("_are_all_expired", "_count", "_now_ms", "_partitions", "_remaining", "_state")

    def __init__(self, state: ShardState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._remaining = deque(state.groups)
        self._partitions: Iterator[tuple[str, int]] | None = None
        """The partitions of the first of these groups that are still to be checked; None before its first step."""
        self._are_all_expired = True
        """Whether all offsets of that group that have been checked are expired."""
        self._count = 0

    def take_step(self, result: CoordinatorResult, now_ms: int) -> None:
        """Delete what is found, and schedule what follows: the next step, or the next search."""
        state = self._state
        result.is_atomic = False
        room = OFFSETS_PER_STEP
        while self._remaining and room > 0:
            room -= self._visit(self._remaining[0], room, result)
        self._count += len(result.records)
        if self._remaining:
            state.timers.schedule(EXPIRY_KEY, 0, self.take_step)
            return
        if self._count:
            logger.info("expired offsets and groups tombstones=%d", self._count)
        schedule_expiry(state)

    def _visit(self, group_id: str, room: int, result: CoordinatorResult) -> int:
        """Look at up to `room` offsets of one group, and return how many those were, the group counting as one too.

        A group of which that is not all is continued in the next step.
        """
        state = self._state
        group = state.groups.get(group_id)
        if group is None or not can_expire(group):
            self._go_on()
            return 1
        if self._partitions is None:
            self._partitions = state.offsets.visible.partitions_of_group(group_id)
        found = list(islice(self._partitions, room))
        expired = expired_partitions(state.offsets, group, found, state.settings.offsets_retention_ms, self._now_ms)
        result.records.extend(offset_tombstones(group_id, expired))
        self._are_all_expired = self._are_all_expired and len(expired) == len(found)
        if len(found) < room:
            if self._are_all_expired and self._is_finished(group, len(expired)):
                result.records.append(group_metadata_tombstone(group_id))
            self._go_on()
        return 1 + len(found)

    def _is_finished(self, group: Group, expired_count: int) -> bool:
        """Return whether a group has nothing left but so many expired offsets, which are being deleted."""
        offsets, group_id = self._state.offsets, group.group_id
        return group.is_empty and not offsets.has_pending(group_id) and offsets.count(group_id) == expired_count

    def _go_on(self) -> None:
        """Continue with the next group."""
        self._remaining.popleft()
        self._partitions = None
        self._are_all_expired = True
