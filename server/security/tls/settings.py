"""The properties `ssl.*` of one listener or one side of a connection.

Sources: Kafka's documentation, "Security Configs"; KIP-651 (PEM), KIP-684 (mutual TLS on SASL_SSL listeners).
"""

from typing import Final, NamedTuple

from odradek.properties import PropertyError
from odradek.server.config.properties.security import SecurityProperties

TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
"""Security protocols with TLS."""


_DYNAMIC: Final = (
    "keystore_type", "keystore_location", "keystore_password", "keystore_key", "keystore_certificate_chain",
    "key_password", "truststore_type", "truststore_location", "truststore_password", "truststore_certificates",
    "allow_dn_changes", "allow_san_changes", "client_auth", "enabled_protocols", "cipher_suites",
)  # fmt: skip
"""The settings that can change while a listener exists. Apache Kafka accepts changes of the last three, too, but uses
them for the listeners of its next start."""


class TlsSettings(NamedTuple):
    """The values of the properties with these names, after `ssl.`; None if a property is not set.

    prefix: `listener.name.<listener>.`
    own: names of the properties that the listener has with this prefix
    """

    prefix: str
    own: frozenset[str]
    keystore_type: str
    keystore_location: str | None
    keystore_password: str | None
    keystore_key: str | None
    keystore_certificate_chain: str | None
    key_password: str | None
    truststore_type: str
    truststore_location: str | None
    truststore_password: str | None
    truststore_certificates: str | None
    client_auth: str
    enabled_protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    endpoint_identification_algorithm: str
    principal_mapping_rules: str
    allow_dn_changes: bool
    allow_san_changes: bool
    engine_factory_class: str | None

    def __repr__(self) -> str:
        # Without values, some of which are secrets.
        return f"TlsSettings({self.prefix})"

    def with_dynamic_of(self, other: "TlsSettings") -> "TlsSettings":
        """Return these settings with those of others that are dynamic."""
        return self._replace(own=other.own, **{name: getattr(other, name) for name in _DYNAMIC})

    def has_values_of(self, other: "TlsSettings") -> bool:
        """Return whether all settings are equal, whatever the names under which they are set."""
        return self._replace(own=other.own) == other

    def error(self, name: str, value: str | None, allowed: str) -> PropertyError:
        """Return the error of the property `ssl.<name>`."""
        name = f"ssl.{name}"
        return PropertyError(f"{self.prefix}{name}" if name in self.own else name, value, allowed)


def make_tls_settings(properties: SecurityProperties) -> TlsSettings:
    """Return the settings without a listener."""
    values = {
        prop.attribute.removeprefix("ssl_"): properties.value(name)
        for name, prop in SecurityProperties.declared().items()
    }
    return TlsSettings(prefix="", own=frozenset(), **values)
