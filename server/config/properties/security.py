"""Properties of TLS. A listener can have its own, as `listener.name.<listener>.ssl.<property>`."""

from typing import Final

from odradek.properties import PropertySet, UpdateMode, boolean, class_name, password, string, string_list

STORE_TYPES = ("JKS", "PKCS12", "PEM")
TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")

DEFAULT_ENGINE_FACTORY: Final = "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"


class SecurityProperties(PropertySet):
    """Keys, certificates and versions of TLS."""

    ssl_keystore_type = string(
        "ssl.keystore.type",
        "JKS",
        choices=STORE_TYPES,
        update_mode=UpdateMode.PER_BROKER,
        doc="Format of the key store. With JKS and PKCS12 the format of the file's content counts.",
    )
    ssl_keystore_location = string(
        "ssl.keystore.location",
        None,
        update_mode=UpdateMode.PER_BROKER,
        doc="File with the private key and the certificate chain of this broker.",
    )
    ssl_keystore_password = password(
        "ssl.keystore.password",
        update_mode=UpdateMode.PER_BROKER,
        doc="Password of the key store; must not be set for PEM.",
    )
    ssl_keystore_key = password(
        "ssl.keystore.key",
        update_mode=UpdateMode.PER_BROKER,
        doc="Private key in PEM, in PKCS8 format, instead of a file.",
    )
    ssl_keystore_certificate_chain = password(
        "ssl.keystore.certificate.chain",
        update_mode=UpdateMode.PER_BROKER,
        doc="Certificate chain in PEM, instead of a file.",
    )
    ssl_key_password = password(
        "ssl.key.password",
        update_mode=UpdateMode.PER_BROKER,
        doc="Password of the private key, if it is encrypted; for JKS by default that of the key store.",
    )
    ssl_truststore_type = string(
        "ssl.truststore.type",
        "JKS",
        choices=STORE_TYPES,
        update_mode=UpdateMode.PER_BROKER,
        doc="Format of the trust store. With JKS and PKCS12 the format of the file's content counts.",
    )
    ssl_truststore_location = string(
        "ssl.truststore.location",
        None,
        update_mode=UpdateMode.PER_BROKER,
        doc="File with the certificates that are trusted; by default those of the operating system are.",
    )
    ssl_truststore_password = password(
        "ssl.truststore.password",
        update_mode=UpdateMode.PER_BROKER,
        doc="Password of the trust store; must not be set for PEM.",
    )
    ssl_truststore_certificates = password(
        "ssl.truststore.certificates",
        update_mode=UpdateMode.PER_BROKER,
        doc="Trusted certificates in PEM, instead of a file.",
    )
    ssl_client_auth = string(
        "ssl.client.auth",
        "none",
        choices=("required", "requested", "none"),
        update_mode=UpdateMode.PER_BROKER,
        doc="Certificates of clients on listeners with SSL: required, verified if the client has one, or none.",
    )
    ssl_enabled_protocols = string_list(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        choices=TLS_VERSIONS,
        may_be_empty=False,
        update_mode=UpdateMode.PER_BROKER,
        doc="Versions of TLS.",
    )
    ssl_cipher_suites = string_list(
        "ssl.cipher.suites",
        (),
        update_mode=UpdateMode.PER_BROKER,
        doc="Cipher suites, by their names in Java; by default those of OpenSSL. Of TLS 1.3 all suites are enabled if "
        "any is named.",
    )
    ssl_endpoint_identification_algorithm = string(
        "ssl.endpoint.identification.algorithm",
        "https",
        check=lambda algorithm: algorithm.lower() in ("https", ""),
        note="https, or empty",
        doc="Verification of host names in the certificates of other brokers; none if empty.",
    )
    ssl_principal_mapping_rules = string(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        doc="Rules that derive principals from the names in certificates of clients; the first that matches applies. "
        "DEFAULT is the name itself, RULE:pattern/replacement/ with L or U at the end changes the case (KIP-371).",
    )
    ssl_allow_dn_changes = boolean(
        "ssl.allow.dn.changes",
        False,
        doc="Allow that a changed key store has a certificate with another distinguished name.",
    )
    ssl_allow_san_changes = boolean(
        "ssl.allow.san.changes",
        False,
        doc="Allow that the certificate in a changed key store lacks subject alternative names of the last one.",
    )
    ssl_engine_factory_class = class_name(
        "ssl.engine.factory.class",
        None,
        check=lambda name: name == DEFAULT_ENGINE_FACTORY,
        note=f"{DEFAULT_ENGINE_FACTORY}, because Java classes cannot be loaded; set key and trust stores instead",
        doc="Java class that makes the TLS engine; only Kafka's own is accepted.",
    )
