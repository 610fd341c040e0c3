"""DescribeAcls (key 29)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int8, Int16, Int32


class DescribeAclsRequest(Message, key=29, versions="1-3", flexible=2):
    """Describe the ACLs that a filter selects."""

    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


class DescribeAclsResponseAclDescription(Struct):
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class DescribeAclsResponseDescribeAclsResource(Struct):
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = 3
    acls: list[DescribeAclsResponseAclDescription]


class DescribeAclsResponse(Message, key=29, versions="1-3", flexible=2):
    """The selected ACLs, by resource pattern."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    resources: list[DescribeAclsResponseDescribeAclsResource]
