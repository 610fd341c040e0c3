"""The broker's own access tokens, with which it authenticates itself at other brokers.

Source: Kafka's LoginAccessTokenValidator. Only user and times are read; other brokers validate the token.
"""

from typing import NamedTuple

from odradek.properties import INT64_MAX
from odradek.server.security.sasl.oauthbearer.claims import (
    MAX_TOKEN_BYTES,
    TokenError,
    check_scope,
    decode_segment,
    find_seconds,
    find_subject,
    parse_object,
)


class AccessToken(NamedTuple):
    """A token. Its times are on the wall clock; `begins_ms` is None if the token does not contain it."""

    value: str
    principal: str
    begins_ms: int | None
    expires_ms: int

    def __repr__(self) -> str:
        # Without the value, which is a secret.
        return f"AccessToken(principal={self.principal!r}, expires_ms={self.expires_ms})"


def parse_access_token(text: str, *, sub_claim_name: str, scope_claim_name: str) -> AccessToken:
    """Parse a signed JSON Web Token. Raises TokenError."""
    if len(text) > MAX_TOKEN_BYTES:
        raise TokenError(f"it is longer than {MAX_TOKEN_BYTES} bytes")
    segments = [decode_segment(segment) for segment in text.split(".")]
    if len(segments) != 3 or not all(segments):
        raise TokenError("it is not a signed JSON Web Token")
    claims = parse_object(segments[1], "the claims")
    check_scope(claims.get(scope_claim_name), scope_claim_name)
    begins_s, expires_s = find_seconds(claims, "iat"), find_seconds(claims, "exp")
    if expires_s is None or expires_s < 0 or (begins_s is not None and begins_s < 0):
        raise TokenError("the claim exp is absent, or exp or iat is negative")
    # Bounded, because calculations with floats fail for larger numbers.
    begins_ms = None if begins_s is None else min(begins_s * 1000, INT64_MAX)
    return AccessToken(text, find_subject(claims, sub_claim_name), begins_ms, min(expires_s * 1000, INT64_MAX))
