"""The login of commands with the properties of clients."""

import sys
from pathlib import Path
from typing import Any

import pytest

from odradek.properties import PropertyError
from odradek.server.config.properties.sasl import LOGIN_MODULES
from odradek.server.config.properties_file import read_properties
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.oauthbearer import retrievers
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import private_key, sign
from odradek.server.security.sasl.tests.test_scram import run
from odradek.tools.kafka.connection.client_login import ClientLogin
from odradek.tools.kafka.connection.client_security import make_client_security

JAAS = "sasl.jaas.config"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


def read(directory: Path, mechanism: str, options: str | None = None, **values: str) -> ClientLogin:
    """Return the login with the properties of a file."""
    login = {} if options is None else {JAAS: f"{LOGIN_MODULES[mechanism]} required {options};"}
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, **login, **values}
    file = directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    security = make_client_security(read_properties(file.read_bytes()))
    assert security.sasl is not None
    return security.sasl


def find_error(directory: Path, mechanism: str, options: str | None = None, **values: str) -> PropertyError:
    with pytest.raises(PropertyError) as caught:
        read(directory, mechanism, options, **values)
    assert "the-secret" not in str(caught.value)
    return caught.value


async def refuse(*arguments: object) -> Any:
    raise AssertionError("nothing is sent")


def test_a_password(tmp_path: Path) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert read(tmp_path, mechanism, "username=alice password=the-secret").identity == "user alice"
        assert find_error(tmp_path, mechanism).name == JAAS
        assert find_error(tmp_path, mechanism, "password=the-secret").allowed == "must have the option username"


def test_other_mechanisms_and_classes_are_refused(tmp_path: Path) -> None:
    assert find_error(tmp_path, "DIGEST-MD5").name == "sasl.mechanism"
    name = "sasl.login.callback.handler.class"
    assert find_error(tmp_path, "OAUTHBEARER", **{name: "com.example.Handler"}).name == name


def test_a_token_that_cannot_be_obtained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        TOKEN_URL: "https://user:the-secret@issuer/token",
        "sasl.oauthbearer.client.credentials.client.id": "alice",
        "sasl.oauthbearer.client.credentials.client.secret": "the-secret",
    }
    login = read(tmp_path, "OAUTHBEARER", **values)
    assert login.identity == "the token of https://issuer/token"

    def fail(*arguments: object) -> str:
        raise OSError("no route")

    monkeypatch.setattr(retrievers, "request_token", fail)
    with pytest.raises(SaslError, match=r"^cannot obtain it: no route$"):
        run(login.authenticate(refuse, "h"))
    del values[TOKEN_URL]
    assert find_error(tmp_path, "OAUTHBEARER", **values).name == TOKEN_URL


def test_a_token_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(sign(private_key("ES256"), "ES256"))
    assert read(tmp_path, "OAUTHBEARER", **{TOKEN_URL: file.as_uri()}).identity == f"the token of {file.as_uri()}"


def test_a_keytab(tmp_path: Path) -> None:
    pytest.importorskip("gssapi")
    keytab = tmp_path / "keytab"
    keytab.touch()
    options = f"principal='alice@R' keyTab='{keytab}'"
    assert find_error(tmp_path, "GSSAPI").name == JAAS
    assert find_error(tmp_path, "GSSAPI", options).name == "sasl.kerberos.service.name"
    login = read(tmp_path, "GSSAPI", options, **{"sasl.kerberos.service.name": "kafka"})
    assert login.identity == "principal alice@R"
    with pytest.raises(SaslError, match="Kerberos: "):
        run(login.authenticate(refuse, "h"))


def test_without_the_library_of_kerberos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "odradek.server.security.sasl.kerberos.initiator", None)
    refused = find_error(tmp_path, "GSSAPI", "principal='alice@R' keyTab=k", **{"sasl.kerberos.service.name": "kafka"})
    assert (refused.name, refused.value) == ("sasl.mechanism", "GSSAPI")
