"""Requests to the controller, which is found in the metadata image and may be this broker."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from odradek.protocol.schema import Message
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, MetadataDelta
from odradek.replication.remote import BrokerChannel, BrokerChannels, BrokerUnavailableError

Response = TypeVar("Response", bound=Message)

LocalHandlers = Mapping[type[Message], Callable[[Message], Awaitable[Message]]]
"""By request class, the function of this broker's controller."""


class ControllerClient:
    """Sends requests to the controller (`replication.remote.ControllerRequests`).

    When another broker becomes the controller, requests without a response fail, so that their callers repeat them.

    local: called instead while this broker is the controller
    """

    def __init__(
        self,
        broker_id: int,
        metadata: ClusterMetadata,
        channels: BrokerChannels,
        local: LocalHandlers,
        *,
        client_id: str,
        timeout_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._channels = channels
        self._local = local
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._broker: BrokerMetadata | None = None
        self._channel: BrokerChannel | None = None
        metadata.listeners.append(self._follow)

    async def send(self, request: Message, response_type: type[Response]) -> Response:
        """Send a request and return its response (`ControllerRequests.send`)."""
        if self._metadata.controller_id == self._broker_id:
            response = await self._local[type(request)](request)
        else:
            response = await self._open_channel().send(request, response_type)
        if not isinstance(response, response_type):
            raise TypeError(f"{type(response).__name__} is not a {response_type.__name__}")
        return response

    def close(self) -> None:
        """Close the connection to the controller. Requests without a response raise BrokerUnavailableError."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open_channel(self) -> BrokerChannel:
        """Return the channel to the controller. Raises BrokerUnavailableError."""
        broker = self._controller()
        if broker is None:
            raise BrokerUnavailableError("the metadata has no live controller")
        if self._channel is None or broker != self._broker:
            self.close()
            self._broker = broker
            self._channel = self._channels.open(broker, client_id=self._client_id, timeout_ms=self._timeout_ms)
        return self._channel

    def _controller(self) -> BrokerMetadata | None:
        return self._metadata.brokers.get(self._metadata.controller_id)

    def _follow(self, _: MetadataDelta) -> None:
        """Close the channel if its broker is no longer the controller."""
        if self._channel is not None and self._controller() != self._broker:
            self.close()
