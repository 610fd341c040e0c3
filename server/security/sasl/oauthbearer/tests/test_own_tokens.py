"""Tokens of this broker: parsing, unsigned tokens, the messages of the client's side."""

import base64
import json
from typing import Any

import pytest

from odradek.properties import INT64_MAX
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken, parse_access_token
from odradek.server.security.sasl.oauthbearer.claims import MAX_TOKEN_BYTES, TokenError
from odradek.server.security.sasl.oauthbearer.client import OAuthBearerClientExchange, find_extensions
from odradek.server.security.sasl.oauthbearer.exchange import OAuthBearerExchange, parse_initial_response
from odradek.server.security.sasl.oauthbearer.jwt_validator import Claims
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import CLAIMS, private_key, sign
from odradek.server.security.sasl.oauthbearer.token_login import RenewalSettings
from odradek.server.security.sasl.oauthbearer.unsecured_tokens import make_unsecured_token
from odradek.server.security.sasl.tests.test_scram import run

NOW_MS = 1_700_000_000_500
SUB = {"unsecuredLoginStringClaim_sub": "broker"}


def parse(text: str, sub_claim_name: str = "sub") -> AccessToken:
    return parse_access_token(text, sub_claim_name=sub_claim_name, scope_claim_name="scope")


def test_a_signed_token():
    text = sign(private_key("ES256"), "ES256", azp="broker-1")
    expected = AccessToken(text, "alice", CLAIMS["iat"] * 1000, CLAIMS["exp"] * 1000)
    assert parse(text) == expected
    assert parse(text, "azp").principal == "broker-1"
    assert text not in repr(expected)
    assert parse(sign(private_key("ES256"), "ES256", iat=None)).begins_ms is None


@pytest.mark.parametrize(
    "claims", [{"exp": None}, {"exp": -1}, {"iat": -1}, {"sub": " "}, {"sub": 5}, {"exp": "x"}, {"scope": ["a", "a"]}]
)
def test_claims_that_are_refused(claims):
    with pytest.raises(TokenError):
        parse(sign(private_key("ES256"), "ES256", **claims))


@pytest.mark.parametrize("seconds", [1e306, 10**400])
def test_a_token_without_an_end_is_renewed_some_time(seconds):
    token = parse(sign(private_key("ES256"), "ES256", iat=seconds, exp=seconds))
    assert token.expires_ms == token.begins_ms == INT64_MAX
    assert RenewalSettings().find_delay_ms(token, NOW_MS, 0.5) > 0


@pytest.mark.parametrize("lifetime", ["x", "1" + "0" * 400])
def test_lifetimes_that_are_refused(lifetime):
    with pytest.raises(ValueError, match="unsecuredLoginLifetimeSeconds is no number of seconds"):
        make_unsecured_token({**SUB, "unsecuredLoginLifetimeSeconds": lifetime}, NOW_MS)


@pytest.mark.parametrize(
    "text", ["", "opaque", "a.b", "e30..e30", "e30.e30.!", "e30.W10.e30", "x" * 2 * MAX_TOKEN_BYTES]
)
def test_texts_that_are_no_signed_token(text):
    with pytest.raises(TokenError):
        parse(text)


def claims_of(options: dict[str, str]) -> dict[str, Any]:
    header, content, signature = make_unsecured_token({**SUB, **options}, NOW_MS).value.split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert signature == ""
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    return found


def test_an_unsigned_token():
    token = make_unsecured_token(SUB, NOW_MS)
    assert token[1:] == ("broker", NOW_MS, NOW_MS + 3_600_000)
    assert claims_of({}) == {"sub": "broker", "iat": NOW_MS / 1000, "exp": NOW_MS / 1000 + 3600}


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("StringClaim_x", 'a"\\', 'a"\\'),
        ("NumberClaim_x", "5", 5.0),
        ("ListClaim_x", "|a|b", ["a", "b"]),
        ("ListClaim_x", ",a,,b,,", ["a", "", "b", ""]),
        ("ListClaim_x", "", []),
        ("ListClaim_x", "|", []),
    ],
)
def test_claims_of_unsigned_tokens(option, value, expected):
    assert claims_of({f"unsecuredLogin{option}": value})["x"] == expected


def test_other_options_of_unsigned_tokens():
    options = {"unsecuredLoginPrincipalClaimName": "who", "unsecuredLoginStringClaim_who": "b", "other": "x"}
    token = make_unsecured_token({**options, "unsecuredLoginLifetimeSeconds": "5"}, NOW_MS)
    assert (token.principal, token.expires_ms) == ("b", NOW_MS + 5000)


@pytest.mark.parametrize(
    "options",
    [
        {"unsecuredLoginStringClaim_exp": "1"},
        {"unsecuredLoginLifetimeSeconds": "x"},
        {"unsecuredLoginNumberClaim_x": "nan"},
        {"unsecuredLoginNumberClaim_x": "x"},
        {"unsecuredLoginStringClaim_sub": " "},
        {"unsecuredLoginPrincipalClaimName": "absent"},
    ],
)
def test_options_of_unsigned_tokens_that_are_refused(options):
    with pytest.raises(ValueError, match=r"."):
        make_unsecured_token({**SUB, **options}, NOW_MS)


def make_client(extensions: dict[str, str] | None = None) -> OAuthBearerClientExchange:
    async def find() -> AccessToken:
        return AccessToken("good", "broker", None, 5)

    return OAuthBearerClientExchange(find, extensions or {})


def test_both_sides_agree():
    client, server = make_client({"traceId": "a b"}), OAuthBearerExchange(lambda token: Claims(token, 5))
    message = run(client.begin())
    assert parse_initial_response(message) == ("good", "", {"traceId": "a b"})
    assert run(client.answer(server.evaluate(message))) is None
    assert server.authenticated == ("good", 5, False)
    assert server.extensions == {"traceId": "a b"}


def test_a_refused_token():
    def refuse(token: str) -> Claims:
        raise TokenError("it has expired")

    client, server = make_client(), OAuthBearerExchange(refuse)
    challenge = server.evaluate(run(client.begin()))
    assert run(client.answer(challenge)) == b"\x01"
    with pytest.raises(SaslError) as caught:
        server.evaluate(b"\x01")
    assert "it has expired" in caught.value.reason
    with pytest.raises(SaslError, match="invalid_token"):
        run(client.answer(b""))


def test_extensions_are_options_of_the_login_module():
    assert find_extensions({"extension_a": "1", "clientId": "x"}, "extension_") == {"a": "1"}


@pytest.mark.parametrize(("name", "value"), [("auth", "x"), ("a1", "x"), ("", "x"), ("a", ""), ("a", "é")])
def test_malformed_extensions(name, value):
    with pytest.raises(ValueError, match=f"extension_{name}"):
        find_extensions({f"extension_{name}": value}, "extension_")
