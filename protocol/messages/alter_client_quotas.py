"""AlterClientQuotas (key 49)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Float64, Int16, Int32


class AlterClientQuotasRequestEntityData(Struct):
    entity_type: str
    entity_name: str | None


class AlterClientQuotasRequestOpData(Struct):
    key: str
    value: Float64
    remove: bool


class AlterClientQuotasRequestEntryData(Struct):
    entity: list[AlterClientQuotasRequestEntityData]
    ops: list[AlterClientQuotasRequestOpData]


class AlterClientQuotasRequest(Message, key=49, versions="0-1", flexible=1):
    """Set or remove quotas of entities."""

    entries: list[AlterClientQuotasRequestEntryData]
    validate_only: bool


class AlterClientQuotasResponseEntityData(Struct):
    entity_type: str
    entity_name: str | None


class AlterClientQuotasResponseEntryData(Struct):
    error_code: Int16
    error_message: str | None
    entity: list[AlterClientQuotasResponseEntityData]


class AlterClientQuotasResponse(Message, key=49, versions="0-1", flexible=1):
    """Result for each entity."""

    throttle_time_ms: Int32
    entries: list[AlterClientQuotasResponseEntryData]
