"""Properties of SASL. A mechanism of a listener can have its own: `listener.name.<listener>.<mechanism>.<property>`."""

from typing import Final

from odradek.properties import (
    PropertySet,
    UpdateMode,
    boolean,
    class_name,
    double,
    integer,
    long,
    password,
    short,
    string,
    string_list,
)
from odradek.server.config.properties.oauth_tokens import OAuthTokenProperties

SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols with SASL."""

LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
"""The mechanisms of this broker, with Kafka's login modules."""

CALLBACK_HANDLERS: Final = {
    "OAUTHBEARER": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
    ),
}
"""Kafka's classes that do what this broker does anyway. Kafka's default for OAUTHBEARER accepts unsigned tokens."""

_OAUTH_CLASSES: Final = "org.apache.kafka.common.security.oauthbearer"

TOKEN_HANDLERS: Final = (
    f"{_OAUTH_CLASSES}.OAuthBearerLoginCallbackHandler",
    f"{_OAUTH_CLASSES}.secured.OAuthBearerLoginCallbackHandler",
)
"""Kafka's classes that obtain a token of sasl.oauthbearer.token.endpoint.url."""

UNSECURED_HANDLERS: Final = (f"{_OAUTH_CLASSES}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",)
"""Kafka's class that makes unsigned tokens."""

LOGIN_CALLBACK_HANDLERS: Final = {"OAUTHBEARER": TOKEN_HANDLERS + UNSECURED_HANDLERS}
"""Kafka's classes of the login of a broker at others."""

LOGIN_PROPERTIES: Final = (
    "sasl.login.callback.handler.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
)

OAUTH_PROPERTIES: Final = (
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    *OAuthTokenProperties.declared(),
)

KERBEROS_PROPERTIES: Final = (
    "sasl.kerberos.principal.to.local.rules",
    "sasl.kerberos.service.name",
)

MECHANISM_PROPERTIES: Final = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.server.callback.handler.class",
    *LOGIN_PROPERTIES,
    *OAUTH_PROPERTIES,
    *KERBEROS_PROPERTIES,
)
"""Properties that a mechanism of a listener can have."""


