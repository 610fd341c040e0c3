"""One classic group: its state, its members, and the rules that hold whatever request comes.

Sources: Kafka protocol guide (group membership), KIP-62, KIP-345, KIP-394, KIP-559; behaviour as of Apache Kafka
4.3's group coordinator. Decisions on requests and deadlines are in `joining`, `membership` and `rebalance`.
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
    """State of a classic group, by the name that clients see."""

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
"""Where a group may go from each state. Dead is the end: its coordinator has moved away."""


class Group:
    """A classic group.

    `stored` is what is persistent: one GroupMetadata record per finished generation. Only `replay` changes it. A
    rebalance in progress, parked requests and pending members are transient: they are in memory only and are lost with
    the coordinator. A stable generation is the stored one.
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
        """Ids given out with MEMBER_ID_REQUIRED whose owners have not come back yet (KIP-394)."""
        self.pending_sync: dict[str, None] = {}
        """Members of this generation that have not sent SyncGroup yet."""
        self.subscribed_topics: frozenset[str] | None = None
        """Topics of a group of type "consumer"; None if unknown."""
        self.member_joined_since_delay = False
        """Whether someone came during the current initial delay, which extends it (KIP-134)."""
        self.stored: GroupMetadataValue | None = None
        """The last record in the log; None if the group has none, because it is a mere name for offsets."""
        self._joins_parked = 0
        self._protocol_support: dict[str, int] = {}  # protocol name -> how many members support it
        self._subscriptions: dict[bytes, tuple[int, frozenset[str] | None]] = {}
        """Metadata of a member's protocol -> how often it was sent, and its topics, None if it is not readable."""
        self._last_topics: frozenset[str] = frozenset()

    # -- state ---------------------------------------------------------------------------------------------------

    def change_state(self, new: GroupState, why: str, now_ms: int) -> None:
        """The one place where a group changes its state. All groups die together, which the log need not list."""
        if new not in TRANSITIONS[self.state]:
            raise RuntimeError(f"group {self.group_id} cannot go from {self.state.value} to {new.value} ({why})")
        logger.log(
            logging.DEBUG if new is DEAD else logging.INFO,
            "group state changed group=%s old=%s new=%s generation=%d why=%s",
            self.group_id, self.state.value, new.value, self.generation_id, why,
        )  # fmt: skip
        self.previous_state, self.state = self.state, new
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start in this state; it may not where one is being prepared already."""
        return PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_consumer_type(self) -> bool:
        """Whether members use the embedded protocol "consumer", whose subscriptions the coordinator can read."""
        return self.protocol_type == PROTOCOL_TYPE

    # -- membership ----------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Take in a member whose protocols are supported and whose instance id, if any, is free."""
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
        """Expect a member that was given its id beforehand."""
        self.pending_members[member_id] = None

    def remove(self, member_id: str) -> None:
        """Drop a member or pending member; the leader's place goes to the longest-standing other member.

        Its parked requests must have been taken and answered before.
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
        """Give a static member a new id; its parked requests must have been taken and answered before."""
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
        """UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member holds the instance id (KIP-345), or NONE."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks to be given to rejoin (KIP-62)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- parked joins --------------------------------------------------------------------------------------------

    def park_join(self, member: Member, parked: Parked) -> Parked | None:
        """Let a JoinGroup wait; returns the one that waited before, if any, which the caller must answer."""
        previous, member.parked_join = member.parked_join, parked
        if previous is None:
            self._joins_parked += 1
        return previous

    def take_join(self, member: Member) -> Parked | None:
        """The member's parked JoinGroup, no longer parked."""
        parked, member.parked_join = member.parked_join, None
        if parked is not None:
            self._joins_parked -= 1
        return parked

    @property
    def joins_parked(self) -> int:
        return self._joins_parked

    @property
    def has_all_joined(self) -> bool:
        """Whether every member has a JoinGroup parked and nobody who was given an id is still to come."""
        return len(self.members) == self._joins_parked and not self.pending_members

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that joined; False if there is no leader or nobody joined."""
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
        """Replace what a member supports."""
        old, member.protocols = member.protocols, protocols
        self._count_protocols(member, protocols, 1)
        self._count_protocols(member, old, -1)

    def supports(self, protocol_type: str, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Whether a member with this type and these protocols fits in: one protocol must be common to all."""
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
        """Read what a member sends once, when it joins, and share it between all who send the same."""
        known = self._subscriptions.get(metadata)
        count, topics = (0, self._read_subscription(member, metadata)) if known is None else known
        if count + step:
            self._subscriptions[metadata] = (count + step, topics)
        else:
            del self._subscriptions[metadata]

    def _read_subscription(self, member: Member, metadata: bytes) -> frozenset[str] | None:
        try:
            topics = frozenset(subscribed_topics(metadata))
        except ValueError as error:
            logger.warning(
                "subscription not readable group=%s member=%s error=%s", self.group_id, member.member_id, error
            )
            return None
        if topics != self._last_topics:
            self._last_topics = topics
        # Members that differ in their user data alone share one set.
        return self._last_topics

    def select_protocol(self) -> str:
        """The common protocol with most votes, each member's vote being its own first; the first voted for on a tie."""
        size = len(self.members)
        candidates = {name for name, count in self._protocol_support.items() if count == size}
        return _most_voted(self.members.values(), candidates)

    def select_protocol_with(self, old_member_id: str, replacement: Member) -> str:
        """The choice of `select_protocol` once a member is replaced. The group is not changed."""
        members = self.members_with(old_member_id, replacement)
        return _most_voted(members, set.intersection(*[member.protocol_names() for member in members]))

    def members_with(self, old_member_id: str, replacement: Member) -> list[Member]:
        """The members once one is replaced. The group is not changed."""
        others = [member for member in self.members.values() if member.member_id != old_member_id]
        return [*others, replacement]

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """What all members together subscribe to, where type and chosen protocol let that be known."""
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
        """Whether offsets of the topic are in use; while a consumer group's topics are unknown, all count as used."""
        if self.subscribed_topics is None:
            return self.is_consumer_type
        return topic in self.subscribed_topics

    # -- generations ---------------------------------------------------------------------------------------------

    def start_next_generation(self, now_ms: int) -> None:
        """Close the join phase of a group with members: CompletingRebalance with the chosen protocol."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol()
        self.subscribed_topics = self.compute_subscribed_topics()
        self.pending_sync.clear()
        self.change_state(COMPLETING_REBALANCE, "all members joined or timed out", now_ms)

    @property
    def is_stored(self) -> bool:
        """True if the present generation is in the log; its leader cannot send another assignment then."""
        return self.stored is not None and self.stored.generation == self.generation_id

    def replay(self, value: GroupMetadataValue) -> None:
        """Apply a record that is in the log. A generation with members becomes stable when it is replicated."""
        self.stored = value
        if not value.members and self.state is PREPARING_REBALANCE:
            self.generation_id = value.generation
            self.protocol_name = None
            self.subscribed_topics = self.compute_subscribed_topics()
            self.pending_sync.clear()
            self.change_state(EMPTY, "no members left", value.current_state_timestamp)

    def join_response_members(self) -> list[JoinGroupResponseMember]:
        """The members as the leader gets to see them, with subscriptions for the chosen protocol."""
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
