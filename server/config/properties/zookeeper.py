"""Properties of the connection to ZooKeeper, and of broker ids that are generated in it."""

from typing import Final

from odradek.properties import PropertySet, boolean, integer, password, string, string_list
from odradek.server.config.properties.reasons import JAVA_CLASS
from odradek.server.config.properties.security import STORE_TYPES, TLS_VERSIONS, SecurityProperties
from odradek.server.security.sasl.jaas import JaasError, find_credentials, parse_login_module
from odradek.server.security.tls.settings import TlsSettings

DEFAULT_PORT = 2181

DIGEST_LOGIN_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"


class ZooKeeperProperties(PropertySet):
    """ZooKeeper: its servers, sessions, and generated broker ids."""

    zookeeper_connect = string(
        "zookeeper.connect",
        None,
        doc="Servers of ZooKeeper, as host:port,host:port/path; the path is optional. With it this broker is a member "
        "of a cluster; without it the metadata store is embedded.",
    )
    zookeeper_connection_timeout_ms = integer(
        "zookeeper.connection.timeout.ms",
        None,
        minimum=1,
        doc="Time for a connection to ZooKeeper to be established; by default zookeeper.session.timeout.ms.",
    )
    zookeeper_session_timeout_ms = integer(
        "zookeeper.session.timeout.ms",
        18_000,
        minimum=1,
        doc="Time without contact after which ZooKeeper ends this broker's session, within ZooKeeper's own limits.",
    )
    zookeeper_max_in_flight_requests = integer(
        "zookeeper.max.in.flight.requests",
        10,
        minimum=1,
        doc="Maximum number of requests in flight to ZooKeeper.",
    )
    zookeeper_set_acl = boolean(
        "zookeeper.set.acl",
        False,
        doc="Restrict access to the nodes that this broker creates in ZooKeeper: others may only read them, and those "
        "with secrets not at all. Requires zookeeper.sasl.jaas.config, or TLS with a key store.",
    )
    zookeeper_ssl_client_enable = boolean(
        "zookeeper.ssl.client.enable",
        False,
        doc="Connect to ZooKeeper with TLS, at its secureClientPort.",
    )
    zookeeper_clientCnxnSocket = string(  # noqa: N815 - the name of the property
        "zookeeper.clientCnxnSocket",
        None,
        no_effect=JAVA_CLASS,
        doc="Java class of the connection to ZooKeeper.",
    )
    zookeeper_ssl_keystore_location = string(
        "zookeeper.ssl.keystore.location",
        None,
        doc="File with the private key and the certificate that this broker presents to ZooKeeper.",
    )
    zookeeper_ssl_keystore_password = password(
        "zookeeper.ssl.keystore.password",
        doc="Password of this key store and of its key.",
    )
    zookeeper_ssl_keystore_type = string(
        "zookeeper.ssl.keystore.type",
        None,
        choices=STORE_TYPES,
        doc="Format of this key store; by default PEM if the name of the file ends with .pem, else by content.",
    )
    zookeeper_ssl_truststore_location = string(
        "zookeeper.ssl.truststore.location",
        None,
        doc="File with the certificates that are trusted; by default those of the operating system are.",
    )
    zookeeper_ssl_truststore_password = password(
        "zookeeper.ssl.truststore.password",
        doc="Password of this trust store.",
    )
    zookeeper_ssl_truststore_type = string(
        "zookeeper.ssl.truststore.type",
        None,
        choices=STORE_TYPES,
        doc="Format of this trust store; by default PEM if the name of the file ends with .pem, else by content.",
    )
    zookeeper_ssl_protocol = string(
        "zookeeper.ssl.protocol",
        "TLSv1.2",
        choices=TLS_VERSIONS,
        doc="Version of TLS, unless zookeeper.ssl.enabled.protocols is set.",
    )
    zookeeper_ssl_enabled_protocols = string_list(
        "zookeeper.ssl.enabled.protocols",
        None,
        choices=TLS_VERSIONS,
        may_be_empty=False,
        doc="Versions of TLS.",
    )
    zookeeper_ssl_cipher_suites = string_list(
        "zookeeper.ssl.cipher.suites",
        None,
        doc="Cipher suites, by their names in Java; by default those of OpenSSL.",
    )
    zookeeper_ssl_endpoint_identification_algorithm = string(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "HTTPS",
        check=lambda algorithm: algorithm.lower() in ("https", ""),
        note="https, or empty",
        doc="Verification of host names in the certificates of ZooKeeper; none if empty.",
    )
    zookeeper_ssl_crl_enable = boolean(
        "zookeeper.ssl.crl.enable",
        False,
        check=lambda enabled: not enabled,
        note="false, because revocation lists are not supported",
        doc="Reject certificates in revocation lists; not supported, so it must be false.",
    )
    zookeeper_ssl_ocsp_enable = boolean(
        "zookeeper.ssl.ocsp.enable",
        False,
        check=lambda enabled: not enabled,
        note="false, because OCSP is not supported",
        doc="Reject revoked certificates by OCSP; not supported, so it must be false.",
    )
    zookeeper_sasl_jaas_config = password(
        "zookeeper.sasl.jaas.config",
        doc="Login module for ZooKeeper with user name and password, as in sasl.jaas.config: "
        f'{DIGEST_LOGIN_MODULE} required username="..." password="..."; by default that of the section Client in the '
        "JAAS file that KAFKA_OPTS names.",
    )
    broker_id_generation_enable = boolean(
        "broker.id.generation.enable",
        True,
        doc="Generate the id of a broker without broker.id in ZooKeeper, and keep it in meta.properties.",
    )
    reserved_broker_max_id = integer(
        "reserved.broker.max.id",
        1000,
        minimum=0,
        doc="Largest broker.id that can be configured with ZooKeeper; generated ids are larger.",
    )

    @property
    def zookeeper_tls_settings(self) -> TlsSettings | None:
        """The TLS properties of connections to ZooKeeper; None without TLS."""
        if not self.zookeeper_ssl_client_enable:
            return None
        key_type = self._find_store_type(self.zookeeper_ssl_keystore_type, self.zookeeper_ssl_keystore_location)
        trust_type = self._find_store_type(self.zookeeper_ssl_truststore_type, self.zookeeper_ssl_truststore_location)
        key_password, trust_password = self.zookeeper_ssl_keystore_password, self.zookeeper_ssl_truststore_password
        return TlsSettings(
            prefix="zookeeper.",
            own=frozenset(SecurityProperties.declared()),
            keystore_type=key_type,
            keystore_location=self.zookeeper_ssl_keystore_location,
            keystore_password=None if key_type == "PEM" else key_password,
            keystore_key=None,
            keystore_certificate_chain=None,
            key_password=key_password,
            truststore_type=trust_type,
            truststore_location=self.zookeeper_ssl_truststore_location,
            truststore_password=None if trust_type == "PEM" else trust_password,
            truststore_certificates=None,
            client_auth="none",
            enabled_protocols=self.zookeeper_ssl_enabled_protocols or (self.zookeeper_ssl_protocol,),
            cipher_suites=self.zookeeper_ssl_cipher_suites or (),
            endpoint_identification_algorithm=self.zookeeper_ssl_endpoint_identification_algorithm,
            principal_mapping_rules="DEFAULT",
            allow_dn_changes=False,
            allow_san_changes=False,
            engine_factory_class=None,
        )

    @staticmethod
    def _find_store_type(given: str | None, location: str | None) -> str:
        return given or ("PEM" if (location or "").endswith(".pem") else "JKS")

    @property
    def zookeeper_credentials(self) -> tuple[str, str] | None:
        """User name and password for ZooKeeper; None without SASL. Raises PropertyError."""
        text = self.zookeeper_sasl_jaas_config
        if text is None:
            return None
        prop = type(self).declared()["zookeeper.sasl.jaas.config"]
        try:
            return find_credentials(parse_login_module(text, DIGEST_LOGIN_MODULE))
        except JaasError as error:
            raise prop.error(text, str(error)) from None


def parse_connect(text: str) -> tuple[str, str]:
    """Split `zookeeper.connect` into `host:port,host:port` and chroot, empty without one. Raises ValueError."""
    hosts, _, chroot = text.strip().partition("/")
    parts = [_parse_host(host.strip()) for host in hosts.split(",")]
    path = chroot.rstrip("/")
    if path and any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"/{path} is not a path of ZooKeeper")
    return ",".join(parts), f"/{path}" if path else ""


def _parse_host(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not host.strip("[]") or (":" in host and not is_bracketed) or any(c.isspace() for c in host):
        raise ValueError(f"{text or 'an empty entry'} is not host:port")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{text} has no valid port")
    return f"{host}:{int(port)}"
