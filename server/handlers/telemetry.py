"""GetTelemetrySubscriptions 0, PushTelemetry 0 (KIP-714)."""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from odradek.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

if TYPE_CHECKING:
    from odradek.server.request import Reply, RequestContext
    from odradek.server.telemetry.client_telemetry import ClientTelemetry


class TelemetryServices(Protocol):
    """The parts of a broker that requests about client metrics need."""

    @property
    def telemetry(self) -> "ClientTelemetry": ...


def get_telemetry_subscriptions(
    services: TelemetryServices, context: "RequestContext", request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that the broker wants from the client."""
    return services.telemetry.get_subscriptions(context, request)


def get_telemetry_subscriptions_error(
    request: GetTelemetrySubscriptionsRequest, version: int, error: KafkaError
) -> GetTelemetrySubscriptionsResponse:
    """Return `error` and no subscription."""
    return GetTelemetrySubscriptionsResponse(error_code=error.code)


def push_telemetry(
    services: TelemetryServices, context: "RequestContext", request: PushTelemetryRequest
) -> "Reply[PushTelemetryResponse]":
    """Store the metrics of a client."""
    return services.telemetry.push(context, request)


def push_telemetry_error(
    request: PushTelemetryRequest, version: int, error: KafkaError
) -> PushTelemetryResponse:
    """Return `error`."""
    return PushTelemetryResponse(error_code=error.code)
