"""The quotas of each kind of entity, by Kafka's names. Source: Kafka's QuotaConfig."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.properties import INT32_MAX, INT64_MAX

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"


class QuotaKey(NamedTuple):
    """The type of a quota. `integer_type` is Kafka's name of it, with its article; None if fractions are permitted."""

    integer_type: str | None = None
    maximum: float = float("inf")


_LONG: Final = QuotaKey("a LONG", INT64_MAX)

CLIENT_KEYS: Final[Mapping[str, QuotaKey]] = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: QuotaKey(),
    CONTROLLER_MUTATION_RATE: QuotaKey(),
}
"""Quotas of users, client ids and pairs of them."""

IP_KEYS: Final[Mapping[str, QuotaKey]] = {CONNECTION_CREATION_RATE: QuotaKey("an INT", INT32_MAX)}
"""Quotas of IP addresses."""
