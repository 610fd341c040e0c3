"""PushTelemetry (key 72)."""

from odradek.protocol.schema import Message
from odradek.protocol.types import Int8, Int16, Int32, Uuid


class PushTelemetryRequest(Message, key=72, versions="0", flexible=0):
    """Push metrics of the client, a compressed MetricsData of OpenTelemetry (KIP-714)."""

    client_instance_id: Uuid
    subscription_id: Int32
    terminating: bool
    compression_type: Int8
    metrics: bytes


class PushTelemetryResponse(Message, key=72, versions="0", flexible=0):
    """The result of the push."""

    throttle_time_ms: Int32
    error_code: Int16
