"""The mechanism OAUTHBEARER on the side of a broker that connects to another.

Sources: RFC 7628; Kafka's OAuthBearerSaslClient.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from odradek.protocol.errors import shorten
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken
from odradek.server.security.sasl.oauthbearer.exchange import PROPERTY_NAME, PROPERTY_VALUE

_AFTER_A_CHALLENGE: Final = b"\x01"


class OAuthBearerClientExchange:
    """One authentication.

    find_token: returns a valid token; raises SaslError
    extensions: names and values that the other broker gets with the token
    """

    def __init__(self, find_token: Callable[[], Awaitable[AccessToken]], extensions: Mapping[str, str]) -> None:
        self._find_token = find_token
        self._extensions = extensions
        self._challenge = ""

    async def begin(self) -> bytes:
        """Return the token and the extensions."""
        token = await self._find_token()
        extensions = "".join(f"{name}={value}\x01" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {token.value}\x01{extensions}\x01".encode()

    async def answer(self, token: bytes) -> bytes | None:
        """Return None for an empty token; after a challenge the other broker sends its error. Raises SaslError."""
        if self._challenge:
            raise SaslError(f"the token is refused: {self._challenge}")
        if not token:
            return None
        self._challenge = shorten(token.decode("utf-8", "replace"))
        return _AFTER_A_CHALLENGE


def find_extensions(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the extensions among the options of a login module, by name. Raises ValueError."""
    found = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    for name, value in found.items():
        if not PROPERTY_NAME.fullmatch(name) or name == "auth":
            raise ValueError(f"the option {prefix}{name} must have a name of letters, which is not auth")
        if not PROPERTY_VALUE.fullmatch(value):
            raise ValueError(f"the option {prefix}{name} must have a value of ASCII characters")
    return found
