"""GetTelemetrySubscriptions (key 71)."""

from odradek.protocol.schema import Message
from odradek.protocol.types import Int8, Int16, Int32, Uuid


class GetTelemetrySubscriptionsRequest(Message, key=71, versions="0", flexible=0):
    """Ask which metrics the broker wants (KIP-714). The first request of a client has a zero id."""

    client_instance_id: Uuid


class GetTelemetrySubscriptionsResponse(Message, key=71, versions="0", flexible=0):
    """The subscription of the client. `requested_metrics` are prefixes of names; `*` stands for all metrics."""

    throttle_time_ms: Int32
    error_code: Int16
    client_instance_id: Uuid
    subscription_id: Int32
    accepted_compression_types: list[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: bool
    requested_metrics: list[str]
