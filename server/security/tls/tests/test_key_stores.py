"""Key stores that Java's keytool wrote, and others, with right and wrong passwords."""

import base64
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_key_and_certificates
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_java_truststore as serialize_trust_store

from odradek.server.security.tls.certificates import Authority
from odradek.server.security.tls.jks import KeyStoreError
from odradek.server.security.tls.key_stores import (
    read_key_store,
    read_pem_certificates,
    read_pem_key,
    read_trust_store,
)

STORE_PASSWORD, KEY_PASSWORD, TRUST_PASSWORD = "store secret", "key secret", "trust secret"

# keytool -genkeypair -alias broker -keyalg EC -dname CN=broker -storetype JKS -storepass ... -keypass ...
KEY_STORE = base64.b64decode("""
    /u3+7QAAAAIAAAABAAAAAQAGYnJva2VyAAABoh8hoPkAAAB/MH0wDgYKKwYBBAEqAhEBAQUABGv6/j3kUrf+e3QItD8ZhO5nVxj0dblW9ZV4W7
    XZ3QO94iUctrhQ7lJpg0hMEaO1bqW4W/5RLKon/kX+kfbO2zXWTC0LVQ+iyc+HG0bk+CPkk+9/faSWCKGxdye4hehOvdiZGmRtXFl6wgX2UwAA
    AAEABVguNTA5AAABPjCCATowgeGgAwIBAgIIEMoidEfTXMcwCgYIKoZIzj0EAwIwETEPMA0GA1UEAxMGYnJva2VyMCAXDTI2MTEyNzIyMzAyNl
    oYDzIxMjYxMTAzMjIzMDI2WjARMQ8wDQYDVQQDEwZicm9rZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARwsKwEgZsAGhPJvqXAm/j3bsJs
    mAORv/SBUS0i8Xc2LUpzhoI4SLtmp5S6kH2BdKxHFOaBcDCE42vNqJdtv0L+oyEwHzAdBgNVHQ4EFgQUdDJ0O+hKm+5i1rpMEcn5CThCQ6MwCg
    YIKoZIzj0EAwIDSAAwRQIhAMKQ0v0wJ/I28/TyYgvzWs6W1R0l3xdeVwWDBdaAcb1BAiBohdO3KyMtdBaRrb/wmuisdvod1tUkdpB+KuWM+YJZ
    OWQyJNVd00in36M4FdRJlnsblkVD
""")

# keytool -importcert -alias ca -file ... -storetype JKS -storepass ...
TRUST_STORE = base64.b64decode("""
    /u3+7QAAAAIAAAABAAAAAgACY2EAAAGiHyGrqwAFWC41MDkAAAE+MIIBOjCB4aADAgECAggQyiJ0R9NcxzAKBggqhkjOPQQDAjARMQ8wDQYDVQ
    QDEwZicm9rZXIwIBcNMjYxMTI3MjIzMDI2WhgPMjEyNjExMDMyMjMwMjZaMBExDzANBgNVBAMTBmJyb2tlcjBZMBMGByqGSM49AgEGCCqGSM49
    AwEHA0IABHCwrASBmwAaE8m+pcCb+PduwmyYA5G/9IFRLSLxdzYtSnOGgjhIu2anlLqQfYF0rEcU5oFwMITja82ol22/Qv6jITAfMB0GA1UdDg
    QWBBR0MnQ76Eqb7mLWukwRyfkJOEJDozAKBggqhkjOPQQDAgNIADBFAiEAwpDS/TAn8jbz9PJiC/NazpbVHSXfF15XBYMF1oBxvUECIGiF07cr
    Iy10FpGtv/Ca6Kx2+h3W1SR2kH4q5Yz5glk5cVwPJe/wU6EIcti78IpAXujeUu0=
""")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(datetime.now(UTC))


def common_names(pem: bytes) -> list[str]:
    return [one.subject.rfc4514_string() for one in x509.load_pem_x509_certificates(pem)]


def fits(key: bytes, certificate: bytes) -> bool:
    private = load_pem_private_key(key, None)
    return private.public_key() == x509.load_pem_x509_certificate(certificate).public_key()


def test_a_key_store_of_keytool() -> None:
    material = read_key_store(KEY_STORE, STORE_PASSWORD, KEY_PASSWORD)
    assert common_names(material.chain) == ["CN=broker"]
    assert fits(material.key, material.chain)


def test_a_trust_store_of_keytool() -> None:
    assert common_names(read_trust_store(TRUST_STORE, TRUST_PASSWORD)) == ["CN=broker"]
    assert common_names(read_trust_store(TRUST_STORE, None)) == ["CN=broker"], "without a password it is not verified"


@pytest.mark.parametrize(
    ("store", "password", "key_password", "reason"),
    [
        (KEY_STORE, "wrong", KEY_PASSWORD, "the password is wrong"),
        (KEY_STORE, STORE_PASSWORD, "wrong", "the password of the private key is wrong"),
        (KEY_STORE, STORE_PASSWORD, None, "the password of the private key is wrong"),
        (TRUST_STORE, TRUST_PASSWORD, None, "no private key"),
        (b"", None, None, "neither PKCS12 nor JKS"),
        (b"-----BEGIN CERTIFICATE-----", "x", None, "neither PKCS12 nor JKS"),
    ],
)
def test_an_unusable_key_store(store: bytes, password: str, key_password: str | None, reason: str) -> None:
    with pytest.raises(KeyStoreError, match=reason) as error:
        read_key_store(store, password, key_password)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("size", range(0, len(KEY_STORE), 7))
