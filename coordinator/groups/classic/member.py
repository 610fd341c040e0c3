"""A member of a classic group."""

from collections.abc import Collection
from typing import NamedTuple

from odradek.coordinator.result import Token
from odradek.protocol.messages.join_group import JoinGroupRequestProtocol

EMPTY_ASSIGNMENT = b""


class Parked(NamedTuple):
    """A request whose response is delayed, and its API version."""

    token: Token
    api_version: int


class Member:
    """A member: its identity, protocols, assignment and parked requests.

    `is_new` is True until the response to its first JoinGroup: until then the client has no member id for heartbeats,
    so the session deadline applies although a request is parked.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "parked_join",
        "parked_sync",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: list[JoinGroupRequestProtocol],
        assignment: bytes = EMPTY_ASSIGNMENT,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.parked_join: Parked | None = None
        self.parked_sync: Parked | None = None
        self.is_new = False

    @property
    def is_static(self) -> bool:
        """Return whether the member has an instance id, which identifies it across restarts (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def is_held_by_parked_request(self) -> bool:
        """Return whether the session cannot expire, because a request is parked."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)

    def with_id(self, member_id: str) -> "Member":
        """Return a copy with another id and without parked requests."""
        return Member(
            member_id=member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            assignment=self.assignment,
        )

    def park_sync(self, parked: Parked) -> Parked | None:
        """Park a SyncGroup. Return the one that was parked before, if any, to which the caller must reply."""
        previous, self.parked_sync = self.parked_sync, parked
        return previous

    def take_sync(self) -> Parked | None:
        """Remove and return the parked SyncGroup."""
        parked, self.parked_sync = self.parked_sync, None
        return parked

    def metadata(self, protocol_name: str) -> bytes:
        """Return the member's metadata for a protocol, which the member must support."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise LookupError(f"member {self.member_id} does not support protocol {protocol_name}")

    def protocol_names(self) -> set[str]:
        return {protocol.name for protocol in self.protocols}

    def vote(self, candidates: Collection[str]) -> str:
        """Return the member's first protocol that is a candidate. Every member supports all candidates."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)
