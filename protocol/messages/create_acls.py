"""CreateAcls (key 30)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int8, Int16, Int32


class CreateAclsRequestAclCreation(Struct):
    resource_type: Int8
    resource_name: str
    resource_pattern_type: Int8 = 3
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Message, key=30, versions="1-3", flexible=2):
    """Create ACLs."""

    creations: list[CreateAclsRequestAclCreation]


class CreateAclsResponseAclCreationResult(Struct):
    error_code: Int16
    error_message: str | None


class CreateAclsResponse(Message, key=30, versions="1-3", flexible=2):
    """The result of each ACL, in the order of the request."""

    throttle_time_ms: Int32
    results: list[CreateAclsResponseAclCreationResult]
