"""Counts of authentications on a listener with TLS or SASL."""


class AuthenticationCounts:
    """Authentications since the start.

    successful: of new connections; reauthenticated: of sessions again (KIP-368)
    expired: connections that were closed because their session ended (KIP-368)
    failed: with invalid credentials, without a usable certificate, or by a failed TLS handshake
    failed_again: of sessions that were to authenticate themselves again
    """

    __slots__ = ("expired", "failed", "failed_again", "reauthenticated", "successful")

    def __init__(self) -> None:
        self.successful = self.failed = self.reauthenticated = self.expired = self.failed_again = 0
