"""An authority for tests, and certificates of brokers and clients that it signs, as PEM files.

`odradek tls make-test-certificates` writes them. A production cluster has an authority of its own.
"""

import ipaddress
import os
import socket
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY: Final = timedelta(days=365)


class Authority:
    """A certificate authority with a new key.

    certificate: in PEM, to be trusted
    """

    def __init__(self, now: datetime, name: str = "Odradek test authority") -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _make_name(name)
        builder = self._begin(self._name, self._key.public_key(), VALIDITY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def issue(self, name: str, hosts: Iterable[str] = (), validity: timedelta = VALIDITY) -> tuple[bytes, bytes]:
        """Return a new private key and its certificate, both in PEM, for `CN=name` and these hosts or addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begin(_make_name(name), key.public_key(), validity)
        names = [_make_host(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return (
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            certificate.public_bytes(Encoding.PEM),
        )

    def _begin(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, validity: timedelta
    ) -> x509.CertificateBuilder:
        # Clocks of clients may be slow.
        begin = self._now - timedelta(days=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(begin, self._now + validity - timedelta(hours=1)))
            .not_valid_after(self._now + validity)
        )


def write_test_certificates(directory: Path, now: datetime) -> list[str]:
    """Write ca.pem, and broker.pem and client.pem with key and certificate; return the names of the files.

    The broker's certificate is for localhost, the loopback addresses and the name of this machine. Raises OSError.
    """
    authority = Authority(now)
    hosts = dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()])
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "ca.pem": authority.certificate,
        "broker.pem": b"".join(authority.issue("broker", hosts)),
        "client.pem": b"".join(authority.issue("client")),
    }
    for name, content in files.items():
        # The keys are not encrypted.
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return list(files)


def _make_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _make_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
