"""The SASL mechanisms of a listener, made from its configuration. A mechanism's module is imported if it is enabled."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.properties import PropertyError
from odradek.replication.metadata.entity_configs import USERS
from odradek.replication.metadata.entity_names import sanitize_name
from odradek.replication.metadata.image import Configs
from odradek.server.security.sasl.mechanism import CallLater, MakeExchange, Timer
from odradek.server.security.sasl.oauthbearer.issuer_context import make_issuer_context
from odradek.server.security.sasl.settings import MechanismSettings, SaslSettings
from odradek.server.security.sasl.token_credentials import FindToken, TokenCredentials

if TYPE_CHECKING:
    from odradek.log.background.tasks import RunInThread
    from odradek.server.security.sasl.oauthbearer.jwks import KeySet
    from odradek.server.security.sasl.unknown_users import UnknownUsers

logger = logging.getLogger(__name__)


class MechanismParts(NamedTuple):
    """The parts of a broker that mechanisms need, the same for all listeners.

    entities: returns the configurations of users, by path (`EntityConfigs.configs`)
    find_token: returns a valid delegation token by its id
    random_bits: returns a random number of so many bits
    find_unknown_users: returns the credentials of users that do not exist
    now_ms: the wall clock
    monotonic: the monotonic clock, in seconds
    call_later: calls a function after some seconds
    run_request: calls a function in a thread for which the stop of the broker does not wait
    on_stop: registers a function that is called when the broker stops
    key_sets: the last keys of issuers by URL, for mechanisms that are made again
    """

    entities: Callable[[], Mapping[str, Configs]]
    find_token: FindToken
    random_bits: Callable[[int], int]
    find_unknown_users: "Callable[[], UnknownUsers]"
    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    call_later: CallLater
    run_request: "RunInThread"
    on_stop: Callable[[Callable[[], None]], None]
    key_sets: "dict[str, KeySet] | None" = None


class ListenerMechanism(NamedTuple):
    """An enabled mechanism of a listener. `max_reauth_ms`: maximum lifetime of a session; 0 without a limit."""

    make_exchange: MakeExchange
    max_reauth_ms: int


def make_mechanism(settings: MechanismSettings, parts: MechanismParts) -> ListenerMechanism:
    """Return a mechanism of a listener. Raises PropertyError."""
    return ListenerMechanism(_MAKERS[settings.mechanism](settings, parts), settings.max_reauth_ms)


def check_mechanisms(settings: SaslSettings) -> None:
    """Raise PropertyError if a mechanism of the listener cannot be made."""
    parts = MechanismParts(
        entities=dict,
        find_token=lambda token_id: None,
        random_bits=lambda bits: 0,
        find_unknown_users=_find_no_users,
        now_ms=lambda: 0,
        monotonic=lambda: 0.0,
        call_later=_never_call,
        run_request=lambda work, done: None,
        on_stop=lambda stop: None,
    )
    for one in settings.mechanisms:
        make_mechanism(one, parts)


def _never_call(delay_s: float, function: Callable[[], object], /) -> Timer:
    raise AssertionError("nothing is scheduled, because nothing ran in a thread")


def _find_no_users() -> "UnknownUsers":
    raise AssertionError("no client is authenticated")


def _make_plain(settings: MechanismSettings, parts: MechanismParts) -> MakeExchange:
    from odradek.server.security.sasl.plain import PlainExchange, find_users

    return partial(PlainExchange, find_users(settings.require_jaas().options))


def _make_scram(settings: MechanismSettings, parts: MechanismParts) -> MakeExchange:
    from odradek.server.security.sasl.scram import ScramExchange
    from odradek.server.security.sasl.scram_credentials import (
        DEFAULT_ITERATIONS,
        SCRAM_MECHANISMS,
        ScramCredential,
        format_credential,
        parse_credential,
    )

    mechanism = SCRAM_MECHANISMS[settings.mechanism]
    key = mechanism.hash(b"")
    substitute = format_credential(ScramCredential(key[:26], key, key, DEFAULT_ITERATIONS))

    def find_credential(user: str) -> ScramCredential | None:
        text = parts.entities().get(f"{USERS}/{sanitize_name(user)}", {}).get(mechanism.name)
        try:
            # A text is parsed for an unknown user too, which the time of the response would show otherwise.
            credential = parse_credential(substitute if text is None else text)
            return None if text is None else credential
        except ValueError:
            logger.error("the credential of user %r is malformed; set it again mechanism=%s", user, mechanism.name)
            return None

    def make_token_salt(token_id: str) -> bytes:
        return parts.find_unknown_users().make_token_salt(mechanism, token_id)

    def make_exchange() -> ScramExchange:
        unknown_users = parts.find_unknown_users()
        return ScramExchange(mechanism, find_credential, unknown_users, parts.random_bits, tokens.find)

    tokens = TokenCredentials(mechanism, parts.find_token, make_token_salt)
    return make_exchange


def _make_oauthbearer(settings: MechanismSettings, parts: MechanismParts) -> MakeExchange:
    from odradek.server.security.sasl.oauthbearer.exchange import OAuthBearerExchange
    from odradek.server.security.sasl.oauthbearer.jwt_validator import JwtValidator, ValidatorSettings
    from odradek.server.security.sasl.oauthbearer.key_refresh import RefreshedKeys, RefreshSettings

    find = settings.find
    read = _make_key_reader(settings)
    keys = RefreshedKeys(
        RefreshSettings(
            find("sasl.oauthbearer.jwks.endpoint.url"),
            find("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            find("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            find("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        ),
        read,
        parts.monotonic,
        parts.call_later,
        parts.run_request,
        parts.key_sets,
    )
    validator = JwtValidator(
        ValidatorSettings(
            find("sasl.oauthbearer.expected.audience"),
            find("sasl.oauthbearer.expected.issuer"),
            find("sasl.oauthbearer.clock.skew.seconds"),
            find("sasl.oauthbearer.scope.claim.name"),
            find("sasl.oauthbearer.sub.claim.name"),
        ),
        keys.find,
        parts.now_ms,
    )
    keys.start()
    parts.on_stop(keys.stop)
    return partial(OAuthBearerExchange, validator.validate)


def _make_key_reader(settings: MechanismSettings) -> Callable[[], bytes]:
    """Return the function that reads the issuer's keys. Keys in a file are checked. Raises PropertyError."""
    from odradek.server.security.sasl.oauthbearer.issuer_urls import describe_url, find_file
    from odradek.server.security.sasl.oauthbearer.jwks import parse_key_set
    from odradek.server.security.sasl.oauthbearer.key_refresh import make_reader

    name = "sasl.oauthbearer.jwks.endpoint.url"
    url = settings.find(name)
    if not url:
        raise settings.error(name, None, "OAUTHBEARER requires it, because unsigned tokens are refused")
    try:
        read = make_reader(url, make_issuer_context(settings))
        if find_file(url) is not None:
            parse_key_set(read())
    except PropertyError:
        raise
    except (OSError, ValueError) as error:
        raise settings.error(name, describe_url(url), str(error)) from None
    return read


