"""Keys that are read at start, periodically, and for unknown key ids."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator

import pytest
from twisted.internet.task import Clock

from odradek.log.background.tasks import Done, run_inline
from odradek.server.security.sasl.oauthbearer import key_refresh
from odradek.server.security.sasl.oauthbearer.issuer_urls import describe_url
from odradek.server.security.sasl.oauthbearer.key_refresh import (
    MAX_KEY_SET_BYTES,
    UNKNOWN_KEY_INTERVAL_S,
    RefreshedKeys,
    RefreshSettings,
    make_reader,
)
from odradek.server.security.sasl.oauthbearer.tests.token_issuer import make_jwk, make_key_set, private_key


def make_set(*key_ids: str) -> bytes:
    return make_key_set(*(make_jwk(private_key("ES256"), "ES256", kid=key_id) for key_id in key_ids))


class Issuer:
    """A source of keys; `content` is an error or a key set."""

    def __init__(self, content: bytes | Exception) -> None:
        self.content = content
        self.reads = 0

    def __call__(self) -> bytes:
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def start(issuer: Issuer, clock: Clock) -> RefreshedKeys:
    settings = RefreshSettings("http://user:secret@issuer/keys?token=secret", 60_000, 100, 1000)
    keys = RefreshedKeys(settings, issuer, clock.seconds, clock.callLater, run_inline)
    keys.start()
    return keys


def test_reads_at_start_and_periodically():
    clock, issuer = Clock(), Issuer(make_set("a"))
    keys = start(issuer, clock)
    assert keys.find("a", "ES256") is not None
    issuer.content = make_set("b")
    clock.advance(59)
    assert issuer.reads == 1
    clock.advance(1)
    assert keys.find("b", "ES256") is not None
    assert keys.find("a", "ES256") is None


def test_keeps_the_last_keys_and_retries_with_a_growing_backoff(caplog):
    caplog.set_level("DEBUG")
    clock, issuer = Clock(), Issuer(make_set("a"))
    keys = start(issuer, clock)
    issuer.content = OSError("refused")
    clock.advance(60)
    assert keys.find("a", "ES256") is not None
    for delay_ms in (100, 200, 400, 800, 1000, 1000):
        reads = issuer.reads
        clock.advance((delay_ms - 1) / 1000)
        assert issuer.reads == reads
        clock.advance(0.002)
        assert issuer.reads == reads + 1
    errors = [one for one in caplog.records if one.levelname == "ERROR"]
    assert [one.getMessage() for one in errors] == [
        "cannot read keys of OAUTHBEARER; the last keys remain in use; retrying url=http://issuer/keys error=refused"
    ]
    issuer.content = make_set("b")
    clock.advance(1)
    assert keys.find("b", "ES256") is not None
    assert "secret" not in caplog.text


def test_refuses_tokens_until_the_issuer_can_be_reached():
    clock, issuer = Clock(), Issuer(OSError("refused"))
    keys = start(issuer, clock)
    assert keys.find("a", "ES256") is None
    issuer.content = make_set("a")
    clock.advance(0.1)
    assert keys.find("a", "ES256") is not None


def test_unknown_key_ids_cause_reads_at_a_limited_rate():
    clock, issuer = Clock(), Issuer(make_set("a"))
    keys = start(issuer, clock)
    issuer.content = make_set("a", "b")
    assert keys.find("b", "ES256") is None
    assert issuer.reads == 2
    assert keys.find("b", "ES256") is not None
    for number in range(100):
        assert keys.find(f"unknown {number}", "ES256") is None
    assert issuer.reads == 2
    clock.advance(UNKNOWN_KEY_INTERVAL_S)
    keys.find("unknown", "ES256")
    assert issuer.reads == 3
    keys.find(None, "RS256")
    assert issuer.reads == 3


def test_one_read_at_a_time_and_none_after_stop():
    clock, issuer = Clock(), Issuer(make_set("a"))
    waiting: list[Done] = []
    settings = RefreshSettings("file:///keys")
    run_in_thread = lambda work, done: waiting.append(done)  # noqa: E731
    keys = RefreshedKeys(settings, issuer, clock.seconds, clock.callLater, run_in_thread)
    keys.start()
    keys.find("a", "ES256")
    assert len(waiting) == 1
    keys.stop()
    waiting.pop()(None)
    clock.advance(1e6)
    assert not waiting
    assert not clock.getDelayedCalls()


def test_reads_a_file(tmp_path):
    path = tmp_path / "the keys.json"
    path.write_bytes(b"content")
    assert make_reader(path.as_uri())() == b"content"
    path.write_bytes(b"x" * (MAX_KEY_SET_BYTES + 1))
    with pytest.raises(ValueError, match="larger"):
        make_reader(path.as_uri())()


@pytest.mark.parametrize(
    "url", ["", "keys", "/keys", "ftp://h/k", "file://host/k", "http://", "data:,x", "file:", "http://h:0/"]
)
def test_refuses_other_urls(url):
    with pytest.raises(ValueError, match="must be a URL"):
        make_reader(url)


def test_describes_urls_without_secrets():
    assert describe_url("https://u:p@host:8443/keys?code=x#y") == "https://host:8443/keys"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/keys":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"content")
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
        elif self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "https://127.0.0.1:1/keys")
            self.end_headers()
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * (MAX_KEY_SET_BYTES * 2))
        else:
            self.send_error(503)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def test_reads_by_http(server):
    assert make_reader(f"{server}/keys")() == b"content"
    assert make_reader(f"{server}/moved")() == b"content"


@pytest.mark.parametrize(
    ("path", "reason"), [("/absent", "503"), ("/elsewhere", "redirects to another protocol"), ("/large", "larger")]
)
def test_http_errors_have_a_reason(server, path, reason):
    with pytest.raises((OSError, ValueError), match=reason):
        make_reader(f"{server}{path}")()


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_issuer_whose_response_does_not_end(start, monkeypatch):
    """Each byte of it arrives in time."""

    def send_for_some_time(server):
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(start)
            for _ in range(1000):
                connection.send(b"x")
                pause.wait(0.005)

    pause = threading.Event()
    monkeypatch.setattr(key_refresh, "RESPONSE_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=send_for_some_time, args=(server,))
        thread.start()
        with pytest.raises(TimeoutError, match="it did not respond within"):
            make_reader(f"http://127.0.0.1:{server.getsockname()[1]}/")()
        thread.join()
