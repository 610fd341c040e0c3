"""The mechanism GSSAPI: the client presents a Kerberos ticket for this broker.

Sources: RFC 4752 (without a security layer, which Kafka never uses), RFC 4121 (Kerberos); Java's GssKrb5Server. The
user is the client's principal, shortened by rules. As in Kafka, an authorization id has no effect.
"""

from collections.abc import Callable
from enum import Enum, unique
from typing import Final, NamedTuple

from odradek.server.security.sasl.kerberos.keytab import KerberosError, find_keytab
from odradek.server.security.sasl.kerberos.library import GSSError, gssapi
from odradek.server.security.sasl.kerberos.names import KerberosNameError, ShortNamer, ShortNameRule
from odradek.server.security.sasl.mechanism import Authenticated, SaslError

_NO_LAYER: Final = b"\x01"
_OFFER: Final = _NO_LAYER + bytes(3)
"""Security layers that the broker offers: none. The maximum size of a wrapped message is 0."""


class KerberosSettings(NamedTuple):
    """The properties of the broker's principal.

    principal: of the broker, `service/host@REALM`
    keytab: path of the file with its keys; None for the one of krb5.conf
    rules: sasl.kerberos.principal.to.local.rules
    """

    principal: str
    keytab: str | None
    rules: tuple[ShortNameRule, ...]


@unique
class GssapiState(Enum):
    """State of an exchange: what is expected of the client."""

    CONTEXT = "context"
    """A token of the security context."""
    EMPTY = "empty"
    """An empty message, after the broker's last token of the security context."""
    LAYER = "layer"
    """The chosen security layer and an authorization id."""
    ENDED = "ended"


class GssapiExchange:
    """One authentication."""

    def __init__(self, credentials: gssapi.Credentials, shorten: Callable[[str], str]) -> None:
        self.authenticated: Authenticated | None = None
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        self._shorten = shorten
        self._state = GssapiState.CONTEXT

    def evaluate(self, token: bytes) -> bytes:
        """Process the client's next token; return the broker's. Raises SaslError."""
        state, self._state = self._state, GssapiState.ENDED
        try:
            if state is GssapiState.CONTEXT:
                return self._negotiate(token)
            if state is GssapiState.EMPTY and not token:
                return self._offer_layer()
            if state is GssapiState.LAYER:
                self._finish(token)
                return b""
        except GSSError as error:
            raise SaslError(None, f"Kerberos: {error}") from None
        raise SaslError(None, "an unexpected message")

    def _negotiate(self, token: bytes) -> bytes:
        """Establish the security context."""
        answer: bytes = self._context.step(token) or b""
        if not self._context.complete:
            self._state = GssapiState.CONTEXT
            return answer
        if not answer:
            return self._offer_layer()
        self._state = GssapiState.EMPTY
        return answer

    def _offer_layer(self) -> bytes:
        self._state = GssapiState.LAYER
        offer: bytes = self._context.wrap(_OFFER, encrypt=False).message
        return offer

    def _finish(self, token: bytes) -> None:
        choice = self._context.unwrap(token).message
        if len(choice) < len(_OFFER) or choice[:1] != _NO_LAYER:
            raise SaslError(None, "the client has not chosen that there is no security layer")
        try:
            name = self._shorten(str(self._context.initiator_name))
        except KerberosNameError as error:
            raise SaslError(None, str(error)) from None
        self.authenticated = Authenticated(name)


class KerberosAcceptor:
    """Begins exchanges with the credential of one principal. Raises KerberosError if the credential is unusable."""

    def __init__(self, settings: KerberosSettings) -> None:
        store: dict[str | bytes, str | bytes] | None = None
        if settings.keytab is not None:
            store = {"keytab": find_keytab(settings.keytab)}
        try:
            name = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)
            # Kerberos only: the default would include SPNEGO, which clients of Kafka do not use.
            self._credentials = gssapi.Credentials(
                name=name, usage="accept", mechs=[gssapi.MechType.kerberos], store=store
            )
        except GSSError as error:
            raise KerberosError(f"no credential of {settings.principal}: {error}") from None
        self._namer = ShortNamer(settings.rules, find_default_realm())

    def make_exchange(self) -> GssapiExchange:
        """Begin an exchange."""
        return GssapiExchange(self._credentials, self._namer.shorten)


def find_default_realm() -> str:
    """Return the default realm of krb5.conf; empty if there is none."""
    try:
        name = gssapi.Name("user", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
    except GSSError:
        return ""
    return str(name).partition("@")[2]
