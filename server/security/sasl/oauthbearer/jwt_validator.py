"""Validation of the access tokens of OAUTHBEARER: signed JSON Web Tokens.

Sources: KIP-768, KIP-1139 and Kafka's BrokerJwtValidator; RFC 7519 (claims), RFC 7515 (signature); jose4j's
JwtConsumer for the claims that Kafka does not check itself.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from jwt.algorithms import get_default_algorithms

from odradek.properties import INT64_MAX
from odradek.server.security.sasl.oauthbearer.claims import (
    MAX_TOKEN_BYTES,
    TokenError,
    check_scope,
    decode_segment,
    find_seconds,
    find_subject,
    find_text,
    parse_object,
)
from odradek.server.security.sasl.oauthbearer.jwks import PublicKey

MAX_HEADER_BYTES: Final = 4096
MAX_KEY_ID_LENGTH: Final = 1000
"""Kafka's bound for key ids that cause a refresh of the keys."""


class Claims(NamedTuple):
    """The claims of a valid token that the broker uses. `expires_ms` is on the wall clock."""

    subject: str
    expires_ms: int


class ValidatorSettings(NamedTuple):
    """The properties `sasl.oauthbearer.*` with these names. Without expected values, Kafka's rules for None apply."""

    expected_audience: tuple[str, ...] = ()
    expected_issuer: str | None = None
    clock_skew_seconds: int = 30
    scope_claim_name: str = "scope"
    sub_claim_name: str = "sub"


class JwtValidator:
    """Validates tokens by the keys of their issuer.

    find_key: returns the key for a token's key id, which may be None, and algorithm; None if there is none
    now_ms: the wall clock
    """

    def __init__(
        self,
        settings: ValidatorSettings,
        find_key: Callable[[str | None, str], PublicKey | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._find_key = find_key
        self._now_ms = now_ms
        # Without PyJWT's parser, which takes 10 ms for the longest token, before the signature is verified.
        self._algorithms = get_default_algorithms()

    def validate(self, token: str) -> Claims:
        """Return the claims of a token. Raises TokenError."""
        claims = parse_object(self._verify(token), "the claims")
        self._check_times(claims)
        self._check_origin(claims)
        settings = self._settings
        check_scope(claims.get(settings.scope_claim_name), settings.scope_claim_name)
        subject = find_subject(claims, settings.sub_claim_name)
        expires_s = find_seconds(claims, "exp")
        assert expires_s is not None
        return Claims(subject, min(expires_s * 1000, INT64_MAX))

    def _verify(self, token: str) -> bytes:
        """Return the content of a token with a valid signature. Raises TokenError."""
        if len(token) > MAX_TOKEN_BYTES:
            raise TokenError(f"it is longer than {MAX_TOKEN_BYTES} bytes")
        segments = token.split(".")
        if len(segments) != 3 or not all(segments) or len(segments[0]) > MAX_HEADER_BYTES:
            raise TokenError("it is not a signed JSON Web Token")
        header = parse_object(decode_segment(segments[0]), "the header")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not (key_id is None or isinstance(key_id, str)):
            raise TokenError("its header is malformed")
        if "crit" in header or "b64" in header:
            raise TokenError("its header has an extension: crit or b64")
        if key_id is not None and len(key_id) > MAX_KEY_ID_LENGTH:
            raise TokenError(f"its key id is longer than {MAX_KEY_ID_LENGTH} characters")
        key = self._find_key(key_id, algorithm)
        if key is None:
            raise TokenError(f"there is no key alg={algorithm!r:.20} kid={key_id!r:.100}")
        signed, signature = token.rpartition(".")[0].encode(), decode_segment(segments[2])
        # The key is one for this algorithm, so that it is neither `none` nor an HMAC.
        if not self._algorithms[algorithm].verify(signed, key, signature):
            raise TokenError("its signature is invalid")
        return decode_segment(segments[1])

    def _check_times(self, claims: dict[str, Any]) -> None:
        """Raise TokenError unless the token is valid now, with the allowed difference of the clocks."""
        expires_s, issued_s, begins_s = (find_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        if expires_s is None or issued_s is None:
            raise TokenError("a required claim is absent: exp or iat")
        if expires_s < 0 or issued_s < 0:
            raise TokenError("exp or iat is negative")
        now_s, skew_s = self._now_ms() // 1000, self._settings.clock_skew_seconds
        if now_s - skew_s >= expires_s:
            raise TokenError(f"it has expired exp={expires_s} now={now_s}")
        if expires_s < issued_s or (begins_s is not None and expires_s < begins_s):
            raise TokenError("it expires before it was issued or begins")
        if begins_s is not None and now_s + skew_s < begins_s:
            raise TokenError(f"it is not yet valid nbf={begins_s} now={now_s}")

    def _check_origin(self, claims: dict[str, Any]) -> None:
        """Check issuer and audience. A token for an audience is refused if none is expected, as by Kafka."""
        issuer, _, _ = (find_text(claims, name) for name in ("iss", "sub", "jti"))
        expected_issuer, expected = self._settings.expected_issuer, self._settings.expected_audience
        if expected_issuer is not None and issuer != expected_issuer:
            raise TokenError(f"its issuer is not expected iss={issuer!r:.200}")
        audience = claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        if audiences is None:
            audiences = []
        elif not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
            raise TokenError("the claim aud is malformed")
        if (audience is not None or expected) and not set(audiences) & set(expected):
            raise TokenError(f"its audience is not one of sasl.oauthbearer.expected.audience aud={audience!r:.200}")
