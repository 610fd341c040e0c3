"""The identity of a client, as authorization, quotas and logs use it.

Source: Kafka's KafkaPrincipal.
"""

from typing import Final, NamedTuple

USER_TYPE: Final = "User"


class Principal(NamedTuple):
    """A client's identity. `is_token_authenticated`: proven by a delegation token (KIP-48)."""

    type: str
    name: str
    is_token_authenticated: bool = False

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER_TYPE, "ANONYMOUS")
"""The principal of a client without authentication."""


def parse_principal(text: str) -> Principal:
    """Parse `Type:name`. Raises ValueError."""
    principal_type, colon, name = text.partition(":")
    if not colon or not principal_type:
        raise ValueError(f"expected a string in format principalType:principalName but got {text}")
    return Principal(principal_type, name)
