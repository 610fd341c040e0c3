"""Properties of a subscription of client metrics: `metrics`, `interval.ms`, `match` (KIP-714).

Checks and errors as of Apache Kafka 4.3's ClientMetricsConfigs. A client matches if all patterns of `match` match; the
last one of a parameter counts. Values are stored as Kafka describes them: trimmed, and lists without duplicates.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from odradek.coordinator.linear_pattern import LinearPattern
from odradek.properties import PropertyError, PropertySet, integer, string_list
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.server.security.java_patterns import compile_java_pattern

ALL_METRICS: Final = "*"
DEFAULT_INTERVAL_MS: Final = 300_000
MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000

CLIENT_INSTANCE_ID: Final = "client_instance_id"
CLIENT_ID: Final = "client_id"
CLIENT_SOFTWARE_NAME: Final = "client_software_name"
CLIENT_SOFTWARE_VERSION: Final = "client_software_version"
CLIENT_SOURCE_ADDRESS: Final = "client_source_address"
CLIENT_SOURCE_PORT: Final = "client_source_port"
_PARAMETERS: Final = frozenset({
    CLIENT_INSTANCE_ID,
    CLIENT_ID,
    CLIENT_SOFTWARE_NAME,
    CLIENT_SOFTWARE_VERSION,
    CLIENT_SOURCE_ADDRESS,
    CLIENT_SOURCE_PORT,
})  # fmt: skip


class SubscriptionProperties(PropertySet):
    """The properties, with the documentation of Apache Kafka."""

    interval_ms = integer("interval.ms", DEFAULT_INTERVAL_MS, doc="Metrics push interval in milliseconds")
    match = string_list("match", (), doc="Client match criteria")
    metrics = string_list("metrics", (), doc="Telemetry metric name prefix list")


MAX_PATTERN_INSTRUCTIONS: Final = 200
"""Size of a pattern of `match`. An attribute of 128 characters is compared with it in at most some 10 ms."""


class Subscription(NamedTuple):
    """A valid subscription. `metrics` are prefixes of names; `patterns` are by parameter."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: tuple[tuple[str, LinearPattern], ...]


def parse_subscription(name: str, configs: Mapping[str, str]) -> Subscription:
    """Return the subscription that a resource has. Raises KafkaError, in the order of Kafka's checks."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    unknown = [key for key in configs if not SubscriptionProperties.takes(key)]
    if unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {unknown[0]}")
    try:
        parsed = SubscriptionProperties(configs)
    except PropertyError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    for key in ("metrics", "match"):
        if "" in parsed.value(key):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Configuration '{key}' values must not be empty.")
    if not MIN_INTERVAL_MS <= parsed.interval_ms <= MAX_INTERVAL_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {parsed.interval_ms} for interval.ms, interval must be between {MIN_INTERVAL_MS} and "
            f"{MAX_INTERVAL_MS} (1 hour)",
        )
    patterns = dict(_parse_pattern(text) for text in parsed.match)
    return Subscription(tuple(dict.fromkeys(parsed.metrics)), parsed.interval_ms, tuple(patterns.items()))


def normalize(configs: Mapping[str, str]) -> dict[str, str]:
    """Return valid values as Kafka describes them."""
    parsed = SubscriptionProperties(configs)
    normalized = {}
    for name in configs:
        value = parsed.value(name)
        if isinstance(value, tuple):
            value = tuple(dict.fromkeys(value))
        normalized[name] = SubscriptionProperties.declared()[name].format(value) or ""
    return normalized


def _parse_pattern(text: str) -> tuple[str, LinearPattern]:
    # As Java splits: without the empty parts at the end.
    parts = text.rstrip("=").split("=")
    parameter = parts[0].strip()
    if len(parts) != 2 or parameter not in _PARAMETERS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {text}")
    try:
        pattern = LinearPattern(compile_java_pattern(parts[1].strip()).pattern)
        if pattern.size > MAX_PATTERN_INSTRUCTIONS:
            raise ValueError("the pattern is too long")
        return parameter, pattern
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {text}: {error}") from None
