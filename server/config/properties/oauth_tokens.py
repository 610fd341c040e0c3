"""Properties of the tokens with which a broker authenticates itself at others (KIP-1139, KIP-1258)."""

from typing import Final

from odradek.properties import PropertySet, boolean, class_name, integer, password, string

_CLASSES: Final = "org.apache.kafka.common.security.oauthbearer"

DEFAULT_RETRIEVER: Final = f"{_CLASSES}.DefaultJwtRetriever"
CLIENT_CREDENTIALS_RETRIEVER: Final = f"{_CLASSES}.ClientCredentialsJwtRetriever"
FILE_RETRIEVER: Final = f"{_CLASSES}.FileJwtRetriever"
JWT_BEARER_RETRIEVER: Final = f"{_CLASSES}.JwtBearerJwtRetriever"
"""Kafka's classes that obtain tokens."""

_DEFAULT_VALIDATOR: Final = f"{_CLASSES}.DefaultJwtValidator"


class OAuthTokenProperties(PropertySet):
    """Tokens of brokers (OAUTHBEARER)."""

    sasl_oauthbearer_jwt_retriever_class = class_name(
        "sasl.oauthbearer.jwt.retriever.class",
        DEFAULT_RETRIEVER,
        choices=(CLIENT_CREDENTIALS_RETRIEVER, DEFAULT_RETRIEVER, FILE_RETRIEVER, JWT_BEARER_RETRIEVER),
        doc="Kafka's class that obtains a token of sasl.oauthbearer.token.endpoint.url: with client credentials, of a "
        "file, or with an assertion (the jwt-bearer grant of RFC 7523). The default obtains it of a file: URL, else "
        "with client credentials.",
    )
    sasl_oauthbearer_jwt_validator_class = class_name(
        "sasl.oauthbearer.jwt.validator.class",
        _DEFAULT_VALIDATOR,
        choices=(f"{_CLASSES}.BrokerJwtValidator", f"{_CLASSES}.ClientJwtValidator", _DEFAULT_VALIDATOR),
        no_effect="the signatures of clients' tokens are always verified, those of the broker's own by other brokers",
        doc="Kafka's class that validates tokens.",
    )
    sasl_oauthbearer_client_credentials_client_id = string(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        may_be_empty=False,
        doc="Client id of the broker at the issuer of its tokens; it takes precedence over the option clientId of the "
        "login module.",
    )
    sasl_oauthbearer_client_credentials_client_secret = password(
        "sasl.oauthbearer.client.credentials.client.secret",
        may_be_empty=False,
        doc="Client secret of the broker at the issuer of its tokens; it takes precedence over the option clientSecret "
        "of the login module.",
    )
    sasl_oauthbearer_scope = string(
        "sasl.oauthbearer.scope",
        None,
        doc="Scope of the tokens that the broker requests; it takes precedence over the option scope of the login "
        "module, which the jwt-bearer grant does not read.",
    )
    sasl_oauthbearer_assertion_algorithm = string(
        "sasl.oauthbearer.assertion.algorithm",
        "RS256",
        choices=("ES256", "RS256"),
        ignore_case=True,
        doc="Algorithm with which the broker signs assertions.",
    )
    sasl_oauthbearer_assertion_claim_aud = string(
        "sasl.oauthbearer.assertion.claim.aud",
        None,
        may_be_empty=False,
        doc="Claim aud of assertions.",
    )
    sasl_oauthbearer_assertion_claim_exp_seconds = integer(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        300,
        minimum=0,
        maximum=86_400,
        doc="Time after which an assertion expires.",
    )
    sasl_oauthbearer_assertion_claim_iss = string(
        "sasl.oauthbearer.assertion.claim.iss",
        None,
        may_be_empty=False,
        doc="Claim iss of assertions. With it, client credentials are an assertion instead of a secret (KIP-1258).",
    )
    sasl_oauthbearer_assertion_claim_jti_include = boolean(
        "sasl.oauthbearer.assertion.claim.jti.include",
        False,
        doc="Include a random id in each assertion, as the claim jti.",
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds = integer(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        60,
        minimum=0,
        maximum=3600,
        doc="Time before its creation from which an assertion is valid.",
    )
    sasl_oauthbearer_assertion_claim_sub = string(
        "sasl.oauthbearer.assertion.claim.sub",
        None,
        may_be_empty=False,
        doc="Claim sub of assertions.",
    )
    sasl_oauthbearer_assertion_file = string(
        "sasl.oauthbearer.assertion.file",
        None,
        doc="Path of a file with a signed assertion, which is read at each request of a token; the other properties of "
        "assertions are ignored. With it, client credentials are the assertion instead of a secret (KIP-1258).",
    )
    sasl_oauthbearer_assertion_private_key_file = string(
        "sasl.oauthbearer.assertion.private.key.file",
        None,
        may_be_empty=False,
        doc="Path of the private key (PEM) that signs assertions, which is read at each request of a token.",
    )
    sasl_oauthbearer_assertion_private_key_passphrase = password(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        may_be_empty=False,
        doc="Passphrase of this key, if it is encrypted.",
    )
    sasl_oauthbearer_assertion_template_file = string(
        "sasl.oauthbearer.assertion.template.file",
        None,
        may_be_empty=False,
        doc="Path of a JSON file with the objects header and payload, whose members are added to assertions. They take "
        "precedence over the properties of the claims aud, iss and sub, but not over other claims.",
    )
