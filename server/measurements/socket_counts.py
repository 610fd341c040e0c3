"""Counts of the connections of a listener, and of what passes through them."""


class SocketCounts:
    """Connections, requests and responses since the start.

    created, closed: connections
    received_bytes, sent_bytes: on sockets; with TLS before encryption and after decryption, as in Kafka
    requests: frames that have arrived, also of requests that are refused
    responses: those that were passed to the writers
    """

    __slots__ = ("closed", "created", "received_bytes", "requests", "responses", "sent_bytes")

    def __init__(self) -> None:
        self.created = self.closed = self.received_bytes = self.sent_bytes = self.requests = self.responses = 0
