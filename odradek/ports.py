"""Ports of servers that tests start, stop and restart."""

import socket
import sys
import weakref


class PortReservation:
    """A port of 127.0.0.1 that no other process receives until `release`, also while its server is down.

    The port belongs to a socket that is bound and does not listen. Linux gives such a port neither to an outgoing
    connection nor to a server that asks for any port, and a server that sets SO_REUSEADDR can listen on it, as
    Odradek and Java do. Elsewhere that server would be refused, so that the port is free but not reserved.

    `port` is one that is free, such as one of `find_ports`, which finds no reserved port; 0 for any.
    """

    def __init__(self, port: int = 0) -> None:
        bound = socket.socket()
        self._release = weakref.finalize(self, bound.close)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        self.port: int = bound.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Leave the port to others."""
        self._release()
