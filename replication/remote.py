"""Interfaces to the other brokers of a cluster.

The implementations are in `server`: this package performs no I/O. Coroutines of this package await what these methods
return.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from odradek.protocol.schema import Message
from odradek.replication.metadata.image import BrokerMetadata

Response = TypeVar("Response", bound=Message)

Delay = Callable[[int], Awaitable[None]]
"""Returns after a number of ms."""


class BrokerUnavailableError(Exception):
    """No response came: no connection, a lost connection, or a timeout. The request may have been processed."""


class BrokerChannel(Protocol):
    """Sends requests to one broker over one connection, one at a time, in their order. It connects when needed."""

    async def send(self, request: Message, response_type: type[Response], version: int | None = None) -> Response:
        """Send a request and return its response.

        version: sent as it is; None for the latest version that both brokers have, which the channel asks for first.
        Raises BrokerUnavailableError.
        """

    def close(self) -> None:
        """Close the connection. Requests that wait for a response raise BrokerUnavailableError."""


class BrokerChannels(Protocol):
    """Opens channels to the inter-broker listeners of other brokers."""

    def open(self, broker: BrokerMetadata, *, client_id: str, timeout_ms: int) -> BrokerChannel:
        """Return a new channel; nothing is sent before its first request.

        timeout_ms: maximum time from sending a request to its response, and for connecting
        """


class ControllerRequests(Protocol):
    """Sends requests to the broker that is the controller now, which may be this one."""

    async def send(self, request: Message, response_type: type[Response]) -> Response:
        """Send a request and return its response. Raises BrokerUnavailableError, also while there is no controller.

        A response with NOT_CONTROLLER is returned as any other; the caller repeats the request later.
        """
