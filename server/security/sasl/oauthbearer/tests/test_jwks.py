"""Key sets: which keys are used, and which for a token."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from odradek.server.security.sasl.oauthbearer.jwks import KeySetError, parse_key_set
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import make_jwk, make_key_set, private_key


def test_finds_keys_by_id_and_algorithm():
    keys = parse_key_set(
        make_key_set(
            make_jwk(private_key("RS256"), "RS256", kid="a"),
            make_jwk(private_key("RS256", "2"), "RS256", kid="b", alg="PS256", use="sig"),
            make_jwk(private_key("ES256"), "ES256", kid="c", key_ops=["verify"]),
        )
    )
    first, second, third = (key.key for key in keys.keys)
    assert keys.find("a", "RS256") is first
    assert keys.find(None, "RS256") is first
    assert keys.find("b", "PS256") is second
    assert keys.find("b", "RS256") is None
    assert keys.find(None, "ES256") is third
    assert keys.find("a", "ES256") is None
    assert keys.find("a", "HS256") is None
    assert keys.find("d", "RS256") is None


def test_skips_keys_that_must_not_verify_signatures(caplog):
    weak = rsa.generate_private_key(65537, 1024)
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    data = make_key_set(
        make_jwk(private_key("RS256"), "RS256", kid="encryption", use="enc"),
        make_jwk(private_key("RS256"), "RS256", kid="signing", key_ops=["sign"]),
        make_jwk(weak, "RS256", kid="weak"),
        {"kty": "oct", "k": secret, "kid": "symmetric"},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "malformed"},
        {"kty": "unknown", "kid": "unknown"},
        make_jwk(private_key("RS256"), "RS256", kid="malformed", alg=["RS256"]),
        make_jwk(private_key("RS256"), "RS256", kid="malformed", key_ops=1),
        {},
        make_jwk(private_key("ES256"), "ES256", kid="good"),
    )
    assert [key.key_id for key in parse_key_set(data).keys] == ["good"]
    assert "kid=weak" in caplog.text
    assert secret not in caplog.text


def test_uses_the_public_part_of_a_private_key():
    private = RSAAlgorithm.to_jwk(private_key("RS256"), as_dict=True)
    keys = parse_key_set(make_key_set({**private, "kid": "a", "key_ops": ["sign", "verify"]}))
    assert isinstance(keys.find("a", "RS256"), rsa.RSAPublicKey)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": [1]}', b"[" * 100_000, b"\xff"])
def test_refuses_what_is_no_key_set(data):
    with pytest.raises(KeySetError):
        parse_key_set(data)
