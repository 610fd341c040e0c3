"""Tokens that are valid, and tokens that are refused."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from odradek.properties import INT64_MAX
from odradek.server.security.sasl.oauthbearer.claims import MAX_TOKEN_BYTES, TokenError
from odradek.server.security.sasl.oauthbearer.jwks import parse_key_set
from odradek.server.security.sasl.oauthbearer.jwt_validator import Claims, JwtValidator, ValidatorSettings
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import (
    NOW_S,
    make_jwk,
    make_key_set,
    private_key,
    public_pem,
    sign,
    sign_content,
)

ALGORITHMS = ("RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA")


def make_validator(algorithm: str = "RS256", *, kid: str | None = "a", **settings: Any) -> JwtValidator:
    members = {} if kid is None else {"kid": kid}
    keys = parse_key_set(make_key_set(make_jwk(private_key(algorithm), algorithm, **members)))
    return JwtValidator(ValidatorSettings(**settings), keys.find, lambda: NOW_S * 1000)


def make_token(algorithm: str = "RS256", kid: str | None = "a", **claims: Any) -> str:
    return sign(private_key(algorithm), algorithm, None if kid is None else {"kid": kid}, **claims)


def encode(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def refusal(validator: JwtValidator, token: str) -> str:
    with pytest.raises(TokenError) as caught:
        validator.validate(token)
    assert token not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kid", ["a", None])
def test_accepts_each_asymmetric_algorithm_with_and_without_key_id(algorithm, kid):
    token = make_token(algorithm, kid)
    assert make_validator(algorithm).validate(token) == Claims("alice", (NOW_S + 600) * 1000)


def test_refuses_a_token_without_signature():
    validator = make_validator()
    header, claims, signature = make_token().split(".")
    for name in ("none", "None", "NONE"):
        for end in ("", signature):
            assert refusal(validator, f"{encode({'alg': name, 'kid': 'a'})}.{claims}.{end}")
    assert "not a signed" in refusal(validator, f"{header}.{claims}.")


def test_refuses_a_token_signed_by_hmac_with_the_public_key_as_secret():
    key = private_key("RS256")
    for secret in (public_pem(key), public_pem(key).strip()):
        signed = f"{encode({'alg': 'HS256', 'kid': 'a'})}.{make_token().split('.')[1]}"
        signature = encode(hmac.digest(secret, signed.encode(), hashlib.sha256))
        assert "no key alg='HS256'" in refusal(make_validator(), f"{signed}.{signature}")


def test_refuses_signatures_of_other_keys_and_changed_tokens():
    other = sign(private_key("RS256", "other"), "RS256", {"kid": "a"})
    assert "signature is invalid" in refusal(make_validator(), other)
    header, claims, signature = make_token().split(".")
    changed = encode({**json.loads(base64.urlsafe_b64decode(claims + "==")), "sub": "mallory"})
    assert "signature is invalid" in refusal(make_validator(), f"{header}.{changed}.{signature}")


def test_refuses_unknown_key_ids_and_keys_of_another_type():
    assert "no key" in refusal(make_validator(), make_token(kid="b"))
    assert "no key" in refusal(make_validator(kid=None), make_token(kid="a"))
    assert "no key" in refusal(make_validator("ES256"), make_token("RS256"))
    assert "no key" in refusal(make_validator("ES256"), make_token("ES384"))


def test_key_in_the_header_of_a_token_has_no_effect():
    key = private_key("RS256", "other")
    token = sign(key, "RS256", {"kid": "a", "jwk": make_jwk(key, "RS256"), "jku": "http://127.0.0.1/keys"})
    assert "signature is invalid" in refusal(make_validator(), token)


def test_refuses_unknown_critical_headers():
    for headers in ({"crit": ["x"], "x": 1}, {"crit": []}, {"crit": None}):
        token = sign(private_key("RS256"), "RS256", {"kid": "a", **headers})
        assert "extension" in refusal(make_validator(), token)


def test_refuses_content_that_is_not_encoded():
    _, claims, signature = make_token().split(".")
    header = encode({"alg": "RS256", "kid": "a", "b64": False, "crit": ["b64"]})
    assert "extension" in refusal(make_validator(), f"{header}.{claims}.{signature}")
    assert "extension" in refusal(make_validator(), f"{encode({'alg': 'RS256', 'kid': 'a', 'b64': False})}.{claims}.AA")


@pytest.mark.parametrize(
    ("claims", "is_valid"),
    [
        ({"exp": NOW_S - 29}, True),
        ({"exp": NOW_S - 30}, False),
        ({"exp": None}, False),
        ({"iat": None}, False),
        ({"iat": NOW_S + 500}, True),  # as jose4j, which compares it with exp only
        ({"iat": NOW_S + 601}, False),
        ({"nbf": NOW_S + 30}, True),
        ({"nbf": NOW_S + 31}, False),
        ({"nbf": NOW_S + 700}, False),
        ({"exp": -1}, False),
        ({"iat": -1}, False),
        ({"exp": "soon"}, False),
        ({"exp": True}, False),
        ({"exp": NOW_S + 600.9}, True),
    ],
)
def test_times(claims, is_valid):
    validator, token = make_validator(), make_token(**claims)
    if is_valid:
        assert validator.validate(token).subject == "alice"
    else:
        assert refusal(validator, token)


def test_clock_skew_is_configurable():
    assert make_validator(clock_skew_seconds=100).validate(make_token(exp=NOW_S - 99))
    assert "expired" in refusal(make_validator(clock_skew_seconds=0), make_token(exp=NOW_S))


@pytest.mark.parametrize("seconds", [INT64_MAX // 1000, 10**30, 1e300])
def test_a_distant_expiry_fits_into_a_response(seconds):
    assert make_validator().validate(make_token(exp=seconds)).expires_ms <= INT64_MAX


@pytest.mark.parametrize(
    ("expected", "audience", "is_valid"),
    [
        ((), None, True),
        ((), "kafka", False),  # as jose4j: a token for somebody is not for a broker that expects nobody
        (("kafka", "other"), None, False),
        (("kafka", "other"), "kafka", True),
        (("kafka",), ["web", "kafka"], True),
        (("kafka",), "Kafka", False),
        (("kafka",), [], False),
        (("kafka",), ["kafka", 1], False),
        (("kafka",), {"kafka": 1}, False),
    ],
)
def test_audience(expected, audience, is_valid):
    validator, token = make_validator(expected_audience=expected), make_token(aud=audience)
    if is_valid:
        assert validator.validate(token)
    else:
        assert "aud" in refusal(validator, token)


@pytest.mark.parametrize(
    ("expected", "issuer", "is_valid"),
    [
        (None, None, True),
        (None, "https://issuer", True),
        (None, 1, False),
        ("https://issuer", None, False),
        ("https://issuer", "https://issuer", True),
        ("https://issuer", "https://issuer/", False),
    ],
)
def test_issuer(expected, issuer, is_valid):
    validator, token = make_validator(expected_issuer=expected), make_token(iss=issuer)
    if is_valid:
        assert validator.validate(token)
    else:
        assert "iss" in refusal(validator, token)


@pytest.mark.parametrize(("subject", "name"), [("alice", "alice"), (" alice\n", "alice"), ("a b,c=d", "a b,c=d")])
def test_principal_is_the_subject(subject, name):
    assert make_validator().validate(make_token(sub=subject)).subject == name


@pytest.mark.parametrize("subject", [None, "", " ", 1, ["alice"], "eve\ud800"])
def test_refuses_a_missing_or_malformed_subject(subject):
    assert "sub" in refusal(make_validator(), make_token(sub=subject))


def test_claim_names_are_configurable():
    validator = make_validator(sub_claim_name="client_id", scope_claim_name="scp")
    assert validator.validate(make_token(client_id="app", scope=[""])).subject == "app"
    assert "client_id" in refusal(validator, make_token())
    assert "scp" in refusal(validator, make_token(client_id="app", scp=[""]))


@pytest.mark.parametrize("scope", [None, "a b", ["a", "b"], [], 5])
def test_accepts_scopes_that_kafka_accepts(scope):
    assert make_validator().validate(make_token(scope=scope))


@pytest.mark.parametrize("scope", ["", " ", ["a", ""], ["a", "a"], ["a", " a"], [1]])
def test_refuses_malformed_scopes(scope):
    assert "scope" in refusal(make_validator(), make_token(scope=scope))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "..",
        "!!.!!.!!",
        f"{encode(b'[1]')}.e30.AA",
        f"{encode(b'{}')}.e30.AA",
        f"{encode({'alg': 1})}.e30.AA",
        f"{encode({'alg': ['RS256']})}.e30.AA",
        f"{encode({'alg': 'RS256', 'kid': {}})}.e30.AA",
        f"{encode({'alg': 'RS256', 'kid': 'x' * 1001})}.e30.AA",
        f"{encode(b'[' * 3000)}.e30.AA",
        "__4.e30.AA",
        f"{encode({'alg': 'RS256', 'pad': 'x' * 5000})}.e30.AA",
        "A" * 500_000,
        "A." * 100_000,
    ],
)
def test_refuses_malformed_tokens(token):
    assert refusal_of_malformed(token)


def refusal_of_malformed(token: str) -> str:
    with pytest.raises(TokenError) as caught:
        make_validator().validate(token)
    assert len(str(caught.value)) < 300
    return str(caught.value)


def test_refuses_a_huge_token_before_it_is_decoded():
    token = make_token(groups=["x" * 100] * 1000)
    assert len(token) > MAX_TOKEN_BYTES
    assert "longer than" in refusal(make_validator(), token)
    assert make_validator().validate(make_token(groups=["x" * 100] * 200))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"sub":"a","sub":"b"}', b"[" * 20_000, b'{"exp":NaN}'])
def test_refuses_malformed_claims_with_a_valid_signature(content):
    assert refusal(make_validator(), sign_content(private_key("RS256"), "RS256", content, {"kid": "a"}))
