"""ListConfigResources (key 74)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class ListConfigResourcesRequest(Message, key=74, versions="0-1", flexible=0):
    """List the resources that have a configuration (KIP-1142; ListClientMetricsResources in version 0)."""

    resource_types: list[Int8] = field(since=1)


class ListConfigResourcesResponseConfigResource(Struct):
    resource_name: str
    resource_type: Int8 = field(since=1, default=16)


class ListConfigResourcesResponse(Message, key=74, versions="0-1", flexible=0):
    """The resources."""

    throttle_time_ms: Int32
    error_code: Int16
    config_resources: list[ListConfigResourcesResponseConfigResource]
