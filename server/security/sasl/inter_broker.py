"""The login of this broker at others, made from its configuration. A mechanism's module is imported if it is used."""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from twisted.internet.defer import Deferred

from odradek.server.config.sasl import TOKEN_HANDLERS, UNSECURED_HANDLERS
from odradek.server.security.sasl.mechanism import Ask, Authenticate, CallLater, Timer
from odradek.server.security.sasl.oauthbearer.issuer_context import make_issuer_context
from odradek.server.security.sasl.settings import (
    MechanismSettings,
    make_client_settings,
    make_inter_broker_settings,
)

if TYPE_CHECKING:
    from odradek.log.background.tasks import RunInThread
    from odradek.server.config import BrokerConfig
    from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken

DEFAULT_TIMEOUT_MS: Final = 10_000
"""Time for the connection to the issuer and for its response. Kafka waits without a limit by default."""

_SEE_OTHER_LOG: Final = "; the log of the other broker has the reason"

_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"


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
    """The login of this broker. `start` and `stop` begin and end its work in the background."""

    authenticate: Authenticate
    start: Callable[[], None] = _do_nothing
    stop: Callable[[], None] = _do_nothing


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
    from odradek.server.security.sasl.oauthbearer.client import OAuthBearerClientExchange, find_extensions
    from odradek.server.security.sasl.oauthbearer.token_login import RenewalSettings, TokenLogin
    from odradek.server.security.sasl.oauthbearer.unsecured_tokens import EXTENSION_PREFIX

    find = settings.find
    renewal = RenewalSettings(
        find("sasl.login.refresh.window.factor"),
        find("sasl.login.refresh.window.jitter"),
        find("sasl.login.refresh.min.period.seconds"),
        find("sasl.login.refresh.buffer.seconds"),
        find("sasl.login.retry.backoff.ms"),
        find("sasl.login.retry.backoff.max.ms"),
    )
    is_unsecured = _is_unsecured(settings)
    make_fetch = _make_unsecured_fetch if is_unsecured else _make_token_fetch
    source, fetch = make_fetch(settings, parts)
    try:
        extensions = find_extensions(settings.options, EXTENSION_PREFIX if is_unsecured else "extension_")
    except ValueError as error:
        raise settings.jaas_error(str(error)) from None
    login = TokenLogin(
        source, renewal, fetch, parts.now_ms, parts.random_source.random, parts.call_later, parts.run_request
    )

    async def authenticate_with_token(ask: Ask, host: str) -> int:
        exchange = OAuthBearerClientExchange(login.find, extensions)
        return await authenticate(ask, settings.mechanism, exchange, _SEE_OTHER_LOG)

    return InterBrokerLogin(authenticate_with_token, login.start, login.stop)


def _is_unsecured(settings: MechanismSettings) -> bool:
    """Return whether tokens are unsigned: by the callback handler, else by options of the login module, as in Kafka."""
    handler = settings.find("sasl.login.callback.handler.class")
    if handler in UNSECURED_HANDLERS:
        return True
    return handler not in TOKEN_HANDLERS and any(name.startswith("unsecuredLogin") for name in settings.options)


def _make_unsecured_fetch(
    settings: MechanismSettings, parts: InterBrokerParts
) -> "tuple[str, Callable[[], AccessToken]]":
    from odradek.server.security.sasl.oauthbearer.unsecured_tokens import make_unsecured_token

    module = settings.jaas or settings.require_jaas("unsecuredLoginStringClaim_sub")
    options = module.options
    try:
        make_unsecured_token(options, parts.now_ms())
    except ValueError as error:
        raise settings.jaas_error(str(error)) from None
    return "unsecured", lambda: make_unsecured_token(options, parts.now_ms())


