"""An issuer of tokens for tests: keys, key sets and signed tokens."""

import json
import threading
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms
from jwt.api_jws import PyJWS

NOW_S = 1_700_000_000
CLAIMS: Mapping[str, Any] = {"sub": "alice", "iat": NOW_S - 1000, "exp": NOW_S + 600, "scope": "kafka"}

_KEYS: dict[str, Any] = {}
"""Generated once, because an RSA key takes 100 ms."""
_LOCK = threading.Lock()


def private_key(algorithm: str, name: str = "") -> Any:
    """Return a key for an algorithm; keys with different names differ."""
    kind = algorithm + name
    # Concurrent first calls, as in the threads of a server, return the same key.
    with _LOCK:
        if kind not in _KEYS:
            _KEYS[kind] = _generate_key(algorithm)
        return _KEYS[kind]


def _generate_key(algorithm: str) -> Any:
    if algorithm.startswith("ES"):
        curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
        return ec.generate_private_key(curve)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def public_pem(key: Any) -> bytes:
    """Return the public part of a key in PEM."""
    pem: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def make_jwk(key: Any, algorithm: str, **members: Any) -> dict[str, Any]:
    """Return the JSON Web Key of a public key."""
    return {**json.loads(get_default_algorithms()[algorithm].to_jwk(key.public_key())), **members}


def make_key_set(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def sign(key: Any, algorithm: str, headers: Mapping[str, Any] | None = None, **claims: Any) -> str:
    """Return a token; a claim that is None is omitted."""
    values = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return sign_content(key, algorithm, json.dumps(values).encode(), headers)


def sign_content(key: Any, algorithm: str, content: bytes, headers: Mapping[str, Any] | None = None) -> str:
    """Return a signed token with any content, also one that PyJWT itself refuses to sign."""
    return PyJWS().encode(content, key, algorithm, dict(headers or {}))
