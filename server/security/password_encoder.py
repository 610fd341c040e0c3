"""Encryption of dynamically configured passwords in the metadata store (KIP-226), as Kafka's PasswordEncoder.

The text has all parameters of the encryption, so that it can be decrypted after they are configured otherwise.
"""

import base64
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from odradek.properties import PropertyError

CBC: Final = "AES/CBC/PKCS5Padding"
GCM: Final = "AES/GCM/NoPadding"
KEY_LENGTHS: Final = (128, 192, 256)

KEY_FACTORIES: Final = {f"PBKDF2WithHmacSHA{size}": f"sha{size}" for size in (1, 224, 256, 384, 512)}
"""Java's names of key derivations, with the digest of each."""

DEFAULT_KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"

MAX_ITERATIONS: Final = 10_000_000
_SALT_BYTES: Final = 256
_BLOCK_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class EncoderSettings(NamedTuple):
    """The properties `password.encoder.*`. `secret` is None if it is not configured."""

    secret: str | None
    old_secret: str | None
    key_factory: str
    cipher: str
    key_length: int
    iterations: int

    def __repr__(self) -> str:
        return "EncoderSettings()"


class PasswordEncoder:
    """Encrypts and decrypts passwords. It keeps those that it has processed: a key takes milliseconds to derive."""

    def __init__(self, settings: EncoderSettings, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._settings = settings
        self._random_bytes = random_bytes
        self._decoded: dict[str, str] = {}
        self._outdated: set[str] = set()

    def encode(self, password: str) -> str:
        """Return the encrypted password. Raises PropertyError without a secret."""
        settings = self._settings
        if not settings.secret:
            raise PropertyError(
                "password.encoder.secret", None, "must be set, because dynamically configured passwords are encrypted"
            )
        salt = self._random_bytes(_SALT_BYTES)
        key = _derive_key(settings.secret, settings.key_factory, salt, settings.iterations, settings.key_length)
        is_gcm = settings.cipher == GCM
        vector = self._random_bytes(_NONCE_BYTES if is_gcm else _BLOCK_BYTES)
        encrypt = _encrypt_gcm if is_gcm else _encrypt_cbc
        fields = {
            "keyFactoryAlgorithm": settings.key_factory,
            "cipherAlgorithm": settings.cipher,
            "keyLength": str(settings.key_length),
            "salt": _to_base64(salt),
            "iterations": str(settings.iterations),
            "encryptedPassword": _to_base64(encrypt(key, vector, password.encode())),
            "passwordLength": str(_java_length(password)),
            "initializationVector": _to_base64(vector),
        }
        if is_gcm:
            fields["authenticationTagLength"] = str(8 * _TAG_BYTES)
        encoded = ",".join(f"{name}:{value}" for name, value in fields.items())
        self._decoded[encoded] = password
        return encoded

    def decode(self, encoded: str) -> str:
        """Return the password, decrypted with the secret or else the old one. Raises ValueError with the reason."""
        password = self._decoded.get(encoded)
        if password is None:
            password = self._decoded[encoded] = self._decode(encoded)
        return password

    def is_outdated(self, encoded: str) -> bool:
        """Return whether a password that `decode` has returned was encrypted with the old secret."""
        return encoded in self._outdated

    def _decode(self, encoded: str) -> str:
        secrets = [secret for secret in (self._settings.secret, self._settings.old_secret) if secret]
        if not secrets:
            raise ValueError("password.encoder.secret is not set")
        for secret in secrets:
            with suppress(ValueError, KeyError):
                password = _decrypt(encoded, secret)
                if secret != self._settings.secret:
                    self._outdated.add(encoded)
                return password
        raise ValueError("it cannot be decrypted with password.encoder.secret")


def _decrypt(encoded: str, secret: str) -> str:
    """Raises ValueError, KeyError."""
    fields = {name: value for name, _, value in (part.strip().rpartition(":") for part in encoded.split(","))}
    iterations, key_length = int(fields["iterations"]), int(fields["keyLength"])
    if not 0 < iterations <= MAX_ITERATIONS or key_length not in KEY_LENGTHS:
        raise ValueError("parameters that are not supported")
    salt, vector = base64.b64decode(fields["salt"]), base64.b64decode(fields["initializationVector"])
    key = _derive_key(secret, fields["keyFactoryAlgorithm"], salt, iterations, key_length)
    decrypt = {CBC: _decrypt_cbc, GCM: _decrypt_gcm}[fields["cipherAlgorithm"]]
    password = decrypt(key, vector, base64.b64decode(fields["encryptedPassword"])).decode()
    if _java_length(password) != int(fields["passwordLength"]):
        raise ValueError("another length")
    return password


def _derive_key(secret: str, key_factory: str, salt: bytes, iterations: int, key_length: int) -> bytes:
    return hashlib.pbkdf2_hmac(KEY_FACTORIES[key_factory], secret.encode(), salt, iterations, key_length // 8)


# The imports are here because most brokers have no encrypted passwords.


def _encrypt_cbc(key: bytes, vector: bytes, text: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    padding = _BLOCK_BYTES - len(text) % _BLOCK_BYTES
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return encryptor.update(text + bytes([padding]) * padding) + encryptor.finalize()


def _decrypt_cbc(key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    text = decryptor.update(data) + decryptor.finalize()
    padding = text[-1] if text else 0
    if not 0 < padding <= _BLOCK_BYTES or text[-padding:] != bytes([padding]) * padding:
        raise ValueError("no padding")
    return text[:-padding]


def _encrypt_gcm(key: bytes, vector: bytes, text: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(vector, text, None)


def _decrypt_gcm(key: bytes, vector: bytes, data: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(vector, data, None)
    except InvalidTag:
        raise ValueError("another key") from None


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _java_length(text: str) -> int:
    """Return the length of a text in Java: its UTF-16 units."""
    return len(text.encode("utf-16-le")) // 2
