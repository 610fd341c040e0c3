"""What is checked of a request before its group is looked at, even before the coordinator is known to be loaded."""

from odradek.coordinator.groups.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.join_group import JoinGroupRequest
from odradek.protocol.messages.sync_group import SyncGroupRequest

PROTOCOL_REQUIRED_SINCE = 5


def group_id_error(group_id: str) -> ErrorCode:
    """An empty group id serves for offsets (OffsetCommit, OffsetFetch) and nothing else."""
    return ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID


def join_error_code(settings: GroupSettings, request: JoinGroupRequest) -> ErrorCode:
    """JoinGroup: the group id and the session timeout's range."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.NONE
    return ErrorCode.INVALID_SESSION_TIMEOUT


def lacks_protocol(request: SyncGroupRequest, api_version: int) -> bool:
    """SyncGroup from version 5 on must name protocol type and protocol (KIP-559).

    The answer is INCONSISTENT_GROUP_PROTOCOL and comes even before authorization.
    """
    return api_version >= PROTOCOL_REQUIRED_SINCE and (
        request.protocol_type is None or request.protocol_name is None
    )


def sync_error_code(request: SyncGroupRequest, api_version: int) -> ErrorCode:
    """SyncGroup: the protocol fields and the group id."""
    if lacks_protocol(request, api_version):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return group_id_error(request.group_id)
