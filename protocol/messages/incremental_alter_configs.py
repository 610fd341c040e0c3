"""IncrementalAlterConfigs (key 44)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: str
    config_operation: Int8
    value: str | None = field(is_secret=True)


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8
    resource_name: str
    configs: list[IncrementalAlterConfigsRequestAlterableConfig]


class IncrementalAlterConfigsRequest(Message, key=44, versions="0-1", flexible=1):
    """Change single configuration values of resources (KIP-339)."""

    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource]
    validate_only: bool


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


class IncrementalAlterConfigsResponse(Message, key=44, versions="0-1", flexible=1):
    """Result for each resource."""

    throttle_time_ms: Int32
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse]
