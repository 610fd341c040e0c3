"""Checks of a dynamic change of a listener's key store or trust store, before it is stored (KIP-226, KIP-978).

As in Apache Kafka, the new certificate has the name of the last one and at least its alternative names, so that a wrong
file is noticed before clients reject it; `ssl.allow.dn.changes` and `ssl.allow.san.changes` permit others. The stores
of the listener between brokers must also fit each other: brokers with the last ones still run.
"""

from contextlib import suppress

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from odradek.properties import PropertyError
from odradek.server.security.tls.contexts import load_key, make_client_context, make_server_context
from odradek.server.security.tls.distinguished_name import format_subject
from odradek.server.security.tls.layer import TlsError, TlsLayer
from odradek.server.security.tls.settings import TlsSettings

_MAX_FLIGHTS = 10


def check_store_change(old: TlsSettings, new: TlsSettings, *, is_inter_broker: bool) -> None:
    """Raise PropertyError if a listener with the stores of `old` cannot use those of `new`."""
    make_server_context(new)
    if not _has_trust_store(old) and _has_trust_store(new):
        raise new.error(
            "truststore.location", new.truststore_location, "cannot be added to a listener without a trust store"
        )
    try:
        make_server_context(old)
        make_client_context(old)
    except PropertyError:
        # The files of the last stores are gone.
        return
    _check_certificates(old, new)
    if is_inter_broker:
        check_handshake(old, new)
        check_handshake(new, old)


def check_handshake(server: TlsSettings, client: TlsSettings) -> None:
    """Raise PropertyError if a broker with `client` cannot connect to one with `server`. Host names do not matter."""
    context = make_client_context(client)
    context.check_hostname = False
    client_side = TlsLayer(context, is_server=False)
    server_side = TlsLayer(make_server_context(server))
    try:
        client_side.begin()
        for _ in range(_MAX_FLIGHTS):
            server_side.receive(client_side.take_output())
            client_side.receive(server_side.take_output())
    except TlsError as error:
        raise client.error(
            "truststore.location",
            client.truststore_location,
            f"a TLS handshake with the key store and the trust store between brokers fails: {error}",
        ) from None


def _has_trust_store(settings: TlsSettings) -> bool:
    return settings.truststore_location is not None or settings.truststore_certificates is not None


def _check_certificates(old: TlsSettings, new: TlsSettings) -> None:
    last, present = _load_certificate(old), _load_certificate(new)
    if last is None or present is None:
        return
    name = "keystore.location" if new.keystore_location is not None else "keystore.certificate.chain"
    last_name, new_name = (format_subject(one.public_bytes(Encoding.DER)) for one in (last, present))
    if not new.allow_dn_changes and last_name.lower() != new_name.lower():
        raise new.error(
            name, new.keystore_location, f"its distinguished name {new_name} is not that of the last one, {last_name}"
        )
    if new.allow_san_changes:
        return
    missing = _list_alternative_names(last) - _list_alternative_names(present)
    if missing:
        raise new.error(
            name,
            new.keystore_location,
            f"its certificate lacks subject alternative names of the last one: {', '.join(sorted(missing))}",
        )


def _load_certificate(settings: TlsSettings) -> x509.Certificate | None:
    material = load_key(settings)
    return None if material is None else x509.load_pem_x509_certificate(material.chain)


def _list_alternative_names(certificate: x509.Certificate) -> set[str]:
    with suppress(x509.ExtensionNotFound, ValueError):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return {str(getattr(name, "value", name)) for name in names}
    return set()
