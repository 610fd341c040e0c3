"""Properties of OAUTHBEARER and GSSAPI."""

import os
import sys
from pathlib import Path

import pytest

from odradek.properties import PropertyError
from odradek.server.config import BrokerConfig, parse_config
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import make_jwk, make_key_set, private_key, sign

LISTENER = {"listeners": "SASL_PLAINTEXT://:9092", "security.inter.broker.protocol": "SASL_PLAINTEXT"}
OAUTH = {**LISTENER, "sasl.enabled.mechanisms": "OAUTHBEARER"}
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
URL = "sasl.oauthbearer.jwks.endpoint.url"
HANDLER = "sasl.server.callback.handler.class"
KAFKA = "org.apache.kafka.common.security.oauthbearer"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
JAAS = "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"


def error(**values: str) -> PropertyError:
    with pytest.raises(PropertyError) as caught:
        parse_config({**OAUTH, **values})
    return caught.value


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys.json"
    file.write_bytes(make_key_set(make_jwk(private_key("ES256"), "ES256")))
    return file.as_uri()


def test_the_keys_of_the_issuer_are_required() -> None:
    refused = error()
    assert refused.name == URL
    assert "unsigned tokens are refused" in str(refused)


@pytest.mark.parametrize("prefix", ["", "listener.name.sasl_plaintext.", PREFIX])
def test_the_url_may_have_a_prefix(keys: str, prefix: str) -> None:
    parse_config({**OAUTH, f"{prefix}{URL}": keys})
    assert error(**{f"{prefix}{URL}": "ftp://host/keys"}).name == f"{prefix}{URL}"


def test_keys_in_a_file_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert "No such file" in str(error(**{URL: file.as_uri()}))
    file.write_text("{}")
    assert 'no list "keys"' in str(error(**{URL: file.as_uri()}))


def test_keys_that_are_read_by_http_are_not_read_yet() -> None:
    parse_config({**OAUTH, URL: "http://127.0.0.1:1/keys"})


@pytest.mark.parametrize(
    "handler", [f"{KAFKA}.OAuthBearerValidatorCallbackHandler", f"{KAFKA}.secured.OAuthBearerValidatorCallbackHandler"]
)
def test_the_handler_of_kafka_is_accepted(keys: str, handler: str) -> None:
    parse_config({**OAUTH, URL: keys, f"{PREFIX}{HANDLER}": handler})


def test_the_handler_of_kafka_for_unsigned_tokens_is_refused(keys: str) -> None:
    handler = f"{KAFKA}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    assert error(**{URL: keys, f"{PREFIX}{HANDLER}": handler}).name == f"{PREFIX}{HANDLER}"


def test_an_unreadable_trust_store_of_the_issuer(tmp_path: Path) -> None:
    options = f"ssl.truststore.location='{tmp_path}/absent' ssl.truststore.type=PEM"
    jaas = f"{KAFKA}.OAuthBearerLoginModule required {options};"
    refused = error(**{URL: "https://127.0.0.1:1/keys", f"{PREFIX}sasl.jaas.config": jaas})
    assert refused.name == f"{PREFIX}sasl.jaas.config"
    assert "ssl.truststore.location" in str(refused)


def test_malformed_urls(keys: str) -> None:
    assert error(**{URL: "http://[::1/keys"}).name == URL
    jaas = f"{MODULE} clientId=broker clientSecret=the-secret;"
    assert login_error(keys, **{TOKEN_URL: "http://u:the-secret@[::1/token", LOGIN_JAAS: jaas}).name == TOKEN_URL


def test_unusual_values(keys: str) -> None:
    assert error(**{URL: keys, "sasl.oauthbearer.clock.skew.seconds": "-1"})
    assert error(**{URL: keys, "sasl.oauthbearer.sub.claim.name": ""})
    assert error(**{URL: keys, "sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"})


