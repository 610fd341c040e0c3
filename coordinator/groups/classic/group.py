"""A classic group: its state, its members, and its invariants.

Sources: Kafka protocol guide (group membership), KIP-62, KIP-345, KIP-394, KIP-559; behaviour as of Apache Kafka
4.3's group coordinator. Requests and deadlines are handled in `joining`, `membership` and `rebalance`.
"""

import logging
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from odradek.coordinator.groups.classic.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from odradek.coordinator.groups.classic.member import Member, Parked
from odradek.coordinator.groups.records import GroupMetadataValue
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.join_group import JoinGroupRequestProtocol, JoinGroupResponseMember

logger = logging.getLogger(__name__)


class GroupState(Enum):
    """State of a classic group. The value is its name in responses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY: Final = GroupState.EMPTY
PREPARING_REBALANCE: Final = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE
DEAD: Final = GroupState.DEAD

TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE, DEAD}),
    PREPARING_REBALANCE: frozenset({COMPLETING_REBALANCE, EMPTY, DEAD}),
    COMPLETING_REBALANCE: frozenset({STABLE, PREPARING_REBALANCE, DEAD}),
    STABLE: frozenset({PREPARING_REBALANCE, DEAD}),
    DEAD: frozenset({DEAD}),
}
"""The allowed transitions from each state. Dead is final: the shard has resigned."""


class Group:
    """A classic group.

    `stored` is the persistent state: the GroupMetadata record of the last complete generation. Only `replay` changes
    it. A rebalance in progress, parked requests and pending members are transient: they are in memory only, and lost
    when the coordinator ends. If the group is stable, its generation is the stored one.
    """

    __slots__ = (
        "_joins_parked",
        "_last_topics",
        "_protocol_support",
        "_subscriptions",
        "generation_id",
        "group_id",
        "leader_id",
        "member_joined_since_delay",
        "members",
        "pending_members",
        "pending_sync",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_members",
        "stored",
        "subscribed_topics",
    )

    def __init__(
        self,
        group_id: str,
        *,
        state: GroupState = EMPTY,
        generation_id: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        leader_id: str | None = None,
        state_since_ms: int | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.previous_state = DEAD
        self.generation_id = generation_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.leader_id = leader_id
        self.state_since_ms = state_since_ms
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.pending_members: dict[str, None] = {}
        """Member ids returned with MEMBER_ID_REQUIRED whose clients have not joined with them yet (KIP-394)."""
        self.pending_sync: dict[str, None] = {}
        """Members of this generation that have not sent SyncGroup yet."""
        self.subscribed_topics: frozenset[str] | None = None
        """Topics of a group of type "consumer"; None if unknown."""
        self.member_joined_since_delay = False
        """A member has joined during the current initial delay, which extends it (KIP-134)."""
        self.stored: GroupMetadataValue | None = None
        """The group's last record in the log; None if there is none, because the group has committed offsets only."""
        self._joins_parked = 0
        self._protocol_support: dict[str, int] = {}  # protocol name -> number of members that support it
        self._subscriptions: dict[bytes, tuple[int, frozenset[str] | None]] = {}
        """Metadata of a member's protocol -> number of members that sent it, and its topics (None: not decodable)."""
        self._last_topics: frozenset[str] = frozenset()

    # -- state ---------------------------------------------------------------------------------------------------

    def change_state(self, new: GroupState, why: str, now_ms: int) -> None:
        """Change the state. A change to Dead is logged at debug level, because it affects all groups of a shard."""
        if new not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group {self.group_id} cannot change from {self.state.value} to {new.value} ({why})")
        logger.log(
            logging.DEBUG if new is DEAD else logging.INFO,
            "group state changed group=%s old=%s new=%s generation=%d why=%s",
            self.group_id, self.state.value, new.value, self.generation_id, why,
        )  # fmt: skip
        self.previous_state, self.state = self.state, new
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Return whether a rebalance may start in this state; not in PreparingRebalance, when one has started."""
        return PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_consumer_type(self) -> bool:
        """Return whether members use the embedded protocol "consumer", whose subscriptions the coordinator can read."""
        return self.protocol_type == PROTOCOL_TYPE

    # -- membership ----------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Add a member whose protocols are supported and whose instance id, if any, is not in use."""
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, member.protocols, 1)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_members.pop(member.member_id, None)

    def add_pending(self, member_id: str) -> None:
        """Add a pending member, whose client has received its id and has not joined with it."""
        self.pending_members[member_id] = None

    def remove(self, member_id: str) -> None:
        """Remove a member or pending member. If it is the leader, the member that joined first becomes the leader.

        The caller must have taken its parked requests and replied to them.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, member.protocols, -1)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.pop(member_id, None)
        self.pending_sync.pop(member_id, None)

    def replace_static_member(self, instance_id: str, old_member_id: str, new_member_id: str) -> Member:
        """Give a static member a new id. The caller must have taken its parked requests and replied to them."""
        member = self.members.pop(old_member_id).with_id(new_member_id)
        self.members[new_member_id] = member
        self.static_members[instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync:
            del self.pending_sync[old_member_id]
            self.pending_sync[new_member_id] = None
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raise the `member_error`, if there is one."""
        error = self.member_error(member_id, instance_id)
        if error:
            raise KafkaError(error)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID if another member has the instance id (KIP-345), or NONE."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def rebalance_timeout_ms(self) -> int:
        """Return the largest rebalance timeout of the members (KIP-62)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- parked joins --------------------------------------------------------------------------------------------

    def park_join(self, member: Member, parked: Parked) -> Parked | None:
        """Park a JoinGroup. Return the one that was parked before, if any, to which the caller must reply."""
        previous, member.parked_join = member.parked_join, parked
        if previous is None:
            self._joins_parked += 1
        return previous

    def take_join(self, member: Member) -> Parked | None:
        """Remove and return the member's parked JoinGroup."""
        parked, member.parked_join = member.parked_join, None
        if parked is not None:
            self._joins_parked -= 1
        return parked

    @property
    def joins_parked(self) -> int:
        return self._joins_parked

    @property
    def has_all_joined(self) -> bool:
        """Return whether every member has a parked JoinGroup and there are no pending members."""
        return len(self.members) == self._joins_parked and not self.pending_members

    def elect_joined_leader(self) -> bool:
        """Replace a leader that has not joined by a member that has. Return whether any member has joined."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].parked_join is not None:
            return True
        for member in self.members.values():
            if member.parked_join is not None:
                old, new = self.leader_id, member.member_id
                logger.info("leader did not rejoin group=%s old=%s new=%s", self.group_id, old, new)
                self.leader_id = member.member_id
                return True
        return False

    # -- protocols -----------------------------------------------------------------------------------------------

    def set_protocols(self, member: Member, protocols: list[JoinGroupRequestProtocol]) -> None:
        """Replace a member's protocols."""
        old, member.protocols = member.protocols, protocols
        self._count_protocols(member, protocols, 1)
        self._count_protocols(member, old, -1)

    def supports(self, protocol_type: str, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Return whether a member with these protocols may join: one protocol must be common to all members."""
        if self.state is EMPTY:
            return bool(protocol_type) and bool(protocols)
        size, support = len(self.members), self._protocol_support
        return protocol_type == self.protocol_type and any(support.get(item.name, 0) == size for item in protocols)

    def _count_protocols(self, member: Member, protocols: list[JoinGroupRequestProtocol], step: int) -> None:
        for name in dict.fromkeys(protocol.name for protocol in protocols):
            self._protocol_support[name] = count = self._protocol_support.get(name, 0) + step
            if not count:
                del self._protocol_support[name]
        if self.is_consumer_type:
            for protocol in protocols:
                self._count_subscription(member, protocol.metadata, step)

    def _count_subscription(self, member: Member, metadata: bytes, step: int) -> None:
        """Decode a subscription when the first member sends it; members that send the same bytes share it."""
        counted = self._subscriptions.get(metadata)
        count, topics = (0, self._read_subscription(member, metadata)) if counted is None else counted
        if count + step:
            self._subscriptions[metadata] = (count + step, topics)
        else:
            del self._subscriptions[metadata]

    def _read_subscription(self, member: Member, metadata: bytes) -> frozenset[str] | None:
        try:
            topics = frozenset(subscribed_topics(metadata))
        except ValueError as error:
            logger.warning(
                "cannot decode subscription group=%s member=%s error=%s", self.group_id, member.member_id, error
            )
            return None
        if topics != self._last_topics:
            self._last_topics = topics
        # Members whose metadata differs only in user data share one set of topics.
        return self._last_topics

    def select_protocol(self) -> str:
        """Return the common protocol with the most votes; each member votes for the first of its common protocols."""
        size = len(self.members)
        candidates = {name for name, count in self._protocol_support.items() if count == size}
        return _most_voted(self.members.values(), candidates)

    def select_protocol_with(self, old_member_id: str, replacement: Member) -> str:
        """Return the result of `select_protocol` after the replacement of a member. The group is not changed."""
        members = self.members_with(old_member_id, replacement)
        return _most_voted(members, set.intersection(*[member.protocol_names() for member in members]))

    def members_with(self, old_member_id: str, replacement: Member) -> list[Member]:
        """Return the members after the replacement of one. The group is not changed."""
        others = [member for member in self.members.values() if member.member_id != old_member_id]
        return [*others, replacement]

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members subscribe to; None if they are unknown."""
        if not self.is_consumer_type:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        distinct: dict[int, frozenset[str]] = {}
        for member in self.members.values():
            _, topics = self._subscriptions[member.metadata(self.protocol_name)]
            if topics is None:
                return None
            distinct[id(topics)] = topics
        first, *others = distinct.values()
        return first.union(*others) if others else first

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the group subscribes to the topic; True if a consumer group's topics are unknown."""
        if self.subscribed_topics is None:
            return self.is_consumer_type
        return topic in self.subscribed_topics

    # -- generations ---------------------------------------------------------------------------------------------

    def start_next_generation(self, now_ms: int) -> None:
        """End the join phase of a group with members: change to CompletingRebalance with the selected protocol."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol()
        self.subscribed_topics = self.compute_subscribed_topics()
        self.pending_sync.clear()
        self.change_state(COMPLETING_REBALANCE, "all members joined or timed out", now_ms)

    @property
    def is_stored(self) -> bool:
        """Return whether the current generation is in the log, so that its leader cannot send another assignment."""
        return self.stored is not None and self.stored.generation == self.generation_id

    def replay(self, value: GroupMetadataValue) -> None:
        """Apply a record. A generation with members becomes stable later, when the record is replicated."""
        self.stored = value
        if not value.members and self.state is PREPARING_REBALANCE:
            self.generation_id = value.generation
            self.protocol_name = None
            self.subscribed_topics = self.compute_subscribed_topics()
            self.pending_sync.clear()
            self.change_state(EMPTY, "no members left", value.current_state_timestamp)

    def join_response_members(self) -> list[JoinGroupResponseMember]:
        """Return the members for the leader's response, with their subscriptions for the selected protocol."""
        assert self.protocol_name is not None
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]


def _most_voted(members: Iterable[Member], candidates: Collection[str]) -> str:
    votes: dict[str, int] = {}
    for member in members:
        name = member.vote(candidates)
        votes[name] = votes.get(name, 0) + 1
    return max(votes, key=votes.__getitem__)
