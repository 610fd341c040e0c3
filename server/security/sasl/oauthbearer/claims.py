"""Parsing of JSON Web Tokens and their claims, without validation of the signature.

Sources: RFC 7515, RFC 7519; Kafka's ClaimValidationUtils.
"""

import json
import re
from base64 import urlsafe_b64decode
from typing import Any, Final

MAX_TOKEN_BYTES: Final = 32_768
"""Length above which a token is refused."""

_SEGMENT: Final = re.compile(r"[\w-]*", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))
"""The characters that Java's String.trim removes."""


class TokenError(ValueError):
    """The token is refused. The message has the reason for the broker's log, without the token."""


def decode_segment(segment: str) -> bytes:
    """Decode base64url without padding. Raises TokenError."""
    if len(segment) % 4 == 1 or _SEGMENT.fullmatch(segment) is None:
        raise TokenError("it is not base64url")
    return urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object in which no name is repeated. Raises TokenError."""

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name is repeated")
        return made

    try:
        value = json.loads(data, object_pairs_hook=make)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TokenError(f"{what} are not a JSON object")
    return value


def find_text(claims: dict[str, Any], name: str) -> str | None:
    """Return a text. Raises TokenError, also for surrogates: a principal with them could not be stored or sent."""
    value = claims.get(name)
    if value is not None and (not isinstance(value, str) or _SURROGATE.search(value)):
        raise TokenError(f"the claim {name} is malformed")
    return value


def find_seconds(claims: dict[str, Any], name: str) -> int | None:
    """Return a time in seconds since 1970, without fractions. Raises TokenError."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TokenError(f"the claim {name} is malformed")
    try:
        return int(value)
    except (ValueError, OverflowError):  # NaN, or infinite
        raise TokenError(f"the claim {name} is malformed") from None


def check_scope(scope: object, name: str) -> None:
    """Raise TokenError unless the scope is absent, a text, or a list of different texts, none of them blank."""
    if not isinstance(scope, (str, list)):
        return
    scopes = [scope] if isinstance(scope, str) else scope
    stripped = [one.strip(_JAVA_BLANKS) if isinstance(one, str) else "" for one in scopes]
    if not all(stripped) or len(set(stripped)) != len(stripped):
        raise TokenError(f"the claim {name} is malformed")


def find_subject(claims: dict[str, Any], name: str) -> str:
    """Return the user. Raises TokenError."""
    subject = (find_text(claims, name) or "").strip(_JAVA_BLANKS)
    if not subject:
        raise TokenError(f"the claim {name} is absent or empty")
    return subject
