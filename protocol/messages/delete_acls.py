"""DeleteAcls (key 31)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int8, Int16, Int32


class DeleteAclsRequestDeleteAclsFilter(Struct):
    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


class DeleteAclsRequest(Message, key=31, versions="1-3", flexible=2):
    """Delete the ACLs that any of the filters selects."""

    filters: list[DeleteAclsRequestDeleteAclsFilter]


class DeleteAclsResponseDeleteAclsMatchingAcl(Struct):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = 3
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class DeleteAclsResponseDeleteAclsFilterResult(Struct):
    error_code: Int16
    error_message: str | None
    matching_acls: list[DeleteAclsResponseDeleteAclsMatchingAcl]


class DeleteAclsResponse(Message, key=31, versions="1-3", flexible=2):
    """The ACLs that each filter deleted, in the order of the request."""

    throttle_time_ms: Int32
    filter_results: list[DeleteAclsResponseDeleteAclsFilterResult]
