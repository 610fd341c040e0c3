"""Properties of the tokens of brokers (KIP-1139, KIP-1258)."""

import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.log.background.tasks import run_inline
from odradek.properties import PropertyError
from odradek.protocol.schema import Message
from odradek.server.config import BrokerConfig
from odradek.server.config.loading import parse_config
from odradek.server.security.sasl.current_login import CurrentLogin
from odradek.server.security.sasl.inter_broker import InterBrokerParts, make_inter_broker_login
from odradek.server.security.sasl.mechanism import Response, SaslError
from odradek.server.security.sasl.oauthbearer import retrievers
from odradek.server.security.sasl.oauthbearer.retrievers import RetrieverParts, make_retriever
from odradek.server.security.sasl.oauthbearer.tests.test_assertions import PASSPHRASE, decode, write_key
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import (
    CLAIMS,
    make_jwk,
    make_key_set,
    private_key,
    sign,
)
from odradek.server.security.sasl.oauthbearer.token_endpoint import TokenRefusedError, TokenRequest
from odradek.server.security.sasl.settings import make_inter_broker_settings

KAFKA = "org.apache.kafka.common.security.oauthbearer"
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
JAAS = f"{PREFIX}sasl.jaas.config"
CLIENT = "sasl.oauthbearer.client.credentials.client."
ASSERTION = "sasl.oauthbearer.assertion."
RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
VALIDATOR = "sasl.oauthbearer.jwt.validator.class"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
JWT_BEARER = f"{KAFKA}.JwtBearerJwtRetriever"
PREFIXES = pytest.mark.parametrize("prefix", ["", "listener.name.sasl_plaintext.", PREFIX])


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    keys = tmp_path / "keys"
    keys.write_bytes(make_key_set(make_jwk(private_key("ES256"), "ES256", kid="1")))
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "zookeeper.connect": "127.0.0.1:1",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        TOKEN_URL: "http://127.0.0.1:1/token",
    }


def find_error(properties: Mapping[str, str], **values: str) -> PropertyError:
    with pytest.raises(PropertyError) as caught:
        parse_config({**properties, **values})
    for secret in ("the-secret", PASSPHRASE):
        assert secret not in str(caught.value)
    return caught.value


class Endpoint:
    """An issuer that grants every request, and records it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[TokenRequest] = []
        monkeypatch.setattr(retrievers, "request_token", self.grant)

    def grant(self, request: TokenRequest, *arguments: Any) -> str:
        self.requests.append(request)
        return sign(private_key("ES256"), "ES256")

    def request(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Request a token with these properties; return the fields of the form, and its header as the last one."""
        settings = make_inter_broker_settings(parse_config(properties).config)
        parts = RetrieverParts(lambda: 1_700_000_000_500, Random(1).getrandbits)
        assert make_retriever(settings, parts).fetch().principal == "alice"
        form = self.requests[-1].grant.make_form()
        return {**dict(parse_qsl(form.body.decode())), "secret": form.secrets[0]}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    return Endpoint(monkeypatch)


@PREFIXES
@pytest.mark.parametrize("retriever", ["DefaultJwtRetriever", "ClientCredentialsJwtRetriever"])
@pytest.mark.parametrize("jaas", ["", "clientId=other clientSecret=other scope=other extension_traceId=1"])
def test_client_credentials(
    properties: dict[str, str], endpoint: Endpoint, prefix: str, retriever: str, jaas: str
) -> None:
    values = {
        **properties,
        JAAS: f"{KAFKA}.OAuthBearerLoginModule required {jaas};",
        f"{prefix}{RETRIEVER}": f"{KAFKA}.{retriever}",
        f"{prefix}{CLIENT}id": "broker",
        f"{prefix}{CLIENT}secret": "the-secret",
        f"{prefix}sasl.oauthbearer.scope": "kafka",
    }
    assert endpoint.request(values) == {"grant_type": "client_credentials", "scope": "kafka", "secret": "the-secret"}
    [request] = endpoint.requests
    assert request.grant.make_form().authorization == "Basic YnJva2VyOnRoZS1zZWNyZXQ="
    assert "the-secret" not in repr(request)
    assert "the-secret" not in repr(parse_config(values).config)


def test_each_property_precedes_its_option(properties: dict[str, str], endpoint: Endpoint) -> None:
    values = {
        **properties,
        JAAS: f"{KAFKA}.OAuthBearerLoginModule required clientId=other clientSecret=the-secret scope=kafka;",
        f"{CLIENT}id": "broker",
    }
    assert endpoint.request(values) == {"grant_type": "client_credentials", "scope": "kafka", "secret": "the-secret"}
    assert endpoint.requests[0].grant.make_form().authorization == "Basic YnJva2VyOnRoZS1zZWNyZXQ="
    assert "scope" not in endpoint.request({**values, "sasl.oauthbearer.scope": ""})


