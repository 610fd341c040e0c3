"""UpdateFeatures (key 57)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class UpdateFeaturesRequestFeatureUpdateKey(Struct):
    feature: str
    max_version_level: Int16
    allow_downgrade: bool = field(until=0)
    upgrade_type: Int8 = field(since=1, default=1)


class UpdateFeaturesRequest(Message, key=57, versions="0-2", flexible=0):
    """Change finalized feature levels (KIP-584)."""

    timeout_ms: Int32 = 60000
    feature_updates: list[UpdateFeaturesRequestFeatureUpdateKey]
    validate_only: bool = field(since=1)


class UpdateFeaturesResponseUpdatableFeatureResult(Struct):
    feature: str
    error_code: Int16
    error_message: str | None


class UpdateFeaturesResponse(Message, key=57, versions="0-2", flexible=0):
    """Result for each feature."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None
    results: list[UpdateFeaturesResponseUpdatableFeatureResult] = field(until=1)
