"""The interface of a SASL mechanism. An exchange on the side of the broker performs no I/O.

Sources: RFC 4422; Kafka's SaslServerAuthenticator.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from odradek.protocol.schema import Message

Response = TypeVar("Response", bound=Message)


class SaslError(Exception):
    """The client is not authenticated.

    message: for the client, in the response with SASL_AUTHENTICATION_FAILED; it must not reveal whether a user exists.
        None for Kafka's message about invalid credentials, which contains the mechanism
    reason: for the log; it must not contain a secret
    """

    def __init__(self, message: str | None, reason: str = "") -> None:
        super().__init__(message or reason)
        self.message = message
        self.reason = reason or message or "invalid credentials"


class Authenticated(NamedTuple):
    """The result of a successful exchange.

    name: of the principal `User:<name>`
    expires_ms: wall-clock time at which the credential expires; None if it does not
    is_token_authenticated: the credential is a delegation token (KIP-48)
    """

    name: str
    expires_ms: int | None = None
    is_token_authenticated: bool = False


class SaslExchange(Protocol):
    """One authentication of one client.

    authenticated: the result; None until the exchange has succeeded
    """

    authenticated: Authenticated | None

    def evaluate(self, token: bytes) -> bytes:
        """Process the client's next token; return the broker's, which may be empty. Raises SaslError."""


MakeExchange = Callable[[], SaslExchange]
"""Begins an exchange of one mechanism of one listener."""


class Ask(Protocol):
    """Sends a request and returns its response."""

    async def __call__(self, request: Message, response_type: type[Response], version: int, /) -> Response: ...


Authenticate = Callable[[Ask, str], Awaitable[int]]
"""Authenticates this broker at another, given the other's host name; returns the session's lifetime in ms, 0 without an
end. Raises SaslError."""

OTHER_AUTHORIZATION_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
"""Kafka's message about a client that would act as another user."""


class Timer(Protocol):
    """A call that is made later."""

    def active(self) -> bool:
        """Return whether the call is still to be made."""

    def cancel(self) -> None:
        """Cancel the call."""


class CallLater(Protocol):
    """Calls a function after some seconds, like Twisted's reactor."""

    def __call__(self, delay_s: float, function: Callable[[], object], /) -> Timer: ...


def find_backoff_ms(earlier_failures: int, first_ms: int, max_ms: int) -> int:
    """Return the time after a failure until the next attempt: it doubles with each earlier failure, up to a maximum."""
    return min(first_ms << min(earlier_failures, 32), max_ms)
