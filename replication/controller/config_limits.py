"""Limits of what a resource's configuration may hold, so that it can be stored, described and changed quickly."""

from collections.abc import Mapping
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError

MAX_VALUE_BYTES: Final = (1 << 15) - 1
"""The longest string of DescribeConfigs responses."""


def check_value_sizes(configs: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise KafkaError INVALID_CONFIG for a value longer than the protocol can describe, unless it is a current one."""
    for name, value in configs.items():
        if _is_too_long(value) and value != current.get(name):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the value of {name} may not have more than {MAX_VALUE_BYTES} bytes in UTF-8",
            )


def _is_too_long(value: str) -> bool:
    # A character has at most 4 bytes: most values need not be encoded.
    return 4 * len(value) > MAX_VALUE_BYTES and len(value.encode()) > MAX_VALUE_BYTES
