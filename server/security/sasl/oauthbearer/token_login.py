"""The current token of this broker: requested at start, renewed before it expires, and again after failures.

Sources: Kafka's ExpiringCredentialRefreshingLogin and Retry. Two differences: a broker starts although its issuer
cannot be reached, and a file with a token is read again at each renewal.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred

from odradek.server.security.sasl.mechanism import CallLater, SaslError, Timer, find_backoff_ms
from odradek.server.security.sasl.oauthbearer.access_tokens import AccessToken
from odradek.server.security.sasl.oauthbearer.token_endpoint import TokenRefusedError

if TYPE_CHECKING:
    from odradek.log.background.tasks import RunInThread

logger = logging.getLogger(__name__)


class RenewalSettings(NamedTuple):
    """The properties `sasl.login.refresh.*` and `sasl.login.retry.*` with these names."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_seconds: int = 60
    buffer_seconds: int = 300
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000

    def find_delay_ms(self, token: AccessToken, now_ms: int, random: float) -> int:
        """Return the time after which a token is renewed; `random` is at least 0 and less than 1."""
        part = self.window_factor + self.window_jitter * random
        remaining_ms = token.expires_ms - now_ms
        first_ms, last_ms = 1000 * self.min_period_seconds, remaining_ms - 1000 * self.buffer_seconds
        if first_ms > last_ms:
            # A short lifetime has no room for these times.
            return int(remaining_ms * part)
        begins_ms = now_ms if token.begins_ms is None else token.begins_ms
        proposed_ms = begins_ms + int((token.expires_ms - begins_ms) * part) - now_ms
        return max(first_ms, min(proposed_ms, last_ms))

    def find_backoff_ms(self, failures: int, *, is_refused: bool) -> int:
        """Return the time after the last of several failures: the longest at once if the issuer refuses the request."""
        if is_refused:
            return self.retry_backoff_max_ms
        return find_backoff_ms(failures - 1, self.retry_backoff_ms, self.retry_backoff_max_ms)


class TokenLogin:
    """Keeps a valid token.

    source: describes the origin of the tokens, for logs
    fetch: blocks, and returns a new token; raises OSError or ValueError, also TokenRefusedError
    random: returns a number that is at least 0 and less than 1
    """

    def __init__(
        self,
        source: str,
        settings: RenewalSettings,
        fetch: Callable[[], AccessToken],
        now_ms: Callable[[], int],
        random: Callable[[], float],
        call_later: CallLater,
        run_in_thread: "RunInThread",
    ) -> None:
        self._source = source
        self._settings = settings
        self._fetch = fetch
        self._now_ms = now_ms
        self._random = random
        self._call_later = call_later
        self._run_in_thread = run_in_thread
        self._token: AccessToken | None = None
        self._timer: Timer | None = None
        self._is_fetching = False
        self._is_stopped = False
        self._failures = 0
        self._failure = ""
        self._waiting: list[Deferred[None]] = []

    def begin_with(self, last: "TokenLogin") -> None:
        """Use the token of the login that this one replaces until there is a new one. Call it before `start`."""
        self._token = last._token

    def start(self) -> None:
        """Begin to request tokens, and continue until `stop`."""
        self._renew()

    def stop(self) -> None:
        """Request no more tokens; `find` raises SaslError if it waits."""
        self._is_stopped = True
        self._failure = "this login has ended"
        self._cancel_timer()
        self._wake()

    async def find(self) -> AccessToken:
        """Return a valid token; wait for a request in progress. Raises SaslError if it fails, or the last one has."""
        token = self._find_valid()
        if token is None and not self._failures:
            # The timer of the renewal is late.
            self._renew()
        if token is None and self._is_fetching and not self._is_stopped:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            await waiting
        token = self._find_valid()
        if token is None:
            raise SaslError(f"no token: {self._failure}")
        return token

    def _find_valid(self) -> AccessToken | None:
        token = self._token
        return token if token is not None and self._now_ms() < token.expires_ms else None

    def _renew(self) -> None:
        if self._is_fetching or self._is_stopped:
            return
        self._is_fetching = True
        self._cancel_timer()
        found: list[AccessToken] = []

        def finish(error: Exception | None) -> None:
            self._is_fetching = False
            if not self._is_stopped:
                self._take(found[0] if found else None, error)
                self._wake()

        self._run_in_thread(lambda: found.append(self._fetch()), finish)

    def _take(self, token: AccessToken | None, error: Exception | None) -> None:
        """Use a new token; after an error keep the last one and try again."""
        now_ms = self._now_ms()
        if token is not None and token.expires_ms <= now_ms:
            token, error = None, ValueError("the token has expired already; renew it, or compare the clocks")
        if token is None:
            delay_ms = self._fail(error)
        else:
            level = logging.INFO if self._failures or self._token is None else logging.DEBUG
            logger.log(level, "obtained a token for other brokers source=%s user=%r", self._source, token.principal)
            self._token = token
            self._failures, self._failure = 0, ""
            # A file may still have the same token, which soon expires.
            least_ms = max(1, self._settings.retry_backoff_ms)
            delay_ms = max(least_ms, self._settings.find_delay_ms(token, now_ms, self._random()))
        self._timer = self._call_later(delay_ms / 1000, self._renew)

    def _fail(self, error: Exception | None) -> int:
        """Log a failure; return the time in ms until the next attempt."""
        # The first of several equal failures is reported, and the end of them.
        level = logging.DEBUG if str(error) == self._failure else logging.ERROR
        if self._find_valid() is not None:
            consequence = "the last one remains in use until it expires"
        else:
            consequence = "this broker cannot connect to others"
        self._failures, self._failure = self._failures + 1, str(error)
        is_refused = isinstance(error, TokenRefusedError)
        delay_ms = self._settings.find_backoff_ms(self._failures, is_refused=is_refused)
        logger.log(
            level, "cannot obtain a token for other brokers; %s; retrying source=%s error=%s",
            consequence, self._source, error,
        )  # fmt: skip
        return delay_ms

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
