"""The context of a request, and the replies of a handler."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from twisted.internet.defer import Deferred

from odradek.coordinator import request_context
from odradek.replication.replicas.leader_state import NEVER
from odradek.server.refused_batches import RefusedBatches
from odradek.server.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from odradek.server.quotas.charge import RequestCharge
    from odradek.server.security.authorization.rights import Rights

T = TypeVar("T")

Reply: TypeAlias = T | Deferred[T]
"""The reply of a handler: a response, or a Deferred of it. Failures are raised, most of them as KafkaError."""


class NoResponse:
    """The reply of a handler for a request that gets no response (Produce with acks=0)."""


NO_RESPONSE: Final = NoResponse()


class EncodedBody:
    """A response whose body is already encoded, without its header.

    begins_with_throttle_time: the first field is `throttle_time_ms`
    """

    __slots__ = ("begins_with_throttle_time", "body")

    def __init__(self, body: bytes, *, begins_with_throttle_time: bool) -> None:
        self.body = body
        self.begins_with_throttle_time = begins_with_throttle_time


class CloseConnection(Exception):  # noqa: N818 - not an error but an instruction
    """Raised by a handler to close the connection, as Kafka does for a failed produce with acks=0."""


class RequestContext(request_context.RequestContext):
    """The client, listener and version of a request. One object per connection, valid while its request is in progress.

    is_follower: the last fetch was that of another broker
    follower_fetched_ms: time of that fetch, on the monotonic clock, unless it continued a session
    has_input_ended: the client has closed its side of the connection, and may be gone
    principal: the client's identity, ANONYMOUS before it is authenticated
    refused_batches: None before the first of them
    rights: what the client may do by this request; None without authorization
    security_protocol: that of the listener
    on_lost: called when the connection is lost; None if nothing depends on it
    telemetry_instance_id: the client instance that this connection has created (`server.telemetry`)
    charge: the use of quotas by the request in progress; None if no quota applies to it
    throttle_ms: after a response, the time for which no request is to be begun (KIP-219)
    """

    __slots__ = (
        "charge", "client_port", "client_software", "follower_fetched_ms", "has_input_ended", "is_follower",
        "listener_name", "on_lost", "principal", "refused_batches", "rights", "security_protocol",
        "telemetry_instance_id", "throttle_ms",
    )  # fmt: skip

    def __init__(
        self,
        client_host: str,
        listener_name: str,
        security_protocol: str = "PLAINTEXT",
        principal: Principal = ANONYMOUS,
        client_port: int = 0,
    ) -> None:
        super().__init__(api_version=0, client_host=f"/{client_host}")
        self.client_port = client_port
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.principal = principal
        self.client_software = ("unknown", "unknown")
        self.has_input_ended = False
        self.is_follower = False
        self.follower_fetched_ms = NEVER
        self.refused_batches: RefusedBatches | None = None
        self.rights: Rights | None = None
        self.charge: RequestCharge | None = None
        self.throttle_ms = 0
        self.on_lost: Callable[[RequestContext], None] | None = None
        self.telemetry_instance_id: bytes | None = None
