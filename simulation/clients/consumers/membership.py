"""A group member of the classic protocol: join, sync, heartbeat, leave; range assignment."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupRequestMemberIdentity
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.simulation.api import ConnectionLost
from odradek.simulation.clients.link import GROUP, NEEDS_IDS, RETRIABLE, GaveUp, Link
from odradek.simulation.history import Partition

PROTOCOL: Final = "range"
PROTOCOL_TYPE: Final = "consumer"
_MOST_JOINS: Final = 300
_FASTEST_CLOCK: Final = 1.01
"""The rate of a broker's monotonic clock, at most."""

STATIC_LIMITS: Final = {11: (5, 9), 14: (3, 5), 12: (3, 4), 8: (7, 10), 13: (3, 5)}
"""Versions with group.instance.id (KIP-345)."""
LIMITS: Final = NEEDS_IDS | {1: (10, 18)}

LOST_MEMBERSHIP: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
)
"""Errors after which a member owns no partitions."""


class FencedMember(Exception):  # noqa: N818 - an event, not a programming error
    """Another instance has the id of this static member."""


class Membership:
    """A member. `partitions` are all partitions of the group.

    generation, member_id: from the last JoinGroup response
    """

    def __init__(
        self, link: Link, group: str, partitions: Sequence[Partition], random: Random, instance_id: str | None = None
    ) -> None:
        self.group = group
        self.generation = -1
        self.member_id = ""
        self.instance_id = instance_id
        self.session_timeout_ms = random.choice((300, 1_000, 3_000))
        self._rebalance_timeout_ms = random.choice((300, 1_000, 3_000))
        self._partitions = partitions
        self._link = link
        self._last_heartbeat_ms = 0
        self._confirmed: tuple[Any, float] | None = None
        """Connection and send time, in seconds, of the last request that confirmed the membership."""
        self._joined_over: Any = None

    async def join(self) -> list[Partition]:
        """Join the next generation; return the assigned partitions. Raises GaveUp and FencedMember."""
        self._confirmed = None
        await self._link.find_coordinator(self.group, GROUP)
        for attempt in range(_MOST_JOINS):
            try:
                joined = await self._link.request(self._join_request())
                if joined.error_code == ErrorCode.NONE:
                    owned = await self._sync(joined)
                    if owned is not None:
                        return owned
                else:
                    self._refused("JoinGroup", joined)
            except ConnectionLost:
                pass
            await self._link.back_off(min(attempt, 3))
        self._link.history.note_odd(self._link.name, f"could not join {self.group}")
        raise GaveUp(self._link.name)

    def _join_request(self) -> JoinGroupRequest:
        topics = list(dict.fromkeys(topic for topic, _ in self._partitions))
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=_subscription(topics))],
        )

    async def _sync(self, joined: Any) -> list[Partition] | None:
        """Send SyncGroup, as leader with the assignment; return the own one, None if the rebalance continues."""
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assignments = []
        if joined.leader == self.member_id and not joined.skip_assignment:
            shares = _ranges([member.member_id for member in joined.members], self._partitions)
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=_assignment(owned))
                for member, owned in shares.items()
            ]
        connection = await self._link.connection()
        invoked = self._link.history.moment()
        synced = await self._link.request(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL,
                assignments=assignments,
            )
        )
        if synced.error_code != ErrorCode.NONE:
            self._refused("SyncGroup", synced)
            return None
        owned = _assigned(synced.assignment)
        self._last_heartbeat_ms = self._link.world.now_ms()
        self._joined_over = connection
        # A static member keeps its partitions and generation under a new member id.
        owner = self.instance_id or self.member_id
        self._link.history.record_assignment(self._link.name, invoked, self.group, self.generation, owner, owned)
        return owned

    def _refused(self, what: str, response: Any) -> None:
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            raise FencedMember(self._link.name)
        elif code not in RETRIABLE and code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._link.history.note_odd(self._link.name, f"{what}: {ErrorCode(code).name}")

    async def heartbeat(self) -> int:
        """Send a heartbeat if it is due; return the error code. Raises ConnectionLost."""
        now_ms = self._link.world.now_ms()
        if now_ms - self._last_heartbeat_ms < self.session_timeout_ms // 4:
            return ErrorCode.NONE
        self._last_heartbeat_ms = now_ms
        clock = self._link.world.clock
        connection, sent_s = await self._link.connection(), clock.seconds()
        response = await self._link.request(
            HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
        )
        code = int(response.error_code)
        if code == ErrorCode.UNKNOWN_MEMBER_ID and self._confirmed is not None:
            self._check_expulsion(connection, clock.seconds())
        # A coordinator that has restarted and is loading responds without an error, regardless of the group's state.
        is_confirmed = code == ErrorCode.NONE and connection is self._joined_over
        self._confirmed = (connection, sent_s) if is_confirmed else None
        return code

    def _check_expulsion(self, connection: Any, now_s: float) -> None:
        """Report the expulsion of a member that sent heartbeats in time; the broker's wall clock must not matter.

        Within one connection the broker has not restarted, and within the rebalance timeout no rebalance ended without
        this member.
        """
        assert self._confirmed is not None
        confirmed_over, confirmed_s = self._confirmed
        silent_ms = (now_s - confirmed_s) * 1000
        timeout_ms = min(self.session_timeout_ms, self._rebalance_timeout_ms)
        if confirmed_over is connection and silent_ms * _FASTEST_CLOCK < timeout_ms:
            self._link.history.note_odd(
                self._link.name, f"expelled from {self.group} {silent_ms:.0f} ms after it was a member"
            )

    def forget(self, code: int) -> None:
        """Prepare to join again after an error, without a member id that the coordinator does not have.

        Raises FencedMember if another instance has the static member's id.
        """
        if code == ErrorCode.FENCED_INSTANCE_ID:
            raise FencedMember(self._link.name)
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    async def leave(self) -> None:
        """Send LeaveGroup once, and wait for the response; a lost connection is no error."""
        member = LeaveGroupRequestMemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        with suppress(ConnectionLost):
            await self._link.request(
                LeaveGroupRequest(group_id=self.group, member_id=self.member_id, members=[member])
            )


