"""State of one group coordinator shard, shared by its modules."""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from odradek.coordinator.groups.classic.generation_records import group_from_record
from odradek.coordinator.groups.classic.group import STABLE, Group
from odradek.coordinator.groups.classic.member import Member
from odradek.coordinator.groups.offsets import OffsetStore
from odradek.coordinator.groups.records import GroupChange, OffsetChange
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.timers import DeadlineHeap, DeadlineKey
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

EXPIRY_KEY: Final[DeadlineKey] = ("offset-expiry",)
TOPIC_DELETION_KIND: Final = "topic-deletion"
LARGE_KINDS: Final = frozenset({EXPIRY_KEY[0], TOPIC_DELETION_KIND})
"""Kinds of deadlines whose records may exceed one batch."""


class DeletedTopic(NamedTuple):
    """A deleted topic, and the end offset of the coordinator's partition when the deletion was requested.

    OffsetCommit 2 to 4 with a retention time stores offsets without a topic id. Such an offset belongs to the deleted
    topic if its record is below `end_offset`, otherwise to a later topic of the same name.
    """

    name: str
    topic_id: bytes
    end_offset: int = INT64_MAX


DeletedTopics = list[DeletedTopic]


class UnreplicatedGroup(NamedTuple):
    """An applied group record above the high watermark: its offset, and the group before it (None: no group)."""

    record_offset: int
    before: Group | None


class ShardState:
    """Groups, offsets and deadlines of one partition of `__consumer_offsets`."""

    __slots__ = (
        "_unreplicated",
        "_unreplicated_ids",
        "deletions",
        "groups",
        "offsets",
        "random_uuid",
        "settings",
        "timers",
    )

    def __init__(
        self, settings: GroupSettings, random_uuid: Callable[[], str], monotonic_ms: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.random_uuid = random_uuid
        self.groups: dict[str, Group] = {}
        self.deletions: dict[DeadlineKey, DeletedTopics] = {}
        """Deleted topics whose offsets are being deleted, by the key of the deletion's deadline."""
        self.offsets = OffsetStore()
        self.timers = DeadlineHeap(monotonic_ms)
        self._unreplicated: dict[str, deque[UnreplicatedGroup]] = {}
        self._unreplicated_ids: deque[tuple[int, str]] = deque()  # record offset, group id

    # -- records -------------------------------------------------------------------------------------------------

    def replay_group(
        self, change: GroupChange, offset: int, *, is_replicated: bool, is_loading: bool
    ) -> None:
        """Apply a group's record. During loading the record replaces the group with all its members."""
        group_id, value = change
        group = self.groups.get(group_id)
        if not is_replicated:
            self._save_group(group_id, offset)
        if value is None:
            if group is not None:
                self._remove_group(group)
        elif group is None or is_loading:
            self.groups[group_id] = group_from_record(group_id, value)
        else:
            group.replay(value)

    def replay_offset(
        self, change: OffsetChange, offset: int, producer_id: int, *, is_replicated: bool
    ) -> None:
        """Apply an offset's record. The first offset of a group that does not exist creates the group."""
        group_id, topic, partition, value = change
        if value is not None and group_id not in self.groups:
            if not is_replicated:
                self._save_group(group_id, offset)
            self.groups[group_id] = Group(group_id)
        self.offsets.replay(group_id, topic, partition, value, offset, producer_id, is_replicated=is_replicated)

    def replicated_up_to(self, end_offset: int) -> None:
        """Discard the saved states of records below `end_offset`, which are replicated."""
        self.offsets.replicated_up_to(end_offset)
        ids = self._unreplicated_ids
        while ids and ids[0][0] < end_offset:
            _, group_id = ids.popleft()
            changes = self._unreplicated[group_id]
            changes.popleft()
            if not changes:
                del self._unreplicated[group_id]

    def _save_group(self, group_id: str, offset: int) -> None:
        """Save the group for requests that read, until the record at `offset` is replicated."""
        self._unreplicated.setdefault(group_id, deque()).append(UnreplicatedGroup(offset, self.groups.get(group_id)))
        self._unreplicated_ids.append((offset, group_id))

    # -- groups --------------------------------------------------------------------------------------------------

    def replicated_group(self, group_id: str) -> Group | None:
        """Return the group as of the high watermark, for requests that only read."""
        changes = self._unreplicated.get(group_id)
        return changes[0].before if changes else self.groups.get(group_id)

    def replicated_groups(self) -> list[Group]:
        """Return all groups as of the high watermark."""
        if not self._unreplicated:
            return list(self.groups.values())
        unchanged = [group for group_id, group in self.groups.items() if group_id not in self._unreplicated]
        saved = [changes[0].before for changes in self._unreplicated.values()]
        return unchanged + [group for group in saved if group is not None]

    def awaited_offset(self, group_id: str) -> int:
        """Return the offset of an unreplicated record on which responses about the group depend; -1 for none.

        Such a record deletes the group, or contains a static member's new id in a stable group. Other records of the
        group affect responses only after their replication.
        """
        changes = self._unreplicated.get(group_id)
        if not changes:
            return -1
        group = self.groups.get(group_id)
        return changes[-1].record_offset if group is None or group.state is STABLE else -1

    def group(self, group_id: str, missing: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> Group:
        """Return the group. Raises KafkaError `missing` if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(missing, f"Group {group_id} not found.")
        return group

    def _remove_group(self, group: Group) -> None:
        """Remove a group without members, and its deadlines."""
        del self.groups[group.group_id]
        self.timers.cancel(join_key(group))
        self.timers.cancel(sync_key(group))
        for member_id in group.pending_members:
            self.timers.cancel(session_key(group, member_id))


def join_key(group: Group) -> DeadlineKey:
    """Return the key of the deadline of a group's join phase."""
    return ("join", group.group_id)


def sync_key(group: Group) -> DeadlineKey:
    """Return the key of the deadline for the SyncGroup requests of a generation's members."""
    return ("sync", group.group_id)


def session_key(group: Group, member: Member | str) -> DeadlineKey:
    """Return the key of the session deadline of a member or pending member."""
    return ("session", group.group_id, member if isinstance(member, str) else member.member_id)
