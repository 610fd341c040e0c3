"""ApiVersions (key 18)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class ApiVersionsRequest(Message, key=18, versions="0-4", flexible=3):
    """List the APIs and versions that the broker serves (KIP-35, KIP-511)."""

    client_software_name: str = field(since=3)
    client_software_version: str = field(since=3)


class ApiVersionsResponseApiVersion(Struct):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class ApiVersionsResponseSupportedFeatureKey(Struct):
    name: str
    min_version: Int16
    max_version: Int16


class ApiVersionsResponseFinalizedFeatureKey(Struct):
    name: str
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message, key=18, versions="0-4", flexible=3):
    """Served APIs with their versions, and features (KIP-584)."""

    error_code: Int16
    api_keys: list[ApiVersionsResponseApiVersion]
    throttle_time_ms: Int32 = field(since=1)
    supported_features: list[ApiVersionsResponseSupportedFeatureKey] = field(since=3, tag=0)
    finalized_features_epoch: Int64 = field(since=3, tag=1, default=-1)
    finalized_features: list[ApiVersionsResponseFinalizedFeatureKey] = field(since=3, tag=2)
    zk_migration_ready: bool = field(since=3, tag=3)
