"""JSON Web Key Sets: the public keys of an issuer of tokens.

Sources: RFC 7517 (JWK), RFC 7518 (algorithms); the selection of a key follows jose4j's VerificationJwkSelector, which
Kafka uses. Symmetric keys are not accepted: who can verify such a token could also issue it.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWTError

logger = logging.getLogger(__name__)

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

MIN_RSA_BITS: Final = 2048
"""RFC 7518, section 3.3."""

_RSA_ALGORITHMS: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class KeySetError(ValueError):
    """A key set that cannot be used. The message is one line."""


class VerificationKey(NamedTuple):
    """A public key, its id if it has one, and the algorithms that it may verify."""

    key_id: str | None
    algorithms: frozenset[str]
    key: PublicKey


class KeySet:
    """The keys of an issuer, in their order."""

    def __init__(self, keys: Iterable[VerificationKey] = ()) -> None:
        self.keys = tuple(keys)

    def find(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the first key for a token's header; without an id any key of the algorithm is one."""
        for key in self.keys:
            if algorithm in key.algorithms and (key_id is None or key_id == key.key_id):
                return key.key
        return None


def parse_key_set(data: bytes) -> KeySet:
    """Parse a JSON Web Key Set; keys that cannot verify signatures are skipped. Raises KeySetError."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise KeySetError("it is not JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise KeySetError('it has no list "keys"')
    keys = [key for entry in entries if isinstance(entry, dict) and (key := _parse_key(entry)) is not None]
    if not keys:
        raise KeySetError("it has no public key of RSA, EC or OKP that verifies signatures")
    return KeySet(keys)


def _parse_key(entry: dict[str, Any]) -> VerificationKey | None:
    """Return the key of a JWK; None if it cannot or must not be used."""
    key_id = entry.get("kid")
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    if entry.get("kty") not in ("RSA", "EC", "OKP"):
        logger.warning("a key of a JSON Web Key Set is ignored, because its type is not RSA, EC or OKP kid=%s", key_id)
        return None
    # With private parts, which do not belong into the set, it would be a private key.
    public = {name: value for name, value in entry.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    try:
        key = PyJWK(public).key
    except (PyJWTError, TypeError) as error:
        # Without the message, which contains the key.
        logger.warning("a key of a JSON Web Key Set is ignored kid=%s error=%s", key_id, type(error).__name__)
        return None
    algorithms = _find_algorithms(key)
    if "alg" in entry:
        algorithms &= {str(entry["alg"])}
    if not algorithms:
        logger.warning("a key of a JSON Web Key Set is ignored, because it is too short or unsuitable kid=%s", key_id)
        return None
    return VerificationKey(None if key_id is None else str(key_id), algorithms, key)


def _find_algorithms(key: object) -> frozenset[str]:
    """Return the algorithms of a key, by its type only: a token's header does not choose another."""
    if isinstance(key, RSAPublicKey):
        return _RSA_ALGORITHMS if key.key_size >= MIN_RSA_BITS else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        algorithm = _CURVE_ALGORITHMS.get(key.curve.name)
        return frozenset() if algorithm is None else frozenset((algorithm,))
    if isinstance(key, (Ed25519PublicKey, Ed448PublicKey)):
        return frozenset(("EdDSA",))
    return frozenset()
