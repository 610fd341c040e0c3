"""What a handler sees of a request besides its message, and what it may answer besides a response."""

from typing import Final

from odradek.coordinator import request_context


class NoResponse:
    """What a handler returns when nothing is to be sent (Produce with acks=0)."""


NO_RESPONSE: Final = NoResponse()


class EncodedBody:
    """A response whose body, all that follows the header, is encoded already."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


class CloseConnection(Exception):  # noqa: N818 - not an error but an instruction
    """Raised by a handler that has to close the connection, as Kafka does for a failed produce with acks=0."""


class RequestContext(request_context.RequestContext):
    """Who asks, and how. One object per connection, valid while its request is in progress.

    has_input_ended: the client has closed its side of the connection, and may be gone
    """

    __slots__ = ("client_software", "has_input_ended", "listener_name")

    def __init__(self, client_host: str, listener_name: str) -> None:
        super().__init__(api_version=0, client_host=f"/{client_host}")
        self.listener_name = listener_name
        self.client_software = ("unknown", "unknown")
        self.has_input_ended = False
