"""A connection to a cluster that connects again when it is lost, and repeats the request: for setup and final reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.schema import Message
from odradek.simulation.api import ClientConnection, ConnectionLost

if TYPE_CHECKING:
    from odradek.simulation.world import World

_PAUSE_S: Final = 0.3


class LastingConnection:
    """A connection for requests that may be repeated."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection: ClientConnection | None = None

    async def request(self, message: Message, version: int, *, client_id: str) -> Any:
        """Send a request and return its response, however long that takes."""
        while True:
            try:
                if self._connection is None or self._connection.is_lost:
                    self._connection = None
                    self._connection = await self._world.connect()
                return await self._connection.request(message, version, client_id=client_id)
            except ConnectionLost:
                await self._world.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
