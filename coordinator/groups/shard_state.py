"""What the modules of one group coordinator shard work on together."""

from collections.abc import Callable
from typing import Final, NamedTuple

from odradek.coordinator.groups.classic.group import Group
from odradek.coordinator.groups.classic.member import Member
from odradek.coordinator.groups.offsets import OffsetStore
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.timers import DeadlineHeap, Key
from odradek.properties import INT64_MAX
from odradek.protocol.errors import ErrorCode, KafkaError

EXPIRY_KEY: Final[Key] = ("offset-expiry",)
TOPIC_DELETION_KIND: Final = "topic-deletion"
LARGE_KINDS: Final = frozenset({EXPIRY_KEY[0], TOPIC_DELETION_KIND})
"""Kinds of deadlines whose result may have more records than fit into one batch."""


class DeletedTopic(NamedTuple):
    """A deleted topic, and the end of the partition's log when its deletion was asked for.

    An offset that is stored without a topic id, as OffsetCommit 2 to 4 with a retention time does, is for this topic
    if its record is below that end, and else for a later topic of the same name.
    """

    name: str
    topic_id: bytes
    end_offset: int = INT64_MAX


DeletedTopics = list[DeletedTopic]


class ShardState:
    """Groups, offsets and deadlines of one partition of `__consumer_offsets`."""

    __slots__ = ("deletions", "groups", "offsets", "random_uuid", "settings", "timers")

    def __init__(
        self, settings: GroupSettings, random_uuid: Callable[[], str], monotonic_ms: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.random_uuid = random_uuid
        self.groups: dict[str, Group] = {}
        self.deletions: dict[Key, DeletedTopics] = {}
        """Deleted topics whose offsets are being deleted, by the key of that deadline."""
        self.offsets = OffsetStore()
        self.timers = DeadlineHeap(monotonic_ms)

    def group(self, group_id: str, missing: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> Group:
        """The group; raises `missing` if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(missing, f"Group {group_id} not found.")
        return group

    def forget_group(self, group: Group) -> None:
        """Take a group without members out, with its deadlines."""
        del self.groups[group.group_id]
        self.timers.cancel(join_key(group))
        self.timers.cancel(sync_key(group))
        for member_id in group.pending_members:
            self.timers.cancel(session_key(group, member_id))


def join_key(group: Group) -> Key:
    """The deadline of a group's join phase."""
    return ("join", group.group_id)


def sync_key(group: Group) -> Key:
    """The deadline by which all members of a generation must have synced."""
    return ("sync", group.group_id)


def session_key(group: Group, member: Member | str) -> Key:
    """The deadline by which a member, or a pending one, must be heard of."""
    return ("session", group.group_id, member if isinstance(member, str) else member.member_id)
