"""Properties of OAUTHBEARER and GSSAPI."""

import sys
from pathlib import Path

import pytest

from odradek.properties import PropertyError
from odradek.server.config import parse_config
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import make_jwk, make_key_set, private_key
from odradek.server.security.sasl.settings import make_client_settings

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


def test_unusual_values(keys: str) -> None:
    assert error(**{URL: keys, "sasl.oauthbearer.clock.skew.seconds": "-1"})
    assert error(**{URL: keys, "sasl.oauthbearer.sub.claim.name": ""})
    assert error(**{URL: keys, "sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"})


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "GSSAPI"])
def test_brokers_do_not_connect_with_these_mechanisms(keys: str, mechanism: str) -> None:
    values = {**OAUTH, URL: keys, "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
    with pytest.raises(PropertyError, match="between brokers it must be one of PLAIN"):
        make_client_settings(parse_config(values).config)


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