def kerberos_error(**values: str) -> PropertyError:
    pytest.importorskip("gssapi")
    with pytest.raises(PropertyError) as caught:
        parse_config({**LISTENER, **values})
    return caught.value


def test_gssapi_needs_a_principal_with_a_keytab(tmp_path: Path) -> None:
    assert kerberos_error().name == JAAS
    assert "must have the option principal" in str(kerberos_error(**{JAAS: f"{KERBEROS} required;"}))
    keytab = f"{KERBEROS} required principal='kafka/h@R' keyTab='{tmp_path}/absent';"
    assert "absent cannot be read" in str(kerberos_error(**{JAAS: keytab}))


def test_a_keytab_that_would_block_the_broker(tmp_path: Path) -> None:
    """A client with the right to change configurations names the keytab of a running broker."""
    os.mkfifo(tmp_path / "pipe")
    jaas = f"{KERBEROS} required principal='kafka/h@R' keyTab='{tmp_path}/pipe';"
    assert "pipe is not a regular file" in str(kerberos_error(**{JAAS: jaas}))


def test_contradictions_of_gssapi(tmp_path: Path) -> None:
    jaas = f"{KERBEROS} required principal='kafka/h@R' keyTab='{tmp_path}/absent' serviceName=kafka;"
    refused = kerberos_error(**{JAAS: jaas, "sasl.kerberos.service.name": "other"})
    assert refused.name == "sasl.kerberos.service.name"
    refused = kerberos_error(**{JAAS: jaas, "sasl.kerberos.principal.to.local.rules": "DEFAULT,x"})
    assert refused.name == "sasl.kerberos.principal.to.local.rules"


def test_gssapi_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    for name in ("library", "acceptor"):
        monkeypatch.delitem(sys.modules, f"odradek.server.security.sasl.kerberos.{name}", raising=False)
    with pytest.raises(PropertyError, match=r"GSSAPI .*pip install 'odradek\[gssapi\]'"):
        parse_config(LISTENER)


CLUSTER = {**OAUTH, "zookeeper.connect": "127.0.0.1:1", "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
LOGIN_JAAS = f"{PREFIX}sasl.jaas.config"
LOGIN_HANDLER = f"{PREFIX}sasl.login.callback.handler.class"
MODULE = f"{KAFKA}.OAuthBearerLoginModule required"
TOKEN_HANDLER = f"{KAFKA}.secured.OAuthBearerLoginCallbackHandler"
UNSECURED_HANDLER = f"{KAFKA}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"


def login_error(keys: str, **values: str) -> PropertyError:
    with pytest.raises(PropertyError) as caught:
        parse_config({**CLUSTER, URL: keys, **values})
    assert "the-secret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("prefix", ["", "listener.name.sasl_plaintext.", PREFIX])
@pytest.mark.parametrize("handler", [None, TOKEN_HANDLER])
def test_a_login_with_a_client_secret(keys: str, prefix: str, handler: str | None) -> None:
    handlers = {} if handler is None else {LOGIN_HANDLER: handler}
    jaas = f"{MODULE} clientId=broker clientSecret=the-secret scope=kafka extension_traceId=1;"
    values = {**CLUSTER, URL: keys, f"{prefix}{TOKEN_URL}": "http://127.0.0.1:1/token", LOGIN_JAAS: jaas, **handlers}
    config = parse_config(values).config
    assert "the-secret" not in repr(config)
    refused = login_error(keys, **{f"{prefix}{TOKEN_URL}": "ftp://host/token", LOGIN_JAAS: jaas, **handlers})
    assert refused.name == f"{prefix}{TOKEN_URL}"


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        ("clientSecret=the-secret", LOGIN_JAAS, "must have the option clientId"),
        ("clientId=broker", LOGIN_JAAS, "must have the option clientSecret"),
        ("clientId=broker clientSecret=' '", LOGIN_JAAS, "clientSecret must not be empty"),
        ("clientId=broker clientSecret=the-secret extension_auth=1", LOGIN_JAAS, "extension_auth"),
    ],
)
def test_options_of_a_login_that_are_refused(keys: str, options: str, name: str, text: str) -> None:
    refused = login_error(keys, **{TOKEN_URL: "http://h/token", LOGIN_JAAS: f"{MODULE} {options};"})
    assert refused.name == name
    assert text in str(refused)


