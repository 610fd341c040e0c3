"""Grants: the forms with which this broker requests a token.

Sources: RFC 6749, 4.4; RFC 7523; Kafka's ClientSecretRequestFormatter, ClientAssertionRequestFormatter and
JwtBearerRequestFormatter.
"""

import base64
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote_plus, urlencode

_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Form(NamedTuple):
    """The content of one request.

    secrets: parts of it that no message may contain
    authorization: the header of this name
    """

    body: bytes
    secrets: tuple[str, ...]
    authorization: str | None = None

    def __repr__(self) -> str:
        return "Form()"


class Grant(Protocol):
    """A kind of request."""

    def make_form(self) -> Form:
        """Return the form of the next request; it may read files. Raises OSError, ValueError."""


class ClientSecretGrant(NamedTuple):
    """Client credentials with a secret. Client id and secret are not blank."""

    client_id: str
    client_secret: str
    scope: str = ""
    is_header_urlencoded: bool = False

    def __repr__(self) -> str:
        return f"ClientSecretGrant({self.client_id!r})"

    def make_form(self) -> Form:
        """Return a form with the credentials in a header."""
        credentials = [self.client_id.strip(), self.client_secret.strip()]
        if self.is_header_urlencoded:
            credentials = list(map(quote_plus, credentials))
        encoded, secret = base64.b64encode(":".join(credentials).encode()).decode(), self.client_secret.strip()
        return Form(
            _encode(self.scope, grant_type="client_credentials"),
            (secret, quote_plus(secret), encoded),
            f"Basic {encoded}",
        )


class ClientAssertionGrant(NamedTuple):
    """Client credentials with an assertion. `client_id`: empty if the assertion identifies the client."""

    find_assertion: Callable[[], str]
    client_id: str = ""
    scope: str = ""

    def make_form(self) -> Form:
        """Return a form with a new assertion."""
        assertion, client_id = self.find_assertion(), self.client_id.strip()
        fields = {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}
        if client_id:
            fields["client_id"] = client_id
        return Form(_encode(self.scope, grant_type="client_credentials", **fields), (assertion,))


class JwtBearerGrant(NamedTuple):
    """An assertion as the authorization."""

    find_assertion: Callable[[], str]
    scope: str = ""

    def make_form(self) -> Form:
        """Return a form with a new assertion."""
        assertion = self.find_assertion()
        return Form(_encode(self.scope, grant_type=_JWT_BEARER, assertion=assertion), (assertion,))


def _encode(scope: str, **fields: str) -> bytes:
    scope = scope.strip()
    return urlencode({**fields, "scope": scope} if scope else fields).encode()