def test_a_truncated_key_store(size: int) -> None:
    for password in (STORE_PASSWORD, None):
        with pytest.raises(KeyStoreError):
            read_key_store(KEY_STORE[:size], password, KEY_PASSWORD)


def test_a_damaged_key_store_raises_no_other_error() -> None:
    for position in range(4, len(KEY_STORE)):
        damaged = bytearray(KEY_STORE)
        damaged[position] ^= 0x81
        with pytest.raises(KeyStoreError):
            read_key_store(bytes(damaged), STORE_PASSWORD, KEY_PASSWORD)
        with suppress(KeyStoreError):
            read_key_store(bytes(damaged), None, KEY_PASSWORD)


@pytest.mark.parametrize("password", ["secret", "pässword ☃", None])
def test_a_pkcs12_key_store_with_its_chain(authority: Authority, password: str | None) -> None:
    key, certificate = authority.issue("broker", ["localhost"])
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    stranger = x509.load_pem_x509_certificate(authority.issue("stranger")[1])
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
    store = serialize_key_and_certificates(
        b"alias",
        load_pem_private_key(key, None),  # type: ignore[arg-type] # an elliptic curve
        x509.load_pem_x509_certificate(certificate),
        [stranger, issuer],
        encryption,
    )
    material = read_key_store(store, password, None)
    assert common_names(material.chain) == ["CN=broker", "CN=Odradek test authority"]
    assert fits(material.key, certificate)
    if password is not None:
        with pytest.raises(KeyStoreError, match="the password is wrong"):
            read_key_store(store, "wrong", None)


def test_a_pkcs12_trust_store(authority: Authority) -> None:
    trusted = PKCS12Certificate(x509.load_pem_x509_certificate(authority.certificate), b"ca")
    store = serialize_trust_store([trusted], BestAvailableEncryption(b"secret"))
    assert common_names(read_trust_store(store, "secret")) == ["CN=Odradek test authority"]
    with pytest.raises(KeyStoreError, match="no private key"):
        read_key_store(store, "secret", None)


def test_pem(authority: Authority) -> None:
    key, certificate = authority.issue("broker")
    encrypted = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    text = b"some text\n" + encrypted + b"more text\n" + certificate + authority.certificate
    assert fits(read_pem_key(text, "secret"), certificate)
    assert common_names(read_pem_certificates(text)) == ["CN=broker", "CN=Odradek test authority"]
    assert fits(read_pem_key(key, None), certificate)
    for wrong in (None, "wrong"):
        with pytest.raises(KeyStoreError, match="ssl"):
            read_pem_key(text, wrong)
    with pytest.raises(KeyStoreError, match="no private key"):
        read_pem_key(certificate, None)
    with pytest.raises(KeyStoreError, match="no certificate"):
        read_pem_certificates(key)
    with pytest.raises(KeyStoreError, match="malformed"):
        read_pem_certificates(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def to_pem(kind: str, der: bytes) -> bytes:
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(der).decode()}-----END {kind}-----\n".encode()


def test_a_key_of_an_unknown_algorithm(authority: Authority) -> None:
    key = load_pem_private_key(authority.issue("broker")[0], None)
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    elliptic_curve = bytes.fromhex("2a8648ce3d0201")
    unknown = der.replace(elliptic_curve, bytes.fromhex("2a8648ce3d027f"))
    assert unknown != der
    with pytest.raises(KeyStoreError, match="the private key cannot be read"):
        read_pem_key(to_pem("PRIVATE KEY", unknown), None)


def test_a_certificate_of_an_unknown_version(authority: Authority) -> None:
    der = x509.load_pem_x509_certificate(authority.certificate).public_bytes(Encoding.DER)
    version = bytes.fromhex("a003020102")
    unknown = der.replace(version, bytes.fromhex("a00302014d"))
    assert unknown != der
    with pytest.raises(KeyStoreError, match="a certificate is malformed"):
        read_pem_certificates(to_pem("CERTIFICATE", unknown))


def test_a_key_store_as_trust_store(authority: Authority) -> None:
    """Java trusts the certificates of private keys too."""
    assert common_names(read_trust_store(KEY_STORE, STORE_PASSWORD)) == ["CN=broker"]
    key, certificate = authority.issue("self")
    loaded: Any = load_pem_private_key(key, None)
    own = x509.load_pem_x509_certificate(certificate)
    store = serialize_key_and_certificates(b"self", loaded, own, None, NoEncryption())
    assert common_names(read_trust_store(store, None)) == ["CN=self"]


def test_keys_are_not_shown(authority: Authority) -> None:
    material = read_key_store(KEY_STORE, STORE_PASSWORD, KEY_PASSWORD)
    assert "KEY" not in repr(material) and "\\n" not in repr(material)
