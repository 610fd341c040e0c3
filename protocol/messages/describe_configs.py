"""DescribeConfigs (key 32)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class DescribeConfigsRequestDescribeConfigsResource(Struct):
    resource_type: Int8
    resource_name: str
    configuration_keys: list[str] | None


class DescribeConfigsRequest(Message, key=32, versions="1-4", flexible=4):
    """Describe the configuration of resources."""

    resources: list[DescribeConfigsRequestDescribeConfigsResource]
    include_synonyms: bool
    include_documentation: bool = field(since=3)


class DescribeConfigsResponseDescribeConfigsSynonym(Struct):
    name: str
    value: str | None
    source: Int8


class DescribeConfigsResponseDescribeConfigsResourceResult(Struct):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool
    synonyms: list[DescribeConfigsResponseDescribeConfigsSynonym]
    config_type: Int8 = field(since=3)
    documentation: str | None = field(since=3)


class DescribeConfigsResponseDescribeConfigsResult(Struct):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: list[DescribeConfigsResponseDescribeConfigsResourceResult]


class DescribeConfigsResponse(Message, key=32, versions="1-4", flexible=4):
    """Configurations with their sources, synonyms (KIP-226) and documentation (KIP-569)."""

    throttle_time_ms: Int32
    results: list[DescribeConfigsResponseDescribeConfigsResult]
