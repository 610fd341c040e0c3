"""Type of the reactor's listening ports, because Twisted's interface has no types."""

import socket
from typing import Protocol


class Address(Protocol):
    """The address of a port or of a peer."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class ListeningPort(Protocol):
    """A port that accepts connections while the reactor reads it.

    numberAccepts: the number of connections that one read accepts
    """

    socket: socket.socket
    numberAccepts: int

    def getHost(self) -> Address:
        """Return the address that the port is bound to."""

    def startReading(self) -> None:
        """Accept connections."""

    def stopReading(self) -> None:
        """Stop accepting connections until `startReading`."""

    def stopListening(self) -> object:
        """Close the port."""
