"""Assertions of the broker's identity, and the forms that contain them."""

import base64
import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from odradek.server.security.sasl.oauthbearer.assertions import (
    AssertionSettings,
    load_key,
    load_template,
    make_assertion,
    read_assertion,
)
from odradek.server.security.sasl.oauthbearer.grants import ClientAssertionGrant, ClientSecretGrant, JwtBearerGrant
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import private_key, public_pem, sign

NOW_MS = 1_700_000_000_500
NOW_S = 1_700_000_000
CLAIMS = {"aud": "issuer", "iss": "broker", "sub": "broker"}
PASSPHRASE = "the-passphrase"


def write_key(path: Path, algorithm: str, passphrase: str | None = None) -> str:
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    path.write_bytes(private_key(algorithm).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return str(path)


def no_bits(count: int) -> int:
    raise AssertionError("no id is made")


def decode(assertion: str, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims of an assertion whose signature is valid."""
    options: Any = {"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False}
    claims = jwt.decode(assertion, public_pem(private_key(algorithm)), [algorithm], options=options)
    return jwt.get_unverified_header(assertion), claims


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_an_assertion(tmp_path: Path, algorithm: str, passphrase: str | None) -> None:
    path = write_key(tmp_path / "key.pem", algorithm, passphrase)
    settings = AssertionSettings(algorithm, path, passphrase, claims=CLAIMS)
    header, claims = decode(make_assertion(settings, NOW_MS, no_bits), algorithm)
    assert header == {"alg": algorithm, "typ": "JWT"}
    assert claims == {**CLAIMS, "iat": NOW_S, "exp": NOW_S + 300, "nbf": NOW_S - 60}
    assert PASSPHRASE not in repr(settings)


def test_times_and_id(tmp_path: Path) -> None:
    path = write_key(tmp_path / "key.pem", "ES256")
    settings = AssertionSettings("ES256", path, lifetime_s=10, leeway_s=0, has_id=True)
    _, claims = decode(make_assertion(settings, NOW_MS, lambda bits: (1 << bits) - 1), "ES256")
    made = uuid.UUID(claims.pop("jti"))
    assert (made.version, made.variant) == (4, uuid.RFC_4122)
    assert claims == {"iat": NOW_S, "exp": NOW_S + 10, "nbf": NOW_S}


def test_a_template_precedes_the_claims_but_not_times_and_algorithm(tmp_path: Path) -> None:
    path = write_key(tmp_path / "key.pem", "ES256")
    template = tmp_path / "template.json"
    header = {"kid": "5", "alg": "none", "typ": "x"}
    template.write_text(json.dumps({"header": header, "payload": {"sub": "other", "exp": 1, "roles": ["a"]}}))
    settings = AssertionSettings("ES256", path, None, str(template), CLAIMS)
    made, claims = decode(make_assertion(settings, NOW_MS, no_bits), "ES256")
    assert made == {**header, "alg": "ES256", "typ": "JWT"}
    times = {"iat": NOW_S, "exp": NOW_S + 300, "nbf": NOW_S - 60}
    assert claims == {**CLAIMS, "sub": "other", "roles": ["a"], **times}
    template.write_text("{}")
    assert decode(make_assertion(settings, NOW_MS, no_bits), "ES256")[1] == {**CLAIMS, **times}


@pytest.mark.parametrize("text", ["", "x", "[]", '{"header": []}', '{"payload": 1}', '{"payload": {"x": NaN}}'])
def test_malformed_templates(tmp_path: Path, text: str) -> None:
    path = tmp_path / "template.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        load_template(str(path))


@pytest.mark.parametrize(
    ("algorithm", "key", "passphrase", "given", "text"),
    [
        ("RS256", "ES256", None, None, "RS256 requires an RSA key"),
        ("ES256", "RS256", None, None, "ES256 requires a key of the curve P-256"),
        ("ES256", "ES384", None, None, "ES256 requires a key of the curve P-256"),
        ("ES256", "ES256", PASSPHRASE, None, "has no passphrase"),
        ("ES256", "ES256", None, PASSPHRASE, "must have no passphrase"),
        ("ES256", "ES256", PASSPHRASE, "wrong-passphrase", "the passphrase is wrong"),
    ],
)
def test_keys_that_are_refused(
    tmp_path: Path, algorithm: str, key: str, passphrase: str | None, given: str | None, text: str
) -> None:
    path = write_key(tmp_path / "key.pem", key, passphrase)
    with pytest.raises(ValueError, match=text) as caught:
        load_key(AssertionSettings(algorithm, path, given))
    assert "wrong-passphrase" not in str(caught.value)


def test_a_file_that_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("the-secret")
    with pytest.raises(ValueError, match="not a private key in PEM") as caught:
        load_key(AssertionSettings("RS256", str(path)))
    assert "the-secret" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        load_key(AssertionSettings("RS256", str(tmp_path / "absent")))


def test_a_key_of_an_unknown_curve(tmp_path: Path) -> None:
    der = private_key("ES256").private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    p256 = bytes.fromhex("06082a8648ce3d030107")
    unknown = base64.b64encode(der.replace(p256, p256[:-1] + b"\x7f")).decode()
    path = tmp_path / "key.pem"
    path.write_text(f"-----BEGIN PRIVATE KEY-----\n{unknown}\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ValueError, match="cannot be used: Curve"):
        load_key(AssertionSettings("ES256", str(path)))


def test_an_assertion_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    assertion = sign(private_key("ES256"), "ES256")
    path.write_text(f" {assertion}\n")
    assert read_assertion(str(path)) == assertion
    for text in ("", "a.b", "e30.e30.", "x" * 100_000, "é.e30.e30"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"it is"):
            read_assertion(str(path))


def test_the_form_of_the_jwt_bearer_grant() -> None:
    assertions = iter(["a.b.c", "d.e.f"])
    grant = JwtBearerGrant(lambda: next(assertions), " kafka read ")
    fields = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "a.b.c", "scope": "kafka read"}
    form = grant.make_form()
    assert dict(parse_qsl(form.body.decode())) == fields
    assert (form.secrets, form.authorization) == (("a.b.c",), None)
    assert "a.b.c" not in repr(form)
    assert grant.make_form().secrets == ("d.e.f",)
    assert b"scope" not in JwtBearerGrant(lambda: "a.b.c").make_form().body


def test_the_form_of_client_credentials_with_an_assertion() -> None:
    form = ClientAssertionGrant(lambda: "a.b.c", "broker 1", "kafka").make_form()
    fields = {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "a.b.c",
        "grant_type": "client_credentials",
    }
    assert dict(parse_qsl(form.body.decode())) == {**fields, "client_id": "broker 1", "scope": "kafka"}
    assert (form.secrets, form.authorization) == (("a.b.c",), None)
    assert dict(parse_qsl(ClientAssertionGrant(lambda: "a.b.c", " ").make_form().body.decode())) == fields


def test_the_secret_of_client_credentials_is_hidden() -> None:
    grant = ClientSecretGrant("broker", "the-secret")
    assert grant.make_form().secrets[0] == "the-secret"
    assert "the-secret" not in repr(grant)