def _make_token_fetch(
    settings: MechanismSettings, parts: InterBrokerParts
) -> "tuple[str, Callable[[], AccessToken]]":
    """Return a description of the issuer, and the function that gets a token of it."""
    from odradek.server.security.sasl.oauthbearer.access_tokens import parse_access_token
    from odradek.server.security.sasl.oauthbearer.claims import MAX_TOKEN_BYTES
    from odradek.server.security.sasl.oauthbearer.issuer_urls import describe_url, find_file, read_file

    url = settings.find(_TOKEN_URL)
    if not url:
        raise settings.error(_TOKEN_URL, None, "must be set for OAUTHBEARER between brokers")
    parse = partial(
        parse_access_token,
        sub_claim_name=settings.find("sasl.oauthbearer.sub.claim.name"),
        scope_claim_name=settings.find("sasl.oauthbearer.scope.claim.name"),
    )
    source = describe_url(url)
    try:
        path = find_file(url)
    except ValueError as error:
        raise settings.error(_TOKEN_URL, source, str(error)) from None
    if path is None:
        request = _make_token_request(settings, parts, url)
        return source, lambda: parse(request())

    def read() -> "AccessToken":
        return parse(read_file(path, MAX_TOKEN_BYTES).decode("ascii", "replace").strip())

    try:
        read()
    except (OSError, ValueError) as error:
        raise settings.error(_TOKEN_URL, source, str(error)) from None
    return source, read


def _make_token_request(settings: MechanismSettings, parts: InterBrokerParts, url: str) -> Callable[[], str]:
    """Return the function that requests a token of the issuer, and blocks. Raises PropertyError."""
    from odradek.server.security.sasl.oauthbearer.token_endpoint import TokenRefusedError, TokenRequest, request_token

    options = settings.require_jaas("clientId", "clientSecret").options
    for name in ("clientId", "clientSecret"):
        if not options[name].strip():
            raise settings.jaas_error(f"the option {name} must not be empty")
    request = TokenRequest(
        url,
        options["clientId"],
        options["clientSecret"],
        options.get("scope", ""),
        settings.find("sasl.oauthbearer.header.urlencode"),
        (settings.find("sasl.login.connect.timeout.ms") or DEFAULT_TIMEOUT_MS) / 1000,
        (settings.find("sasl.login.read.timeout.ms") or DEFAULT_TIMEOUT_MS) / 1000,
    )
    context = make_issuer_context(settings)

    def fetch() -> str:
        try:
            return request_token(request, parts.monotonic, context)
        except TokenRefusedError as error:
            names = f"clientId and clientSecret of {settings.jaas_name}, and {settings.find_name(_TOKEN_URL)}"
            raise TokenRefusedError(f"{error}; check {names}") from None

    return fetch


def _make_gssapi(settings: MechanismSettings, parts: InterBrokerParts) -> InterBrokerLogin:
    try:
        from odradek.server.security.sasl.kerberos.initiator import InitiatorSettings, KerberosInitiator
    except ImportError as error:
        raise settings.error("sasl.mechanism.inter.broker.protocol", settings.mechanism, str(error)) from None
    from odradek.server.security.sasl.client import authenticate
    from odradek.server.security.sasl.kerberos.keytab import KerberosError, find_keytab

    options = settings.require_jaas("principal", "keyTab").options
    if options.get("useKeyTab", "true").lower() != "true" or options.get("useTicketCache", "").lower() == "true":
        raise settings.jaas_error("must have useKeyTab=true and not useTicketCache=true: brokers log in with a keytab")
    name = "sasl.kerberos.service.name"
    service = settings.find(name) or options.get("serviceName")
    if not service:
        raise settings.error(name, None, "must be set for GSSAPI between brokers, for example to kafka")
    try:
        keytab = find_keytab(options["keyTab"])
    except KerberosError as error:
        raise settings.jaas_error(str(error)) from None
    initiator = KerberosInitiator(
        InitiatorSettings(
            options["principal"],
            keytab,
            service,
            settings.jaas_name,
            settings.find("sasl.login.retry.backoff.ms"),
            settings.find("sasl.login.retry.backoff.max.ms"),
        ),
        parts.monotonic,
        parts.wait_for_request,
    )

    async def authenticate_with_ticket(ask: Ask, host: str) -> int:
        return await authenticate(ask, settings.mechanism, initiator.make_exchange(host), _SEE_OTHER_LOG)

    return InterBrokerLogin(authenticate_with_ticket)

