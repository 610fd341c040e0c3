"""Requests of tokens by HTTP."""

import base64
import contextlib
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

import pytest

from odradek.server.security.sasl.oauthbearer.grants import ClientSecretGrant, JwtBearerGrant
from odradek.server.security.sasl.oauthbearer.response_deadline import ResponseDeadline
from odradek.server.security.sasl.oauthbearer.token_endpoint import (
    MAX_RESPONSE_BYTES,
    TokenRefusedError,
    TokenRequest,
    request_token,
)
from odradek.server.security.tls.certificates import write_test_certificates

GRANT = ClientSecretGrant("broker", "the-secret")


class Issuer:
    """An endpoint with one response; `requests` has the headers and the body of each request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.content = b'{"access_token": " a-token "}'
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    def request(self, **options: Any) -> str:
        values = {"client_id": "broker", "client_secret": "the-secret", **options}
        return request_token(TokenRequest(f"{self.url}/token?tenant=1", ClientSecretGrant(**values)))


@contextlib.contextmanager
def run_issuer(tls: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    made: list[Issuer] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made[0].requests.append((self.path, dict(self.headers), body))
            self.send_response(made[0].status)
            for name, value in made[0].headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(made[0].content)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.append(Issuer(f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}"))
        yield made[0]
        server.shutdown()
        thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with run_issuer() as made:
        yield made


def test_the_request(issuer):
    assert issuer.request() == "a-token"
    [(path, headers, body)] = issuer.requests
    assert (path, body) == ("/token?tenant=1", b"grant_type=client_credentials")
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"broker:the-secret").decode()
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_scope_and_encoding_of_the_header(issuer):
    issuer.request(scope=" a b&c ", client_id="a:b", client_secret="c d/é", is_header_urlencoded=True)
    [(_, headers, body)] = issuer.requests
    assert body == b"grant_type=client_credentials&scope=a+b%26c"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"a%3Ab:c+d%2F%C3%A9"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"error": "invalid", "error_description": "no\\nsuch the-secret"}', "401 invalid: no such [hidden]"),
        (b'{"errorCode": "E1", "errorSummary": "bad"}', "401 E1: bad"),
        (b"<html>the-secret</html>", "401"),
        (b"[]", "401"),
    ],
)
def test_refusals(issuer, content, text):
    issuer.status, issuer.content = 401, content
    with pytest.raises(TokenRefusedError) as caught:
        issuer.request()
    assert str(caught.value) == f"it responded {text}"


def test_an_assertion_is_hidden(issuer):
    issuer.status, issuer.content = 400, b'{"error": "invalid_grant", "error_description": "a.b.c has expired"}'
    request = TokenRequest(issuer.url, JwtBearerGrant(lambda: "a.b.c"))
    with pytest.raises(TokenRefusedError, match=r"^it responded 400 invalid_grant: \[hidden\] has expired$"):
        request_token(request)
    [(_, headers, _)] = issuer.requests
    assert "Authorization" not in headers


@pytest.mark.parametrize("echo", ["{secret}", "{encoded}", "{header}"])
@pytest.mark.parametrize("secret", [" a  secret ", "a/secret", "a\u2028secret"])
def test_no_form_of_the_secret_is_in_an_error(issuer, echo, secret):
    header = base64.b64encode(f"broker:{secret.strip()}".encode()).decode()
    text = echo.format(secret=secret.strip(), encoded=quote_plus(secret.strip()), header=f"Basic {header}")
    issuer.status, issuer.content = 401, json.dumps({"error": f"wrong {text}"}).encode()
    with pytest.raises(TokenRefusedError) as caught:
        issuer.request(client_secret=secret)
    assert str(caught.value) in ("it responded 401 wrong [hidden]", "it responded 401 wrong Basic [hidden]")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_other_statuses_may_be_transient(issuer, status):
    issuer.status = status
    with pytest.raises(OSError, match=f"it responded {status}"):
        issuer.request()


def test_redirects_are_not_followed(issuer):
    issuer.status, issuer.headers = 302, {"Location": f"{issuer.url}/elsewhere"}
    with pytest.raises(TokenRefusedError, match="302"):
        issuer.request()
    assert len(issuer.requests) == 1


@pytest.mark.parametrize(
    "content", [b"", b"x", b"[]", b"{}", b'{"access_token": ""}', b'{"access_token": 5, "refresh_token": "hidden"}']
)
def test_responses_without_a_token(issuer, content):
    issuer.content = content
    with pytest.raises(ValueError, match="no access_token") as caught:
        issuer.request()
    assert "hidden" not in str(caught.value)


def test_a_large_response(issuer):
    issuer.content = json.dumps({"access_token": "x" * MAX_RESPONSE_BYTES}).encode()
    with pytest.raises(ValueError, match="larger"):
        issuer.request()


def test_an_issuer_that_does_not_respond():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(TimeoutError):
            request_token(TokenRequest(url, GRANT, read_timeout_s=0.05))
    with pytest.raises(ConnectionRefusedError):
        request_token(TokenRequest(url, GRANT))


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_issuer_whose_response_does_not_end(start):
    """Each byte of it arrives in time."""

    def send_for_ever(server):
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(start)
            while connection.send(b"x"):
                pause.wait(0.001)

    pause = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=send_for_ever, args=(server,))
        thread.start()
        request = TokenRequest(f"http://127.0.0.1:{server.getsockname()[1]}/", GRANT, read_timeout_s=0.05)
        with pytest.raises(TimeoutError, match="it did not respond within"):
            request_token(request)
        thread.join()


def test_a_request_that_takes_too_long_is_not_continued_in_plain_text(monkeypatch):
    """The request is in one thread, its end in another."""
    client, server = socket.socketpair()
    with client, server:
        client.settimeout(0.05)
        encrypted = ssl.create_default_context().wrap_socket(
            client, server_hostname="issuer", do_handshake_on_connect=False
        )
        monkeypatch.setattr(socket.socket, "shutdown", lambda connection, how: None)
        with encrypted:
            ResponseDeadline(encrypted, 10)._end()
            with contextlib.suppress(OSError):
                encrypted.sendall(b"the-secret")
            server.setblocking(False)
            assert b"the-secret" not in server.recv(10_000)


def test_the_certificate_of_the_issuer_is_verified(tmp_path):
    write_test_certificates(tmp_path, datetime.now(UTC))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "broker.pem")
    with run_issuer(tls) as issuer:
        request = TokenRequest(f"{issuer.url}/token", GRANT)
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        assert request_token(request, trusting) == "a-token"
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            request_token(request)
    assert len(issuer.requests) == 1


def test_no_secret_is_shown():
    assert "the-secret" not in repr(TokenRequest("http://x/", GRANT))
    assert "the-secret" not in repr(GRANT.make_form())
