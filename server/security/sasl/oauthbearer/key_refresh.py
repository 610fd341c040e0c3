"""The keys of an issuer, read from a file or by HTTP in a thread: at start, periodically, and for unknown key ids.

Sources: KIP-768; Kafka's RefreshingHttpsJwks. Two differences: a broker starts although the issuer cannot be reached,
and refuses tokens until it can; and files are read again, as those of an issuer that renews its keys.
"""

import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from odradek.server.security.sasl.mechanism import CallLater, Timer, find_backoff_ms
from odradek.server.security.sasl.oauthbearer.issuer_urls import describe_url, find_file, read_file
from odradek.server.security.sasl.oauthbearer.jwks import KeySet, KeySetError, PublicKey, parse_key_set
from odradek.server.security.sasl.oauthbearer.response_deadline import ResponseDeadline

if TYPE_CHECKING:
    from odradek.log.background.tasks import RunInThread

logger = logging.getLogger(__name__)

MAX_KEY_SET_BYTES: Final = 1 << 20
CONNECT_TIMEOUT_S: Final = 5.0
RESPONSE_TIMEOUT_S: Final = 10.0
"""Time for each connection to the issuer, and from the first one to the end of the response."""

UNKNOWN_KEY_INTERVAL_S: Final = 10.0
"""Least time between two reads for unknown key ids, which any client can send before it is authenticated."""


class RefreshSettings(NamedTuple):
    """The properties `sasl.oauthbearer.jwks.endpoint.*` with these names."""

    url: str
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


class RefreshedKeys:
    """The current keys of an issuer. Call `start` before the first `find`.

    read: blocks, and returns the content of a key set; raises OSError or ValueError
    monotonic: the monotonic clock, in seconds
    key_sets: the last keys by URL, with which an object begins that replaces another one
    """

    def __init__(
        self,
        settings: RefreshSettings,
        read: Callable[[], bytes],
        monotonic: Callable[[], float],
        call_later: CallLater,
        run_in_thread: "RunInThread",
        key_sets: dict[str, KeySet] | None = None,
    ) -> None:
        self._settings = settings
        self._key_sets = {} if key_sets is None else key_sets
        self._read = read
        self._monotonic = monotonic
        self._call_later = call_later
        self._run_in_thread = run_in_thread
        self._keys = self._key_sets.get(settings.url, KeySet())
        self._timer: Timer | None = None
        self._is_reading = False
        self._is_stopped = False
        self._failures = 0
        self._next_for_unknown_s = 0.0

    def start(self) -> None:
        """Begin to read the keys, and continue until `stop`."""
        self._refresh()

    def stop(self) -> None:
        """Read no more."""
        self._is_stopped = True
        self._cancel_timer()

    def find(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the key for a token; if there is none, read the keys again soon, and return None."""
        key = self._keys.find(key_id, algorithm)
        if key is None and key_id is not None:
            now_s = self._monotonic()
            if now_s >= self._next_for_unknown_s and not self._failures:
                self._next_for_unknown_s = now_s + UNKNOWN_KEY_INTERVAL_S
                self._refresh()
        return key

    def _refresh(self) -> None:
        if self._is_reading or self._is_stopped:
            return
        self._is_reading = True
        self._cancel_timer()
        found: list[KeySet] = []

        def finish(error: Exception | None) -> None:
            self._is_reading = False
            if not self._is_stopped:
                self._take(found[0] if found else None, error)

        self._run_in_thread(lambda: found.append(parse_key_set(self._read())), finish)

    def _take(self, keys: KeySet | None, error: Exception | None) -> None:
        """Use new keys; after an error keep the last ones and try again."""
        url = describe_url(self._settings.url)
        if keys is None:
            # The first of several failures is reported, and the end of them.
            level = logging.DEBUG if self._failures else logging.ERROR
            consequence = "the last keys remain in use" if self._keys.keys else "all tokens are refused"
            logger.log(level, "cannot read keys of OAUTHBEARER; %s; retrying url=%s error=%s", consequence, url, error)
            settings = self._settings
            delay_ms = find_backoff_ms(self._failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
            self._failures += 1
        else:
            level = logging.INFO if self._failures or not self._keys.keys else logging.DEBUG
            logger.log(level, "read keys of OAUTHBEARER url=%s keys=%d", url, len(keys.keys))
            self._keys = self._key_sets[self._settings.url] = keys
            self._failures = 0
            delay_ms = self._settings.refresh_ms
        self._timer = self._call_later(delay_ms / 1000, self._refresh)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()


def make_reader(url: str, context: ssl.SSLContext | None = None) -> Callable[[], bytes]:
    """Return a function that reads a `file:`, `http:` or `https:` URL. Raises ValueError for another.

    context: for `https:`; by default the certificates of the operating system are trusted
    """
    path = find_file(url)
    if path is not None:
        return lambda: _check_size(read_file(path, MAX_KEY_SET_BYTES))
    return lambda: _read_http(url, context)


def _read_http(url: str, context: ssl.SSLContext | None) -> bytes:
    # Imported here, in the thread, because it takes 50 ms.
    from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
    from urllib.error import HTTPError
    from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    deadlines: list[ResponseDeadline] = []

    def limit(connection: socket.socket) -> None:
        deadlines.append(stack.enter_context(ResponseDeadline(connection, RESPONSE_TIMEOUT_S)))

    class LimitedConnection(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            limit(self.sock)

    class LimitedTlsConnection(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            limit(self.sock)

    class LimitedHandler(HTTPHandler):
        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(LimitedConnection, request)

    class LimitedTlsHandler(HTTPSHandler):
        def https_open(self, request: Request) -> HTTPResponse:
            return self.do_open(LimitedTlsConnection, request, context=context or ssl.create_default_context())

    class SameSchemeRedirects(HTTPRedirectHandler):
        """Follows no redirect from https to http, which does not protect the keys."""

        def redirect_request(self, request: Request, *arguments: Any) -> Request | None:
            if urlsplit(arguments[-1]).scheme != urlsplit(url).scheme:
                raise OSError("it redirects to another protocol")
            return super().redirect_request(request, *arguments)

    opener = build_opener(SameSchemeRedirects, LimitedHandler, LimitedTlsHandler)
    request = Request(url, headers={"Accept": "application/jwk-set+json, application/json"})
    try:
        with ExitStack() as stack, opener.open(request, timeout=CONNECT_TIMEOUT_S) as response:
            data = response.read(MAX_KEY_SET_BYTES + 1)
            for deadline in deadlines:
                deadline.check()
    except HTTPError as error:
        with error:
            raise OSError(f"it responded {error.code}") from None
    except HTTPException as error:
        raise OSError(f"its response is malformed: {type(error).__name__}") from None
    return _check_size(data)


def _check_size(data: bytes) -> bytes:
    if len(data) > MAX_KEY_SET_BYTES:
        raise KeySetError(f"it is larger than {MAX_KEY_SET_BYTES} bytes")
    return data
