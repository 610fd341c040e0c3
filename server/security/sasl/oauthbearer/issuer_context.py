"""TLS of connections to an issuer of tokens."""

from typing import TYPE_CHECKING

from odradek.properties import PropertyError
from odradek.server.config.properties.security import SecurityProperties
from odradek.server.security.sasl.settings import MechanismSettings
from odradek.server.security.tls.settings import make_tls_settings

if TYPE_CHECKING:
    from ssl import SSLContext


def make_issuer_context(settings: MechanismSettings) -> "SSLContext | None":
    """Return the TLS context for the issuer, made from the options `ssl.*` of the login module; None without any.

    Raises PropertyError.
    """
    values = {name: value for name, value in settings.options.items() if name in SecurityProperties.declared()}
    if not values:
        return None
    from odradek.server.security.tls.contexts import make_client_context

    try:
        return make_client_context(make_tls_settings(SecurityProperties(values)))
    except PropertyError as error:
        raise settings.jaas_error(f"{error.name}: {error.allowed}") from None
