"""Resources that have a configuration, and operations on their values."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

from odradek.properties import Property
from odradek.protocol.errors import ErrorCode, KafkaError

MAX_BROKER_ID: Final = (1 << 31) - 1
_MAX_DIGITS: Final = 10


class ResourceType(IntEnum):
    """Types of resources that have a configuration; the numbers are the protocol's."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs on a value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ClientMetricsConfigs(Protocol):
    """The subscriptions of client metrics (KIP-714), which are not in the image.

    declared: the properties of a subscription, by name
    """

    @property
    def declared(self) -> Mapping[str, Property[Any]]: ...

    def list_names(self) -> Sequence[str]:
        """Return the names of all subscriptions."""

    def find(self, name: str) -> Mapping[str, str]:
        """Return the configuration of a subscription; empty if there is none of this name."""

    def check(self, name: str, configs: Mapping[str, str]) -> None:
        """Raise KafkaError unless a subscription may have this name and configuration."""

    async def put(self, name: str, configs: Mapping[str, str]) -> None:
        """Write and publish a configuration; an empty one removes the subscription. Raises KafkaError."""


def parse_broker_id(name: str) -> int:
    """Return the broker id in a resource name. Raises KafkaError INVALID_REQUEST."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    significant = digits.lstrip("0")
    is_number = digits.isascii() and digits.isdigit()
    if not is_number or len(significant) > _MAX_DIGITS or int(significant or "0") > MAX_BROKER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a broker id must be an integer, but it is: {name}")
    return -int(significant or "0") if name[:1] == "-" else int(significant or "0")
