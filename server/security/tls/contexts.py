"""TLS contexts of a listener, and of connections to other brokers, made from the properties `ssl.*`."""

import os
import ssl
import stat
from typing import Final

from odradek.properties import HIDDEN
from odradek.server.security.tls import key_stores
from odradek.server.security.tls.cipher_names import is_tls_13, to_openssl
from odradek.server.security.tls.jks import KeyStoreError
from odradek.server.security.tls.key_stores import PEM, KeyMaterial
from odradek.server.security.tls.principal_mapping import PrincipalMapper
from odradek.server.security.tls.settings import TlsSettings

_VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}

_MAX_STORE_BYTES: Final = 10_000_000
"""Maximum size of a store in a file; one with all public authorities has 0.3 MB."""

_VERIFY_MODES: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def make_server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a listener. Raises PropertyError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_versions(context, settings)
    material = load_key(settings)
    if material is None:
        raise settings.error("keystore.location", None, "a listener with TLS requires a key store")
    _use_key(context, material, settings)
    if settings.client_auth != "none":
        _trust(context, settings)
    context.verify_mode = _VERIFY_MODES[settings.client_auth]
    return context


def make_principal_mapper(settings: TlsSettings) -> PrincipalMapper:
    """Return the mapping of certificates to principals. Raises PropertyError."""
    rules = settings.principal_mapping_rules
    try:
        return PrincipalMapper(rules)
    except ValueError as error:
        raise settings.error("principal.mapping.rules", rules, str(error)) from None


def make_client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of connections to other brokers. Raises PropertyError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.endpoint_identification_algorithm.lower() == "https"
    _set_versions(context, settings)
    material = load_key(settings)
    if material is not None:
        _use_key(context, material, settings)
    _trust(context, settings)
    return context


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Set the enabled versions and cipher suites. Raises PropertyError."""
    versions = {_VERSIONS[name] for name in settings.enabled_protocols}
    if settings.cipher_suites:
        has_13 = any(map(is_tls_13, settings.cipher_suites))
        older = [name for name in settings.cipher_suites if not is_tls_13(name)]
        if not has_13:
            versions.discard(ssl.TLSVersion.TLSv1_3)
        if not older:
            versions &= {ssl.TLSVersion.TLSv1_3}
        try:
            if older:
                context.set_ciphers(":".join(map(to_openssl, older)))
        except (ValueError, ssl.SSLError):
            raise settings.error(
                "cipher.suites", ",".join(settings.cipher_suites), "must be names of suites that OpenSSL has"
            ) from None
    if not versions:
        raise settings.error(
            "cipher.suites", ",".join(settings.cipher_suites), "must have a suite of one of ssl.enabled.protocols"
        )
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def load_key(settings: TlsSettings) -> KeyMaterial | None:
    """Return the key of the key store; None if none is configured. Raises PropertyError."""
    location, key_password = settings.keystore_location, settings.key_password
    if settings.keystore_key is not None or settings.keystore_certificate_chain is not None:
        _check_inline(settings, "keystore", settings.keystore_type, location, "ssl.keystore.key")
        try:
            return KeyMaterial(
                key_stores.read_pem_key((settings.keystore_key or "").encode(), key_password),
                key_stores.read_pem_certificates((settings.keystore_certificate_chain or "").encode()),
            )
        except KeyStoreError as error:
            raise settings.error("keystore.key", HIDDEN, str(error)) from None
    if location is None:
        return None
    data = _read(settings, "keystore.location", location)
    try:
        if settings.keystore_type == PEM:
            if settings.keystore_password is not None:
                raise settings.error("keystore.password", HIDDEN, "must not be set for PEM; set ssl.key.password")
            return KeyMaterial(key_stores.read_pem_key(data, key_password), key_stores.read_pem_certificates(data))
        return key_stores.read_key_store(data, settings.keystore_password, key_password)
    except KeyStoreError as error:
        raise settings.error("keystore.location", location, str(error)) from None


def _use_key(context: ssl.SSLContext, material: KeyMaterial, settings: TlsSettings) -> None:
    """Give the context a key. Python's API takes a file only; this one is in memory, and never on a disk."""
    try:
        with open(os.memfd_create("odradek-key"), "wb", buffering=0) as file:
            file.write(material.key + material.chain)
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    except OSError as error:
        cause = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        reason = f"the private key and the certificate cannot be used: {cause}"
        name = "keystore.location" if settings.keystore_location is not None else "keystore.certificate.chain"
        raise settings.error(name, settings.keystore_location, reason) from None


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Trust the certificates of the trust store; without one those of the operating system, as Java's default does."""
    # A trusted certificate need not be one of an authority: as in Java it may be that of the peer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    certificates = _load_trusted(settings)
    if certificates is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=certificates.decode())
    except (ssl.SSLError, ValueError):
        location = settings.truststore_location
        name = "truststore.location" if location is not None else "truststore.certificates"
        raise settings.error(name, location or HIDDEN, "OpenSSL cannot use a certificate") from None


def _load_trusted(settings: TlsSettings) -> bytes | None:
    """Return the certificates of the trust store in PEM; None if none is configured. Raises PropertyError."""
    location, inline = settings.truststore_location, settings.truststore_certificates
    if inline is not None:
        _check_inline(settings, "truststore", settings.truststore_type, location, "ssl.truststore.certificates")
        try:
            return key_stores.read_pem_certificates(inline.encode())
        except KeyStoreError as error:
            raise settings.error("truststore.certificates", HIDDEN, str(error)) from None
    if location is None:
        return None
    data = _read(settings, "truststore.location", location)
    try:
        if settings.truststore_type != PEM:
            return key_stores.read_trust_store(data, settings.truststore_password)
        if settings.truststore_password is not None:
            raise settings.error("truststore.password", HIDDEN, "must not be set for PEM")
        return key_stores.read_pem_certificates(data)
    except KeyStoreError as error:
        raise settings.error("truststore.location", location, str(error)) from None


def _check_inline(settings: TlsSettings, store: str, kind: str, location: str | None, inline: str) -> None:
    """Check the other properties of a store whose content is in the property `inline`. Raises PropertyError."""
    if kind != PEM:
        raise settings.error(f"{store}.type", kind, f"must be PEM with {inline}")
    if location is not None:
        raise settings.error(f"{store}.location", location, f"must not be set together with {inline}")


def _read(settings: TlsSettings, name: str, path: str) -> bytes:
    """Read a file that a client may have named. It neither blocks, as a pipe would, nor has more than a store needs."""
    try:
        # With an opener, because `open` does not close the descriptor of a directory that it is given.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_STORE_BYTES + 1) if is_regular else b""
    except OSError as error:
        raise settings.error(name, path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise settings.error(name, repr(path), f"is no path: {error}") from None
    if not is_regular:
        raise settings.error(name, path, "is not a regular file")
    if len(data) > _MAX_STORE_BYTES:
        raise settings.error(name, path, f"is larger than {_MAX_STORE_BYTES} bytes")
    return data
