"""Protection of the console: host names, cross-site requests, sessions, and the limit of attempts to log in."""

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

SESSION_S: Final = 12 * 3600.0
MOST_ATTEMPTS: Final = 5
"""Failed attempts of one address in ATTEMPTS_S seconds."""

MOST_ATTEMPTS_OF_ALL: Final = 100
ATTEMPTS_S: Final = 60.0
_MOST_SESSIONS: Final = 1000

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer, with which browsers send `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_allowed_host(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header has an IP address, localhost or one of `names`.

    Another name may be one of an attacker, whose DNS server now returns the address of the console (DNS rebinding).
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if not name:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name in names
    return True


def is_same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Return whether a request comes from a page of the console itself, or from a program other than a browser."""
    origin = headers.get("Origin")
    if origin is not None:
        try:
            return urlsplit(origin).netloc == host
        except ValueError:
            return False
    return headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none")


def is_embedded_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether another site's page loads a resource of the console, rather than links to it."""
    is_foreign = headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site")
    return is_foreign and headers.get("Sec-Fetch-Mode") != "navigate"


def is_local_path(path: str) -> bool:
    """Return whether a redirect to a path stays in the console."""
    return path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()


class LoginAttempts:
    """Failed attempts to log in, of each address and of all."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures: list[tuple[float, str]] = []

    def are_exhausted(self, address: str) -> bool:
        """Return whether an address must wait."""
        with self._lock:
            oldest = self._monotonic() - ATTEMPTS_S
            self._failures = [failure for failure in self._failures if failure[0] > oldest]
            own = sum(failed == address for _, failed in self._failures)
            return own >= MOST_ATTEMPTS or len(self._failures) >= MOST_ATTEMPTS_OF_ALL

    def add_failure(self, address: str) -> None:
        """Count a wrong password."""
        with self._lock:
            self._failures.append((self._monotonic(), address))


class Sessions:
    """Logged-in browsers, and the tokens of their forms. Cookies are stored as hashes only."""

    def __init__(self, password: str | None, monotonic: Callable[[], float]) -> None:
        self._password = None if password is None else _hash(password)
        self._monotonic = monotonic
        self._form_key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._expiry: dict[bytes, float] = {}

    @property
    def has_password(self) -> bool:
        """Return whether users must log in."""
        return self._password is not None

    def log_in(self, password: str) -> str | None:
        """Return the cookie of a new session; None if the password is wrong."""
        if self._password is None or not hmac.compare_digest(_hash(password), self._password):
            return None
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            now = self._monotonic()
            live = {key: expiry for key, expiry in self._expiry.items() if expiry > now}
            # The oldest session ends when there are too many.
            self._expiry = dict(list(live.items())[-(_MOST_SESSIONS - 1) :])
            self._expiry[_hash(cookie)] = now + SESSION_S
        return cookie

    def log_out(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            self._expiry.pop(_hash(cookie), None)

    def is_valid(self, cookie: str) -> bool:
        """Return whether a cookie has a session. Without a password every browser has one."""
        if self._password is None:
            return True
        with self._lock:
            return self._expiry.get(_hash(cookie), float("-inf")) > self._monotonic()

    def make_form_token(self, cookie: str) -> str:
        """Return the token in the forms of a session; other sites cannot read it."""
        return hmac.new(self._form_key, cookie.encode(), "sha256").hexdigest()

    def is_form_token(self, token: str, cookie: str) -> bool:
        """Return whether a form has the token of its session."""
        return hmac.compare_digest(token.encode(), self.make_form_token(cookie).encode())


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