class SaslProperties(PropertySet):
    """Authentication of clients, and of brokers by each other."""

    sasl_enabled_mechanisms = string_list(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        unique=True,
        may_be_empty=False,
        update_mode=UpdateMode.PER_BROKER,
        doc=f"Mechanisms that clients may use on a listener with SASL, of: {', '.join(LOGIN_MODULES)}.",
    )
    sasl_jaas_config = password(
        "sasl.jaas.config",
        update_mode=UpdateMode.PER_BROKER,
        doc="Login module with its options, as in Java: the users of PLAIN as user_<name>, and the "
        "login of the broker itself at others. Its name must have the prefix of a listener and a mechanism: "
        "listener.name.<listener>.<mechanism>.sasl.jaas.config.",
    )
    sasl_mechanism_inter_broker_protocol = string(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        doc="Mechanism with which the broker connects to others.",
    )
    sasl_server_max_receive_size = integer(
        "sasl.server.max.receive.size",
        524_288,
        minimum=1,
        doc="Maximum size of a request before the client is authenticated; a larger one closes its connection.",
    )
    sasl_server_callback_handler_class = class_name(
        "sasl.server.callback.handler.class",
        None,
        doc="Java class that checks credentials, which cannot be loaded: it must not be set, except for OAUTHBEARER to "
        "Kafka's OAuthBearerValidatorCallbackHandler.",
    )
    connections_max_reauth_ms = long(
        "connections.max.reauth.ms",
        0,
        doc="Time after which a client must authenticate itself again (KIP-368); 0 for never.",
    )
    sasl_oauthbearer_jwks_endpoint_url = string(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        doc="URL (file, http, https) of the JSON Web Key Set of the issuer of tokens, which OAUTHBEARER requires. The "
        "keys are read at start, regularly, and when a token names an unknown key.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = long(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        minimum=1,
        doc="Time between two reads of the keys.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = long(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        minimum=0,
        doc="Time after a failed read of the keys until the next one; it doubles with each failure.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = long(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        minimum=0,
        doc="Maximum of this time.",
    )
    sasl_oauthbearer_expected_audience = string_list(
        "sasl.oauthbearer.expected.audience",
        (),
        doc="Audiences, one of which a token must have. By default a token must have none.",
    )
    sasl_oauthbearer_expected_issuer = string(
        "sasl.oauthbearer.expected.issuer",
        None,
        doc="Issuer that a token must have; by default any.",
    )
    sasl_oauthbearer_clock_skew_seconds = integer(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        minimum=0,
        doc="Allowed difference between the clocks of the issuer and the broker.",
    )
    sasl_oauthbearer_scope_claim_name = string(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        may_be_empty=False,
        doc="Name of the claim with the scope of a token.",
    )
    sasl_oauthbearer_sub_claim_name = string(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        may_be_empty=False,
        doc="Name of the claim with the user name.",
    )
    sasl_oauthbearer_token_endpoint_url = string(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        doc="URL (http, https) at which the broker requests tokens for connections to others, or of a file with a "
        "token (KIP-768).",
    )
    sasl_oauthbearer_header_urlencode = boolean(
        "sasl.oauthbearer.header.urlencode",
        False,
        doc="Encode client id and client secret in the header of this request, as RFC 6749 requires.",
    )
    sasl_login_callback_handler_class = class_name(
        "sasl.login.callback.handler.class",
        None,
        doc="Java class of the broker's login at others, which cannot be loaded: it must not be set, except for "
        "OAUTHBEARER to Kafka's OAuthBearerLoginCallbackHandler or OAuthBearerUnsecuredLoginCallbackHandler.",
    )
    sasl_login_connect_timeout_ms = integer(
        "sasl.login.connect.timeout.ms",
        None,
        minimum=1,
        doc="Time for a connection to the issuer of the broker's tokens; 10 seconds if it is not set.",
    )
    sasl_login_read_timeout_ms = integer(
        "sasl.login.read.timeout.ms",
        None,
        minimum=1,
        doc="Time for a response of the issuer; 10 seconds if it is not set.",
    )
    sasl_login_retry_backoff_ms = long(
        "sasl.login.retry.backoff.ms",
        100,
        minimum=0,
        doc="Time after a failed login with OAUTHBEARER or GSSAPI until the next one; it doubles with each failure.",
    )
    sasl_login_retry_backoff_max_ms = long(
        "sasl.login.retry.backoff.max.ms",
        10_000,
        minimum=0,
        doc="Maximum of this time, which applies at once if the issuer refuses the request.",
    )
    sasl_login_refresh_window_factor = double(
        "sasl.login.refresh.window.factor",
        0.8,
        minimum=0.5,
        maximum=1.0,
        doc="Part of a token's lifetime after which the broker obtains the next one.",
    )
    sasl_login_refresh_window_jitter = double(
        "sasl.login.refresh.window.jitter",
        0.05,
        minimum=0.0,
        maximum=0.25,
        doc="Maximum of a random number that is added to this part.",
    )
    sasl_login_refresh_min_period_seconds = short(
        "sasl.login.refresh.min.period.seconds",
        60,
        minimum=0,
        maximum=900,
        doc="Least time between two requests of a token. It and the buffer do not apply to shorter lifetimes.",
    )
    sasl_login_refresh_buffer_seconds = short(
        "sasl.login.refresh.buffer.seconds",
        300,
        minimum=0,
        maximum=3600,
        doc="Least time before a token expires in which the next one is requested.",
    )
    sasl_kerberos_service_name = string(
        "sasl.kerberos.service.name",
        None,
        update_mode=UpdateMode.PER_BROKER,
        doc="Service name of the brokers, which GSSAPI between brokers requires; it must not contradict the option "
        "serviceName of the login module.",
    )
    sasl_kerberos_principal_to_local_rules = string_list(
        "sasl.kerberos.principal.to.local.rules",
        ("DEFAULT",),
        update_mode=UpdateMode.PER_BROKER,
        doc="Rules that map principals to user names, of which the first that applies counts: DEFAULT, or "
        "RULE:[n:string](regexp)s/pattern/replacement/g with /L or /U.",
    )
