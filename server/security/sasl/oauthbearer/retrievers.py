"""Retrievers: the functions that obtain a token of this broker, made from its configuration (KIP-1139, KIP-1258).

Source: Kafka's DefaultJwtRetriever, ClientCredentialsJwtRetriever, JwtBearerJwtRetriever and FileJwtRetriever.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.config.properties.oauth_tokens import (
    CLIENT_CREDENTIALS_RETRIEVER,
    DEFAULT_RETRIEVER,
    FILE_RETRIEVER,
    JWT_BEARER_RETRIEVER,
)
from odradek.server.config.properties.sasl import TOKEN_HANDLERS, UNSECURED_HANDLERS
from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken, parse_access_token
from odradek.server.security.sasl.oauthbearer.claims import MAX_TOKEN_BYTES
from odradek.server.security.sasl.oauthbearer.client import find_extensions
from odradek.server.security.sasl.oauthbearer.grants import (
    ClientAssertionGrant,
    ClientSecretGrant,
    Grant,
    JwtBearerGrant,
)
from odradek.server.security.sasl.oauthbearer.issuer_context import make_issuer_context
from odradek.server.security.sasl.oauthbearer.issuer_urls import describe_url, find_file, read_file
from odradek.server.security.sasl.oauthbearer.token_endpoint import TokenRefusedError, TokenRequest, request_token
from odradek.server.security.sasl.oauthbearer.unsecured_tokens import EXTENSION_PREFIX, make_unsecured_token
from odradek.server.security.sasl.settings import MechanismSettings

if TYPE_CHECKING:
    from odradek.server.security.sasl.oauthbearer.assertions import AssertionSettings

DEFAULT_TIMEOUT_MS: Final = 10_000
"""Time for the connection to the issuer and for its response. Kafka waits without a limit by default."""

_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE: Final = "sasl.oauthbearer.scope"
_ASSERTION_FILE: Final = "sasl.oauthbearer.assertion.file"
_ISSUER: Final = "sasl.oauthbearer.assertion.claim.iss"
_KEY_FILE: Final = "sasl.oauthbearer.assertion.private.key.file"
_TEMPLATE_FILE: Final = "sasl.oauthbearer.assertion.template.file"


class RetrieverParts(NamedTuple):
    """The parts of a broker that retrievers need.

    now_ms: the wall clock
    random_bits: returns a random number of so many bits
    """

    now_ms: Callable[[], int]
    random_bits: Callable[[int], int]


class Retriever(NamedTuple):
    """The origin of the broker's tokens.

    source: describes it, for logs
    fetch: blocks, and returns a new token; raises OSError or ValueError, also TokenRefusedError
    extensions: names and values that other brokers get with each token
    """

    source: str
    fetch: Callable[[], AccessToken]
    extensions: Mapping[str, str] = MappingProxyType({})


def make_retriever(settings: MechanismSettings, parts: RetrieverParts) -> Retriever:
    """Return the retriever that the properties select; files are read once. Raises PropertyError."""
    is_unsecured = _is_unsecured(settings)
    made = (_make_unsecured if is_unsecured else _make_secured)(settings, parts)
    try:
        extensions = find_extensions(settings.options, EXTENSION_PREFIX if is_unsecured else "extension_")
    except ValueError as error:
        raise settings.jaas_error(str(error)) from None
    return made._replace(extensions=extensions)


def _is_unsecured(settings: MechanismSettings) -> bool:
    """Return whether tokens are unsigned: by the callback handler, else by options of the login module, as in Kafka."""
    handler = settings.find("sasl.login.callback.handler.class")
    if handler in UNSECURED_HANDLERS:
        return True
    return handler not in TOKEN_HANDLERS and any(name.startswith("unsecuredLogin") for name in settings.options)


def _make_unsecured(settings: MechanismSettings, parts: RetrieverParts) -> Retriever:
    module = settings.jaas or settings.require_jaas("unsecuredLoginStringClaim_sub")
    options = module.options
    try:
        make_unsecured_token(options, parts.now_ms())
    except ValueError as error:
        raise settings.jaas_error(str(error)) from None
    return Retriever("unsecured", lambda: make_unsecured_token(options, parts.now_ms()))


def _make_secured(settings: MechanismSettings, parts: RetrieverParts) -> Retriever:
    url = settings.find(_TOKEN_URL)
    if not url:
        raise settings.error(_TOKEN_URL, None, "must be set to obtain tokens of OAUTHBEARER")
    source = describe_url(url)
    try:
        path = find_file(url)
    except ValueError as error:
        raise settings.error(_TOKEN_URL, source, str(error)) from None
    chosen = settings.find(_RETRIEVER)
    if chosen != DEFAULT_RETRIEVER and (chosen == FILE_RETRIEVER) != (path is not None):
        allowed = "file" if chosen == FILE_RETRIEVER else "http or https"
        raise settings.error(_TOKEN_URL, source, f"must be a URL with {allowed} for {chosen}")
    parse = partial(
        parse_access_token,
        sub_claim_name=settings.find("sasl.oauthbearer.sub.claim.name"),
        scope_claim_name=settings.find("sasl.oauthbearer.scope.claim.name"),
    )
    if path is None:
        request = _make_request(settings, parts, url)
        return Retriever(source, lambda: parse(request()))

    def read() -> AccessToken:
        return parse(read_file(path, MAX_TOKEN_BYTES).decode("ascii", "replace").strip())

    try:
        read()
    except (OSError, ValueError) as error:
        raise settings.error(_TOKEN_URL, source, str(error)) from None
    return Retriever(source, read)


def _make_request(settings: MechanismSettings, parts: RetrieverParts, url: str) -> Callable[[], str]:
    """Return the function that requests a token of the issuer, and blocks. Raises PropertyError."""
    grant, names = _make_grant(settings, parts)
    request = TokenRequest(
        url,
        grant,
        (settings.find("sasl.login.connect.timeout.ms") or DEFAULT_TIMEOUT_MS) / 1000,
        (settings.find("sasl.login.read.timeout.ms") or DEFAULT_TIMEOUT_MS) / 1000,
    )
    context = make_issuer_context(settings)

    def fetch() -> str:
        try:
            return request_token(request, context)
        except TokenRefusedError as error:
            raise TokenRefusedError(f"{error}; check {names}, and {settings.find_name(_TOKEN_URL)}") from None

    return fetch


def _make_grant(settings: MechanismSettings, parts: RetrieverParts) -> tuple[Grant, str]:
    """Return the grant, and the names of the properties that the issuer checks."""
    if settings.find(_RETRIEVER) == JWT_BEARER_RETRIEVER:
        find_assertion, names = _make_assertion(settings, parts)
        # As in Kafka, the scope of the login module is not read.
        return JwtBearerGrant(find_assertion, settings.find(_SCOPE) or ""), names
    scope = _find_or_option(settings, _SCOPE, "scope") or ""
    if settings.find(_ASSERTION_FILE) or settings.find(_ISSUER):
        find_assertion, names = _make_assertion(settings, parts)
        client_id = _find_or_option(settings, _CLIENT_ID, "clientId") or ""
        return ClientAssertionGrant(find_assertion, client_id, scope), names
    grant = ClientSecretGrant(
        _require(settings, _CLIENT_ID, "clientId"),
        _require(settings, _CLIENT_SECRET, "clientSecret"),
        scope,
        settings.find("sasl.oauthbearer.header.urlencode"),
    )
    if settings.find(_CLIENT_ID) is None and settings.find(_CLIENT_SECRET) is None:
        return grant, f"clientId and clientSecret of {settings.jaas_name}"
    return grant, f"{settings.find_name(_CLIENT_ID)} and {settings.find_name(_CLIENT_SECRET)}"


def _find_or_option(settings: MechanismSettings, name: str, option: str) -> str | None:
    """Return the value of a property, which takes precedence, or of the option of the login module that it replaces."""
    value: str | None = settings.find(name)
    return settings.options.get(option) if value is None else value


def _require(settings: MechanismSettings, name: str, option: str) -> str:
    value = _find_or_option(settings, name, option)
    if value is None:
        if settings.jaas is None:
            raise settings.error(name, None, f"must be set to obtain tokens with {CLIENT_CREDENTIALS_RETRIEVER}")
        raise settings.jaas_error(f"must have the option {option} unless {name} is set")
    if not value.strip():
        raise settings.jaas_error(f"the option {option} must not be empty")
    return value


def _make_assertion(settings: MechanismSettings, parts: RetrieverParts) -> tuple[Callable[[], str], str]:
    """Return the function that returns an assertion, and the name of the property with its origin."""
    from odradek.server.security.sasl.oauthbearer.assertions import (
        load_key,
        load_template,
        make_assertion,
        read_assertion,
    )

    path = settings.find(_ASSERTION_FILE)
    if path:
        _check_file(settings, _ASSERTION_FILE, partial(read_assertion, path))
        return partial(read_assertion, path), settings.find_name(_ASSERTION_FILE)
    assertion = _make_assertion_settings(settings)
    _check_file(settings, _KEY_FILE, partial(load_key, assertion))
    if assertion.template_path is not None:
        _check_file(settings, _TEMPLATE_FILE, partial(load_template, assertion.template_path))
    names = f"{settings.find_name(_KEY_FILE)} and the claims"
    return lambda: make_assertion(assertion, parts.now_ms(), parts.random_bits), names


def _make_assertion_settings(settings: MechanismSettings) -> "AssertionSettings":
    from odradek.server.security.sasl.oauthbearer.assertions import AssertionSettings

    find = settings.find
    if find(_KEY_FILE) is None:
        raise settings.error(_KEY_FILE, None, f"must be set to sign assertions, unless {_ASSERTION_FILE} is set")
    values = {
        "aud": find("sasl.oauthbearer.assertion.claim.aud"),
        "iss": find(_ISSUER),
        "sub": find("sasl.oauthbearer.assertion.claim.sub"),
    }
    return AssertionSettings(
        find("sasl.oauthbearer.assertion.algorithm").upper(),
        find(_KEY_FILE),
        find("sasl.oauthbearer.assertion.private.key.passphrase"),
        find(_TEMPLATE_FILE),
        {name: value for name, value in values.items() if value is not None},
        find("sasl.oauthbearer.assertion.claim.exp.seconds"),
        find("sasl.oauthbearer.assertion.claim.nbf.seconds"),
        find("sasl.oauthbearer.assertion.claim.jti.include"),
    )


def _check_file(settings: MechanismSettings, name: str, read: Callable[[], object]) -> None:
    """Raise PropertyError if a file cannot be read."""
    try:
        read()
    except (OSError, ValueError) as error:
        raise settings.error(name, settings.find(name), str(error)) from None
