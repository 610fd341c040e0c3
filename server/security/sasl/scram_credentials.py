"""SCRAM credentials, and their text in the metadata store.

Sources: RFC 5802; Kafka's ScramFormatter and ScramCredentialUtils. A credential is a value of the configuration of a
user (`entity_configs`), with the name of its mechanism; brokers of Apache Kafka 3.9 read and write the same.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Final, NamedTuple

_RANDOM_BITS: Final = 130
DEFAULT_ITERATIONS: Final = 4096
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Bounds of the iterations of a credential that a client sets. Those in the store have no upper bound."""

MAX_UNKNOWN_SALT_BYTES: Final = 256
"""Maximum length of the salt of an unknown user. Those of clients have up to 64 bytes."""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")


class ScramMechanism(NamedTuple):
    """A SCRAM mechanism: its name, its number in requests (KIP-554), and its hash function for `hashlib`."""

    name: str
    number: int
    hash_name: str

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return the HMAC of `data`."""
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        """Return the hash of `data`."""
        return hashlib.new(self.hash_name, data).digest()

    def salt_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return the salted password. 10,000 iterations take some 5 ms."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


SCRAM_MECHANISMS: Final = {
    mechanism.name: mechanism
    for mechanism in (
        ScramMechanism("SCRAM-SHA-256", 1, "sha256"),
        ScramMechanism("SCRAM-SHA-512", 2, "sha512"),
    )
}


class ScramCredential(NamedTuple):
    """A credential, which a broker stores instead of the password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def make_credential(mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    stored_key = mechanism.hash(mechanism.hmac(salted_password, b"Client Key"))
    return ScramCredential(salt, stored_key, mechanism.hmac(salted_password, b"Server Key"), iterations)


def format_credential(credential: ScramCredential) -> str:
    """Return the text of a credential in the metadata store."""
    texts = (*(base64.b64encode(part).decode() for part in credential[:3]), str(credential.iterations))
    return ",".join(f"{name}={text}" for name, text in zip(_FIELDS, texts, strict=True))


def parse_credential(text: str) -> ScramCredential:
    """Parse the text of a credential. Raises ValueError, without the text."""
    fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if sorted(fields) != sorted(_FIELDS):
        raise ValueError("malformed SCRAM credential")
    try:
        salt, stored_key, server_key = (base64.b64decode(fields[name], validate=True) for name in _FIELDS[:3])
        return ScramCredential(salt, stored_key, server_key, int(fields["iterations"]))
    except (ValueError, binascii.Error):
        raise ValueError("malformed SCRAM credential") from None


class CredentialForm(NamedTuple):
    """The parts of a credential that a client sees before it is authenticated, without the salt's value.

    salt_bytes: length of the salt; 0 if it is a text as Kafka's tools make them (other clients send random bytes)
    """

    iterations: int = DEFAULT_ITERATIONS
    salt_bytes: int = 0


def find_form(text: str) -> CredentialForm:
    """Return the form of the text of a credential, without parsing the keys; the default if it is malformed."""
    digits = text.rpartition("iterations=")[2]
    iterations = int(digits) if digits.isdecimal() and len(digits) < 10 else DEFAULT_ITERATIONS
    try:
        salt = base64.b64decode(text.partition("salt=")[2].partition(",")[0], validate=True)
    except ValueError:
        salt = b""
    is_text = not salt.translate(None, _DIGITS.encode())
    return CredentialForm(iterations, 0 if is_text else min(len(salt), MAX_UNKNOWN_SALT_BYTES))


def make_random_text(random_bits: Callable[[int], int]) -> str:
    """Return a random text as Kafka makes them for salts and nonces: a number of 130 bits to the base 36."""
    number, digits = random_bits(_RANDOM_BITS), ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def make_salt(random_bits: Callable[[int], int]) -> bytes:
    """Return a new salt, as Kafka's tools make them."""
    return make_random_text(random_bits).encode()
