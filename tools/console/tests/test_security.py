import pytest

from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.security import (
    ATTEMPTS_S,
    MOST_ATTEMPTS,
    SESSION_S,
    is_allowed_host,
    is_embedded_elsewhere,
    is_local_path,
    is_same_origin,
)
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.connection.connection_errors import CONNECTION, NoAddressError, StepError
from odradek.tools.kafka.connection.profile import ProfileError


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def fail():
    raise StepError("10.0.0.1:9092", CONNECTION, "<b>refused</b>", "is the broker running?")


def make(clock=None, **settings):
    console = Console(fail, "10.0.0.1:9092", ConsoleSettings(**settings), clock or Clock(), lambda: 0.0)
    client = make_app(console).test_client()
    return console, client


def log_in(client, password, **headers):
    form = client.get("/login").get_data(as_text=True)
    token = form.partition('name="token" value="')[2].partition('"')[0]
    return client.post("/login", data={"password": password, "token": token, "next": "/topics"}, headers=headers)


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("console.example:80", True),
        ("CONSOLE.example", True),
        ("attacker.example:8080", False),
        ("localhost.attacker.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_host_names(host, is_allowed):
    assert is_allowed_host(host, frozenset({"console.example"})) is is_allowed


@pytest.mark.parametrize(
    ("headers", "is_same"),
    [
        ({}, True),
        ({"Origin": "http://localhost:8080"}, True),
        ({"Origin": "http://localhost:9999"}, False),
        ({"Origin": "http://attacker.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[::1"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_origins(headers, is_same):
    assert is_same_origin(headers, "localhost:8080") is is_same


def test_resources_that_another_site_embeds():
    assert is_embedded_elsewhere({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})
    assert not is_embedded_elsewhere({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert not is_embedded_elsewhere({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"})


@pytest.mark.parametrize("path", ["//attacker.example", "/\\attacker.example", "http://attacker.example", "", "/\n"])
def test_redirects_to_other_sites(path):
    assert is_local_path("/topics?page=2")
    assert not is_local_path(path)


def test_a_foreign_host_name_is_refused_before_anything_else():
    _, client = make()
    refused = client.get("/", headers={"Host": "attacker.example"})
    assert refused.status_code == 403 and b"Unknown host name" in refused.data


def test_an_unreachable_cluster_is_explained_and_escaped():
    _, client = make()
    response = client.get("/topics")
    text = response.get_data(as_text=True)
    assert response.status_code == 502
    assert "10.0.0.1:9092" in text and "connection" in text and "is the broker running?" in text
    assert "&lt;b&gt;refused&lt;/b&gt;" in text and "<b>" not in text


def test_each_address_that_does_not_answer_is_explained():
    def fail_twice():
        raise NoAddressError([StepError(f"10.0.0.{host}:9092", CONNECTION, "refused") for host in (1, 2)])

    console = Console(fail_twice, "", ConsoleSettings(), Clock(), lambda: 0.0)
    text = make_app(console).test_client().get("/").get_data(as_text=True)
    assert text.count("Failed step") == 2 and "10.0.0.2:9092" in text


def test_a_certificate_file_that_is_being_replaced_is_explained():
    def fail_to_read():
        raise ProfileError("ssl.truststore.location: cannot be read")

    console = Console(fail_to_read, "", ConsoleSettings(), Clock(), lambda: 0.0)
    response = make_app(console).test_client().get("/topics")
    assert response.status_code == 502
    assert "ssl.truststore.location: cannot be read" in response.get_data(as_text=True)


def test_every_response_has_the_security_headers():
    _, client = make()
    for path in ("/", "/login", "/nothing", "/static/console.css"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
    assert client.get("/login").headers["Cache-Control"] == "no-store"


def test_pages_require_a_login():
    _, client = make(password="secret")
    redirected = client.get("/topics?page=2")
    assert (redirected.status_code, redirected.location) == (303, "/login?next=%2Ftopics%3Fpage%3D2")
    assert client.get("/topics", headers={"Sec-Fetch-Mode": "cors"}).status_code == 401
    assert client.get("/static/console.css").status_code == 200


def test_pages_before_the_login_do_not_show_the_cluster():
    _, client = make(password="secret")
    assert b"10.0.0.1" not in client.get("/login").data
    log_in(client, "secret")
    assert b'class="cluster"' in client.get("/").data
    _, client = make()
    assert b"10.0.0.1" not in client.get("/", headers={"Host": "attacker.example"}).data


def test_large_forms_require_a_login():
    console, client = make(password="secret", allows_changes=True)
    form = {"token": console.sessions.make_form_token(""), "value": "x" * 100_000}
    assert client.post("/login", data=form).status_code == 413
    assert client.post("/topics/t/produce", data=form).status_code == 413
    log_in(client, "secret")
    form["token"] = console.sessions.make_form_token(client.get_cookie(console.cookie_name).value)
    assert client.post("/topics/t/produce", data=form).status_code == 502  # the cluster does not answer


def test_a_session_ends_by_logout_and_by_time():
    clock = Clock()
    console, client = make(clock, password="secret")
    done = log_in(client, "secret")
    assert (done.status_code, done.location) == (303, "/topics")
    assert "HttpOnly" in done.headers["Set-Cookie"] and "SameSite=Strict" in done.headers["Set-Cookie"]
    assert client.get("/").status_code == 502  # the page is served; the cluster does not answer
    cookie = client.get_cookie(console.cookie_name).value
    client.post("/logout", data={"token": console.sessions.make_form_token(cookie)})
    client.set_cookie(console.cookie_name, cookie)
    assert client.get("/").status_code == 303
    log_in(client, "secret")
    clock.now += SESSION_S
    assert client.get("/").status_code == 303


def test_a_proxy_with_tls_makes_the_cookie_secure():
    _, client = make(password="secret")
    assert "Secure" not in log_in(client, "secret").headers["Set-Cookie"]
    assert "Secure" in log_in(client, "secret", **{"X-Forwarded-Proto": "https"}).headers["Set-Cookie"]


def test_attempts_are_limited_for_each_address():
    clock = Clock()
    _, client = make(clock, password="secret")
    assert [log_in(client, "guess").status_code for _ in range(MOST_ATTEMPTS)] == [403] * MOST_ATTEMPTS
    client.delete_cookie("odradek_console")
    assert log_in(client, "secret").status_code == 429
    client.environ_base["REMOTE_ADDR"] = "10.0.0.2"
    assert log_in(client, "secret").status_code == 303
    client.environ_base["REMOTE_ADDR"] = "127.0.0.1"
    client.post("/logout")
    clock.now += ATTEMPTS_S
    assert log_in(client, "secret").status_code == 303


def test_forms_of_other_sites_and_sessions_are_refused():
    console, client = make(password="secret")
    token = console.sessions.make_form_token("")
    form = {"password": "secret", "token": token}
    assert client.post("/login", data=form, headers={"Origin": "http://attacker.example"}).status_code == 403
    assert client.post("/login", data={**form, "token": "x"}).status_code == 403
    assert client.post("/login", data={**form, "token": "\xff"}).status_code == 403
    assert client.post("/login", data=form, headers={"Origin": "http://localhost"}).status_code == 303
    # The token of the form before the login is not that of the session.
    assert client.post("/logout", data={"token": token}).status_code == 403


@pytest.mark.parametrize("age", ["0", "9" * 9, pytest.param("0" * 5000, id="long"), "-1", "x", "\u0661"])
def test_ages_of_hanging_transactions(age):
    _, client = make()
    assert client.get("/transactions/hanging", query_string={"age": age}).status_code == 502


def test_reported_changes_contain_no_control_characters():
    lines: list[str] = []
    console = Console(fail, "", ConsoleSettings(), Clock(), lambda: 0.0, report=lines.append)
    with make_app(console).test_request_context("/", environ_base={"REMOTE_ADDR": "10.0.0.2"}):
        console.log_change("configured topic t: a=\x1b[2J\nb\x9b")
    assert lines == ["1970-01-01 00:00:00.000 10.0.0.2 configured topic t: a=\\u001b[2J b\\u009b"]
