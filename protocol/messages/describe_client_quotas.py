"""DescribeClientQuotas (key 48)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Float64, Int8, Int16, Int32


class DescribeClientQuotasRequestComponentData(Struct):
    entity_type: str
    match_type: Int8
    match: str | None


class DescribeClientQuotasRequest(Message, key=48, versions="0-1", flexible=1):
    """Return the quotas of the entities that match all components."""

    components: list[DescribeClientQuotasRequestComponentData]
    strict: bool


class DescribeClientQuotasResponseEntityData(Struct):
    entity_type: str
    entity_name: str | None


class DescribeClientQuotasResponseValueData(Struct):
    key: str
    value: Float64


class DescribeClientQuotasResponseEntryData(Struct):
    entity: list[DescribeClientQuotasResponseEntityData]
    values: list[DescribeClientQuotasResponseValueData]


class DescribeClientQuotasResponse(Message, key=48, versions="0-1", flexible=1):
    """The quotas of each entity; null entries with an error."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    entries: list[DescribeClientQuotasResponseEntryData] | None
