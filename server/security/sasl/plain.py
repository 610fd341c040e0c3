"""PLAIN: user name and password in one token. The users are options of the listener's login module.

Sources: RFC 4616; Kafka's PlainSaslServer and PlainServerCallbackHandler.
"""

import hmac
from collections.abc import Mapping
from typing import Final

from odradek.server.security.sasl.mechanism import OTHER_AUTHORIZATION_ID, Authenticated, SaslError

USER_PREFIX: Final = "user_"
_NO_PASSWORD: Final = b"\0"
"""Equal to no password, because NUL separates the parts of a token."""


def find_users(options: Mapping[str, str]) -> dict[str, bytes]:
    """Return the passwords of the options `user_<name>` of a login module, by user name."""
    return {
        name.removeprefix(USER_PREFIX): password.encode("utf-8", "surrogatepass")
        for name, password in options.items()
        if name.startswith(USER_PREFIX)
    }


class PlainExchange:
    """One authentication with PLAIN."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = users
        self.authenticated: Authenticated | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Check the client's only token: authorization id, user name, password, separated by NUL."""
        # Java replaces malformed bytes; no name and no password contains the replacement by accident.
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise SaslError("Authentication failed: username not specified")
        if not password:
            raise SaslError("Authentication failed: password not specified")
        if not hmac.compare_digest(password.encode(), self._users.get(user, _NO_PASSWORD)):
            raise SaslError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise SaslError(OTHER_AUTHORIZATION_ID)
        self.authenticated = Authenticated(user)
        return b""
