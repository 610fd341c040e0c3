"""Keys and certificates in the formats of Kafka's properties: PEM (KIP-651), PKCS12 and JKS.

As Java does, a store of type JKS or PKCS12 is read in the format that its content has.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates, load_pkcs12

from odradek.server.security.tls.jks import MAGIC, KeyStoreError, read_jks, recover_key

PEM: Final = "PEM"

_CERTIFICATE: Final = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_PRIVATE_KEY: Final = re.compile(
    b"-----BEGIN (?P<kind>(?:ENCRYPTED )?PRIVATE KEY)-----.+?-----END (?P=kind)-----", re.DOTALL
)

_MALFORMED: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""Exceptions of `cryptography` for keys and certificates that it cannot read."""


class KeyMaterial(NamedTuple):
    """A private key, and its certificate chain, the certificate of the key first; both in PEM, unencrypted."""

    key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return "KeyMaterial()"


def read_pem_key(text: bytes, key_password: str | None) -> bytes:
    """Return the private key in a PEM text, unencrypted. Raises KeyStoreError."""
    match = _PRIVATE_KEY.search(text)
    if match is None:
        raise KeyStoreError("there is no private key in PKCS8 format (BEGIN PRIVATE KEY)")
    is_encrypted = match["kind"].startswith(b"ENCRYPTED")
    if is_encrypted and key_password is None:
        raise KeyStoreError("the private key is encrypted, and ssl.key.password is not set")
    try:
        key = load_pem_private_key(match[0], key_password.encode() if is_encrypted and key_password else None)
    except _MALFORMED:
        raise KeyStoreError("the private key cannot be read; check ssl.key.password") from None
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_pem_certificates(text: bytes) -> bytes:
    """Return the certificates in a PEM text. Raises KeyStoreError if there is none, or one is malformed."""
    found = _CERTIFICATE.findall(text)
    if not found:
        raise KeyStoreError("there is no certificate (BEGIN CERTIFICATE)")
    for certificate in found:
        try:
            x509.load_pem_x509_certificate(certificate)
        except _MALFORMED:
            raise KeyStoreError("a certificate is malformed") from None
    return b"\n".join(found) + b"\n"


def read_key_store(data: bytes, password: str | None, key_password: str | None) -> KeyMaterial:
    """Return the first private key of a PKCS12 or JKS file, and its chain. Raises KeyStoreError."""
    if data.startswith(MAGIC):
        for entry in read_jks(data, password):
            if entry.protected_key is not None:
                key = recover_key(entry.protected_key, key_password or password or "")
                return KeyMaterial(_key_to_pem(key), _to_pem(map(_parse_certificate, entry.certificates)))
        raise KeyStoreError("the file has no private key")
    store = _load_pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise KeyStoreError("the file has no private key with a certificate")
    pem = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    others = [one.certificate for one in store.additional_certs]
    return KeyMaterial(pem, _to_pem(_order_chain(store.cert.certificate, others)))


def read_trust_store(data: bytes, password: str | None) -> bytes:
    """Return the trusted certificates of a PKCS12 or JKS file in PEM. Raises KeyStoreError if there is none.

    As in Java, a certificate that belongs to a private key of the file is trusted too.
    """
    if data.startswith(MAGIC):
        found = [entry.certificates[0] for entry in read_jks(data, password) if entry.certificates]
        certificates = list(map(_parse_certificate, found))
    else:
        store = _load_pkcs12(data, password)
        own = [] if store.cert is None else [store.cert]
        certificates = [one.certificate for one in (*own, *store.additional_certs)]
    if not certificates:
        raise KeyStoreError("the file has no trusted certificate")
    return _to_pem(certificates)


def _parse_certificate(encoded: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(encoded)
    except _MALFORMED:
        raise KeyStoreError("a certificate is malformed") from None


def _key_to_pem(encoded: bytes) -> bytes:
    try:
        key = load_der_private_key(encoded, None)
    except _MALFORMED:
        raise KeyStoreError("the private key is malformed") from None
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_pkcs12(data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except _MALFORMED:
        raise KeyStoreError("the password is wrong, or the file is neither PKCS12 nor JKS") from None


def _order_chain(leaf: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """Return the chain from `leaf` up to the last issuer that is in the file."""
    chain, remaining = [leaf], list(others)
    while chain[-1].issuer != chain[-1].subject:
        issuer = next((one for one in remaining if one.subject == chain[-1].issuer), None)
        if issuer is None:
            break
        chain.append(issuer)
        remaining.remove(issuer)
    return chain


def _to_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)
