"""Java's own key store format, JKS: private keys and trusted certificates with aliases.

Source: OpenJDK, sun.security.provider.JavaKeyStore and KeyProtector. Numbers are big-endian, texts are UTF-8 with a
16-bit length. Private keys are encrypted with a keystream of SHA-1 digests.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

MAGIC: Final = b"\xfe\xed\xfe\xed"

_SALT_BYTES: Final = 20
_DIGEST_BYTES: Final = 20
_KEY_ENTRY: Final = 1
_CERTIFICATE_ENTRY: Final = 2
_PROTECTED_BY_DIGESTS: Final = bytes.fromhex("060a2b060104012a02110101")
"""The DER encoding of the object identifier of the encryption, 1.3.6.1.4.1.42.2.17.1.1."""

_OCTET_STRING: Final = 0x04
_SEQUENCE: Final = 0x30


class KeyStoreError(ValueError):
    """A key store that cannot be read; `str()` has the reason, without secrets."""


class JksEntry(NamedTuple):
    """An entry: a protected private key with its certificate chain, or a trusted certificate without a key.

    protected_key: EncryptedPrivateKeyInfo in DER; None for a trusted certificate
    certificates: in DER, that of the key first
    """

    alias: str
    protected_key: bytes | None
    certificates: list[bytes]


class _Reader:
    """Reads the fields of a file in order. Raises KeyStoreError at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise KeyStoreError("the file is truncated")
        taken, self._at = self._data[self._at : end], end
        return taken

    def number(self) -> int:
        value: int = struct.unpack(">i", self.take(4))[0]
        return value

    def text(self) -> str:
        size: int = struct.unpack(">H", self.take(2))[0]
        return self.take(size).decode("utf-8", "replace")

    def certificate(self) -> bytes:
        kind = self.text()
        if kind != "X.509":
            raise KeyStoreError(f"a certificate has the type {kind!r} instead of X.509")
        return self.take(self.number())


def read_jks(data: bytes, password: str | None) -> Iterator[JksEntry]:
    """Iterate over the entries of a file. With a password the digest of the file is verified first.

    Raises KeyStoreError.
    """
    if not data.startswith(MAGIC):
        raise KeyStoreError("the file is not a JKS key store")
    content = data[:-_DIGEST_BYTES]
    if password is not None:
        digest = hashlib.sha1(_encode_password(password) + b"Mighty Aphrodite" + content).digest()
        if not hmac.compare_digest(digest, data[-_DIGEST_BYTES:]):
            raise KeyStoreError("the password is wrong, or the file is damaged")
    reader = _Reader(content)
    reader.take(len(MAGIC))
    version = reader.number()
    if version != 2:
        raise KeyStoreError(f"the JKS version is {version} instead of 2")
    for _ in range(reader.number()):
        kind, alias = reader.number(), reader.text()
        reader.take(8)  # the time of creation
        if kind == _CERTIFICATE_ENTRY:
            yield JksEntry(alias, None, [reader.certificate()])
        elif kind == _KEY_ENTRY:
            key = reader.take(reader.number())
            yield JksEntry(alias, key, [reader.certificate() for _ in range(reader.number())])
        else:
            raise KeyStoreError(f"the entry {alias} is neither a private key nor a trusted certificate")


def recover_key(protected: bytes, password: str) -> bytes:
    """Decrypt a private key; return PrivateKeyInfo (PKCS8) in DER. Raises KeyStoreError."""
    algorithm, rest = _read_der(_SEQUENCE, _read_der(_SEQUENCE, protected)[0])
    if not algorithm.startswith(_PROTECTED_BY_DIGESTS):
        raise KeyStoreError("a private key is encrypted with an unknown algorithm; convert the file to PKCS12")
    encrypted = _read_der(_OCTET_STRING, rest)[0]
    if len(encrypted) < _SALT_BYTES + _DIGEST_BYTES:
        raise KeyStoreError("a private key is truncated")
    encoded = _encode_password(password)
    digest, body, check = encrypted[:_SALT_BYTES], encrypted[_SALT_BYTES:-_DIGEST_BYTES], encrypted[-_DIGEST_BYTES:]
    keystream = bytearray()
    while len(keystream) < len(body):
        digest = hashlib.sha1(encoded + digest).digest()
        keystream += digest
    key = bytes(left ^ right for left, right in zip(body, keystream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(encoded + key).digest(), check):
        raise KeyStoreError("the password of the private key is wrong")
    return key


def _encode_password(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


def _read_der(tag: int, data: bytes) -> tuple[bytes, bytes]:
    """Return the content of the DER element at the start of `data`, which has this tag, and what follows it."""
    if len(data) < 2 or data[0] != tag:
        raise KeyStoreError("a private key is not in DER")
    size, at = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        size, at = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if at + size > len(data):
        raise KeyStoreError("a private key is truncated")
    return data[at : at + size], data[at + size :]
