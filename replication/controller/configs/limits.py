"""Size limits of a resource's configuration, so that it can be stored, described and changed quickly."""

from collections.abc import Mapping
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError

MAX_VALUE_BYTES: Final = (1 << 15) - 1
"""The longest string of DescribeConfigs responses."""

MAX_ENTRIES: Final = 1000
MAX_TOTAL_BYTES: Final = 256 << 10
"""Limit of a resource's names and values together: each change and each start encodes or decodes them in one step."""


def check_value_sizes(configs: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise KafkaError INVALID_CONFIG for a value longer than the protocol can describe, unless it is a current one."""
    for name, value in configs.items():
        if _is_too_long(value) and value != current.get(name):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the value of {name} may not have more than {MAX_VALUE_BYTES} bytes in UTF-8",
            )


def check_total_size(configs: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise KafkaError INVALID_CONFIG for a configuration that is too large, unless it is smaller than the current one.

    Only configurations of brokers need this check: they may contain names that are not declared.
    """
    if len(configs) > max(MAX_ENTRIES, len(current)):
        raise too_many_entries()
    total = _total_bytes(configs)
    if total > MAX_TOTAL_BYTES and total > _total_bytes(current):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"a configuration may not have more than {MAX_TOTAL_BYTES} bytes, this one would have {total}",
        )


def too_many_entries() -> KafkaError:
    """Return the error for more entries than a configuration may have."""
    return KafkaError(ErrorCode.INVALID_CONFIG, f"a configuration may not have more than {MAX_ENTRIES} entries")


def _total_bytes(configs: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in configs.items())


def _is_too_long(value: str) -> bool:
    # A character has at most 4 bytes: most values need not be encoded.
    return 4 * len(value) > MAX_VALUE_BYTES and len(value.encode()) > MAX_VALUE_BYTES