def test_client_credentials_without_a_login_module(properties: dict[str, str], endpoint: Endpoint) -> None:
    values = {**properties, f"{CLIENT}id": "broker", f"{CLIENT}secret": "the-secret"}
    assert endpoint.request(values)["secret"] == "the-secret"
    del values[f"{CLIENT}id"]
    assert find_error(values).name == f"{CLIENT}id"
    assert find_error(properties, **{f"{CLIENT}id": "broker"}).name == f"{CLIENT}secret"
    for name in (f"{CLIENT}id", f"{PREFIX}{CLIENT}secret"):
        assert find_error(values, **{name: " "}).name == name


@PREFIXES
@pytest.mark.parametrize("name", [RETRIEVER, VALIDATOR])
def test_other_classes_are_refused(properties: dict[str, str], prefix: str, name: str) -> None:
    refused = find_error(properties, **{f"{prefix}{name}": "com.example.Own"})
    assert (refused.name, refused.value) == (f"{prefix}{name}", "com.example.Own")
    for kind in ("Default", "Broker", "Client"):
        values = {**properties, f"{CLIENT}id": "broker", f"{CLIENT}secret": "the-secret"}
        parse_config({**values, f"{prefix}{VALIDATOR}": f"{KAFKA}.{kind}JwtValidator"})


def test_the_class_must_agree_with_the_url(properties: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(sign(private_key("ES256"), "ES256"))
    for name in ("DefaultJwtRetriever", "FileJwtRetriever"):
        parse_config({**properties, RETRIEVER: f"{KAFKA}.{name}", TOKEN_URL: file.as_uri()})
    refused = find_error(properties, **{RETRIEVER: f"{KAFKA}.FileJwtRetriever"})
    assert (refused.name, refused.allowed) == (TOKEN_URL, f"must be a URL with file for {KAFKA}.FileJwtRetriever")
    for name in ("ClientCredentialsJwtRetriever", "JwtBearerJwtRetriever"):
        refused = find_error(properties, **{RETRIEVER: f"{KAFKA}.{name}", TOKEN_URL: file.as_uri()})
        assert (refused.name, refused.allowed) == (TOKEN_URL, f"must be a URL with http or https for {KAFKA}.{name}")


@PREFIXES
def test_the_jwt_bearer_grant(properties: dict[str, str], endpoint: Endpoint, tmp_path: Path, prefix: str) -> None:
    template = tmp_path / "template.json"
    template.write_text('{"header": {"kid": "5"}, "payload": {"roles": ["broker"]}}')
    values = {
        RETRIEVER: JWT_BEARER,
        "sasl.oauthbearer.scope": "kafka",
        f"{ASSERTION}algorithm": "es256",
        f"{ASSERTION}claim.aud": "issuer",
        f"{ASSERTION}claim.exp.seconds": "10",
        f"{ASSERTION}claim.iss": "broker",
        f"{ASSERTION}claim.jti.include": "true",
        f"{ASSERTION}claim.nbf.seconds": "20",
        f"{ASSERTION}claim.sub": "broker-1",
        f"{ASSERTION}private.key.file": write_key(tmp_path / "key.pem", "ES256", PASSPHRASE),
        f"{ASSERTION}private.key.passphrase": PASSPHRASE,
        f"{ASSERTION}template.file": str(template),
    }
    fields = endpoint.request({**properties, **{f"{prefix}{name}": value for name, value in values.items()}})
    assert fields["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert (fields["scope"], fields["assertion"]) == ("kafka", fields["secret"])
    header, claims = decode(fields["assertion"], "ES256")
    assert header == {"alg": "ES256", "typ": "JWT", "kid": "5"}
    assert len(claims.pop("jti")) == 36
    times = {"iat": 1_700_000_000, "exp": 1_700_000_010, "nbf": 1_699_999_980}
    assert claims == {"aud": "issuer", "iss": "broker", "sub": "broker-1", "roles": ["broker"], **times}


def test_the_jwt_bearer_grant_with_defaults(properties: dict[str, str], endpoint: Endpoint, tmp_path: Path) -> None:
    values = {
        **properties,
        RETRIEVER: JWT_BEARER,
        # As in Kafka, this scope is not read.
        JAAS: f"{KAFKA}.OAuthBearerLoginModule required scope=other;",
        f"{ASSERTION}private.key.file": write_key(tmp_path / "key.pem", "RS256"),
    }
    fields = endpoint.request(values)
    assert "scope" not in fields
    _, claims = decode(fields["assertion"], "RS256")
    assert claims == {"iat": 1_700_000_000, "exp": 1_700_000_300, "nbf": 1_699_999_940}


@pytest.mark.parametrize("retriever", ["JwtBearerJwtRetriever", "DefaultJwtRetriever"])
def test_an_assertion_in_a_file_is_read_again(
    properties: dict[str, str], endpoint: Endpoint, tmp_path: Path, retriever: str
) -> None:
    file = tmp_path / "assertion"
    first, second = (sign(private_key("ES256"), "ES256", jti=name) for name in "ab")
    file.write_text(f"{first}\n")
    values = {
        **properties,
        RETRIEVER: f"{KAFKA}.{retriever}",
        f"{ASSERTION}file": str(file),
        f"{ASSERTION}private.key.file": "/absent",
    }
    assert endpoint.request(values)["secret"] == first
    file.write_text(second)
    assert endpoint.requests[0].grant.make_form().secrets == (second,)


def test_client_credentials_with_an_assertion(properties: dict[str, str], endpoint: Endpoint, tmp_path: Path) -> None:
    values = {
        **properties,
        f"{CLIENT}id": "broker",
        f"{ASSERTION}claim.iss": "broker",
        f"{ASSERTION}private.key.file": write_key(tmp_path / "key.pem", "RS256"),
    }
    fields = endpoint.request(values)
    assert (fields["grant_type"], fields["client_id"]) == ("client_credentials", "broker")
    assert decode(fields["client_assertion"], "RS256")[1]["iss"] == "broker"
    assert endpoint.requests[0].grant.make_form().authorization is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm", "HS256"),
        ("claim.exp.seconds", "-1"),
        ("claim.exp.seconds", "86401"),
        ("claim.nbf.seconds", "-1"),
        ("claim.nbf.seconds", "3601"),
        ("claim.aud", ""),
        ("claim.iss", ""),
        ("claim.sub", ""),
        ("claim.jti.include", "1"),
        ("file", "/absent"),
        ("private.key.file", "/absent"),
        ("private.key.file", ""),
        ("private.key.passphrase", ""),
        ("template.file", "/absent"),
    ],
)
def test_values_that_are_refused(properties: dict[str, str], tmp_path: Path, name: str, value: str) -> None:
    path = write_key(tmp_path / "key.pem", "RS256")
    values = {**properties, RETRIEVER: JWT_BEARER, f"{ASSERTION}private.key.file": path}
    parse_config(values)
    assert find_error(values, **{f"{ASSERTION}{name}": value}).name == f"{ASSERTION}{name}"


