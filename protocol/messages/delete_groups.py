"""DeleteGroups (key 42)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32


class DeleteGroupsRequest(Message, key=42, versions="0-2", flexible=2):
    """Delete empty groups (KIP-229)."""

    groups_names: list[str]


class DeleteGroupsResponseDeletableGroupResult(Struct):
    group_id: str
    error_code: Int16


class DeleteGroupsResponse(Message, key=42, versions="0-2", flexible=2):
    """Result for each group."""

    throttle_time_ms: Int32
    results: list[DeleteGroupsResponseDeletableGroupResult]
