"""The end of a group: it is gone once its tombstone is written, unless somebody has joined it meanwhile."""

from odradek.coordinator.group import Group
from odradek.coordinator.record_types import group_metadata_tombstone
from odradek.coordinator.result import Completion, Effects
from odradek.coordinator.shard_state import ShardState
from odradek.protocol.errors import ErrorCode


def delete(state: ShardState, groups: list[Group], effects: Effects) -> None:
    """Write tombstones for groups without members, and forget the groups when that is done."""
    if not groups:
        return
    effects.records.extend(group_metadata_tombstone(group.group_id) for group in groups)
    effects.completions.append(_Deletion(state, groups))


class _Deletion(Completion):
    """Forgets groups. A join takes its group out of every deletion that is under way (`Group.deletion`)."""

    __slots__ = ("groups", "state")

    def __init__(self, state: ShardState, groups: list[Group]) -> None:
        self.state = state
        self.groups = groups
        for group in groups:
            group.deletion = self

    def written(self, effects: Effects, now_ms: int) -> None:
        for group in self.groups:
            if group.deletion is self and self.state.groups.get(group.group_id) is group:
                self.state.forget_group(group)

    def failed(self, effects: Effects, error: ErrorCode, now_ms: int) -> None:
        for group in self.groups:
            if group.deletion is self:
                group.deletion = None