def _ranges(members: Iterable[str], partitions: Sequence[Partition]) -> dict[str, list[Partition]]:
    """Assign each topic's partitions in contiguous ranges; the first members get one more."""
    ordered = sorted(members)
    shares: dict[str, list[Partition]] = {member: [] for member in ordered}
    topics: dict[str, list[Partition]] = {}
    for partition in partitions:
        topics.setdefault(partition[0], []).append(partition)
    for rows in topics.values():
        for position, partition in enumerate(sorted(rows)):
            shares[ordered[position * len(ordered) // len(rows)]].append(partition)
    return shares


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _subscription(topics: Sequence[str]) -> bytes:
    """ConsumerProtocolSubscription version 0."""
    return struct.pack(">hi", 0, len(topics)) + b"".join(map(_string, topics)) + struct.pack(">i", -1)


def _assignment(partitions: Iterable[Partition]) -> bytes:
    """ConsumerProtocolAssignment version 0."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    rows = b"".join(
        _string(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes) for topic, indexes in topics.items()
    )
    return struct.pack(">hi", 0, len(topics)) + rows + struct.pack(">i", -1)


def _assigned(data: bytes) -> list[Partition]:
    """Return the partitions of a ConsumerProtocolAssignment; none if it is empty."""
    if not data:
        return []
    (count,) = struct.unpack_from(">i", data, 2)
    position = 6
    partitions = []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, position)
        topic = bytes(data[position + 2 : position + 2 + length]).decode()
        position += 2 + length
        (indexes,) = struct.unpack_from(">i", data, position)
        partitions += [(topic, index) for index in struct.unpack_from(f">{indexes}i", data, position + 4)]
        position += 4 + 4 * indexes
    return partitions

