"""The properties of SASL of one listener and one mechanism.

Sources: Kafka's documentation, "Security Configs"; KIP-85 (sasl.jaas.config), KIP-103 (listener prefixes).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odradek.properties import HIDDEN, PropertyError
from odradek.server.config.properties.sasl import (
    CALLBACK_HANDLERS,
    LOGIN_CALLBACK_HANDLERS,
    LOGIN_MODULES,
    MECHANISM_PROPERTIES,
)
from odradek.server.security.sasl.jaas import JaasError, LoginModule, parse_login_module
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS

if TYPE_CHECKING:
    from odradek.server.config import BrokerConfig

JAAS: Final = "sasl.jaas.config"
TOKEN_EXTENSION: Final = "tokenauth"
"""The option of a login module, and the extension of SCRAM, with the value `true` for a delegation token."""


class MechanismSettings(NamedTuple):
    """The properties of one mechanism of a listener.

    prefix: `listener.name.<listener>.<mechanism>.`
    jaas: the login module; None if it is not set
    find: returns the value of one of MECHANISM_PROPERTIES
    find_name: returns the name under which it is set, for errors
    """

    mechanism: str
    prefix: str
    jaas: LoginModule | None
    max_reauth_ms: int
    find: Callable[[str], Any]
    find_name: Callable[[str], str]

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the login module; none if it is not set."""
        return {} if self.jaas is None else self.jaas.options

    @property
    def jaas_name(self) -> str:
        """The name of the property with the login module."""
        return f"{self.prefix}{JAAS}"

    def has_values_of(self, other: "MechanismSettings") -> bool:
        """Return whether all properties are equal, whatever the names under which they are set."""
        names = (name for name in MECHANISM_PROPERTIES if name != JAAS)
        return self.jaas == other.jaas and all(self.find(name) == other.find(name) for name in names)

    def error(self, name: str, value: str | None, allowed: str) -> PropertyError:
        """Return the error of one of MECHANISM_PROPERTIES."""
        return PropertyError(self.find_name(name), value, allowed)

    def jaas_error(self, allowed: str) -> PropertyError:
        """Return the error of the login module."""
        return PropertyError(self.jaas_name, HIDDEN, allowed)

    def require_jaas(self, *options: str) -> LoginModule:
        """Return the login module, which has these options. Raises PropertyError."""
        login_module = LOGIN_MODULES[self.mechanism]
        if self.jaas is None:
            example = "".join(f' {option}="..."' for option in options or ("user_alice",))
            raise PropertyError(
                self.jaas_name,
                None,
                f"must be set, for example to {login_module} required{example}; (a JAAS file, as in "
                "java.security.auth.login.config, is not read)",
            )
        for option in options:
            if option not in self.jaas.options:
                raise self.jaas_error(f"must have the option {option}")
        return self.jaas


class SaslSettings(NamedTuple):
    """The properties of a listener. `mechanisms`: those that are enabled."""

    mechanisms: tuple[MechanismSettings, ...]
    max_receive_bytes: int
    failure_delay_ms: int


def make_sasl_settings(config: "BrokerConfig", listener_name: str) -> SaslSettings:
    """Return the settings of a listener with SASL. Raises PropertyError."""
    enabled = config.listener_value(listener_name, "sasl.enabled.mechanisms")
    known = ", ".join(LOGIN_MODULES)
    for mechanism in enabled:
        if mechanism not in LOGIN_MODULES:
            name = config.listener_property_name(listener_name, "sasl.enabled.mechanisms")
            raise PropertyError(name, ",".join(enabled), f"{mechanism} is not one of the mechanisms {known}")
    return SaslSettings(
        tuple(make_mechanism_settings(config, listener_name, mechanism) for mechanism in enabled),
        config.listener_value(listener_name, "sasl.server.max.receive.size"),
        config.connection_failed_authentication_delay_ms,
    )


def make_mechanism_settings(config: "BrokerConfig", listener_name: str, mechanism: str) -> MechanismSettings:
    """Return the settings of a mechanism of a listener. Raises PropertyError."""
    prefix = config.mechanism_prefix(listener_name, mechanism)
    handler = config.mechanism_value(listener_name, mechanism, "sasl.server.callback.handler.class")
    if handler is not None and handler not in CALLBACK_HANDLERS.get(mechanism, ()):
        name = f"{prefix}sasl.server.callback.handler.class"
        raise PropertyError(name, handler, "must not be set, because Java classes cannot be loaded")
    # Without a default: as in Kafka, a login module without the prefix of a mechanism is ignored.
    text = config.listener_properties.get((listener_name, f"{mechanism.lower()}.{JAAS}"))
    return MechanismSettings(
        mechanism,
        prefix,
        find_login_module(f"{prefix}{JAAS}", mechanism, text),
        config.mechanism_value(listener_name, mechanism, "connections.max.reauth.ms"),
        partial(config.mechanism_value, listener_name, mechanism),
        partial(config.mechanism_property_name, listener_name, mechanism),
    )


class ClientSettings(NamedTuple):
    """The credentials with which a broker connects to others, or a command to a broker.

    is_token: they are the id and the HMAC of a delegation token
    """

    mechanism: str
    user: str
    password: str
    is_token: bool = False

    def __repr__(self) -> str:
        return f"ClientSettings({self.mechanism}, {self.user})"


def make_client_settings(settings: MechanismSettings) -> ClientSettings:
    """Return the credentials of a mechanism with passwords. Raises PropertyError."""
    options = settings.require_jaas("username", "password").options
    is_token = settings.mechanism in SCRAM_MECHANISMS and is_token_login(options)
    return ClientSettings(settings.mechanism, options["username"], options["password"], is_token)


def is_token_login(options: Mapping[str, str]) -> bool:
    """Return whether the options of a login module of SCRAM have a delegation token as user and password."""
    return options.get(TOKEN_EXTENSION, "").lower() == "true"


def make_inter_broker_settings(config: "BrokerConfig") -> MechanismSettings:
    """Return the settings of the mechanism between brokers. Raises PropertyError."""
    listener_name, mechanism = config.inter_broker_name, config.sasl_mechanism_inter_broker_protocol
    enabled = config.listener_value(listener_name, "sasl.enabled.mechanisms")
    if mechanism not in enabled:
        allowed = f"must be one of sasl.enabled.mechanisms of {listener_name}: {', '.join(enabled)}"
        raise PropertyError("sasl.mechanism.inter.broker.protocol", mechanism, allowed)
    settings = make_mechanism_settings(config, listener_name, mechanism)
    check_login_handler(settings)
    return settings


def check_login_handler(settings: MechanismSettings) -> None:
    """Raise PropertyError for a Java class that does not do what this login does."""
    name = "sasl.login.callback.handler.class"
    handler = settings.find(name)
    if handler is not None and handler not in LOGIN_CALLBACK_HANDLERS.get(settings.mechanism, ()):
        raise settings.error(name, handler, "must not be set, because Java classes cannot be loaded")


def find_login_module(name: str, mechanism: str, text: str | None) -> LoginModule | None:
    """Return the login module of a mechanism in a property; None if it is not set. Raises PropertyError."""
    if text is None:
        return None
    try:
        return parse_login_module(text, LOGIN_MODULES[mechanism])
    except JaasError as error:
        raise PropertyError(name, HIDDEN, str(error)) from None
