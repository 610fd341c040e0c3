"""Properties of a client in the names of librdkafka, for confluent-kafka.

Kafka's clients and librdkafka have the same name for most properties. Those of key stores and logins differ.
"""

from collections.abc import Iterator, Mapping

from odradek.tools.kafka.connection.profile import Connection, ProfileError

_SAME_NAMES = frozenset(
    {
        "client.id",
        "client.rack",
        "request.timeout.ms",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "ssl.endpoint.identification.algorithm",
    }
)
_PEM_FILES = {"ssl.truststore": ("ssl.ca.location",), "ssl.keystore": ("ssl.certificate.location", "ssl.key.location")}
_PEM_TEXTS = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.key.password": "ssl.key.password",
}
_OAUTH = {
    "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}


def make_confluent_settings(connection: Connection) -> dict[str, str]:
    """Return the settings of a confluent-kafka client for a connection. Raises ProfileError."""
    properties = connection.properties
    settings = {"bootstrap.servers": connection.bootstrap_servers}
    settings.update({name: value for name, value in properties.items() if name in _SAME_NAMES})
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol.endswith("SSL"):
        settings.update(_make_tls_settings(properties))
    if protocol.startswith("SASL_"):
        settings.update(_make_login_settings(properties))
    return settings


def _make_tls_settings(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for store, names in _PEM_FILES.items():
        location = properties.get(f"{store}.location")
        if location is None:
            continue
        kind = properties.get(f"{store}.type", "JKS")
        if kind == "PEM":
            for name in names:
                yield name, location
        elif kind == "PKCS12" and store == "ssl.keystore":
            yield "ssl.keystore.location", location
            yield "ssl.keystore.password", properties.get("ssl.keystore.password", "")
        else:
            raise ProfileError(f"{store}.type {kind}: this command needs a PEM file (librdkafka reads no {kind})")
    for name, translated in _PEM_TEXTS.items():
        if name in properties:
            yield translated, properties[name]


def _make_login_settings(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # Imported here because the package imports the declarations of all properties, which takes some 100 ms.
    from odradek.properties import PropertyError
    from odradek.server.config.properties.sasl import LOGIN_MODULES
    from odradek.server.security.sasl.settings import JAAS, find_login_module, is_token_login

    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in LOGIN_MODULES:
        raise ProfileError(f"sasl.mechanism {mechanism}: must be one of: {', '.join(LOGIN_MODULES)}")
    if mechanism == "OAUTHBEARER":
        yield "sasl.oauthbearer.method", "oidc"
        for name, translated in _OAUTH.items():
            if name in properties:
                yield translated, properties[name]
        return
    try:
        module = find_login_module(JAAS, mechanism, properties.get("sasl.jaas.config"))
    except PropertyError as error:
        raise ProfileError(str(error)) from None
    if module is None:
        raise ProfileError(f"sasl.jaas.config must be set with sasl.mechanism {mechanism}")
    if mechanism.startswith("SCRAM") and is_token_login(module.options):
        raise ProfileError(f"{JAAS}: this command cannot use a delegation token (librdkafka has no tokenauth)")
    if mechanism == "GSSAPI":
        names = {"principal": "sasl.kerberos.principal", "keyTab": "sasl.kerberos.keytab"}
    else:
        names = {"username": "sasl.username", "password": "sasl.password"}
    for name, translated in names.items():
        if name in module.options:
            yield translated, module.options[name]
