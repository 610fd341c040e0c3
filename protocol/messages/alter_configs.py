"""AlterConfigs (key 33)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class AlterConfigsRequestAlterableConfig(Struct):
    name: str
    value: str | None = field(is_secret=True)


class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8
    resource_name: str
    configs: list[AlterConfigsRequestAlterableConfig]


class AlterConfigsRequest(Message, key=33, versions="0-2", flexible=2):
    """Replace the configuration of resources."""

    resources: list[AlterConfigsRequestAlterConfigsResource]
    validate_only: bool


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


class AlterConfigsResponse(Message, key=33, versions="0-2", flexible=2):
    """Result for each resource."""

    throttle_time_ms: Int32
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse]
