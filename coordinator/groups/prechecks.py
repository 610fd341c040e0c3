"""Validation of a request before the lookup of its group, and before the check that the coordinator is loaded."""

from odradek.coordinator.groups.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.join_group import JoinGroupRequest
from odradek.protocol.messages.sync_group import SyncGroupRequest

PROTOCOL_REQUIRED_SINCE = 5


def group_id_error(group_id: str) -> ErrorCode:
    """Return INVALID_GROUP_ID for an empty group id, which only OffsetCommit and OffsetFetch accept."""
    return ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID


def join_error_code(settings: GroupSettings, request: JoinGroupRequest) -> ErrorCode:
    """Check the group id and the session timeout of a JoinGroup."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.NONE
    return ErrorCode.INVALID_SESSION_TIMEOUT


def lacks_protocol(request: SyncGroupRequest, api_version: int) -> bool:
    """Return whether a SyncGroup lacks protocol type or name, which are required from version 5 on (KIP-559).

    The response is INCONSISTENT_GROUP_PROTOCOL, and precedes authorization.
    """
    return api_version >= PROTOCOL_REQUIRED_SINCE and (
        request.protocol_type is None or request.protocol_name is None
    )


def sync_error_code(request: SyncGroupRequest, api_version: int) -> ErrorCode:
    """Check the protocol fields and the group id of a SyncGroup."""
    if lacks_protocol(request, api_version):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return group_id_error(request.group_id)