def test_a_key_that_does_not_fit(properties: dict[str, str], tmp_path: Path) -> None:
    name = f"{PREFIX}{ASSERTION}private.key.file"
    values = {**properties, RETRIEVER: JWT_BEARER, name: write_key(tmp_path / "key.pem", "RS256", PASSPHRASE)}
    assert find_error(values).name == name
    parse_config({**values, f"{ASSERTION}private.key.passphrase": PASSPHRASE})
    refused = find_error(values, **{f"{ASSERTION}private.key.passphrase": "the-secret"})
    assert (refused.name, refused.value) == (name, values[name])
    del values[name]
    assert find_error(values).name == f"{ASSERTION}private.key.file"


def test_the_last_token_is_used_until_changed_credentials_have_obtained_one(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def request_token(request: TokenRequest, *arguments: Any) -> str:
        if "wrong" in request.grant.make_form().secrets:
            raise TokenRefusedError("it responded 401")
        return sign(private_key("ES256"), "ES256")

    def make_config(secret: str) -> BrokerConfig:
        jaas = f"{KAFKA}.OAuthBearerLoginModule required clientId=broker clientSecret={secret};"
        return BrokerConfig({**properties, JAAS: jaas})

    async def ask(request: Message, response_type: type[Response], version: int) -> Response:
        return response_type()

    def authenticate() -> list[Any]:
        outcome: list[Any] = []
        Deferred.fromCoroutine(login.authenticate(ask, "b")).addBoth(outcome.append)
        return outcome

    monkeypatch.setattr(retrievers, "request_token", request_token)
    clock, now_s = Clock(), CLAIMS["iat"]
    parts = InterBrokerParts(
        Random(1), lambda: int(now_s + clock.seconds()) * 1000, clock.seconds, clock.callLater, run_inline, run_inline
    )
    login = CurrentLogin(make_config("right"), parts)
    login.start()
    assert authenticate() == [0]
    login.update(make_config("wrong"))
    assert authenticate() == [0]
    assert "the last one remains in use until it expires" in caplog.text
    clock.advance(CLAIMS["exp"] - now_s)
    assert authenticate()[0].check(SaslError)
    login.update(make_config("corrected"))
    login.stop()


def test_requests_to_the_kdc_are_not_made_in_the_pool(tmp_path: Path) -> None:
    pytest.importorskip("gssapi")
    keytab = tmp_path / "keytab"
    keytab.touch()
    config = BrokerConfig({
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
        f"principal='kafka/h@R' keyTab='{keytab}';",
    })  # fmt: skip
    requests: list[Any] = []

    def refuse(*arguments: object) -> Any:
        raise AssertionError("not in the pool")

    def fail(work: Any, done: Any) -> None:
        requests.append(work)
        done(OSError("no route"))

    parts = InterBrokerParts(Random(1), lambda: 0, time.monotonic, refuse, refuse, fail)
    login = make_inter_broker_login(config, parts)
    outcome: list[Any] = []
    Deferred.fromCoroutine(login.authenticate(refuse, "h")).addErrback(outcome.append)  # type: ignore[arg-type]
    assert len(requests) == 1
    assert outcome[0].check(OSError, SaslError)