def test_the_endpoint_of_tokens_is_required(keys: str) -> None:
    refused = login_error(keys, **{LOGIN_JAAS: f"{MODULE} clientId=broker clientSecret=the-secret;"})
    assert refused.name == TOKEN_URL
    assert "must be set to obtain tokens of OAUTHBEARER" in str(refused)


def test_a_token_in_a_file(keys: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert "No such file" in str(login_error(keys, **{TOKEN_URL: file.as_uri()}))
    file.write_text("opaque")
    assert "not a signed JSON Web Token" in str(login_error(keys, **{TOKEN_URL: file.as_uri()}))
    file.write_text(sign(private_key("ES256"), "ES256") + "\n")
    parse_config({**CLUSTER, URL: keys, TOKEN_URL: file.as_uri()})


@pytest.mark.parametrize("handler", [None, UNSECURED_HANDLER])
def test_unsigned_tokens(keys: str, handler: str | None) -> None:
    handlers = {} if handler is None else {LOGIN_HANDLER: handler}
    jaas = f"{MODULE} unsecuredLoginStringClaim_sub=broker unsecuredLoginExtension_traceId=1;"
    parse_config({**CLUSTER, URL: keys, LOGIN_JAAS: jaas, **handlers})
    jaas = f"{MODULE} unsecuredLoginStringClaim_sub=broker unsecuredLoginExtension_auth=1;"
    assert "unsecuredLoginExtension_auth" in str(login_error(keys, **{LOGIN_JAAS: jaas, **handlers}))
    jaas = f"{MODULE} unsecuredLoginStringClaim_user=broker;"
    assert "the claim sub is absent" in str(login_error(keys, **{LOGIN_JAAS: jaas, **handlers}))


def test_other_login_handlers_are_refused(keys: str) -> None:
    assert login_error(keys, **{LOGIN_HANDLER: "com.example.Handler"}).name == LOGIN_HANDLER
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    plain = {
        **CLUSTER,
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required username=b password=the-secret;",
    }
    parse_config(plain)
    name = "listener.name.sasl_plaintext.plain.sasl.login.callback.handler.class"
    assert login_error(keys, **plain, **{name: TOKEN_HANDLER}).name == name


def test_the_login_with_a_keytab(tmp_path: Path) -> None:
    pytest.importorskip("gssapi")
    from odradek.server.security.sasl.inter_broker import check_inter_broker_login

    keytab = tmp_path / "keytab"
    keytab.touch()

    def check(options: str, **values: str) -> str:
        jaas = f"{KERBEROS} required principal='kafka/h@R' {options};"
        try:
            check_inter_broker_login(BrokerConfig({**LISTENER, JAAS: jaas, **values}))
        except PropertyError as error:
            return f"{error.name}: {error.allowed}"
        return ""

    service = {"sasl.kerberos.service.name": "kafka"}
    assert check(f"useKeyTab=true keyTab='{keytab}'", **service) == ""
    assert check(f"keyTab='{keytab}' serviceName=kafka") == ""
    assert check(f"keyTab='{keytab}'").startswith("sasl.kerberos.service.name: must be set")
    assert check("", **service) == f"{JAAS}: must have the option keyTab"
    assert "useKeyTab=true" in check(f"useKeyTab=false keyTab='{keytab}'", **service)
    assert "useTicketCache=true" in check(f"useTicketCache=true keyTab='{keytab}'", **service)
    assert "absent cannot be read" in check(f"keyTab='{tmp_path}/absent'", **service)
