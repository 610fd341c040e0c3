"""Assertions: signed JSON Web Tokens with which this broker identifies itself at an issuer of tokens.

Sources: RFC 7523; Kafka's AssertionSupplierFactory and AssertionUtils. One difference: files are read each time.
"""

import base64
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from odradek.server.security.sasl.oauthbearer.claims import MAX_TOKEN_BYTES, decode_segment, parse_object
from odradek.server.security.sasl.oauthbearer.issuer_urls import read_file

_MAX_FILE_BYTES: Final = 1 << 20

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey


class AssertionSettings(NamedTuple):
    """The properties `sasl.oauthbearer.assertion.*` with these names.

    claims: aud, iss and sub, if they are set
    lifetime_s, leeway_s: exp and nbf
    has_id: include jti
    """

    algorithm: str
    key_path: str
    passphrase: str | None = None
    template_path: str | None = None
    claims: Mapping[str, str] = {}
    lifetime_s: int = 300
    leeway_s: int = 60
    has_id: bool = False

    def __repr__(self) -> str:
        return f"AssertionSettings({self.algorithm}, {self.key_path!r})"


def load_key(settings: AssertionSettings) -> PrivateKey:
    """Return the private key of the algorithm. Raises OSError, ValueError."""
    data = read_file(settings.key_path, _MAX_FILE_BYTES)
    passphrase = None if settings.passphrase is None else settings.passphrase.strip().encode()
    try:
        key = load_pem_private_key(data, passphrase)
    except TypeError:
        # The library's only other errors are about the passphrase.
        raise ValueError(
            "the private key is encrypted, and has no passphrase"
            if passphrase is None
            else "the private key is not encrypted, and must have no passphrase"
        ) from None
    except UnsupportedAlgorithm as error:
        raise ValueError(f"the private key cannot be used: {error}") from None
    except ValueError:
        raise ValueError("it is not a private key in PEM, or the passphrase is wrong") from None
    is_rsa = settings.algorithm == "RS256"
    if is_rsa and isinstance(key, RSAPrivateKey):
        return key
    if not is_rsa and isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
        return key
    raise ValueError(f"{settings.algorithm} requires {'an RSA key' if is_rsa else 'a key of the curve P-256'}")


def load_template(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the members of the header and of the claims in a template. Raises OSError, ValueError."""
    template = parse_object(read_file(path, _MAX_FILE_BYTES), "the contents")
    header, payload = template.get("header", {}), template.get("payload", {})
    if not isinstance(header, dict) or not isinstance(payload, dict):
        raise ValueError("header and payload must be JSON objects")
    _encode(header), _encode(payload)
    return header, payload


def make_assertion(settings: AssertionSettings, now_ms: int, random_bits: Callable[[int], int]) -> str:
    """Return a new assertion. Raises OSError, ValueError."""
    key = load_key(settings)
    header, payload = ({}, {}) if settings.template_path is None else load_template(settings.template_path)
    now_s = now_ms // 1000
    claims = {
        **settings.claims,
        **payload,
        "iat": now_s,
        "exp": now_s + settings.lifetime_s,
        "nbf": now_s - settings.leeway_s,
    }
    if settings.has_id:
        claims["jti"] = str(uuid.UUID(int=random_bits(128), version=4))
    content = _encode({**header, "alg": settings.algorithm, "typ": "JWT"}) + b"." + _encode(claims)
    return (content + b"." + _to_base64(_sign(key, content))).decode()


def read_assertion(path: str) -> str:
    """Return the assertion in a file. Raises OSError, ValueError."""
    text = read_file(path, MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    segments = [decode_segment(segment) for segment in text.split(".")]
    if len(segments) != 3 or not all(segments):
        raise ValueError("it is not a signed JSON Web Token")
    return text


def _sign(key: PrivateKey, content: bytes) -> bytes:
    if isinstance(key, RSAPrivateKey):
        return RSAAlgorithm(RSAAlgorithm.SHA256).sign(content, key)
    return ECAlgorithm(ECAlgorithm.SHA256).sign(content, key)


def _encode(members: Mapping[str, Any]) -> bytes:
    return _to_base64(json.dumps(members, allow_nan=False, separators=(",", ":")).encode())


def _to_base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
