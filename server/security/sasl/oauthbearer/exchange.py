"""The mechanism OAUTHBEARER: the client presents an access token.

Sources: RFC 7628; Kafka's OAuthBearerSaslServer and OAuthBearerClientInitialResponse; KIP-255, KIP-342 (extensions).
"""

import logging
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from odradek.protocol.errors import shorten
from odradek.server.security.sasl.mechanism import Authenticated, SaslError
from odradek.server.security.sasl.oauthbearer.claims import MAX_TOKEN_BYTES, TokenError
from odradek.server.security.sasl.oauthbearer.jwt_validator import Claims

logger = logging.getLogger(__name__)

INVALID_TOKEN: Final = '{"status":"invalid_token"}'
"""Kafka's response to a token that is not valid, without the reason."""

_MAX_MESSAGE_BYTES: Final = MAX_TOKEN_BYTES + 8_192
_MAX_PROPERTIES: Final = 256
"""Bounds of a message, which anybody can send: 512 KiB of properties would take 0.1 s."""

_SEPARATOR: Final = "\x01"
_HEADER: Final = re.compile(r"n,(?:a=((?:[^=,]|=2C|=3D)+))?,")
PROPERTY_NAME: Final = re.compile(r"[A-Za-z]+")
PROPERTY_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class InitialResponse(NamedTuple):
    """The client's first message. An empty `authorization_id` is that of the token."""

    token: str
    authorization_id: str
    extensions: dict[str, str]

    def __repr__(self) -> str:
        # Without the token, which is a secret.
        return f"InitialResponse(authorization_id={self.authorization_id!r})"


class OAuthBearerExchange:
    """One authentication. A refused token is answered by a challenge, after which the client's next message fails."""

    def __init__(self, validate: Callable[[str], Claims]) -> None:
        self.authenticated: Authenticated | None = None
        self.extensions: dict[str, str] = {}
        self._validate = validate
        self._refusal = ""

    def evaluate(self, token: bytes) -> bytes:
        """Process the client's next message; return the broker's. Raises SaslError."""
        if self.authenticated is not None:
            raise SaslError(None, "a message follows the last one")
        if self._refusal:
            raise SaslError(INVALID_TOKEN if token == b"\x01" else None, f"the token is refused: {self._refusal}")
        try:
            response = parse_initial_response(token)
        except ValueError as error:
            raise SaslError(None, str(error)) from None
        try:
            claims = self._validate(response.token)
        except TokenError as error:
            # The exception follows only if the client continues.
            logger.debug("a token is refused: %s", error)
            self._refusal = str(error)
            return INVALID_TOKEN.encode()
        if response.authorization_id not in ("", claims.subject):
            raise SaslError(
                "Authentication failed: Client requested an authorization id "
                f"({shorten(response.authorization_id)}) that is different from the token's principal name "
                f"({shorten(claims.subject)})"
            )
        self.extensions = response.extensions
        self.authenticated = Authenticated(claims.subject, claims.expires_ms)
        return b""


def parse_initial_response(message: bytes) -> InitialResponse:
    r"""Parse `n,[a=id],\x01auth=Bearer <token>\x01[<extension>=<value>\x01...]\x01`. Raises ValueError."""
    if len(message) > _MAX_MESSAGE_BYTES:
        raise ValueError(f"the message is longer than {_MAX_MESSAGE_BYTES} bytes")
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("the message is not ASCII") from None
    header, *pairs = text.split(_SEPARATOR)
    match = _HEADER.fullmatch(header)
    if match is None or len(pairs) < 2 or pairs[-2:] != ["", ""]:
        raise ValueError("the message is malformed")
    if len(pairs) - 2 > _MAX_PROPERTIES:
        raise ValueError(f"the message has more than {_MAX_PROPERTIES} properties")
    properties: dict[str, str] = {}
    for pair in pairs[:-2]:
        key, equals, value = pair.partition("=")
        if not (equals and PROPERTY_NAME.fullmatch(key) and PROPERTY_VALUE.fullmatch(value)):
            raise ValueError("a property is malformed")
        properties[key] = value
    authorization = _AUTH.fullmatch(properties.pop("auth", ""))
    if authorization is None or authorization[1].lower() != "bearer":
        raise ValueError("there is no bearer token")
    authorization_id = (match[1] or "").replace("=2C", ",").replace("=3D", "=")
    return InitialResponse(authorization[2], authorization_id, properties)
