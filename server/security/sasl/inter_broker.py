"""The login of this broker at others, made from its configuration. A mechanism's module is imported if it is used."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from twisted.internet.defer import Deferred

from odradek.server.security.sasl.mechanism import Ask, Authenticate, CallLater, Timer
from odradek.server.security.sasl.settings import (
    MechanismSettings,
    make_client_settings,
    make_inter_broker_settings,
)

if TYPE_CHECKING:
    from odradek.log.background.tasks import RunInThread
    from odradek.server.config import BrokerConfig
    from odradek.server.security.sasl.kerberos.initiator import InitiatorSettings
    from odradek.server.security.sasl.oauthbearer.token_login import TokenLogin

_SEE_OTHER_LOG: Final = "; the log of the other broker has the reason"


class InterBrokerParts(NamedTuple):
    """The parts of a broker that mechanisms need.

    random_source: for nonces and jitter
    now_ms: the wall clock
    monotonic: the monotonic clock, in seconds
    call_later: calls a function after some seconds
    run_in_thread: calls a function in a thread
    run_request: the same in a thread for which the stop of the broker does not wait
    """

    random_source: random.Random
    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    call_later: CallLater
    run_in_thread: "RunInThread"
    run_request: "RunInThread"

    def wait_for_thread(self, work: Callable[[], None]) -> Deferred[None]:
        """Run work in a thread; return when it has ended."""
        return _wait(self.run_in_thread, work)

    def wait_for_request(self, work: Callable[[], None]) -> Deferred[None]:
        """Run a request in a thread; return when it has ended."""
        return _wait(self.run_request, work)


def _wait(run_in_thread: "RunInThread", work: Callable[[], None]) -> Deferred[None]:
    done: Deferred[None] = Deferred()
    run_in_thread(work, lambda error: done.errback(error) if error else done.callback(None))
    return done


def _do_nothing() -> None:
    pass


class InterBrokerLogin(NamedTuple):
    """The login of this broker. `start` and `stop` begin and end its work in the background.

    tokens: those of OAUTHBEARER
    """

    authenticate: Authenticate
    start: Callable[[], None] = _do_nothing
    stop: Callable[[], None] = _do_nothing
    tokens: "TokenLogin | None" = None


def make_inter_broker_login(config: "BrokerConfig", parts: InterBrokerParts) -> InterBrokerLogin:
    """Return the login for the listener between brokers. Raises PropertyError."""
    settings = make_inter_broker_settings(config)
    if settings.mechanism == "OAUTHBEARER":
        return _make_oauthbearer(settings, parts)
    if settings.mechanism == "GSSAPI":
        return _make_gssapi(settings, parts)
    from odradek.server.security.sasl.client import SaslClient

    hint = f"; check username and password of {settings.jaas_name}"
    client = SaslClient(make_client_settings(settings), parts.random_source.getrandbits, parts.wait_for_thread, hint)
    return InterBrokerLogin(client.authenticate)


def check_inter_broker_login(config: "BrokerConfig") -> None:
    """Raise PropertyError if the login cannot be made."""
    parts = InterBrokerParts(random.Random(0), lambda: 0, lambda: 0.0, _never_call, _never_run, _never_run)
    make_inter_broker_login(config, parts)


def _never_call(delay_s: float, function: Callable[[], object], /) -> Timer:
    raise AssertionError("nothing is scheduled, because the login is not started")


def _never_run(work: Callable[[], None], done: Callable[[Exception | None], None], /) -> None:
    raise AssertionError("nothing runs in a thread, because the login is not started")


def _make_oauthbearer(settings: MechanismSettings, parts: InterBrokerParts) -> InterBrokerLogin:
    from odradek.server.security.sasl.client import authenticate
    from odradek.server.security.sasl.oauthbearer.client import OAuthBearerClientExchange
    from odradek.server.security.sasl.oauthbearer.retrievers import RetrieverParts, make_retriever
    from odradek.server.security.sasl.oauthbearer.token_login import RenewalSettings, TokenLogin

    find = settings.find
    renewal = RenewalSettings(
        find("sasl.login.refresh.window.factor"),
        find("sasl.login.refresh.window.jitter"),
        find("sasl.login.refresh.min.period.seconds"),
        find("sasl.login.refresh.buffer.seconds"),
        find("sasl.login.retry.backoff.ms"),
        find("sasl.login.retry.backoff.max.ms"),
    )
    retriever = make_retriever(settings, RetrieverParts(parts.now_ms, parts.random_source.getrandbits))
    login = TokenLogin(
        retriever.source,
        renewal,
        retriever.fetch,
        parts.now_ms,
        parts.random_source.random,
        parts.call_later,
        parts.run_request,
    )

    async def authenticate_with_token(ask: Ask, host: str) -> int:
        exchange = OAuthBearerClientExchange(login.find, retriever.extensions)
        return await authenticate(ask, settings.mechanism, exchange, _SEE_OTHER_LOG)

    return InterBrokerLogin(authenticate_with_token, login.start, login.stop, login)


def _make_gssapi(settings: MechanismSettings, parts: InterBrokerParts) -> InterBrokerLogin:
    from odradek.server.security.sasl.client import authenticate

    initiator_settings = make_initiator_settings(settings, "sasl.mechanism.inter.broker.protocol")
    # Imported after the check that the library is installed.
    from odradek.server.security.sasl.kerberos.initiator import KerberosInitiator

    initiator = KerberosInitiator(initiator_settings, parts.monotonic, parts.wait_for_request)

    async def authenticate_with_ticket(ask: Ask, host: str) -> int:
        return await authenticate(ask, settings.mechanism, initiator.make_exchange(host), _SEE_OTHER_LOG)

    return InterBrokerLogin(authenticate_with_ticket)


def make_initiator_settings(settings: MechanismSettings, mechanism_name: str) -> "InitiatorSettings":
    """Return the settings of a login with a keytab. Raises PropertyError.

    mechanism_name: the property that selects GSSAPI, for errors
    """
    try:
        from odradek.server.security.sasl.kerberos.initiator import InitiatorSettings
    except ImportError as error:
        raise settings.error(mechanism_name, settings.mechanism, str(error)) from None
    from odradek.server.security.sasl.kerberos.keytab import KerberosError, find_keytab

    options = settings.require_jaas("principal", "keyTab").options
    if options.get("useKeyTab", "true").lower() != "true" or options.get("useTicketCache", "").lower() == "true":
        raise settings.jaas_error("must have useKeyTab=true and not useTicketCache=true: the login uses a keytab")
    name = "sasl.kerberos.service.name"
    service = settings.find(name) or options.get("serviceName")
    if not service:
        raise settings.error(name, None, "must be set for a login with GSSAPI, for example to kafka")
    try:
        keytab = find_keytab(options["keyTab"])
    except KerberosError as error:
        raise settings.jaas_error(str(error)) from None
    return InitiatorSettings(
        options["principal"],
        keytab,
        service,
        settings.jaas_name,
        settings.find("sasl.login.retry.backoff.ms"),
        settings.find("sasl.login.retry.backoff.max.ms"),
    )
