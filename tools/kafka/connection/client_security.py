"""TLS and SASL of a client: its properties as Kafka's tools take them, from `--command-config` or a profile.

    security.protocol=SASL_SSL
    ssl.truststore.type=PEM
    ssl.truststore.location=ca.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";

Other properties are ignored, as Kafka's tools ignore those of other clients.
"""

import ssl
from collections.abc import Mapping

from odradek.properties import PropertyError, string
from odradek.server.config.listeners import SECURITY_PROTOCOLS
from odradek.server.config.properties.oauth_tokens import OAuthTokenProperties
from odradek.server.config.properties.sasl import LOGIN_MODULES, SASL_PROTOCOLS, SaslProperties
from odradek.server.config.properties.security import SecurityProperties
from odradek.server.security.sasl.settings import JAAS, MechanismSettings, find_login_module
from odradek.server.security.tls.settings import TLS_PROTOCOLS, make_tls_settings
from odradek.tools.kafka.connection.client_login import ClientLogin, make_client_login
from odradek.tools.kafka.connection.wire_client import ClientSecurity


class _ClientProperties(SecurityProperties, SaslProperties, OAuthTokenProperties):
    """The security properties of a client."""

    security_protocol = string("security.protocol", "PLAINTEXT", choices=SECURITY_PROTOCOLS, doc="")
    sasl_mechanism = string("sasl.mechanism", "GSSAPI", doc="")


def make_client_security(values: Mapping[str, str]) -> ClientSecurity:
    """Return the security of a client with these properties. Raises PropertyError."""
    known = _ClientProperties.declared()
    properties = _ClientProperties({name: value for name, value in values.items() if name in known})
    protocol = properties.security_protocol
    return ClientSecurity(
        _make_tls_context(properties) if protocol in TLS_PROTOCOLS else None,
        _make_login(properties) if protocol in SASL_PROTOCOLS else None,
    )


def _make_tls_context(properties: _ClientProperties) -> ssl.SSLContext:
    # Imported here because plaintext needs no keys.
    from odradek.server.security.tls.contexts import make_client_context

    return make_client_context(make_tls_settings(properties))


def _make_login(properties: _ClientProperties) -> ClientLogin:
    mechanism = properties.sasl_mechanism
    if mechanism not in LOGIN_MODULES:
        raise PropertyError("sasl.mechanism", mechanism, f"must be one of: {', '.join(LOGIN_MODULES)}")
    module = find_login_module(JAAS, mechanism, properties.sasl_jaas_config)
    return make_client_login(MechanismSettings(mechanism, "", module, 0, properties.value, lambda name: name))
