"""The login of a command at a broker: once, without work in the background, unlike that of a broker at others."""

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.server.security.sasl.mechanism import Ask, Authenticate, SaslError
from odradek.server.security.sasl.settings import MechanismSettings, check_login_handler, make_client_settings

if TYPE_CHECKING:
    from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken

_TICKET_CACHE = "MEMORY:odradek-cluster"


class ClientLogin(NamedTuple):
    """A login.

    identity: names the credentials, for errors
    authenticate: authenticates one connection; it blocks
    """

    identity: str
    authenticate: Authenticate


def make_client_login(settings: MechanismSettings) -> ClientLogin:
    """Return the login with the properties of a client. Raises PropertyError."""
    check_login_handler(settings)
    if settings.mechanism == "OAUTHBEARER":
        return _make_oauthbearer(settings)
    if settings.mechanism == "GSSAPI":
        return _make_gssapi(settings)
    from odradek.server.security.sasl.client import SaslClient

    async def run_here(work: Callable[[], None]) -> None:
        work()

    credentials = make_client_settings(settings)
    client = SaslClient(credentials, secrets.randbits, run_here)
    return ClientLogin(f"user {credentials.user}", client.authenticate)


def _make_oauthbearer(settings: MechanismSettings) -> ClientLogin:
    from odradek.server.security.sasl.client import authenticate
    from odradek.server.security.sasl.oauthbearer.client import OAuthBearerClientExchange
    from odradek.server.security.sasl.oauthbearer.retrievers import RetrieverParts, make_retriever

    parts = RetrieverParts(lambda: int(time.time() * 1000), secrets.randbits)
    retriever = make_retriever(settings, parts)

    async def find_token() -> "AccessToken":
        try:
            return retriever.fetch()
        except (OSError, ValueError) as error:
            raise SaslError(f"cannot obtain it: {error}") from None

    async def authenticate_with_token(ask: Ask, host: str) -> int:
        exchange = OAuthBearerClientExchange(find_token, retriever.extensions)
        return await authenticate(ask, settings.mechanism, exchange)

    return ClientLogin(f"the token of {retriever.source}", authenticate_with_token)


def _make_gssapi(settings: MechanismSettings) -> ClientLogin:
    from odradek.server.security.sasl.client import authenticate
    from odradek.server.security.sasl.inter_broker import make_initiator_settings

    initiator = make_initiator_settings(settings, "sasl.mechanism")
    # Imported after the check that the library is installed.
    from odradek.server.security.sasl.kerberos.initiator import GssapiClientExchange, begin_context, log_in
    from odradek.server.security.sasl.kerberos.keytab import KerberosError

    async def authenticate_with_ticket(ask: Ask, host: str) -> int:
        async def begin() -> tuple[Any, bytes]:
            try:
                credentials = log_in(initiator.principal, initiator.keytab, _TICKET_CACHE)
                return begin_context(credentials, initiator.service, host)
            except KerberosError as error:
                raise SaslError(f"Kerberos: {error}") from None

        return await authenticate(ask, settings.mechanism, GssapiClientExchange(begin))

    return ClientLogin(f"principal {initiator.principal}", authenticate_with_ticket)
