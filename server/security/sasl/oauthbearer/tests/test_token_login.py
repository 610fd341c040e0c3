"""The current token: requests at start, renewals, failures, and callers that wait."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.log.background.tasks import Done, run_inline
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken
from odradek.server.security.sasl.oauthbearer.token_endpoint import TokenRefusedError
from odradek.server.security.sasl.oauthbearer.token_login import RenewalSettings, TokenLogin

START_MS = 1_700_000_000_000


class Threads:
    """Work in threads that ends when a test wants it to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Done]] = []

    def __call__(self, work: Callable[[], None], done: Done) -> None:
        self.waiting.append((work, done))

    def end(self) -> None:
        run_inline(*self.waiting.pop(0))


class Issuer:
    """An issuer of tokens; `failure` is its error."""

    def __init__(self, lifetime_s: float = 1000) -> None:
        self.clock = Clock()
        self.lifetime_s = lifetime_s
        self.failure: Exception | None = None
        self.requests_s: list[float] = []

    def now_ms(self) -> int:
        return START_MS + round(self.clock.seconds() * 1000)

    def fetch(self) -> AccessToken:
        self.requests_s.append(round(self.clock.seconds(), 3))
        if self.failure is not None:
            raise self.failure
        now_ms = self.now_ms()
        return AccessToken(f"secret-{len(self.requests_s)}", "broker", now_ms, now_ms + round(self.lifetime_s * 1000))

    def log_in(self, run_in_thread: Any = run_inline, random: float = 0.0, **settings: Any) -> TokenLogin:
        login = TokenLogin(
            "http://issuer/token",
            RenewalSettings(**settings),
            self.fetch,
            self.now_ms,
            lambda: random,
            self.clock.callLater,
            run_in_thread,
        )
        login.start()
        return login

    def advance(self, seconds: float) -> None:
        self.clock.pump([0.05] * round(seconds / 0.05))


def find(login: TokenLogin) -> list[Any]:
    """Return a list that gets the token or the error."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(login.find()).addCallbacks(
        lambda token: outcome.append(token.value), lambda failure: outcome.append(failure.value)
    )
    return outcome


@pytest.mark.parametrize(
    ("lifetime_s", "random", "expected_s"),
    [
        (10_000, 0.0, 8000),
        (10_000, 0.5, 8250),
        (1_400, 0.0, 1100),  # the buffer of 300 s
        (361, 0.0, 61),
        (359, 0.0, 287.2),  # no room for period and buffer
        (5, 0.99, 4.2475),
    ],
)
def test_the_time_of_the_renewal(lifetime_s, random, expected_s):
    token = AccessToken("x", "broker", START_MS, START_MS + 1000 * lifetime_s)
    assert RenewalSettings().find_delay_ms(token, START_MS, random) == pytest.approx(1000 * expected_s, abs=1)


def test_the_least_period_applies_to_a_token_that_is_old():
    token = AccessToken("x", "broker", START_MS - 9_000_000, START_MS + 1_000_000)
    assert RenewalSettings().find_delay_ms(token, START_MS, 0) == 60_000
    undated = token._replace(begins_ms=None)
    assert RenewalSettings().find_delay_ms(undated, START_MS, 0) == 700_000


def test_a_token_is_renewed_before_it_expires():
    issuer = Issuer(lifetime_s=10)
    login = issuer.log_in()
    assert find(login) == ["secret-1"]
    issuer.advance(30)
    assert issuer.requests_s == pytest.approx([0, 8, 16, 24], abs=0.1)
    assert find(login) == ["secret-4"]


def test_callers_wait_for_the_first_token():
    issuer, threads = Issuer(), Threads()
    login = issuer.log_in(threads)
    outcomes = [find(login), find(login)]
    assert outcomes == [[], []]
    threads.end()
    assert outcomes == [["secret-1"], ["secret-1"]]
    assert not threads.waiting


def test_the_last_token_is_used_while_the_next_one_is_requested():
    issuer, threads = Issuer(lifetime_s=10), Threads()
    login = issuer.log_in(threads)
    threads.end()
    issuer.advance(9)
    assert len(threads.waiting) == 1
    assert find(login) == ["secret-1"]
    issuer.advance(2)
    outcome = find(login)
    assert outcome == []
    threads.end()
    assert outcome == ["secret-2"]


def test_failures_are_reported_once_and_retried_with_a_growing_backoff(caplog):
    caplog.set_level("DEBUG")
    issuer = Issuer()
    issuer.failure = OSError("refused")
    login = issuer.log_in()
    issuer.advance(40)
    assert issuer.requests_s == pytest.approx([0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7, 32.7], abs=0.3)
    [outcome] = find(login)
    assert isinstance(outcome, SaslError)
    assert "no token: refused" in str(outcome)
    issuer.failure = None
    issuer.advance(10)
    assert find(login) == [f"secret-{len(issuer.requests_s)}"]
    shown = [one.getMessage() for one in caplog.records if one.levelname != "DEBUG"]
    assert shown == [
        "cannot obtain a token for other brokers; this broker cannot connect to others; retrying "
        "source=http://issuer/token error=refused",
        "obtained a token for other brokers source=http://issuer/token user='broker'",
    ]
    assert "secret" not in caplog.text


def test_a_refused_request_is_retried_after_the_longest_backoff(caplog):
    issuer = Issuer()
    issuer.failure = TokenRefusedError("it responded 401; check clientSecret")
    issuer.log_in()
    issuer.advance(25)
    assert issuer.requests_s == pytest.approx([0, 10, 20], abs=0.1)
    assert caplog.text.count("check clientSecret") == 1


def test_another_failure_is_reported_too(caplog):
    issuer = Issuer()
    issuer.failure = OSError("refused")
    issuer.log_in()
    issuer.failure = TokenRefusedError("wrong secret")
    issuer.advance(1)
    assert [one.getMessage().partition("error=")[2] for one in caplog.records] == ["refused", "wrong secret"]


def test_a_token_remains_in_use_until_it_expires(caplog):
    issuer = Issuer(lifetime_s=10)
    login = issuer.log_in()
    issuer.failure = OSError("refused")
    issuer.advance(9)
    assert find(login) == ["secret-1"]
    assert "the last one remains in use" in caplog.text
    issuer.advance(2)
    assert "no token: refused" in str(find(login)[0])


def test_a_token_that_has_expired_already_is_a_failure(caplog):
    issuer = Issuer(lifetime_s=-1)
    login = issuer.log_in()
    assert "compare the clocks" in str(find(login)[0])
    assert "compare the clocks" in caplog.text


def test_the_same_token_again_is_not_requested_without_a_pause():
    issuer = Issuer(lifetime_s=10)
    login = issuer.log_in()
    token = issuer.fetch()
    issuer.requests_s.clear()

    def fetch_the_same() -> AccessToken:
        issuer.requests_s.append(issuer.clock.seconds())
        return token

    login._fetch = fetch_the_same
    issuer.advance(9.9)
    assert issuer.requests_s == pytest.approx([8, 9.6], abs=0.1)
    issuer.advance(0.05)
    assert len(issuer.requests_s) == 3


def test_nothing_is_requested_after_stop():
    issuer, threads = Issuer(), Threads()
    login = issuer.log_in(threads)
    outcome = find(login)
    login.stop()
    assert "login has ended" in str(outcome[0])
    threads.end()
    assert "login has ended" in str(find(login)[0])
    assert not threads.waiting
    assert not issuer.clock.getDelayedCalls()