def _make_gssapi(settings: MechanismSettings, parts: MechanismParts) -> MakeExchange:
    try:
        from odradek.server.security.sasl.kerberos.acceptor import KerberosAcceptor, KerberosSettings
    except ImportError as error:
        raise settings.error("sasl.enabled.mechanisms", settings.mechanism, str(error)) from None
    from odradek.server.security.sasl.kerberos.keytab import KerberosError
    from odradek.server.security.sasl.kerberos.names import KerberosRuleError, parse_rule

    options = settings.require_jaas("principal").options
    service, own_service = settings.find("sasl.kerberos.service.name"), options.get("serviceName")
    if service and own_service and service != own_service:
        raise settings.error("sasl.kerberos.service.name", service, f"the login module has serviceName {own_service}")
    rules_name = "sasl.kerberos.principal.to.local.rules"
    try:
        rules = tuple(map(parse_rule, settings.find(rules_name)))
    except KerberosRuleError as error:
        raise settings.error(rules_name, ",".join(settings.find(rules_name)), str(error)) from None
    try:
        acceptor = KerberosAcceptor(KerberosSettings(options["principal"], options.get("keyTab"), rules))
    except KerberosError as error:
        raise settings.jaas_error(str(error)) from None
    return acceptor.make_exchange


_MAKERS: Final[Mapping[str, Callable[[MechanismSettings, MechanismParts], MakeExchange]]] = {
    "PLAIN": _make_plain,
    "SCRAM-SHA-256": _make_scram,
    "SCRAM-SHA-512": _make_scram,
    "OAUTHBEARER": _make_oauthbearer,
    "GSSAPI": _make_gssapi,
}
