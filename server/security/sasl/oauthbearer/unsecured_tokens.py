"""Unsigned tokens, which a broker makes itself. Brokers of Odradek refuse them.

Source: Kafka's OAuthBearerUnsecuredLoginCallbackHandler. Options of the login module are the claims:
unsecuredLoginStringClaim_<name>, unsecuredLoginNumberClaim_<name>, and unsecuredLoginListClaim_<name>, whose first
character separates the elements.
"""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from odradek.properties import INT64_MAX
from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken
from odradek.server.security.sasl.oauthbearer.claims import check_scope, find_subject

PREFIX: Final = "unsecuredLogin"
EXTENSION_PREFIX: Final = f"{PREFIX}Extension_"

_RESERVED: Final = ("exp", "iat")


def make_unsecured_token(options: Mapping[str, str], now_ms: int) -> AccessToken:
    """Return a token with the claims in the options. Raises ValueError."""
    lifetime = options.get(f"{PREFIX}LifetimeSeconds", "3600")
    try:
        expires_ms = now_ms + 1000 * int(lifetime)
    except ValueError:
        expires_ms = INT64_MAX + 1
    if abs(expires_ms) > INT64_MAX:
        raise ValueError(f"the option {PREFIX}LifetimeSeconds is no number of seconds")
    claims = {"exp": expires_ms / 1000, "iat": now_ms / 1000, **_make_claims(options)}
    subject = find_subject(claims, options.get(f"{PREFIX}PrincipalClaimName", "").strip() or "sub")
    scope_claim_name = options.get(f"{PREFIX}ScopeClaimName", "").strip() or "scope"
    check_scope(claims.get(scope_claim_name), scope_claim_name)
    value = f"{_encode({'alg': 'none'})}.{_encode(claims)}."
    return AccessToken(value, subject, now_ms, expires_ms)


def _make_claims(options: Mapping[str, str]) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    for option, text in options.items():
        kind, _, name = option.removeprefix(PREFIX).partition("_")
        if not option.startswith(PREFIX) or not name or kind not in ("StringClaim", "NumberClaim", "ListClaim"):
            continue
        if name in _RESERVED:
            raise ValueError(f"the option {option} must not be set: the claim {name} is calculated")
        if kind == "StringClaim":
            claims[name] = text
        elif kind == "ListClaim":
            claims[name] = _split(text)
        else:
            claims[name] = _parse_number(option, text)
    return claims


def _parse_number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the option {option} is no number")
    return number


def _split(text: str) -> list[str]:
    """Split a list at its first character. As in Kafka, empty elements at the end become one."""
    separator, elements = text[:1], text[1:].split(text[:1]) if len(text) > 1 else []
    while elements and not elements[-1]:
        elements.pop()
    if text.endswith(separator) and len(text) > 1:
        elements.append("")
    return elements


def _encode(values: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()
